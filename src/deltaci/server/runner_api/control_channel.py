"""The control channel, which sends a cancel request to the runner of a lease without waiting for its heartbeat.

All messages are hints. A lost one costs one heartbeat interval, because the response to the heartbeat says the same;
the lease id identifies a repeated or late message. The cost of an event does not depend on the number of connected
runners: the runner it concerns is looked up by tenant and id.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final

from deltaci.core import attempt, ids, lease
from deltaci.core.attempt import Attempt
from deltaci.core.errors import Refused, StaleLease
from deltaci.core.events import ATTEMPT, Event
from deltaci.core.machine import Record
from deltaci.engine.event_loop import cancel_and_wait
from deltaci.engine.lease_ids import LeaseIdMinter
from deltaci.protocol.messages import CancelRequested, ControlRequest
from deltaci.server.follower import read_time_and_records
from deltaci.server.runner_api.message_handlers import Runner
from deltaci.storage.port import Conflict, Store, Unavailable

MAX_PENDING: Final = 100_000  # Attempts that wait to be read; heartbeats cover those beyond.
BATCH_SIZE: Final = 500

LOGGER: Final = logging.getLogger(__name__)

# (tenant, runner id, message)
CancelListener = Callable[[str, str, CancelRequested], None]


class _LongPoll:
    """The open long poll of one runner."""

    def __init__(self) -> None:
        self.messages: list[CancelRequested] = []
        self.answered_future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def send(self, *messages: CancelRequested) -> None:
        self.messages += messages
        if not self.answered_future.done():
            self.answered_future.set_result(None)


class ControlHub:
    """Sends a cancel request to the runner of each attempt that must stop after an event of the log."""

    def __init__(self, store: Store, lease_id_minter: LeaseIdMinter) -> None:
        self._store = store
        self._lease_id_minter = lease_id_minter
        self._listeners: list[CancelListener] = [self._send_to_polls]
        self._polls: dict[tuple[str, str], set[_LongPoll]] = {}
        self._pending_attempt_ids: dict[str, None] = {}
        self._has_pending = asyncio.Event()
        self._is_closing = False
        self._send_task: asyncio.Task[None] | None = None

    def subscribe(self, listener: CancelListener) -> None:
        """Call `listener` with each cancel request, too. It must return fast and not raise."""
        self._listeners.append(listener)

    def start(self) -> None:
        self._send_task = asyncio.create_task(self._run(), name="control")

    async def stop(self) -> None:
        self.stop_waiting()
        if self._send_task is not None:
            await cancel_and_wait(self._send_task)

    def stop_waiting(self) -> None:
        """Answer every open long poll, because the server is about to stop."""
        self._is_closing = True
        for poll in [poll for polls in self._polls.values() for poll in polls]:
            poll.send()

    def on_events(self, events: Sequence[Event]) -> None:
        """Schedule reading the attempts whose runner may have to stop after these events."""
        for event in events:
            if (
                event.entity == ATTEMPT
                and event.from_ != event.to
                and attempt.MACHINE.changes(event.to, attempt.CancelAck)
                and len(self._pending_attempt_ids) < MAX_PENDING
            ):
                self._pending_attempt_ids[event.entity_id] = None
                self._has_pending.set()

    async def wait(
        self, runner: Runner, request: ControlRequest, disconnect_future: asyncio.Future[Any]
    ) -> list[CancelRequested]:
        """Return the cancel requests for this runner, waiting up to `request.wait_seconds` for the first one.

        Subscribes before it reads the store, so that no request is missed in between.
        """
        if not runner.may_speak_for(request.runner_id):
            raise Refused("wrong_runner", f"this credential is for runner {runner.id}; use the one of that runner")
        with self._open_poll(runner.tenant, request.runner_id) as poll:
            poll.messages += await self._current_cancels(runner.tenant, request)
            if not poll.messages and not self._is_closing and request.wait_seconds:
                await asyncio.wait(
                    {poll.answered_future, disconnect_future},
                    timeout=request.wait_seconds,
                    return_when=asyncio.FIRST_COMPLETED,
                )
            return list({message.lease_id: message for message in poll.messages}.values())

    @contextmanager
    def _open_poll(self, tenant: str, runner_id: str) -> Iterator[_LongPoll]:
        """Register a long poll of a runner while the context is open."""
        poll, runner_key = _LongPoll(), (tenant, runner_id)
        self._polls.setdefault(runner_key, set()).add(poll)
        try:
            yield poll
        finally:
            self._polls[runner_key].discard(poll)
            if not self._polls[runner_key]:
                del self._polls[runner_key]

    async def _current_cancels(self, tenant: str, request: ControlRequest) -> list[CancelRequested]:
        """Return the cancel requests for those of the named leases that this runner holds."""
        lease_id_by_attempt: dict[str, str] = {}
        for lease_id in request.lease_ids:
            try:
                lease_id_by_attempt[ids.lease_ref(lease_id).attempt_id] = lease_id
            except StaleLease:
                continue
        if not lease_id_by_attempt:
            return []
        now, attempt_records = await self._store.transact(lambda: read_time_and_records(list(lease_id_by_attempt)))
        cancel_requests: list[CancelRequested] = []
        for attempt_record in attempt_records:
            if (
                not isinstance(attempt_record, Attempt)
                or attempt_record.tenant != tenant
                or attempt_record.lease is None
            ):
                continue
            lease_id = lease_id_by_attempt[attempt_record.id]
            if lease.is_held_by(attempt_record.lease, ids.lease_ref(lease_id), request.runner_id):
                cancel_requests += _cancel_requests(attempt_record, lease_id, now)
        return cancel_requests

    async def _run(self) -> None:
        """Send the pending cancel requests in batches, until cancelled."""
        while True:
            await self._has_pending.wait()
            attempt_ids = list(self._pending_attempt_ids)[:BATCH_SIZE]
            for attempt_id in attempt_ids:
                del self._pending_attempt_ids[attempt_id]
            if not self._pending_attempt_ids:
                self._has_pending.clear()
            try:
                now, attempt_records = await self._store.transact(partial(read_time_and_records, attempt_ids))
            except (Unavailable, Conflict) as error:
                LOGGER.warning(
                    "cannot send %d cancel requests, heartbeats will deliver them: %s", len(attempt_ids), error
                )
                continue
            for attempt_record in attempt_records:
                self._send_cancel_request(attempt_record, now)

    def _send_cancel_request(self, attempt_record: Record, now: int) -> None:
        """If the attempt must stop, send a cancel request to the lease's holder, provided the lease id is known."""
        if not isinstance(attempt_record, Attempt) or attempt_record.lease is None:
            return
        lease_id = self._lease_id_minter.live_lease_id(attempt_record)
        for cancel_request in _cancel_requests(attempt_record, lease_id, now) if lease_id else ():
            for listener in self._listeners:
                listener(attempt_record.tenant, attempt_record.lease.worker_id, cancel_request)

    def _send_to_polls(self, tenant: str, runner_id: str, cancel_request: CancelRequested) -> None:
        for poll in self._polls.get((tenant, runner_id), ()):
            poll.send(cancel_request)


def _cancel_requests(attempt_record: Attempt, lease_id: str, now: int) -> list[CancelRequested]:
    """Return a list of one cancel request for the lease's holder, or an empty list if the attempt need not stop."""
    stop_request = attempt.stop_request(attempt_record, now)
    if stop_request is None:
        return []
    return [
        CancelRequested(
            lease_id=lease_id,
            job_id=attempt_record.job_id or attempt_record.id,
            reason=stop_request[0],
            deadline_seconds=stop_request[1],
            ts=datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=now),
        )
    ]
