"""Write `.state/transitions.jsonl` live: every server writes the transitions of the whole log to its data folder.

The events come from the log follower; missed events are read from the store, so that a slow disk delays nothing else.
It continues the same way after a crash or a disk error: no line is lost or repeated (`journal.py`). If events were
dropped from the store in between, the old file is kept under another name and a new one begins.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeVar

from deltaci.controllers.journal import FileLockedError, JournalPosition, MissingEventsError, TransitionJournal
from deltaci.core.backoff import Backoff
from deltaci.core.events import Event
from deltaci.storage.port import Store, Unavailable

PAGE: Final = 1000
MAX_HEARD: Final = 20_000  # So many events are kept in memory for a slow disk; what is beyond is read again.
SAVE_EVENTS: Final = 20_000
SAVE_SECONDS: Final = 60.0
RETRY_SECONDS: Final = 1.0
MAX_RETRY_SECONDS: Final = 30.0
STOP_SECONDS: Final = 10.0  # So long the rest is written at the end; what is left is written by the next one.

LOGGER: Final = logging.getLogger(__name__)

T = TypeVar("T")


class TransitionWriter:
    """Writes the events of the log to the file `transitions.jsonl` of this server."""

    def __init__(self, store: Store, folder: Path) -> None:
        self._store = store
        self._journal = TransitionJournal(folder)
        self._heard: deque[Sequence[Event]] = deque()
        self._heard_count = 0
        self._is_woken = asyncio.Event()
        self._is_moved = asyncio.Condition()
        self._is_stopping = asyncio.Event()
        self._goal = 0  # The newest event that is known to be there.
        self._seen = 0
        self._saved_at = 0.0
        self._task: asyncio.Task[None] | None = None

    def on_events(self, events: Sequence[Event]) -> None:
        """Buffer a page of events to be written. If too many wait, they are read from the store again."""
        if self._heard_count + len(events) > MAX_HEARD:
            self._heard.clear()
            self._heard_count = 0
        self._heard.append(events)
        self._heard_count += len(events)
        self._goal = max(self._goal, events[-1].seq)
        self._is_woken.set()

    def start(self) -> None:
        """Start the task that writes the file."""
        self._task = asyncio.create_task(self._run(), name="transitions")

    async def stop(self) -> None:
        """Write the events that are committed by now, for at most STOP_SECONDS, and close the file."""
        if self._task is None:
            return
        try:
            async with asyncio.timeout(STOP_SECONDS):
                self._goal = max(self._goal, await self._store.last_seq())
                self._is_stopping.set()
                self._is_woken.set()
                await asyncio.shield(self._task)
        except (TimeoutError, Unavailable) as error:
            LOGGER.warning(
                "transitions.jsonl is incomplete: %s; the next start continues it", str(error) or "timed out"
            )
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def written(self, seq: int) -> None:
        """Wait until the event with this seq has been processed."""
        async with self._is_moved:
            await self._is_moved.wait_for(lambda: self._seen >= seq)

    async def _run(self) -> None:
        told, backoff = "", Backoff(RETRY_SECONDS, MAX_RETRY_SECONDS)
        try:
            while True:
                try:
                    await self._open()
                    backoff.reset()
                    await self._follow()
                    return
                except (FileLockedError, Unavailable, OSError) as error:
                    if told != str(error):
                        LOGGER.warning("cannot write transitions.jsonl: %s; retrying", error)
                    told = str(error)
                except Exception as error:  # Whatever it was, the server goes on; so does the file, if it can.
                    if told != str(error):
                        LOGGER.exception("transitions.jsonl: internal error; retrying")
                    told = str(error)
                with suppress(TimeoutError):
                    async with asyncio.timeout(backoff.next()):
                        await self._is_stopping.wait()
                    return
        finally:
            await _in_thread(self._journal.close)

    async def _open(self) -> None:
        """Open the file, and begin a new one if the event log does not continue it."""
        found = await _in_thread(self._journal.open)
        if not await self._goes_on(found):
            await self._begin_anew(0)
        self._goal = max(self._goal, await self._store.last_seq())
        self._saved_at = asyncio.get_running_loop().time()
        await self._moved()

    async def _goes_on(self, found: JournalPosition) -> bool:
        """Return whether the log has the events of the file, and all events after its snapshot."""
        if not found.is_ours:
            return False
        if found.last.seq > await self._store.last_seq():
            return False
        for mark in (found.snapshot, found.last):
            event = await self._next(mark.seq - 1) if mark.seq else None
            if event is not None and event.seq == mark.seq and not mark.fits(event):
                return False
        event = await self._next(found.snapshot.seq)
        return event is None or event.seq == found.snapshot.seq + 1

    async def _begin_anew(self, behind: int) -> None:
        """Begin a new file after this event, or after later ones that were dropped from the store."""
        event = await self._next(behind)
        after = event.seq - 1 if event is not None else await self._store.last_seq()
        kept = await _in_thread(lambda: self._journal.begin_anew(after))
        if kept is not None:
            LOGGER.warning(
                "transitions.jsonl does not go on where it ended: its events were dropped, or it is of another log; "
                "it is kept as %s, and a new one begins behind seq %d",
                kept.name,
                after,
            )
        elif after:
            LOGGER.warning("transitions.jsonl begins behind seq %d: earlier events were dropped", after)

    async def _next(self, after: int) -> Event | None:
        page = await self._store.events(after, 1)
        return page[0] if page else None

    async def _follow(self) -> None:
        while True:
            if self._journal.seen < self._goal:
                await self._append(self._heard_page() or await self._store.events(self._journal.seen, PAGE))
            elif self._is_stopping.is_set():
                break
            else:
                await self._wait()
            if self._is_time_to_save():
                await self._save()
        if self._journal.unsaved:
            await self._save()

    def _heard_page(self) -> Sequence[Event]:
        """Return the buffered page that continues the file, or an empty one. Drop older pages."""
        while self._heard and self._heard[0][-1].seq <= self._journal.seen:
            self._heard_count -= len(self._heard.popleft())
        if not self._heard or self._heard[0][0].seq != self._journal.seen + 1:
            return ()
        page = self._heard.popleft()
        self._heard_count -= len(page)
        return page

    async def _append(self, page: Sequence[Event]) -> None:
        try:
            await _in_thread(lambda: self._journal.append(page))
        except MissingEventsError:  # What is behind it was read from the store: it was dropped.
            await self._begin_anew(self._journal.seen)
        await self._moved()

    async def _moved(self) -> None:
        async with self._is_moved:
            self._seen = self._journal.seen
            self._is_moved.notify_all()

    async def _wait(self) -> None:
        """Wait until events arrive, or until it is time to save a snapshot."""
        self._is_woken.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(SAVE_SECONDS if self._journal.unsaved else None):
                await self._is_woken.wait()

    def _is_time_to_save(self) -> bool:
        """Return whether to save a snapshot: rarely enough that its size does not matter."""
        unsaved = self._journal.unsaved
        if unsaved >= max(SAVE_EVENTS, 2 * self._journal.remembered):
            return True
        return bool(unsaved) and asyncio.get_running_loop().time() - self._saved_at >= SAVE_SECONDS

    async def _save(self) -> None:
        await _in_thread(self._journal.save)
        self._saved_at = asyncio.get_running_loop().time()


async def _in_thread(work: Callable[[], T]) -> T:
    """Run a blocking function in a thread and return its result. If cancelled, wait for its end first."""
    doing = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(doing)
    except asyncio.CancelledError:
        await asyncio.wait([doing])
        doing.exception()
        raise
