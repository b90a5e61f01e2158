"""The lease keeper: a small process of its own that proves, again and again, that this runner lives.

A job that takes the whole machine cannot starve it, and a runner that hangs cannot forget it. It never needs to be
told to stop a job: when a lease can no longer be proved, it kills the job itself, before the server may give the lease
to somebody else. When the runner is gone, it kills all of them, and sends what they had said until then.

It reads orders as JSON lines and writes news as JSON lines. Time is the machine's own, which does not jump.
"""

from __future__ import annotations

import os
import selectors
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final

import msgspec

from deltaci.protocol.messages import Heartbeat, HeartbeatAck, LogCursor, Problem, Progress, ServerMessage, decoder
from deltaci.runner.client import RunnerClient
from deltaci.runner.lease.heartbeat import HeartbeatSender, HeartbeatThread
from deltaci.runner.lease.log_recovery import UnsentLog, open_log, send_unsent_logs
from deltaci.runner.sandbox.process_tree import JobHandle, kill_all
from deltaci.runner.tls import TlsConfig

RETRY_SECONDS: Final = 1.0
FIRST_CALL_SECONDS: Final = 1.0  # A connection that is broken is found out soon: there may be time for another.
MAX_CALL_SECONDS: Final = 5.0
SLOWER: Final = 4  # A line that needs so long for an answer may need so many times that for the next one.
KILL_SECONDS: Final = 2.0
FIRST_BEAT_SECONDS: Final = 1.0  # After the first step began.
REST_SECONDS: Final = 10.0  # How long the logs of a runner that is gone are sent, while their leases stand.


class Hold(msgspec.Struct, frozen=True, kw_only=True, tag="hold"):
    """Keep this lease. Sent again, it tells what changed.

    `proved_at` is when it was proved for the last time, by the clock that all processes of a machine share: not how
    long ago, as nobody knows when this is read.
    """

    lease_id: str
    runner_id: str
    ttl_seconds: float
    interval_seconds: float
    handle: JobHandle
    confirmed_at: float = msgspec.field(name="proved_at")
    progress: Progress | None = None
    bytes_sent: int = 0
    log_path: str = ""


class Release(msgspec.Struct, frozen=True, kw_only=True, tag="release"):
    """The job is over."""

    lease_id: str


class NewToken(msgspec.Struct, frozen=True, kw_only=True, tag="token"):
    """A fresh credential."""

    token: str


class Ready(msgspec.Struct, frozen=True, kw_only=True, tag="ready"):
    """It keeps from now on. The first thing that it says."""

    lease_id: str = ""


class Cancel(msgspec.Struct, frozen=True, kw_only=True, tag="cancel"):
    """The server wants the job to stop."""

    lease_id: str
    deadline_seconds: int
    reason: str


class Lost(msgspec.Struct, frozen=True, kw_only=True, tag="lost"):
    """The lease is gone, and so is the job: whatever it still has is killed now."""

    lease_id: str
    reason: str


class Confirmed(msgspec.Struct, frozen=True, kw_only=True, tag="proved"):
    """The lease stands until then, by the clock that all processes of a machine share. The answer to every `Hold`."""

    lease_id: str
    until: float


KeeperCommand = Hold | Release | NewToken
KeeperEvent = Ready | Cancel | Lost | Confirmed
decode_command: Callable[[bytes], KeeperCommand] = decoder(KeeperCommand)  # type: ignore[arg-type]
decode_event: Callable[[bytes], KeeperEvent] = decoder(KeeperEvent)  # type: ignore[arg-type]


def stop_margin_seconds(ttl_seconds: float) -> float:
    """So long before a lease ends its job is stopped: killing takes time, and clocks do not run alike."""
    return min(10.0, ttl_seconds / 4)


class _KeptLease:
    def __init__(self, order: Hold, now: float) -> None:
        self.order = order
        self.margin = stop_margin_seconds(order.ttl_seconds)
        self.confirmed_until = order.confirmed_at + order.ttl_seconds - self.margin
        self.beat_at = now + order.interval_seconds
        self.is_canceling = False


