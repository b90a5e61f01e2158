"""Reports of jobs: JUnit files, numbers in JSON and XML reports, and the results of validation rules as text."""
