"""Transport A: tells runners over NATS JetStream that an attempt waits, and of cancels on their control subjects.

All of it can be lost and is made again from the store: what waits is told when it becomes ready, all of it when NATS
comes back, and what waits for long every now and then. The store alone decides who gets an attempt. So any number of
servers may tell the same, NATS may lose everything, and a runner may be told of what somebody else has long finished.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import random
from collections import deque
from collections.abc import Sequence
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
from deltaci.server.follower import look
from deltaci.storage.port import Conflict, ReadyAttempt, Store, Unavailable

if TYPE_CHECKING:
    from nats.aio.client import Client as Connection
    from nats.js import JetStreamContext

SWEEP_SECONDS: Final = 30.0
SWEEP_LIMIT: Final = 200  # Of each queue; what is told of first is also claimed first.
START_LIMIT: Final = 10_000
MAX_LATE: Final = 100_000  # Attempts that wait to be told of; what is beyond is found by the next sweep.
MAX_CANCELS: Final = 10_000
AT_ONCE: Final = 200
ACK_SECONDS: Final = 30.0
MAX_RUNNERS: Final = 20_000
MAX_AGE_SECONDS: Final = 3600.0
MAX_MESSAGES: Final = 1_000_000

LOGGER: Final = logging.getLogger(__name__)


class Dispatcher:
    """One server's side of NATS."""

    def __init__(self, store: Store, address: NatsAddress) -> None:
        address.check()
        self._store = store
        self._link = NatsConnection(address, "deltaci server")
        self._is_up = False
        self._wanted: dict[str, None] = {}
        self._is_wanted = asyncio.Event()
        self._later: list[tuple[float, str]] = []
        self._cancels: deque[tuple[str, str, CancelRequested]] = deque(maxlen=MAX_CANCELS)
        self._is_canceled = asyncio.Event()
        self._known: set[tuple[str, str]] = set()
        self._is_lost = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to tell, as soon as NATS is there."""
        self._task = asyncio.create_task(self._link.run(self._serve), name="dispatcher")

    async def stop(self) -> None:
        """Tell nothing more."""
        if self._task is not None:
            await cancel_and_wait(self._task)

    def on_events(self, events: Sequence[Event]) -> None:
        """What happened. After some of it an attempt may be claimed, if its record says the same."""
        if not self._is_up:
            return  # Everything is told when it is up again.
        for event in events:
            if event.entity == ATTEMPT and attempt.MACHINE.changes(event.to, attempt.Grant):
                self._want(event.entity_id)

    def tell(self, tenant: str, runner_id: str, message: CancelRequested) -> None:
        """A runner has to stop: an outlet of the control hub."""
        if self._is_up:
            self._cancels.append((tenant, runner_id, message))
            self._is_canceled.set()

    def _want(self, id: str) -> None:
        if len(self._wanted) < MAX_LATE:
            self._wanted[id] = None
            self._is_wanted.set()

    async def _serve(self, connection: Connection) -> None:
        """For as long as this connection lives."""
        stream = connection.jetstream()
        self._known.clear()
        self._wanted.clear()
        self._later.clear()
        self._cancels.clear()
        self._is_up = True
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._tell_cancels(connection))
                group.create_task(self._tell_ready(connection, stream))
                group.create_task(self._sweep(connection, stream))
        finally:
            self._is_up = False

    async def _tell_cancels(self, connection: Connection) -> None:
        while True:
            await self._is_canceled.wait()
            self._is_canceled.clear()
            while self._cancels:
                tenant, runner_id, message = self._cancels.popleft()
                await connection.publish(nats_subjects.control(tenant, runner_id), wire.encode(message))

    async def _tell_ready(self, connection: Connection, stream: JetStreamContext) -> None:
        """What just became ready, and what had to wait for its time."""
        while True:
            await self._something()
            some = list(islice(self._wanted, AT_ONCE))
            for id in some:
                del self._wanted[id]
            try:
                now, records = await self._store.transact(lambda some=some: look(some))  # type: ignore[misc]
            except (Unavailable, Conflict):
                continue  # The next sweep finds them.
            found: list[ReadyAttempt] = []
            for record in records:
                at = ready_at(record)
                if at is not None and isinstance(record, Attempt):
                    found.append(ReadyAttempt(record.tenant, record.queue_key, record.id, at))
            await self._publish(connection, stream, self._due(found, now))

    async def _something(self) -> None:
        """Wait until there is something to tell."""
        loop = asyncio.get_running_loop()
        while not self._wanted:
            left = self._later[0][0] - loop.time() if self._later else None
            if left is None or left > 0:
                self._is_wanted.clear()  # An alarm that was set meanwhile sets it again.
                waiting = asyncio.create_task(self._is_wanted.wait())
                await asyncio.wait({waiting}, timeout=left)
                waiting.cancel()
            while self._later and self._later[0][0] <= loop.time():
                self._want(heapq.heappop(self._later)[1])

    def _due(self, ready: Sequence[ReadyAttempt], now: int) -> list[ReadyAttempt]:
        """Those whose time has come. For the others there is an alarm; for those far away a later sweep will see."""
        for each in ready:
            left = (each.ready_at - now) / SECOND
            if 0 < left < 2 * SWEEP_SECONDS and len(self._later) < MAX_LATE:
                heapq.heappush(self._later, (asyncio.get_running_loop().time() + left, each.id))
                self._is_wanted.set()
        return [each for each in ready if each.ready_at <= now]

    async def _sweep(self, connection: Connection, stream: JetStreamContext) -> None:
        """Everything that waits, at first and when JetStream has lost it; then what has waited for long.

        And what will be ready before the next sweep, whenever it was decided: then it is told in its time.
        """
        is_new, limit = 0, START_LIMIT
        while True:
            self._is_lost.clear()
            self._known.clear()  # Somebody may have removed a stream or a consumer: make sure of them now and then.
            try:
                now, _ = await self._store.transact(lambda: look(()))
                waiting = await self._store.ready_attempts(now + round(2 * SWEEP_SECONDS * SECOND), limit)
            except (Unavailable, Conflict) as error:
                LOGGER.warning("what waits cannot be looked through: %s; trying again later", error)
                now, waiting = 0, []
            due = [each for each in self._due(waiting, now) if each.ready_at <= now - is_new]
            await self._publish(connection, stream, due)
            lost = asyncio.create_task(self._is_lost.wait())
            await asyncio.wait({lost}, timeout=SWEEP_SECONDS * random.uniform(0.8, 1.2))
            is_new, limit = (0, START_LIMIT) if lost.done() else (round(SWEEP_SECONDS * SECOND), SWEEP_LIMIT)
            lost.cancel()

    async def _publish(self, connection: Connection, stream: JetStreamContext, ready: Sequence[ReadyAttempt]) -> None:
        from nats.js.errors import NoStreamResponseError

        for start in range(0, len(ready), AT_ONCE):
            some = ready[start : start + AT_ONCE]
            for queue in {(each.tenant, each.queue_key) for each in some} - self._known:
                await self._make(connection, stream, *queue)
            try:
                await asyncio.gather(*(self._tell_one(stream, each) for each in some))
            except NoStreamResponseError:
                LOGGER.warning("a stream of NATS is gone; it is made anew, and told of everything that waits")
                self._is_lost.set()
                return

    @staticmethod
    async def _tell_one(stream: JetStreamContext, ready: ReadyAttempt) -> None:
        """Whoever tells the same within a moment tells nothing new; later, it takes the place of what was told."""
        await stream.publish(
            nats_subjects.dispatch(ready.tenant, ready.queue_key, ready.id),
            wire.encode(Dispatch(attempt_id=ready.id)),
            headers={"Nats-Msg-Id": f"{nats_subjects.token(ready.id)}@{ready.ready_at}"},
        )

    async def _make(self, connection: Connection, stream: JetStreamContext, tenant: str, key: str) -> None:
        """The tenant's stream and the queue's consumer, unless they are there; whoever waits for it is told."""
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
                durable_name=nats_subjects.consumer(key),
                filter_subject=nats_subjects.queue(tenant, key),
                ack_policy=api.AckPolicy.EXPLICIT,
                ack_wait=ACK_SECONDS,
                max_waiting=MAX_RUNNERS,
                max_ack_pending=MAX_RUNNERS,
            ),
        )
        self._known.add((tenant, key))
        await connection.publish(nats_subjects.new_queues(tenant), b"")
