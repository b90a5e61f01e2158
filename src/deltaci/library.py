"""Delta CI as a library: the queue with its store, named by a URL. What programs import as `deltaci.Queue`."""

from __future__ import annotations

from deltaci.engine import queue as engine
from deltaci.engine.blocking import BlockingQueue
from deltaci.storage import open_store

DEFAULT_URL = "sqlite:deltaci.db"


class AsyncQueue(engine.AsyncQueue):
    """A durable job queue for programs that use asyncio: `async with AsyncQueue("sqlite:jobs.db") as queue:`."""

    def __init__(self, url: str = DEFAULT_URL, *, tenant: str = "default") -> None:
        super().__init__(open_store(url), tenant=tenant)


class Queue(BlockingQueue):
    """A durable job queue: `with Queue("sqlite:jobs.db") as queue:`. PostgreSQL URLs work just as well."""

    def __init__(self, url: str = DEFAULT_URL, *, tenant: str = "default") -> None:
        super().__init__(AsyncQueue(url, tenant=tenant))
