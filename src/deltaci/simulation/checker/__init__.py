"""An independent checker of event logs, written from the documents.

It imports nothing of the core, the engine or the server, so that it cannot share their mistakes. `history_checker.py`
checks the log; `acknowledgements.py` and `executions.py` compare it with what servers answered and what really ran.
"""
