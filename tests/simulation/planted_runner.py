"""Mistakes in the runner and its lease keeper.

Three mistakes that one might expect are missing, because they break no invariant. A lease that is counted from the
arrival of the answer is too long by at most the time of a heartbeat, which is less than the safety margin. A runner
that ignores a cancel is stopped by the server's deadline, which revokes its lease. A keeper that sends no heartbeats
loses its leases in time, and other runners get them: nothing is lost or executed twice, only late.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

from msgspec import structs

from deltaci.core import attempt
from deltaci.core.errors import Refused
from deltaci.protocol.messages import Complete, HeartbeatAck
from deltaci.runner.agent import Agent
from deltaci.runner.client import RunnerClient
from deltaci.runner.job import JobRunner
from deltaci.runner.lease import keeper as keeper_module
from deltaci.runner.lease.keeper import Cancel, LeaseKeeper
from deltaci.runner.log.stream import LogStream
from deltaci.runner.registration import CredentialProvider
from deltaci.runner.result import JobResult
from deltaci.runner.sandbox import Exit
from deltaci.simulation.machine import SimCell, SimMachine
from tests.simulation.planting import fault, patched

# -- leases

# The supervisor ends a job with its lease, which would hide most mistakes of the keeper. That it does nothing itself is
# found in too few histories; test_regressions.py has two of them.
WITHOUT_SUPERVISOR = (SimCell, "check_lease", lambda self: None)


@fault
def unconfirmed_lease_is_kept() -> Iterator[None]:
    """A job continues after its lease can no longer be confirmed."""
    real = LeaseKeeper.wait_seconds
    patched_wait = (LeaseKeeper, "wait_seconds", lambda self: max(1.0, real(self)))
    with patched((LeaseKeeper, "_stop_unconfirmed", lambda self: None), patched_wait, WITHOUT_SUPERVISOR):
        yield


@fault
def lease_has_no_safety_margin() -> Iterator[None]:
    """A job is stopped only after its lease has surely ended."""
    real = keeper_module._LeaseState.__init__

    def init(self: Any, order: Any, now: float, renewals: Any) -> None:
        real(self, order, now, renewals)
        self.margin = -30.0
        self.confirmed_until = order.confirmed_at + order.ttl_seconds + 30.0

    with patched((keeper_module._LeaseState, "__init__", init), WITHOUT_SUPERVISOR):
        yield


@fault
def revoked_lease_is_kept() -> Iterator[None]:
    """The runner ignores that its lease was given to another worker."""
    real = LeaseKeeper.wait_seconds
    patched_wait = (LeaseKeeper, "wait_seconds", lambda self: max(1.0, real(self)))
    with patched((LeaseKeeper, "_drop", lambda self, lease, reason: None), patched_wait, WITHOUT_SUPERVISOR):
        yield


@fault
def late_heartbeat_counts() -> Iterator[None]:
    """A heartbeat that arrives after a later one replaces its progress."""
    with patched((attempt, "is_late", lambda _attempt, _heartbeat: False)):
        yield


@fault
def jobs_outlive_their_runner() -> Iterator[None]:
    """A keeper whose runner is dead does not stop the jobs."""
    with patched((LeaseKeeper, "stop_all", lambda self: self._leases.clear()), WITHOUT_SUPERVISOR):
        yield


@fault
def jobs_outlive_their_keeper() -> Iterator[None]:
    """A runner that lost its keeper ends without stopping its jobs."""

    async def nothing(_self: Agent) -> None:
        return

    async def empty(_self: SimCell) -> bool:
        return True

    with patched((Agent, "_stop_jobs", nothing), (SimCell, "close", empty), WITHOUT_SUPERVISOR):
        yield


@fault
def leases_use_the_wall_clock() -> Iterator[None]:
    """The runner measures leases with the wall clock, which may be changed."""

    def clock(self: SimMachine) -> float:
        return self.loop.now * self.clock_rate + self.clock_offset_seconds

    with patched((SimMachine, "clock", clock)):
        yield


@fault
def job_starts_before_its_lease_is_acknowledged() -> Iterator[None]:
    """The runner does not wait for the answer to its acknowledgement, so it works under a stale lease too."""
    real = JobRunner._send_until_acknowledged

    async def send(self: JobRunner, message: Any) -> Any:
        answer = await real(self, message)
        if type(message).__name__ == "AckLease" and not isinstance(answer, HeartbeatAck):
            ttl = self._granted.lease_ttl_seconds
            return HeartbeatAck(lease_id=message.lease_id, extend_lease=True, new_lease_ttl_seconds=ttl)
        return answer

    with patched((JobRunner, "_send_until_acknowledged", send)):
        yield


# -- messages


@fault
def failure_is_reported_as_success() -> Iterator[None]:
    """The runner ignores the exit code of the last step."""
    real = JobRunner._report_result

    async def report(self: JobRunner, ended: JobResult, log: LogStream) -> str:
        successful_exit = structs.replace(ended.exit, exit_code=0, signal=None) if ended.exit.exit_code else ended.exit
        return await real(self, structs.replace(ended, exit=successful_exit), log)

    with patched((JobRunner, "_report_result", report)):
        yield


@fault
def cancel_is_acknowledged_early() -> Iterator[None]:
    """The runner acknowledges a cancel while the job still runs."""
    real = JobRunner.on_keeper_message

    def on_message(self: JobRunner, message: Any) -> None:
        if isinstance(message, Cancel) and self._cell is not None and self._log is not None:
            self._cancel = message
            ended = JobResult(exit=Exit(None, 9, 0.0), steps=[])
            asyncio.get_running_loop().create_task(self._report_result(ended, self._log))
            return
        real(self, message)

    with patched((JobRunner, "on_keeper_message", on_message)):
        yield


@fault
def result_is_sent_once() -> Iterator[None]:
    """A result whose answer is lost is not sent again, and its lease is kept for ever."""
    real = JobRunner._send_until_acknowledged

    async def once(self: JobRunner, message: Any) -> Any:
        if isinstance(message, Complete):
            try:
                return await asyncio.to_thread(self._client.send, message)
            except Exception:
                await asyncio.get_running_loop().create_future()
        return await real(self, message)

    with patched((JobRunner, "_send_until_acknowledged", once)):
        yield


@fault
def log_is_appended_at_the_wrong_offset() -> Iterator[None]:
    """After a lost answer, the same bytes are appended once more."""
    real = RunnerClient.append_log

    def append(self: RunnerClient, lease_id: str, offset: int, data: bytes, *arguments: Any) -> int:
        return real(self, lease_id, self.log_size(lease_id), data, *arguments)

    with patched((RunnerClient, "append_log", append)):
        yield


@fault
def unanswered_log_part_counts_as_sent() -> Iterator[None]:
    """A part of a log that was not acknowledged counts as sent."""
    real = LogStream._send_part

    def send(self: LogStream) -> int:
        data = self._read(self.bytes_sent, 1 << 20)
        try:
            return real(self)
        except Refused:
            raise
        except Exception:
            self._client.append_log(self._lease_id, self._client.log_size(self._lease_id), data[1:])
            return self.bytes_sent + len(data)

    with patched((LogStream, "_send_part", send)):
        yield


# -- the runner itself


@fault
def runner_slot_is_never_freed() -> Iterator[None]:
    """A runner without a free slot does not notice that a job has ended."""
    with patched((Agent, "_on_job_done", lambda self, task: None)):
        yield


@fault
def jobs_start_without_the_keeper() -> Iterator[None]:
    """Jobs start without their keeper."""
    with patched((JobRunner, "_update_keeper", lambda self, progress, log: None)):
        yield


@fault
def runner_does_not_reconnect() -> Iterator[None]:
    """A runner that cannot reach its server once never asks again."""
    real = Agent._read_response

    async def read_response(self: Agent, pending: Any) -> Any:
        try:
            return await real(self, pending)
        except Exception:
            await asyncio.get_running_loop().create_future()

    with patched((Agent, "_read_response", read_response)):
        yield


@fault
def credential_is_not_renewed() -> Iterator[None]:
    """A runner works until its credential expires, and then asks for ever."""

    async def never(_self: Agent) -> None:
        await asyncio.get_running_loop().create_future()

    def refuse(_self: CredentialProvider) -> Any:
        raise Refused("bad_credential", "not again")

    async def read_response(_self: Agent, pending: Any) -> Any:
        try:
            return pending.result()
        except Refused:
            await asyncio.get_running_loop().create_future()

    with patched(
        (Agent, "_renew", never), (CredentialProvider, "renew", refuse), (Agent, "_read_response", read_response)
    ):
        yield
