"""Move ended runs to REPORTED, the last state of a run.

A run without a forge is reported as soon as it ends. Any other run is reported once its forge has the outcome or the
retries are exhausted; the event records which. Events announce ended runs; the stored list of unreported runs is
authoritative.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from deltaci.controllers.repositories.change_records import ChangeRecord
from deltaci.controllers.statuses import ForgeAccess, StatusReporter
from deltaci.core import run
from deltaci.core.errors import Refused
from deltaci.core.events import REPORTER, RUN, Event
from deltaci.core.listing import ALL_TENANTS, UNREPORTED
from deltaci.core.machine import Command
from deltaci.core.status.steps import RUN_VIEW
from deltaci.core.status.view import SAME
from deltaci.engine.engine import Engine
from deltaci.engine.event_loop import cancel_and_wait
from deltaci.engine.requests import Overloaded
from deltaci.forges import delivery_dedupe
from deltaci.storage.port import Conflict, ListPosition, ListQuery, Store, Unavailable

SWEEP_SECONDS: Final = 60.0
RETRY_SECONDS: Final = 1.0
FORGET_SECONDS: Final = 86400.0
MAX_HINTS: Final = 10_000
PAGE: Final = 200
BACK: Final = 20_000  # So many events of the log are read again by a server that starts.

LOGGER: Final = logging.getLogger(__name__)


class RunReporter:
    """Moves ended runs to REPORTED. Several servers may try; only the first has an effect."""

    def __init__(self, store: Store, engine: Engine, forges: ForgeAccess | None = None) -> None:
        self._store = store
        self._engine = engine
        self._teller = StatusReporter(store, forges, self._finish) if forges is not None else None
        self._hints: dict[str, None] = {}
        self._is_told = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._forgets_at = 0.0

    def on_events(self, events: Sequence[Event]) -> None:
        """Remember the runs to report. The follower of the event log calls this."""
        for event in events:
            if event.entity == RUN and self._concerns(event) and len(self._hints) < MAX_HINTS:
                self._hints[event.entity_id] = None
                self._is_told.set()

    def report_change(self, change: ChangeRecord) -> None:
        """Report to the forge that a change cannot be handled, or that it was handled at last."""
        if self._teller is not None:
            self._teller.take_change(change)

    def _concerns(self, event: Event) -> bool:
        """Return whether the run has ended, or its status for a forge has changed."""
        if run.MACHINE.changes(event.to, run.Report):
            return True
        status = RUN_VIEW.state_map[event.to]
        return self._teller is not None and (
            event.from_ is None or status not in (SAME, RUN_VIEW.state_map[event.from_])
        )

    def start(self) -> None:
        """Start reporting, beginning with the unreported runs."""
        self._task = asyncio.create_task(self._run(), name="reporter")

    async def stop(self) -> None:
        """Stop reporting."""
        if self._task is not None:
            await cancel_and_wait(self._task)
        if self._teller is not None:
            await self._teller.stop()

    async def _run(self) -> None:
        is_caught_up = self._teller is None
        while True:
            try:
                if not is_caught_up:
                    await self._catch_up()
                    is_caught_up = True
                await self._resync()
                await self._forget()
                await self._listen()
            except (Unavailable, Conflict, Overloaded) as error:
                LOGGER.warning("cannot report runs: %s; retrying", error)
                await asyncio.sleep(RETRY_SECONDS)

    async def _listen(self) -> None:
        """Report runs as events announce them, until the next sweep."""
        loop = asyncio.get_running_loop()
        until = loop.time() + SWEEP_SECONDS
        while (left := until - loop.time()) > 0:
            try:
                async with asyncio.timeout(left):
                    await self._is_told.wait()
            except TimeoutError:
                return
            self._is_told.clear()
            hints, self._hints = self._hints, {}
            try:
                await self._report(list(hints))
            except BaseException:
                self._hints = {**hints, **self._hints}  # What is not over is on no list: only these know of it.
                self._is_told.set()
                raise

    async def _resync(self) -> None:
        before: ListPosition | None = None
        while True:
            page = await self._store.page(ListQuery(tenant=ALL_TENANTS, lists=[UNREPORTED], before=before, limit=PAGE))
            await self._report([each.id for each in page.records])
            before = page.next
            if before is None:
                return

    async def _forget(self) -> None:
        """Once a day, delete expired documents about deliveries and statuses."""
        now = asyncio.get_running_loop().time()
        if self._teller is not None and now >= self._forgets_at:
            await delivery_dedupe.delete_expired(self._store)
            self._forgets_at = now + FORGET_SECONDS

    async def _catch_up(self) -> None:
        """Read the last events that happened before the start. Earlier runs are reported when they end."""
        last = await self._store.last_seq()
        seen = max(0, last - BACK)
        while page := await self._store.events(seen, PAGE):
            self.on_events(page)
            seen = page[-1].seq
            if seen >= last:
                return

    async def _report(self, ids: Sequence[str]) -> None:
        if self._teller is None:
            await self._publish([run.Report(id=id, actor=REPORTER) for id in ids])
            return
        for start in range(0, len(ids), PAGE):
            found = await self._store.find_all(ids[start : start + PAGE])
            alone: list[Command] = []
            for each in found:
                # One that cannot be read has no forge that we know: whoever keeps it answers for it.
                is_told = isinstance(each, run.Run) and await self._teller.take(each)
                if not is_told and run.MACHINE.changes(each.state, run.Report):
                    alone.append(run.Report(id=each.id, actor=REPORTER))
            await self._publish(alone)

    async def _finish(self, record: run.Run, told: str) -> None:
        await self._publish([run.Report(id=record.id, actor=REPORTER, reported_to=told)])

    async def _publish(self, orders: Sequence[Command]) -> None:
        for answer in await self._engine.do_all(orders):
            if isinstance(answer, Refused) and answer.code != "wrong_state":  # Another server was faster.
                LOGGER.warning("cannot report a run: %s", answer.message)
