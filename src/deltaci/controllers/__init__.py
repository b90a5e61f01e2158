"""Background controllers: they watch the event log and documents, and bring the system to its desired state.

Changes of repositories become runs with plans (`repositories/`), forges get commit statuses (`statuses.py`), and
workstreams are driven and merged (`workstreams/`, `merge_queue/`). `work_queue.py` processes keys one at a time,
`claims.py` keeps two servers from doing the same work. Start with `repositories/controller.py`.
"""
