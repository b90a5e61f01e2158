"""The lease keeper: a process that renews the leases of this runner and kills jobs whose leases it cannot confirm.

It is a process of its own so that neither a job that uses all resources nor a runner that hangs can delay it. It sends
heartbeats, and a confirmed heartbeat extends a lease. If a lease is not confirmed in time, it kills the job before the
server may grant the lease to another runner. If the runner dies, it kills all jobs and sends the rest of their logs.

Commands arrive on stdin and events leave on stdout, as JSON lines. Times are those of the machine's boot clock, which
all of its processes share and which goes on while the machine is suspended.

The keeper is not alone: it passes each confirmed deadline on to the job's supervisor, which kills the job a little
later, also if the keeper hangs or ends.
"""

from __future__ import annotations

import os
import selectors
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final, Protocol

import msgspec

from deltaci.protocol.messages import Heartbeat, HeartbeatAck, LogCursor, Problem, Progress, ServerMessage, decoder
from deltaci.runner.client import RunnerClient
from deltaci.runner.lease.heartbeat import HeartbeatSender, HeartbeatThread
from deltaci.runner.lease.log_recovery import UnsentLog, open_log, send_unsent_logs
from deltaci.runner.sandbox.process_tree import JobHandle, kill_all
from deltaci.runner.sandbox.supervisor import RENEWAL_BYTES, BoottimeTimer, boottime
from deltaci.runner.tls import TlsConfig

RETRY_SECONDS: Final = 1.0
MIN_CALL_SECONDS: Final = 1.0  # Short, so that a broken connection is replaced while the lease lasts.
MAX_CALL_SECONDS: Final = 5.0
TIMEOUT_FACTOR: Final = 4  # The next call may take this many times as long as the last one.
KILL_SECONDS: Final = 2.0
FIRST_PROGRESS_SECONDS: Final = 1.0  # From the first step to an extra heartbeat that reports it.
MAX_OVERRUN_SECONDS: Final = 0.1  # That a job may run past its supervisor's deadline when a suspended machine resumes.
LOG_RECOVERY_SECONDS: Final = 10.0  # For the logs of a dead runner, while their leases last.


class Hold(msgspec.Struct, frozen=True, kw_only=True, tag="hold"):
    """Keep this lease; sent again when something has changed.

    `confirmed_at` is a time of the boot clock, not an age, as this message may be read late. `renewals` is the path of
    the FIFO from which the job's supervisor reads its deadline.
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
    renewals: str = ""


class Release(msgspec.Struct, frozen=True, kw_only=True, tag="release"):
    """Stop keeping this lease: its job has ended."""

    lease_id: str


class NewToken(msgspec.Struct, frozen=True, kw_only=True, tag="token"):
    """Use this token from now on."""

    token: str


class Ready(msgspec.Struct, frozen=True, kw_only=True, tag="ready"):
    """The first event: the keeper reads commands."""

    lease_id: str = ""


class Cancel(msgspec.Struct, frozen=True, kw_only=True, tag="cancel"):
    """The server requests that the job be canceled."""

    lease_id: str
    deadline_seconds: int
    reason: str


class Lost(msgspec.Struct, frozen=True, kw_only=True, tag="lost"):
    """The lease is lost; the keeper kills the job's processes now."""

    lease_id: str
    reason: str


class Confirmed(msgspec.Struct, frozen=True, kw_only=True, tag="proved"):
    """The lease is valid until this time of the boot clock. The reply to every `Hold`."""

    lease_id: str
    until: float


KeeperCommand = Hold | Release | NewToken
KeeperEvent = Ready | Cancel | Lost | Confirmed
decode_command: Callable[[bytes], KeeperCommand] = decoder(KeeperCommand)  # type: ignore[arg-type]
decode_event: Callable[[bytes], KeeperEvent] = decoder(KeeperEvent)  # type: ignore[arg-type]


def stop_margin_seconds(ttl_seconds: float) -> float:
    """Return how long before the end of a lease its job is stopped: killing takes time, and clocks differ."""
    return min(10.0, ttl_seconds / 4)


