"""Background controllers: they watch the event log and documents, and bring the system to its desired state.

A change of a repository becomes runs (`changes.py`), runs get plans (`planner.py`), forges get commit statuses
(`statuses.py`); `poller.py` and `schedules.py` find changes that no webhook announced. `work_queue.py` processes keys
one at a time, `claims.py` keeps two servers from doing the same work. Start with `repositories.py`.
"""
