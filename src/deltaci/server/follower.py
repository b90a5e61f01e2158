"""One reader of the log for each server: who wants to know what happened is told page by page, from its start on.

What it tells are hints: whoever acts on one reads the records as they are by then.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import aclosing
from typing import Final

from deltaci.core.events import Event
from deltaci.core.machine import Record
from deltaci.engine import feed
from deltaci.engine.event_loop import cancel_and_wait
from deltaci.storage.port import Begin, Store, Transaction, Unavailable

RETRY_SECONDS: Final = 1.0
PAUSE_SECONDS: Final = 0.02  # Between two looks: a busy server reads the log by the page, not by the event.

LOGGER: Final = logging.getLogger(__name__)

Listener = Callable[[Sequence[Event]], None]


class Follower:
    """Reads the log once for all listeners. They must not take long: who has more to do does it on its own."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._listeners: list[Listener] = []
        self._seen = 0
        self._task: asyncio.Task[None] | None = None

    def tell(self, listener: Listener) -> None:
        """Tell this one, too."""
        self._listeners.append(listener)

    async def start(self) -> None:
        """From what is committed now on."""
        self._seen = await self._store.last_seq()
        self._task = asyncio.create_task(self._run(), name="follower")

    async def stop(self) -> None:
        """Read no more."""
        if self._task is not None:
            await cancel_and_wait(self._task)

    async def _run(self) -> None:
        is_told = False
        while True:
            try:
                async with aclosing(feed.pages(self._store, self._seen)) as read:
                    async for page in read:
                        is_told = False
                        self._seen = page[-1].seq
                        for listener in self._listeners:
                            listener(page)
                        await asyncio.sleep(PAUSE_SECONDS)
            except Unavailable as error:
                if not is_told:
                    LOGGER.warning("the log cannot be followed: %s; trying again until it goes", error)
                is_told = True
            except Exception:
                # Whatever it was, others must go on being told.
                if not is_told:
                    LOGGER.exception("the log cannot be followed: an error of ours; trying again")
                is_told = True
            await asyncio.sleep(RETRY_SECONDS)


def look(ids: Sequence[str]) -> Transaction[tuple[int, list[Record]]]:
    """What the store's clock says, and those of the records that exist; nothing is written."""
    now, held = yield Begin(tuple(ids))
    return now, [each.record for each in held]
