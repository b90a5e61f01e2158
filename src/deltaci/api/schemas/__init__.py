"""Types of requests and responses of `/api/v1`.

Request bodies and queries are in `inputs.py`, responses about runs, jobs and workers in `records.py`; the other modules
have both for one subject.
"""
