"""The lease keeper: a small process of its own that proves, again and again, that this runner lives.

A job that takes the whole machine cannot starve it, and a runner that hangs cannot forget it. It never needs to be
told to stop a job: when a lease can no longer be proved, it kills the job itself, before the server may give the lease
to somebody else. When the runner is gone, it kills all of them.

It reads orders as JSON lines and writes news as JSON lines. Time is the machine's own, which does not jump.
"""

from __future__ import annotations

import os
import selectors
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import IO, Final

import msgspec

from deltaci.core.errors import Refused
from deltaci.runner.client import Client, Unreachable
from deltaci.runner.reaper import Handle, kill_all
from deltaci.runner.tls import Tls
from deltaci.wire.messages import Heartbeat, HeartbeatAck, LogCursor, Problem, Progress, ServerMessage

RETRY_SECONDS: Final = 1.0
MAX_CALL_SECONDS: Final = 5.0
KILL_SECONDS: Final = 2.0


class Hold(msgspec.Struct, frozen=True, kw_only=True, tag="hold"):
    """Keep this lease. `held_for` seconds ago it was proved for the last time. Sent again, it tells what changed."""

    lease_id: str
    runner_id: str
    ttl_seconds: float
    interval_seconds: float
    handle: Handle
    held_for: float = 0.0
    progress: Progress | None = None
    bytes_sent: int = 0


class Release(msgspec.Struct, frozen=True, kw_only=True, tag="release"):
    """The job is over."""

    lease_id: str


class NewToken(msgspec.Struct, frozen=True, kw_only=True, tag="token"):
    """A fresh credential."""

    token: str


class Cancel(msgspec.Struct, frozen=True, kw_only=True, tag="cancel"):
    """The server wants the job to stop."""

    lease_id: str
    deadline_seconds: int
    reason: str


class Lost(msgspec.Struct, frozen=True, kw_only=True, tag="lost"):
    """The lease is gone, and so is the job: whatever it still had was killed."""

    lease_id: str
    reason: str
    left: list[int]


Order = Hold | Release | NewToken
News = Cancel | Lost
decode_order = msgspec.json.Decoder(Order).decode
decode_news = msgspec.json.Decoder(News).decode


class _Kept:
    def __init__(self, order: Hold, now: float) -> None:
        self.order = order
        self.margin = min(10.0, order.ttl_seconds / 4)
        self.proved_until = now - order.held_for + order.ttl_seconds - self.margin
        self.beat_at = now + order.interval_seconds
        self.is_canceling = False


class Keeper:
    """Keeps any number of leases."""

    def __init__(self, client: Client, tell: Callable[[News], None], clock: Callable[[], float]) -> None:
        self._client = client
        self._tell = tell
        self._clock = clock
        self._kept: dict[str, _Kept] = {}

    def take(self, order: Order) -> None:
        """Carry out an order."""
        if isinstance(order, NewToken):
            self._client.token = order.token
        elif isinstance(order, Release):
            self._kept.pop(order.lease_id, None)
        elif order.lease_id in self._kept:
            self._kept[order.lease_id].order = order
        else:
            self._kept[order.lease_id] = _Kept(order, self._clock())

    def wait_seconds(self) -> float:
        """How long nothing has to be done."""
        times = [min(kept.beat_at, kept.proved_until) for kept in self._kept.values()]
        return max(0.0, min(times, default=self._clock() + 3600) - self._clock())

    def turn(self) -> None:
        """Beat where it is time, and stop what can no longer be proved."""
        self._fence()
        now = self._clock()
        due = [kept for kept in self._kept.values() if kept.beat_at <= now]
        if due:
            self._beat(due)
            self._fence()

    def stop_all(self) -> None:
        """The runner is gone: so are its jobs."""
        for kept in list(self._kept.values()):
            kill_all(kept.order.handle, KILL_SECONDS)
        self._kept.clear()

    def _fence(self) -> None:
        now = self._clock()
        for kept in list(self._kept.values()):
            if now >= kept.proved_until:
                self._lose(kept, "NOT_PROVED")

    def _lose(self, kept: _Kept, reason: str) -> None:
        left = kill_all(kept.order.handle, KILL_SECONDS)
        self._kept.pop(kept.order.lease_id, None)
        self._tell(Lost(lease_id=kept.order.lease_id, reason=reason, left=left))

    def _beat(self, due: list[_Kept]) -> None:
        now = self._clock()
        # A server that does not answer must not keep the fence waiting.
        timeout = max(0.2, min(MAX_CALL_SECONDS, min(kept.proved_until for kept in self._kept.values()) - now))
        ts = datetime.now(UTC)
        beats = [
            Heartbeat(
                lease_id=kept.order.lease_id,
                runner_id=kept.order.runner_id,
                ts=ts,
                progress=kept.order.progress,
                log_cursor=LogCursor(bytes_sent=kept.order.bytes_sent),
            )
            for kept in due
        ]
        try:
            answers = self._client.say_all(beats, timeout)
        except (Unreachable, Refused):
            for kept in due:
                kept.beat_at = self._clock() + min(RETRY_SECONDS, kept.order.interval_seconds)
            return
        for kept, answer in zip(due, answers, strict=True):
            self._heard(kept, answer, now)

    def _heard(self, kept: _Kept, answer: ServerMessage | Problem, said_at: float) -> None:
        if not isinstance(answer, HeartbeatAck) or not answer.extend_lease:
            reason = getattr(answer, "reason", None) or getattr(answer, "code", "STALE")
            self._lose(kept, str(reason))
            return
        kept.proved_until = said_at + answer.new_lease_ttl_seconds - kept.margin
        kept.beat_at = said_at + kept.order.interval_seconds
        if answer.cancel_requested and not kept.is_canceling:
            kept.is_canceling = True
            reason = answer.reason if isinstance(answer.reason, str) else "CANCELED"
            self._tell(
                Cancel(lease_id=kept.order.lease_id, deadline_seconds=answer.cancel_deadline_seconds, reason=reason)
            )


def serve(keeper: Keeper, orders: int) -> None:
    """Work until the runner hangs up."""
    waiting = b""
    with selectors.DefaultSelector() as selector:
        selector.register(orders, selectors.EVENT_READ)
        while True:
            if selector.select(keeper.wait_seconds()):
                data = os.read(orders, 1 << 16)
                if not data:
                    keeper.stop_all()
                    return
                *lines, waiting = (waiting + data).split(b"\n")
                for line in lines:
                    keeper.take(decode_order(line))
            keeper.turn()


def main(url: str, out: IO[bytes], *files: str) -> None:
    """The keeper's process. The files are those of TLS; the first order brings its credential."""

    def tell(news: News) -> None:
        out.write(msgspec.json.encode(news) + b"\n")
        out.flush()

    serve(Keeper(Client(url, tls=Tls.of(files)), tell, time.monotonic), sys.stdin.fileno())


if __name__ == "__main__":
    main(sys.argv[1], sys.stdout.buffer, *sys.argv[2:])
