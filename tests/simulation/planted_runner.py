"""Mistakes in the runner and its keeper.

Three that one might expect are missing: they break no promise. A lease that is taken to run from when the answer was
heard is too long by no more than a heartbeat may take, which is less than the margin. A runner that does not hear a
cancel is stopped by the server's deadline, which takes its lease away.
A keeper that never beats loses its leases in time, and others get them: nothing is lost or doubled, only slow.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

from msgspec import structs

from deltaci.core.errors import Refused
from deltaci.protocol.messages import Complete, HeartbeatAck
from deltaci.runner.agent import Agent
from deltaci.runner.client import RunnerClient
from deltaci.runner.job import JobRunner
from deltaci.runner.lease import keeper as keeping
from deltaci.runner.lease.keeper import Cancel, LeaseKeeper
from deltaci.runner.log.stream import LogStream
from deltaci.runner.registration import CredentialProvider
from deltaci.runner.result import JobResult
from deltaci.runner.sandbox import Exit
from deltaci.simulation.machine import SimCell, SimMachine
from tests.simulation.planting import fault, instead

# -- leases


@fault
def a_runner_never_gives_up() -> Iterator[None]:
    """What can no longer be proved goes on."""
    real = LeaseKeeper.wait_seconds
    patient = (LeaseKeeper, "wait_seconds", lambda self: max(1.0, real(self)))
    with instead((LeaseKeeper, "_stop_unconfirmed", lambda self: None), patient):
        yield


@fault
def a_lease_has_no_margin() -> Iterator[None]:
    """A job is stopped when its lease has ended for sure, and not before."""
    real = keeping._KeptLease.__init__

    def late(self: Any, order: Any, now: float) -> None:
        real(self, order, now)
        self.margin = -30.0
        self.confirmed_until = order.confirmed_at + order.ttl_seconds + 30.0

    with instead((keeping._KeptLease, "__init__", late)):
        yield


@fault
def a_lost_lease_is_kept() -> Iterator[None]:
    """That the lease is another's by now is heard, and changes nothing."""
    real = LeaseKeeper.wait_seconds
    patient = (LeaseKeeper, "wait_seconds", lambda self: max(1.0, real(self)))
    with instead((LeaseKeeper, "_drop", lambda self, lease, reason: None), patient):
        yield


@fault
def jobs_outlive_their_runner() -> Iterator[None]:
    """A keeper whose runner is gone leaves, and leaves the jobs alone."""
    with instead((LeaseKeeper, "stop_all", lambda self: self._leases.clear())):
        yield


@fault
def jobs_outlive_their_keeper() -> Iterator[None]:
    """A runner that lost its keeper goes away without stopping anything."""

    async def nothing(_self: Agent) -> None:
        return

    async def empty(_self: SimCell) -> bool:
        return True

    with instead((Agent, "_stop_jobs", nothing), (SimCell, "close", empty)):
        yield


@fault
def the_wall_clock_is_trusted() -> Iterator[None]:
    """Leases are measured by the time for people, which somebody may set."""

    def clock(self: SimMachine) -> float:
        return self.loop.now * self.clock_rate + self.clock_offset_seconds

    with instead((SimMachine, "clock", clock)):
        yield


@fault
def a_job_begins_before_its_lease_is_taken() -> Iterator[None]:
    """Nobody waits for the answer to the acknowledgement, so a stale lease is worked on too."""
    real = JobRunner._send_until_acknowledged

    async def insist(self: JobRunner, message: Any) -> Any:
        answer = await real(self, message)
        if type(message).__name__ == "AckLease" and not isinstance(answer, HeartbeatAck):
            ttl = self._granted.lease_ttl_seconds
            return HeartbeatAck(lease_id=message.lease_id, extend_lease=True, new_lease_ttl_seconds=ttl)
        return answer

    with instead((JobRunner, "_send_until_acknowledged", insist)):
        yield


# -- what is said


@fault
def a_failure_is_called_success() -> Iterator[None]:
    """The exit code of the last step is not looked at."""
    real = JobRunner._report_result

    async def tell(self: JobRunner, ended: JobResult, log: LogStream) -> str:
        well = structs.replace(ended.exit, exit_code=0, signal=None) if ended.exit.exit_code else ended.exit
        return await real(self, structs.replace(ended, exit=well), log)

    with instead((JobRunner, "_report_result", tell)):
        yield


@fault
def a_cancel_is_acknowledged_too_early() -> Iterator[None]:
    """The server is told that nothing runs any more while something does."""
    real = JobRunner.on_keeper_message

    def hear(self: JobRunner, news: Any) -> None:
        if isinstance(news, Cancel) and self._cell is not None and self._log is not None:
            self._cancel = news
            ended = JobResult(exit=Exit(None, 9, 0.0), steps=[])
            asyncio.get_running_loop().create_task(self._report_result(ended, self._log))
            return
        real(self, news)

    with instead((JobRunner, "on_keeper_message", hear)):
        yield


@fault
def a_result_is_said_once() -> Iterator[None]:
    """A result whose answer is lost is not said again, and its lease is kept for ever."""
    real = JobRunner._send_until_acknowledged

    async def once(self: JobRunner, message: Any) -> Any:
        if isinstance(message, Complete):
            try:
                return await asyncio.to_thread(self._client.send, message)
            except Exception:
                await asyncio.get_running_loop().create_future()
        return await real(self, message)

    with instead((JobRunner, "_send_until_acknowledged", once)):
        yield


@fault
def a_log_goes_on_at_the_wrong_place() -> Iterator[None]:
    """After an answer that was lost, the same bytes are sent as if they were the next ones."""
    real = RunnerClient.append_log

    def append(self: RunnerClient, lease_id: str, offset: int, data: bytes, *words: Any) -> int:
        return real(self, lease_id, self.log_size(lease_id), data, *words)

    with instead((RunnerClient, "append_log", append)):
        yield


@fault
def a_log_skips_what_was_not_heard() -> Iterator[None]:
    """A part of a log that was not answered counts as sent."""
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

    with instead((LogStream, "_send_part", send)):
        yield


# -- the runner itself


@fault
def a_place_is_never_free_again() -> Iterator[None]:
    """A runner that is full does not notice that a job has ended."""
    with instead((Agent, "_on_job_done", lambda self, task: None)):
        yield


@fault
def a_runner_works_beside_its_keeper() -> Iterator[None]:
    """Jobs are begun that no keeper was told of."""
    with instead((JobRunner, "_update_keeper", lambda self, progress, log: None)):
        yield


@fault
def a_runner_does_not_come_back() -> Iterator[None]:
    """Whoever finds its server away for once never asks again."""
    real = Agent._read_response

    async def heard(self: Agent, asking: Any) -> Any:
        try:
            return await real(self, asking)
        except Exception:
            await asyncio.get_running_loop().create_future()

    with instead((Agent, "_read_response", heard)):
        yield


@fault
def a_credential_is_not_renewed() -> Iterator[None]:
    """A runner works until its credential is over, and then asks for ever."""

    async def never(_self: Agent) -> None:
        await asyncio.get_running_loop().create_future()

    def refuse(_self: CredentialProvider) -> Any:
        raise Refused("bad_credential", "not again")

    async def heard(_self: Agent, asking: Any) -> Any:
        try:
            return asking.result()
        except Refused:
            await asyncio.get_running_loop().create_future()

    with instead((Agent, "_renew", never), (CredentialProvider, "renew", refuse), (Agent, "_read_response", heard)):
        yield
