"""A run started in one command, on every store: one commit, one load, one run for one request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
import pytest

from deltaci.core import attempt, run
from deltaci.core.approvals import Gate
from deltaci.core.decide import StartRun
from deltaci.core.job import Approve, Job
from deltaci.core.run import Run
from deltaci.storage.port import Begin, Conflict, Load, LoadJobs, Request, Transaction, Write
from tests.contract.backends import Backend, Wrapped, on_loop
from tests.support.lab import TENANT, gate, task

JOBS = 1000
T = TypeVar("T")


def start(*jobs: Any, request_id: str = "key") -> StartRun:
    """A start of the run r1."""
    record = Run(id="r1", run_id="r1", tenant=TENANT, started_by="ada")
    return StartRun(id="r1", actor="user:ada", request_id=request_id, record=record, jobs=jobs, plan_hash="hash")


class Watched(Wrapped):
    """A store that records its requests."""

    asked: list[Request]

    async def transact(self, work: Callable[[], Transaction[T]]) -> T:
        """Execute the transaction and record its requests."""
        self.asked = []

        def watched() -> Transaction[T]:
            inner = work()
            try:
                request = next(inner)
                while True:
                    self.asked.append(request)
                    request = inner.send((yield request))
            except StopIteration as done:
                value: T = done.value
                return value

        return await self.inner.transact(watched)


@pytest.mark.proves("MOD-S1")
@on_loop
async def test_a_large_run_is_started_with_one_commit_and_one_load(backend: Backend) -> None:
    """The caller waits for it."""
    jobs = tuple(task(f"j{n}", *([f"j{n - 1}"] if n % 5 else [])) for n in range(JOBS))
    async with backend.server(Watched) as server:
        await server.do(start(*jobs))

        assert isinstance(server.store, Watched)
        [opened, written] = server.store.asked
        assert isinstance(opened, Begin)
        assert opened.ids == ("r1",)
        assert isinstance(written, Write)
        assert not any(isinstance(each, Load | LoadJobs) for each in server.store.asked)
        assert len(written.puts) == 1 + JOBS + JOBS // 5
        assert (await server.find("r1", Run)).tally.open == JOBS
        await server.verified()


@on_loop
async def test_a_run_with_a_random_id_is_not_loaded(backend: Backend) -> None:
    """It cannot exist; if it does nevertheless, it stays unchanged."""
    drawn = msgspec.structs.replace(start(task("a"), request_id=""), has_random_id=True)
    async with backend.server(Watched) as server:
        await server.do(drawn)

        assert isinstance(server.store, Watched)
        [opened, written] = server.store.asked
        assert isinstance(opened, Begin)
        assert opened.ids == ()
        assert isinstance(written, Write)
        before = await server.find("r1", Run)
        with pytest.raises(Conflict):
            await server.do(drawn)
        assert await server.find("r1", Run) == before
        await server.verified()


@pytest.mark.proves("MOD-S1")
@on_loop
async def test_a_refused_start_leaves_nothing_behind(backend: Backend) -> None:
    """Not even the run."""
    async with backend.server() as server:
        refusal = await server.refused(start(task("a", "b"), task("b", "a")))

        assert refusal.code == "dependency_cycle"
        assert await server.store.find("r1") is None
        await server.do(start(task("a")))
        assert (await server.find("r1", Run)).state == run.QUEUED


@pytest.mark.proves("MOD-S2")
@on_loop
async def test_one_request_is_one_run_on_any_server_at_any_time(backend: Backend) -> None:
    """A client whose response was lost repeats at any server, perhaps after the end of the run."""
    async with backend.server() as one, backend.server() as two:
        answers = await asyncio.gather(*(server.do(start(task("a"))) for server in (one, two, one, two)))

        assert {answer.record.id for answer in answers} == {"r1"}
        assert sum(bool(answer.changed) for answer in answers) == 1
        lease = await two.take()
        await two.send(attempt.Complete, lease, is_success=True, exit_code=0)
        await one.do(run.Report(id="r1", actor="reporter"))
        backend.after(30 * 86400)

        again = await two.do(start(task("a")))

        assert (again.record.state, again.changed) == (run.REPORTED, {})
        assert (await one.refused(start(task("b")))).code == "request_id_reused"
        await one.verified()


@pytest.mark.proves("MOD-G2", "MOD-G4")
@on_loop
async def test_a_gate_for_several_people_is_stored_between_them(backend: Backend) -> None:
    """The first may approve on Monday, the second on Tuesday, with another server."""
    async with backend.server() as one:
        await one.do(start(gate("g", gate=Gate(approvers=2, role="ops", not_by_starter=True)), task("b", "g")))
        await one.do(Approve(id="r1/g", actor="user:bob", roles=("ops",), comment="go", plan_hash="hash"))
    backend.after(86400)
    async with backend.server() as two:
        assert (await two.refused(Approve(id="r1/g", actor="user:ada", roles=("ops",)))).code == "not_allowed"
        assert not (await two.do(Approve(id="r1/g", actor="user:bob", roles=("ops",)))).changed
        await two.do(Approve(id="r1/g", actor="user:cyd", roles=("ops",)))

        approved = await two.find("r1/g", Job)
        assert [(approval.person, approval.comment) for approval in approved.approvals] == [("bob", "go"), ("cyd", "")]
        assert approved.spec.gate == Gate(approvers=2, role="ops", not_by_starter=True)
        assert await two.state("r1/b") == "QUEUED"
        await two.verified()
