"""The write path: `Engine` applies commands in batches, each batch in one transaction of the store.

Built on it: blocked claims (`waiters.py`), deadlines (`timers.py`), the event stream (`feed.py`), and the job queue
with its worker as a library (`queue.py`, `worker.py`). Imports `core`, `audit` and `storage.port`. Start reading at
`engine.py`, then `shard.py`.
"""
