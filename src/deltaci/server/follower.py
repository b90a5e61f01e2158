"""One reader of the event log for each server, which passes new events to all listeners, page by page.

Events are hints: a listener that acts on one reads the current records.
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
PAUSE_SECONDS: Final = 0.02  # The pause between two reads, so that a busy server reads pages and not single events.

LOGGER: Final = logging.getLogger(__name__)

Listener = Callable[[Sequence[Event]], None]


class Follower:
    """Reads the event log once for all listeners. A listener must return fast and do longer work in a task."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._listeners: list[Listener] = []
        self._last_seq = 0
        self._follow_task: asyncio.Task[None] | None = None

    def subscribe(self, listener: Listener) -> None:
        """Call `listener` with each page of future events."""
        self._listeners.append(listener)

    async def start(self) -> None:
        """Start a task that passes the events after the last committed one to the listeners."""
        self._last_seq = await self._store.last_seq()
        self._follow_task = asyncio.create_task(self._run(), name="follower")

    async def stop(self) -> None:
        if self._follow_task is not None:
            await cancel_and_wait(self._follow_task)

    async def _run(self) -> None:
        """Pass each page of new events to the listeners, until cancelled. After an error, retry after a pause."""
        is_error_logged = False
        while True:
            try:
                async with aclosing(feed.pages(self._store, self._last_seq)) as pages:
                    async for page in pages:
                        is_error_logged = False
                        self._last_seq = page[-1].seq
                        for listener in self._listeners:
                            listener(page)
                        await asyncio.sleep(PAUSE_SECONDS)
            except Unavailable as error:
                if not is_error_logged:
                    LOGGER.warning("cannot follow the event log: %s; retrying", error)
                is_error_logged = True
            except Exception:
                # A failing listener must not stop the others.
                if not is_error_logged:
                    LOGGER.exception("cannot follow the event log: internal error; retrying")
                is_error_logged = True
            await asyncio.sleep(RETRY_SECONDS)


def read_time_and_records(record_ids: Sequence[str]) -> Transaction[tuple[int, list[Record]]]:
    """Return the store's time, and the records with these ids that exist. Writes nothing."""
    now, stored_records = yield Begin(tuple(record_ids))
    return now, [stored_record.record for stored_record in stored_records]