def supervisor_deadline(confirmed_until: float, ttl_seconds: float) -> float:
    """Return when the job's supervisor kills the job: halfway from the keeper's deadline to the end of the lease."""
    return confirmed_until + stop_margin_seconds(ttl_seconds) / 2


class RenewalPipe(Protocol):
    """The keeper's end of a FIFO to the supervisor of a job."""

    def write(self, deadline: float) -> None:
        """Replace the time at which the supervisor kills the job."""

    def close(self) -> None:
        """Make the supervisor kill the job now, if one is left."""


class RenewalFifo:
    """The writing end of a FIFO whose reader is the supervisor, or the runner before it has started one."""

    def __init__(self, fifo_path: str) -> None:
        self._descriptor = -1
        with suppress(OSError):  # Without a reader, there is no job.
            self._descriptor = os.open(fifo_path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)

    def write(self, deadline: float) -> None:
        """Write the deadline. If the FIFO is full or has no reader, nothing is written."""
        with suppress(OSError):
            os.write(self._descriptor, int(deadline * 1e9).to_bytes(RENEWAL_BYTES, "little"))

    def close(self) -> None:
        """Close the FIFO."""
        with suppress(OSError):
            os.close(self._descriptor)
        self._descriptor = -1


class _LeaseState:
    def __init__(self, hold: Hold, now: float, renewal_pipe: RenewalPipe) -> None:
        self.command = hold
        self.margin_seconds = stop_margin_seconds(hold.ttl_seconds)
        self.confirmed_until = hold.confirmed_at + hold.ttl_seconds - self.margin_seconds
        self.heartbeat_at = now + hold.interval_seconds
        self.is_canceling = False
        self.renewals = renewal_pipe

    def renew(self, confirmed_at: float, ttl_seconds: float) -> None:
        """Extend the lease, and tell the job's supervisor."""
        self.confirmed_until = confirmed_at + ttl_seconds - self.margin_seconds
        self.renewals.write(supervisor_deadline(self.confirmed_until, self.command.ttl_seconds))


