"""Delta CI as a library: the job queue over a store that a URL names. Programs import it as `deltaci.Queue`."""

from __future__ import annotations

from deltaci.engine import queue
from deltaci.engine.blocking import BlockingQueue
from deltaci.storage import open_store

DEFAULT_URL = "sqlite:deltaci.db"


class AsyncQueue(queue.AsyncQueue):
    """A durable job queue for programs that use asyncio: `async with AsyncQueue("sqlite:jobs.db") as queue:`."""

    def __init__(self, url: str = DEFAULT_URL, *, tenant: str = "default") -> None:
        super().__init__(open_store(url), tenant=tenant)


class Queue(BlockingQueue):
    """A durable job queue: `with Queue("sqlite:jobs.db") as queue:`. Also takes PostgreSQL URLs."""

    def __init__(self, url: str = DEFAULT_URL, *, tenant: str = "default") -> None:
        super().__init__(AsyncQueue(url, tenant=tenant))
