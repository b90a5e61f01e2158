"""Whoever is over is reported: the last step of every run, once whoever must know its outcome knows it.

A run that no forge waits for is reported as soon as it is over. Hints come from the log; the list of what is over and
not reported is the truth behind them, so a server that was away finds what nobody told it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from deltaci.core import run
from deltaci.core.errors import Refused
from deltaci.core.events import REPORTER, RUN, Event
from deltaci.core.listing import EVERYBODY, UNREPORTED
from deltaci.core.machine import Command
from deltaci.engine.applier import Applier
from deltaci.engine.items import Overloaded
from deltaci.engine.loops import ended
from deltaci.store.port import Conflict, Place, Search, Store, Unavailable

SWEEP_SECONDS: Final = 60.0
RETRY_SECONDS: Final = 1.0
MAX_HINTS: Final = 10_000
PAGE: Final = 200

LOGGER: Final = logging.getLogger(__name__)


class Reporter:
    """Takes runs from their outcome to REPORTED. Servers side by side may both try; the second one changes nothing."""

    def __init__(self, store: Store, applier: Applier) -> None:
        self._store = store
        self._applier = applier
        self._hints: dict[str, None] = {}
        self._is_told = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def hear(self, events: Sequence[Event]) -> None:
        """What happened, from the follower of the log."""
        for event in events:
            if event.entity == RUN and run.MACHINE.changes(event.to, run.Report) and len(self._hints) < MAX_HINTS:
                self._hints[event.entity_id] = None
                self._is_told.set()

    def start(self) -> None:
        """Begin with what was left over."""
        self._task = asyncio.create_task(self._run(), name="reporter")

    async def stop(self) -> None:
        """Report no more."""
        if self._task is not None:
            await ended(self._task)

    async def _run(self) -> None:
        while True:
            try:
                await self._sweep()
                await self._listen()
            except (Unavailable, Conflict, Overloaded) as error:
                LOGGER.warning("runs cannot be reported now: %s; trying again", error)
                await asyncio.sleep(RETRY_SECONDS)

    async def _listen(self) -> None:
        """Until it is time to look for what nobody told."""
        loop = asyncio.get_running_loop()
        until = loop.time() + SWEEP_SECONDS
        while (left := until - loop.time()) > 0:
            try:
                async with asyncio.timeout(left):
                    await self._is_told.wait()
            except TimeoutError:
                return
            self._is_told.clear()
            hints, self._hints = list(self._hints), {}
            await self._report(hints)

    async def _sweep(self) -> None:
        before: Place | None = None
        while True:
            page = await self._store.page(Search(tenant=EVERYBODY, lists=[UNREPORTED], before=before, limit=PAGE))
            await self._report([each.id for each in page.records])
            before = page.next
            if before is None:
                return

    async def _report(self, ids: Sequence[str]) -> None:
        orders: list[Command] = [run.Report(id=id, actor=REPORTER) for id in ids]
        for answer in await self._applier.do_all(orders):
            if isinstance(answer, Refused) and answer.code != "wrong_state":  # Another server was faster.
                LOGGER.warning("a run cannot be reported: %s", answer.message)
