"""A job's log: masked (`masking.py`), divided into sections, kept on disk and sent to the server (`stream.py`)."""
