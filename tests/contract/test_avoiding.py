"""Claims that avoid a worker:

a job that a worker lost goes to another eligible worker, and later jobs are not delayed.
"""

from __future__ import annotations

import asyncio

import pytest

from deltaci.core import attempt, worker
from deltaci.core.failures import Facts
from deltaci.engine.engine import Claim, ClaimResult
from tests.contract.backends import Backend, Server, on_loop
from tests.contract.test_groups import start
from tests.contract.test_waiters import WaitingRoom, ids
from tests.support.lab import TENANT, task

WIDE = ("gpu", "linux")


def claim_for(by: str, limit: int = 1, *, only: tuple[str, ...] = (), **rivals: tuple[str, ...]) -> Claim:
    """Return a claim by this worker that names the other eligible workers."""
    return Claim(
        tenant=TENANT,
        worker_id=by,
        labels=("linux",),
        limit=limit,
        ttl_seconds=120,
        accept_seconds=30,
        only_ids=only,
        other_worker_labels=tuple(rivals.values()),
        other_worker_ids=tuple(rivals),
    )


async def claim_ids(server: Server, claim: Claim) -> ClaimResult:
    return await server.engine.try_claim(claim)


async def lost_runs(backend: Backend, server: Server, *names: str, **fields: object) -> None:
    """Create runs whose jobs w1 was granted and did not accept."""
    for id in ("w1", "w2"):
        await server.register(id, labels=("linux",), slots=20)
    for name in names:
        await server.do(start(task("build", queue_key="linux", **fields), id=name))
        [_] = await server.claim("w1", labels=("linux",), only_ids=(f"{name}/build.1",))
        backend.after(31)
        await server.do(attempt.RevokeUnaccepted(id=f"{name}/build.1"))
        await server.do(worker.Resume(id="w1"))
        backend.after(1)


@pytest.mark.proves("WST-KH5")
@on_loop
async def test_a_job_that_a_worker_lost_is_left_to_another_eligible_worker(backend: Backend) -> None:
    """The result says that a job was skipped, so that another waiter is woken."""
    async with backend.server() as server:
        await lost_runs(backend, server, "r1")

        passed = await claim_ids(server, claim_for("w1", w2=WIDE))
        unfit = await claim_ids(server, claim_for("w1", w2=("gpu",)))

        assert (passed.claimed, passed.has_skipped) == ([], True)
        assert ids(unfit.claimed) == ["r1/build.1"]
        await server.verified()


@pytest.mark.proves("WST-KH5")
@on_loop
async def test_another_worker_gets_the_job_and_without_one_the_worker_that_lost_it(backend: Backend) -> None:
    """A fleet of one worker must make progress."""
    async with backend.server() as server:
        await lost_runs(backend, server, "r1", "r2")

        assert ids((await claim_ids(server, claim_for("w2", w1=WIDE))).claimed) == ["r1/build.1"]
        assert ids((await claim_ids(server, claim_for("w1"))).claimed) == ["r2/build.1"]
        await server.verified()


@pytest.mark.proves("WST-KH5")
@on_loop
async def test_later_jobs_are_granted_meanwhile(backend: Backend) -> None:
    """A job that waits for another worker must not delay later jobs."""
    async with backend.server() as server:
        await lost_runs(backend, server, "r1", "r2", "r3")
        await server.do(start(task("new", queue_key="linux"), task("newer", queue_key="linux"), id="r4"))

        first = await claim_ids(server, claim_for("w1", w2=WIDE))
        rest = await claim_ids(server, claim_for("w1", 9, w2=WIDE))
        named = await claim_ids(server, claim_for("w1", only_ids=("r2/build.1",), w2=WIDE))

        assert (ids(first.claimed), first.has_skipped) == (["r4/new.1"], True)
        assert ids(rest.claimed) == ["r4/newer.1"]
        assert named == ClaimResult([], True, ("linux",))
        assert ids((await claim_ids(server, claim_for("w2", 9, w1=WIDE))).claimed) == [
            f"r{n}/build.1" for n in (1, 2, 3)
        ]
        await server.verified()


@pytest.mark.proves("WST-KH5")
@on_loop
async def test_claims_of_one_batch_see_the_job_that_another_claim_skips(backend: Backend) -> None:
    """The result does not depend on the order of the claims."""
    async with backend.server() as server:
        await lost_runs(backend, server, "r1")
        await server.do(start(task("new", queue_key="linux"), id="r2"))

        one, two = await asyncio.gather(
            claim_ids(server, claim_for("w1", w2=WIDE)), claim_ids(server, claim_for("w2", w1=WIDE))
        )

        if backend.name != "postgres":  # There lanes may dispute it: then somebody finds it the next time.
            assert (ids(one.claimed), ids(two.claimed)) == (["r2/new.1"], ["r1/build.1"])
        assert ids(one.claimed) != ["r1/build.1"]
        await server.verified()


@pytest.mark.proves("WST-KH5")
@on_loop
async def test_a_skipped_job_does_not_occupy_its_group(backend: Backend) -> None:
    """The next job of the group runs on another worker, and the skipped one follows it."""
    async with backend.server() as server:
        await lost_runs(backend, server, "r1", group="deploy")
        await server.do(start(task("build", queue_key="linux", group="deploy"), id="r2"))

        got = await claim_ids(server, claim_for("w1", w2=WIDE))

        assert ids(got.claimed) == ["r2/build.1"]
        assert ids((await claim_ids(server, claim_for("w2", 9, w1=WIDE))).claimed) == []
        await server.verified()


@pytest.mark.proves("WST-KH5")
@on_loop
async def test_the_next_attempt_avoids_the_worker_too(backend: Backend) -> None:
    """It is another attempt of the same job on the same broken machine."""
    async with backend.server() as server:
        await server.register("w1", labels=("linux",))
        await server.do(start(task("build", queue_key="linux", max_attempts=2, base_delay_seconds=1), id="r1"))
        lease = await server.take("w1", labels=("linux",))
        broken = Facts(error_code="RUNNER_STARTUP")
        await server.send(attempt.Complete, lease, is_success=False, exit_code=1, facts=broken)
        backend.after(60)
        await server.tick()

        assert (await claim_ids(server, claim_for("w1", w2=WIDE))).claimed == []
        assert ids((await claim_ids(server, claim_for("w1"))).claimed) == ["r1/build.2"]
        await server.verified()


@pytest.mark.proves("WST-KH1")
@on_loop
async def test_a_worker_on_hold_gets_nothing_and_another_waiter_is_woken(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This holds also if the other worker has other labels and waits in another group."""
    async with backend.server() as server:
        await server.register("w1", labels=("linux",))
        await server.register("w2", labels=WIDE)
        room = WaitingRoom(server, monkeypatch)
        first = await room.add_waiter("w1", "linux")
        second = await room.add_waiter("w2", *WIDE)
        await server.do(worker.Drain(id="w1", actor="user:ada", reason="new disk"))

        await server.do(start(task("build", queue_key="linux"), id="r1"))

        assert ids(await second) == ["r1/build.1"]
        room.claim_waiters.close()
        assert await first == []
