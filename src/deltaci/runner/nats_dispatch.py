"""Transport A on the runner's side: it pulls dispatches from NATS JetStream, and hears of cancels.

A dispatch gives no right to anything: the runner asks the server for the lease of that attempt, and tells NATS that the
dispatch is done with when the server says that nobody can claim the attempt any more. While NATS is not there, or when
the runner has too many labels for it, it does without.
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
MISSING_SECONDS: Final = 30.0  # When to ask again for a queue that is not there; its coming is also told.
BUSY_SECONDS: Final = 1.0
AGAIN_SECONDS: Final = 5.0  # What does not fit this runner now may fit another, or later.
NO_CONSUMER: Final = "503"
TIME_IS_OVER: Final = ("404", "408")

_dispatch = wire.decoder(Dispatch)
_cancel = wire.decoder(CancelRequested)


class _Pull(msgspec.Struct):
    """A request that NATS has not answered in full: how many more may come, and until when."""

    left: int
    until: float


class DispatchPuller:
    """Kept by one agent. `take` waits for work as long as it `is_up`."""

    def __init__(
        self,
        address: NatsAddress,
        tenant: str,
        runner_id: str,
        labels: Sequence[str],
        *,
        hear: Callable[[CancelRequested], None],
        on_link: Callable[[bool], None],
    ) -> None:
        self._link = NatsConnection(address, f"deltaci runner {runner_id}", nats_subjects.inbox(tenant, runner_id))
        self._tenant = tenant
        self._runner_id = runner_id
        self._keys = {nats_subjects.consumer(key): key for key in nats_subjects.queue_keys(labels)}
        self._hear = hear
        self._on_link = on_link
        self._connection: Connection | None = None
        self._inbox = ""
        self._room = 0
        self._found: list[tuple[str, Msg]] = []
        self._pulls: dict[str, _Pull] = {}
        self._not_before: dict[str, float] = {}
        self._has_changed = asyncio.Event()

    @property
    def is_up(self) -> bool:
        """Whether work comes this way now."""
        return self._connection is not None and bool(self._keys)

    async def run(self) -> None:
        """Keep the connection, until cancelled."""
        await self._link.run(self._serve)

    async def wait_up(self, seconds: float) -> None:
        """Give NATS a moment to be there, before the first request for work goes without it."""
        waiting = asyncio.create_task(self._has_changed.wait())
        await asyncio.wait({waiting}, timeout=seconds)
        waiting.cancel()

    def wake(self) -> None:
        """Whoever waits in `take` goes on at once, with what there is."""
        self._room = 0
        self._has_changed.set()

    async def take(self, most: int, seconds: float) -> dict[str, Msg]:
        """Attempts that wait somewhere, by their ids; waits for the first one. Each must be settled."""
        loop = asyncio.get_running_loop()
        give_up = loop.time() + seconds
        self._room = most
        self._has_changed.clear()
        while self._room and not self._found and self.is_up and loop.time() < give_up:
            again_at = await self._pull(most)
            waiting = asyncio.create_task(self._has_changed.wait())
            await asyncio.wait({waiting}, timeout=max(0.0, min(give_up, again_at) - loop.time()))
            waiting.cancel()
            self._has_changed.clear()
        self._room = 0
        found, self._found = dict(self._found), []
        return found

    async def settle(self, taken: dict[str, Msg], gone: Collection[str]) -> None:
        """Those that nobody can claim any more are done with; the others are for somebody else, or for later."""
        for id, message in taken.items():
            await self._say(message, is_done=id in gone, delay=AGAIN_SECONDS)

    async def _serve(self, connection: Connection) -> None:
        self._inbox = connection.new_inbox()
        await connection.subscribe(f"{self._inbox}.*", cb=self._came)
        await connection.subscribe(nats_subjects.control(self._tenant, self._runner_id), cb=self._wanted)
        await connection.subscribe(nats_subjects.new_queues(self._tenant), cb=self._news)
        await connection.flush()
        self._pulls.clear()
        self._not_before.clear()
        self._connection = connection
        self._has_changed.set()
        self._on_link(True)
        try:
            await asyncio.Event().wait()
        finally:
            self._connection = None
            self._found.clear()  # NATS delivers them again, here or elsewhere.
            self._has_changed.set()
            self._on_link(False)

    async def _pull(self, most: int) -> float:
        """Ask every queue that does not owe an answer; when to look again."""
        now = asyncio.get_running_loop().time()
        batch = max(1, most // len(self._keys))
        for name, key in self._keys.items():
            pull = self._pulls.get(name)
            if (pull is not None and now < pull.until) or now < self._not_before.get(name, 0.0):
                continue
            if self._connection is None:
                break
            # It waits a little longer than NATS does, which says so when the time is over.
            self._pulls[name] = _Pull(batch, now + PULL_SECONDS + BUSY_SECONDS)
            asked = msgspec.json.encode({"batch": batch, "expires": round(PULL_SECONDS * 1e9)})
            await self._connection.publish(
                nats_subjects.next_dispatch(self._tenant, key), asked, reply=f"{self._inbox}.{name}"
            )
        times = [each.until for each in self._pulls.values()] + [
            each for each in self._not_before.values() if each > now
        ]
        return min(times, default=now + BUSY_SECONDS)

    async def _came(self, message: Msg) -> None:
        """A dispatch, or word that none will come."""
        if not message.reply:
            self._refused(message)
            return
        name = message.subject.rsplit(".", 2)[1]
        pull = self._pulls.get(name)
        if pull is not None:
            pull.left -= 1
            if not pull.left:
                del self._pulls[name]
        try:
            told = _dispatch(message.data)
        except msgspec.DecodeError:
            await self._say(message, is_done=True)  # Nobody can read it: it must not come again.
        else:
            if self._room and told.attempt_id not in dict(self._found):
                self._room -= 1
                self._found.append((told.attempt_id, message))
            else:
                await self._say(message, is_done=False)
        self._has_changed.set()

    def _refused(self, message: Msg) -> None:
        name = message.subject.rpartition(".")[2]
        self._pulls.pop(name, None)
        status = (message.headers or {}).get("Status", "")
        if status not in TIME_IS_OVER:
            pause = MISSING_SECONDS if status == NO_CONSUMER else BUSY_SECONDS
            self._not_before[name] = asyncio.get_running_loop().time() + pause
        self._has_changed.set()

    async def _news(self, _message: Msg) -> None:
        """A queue is there that may not have been: ask for those that were missing."""
        self._not_before.clear()
        self._has_changed.set()

    async def _wanted(self, message: Msg) -> None:
        try:
            self._hear(_cancel(message.data))
        except msgspec.DecodeError:
            return  # Not one of ours; the heartbeat's answer is the truth.

    async def _say(self, message: Msg, *, is_done: bool, delay: float | None = None) -> None:
        from nats.errors import Error

        try:
            await (message.ack() if is_done else message.nak(delay=delay))
        except (Error, OSError):
            return  # The connection is gone: it is delivered again, and then found to be done with.
