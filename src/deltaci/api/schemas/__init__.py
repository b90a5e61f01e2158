"""The types of `/api/v1`: `inputs.py` takes; `records.py` answers runs, jobs and workers; the rest by subject."""