class LeaseKeeper:
    """Keeps any number of leases. Heartbeats are sent by another thread, so that the deadlines are always met."""

    def __init__(
        self,
        connect: Callable[[], RunnerClient],
        emit: Callable[[KeeperEvent], None],
        clock: Callable[[], float] = boottime,
        start_sender: Callable[[RunnerClient], HeartbeatSender] = HeartbeatThread,
        kill: Callable[[JobHandle, float], object] = kill_all,
        send: Callable[[RunnerClient, Sequence[UnsentLog], Callable[[], float]], None] = send_unsent_logs,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        open_renewals: Callable[[str], RenewalPipe] = RenewalFifo,
    ) -> None:
        self._connect = connect
        self._emit = emit
        self._clock = clock
        self._token = ""
        self._lease_states: dict[str, _LeaseState] = {}
        self._start_sender = start_sender
        self._kill_job = kill
        self._send_unsent_logs = send
        self._now = now
        self._open_renewals = open_renewals
        self._sender = start_sender(connect())
        self._awaiting_answer: list[_LeaseState] = []  # The leases in the batch that is being sent.
        self._sent_at = self._answer_deadline = 0.0
        self._sequence_no = 0
        self._timeout_seconds = MIN_CALL_SECONDS

    def fileno(self) -> int:
        """Return a descriptor that is readable when there are answers; it changes with each new sender."""
        return self._sender.fileno()

    def execute(self, command: KeeperCommand) -> None:
        """Execute a command."""
        if isinstance(command, NewToken):
            self._token = self._sender.client.token = command.token
        elif isinstance(command, Release):
            if (lease_state := self._lease_states.pop(command.lease_id, None)) is not None:
                lease_state.renewals.close()
        else:
            if (lease_state := self._lease_states.get(command.lease_id)) is None:
                lease_state = _LeaseState(command, self._clock(), self._open_renewals(command.renewals))
                self._lease_states[command.lease_id] = lease_state
            if lease_state.command.progress is None and command.progress is not None:
                # Report the start of the steps early, unless the job ends at once.
                lease_state.heartbeat_at = min(lease_state.heartbeat_at, self._clock() + FIRST_PROGRESS_SECONDS)
            lease_state.command = command
            self._emit(Confirmed(lease_id=command.lease_id, until=lease_state.confirmed_until))

    def wait_seconds(self) -> float:
        """Return how long `advance` has nothing to do."""
        due_times = [lease_state.confirmed_until for lease_state in self._lease_states.values()]
        if self._awaiting_answer:
            due_times.append(self._answer_deadline)
        else:
            due_times += [lease_state.heartbeat_at for lease_state in self._lease_states.values()]
        return max(0.0, min(due_times, default=self._clock() + 3600) - self._clock())

    def advance(self) -> None:
        """Process answers, stop jobs whose leases are unconfirmed, and send heartbeats that are due."""
        self._take_answers()
        self._stop_unconfirmed()
        now = self._clock()
        due_states = [lease_state for lease_state in self._lease_states.values() if lease_state.heartbeat_at <= now]
        if due_states and not self._awaiting_answer:
            self._send_heartbeats(due_states)

    def stop_all(self) -> None:
        """Kill all jobs after the runner has died, and send the rest of their logs while their leases last."""
        now = self._clock()
        unsent_logs = []
        for lease_id, lease_state in self._lease_states.items():
            send_until = min(now + LOG_RECOVERY_SECONDS, lease_state.confirmed_until + lease_state.margin_seconds)
            # Opened first: a restarted runner removes the files of this one.
            unsent_logs.append(UnsentLog(lease_id, open_log(lease_state.command.log_path), send_until))
        for lease_state in self._lease_states.values():
            lease_state.renewals.close()
        for lease_state in self._lease_states.values():
            self._kill_job(lease_state.command.handle, KILL_SECONDS)
        self._lease_states.clear()
        self._sender.close()
        client = self._connect()
        client.token = self._token
        self._send_unsent_logs(client, unsent_logs, self._clock)

    def _stop_unconfirmed(self) -> None:
        now = self._clock()
        for lease_state in list(self._lease_states.values()):
            if now >= lease_state.confirmed_until:
                self._drop(lease_state, "NOT_PROVED")

    def _drop(self, lease_state: _LeaseState, stop_reason: str) -> None:
        """Give up a lost lease: report it to the runner, and kill its job."""
        self._lease_states.pop(lease_state.command.lease_id, None)
        # Report first, then kill: otherwise the runner could report the killed job as a result.
        self._emit(Lost(lease_id=lease_state.command.lease_id, reason=stop_reason))
        lease_state.renewals.close()
        self._kill_job(lease_state.command.handle, KILL_SECONDS)

    def _send_heartbeats(self, due_states: list[_LeaseState]) -> None:
        """Send the heartbeats that are due, with a timeout that ends before the first of their leases."""
        self._awaiting_answer, self._sent_at = due_states, self._clock()
        # Long intervals allow long timeouts: a slow server must not get more requests because it is slow.
        timeout_seconds = max(
            self._timeout_seconds, min(lease_state.command.interval_seconds for lease_state in due_states) / 2
        )
        seconds_left = min(lease_state.confirmed_until for lease_state in due_states) - self._sent_at
        timeout = max(0.2, min(timeout_seconds, MAX_CALL_SECONDS, seconds_left))
        self._answer_deadline = self._sent_at + timeout
        sent_at = self._now()
        # From the clock, so that the numbers also grow from one keeper of this machine to the next.
        self._sequence_no = max(self._sequence_no + 1, int(self._clock() * 1000))
        heartbeats = [
            Heartbeat(
                lease_id=lease_state.command.lease_id,
                runner_id=lease_state.command.runner_id,
                sequence_no=self._sequence_no,
                ts=sent_at,
                progress=lease_state.command.progress,
                log_cursor=LogCursor(bytes_sent=lease_state.command.bytes_sent),
            )
            for lease_state in due_states
        ]
        self._sender.send(heartbeats, timeout)

    def _take_answers(self) -> None:
        """Process the answers. After a timeout, replace the sender.

        After a timeout or a failed batch, schedule the heartbeats again.
        """
        if not self._awaiting_answer:
            return
        answers = self._sender.take_answers()
        if answers is None and self._clock() < self._answer_deadline:
            return
        if answers is None:
            self._sender.close()
            self._sender = self._start_sender(self._connect())
            self._sender.client.token = self._token
        awaiting_states, self._awaiting_answer = self._awaiting_answer, []
        answer_seconds = self._clock() - self._sent_at if answers else self._timeout_seconds / 2
        self._timeout_seconds = max(MIN_CALL_SECONDS, min(MAX_CALL_SECONDS, answer_seconds * TIMEOUT_FACTOR))
        if not answers:
            for lease_state in awaiting_states:
                lease_state.heartbeat_at = self._clock() + min(RETRY_SECONDS, lease_state.command.interval_seconds)
            return
        for lease_state, answer in zip(awaiting_states, answers, strict=True):
            if (
                self._lease_states.get(lease_state.command.lease_id) is lease_state
            ):  # It may have been released or lost meanwhile.
                self._on_answer(lease_state, answer)

    def _on_answer(self, lease_state: _LeaseState, answer: ServerMessage | Problem) -> None:
        """Renew a lease after a heartbeat, or drop it if the server refused.

        Pass a new cancel request on to the runner.
        """
        if not isinstance(answer, HeartbeatAck) or not answer.extend_lease:
            reason = getattr(answer, "reason", None) or getattr(answer, "code", "STALE")
            self._drop(lease_state, str(reason))
            return
        lease_state.renew(self._sent_at, answer.new_lease_ttl_seconds)
        lease_state.heartbeat_at = self._sent_at + lease_state.command.interval_seconds
        if answer.cancel_requested and not lease_state.is_canceling:
            lease_state.is_canceling = True
            reason = answer.reason if isinstance(answer.reason, str) else "CANCELED"
            self._emit(
                Cancel(
                    lease_id=lease_state.command.lease_id,
                    deadline_seconds=answer.cancel_deadline_seconds,
                    reason=reason,
                )
            )


