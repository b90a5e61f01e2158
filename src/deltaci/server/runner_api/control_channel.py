"""What is wanted of runners, told at once: a cancel reaches whoever holds the lease without waiting for its heartbeat.

All of it are hints. One that is lost costs a heartbeat's interval, because the answer to the heartbeat says the same;
one that comes twice or too late is recognised by its lease. Telling costs the same however many runners wait: each
event is looked up by whom it is for.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from deltaci.core import attempt, ids, lease
from deltaci.core.attempt import Attempt
from deltaci.core.errors import Refused, StaleLease
from deltaci.core.events import ATTEMPT, Event
from deltaci.core.machine import Record
from deltaci.engine.event_loop import cancel_and_wait
from deltaci.protocol.messages import CancelRequested, ControlRequest
from deltaci.server.follower import look
from deltaci.server.runner_api.lease_ids import LeaseIds
from deltaci.server.runner_api.message_handlers import Runner
from deltaci.storage.port import Conflict, Store, Unavailable

MAX_LATE: Final = 100_000  # Attempts that wait to be looked at; what is beyond is told by heartbeats.
LOOK_AT: Final = 500

LOGGER: Final = logging.getLogger(__name__)

Outlet = Callable[[str, str, CancelRequested], None]


class _Waiting:
    """One runner that waits to be told."""

    def __init__(self) -> None:
        self.told: list[CancelRequested] = []
        self.is_told: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def tell(self, *messages: CancelRequested) -> None:
        self.told += messages
        if not self.is_told.done():
            self.is_told.set_result(None)


class ControlHub:
    """Hears of every change, and tells those that it concerns."""

    def __init__(self, store: Store, lease_ids: LeaseIds) -> None:
        self._store = store
        self._lease_ids = lease_ids
        self._outlets: list[Outlet] = [self._tell_waiting]
        self._waiting: dict[tuple[str, str], set[_Waiting]] = {}
        self._asked: dict[str, None] = {}
        self._is_asked = asyncio.Event()
        self._is_closing = False
        self._task: asyncio.Task[None] | None = None

    def add_outlet(self, outlet: Outlet) -> None:
        """Tell it this way, too: the tenant, the runner, the message. It must not raise and not take long."""
        self._outlets.append(outlet)

    def start(self) -> None:
        """Begin to tell."""
        self._task = asyncio.create_task(self._run(), name="control")

    async def stop(self) -> None:
        """Tell nothing more."""
        self.stop_waiting()
        if self._task is not None:
            await cancel_and_wait(self._task)

    def stop_waiting(self) -> None:
        """The server is about to end: whoever waits is answered now."""
        self._is_closing = True
        for waiting in [each for all_of_one in self._waiting.values() for each in all_of_one]:
            waiting.tell()

    def on_events(self, events: Sequence[Event]) -> None:
        """What happened. After some of it a runner may acknowledge a cancel: it has to hear of that first."""
        for event in events:
            if (
                event.entity == ATTEMPT
                and event.from_ != event.to
                and attempt.MACHINE.changes(event.to, attempt.CancelAck)
                and len(self._asked) < MAX_LATE
            ):
                self._asked[event.entity_id] = None
                self._is_asked.set()

    async def wait(self, who: Runner, asked: ControlRequest, gone: asyncio.Future[Any]) -> list[CancelRequested]:
        """What is wanted of this runner: at once if something is already, otherwise as soon as it is.

        It listens before it looks, so that nothing can fall in between.
        """
        if not who.may_speak_for(asked.runner_id):
            raise Refused("wrong_runner", f"this credential is for runner {who.id}; use the one of that runner")
        with self._listening(who.tenant, asked.runner_id) as waiting:
            waiting.told += await self._wanted(who.tenant, asked)
            if not waiting.told and not self._is_closing and asked.wait_seconds:
                await asyncio.wait(
                    {waiting.is_told, gone}, timeout=asked.wait_seconds, return_when=asyncio.FIRST_COMPLETED
                )
            return list({each.lease_id: each for each in waiting.told}.values())

    @contextmanager
    def _listening(self, tenant: str, runner_id: str) -> Iterator[_Waiting]:
        waiting, key = _Waiting(), (tenant, runner_id)
        self._waiting.setdefault(key, set()).add(waiting)
        try:
            yield waiting
        finally:
            self._waiting[key].discard(waiting)
            if not self._waiting[key]:
                del self._waiting[key]

    async def _wanted(self, tenant: str, asked: ControlRequest) -> list[CancelRequested]:
        """What is wanted of the leases that the runner names. One that is not its own is as good as none."""
        named: dict[str, str] = {}
        for lease_id in asked.lease_ids:
            try:
                named[ids.lease_ref(lease_id).attempt_id] = lease_id
            except StaleLease:
                continue
        if not named:
            return []
        now, records = await self._store.transact(lambda: look(list(named)))
        found: list[CancelRequested] = []
        for record in records:
            if not isinstance(record, Attempt) or record.tenant != tenant or record.lease is None:
                continue
            lease_id = named[record.id]
            if lease.is_held_by(record.lease, ids.lease_ref(lease_id), asked.runner_id):
                found += _requests(record, lease_id, now)
        return found

    async def _run(self) -> None:
        while True:
            await self._is_asked.wait()
            some = list(self._asked)[:LOOK_AT]
            for id in some:
                del self._asked[id]
            if not self._asked:
                self._is_asked.clear()
            try:
                now, records = await self._store.transact(lambda some=some: look(some))  # type: ignore[misc]
            except (Unavailable, Conflict) as error:
                LOGGER.warning("%d cancels are left to heartbeats: %s", len(some), error)
                continue
            for record in records:
                self._tell(record, now)

    def _tell(self, record: Record, now: int) -> None:
        """Tell whoever holds the lease, if there is somebody and we know what it is called."""
        if not isinstance(record, Attempt) or record.lease is None:
            return
        lease_id = self._lease_ids.of(record)
        for message in _requests(record, lease_id, now) if lease_id else ():
            for outlet in self._outlets:
                outlet(record.tenant, record.lease.worker_id, message)

    def _tell_waiting(self, tenant: str, runner_id: str, message: CancelRequested) -> None:
        for waiting in self._waiting.get((tenant, runner_id), ()):
            waiting.tell(message)


def _requests(record: Attempt, lease_id: str, now: int) -> list[CancelRequested]:
    """The message to the holder of the lease, if the core says that it has to stop."""
    stop = attempt.stop_request(record, now)
    if stop is None:
        return []
    return [
        CancelRequested(
            lease_id=lease_id,
            job_id=record.job_id or record.id,
            reason=stop[0],
            deadline_seconds=stop[1],
            ts=datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=now),
        )
    ]
