"""Types of requests and responses of `/api/v1`.

Request bodies are in `inputs.py`, responses for runs, jobs and workers in `records.py`, all others by subject.
"""