def serve(keeper: LeaseKeeper, commands_fd: int) -> None:
    """Execute commands and keep leases until the runner closes its end."""
    unfinished_bytes = b""
    timer = BoottimeTimer()  # The timeout of a selector would not count suspension.
    while True:
        timer.set(boottime() + keeper.wait_seconds())
        with selectors.DefaultSelector() as selector:
            selector.register(commands_fd, selectors.EVENT_READ)
            selector.register(keeper, selectors.EVENT_READ)
            selector.register(timer, selectors.EVENT_READ)
            ready_fds = {selector_key.fd for selector_key, _ in selector.select()}
        if commands_fd in ready_fds:
            chunk = os.read(commands_fd, 1 << 16)
            if not chunk:
                keeper.stop_all()
                return
            *command_lines, unfinished_bytes = (unfinished_bytes + chunk).split(b"\n")
            for line in command_lines:
                keeper.execute(decode_command(line))
        keeper.advance()


def main(url: str, events_fd: int, *files: str) -> None:
    """Run the keeper. `files` are those of the TLS configuration; the first command brings the token."""

    def emit(event: KeeperEvent) -> None:
        with suppress(BrokenPipeError):  # The runner has died, which the end of its commands reports.
            os.write(events_fd, msgspec.json.encode(event) + b"\n")

    keeper = LeaseKeeper(lambda: RunnerClient(url, tls=TlsConfig.from_paths(files)), emit)
    emit(Ready())
    serve(keeper, sys.stdin.fileno())


if __name__ == "__main__":
    main(sys.argv[1], sys.stdout.fileno(), *sys.argv[2:])
