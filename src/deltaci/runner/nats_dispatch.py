"""The runner's side of transport A: pulls dispatches from NATS JetStream and receives cancels.

A dispatch only announces that an attempt is queued. The runner then requests the lease of that attempt from the server,
and acknowledges the dispatch when the server answers that the attempt can no longer be claimed. While NATS is not
connected, or if the runner has too many labels for it, the runner polls the server instead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from deltaci.protocol import messages as wire
from deltaci.protocol import nats_subjects
from deltaci.protocol.messages import CancelRequested, Dispatch
from deltaci.protocol.nats_client import NatsAddress, NatsConnection

if TYPE_CHECKING:
    from nats.aio.client import Client as Connection
    from nats.aio.msg import Msg

PULL_SECONDS: Final = 20.0
MISSING_SECONDS: Final = 30.0  # Until the next pull from a queue that does not exist; new queues are also announced.
BUSY_SECONDS: Final = 1.0
REDELIVERY_SECONDS: Final = 5.0  # Until another runner, or this one, receives a dispatch that was not claimed.
NO_CONSUMER: Final = "503"
PULL_EXPIRED: Final = ("404", "408")

_decode_dispatch = wire.decoder(Dispatch)
_decode_cancel = wire.decoder(CancelRequested)


class _Pull(msgspec.Struct):
    """A pull request that NATS has not answered in full: how many more dispatches may come, and until when."""

    remaining: int
    expires_at: float


class DispatchPuller:
    """Pulls dispatches for one agent, never more than the agent has free slots."""

    def __init__(
        self,
        address: NatsAddress,
        tenant: str,
        runner_id: str,
        labels: Sequence[str],
        *,
        on_cancel: Callable[[CancelRequested], None],
        on_connection_change: Callable[[bool], None],
    ) -> None:
        self._nats = NatsConnection(address, f"deltaci runner {runner_id}", nats_subjects.inbox(tenant, runner_id))
        self._tenant = tenant
        self._runner_id = runner_id
        self._queue_key_by_consumer = {
            nats_subjects.consumer_name(queue_key): queue_key for queue_key in nats_subjects.queue_keys(labels)
        }
        self._on_cancel = on_cancel
        self._on_connection_change = on_connection_change
        self._connection: Connection | None = None
        self._inbox = ""
        self._free_capacity = 0  # How many more dispatches `take` may receive.
        self._received_dispatches: list[tuple[str, Msg]] = []
        self._pulls: dict[str, _Pull] = {}
        self._pull_again_at: dict[str, float] = {}
        self._has_changed = asyncio.Event()

    @property
    def is_connected(self) -> bool:
        """Whether this runner currently receives dispatches over NATS."""
        return self._connection is not None and bool(self._queue_key_by_consumer)

    async def run(self) -> None:
        """Connect to NATS, and again after each disconnection, until cancelled."""
        await self._nats.run(self._serve)

    async def wait_until_connected(self, seconds: float) -> None:
        """Wait for the first connection, for at most `seconds`."""
        change_task = asyncio.create_task(self._has_changed.wait())
        await asyncio.wait({change_task}, timeout=seconds)
        change_task.cancel()

    def wake(self) -> None:
        """Make a pending `take` return at once, without further dispatches."""
        self._free_capacity = 0
        self._has_changed.set()

    async def take(self, max_count: int, seconds: float) -> dict[str, Msg]:
        """Wait for a dispatch and return all that have arrived, by attempt id. Each must be settled.

        Return an empty dict after `seconds`, after `wake`, and when the connection is lost.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        self._free_capacity = max_count
        self._has_changed.clear()
        while self._free_capacity and not self._received_dispatches and self.is_connected and loop.time() < deadline:
            next_pull_at = await self._pull(max_count)
            change_task = asyncio.create_task(self._has_changed.wait())
            await asyncio.wait({change_task}, timeout=max(0.0, min(deadline, next_pull_at) - loop.time()))
            change_task.cancel()
            self._has_changed.clear()
        self._free_capacity = 0
        dispatches, self._received_dispatches = dict(self._received_dispatches), []
        return dispatches

    async def settle(self, message_by_attempt: dict[str, Msg], unclaimable_ids: Collection[str]) -> None:
        """Acknowledge the dispatches of unclaimable attempts; let NATS deliver the others again after a while."""
        for attempt_id, message in message_by_attempt.items():
            await self._acknowledge(message, is_done=attempt_id in unclaimable_ids, delay_seconds=REDELIVERY_SECONDS)

    async def _serve(self, connection: Connection) -> None:
        """Subscribe on a new connection and use it until it is lost."""
        self._inbox = connection.new_inbox()
        await connection.subscribe(f"{self._inbox}.*", cb=self._on_inbox_message)
        await connection.subscribe(nats_subjects.control(self._tenant, self._runner_id), cb=self._on_control_message)
        await connection.subscribe(nats_subjects.new_queues(self._tenant), cb=self._on_new_queue)
        await connection.flush()
        self._pulls.clear()
        self._pull_again_at.clear()
        self._connection = connection
        self._has_changed.set()
        self._on_connection_change(True)
        try:
            await asyncio.Event().wait()
        finally:
            self._connection = None
            self._received_dispatches.clear()  # NATS delivers them again, to this runner or another.
            self._has_changed.set()
            self._on_connection_change(False)

    async def _pull(self, max_count: int) -> float:
        """Send a pull request to each queue that has none open. Return the time at which to call this again."""
        now = asyncio.get_running_loop().time()
        batch_size = max(1, max_count // len(self._queue_key_by_consumer))
        for consumer_name, queue_key in self._queue_key_by_consumer.items():
            pull = self._pulls.get(consumer_name)
            if (pull is not None and now < pull.expires_at) or now < self._pull_again_at.get(consumer_name, 0.0):
                continue
            if self._connection is None:
                break
            # A little longer than NATS waits, which sends a status message when its own time is over.
            self._pulls[consumer_name] = _Pull(batch_size, now + PULL_SECONDS + BUSY_SECONDS)
            pull_request = msgspec.json.encode({"batch": batch_size, "expires": round(PULL_SECONDS * 1e9)})
            await self._connection.publish(
                nats_subjects.next_dispatch(self._tenant, queue_key),
                pull_request,
                reply=f"{self._inbox}.{consumer_name}",
            )
        next_times = [pull.expires_at for pull in self._pulls.values()] + [
            pull_at for pull_at in self._pull_again_at.values() if pull_at > now
        ]
        return min(next_times, default=now + BUSY_SECONDS)

    async def _on_inbox_message(self, message: Msg) -> None:
        """Store a dispatch for `take` if it can receive one more, or end a pull request on a status message."""
        if not message.reply:
            self._on_pull_status(message)
            return
        consumer_name = message.subject.rsplit(".", 2)[1]
        pull = self._pulls.get(consumer_name)
        if pull is not None:
            pull.remaining -= 1
            if not pull.remaining:
                del self._pulls[consumer_name]
        try:
            dispatch = _decode_dispatch(message.data)
        except msgspec.DecodeError:
            await self._acknowledge(message, is_done=True)  # Unreadable: it must not be delivered again.
        else:
            if self._free_capacity and dispatch.attempt_id not in dict(self._received_dispatches):
                self._free_capacity -= 1
                self._received_dispatches.append((dispatch.attempt_id, message))
            else:
                await self._acknowledge(message, is_done=False)
        self._has_changed.set()

    def _on_pull_status(self, message: Msg) -> None:
        """End the pull request that NATS answered with a status. After an error, pause before the next one."""
        consumer_name = message.subject.rpartition(".")[2]
        self._pulls.pop(consumer_name, None)
        status = (message.headers or {}).get("Status", "")
        if status not in PULL_EXPIRED:
            pause_seconds = MISSING_SECONDS if status == NO_CONSUMER else BUSY_SECONDS
            self._pull_again_at[consumer_name] = asyncio.get_running_loop().time() + pause_seconds
        self._has_changed.set()

    async def _on_new_queue(self, _message: Msg) -> None:
        """Allow pull requests to all queues again at once, because a queue that was missing may exist now."""
        self._pull_again_at.clear()
        self._has_changed.set()

    async def _on_control_message(self, message: Msg) -> None:
        """Pass a cancel to `on_cancel`."""
        try:
            self._on_cancel(_decode_cancel(message.data))
        except msgspec.DecodeError:
            return  # Not a message of this protocol; the response to the next heartbeat repeats every cancel.

    async def _acknowledge(self, message: Msg, *, is_done: bool, delay_seconds: float | None = None) -> None:
        """Acknowledge the message if `is_done`, otherwise ask NATS to deliver it again after `delay_seconds`."""
        from nats.errors import Error

        try:
            await (message.ack() if is_done else message.nak(delay=delay_seconds))
        except (Error, OSError):
            return  # The connection is lost: NATS delivers the message again, and it is acknowledged then.
