"""Detection of projects, one module per language or build tool. Each maps the files of a folder to drafts of jobs."""
