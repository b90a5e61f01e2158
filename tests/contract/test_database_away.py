"""A database that is restarted under load: reads and writes raise `Unavailable`, and no other error."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from deltaci.engine.queue import AsyncQueue
from deltaci.storage import open_store
from deltaci.storage.port import Unavailable
from tests.contract.backends import within
from tests.support.postgres_server import PostgresServer

RESTARTS: Final = 3
READERS: Final = 2  # Each of three kinds.


def test_a_restart_of_the_database_raises_only_unavailable(postgres_server: PostgresServer, postgres_dsn: str) -> None:
    """A caller repeats after `Unavailable`; an error of the driver would count as an internal error."""
    raised: list[Exception] = []
    is_over = asyncio.Event()

    async def repeat_until_available(ask: Callable[[], Awaitable[object]]) -> None:
        while not is_over.is_set():
            try:
                await ask()
            except Exception as error:
                raised.append(error)
            await turn()

    async def turn() -> None:
        """Let the others have theirs, however quickly one's own fails."""
        done = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_later(0.02, done.set_result, None)
        await done

    @within(600)
    async def story() -> None:
        store = open_store(postgres_dsn)
        async with AsyncQueue(store, has_timers=False) as queue:
            asks = (lambda: store.find("q-1"), lambda: store.events(0, 10), lambda: queue.enqueue({"n": 1}))
            asking = [asyncio.create_task(repeat_until_available(ask)) for ask in asks * READERS]
            for _ in range(RESTARTS):
                await asyncio.to_thread(postgres_server.restart)
            is_over.set()
            await asyncio.gather(*asking)

    story()

    assert raised
    assert {type(error) for error in raised} == {Unavailable}