class LeaseKeeper:
    """Keeps any number of leases. Beats are said on a line beside it, so that nothing keeps the fence waiting."""

    def __init__(
        self,
        connect: Callable[[], RunnerClient],
        emit: Callable[[KeeperEvent], None],
        clock: Callable[[], float] = time.monotonic,
        heartbeat_thread: Callable[[RunnerClient], HeartbeatSender] = HeartbeatThread,
        kill: Callable[[JobHandle, float], object] = kill_all,
        send: Callable[[RunnerClient, Sequence[UnsentLog], Callable[[], float]], None] = send_unsent_logs,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._connect = connect
        self._emit = emit
        self._clock = clock
        self._token = ""
        self._leases: dict[str, _KeptLease] = {}
        self._new_line = heartbeat_thread
        self._kill = kill
        self._send = send
        self._now = now
        self._line = heartbeat_thread(connect())
        self._said: list[_KeptLease] = []  # Who waits for an answer on the line.
        self._said_at = self._give_up_at = 0.0
        self._patience = FIRST_CALL_SECONDS

    def fileno(self) -> int:
        """Readable when there is an answer to take; another one after a line was given up."""
        return self._line.fileno()

    def execute(self, order: KeeperCommand) -> None:
        """Carry out an order."""
        if isinstance(order, NewToken):
            self._token = self._line.client.token = order.token
        elif isinstance(order, Release):
            self._leases.pop(order.lease_id, None)
        else:
            kept = self._leases.setdefault(order.lease_id, _KeptLease(order, self._clock()))
            if kept.order.progress is None and order.progress is not None:
                # That the steps began is worth a beat of its own, unless they are over at once.
                kept.beat_at = min(kept.beat_at, self._clock() + FIRST_BEAT_SECONDS)
            kept.order = order
            self._emit(Confirmed(lease_id=order.lease_id, until=kept.confirmed_until))

    def wait_seconds(self) -> float:
        """How long nothing has to be done."""
        times = [kept.confirmed_until for kept in self._leases.values()]
        if self._said:
            times.append(self._give_up_at)
        else:
            times += [kept.beat_at for kept in self._leases.values()]
        return max(0.0, min(times, default=self._clock() + 3600) - self._clock())

    def advance(self) -> None:
        """Take the answers, stop what can no longer be proved, and beat where it is time."""
        self._listen()
        self._stop_unconfirmed()
        now = self._clock()
        due = [kept for kept in self._leases.values() if kept.beat_at <= now]
        if due and not self._said:
            self._beat(due)

    def stop_all(self) -> None:
        """The runner is gone: so are its jobs. What they had said is sent, as long as anybody may want it."""
        now = self._clock()
        rests = []
        for lease_id, kept in self._leases.items():
            until = min(now + REST_SECONDS, kept.confirmed_until + kept.margin)
            # Opened before anything else: a runner that is started anew clears up what this one left.
            rests.append(UnsentLog(lease_id, open_log(kept.order.log_path), until))
        for kept in self._leases.values():
            self._kill(kept.order.handle, KILL_SECONDS)
        self._leases.clear()
        self._line.close()
        client = self._connect()
        client.token = self._token
        self._send(client, rests, self._clock)

    def _stop_unconfirmed(self) -> None:
        now = self._clock()
        for kept in list(self._leases.values()):
            if now >= kept.confirmed_until:
                self._drop(kept, "NOT_PROVED")

    def _drop(self, kept: _KeptLease, reason: str) -> None:
        self._leases.pop(kept.order.lease_id, None)
        # First the word, then the deed: a runner that only saw its job die would report that as a result.
        self._emit(Lost(lease_id=kept.order.lease_id, reason=reason))
        self._kill(kept.order.handle, KILL_SECONDS)

    def _beat(self, due: list[_KeptLease]) -> None:
        self._said, self._said_at = due, self._clock()
        # Who beats seldom has time to wait: a server that is slow today is not asked more often for that.
        patience = max(self._patience, min(kept.order.interval_seconds for kept in due) / 2)
        left = min(kept.confirmed_until for kept in due) - self._said_at
        timeout = max(0.2, min(patience, MAX_CALL_SECONDS, left))
        self._give_up_at = self._said_at + timeout
        ts = self._now()
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
        self._line.send(beats, timeout)

    def _listen(self) -> None:
        """Take what was answered; who is not answered in time is asked again, on a new line."""
        if not self._said:
            return
        take_answers = self._line.take_answers()
        if take_answers is None and self._clock() < self._give_up_at:
            return
        if take_answers is None:
            self._line.close()
            self._line = self._new_line(self._connect())
            self._line.client.token = self._token
        said, self._said = self._said, []
        took = self._clock() - self._said_at if take_answers else self._patience / 2
        self._patience = max(FIRST_CALL_SECONDS, min(MAX_CALL_SECONDS, took * SLOWER))
        if not take_answers:
            for kept in said:
                kept.beat_at = self._clock() + min(RETRY_SECONDS, kept.order.interval_seconds)
            return
        for kept, answer in zip(said, take_answers, strict=True):
            if self._leases.get(kept.order.lease_id) is kept:  # It may have been released, or lost, meanwhile.
                self._heard(kept, answer)

    def _heard(self, kept: _KeptLease, answer: ServerMessage | Problem) -> None:
        if not isinstance(answer, HeartbeatAck) or not answer.extend_lease:
            reason = getattr(answer, "reason", None) or getattr(answer, "code", "STALE")
            self._drop(kept, str(reason))
            return
        kept.confirmed_until = self._said_at + answer.new_lease_ttl_seconds - kept.margin
        kept.beat_at = self._said_at + kept.order.interval_seconds
        if answer.cancel_requested and not kept.is_canceling:
            kept.is_canceling = True
            reason = answer.reason if isinstance(answer.reason, str) else "CANCELED"
            self._emit(
                Cancel(lease_id=kept.order.lease_id, deadline_seconds=answer.cancel_deadline_seconds, reason=reason)
            )


def serve(keeper: LeaseKeeper, orders: int) -> None:
    """Work until the runner hangs up."""
    waiting = b""
    while True:
        with selectors.DefaultSelector() as selector:
            selector.register(orders, selectors.EVENT_READ)
            selector.register(keeper, selectors.EVENT_READ)
            ready = {key.fd for key, _ in selector.select(keeper.wait_seconds())}
        if orders in ready:
            data = os.read(orders, 1 << 16)
            if not data:
                keeper.stop_all()
                return
            *lines, waiting = (waiting + data).split(b"\n")
            for heartbeat_thread in lines:
                keeper.execute(decode_command(heartbeat_thread))
        keeper.advance()


def main(url: str, out: int, *files: str) -> None:
    """The keeper's process. The files are those of TLS; the first order brings its credential."""

    def emit(news: KeeperEvent) -> None:
        with suppress(BrokenPipeError):  # The runner is gone; that its orders end says what to do then.
            os.write(out, msgspec.json.encode(news) + b"\n")

    keeper = LeaseKeeper(lambda: RunnerClient(url, tls=TlsConfig.of(files)), emit)
    emit(Ready())
    serve(keeper, sys.stdin.fileno())


if __name__ == "__main__":
    main(sys.argv[1], sys.stdout.fileno(), *sys.argv[2:])
