"""Dispatch over NATS JetStream: announces ready attempts to runners, and cancels on their control subjects.

The messages are hints; the store alone decides who gets an attempt. Anything NATS loses is published again from the
store: an attempt when it becomes ready, all ready attempts when NATS reconnects, and attempts that have been ready for
long in a periodic sweep. So any number of servers may publish the same attempt, and a runner may receive an attempt
that ended long ago.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import random
from collections import deque
from collections.abc import Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final

from deltaci.core import attempt
from deltaci.core.attempt import Attempt
from deltaci.core.events import ATTEMPT, Event
from deltaci.core.instants import SECOND
from deltaci.core.timers import ready_at
from deltaci.engine.event_loop import cancel_and_wait
from deltaci.protocol import messages as wire
from deltaci.protocol import nats_subjects
from deltaci.protocol.messages import CancelRequested, Dispatch
from deltaci.protocol.nats_client import NatsAddress, NatsConnection
from deltaci.server.follower import read_time_and_records
from deltaci.storage.port import Conflict, ReadyAttempt, Store, Unavailable

if TYPE_CHECKING:
    from nats.aio.client import Client as Connection
    from nats.js import JetStreamContext

SWEEP_SECONDS: Final = 30.0
SWEEP_LIMIT: Final = 200  # The number of attempts published for each queue, oldest first.
START_LIMIT: Final = 10_000
MAX_PENDING: Final = 100_000  # Attempts that wait to be published; the next sweep finds those beyond.
MAX_CANCELS: Final = 10_000
BATCH_SIZE: Final = 200
ACK_SECONDS: Final = 30.0
MAX_RUNNERS: Final = 20_000
MAX_AGE_SECONDS: Final = 3600.0
MAX_MESSAGES: Final = 1_000_000

LOGGER: Final = logging.getLogger(__name__)


class Dispatcher:
    """Publishes the ids of ready attempts and cancel requests to NATS, as hints for runners."""

    def __init__(self, store: Store, address: NatsAddress) -> None:
        address.check()
        self._store = store
        self._nats = NatsConnection(address, "deltaci server")
        self._is_up = False
        self._pending_attempt_ids: dict[str, None] = {}
        self._has_pending = asyncio.Event()
        self._alarms: list[tuple[float, str]] = []
        self._cancels: deque[tuple[str, str, CancelRequested]] = deque(maxlen=MAX_CANCELS)
        self._has_cancels = asyncio.Event()
        self._created_queues: set[tuple[str, str]] = set()
        self._stream_lost = asyncio.Event()
        self._serve_task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start publishing as soon as NATS is connected."""
        self._serve_task = asyncio.create_task(self._nats.run(self._serve), name="dispatcher")

    async def stop(self) -> None:
        if self._serve_task is not None:
            await cancel_and_wait(self._serve_task)

    def on_events(self, events: Sequence[Event]) -> None:
        """Schedule publishing the attempts that may have become ready with these events."""
        if not self._is_up:
            return  # All ready attempts are published after the reconnect.
        for event in events:
            if event.entity == ATTEMPT and attempt.MACHINE.changes(event.to, attempt.Grant):
                self._enqueue(event.entity_id)

    def on_cancel(self, tenant: str, runner_id: str, cancel_request: CancelRequested) -> None:
        """Schedule publishing a cancel request to the runner's control subject. The control hub calls this."""
        if self._is_up:
            self._cancels.append((tenant, runner_id, cancel_request))
            self._has_cancels.set()

    def _enqueue(self, attempt_id: str) -> None:
        if len(self._pending_attempt_ids) < MAX_PENDING:
            self._pending_attempt_ids[attempt_id] = None
            self._has_pending.set()

    async def _serve(self, connection: Connection) -> None:
        """Publish until the connection is lost."""
        stream = connection.jetstream()
        self._created_queues.clear()
        self._pending_attempt_ids.clear()
        self._alarms.clear()
        self._cancels.clear()
        self._is_up = True
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._publish_cancels(connection))
                group.create_task(self._publish_pending(connection, stream))
                group.create_task(self._sweep(connection, stream))
        finally:
            self._is_up = False

    async def _publish_cancels(self, connection: Connection) -> None:
        """Publish cancel requests as soon as there are any, until cancelled."""
        while True:
            await self._has_cancels.wait()
            self._has_cancels.clear()
            while self._cancels:
                tenant, runner_id, cancel_request = self._cancels.popleft()
                await connection.publish(nats_subjects.control(tenant, runner_id), wire.encode(cancel_request))

    async def _publish_pending(self, connection: Connection, stream: JetStreamContext) -> None:
        """Publish pending attempts as soon as there are any, in batches.

        Attempts are pending when they have just become ready and when their start time has come.
        """
        while True:
            await self._wait_for_pending()
            attempt_ids = list(islice(self._pending_attempt_ids, BATCH_SIZE))
            for attempt_id in attempt_ids:
                del self._pending_attempt_ids[attempt_id]
            try:
                now, records = await self._store.transact(partial(read_time_and_records, attempt_ids))
            except (Unavailable, Conflict):
                continue  # The next sweep finds them.
            ready_attempts: list[ReadyAttempt] = []
            for record in records:
                ready_time = ready_at(record)
                if ready_time is not None and isinstance(record, Attempt):
                    ready_attempts.append(ReadyAttempt(record.tenant, record.queue_key, record.id, ready_time))
            await self._publish(connection, stream, self._ready_now(ready_attempts, now))

    async def _wait_for_pending(self) -> None:
        """Wait until an attempt is pending; each alarm that is due makes its attempt pending."""
        loop = asyncio.get_running_loop()
        while not self._pending_attempt_ids:
            delay_seconds = self._alarms[0][0] - loop.time() if self._alarms else None
            if delay_seconds is None or delay_seconds > 0:
                self._has_pending.clear()  # A new alarm sets it again.
                pending_task = asyncio.create_task(self._has_pending.wait())
                await asyncio.wait({pending_task}, timeout=delay_seconds)
                pending_task.cancel()
            while self._alarms and self._alarms[0][0] <= loop.time():
                self._enqueue(heapq.heappop(self._alarms)[1])

    def _ready_now(self, ready_attempts: Sequence[ReadyAttempt], now: int) -> list[ReadyAttempt]:
        """Return the attempts that are ready now.

        Set an alarm for attempts that will be ready soon; a later sweep finds the others.
        """
        for ready_attempt in ready_attempts:
            delay_seconds = (ready_attempt.ready_at - now) / SECOND
            if 0 < delay_seconds < 2 * SWEEP_SECONDS and len(self._alarms) < MAX_PENDING:
                heapq.heappush(self._alarms, (asyncio.get_running_loop().time() + delay_seconds, ready_attempt.id))
                self._has_pending.set()
        return [ready_attempt for ready_attempt in ready_attempts if ready_attempt.ready_at <= now]

    async def _sweep(self, connection: Connection, stream: JetStreamContext) -> None:
        """Publish all ready attempts at first, then periodically the attempts that have been ready for long.

        After JetStream has lost the stream, publish all again. Set an alarm for attempts that become ready before the
        next sweep.
        """
        min_age_microseconds, per_queue_limit = 0, START_LIMIT
        while True:
            self._stream_lost.clear()
            self._created_queues.clear()  # Recreate streams and consumers that were deleted.
            try:
                now, _ = await self._store.transact(lambda: read_time_and_records(()))
                ready_attempts = await self._store.ready_attempts(
                    now + round(2 * SWEEP_SECONDS * SECOND), per_queue_limit
                )
            except (Unavailable, Conflict) as error:
                LOGGER.warning("cannot list ready attempts: %s; the next sweep retries", error)
                now, ready_attempts = 0, []
            due_attempts = [
                ready_attempt
                for ready_attempt in self._ready_now(ready_attempts, now)
                if ready_attempt.ready_at <= now - min_age_microseconds
            ]
            await self._publish(connection, stream, due_attempts)
            lost_stream_task = asyncio.create_task(self._stream_lost.wait())
            await asyncio.wait({lost_stream_task}, timeout=SWEEP_SECONDS * random.uniform(0.8, 1.2))
            min_age_microseconds, per_queue_limit = (
                (0, START_LIMIT) if lost_stream_task.done() else (round(SWEEP_SECONDS * SECOND), SWEEP_LIMIT)
            )
            lost_stream_task.cancel()

    async def _publish(
        self, connection: Connection, stream: JetStreamContext, ready_attempts: Sequence[ReadyAttempt]
    ) -> None:
        """Publish a dispatch for each of these attempts. Create queues that are missing."""
        from nats.js.errors import NoStreamResponseError

        for batch_start in range(0, len(ready_attempts), BATCH_SIZE):
            attempt_batch = ready_attempts[batch_start : batch_start + BATCH_SIZE]
            for tenant_and_queue_key in {
                (ready_attempt.tenant, ready_attempt.queue_key) for ready_attempt in attempt_batch
            } - self._created_queues:
                await self._create_queue(connection, stream, *tenant_and_queue_key)
            try:
                await asyncio.gather(*(self._publish_one(stream, ready_attempt) for ready_attempt in attempt_batch))
            except NoStreamResponseError:
                LOGGER.warning("a NATS stream is missing; it is created again and gets all ready attempts")
                self._stream_lost.set()
                return

    @staticmethod
    async def _publish_one(stream: JetStreamContext, ready_attempt: ReadyAttempt) -> None:
        """Publish the dispatch of an attempt.

        JetStream drops a repeat within its duplicate window; after it, a repeat replaces the undelivered message.
        """
        await stream.publish(
            nats_subjects.dispatch(ready_attempt.tenant, ready_attempt.queue_key, ready_attempt.id),
            wire.encode(Dispatch(attempt_id=ready_attempt.id)),
            headers={"Nats-Msg-Id": f"{nats_subjects.token(ready_attempt.id)}@{ready_attempt.ready_at}"},
        )

    async def _create_queue(
        self, connection: Connection, stream: JetStreamContext, tenant: str, queue_key: str
    ) -> None:
        """Create the tenant's stream and the queue's consumer if they are missing, and announce the queue."""
        from nats.js import api

        await stream.add_stream(
            api.StreamConfig(
                name=nats_subjects.stream(tenant),
                subjects=[nats_subjects.all_dispatches(tenant)],
                retention=api.RetentionPolicy.WORK_QUEUE,
                discard=api.DiscardPolicy.OLD,
                max_msgs_per_subject=1,
                max_msgs=MAX_MESSAGES,
                max_age=MAX_AGE_SECONDS,
                duplicate_window=SWEEP_SECONDS / 2,
            )
        )
        await stream.add_consumer(
            nats_subjects.stream(tenant),
            api.ConsumerConfig(
                durable_name=nats_subjects.consumer_name(queue_key),
                filter_subject=nats_subjects.queue(tenant, queue_key),
                ack_policy=api.AckPolicy.EXPLICIT,
                ack_wait=ACK_SECONDS,
                max_waiting=MAX_RUNNERS,
                max_ack_pending=MAX_RUNNERS,
            ),
        )
        self._created_queues.add((tenant, queue_key))
        await connection.publish(nats_subjects.new_queues(tenant), b"")
