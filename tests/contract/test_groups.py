"""Groups run one job at a time: on all servers, in order, and the next job starts promptly when the group is free."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

import pytest

from deltaci.core import attempt, run
from deltaci.core.attempt import Attempt
from deltaci.core.decide import StartRun
from deltaci.core.events import Event
from deltaci.core.failures import Facts
from deltaci.core.job import JobSpec
from deltaci.core.run import Run
from deltaci.engine.engine import Claim
from deltaci.engine.waiters import ClaimWaiters
from deltaci.storage.port import CountLiveLeases, FindReady, LockGroup, Store, StoredRecord
from tests.contract.backends import Backend, Server, ask, on_loop, put, write
from tests.contract.test_quota import end
from tests.contract.test_waiters import WaitingRoom, ids
from tests.support.lab import START, TENANT, task

RUNS: Final = 40


def grouped(id: str, at: int = 0, *, group: str = "deploy", tenant: str = TENANT, **fields: Any) -> Any:
    """An attempt of a group that waits to be claimed."""
    record = Attempt(id=id, tenant=tenant, state=attempt.QUEUED, run_at=at, group=group)
    return put(record, **{"ready_at": at, **fields})


async def ready_for(store: Store, *without: str, now: int = START, limit: int = 100) -> list[str]:
    """Return the ids that a worker finds."""
    [stored] = await ask(store, FindReady(TENANT, (), now, limit, (), without))
    return [each.record.id for each in stored]


async def ready_ignoring_groups(store: Store) -> list[str]:
    """Return the ids that are found without regard to groups."""
    [stored] = await ask(store, FindReady(TENANT, (), START, 100))
    return [each.record.id for each in stored]


def max_live_leases(events: list[Event]) -> int:
    """Return how many attempts of the log had a live lease at the same time."""
    held: set[str] = set()
    most = 0
    for event in events:
        change = event.metadata.get("lease") or {}
        if change.get("to") == "GRANTED":
            held.add(event.entity_id)
        elif change.get("to") in ("COMPLETED", "CANCELED", "EXPIRED", "REVOKED"):
            held.discard(event.entity_id)
        most = max(most, len(held))
    return most


# -- the store


@pytest.mark.proves("MOD-D3")
@on_loop
async def test_a_job_of_an_occupied_group_is_not_found(backend: Backend) -> None:
    """Another group is free, and so is the same name in another tenant."""
    async with backend.opened() as store:
        await write(
            store,
            grouped("a", 1),
            grouped("b", 2),
            grouped("c", 3, group="lab"),
            grouped("d", 4, group=""),
            grouped("their", 1, tenant="other", ready_at=None, due_at=9),
        )
        assert await ready_for(store) == await ready_ignoring_groups(store) == ["a", "b", "c", "d"]
        assert await ready_for(store, "lab", "none") == ["a", "b", "d"]
        assert await store.group_holder(TENANT, "deploy") == ""

        await write(store, grouped("holder", 0, ready_at=None, due_at=9))

        assert await ready_for(store) == ["c", "d"]
        assert await ready_ignoring_groups(store) == ["a", "b", "c", "d"]
        assert await ready_for(store, limit=1) == ["c"]
        assert await ask(store, LockGroup(TENANT, "deploy", START), LockGroup(TENANT, "lab", START)) == ["holder", ""]
        assert [await store.group_holder(*name) for name in ((TENANT, "deploy"), ("other", "deploy"))] == [
            "holder",
            "their",
        ]
        assert [attempt_record.id for attempt_record in await store.ready_attempts(START, 10)] == ["c", "d"]
        assert await ask(store, CountLiveLeases(TENANT, 9)) == [1]


@pytest.mark.proves("MOD-D3")
@on_loop
async def test_one_that_may_be_claimed_again_later_has_its_group_until_then(backend: Backend) -> None:
    """Its last worker may be at work until then."""
    async with backend.opened() as store:
        await write(store, grouped("lost", START + 60), grouped("next", 1))

        assert await ready_for(store, now=START + 59) == []
        assert await ask(store, LockGroup(TENANT, "deploy", START + 59)) == ["lost"]
        assert await ready_for(store, now=START + 60) == ["next", "lost"]
        assert await ask(store, LockGroup(TENANT, "deploy", START + 60)) == [""]


@on_loop
async def test_a_record_that_leaves_frees_its_group(backend: Backend) -> None:
    """Whether it is over, or lost its lease."""
    async with backend.opened() as store:
        holder = grouped("holder", 0, ready_at=None, due_at=9)
        await write(store, holder, grouped("next", 1))
        assert await ready_for(store) == []
        await write(store, put(holder.record, 1, is_terminal=True))

        assert await ready_for(store) == ["next"]

        [[stored]] = await ask(store, FindReady(TENANT, (), START, 1))
        assert isinstance(stored, StoredRecord)
        await write(store, put(stored.record, stored.version, due_at=9))
        assert await store.group_holder(TENANT, "deploy") == "next"


# -- claims


def start(*jobs: JobSpec, id: str) -> StartRun:
    """A run of these jobs."""
    return StartRun(id=id, record=Run(id=id, run_id=id, tenant=TENANT), jobs=jobs, plan_hash="hash")


def deploys(count: int, **fields: Any) -> list[StartRun]:
    """So many runs that want to deploy."""
    return [start(task("deploy", group="prod", **fields), id=f"r{n:02}") for n in range(count)]


async def begun(server: Server, count: int, **fields: Any) -> None:
    for deploy in deploys(count, **fields):
        await server.do(deploy)


@pytest.mark.proves("MOD-D3")
@on_loop
async def test_one_job_of_a_group_is_granted_at_a_time_the_oldest_first(backend: Backend) -> None:
    """However many are claimed at once; jobs behind the group are granted."""
    async with backend.server() as server:
        await begun(server, 3)
        backend.after(1)
        await server.do(start(task("a"), task("b"), id="other"))

        first = await server.claim("w1", 9)
        assert [each.attempt.id for each in first] == ["r00/deploy.1", "other/a.1", "other/b.1"]
        assert await server.claim("w2", 9) == []
        for name in ("r01", "r02"):
            await end(server, first[0])
            first = await server.claim("w1")
            assert [each.attempt.id for each in first] == [f"{name}/deploy.1"]
        assert await server.claim("w1") == []
        await server.verified()


@pytest.mark.proves("MOD-D3")
@on_loop
async def test_claims_of_one_batch_see_each_others_groups(backend: Backend) -> None:
    """A grant of the batch counts although it is not written yet."""
    async with backend.server() as server:
        await begun(server, 5)
        backend.after(1)
        await server.do(start(*(task(f"j{n}") for n in range(3)), id="other"))

        claims = await asyncio.gather(*(server.claim(f"w{n}", 1) for n in range(8)))

        got = sorted(each.attempt.id for some in claims for each in some)
        # Lanes of one server may dispute the group: then somebody finds it the next time.
        if backend.name != "postgres":
            assert got == ["other/j0.1", "other/j1.1", "other/j2.1", "r00/deploy.1"]
        assert len([id for id in got if "deploy" in id]) <= 1
        await server.verified()


@pytest.mark.proves("MOD-D3")
@on_loop
async def test_a_claim_by_name_succeeds_only_if_the_group_is_free(backend: Backend) -> None:
    """A claim by name does not bypass the group."""
    async with backend.server() as server:
        await begun(server, 2)
        lease = await server.take("w1")

        assert await server.claim("w2", only_ids=("r01/deploy.1",)) == []
        await server.send(attempt.Complete, lease, is_success=True, exit_code=0)

        assert len(await server.claim("w2", only_ids=("r01/deploy.1",))) == 1


@pytest.mark.proves("MOD-D3", "MOD-5")
@on_loop
async def test_a_lost_lease_keeps_the_group_until_its_end_and_no_longer(backend: Backend) -> None:
    """The group follows from a live lease: a dead runner does not occupy it for ever."""
    async with backend.server() as server:
        await begun(server, 2)
        await running(server, backend)
        await server.do(attempt.Stall(id="r00/deploy.1", actor="user:ada"))
        assert await server.state("r00/deploy.1") == attempt.STALE
        assert await server.claim("w2") == []

        backend.after(111)

        assert len(await server.claim("w2")) == 1
        assert await server.claim("w3") == []
        await server.verified()


async def running(server: Server, backend: Backend) -> None:
    """Let w1 run the first deploy for ten seconds."""
    await server.send(attempt.Start, await server.take("w1"))
    backend.after(10)


@pytest.mark.proves("MOD-D3", "QUE-L1")
@on_loop
async def test_a_stalled_job_waits_for_its_group_like_a_queued_one(backend: Backend) -> None:
    """Another job of the group may have been leased after the fence."""
    async with backend.server() as server:
        await begun(server, 2)
        await running(server, backend)
        await server.do(attempt.Stall(id="r00/deploy.1", actor="user:ada"))
        backend.after(111)
        [other] = await server.claim("w2")
        assert other.attempt.id == "r01/deploy.1"

        assert await server.claim("w3", 9) == []
        assert await server.claim("w3", only_ids=("r00/deploy.1",)) == []
        await end(server, other, "w2")

        assert [claimed.attempt.id for claimed in await server.claim("w3")] == ["r00/deploy.1"]
        await server.verified()


async def forced_cancel(server: Server, backend: Backend) -> None:
    """Cancel the first deploy, whose runner does not stop: it is ended at the deadline, 80 s before its lease."""
    await running(server, backend)
    await server.do(run.Cancel(id="r00", actor="user:ada"))
    backend.after(30)
    await server.tick()
    assert await server.state("r00/deploy.1") == attempt.CANCELED


async def timeout(server: Server, backend: Backend) -> None:
    """Let the first deploy run for longer than allowed: it times out 80 s before the end of its lease."""
    await running(server, backend)
    backend.after(30)
    await server.tick()
    assert await server.state("r00/deploy.1") == attempt.TIMED_OUT


async def lost_too_often(server: Server, backend: Backend) -> None:
    """Take the first deploy from its worker, 80 s before the end of its lease; it may lose no lease."""
    await running(server, backend)
    backend.after(30)
    await server.do(attempt.Stall(id="r00/deploy.1", actor="user:ada"))
    assert await server.state("r00/deploy.1") == attempt.FAILED


async def canceled_while_stalled(server: Server, backend: Backend) -> None:
    """Cancel the first deploy after it was taken from its worker, 80 s before the end of its lease."""
    await running(server, backend)
    backend.after(30)
    await server.do(attempt.Stall(id="r00/deploy.1", actor="user:ada"))
    await server.do(run.Cancel(id="r00", actor="user:ada"))
    assert await server.state("r00/deploy.1") == attempt.CANCELED


ENDS: Final = [
    (forced_cancel, {}),
    (timeout, {"timeout_seconds": 40}),
    (lost_too_often, {"max_lost_leases": 0}),
    (canceled_while_stalled, {}),
]


@pytest.mark.proves("MOD-D3", "MOD-5")
@pytest.mark.parametrize(("end_by_force", "fields"), ENDS, ids=[end_by_force.__name__ for end_by_force, _ in ENDS])
@on_loop
async def test_a_job_that_was_ended_by_force_keeps_its_group_until_its_lease_would_have_ended(
    backend: Backend, end_by_force: Callable[[Server, Backend], Awaitable[None]], fields: dict[str, Any]
) -> None:
    """Its runner may work until then: two deployments of one group never overlap."""
    async with backend.server() as server, backend.server() as other:
        await begun(server, 2, **fields)
        await end_by_force(server, backend)
        assert await server.store.group_holder(TENANT, "prod") == "r00/deploy.1"
        for claimant in (server, other):
            assert await claimant.claim("w2", 9) == []
            assert await claimant.claim("w2", only_ids=("r01/deploy.1",)) == []
        assert await server.store.ready_attempts(backend.now(), 9) == []
        backend.after(75)
        assert await server.claim("w2") == []

        backend.after(6)

        assert await server.store.group_holder(TENANT, "prod") == ""
        assert [claimed.attempt.id for claimed in await other.claim("w2")] == ["r01/deploy.1"]
        await server.verified()


@pytest.mark.proves("MOD-D3", "MOD-5")
@on_loop
async def test_a_waiting_claim_gets_the_next_job_of_a_group_soon_after_the_fence(backend: Backend) -> None:
    """No event happens at that time that could wake it."""
    async with backend.server() as server:
        await begun(server, 2)
        await forced_cancel(server, backend)
        waiters = ClaimWaiters(server.engine, server.store.commit_hints)
        claim = Claim(tenant=TENANT, worker_id="w2", labels=(), limit=1, ttl_seconds=120, accept_seconds=30)
        waiting = asyncio.create_task(waiters.claim(claim, 40.0))
        assert await server.claim("w3") == []

        backend.after(81)

        assert ids(await asyncio.wait_for(waiting, 10)) == ["r01/deploy.1"]
        await waiters.stop()


@pytest.mark.proves("MOD-D3", "MOD-5")
@on_loop
async def test_a_forced_cancel_of_a_job_that_was_never_accepted_frees_its_group(backend: Backend) -> None:
    """A runner starts nothing before its acknowledgement is answered."""
    async with backend.server() as server:
        await begun(server, 2)
        await server.take("w1")
        await server.do(run.Cancel(id="r00", actor="user:ada"))
        backend.after(30)
        await server.tick()

        assert [claimed.attempt.id for claimed in await server.claim("w2")] == ["r01/deploy.1"]
        await server.verified()


@pytest.mark.proves("MOD-5")
@on_loop
async def test_the_retry_of_a_job_that_timed_out_waits_for_the_end_of_its_lease(backend: Backend) -> None:
    """Its runner may work until then, in a group or not."""
    async with backend.server() as server:
        await begun(server, 1, timeout_seconds=40, max_attempts=2)
        await timeout(server, backend)
        backend.after(75)
        await server.tick()
        assert await server.state("r00/deploy") == "RETRYING"

        backend.after(6)
        await server.tick()

        assert [claimed.attempt.id for claimed in await server.claim("w2")] == ["r00/deploy.2"]
        await server.verified()


@on_loop
async def test_old_group_fences_are_pruned(backend: Backend) -> None:
    """Names of groups may contain a branch or a pull request, so that they would accumulate."""
    async with backend.server() as server:
        await begun(server, 2)
        await forced_cancel(server, backend)
        before = backend.now()
        backend.after(1000)

        await server.store.prune(finished_before=backend.now(), events_before=0, limit=100)

        assert await ask(server.store, LockGroup(TENANT, "prod", before)) == [""]


@pytest.mark.proves("MOD-D3")
@on_loop
async def test_other_jobs_of_the_group_run_while_one_waits_for_its_retry(backend: Backend) -> None:
    """A job that waits for its retry has no lease."""
    async with backend.server() as server:
        await begun(server, 2, max_attempts=2)
        lease = await server.take("w1")
        await server.send(attempt.Complete, lease, is_success=False, facts=Facts(error_code="RUNNER_STARTUP"))
        assert await server.state("r00/deploy") == "RETRYING"

        other = await server.take("w2")
        await server.send(attempt.Start, other)
        backend.after(100)
        await server.tick()
        assert await server.state("r00/deploy.2") == attempt.QUEUED
        assert await server.claim("w1") == []
        await server.send(attempt.Complete, other, is_success=True, exit_code=0)

        assert len(await server.claim("w1")) == 1
        await server.verified()


@pytest.mark.proves("MOD-D3")
@on_loop
async def test_two_servers_never_grant_two_jobs_of_a_group(backend: Backend) -> None:
    """Each server has its own shards and does not know what the other is about to write."""
    async with backend.server() as one, backend.server() as two:
        await begun(one, RUNS)
        done: list[str] = []

        async def work(server: Server, by: str) -> None:
            while len(done) < RUNS:
                for claimed in await server.claim(by, 2):
                    await end(server, claimed, by)
                    done.append(claimed.attempt.id)

        servers = (one, two, one, two)
        await asyncio.gather(*(work(server, f"w{n}") for n, server in enumerate(servers)))

        events = await two.verified()
        assert max_live_leases(events) == 1
        assert sorted(done) == [f"r{n:02}/deploy.1" for n in range(RUNS)]
        assert {(await one.find(f"r{n:02}", Run)).state for n in range(RUNS)} == {run.SUCCESS}


@on_loop
async def test_a_waiting_claim_is_woken_when_the_group_is_free(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a poll."""
    async with backend.server() as server:
        await begun(server, 2)
        claimed = await server.claim("w1")
        room = WaitingRoom(server, monkeypatch)
        waiting = await room.add_waiter("w2")

        await end(server, claimed[0])

        assert ids(await waiting) == ["r01/deploy.1"]
