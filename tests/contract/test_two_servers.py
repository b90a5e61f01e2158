"""Two servers over one store rely only on stored state, and write one legal log."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Final

import pytest

from deltaci.core import attempt, run
from deltaci.core.attempt import Attempt
from deltaci.core.cascade import NewRecord
from deltaci.core.decide import Decision, Plan
from deltaci.core.errors import Refused
from deltaci.core.run import Run
from deltaci.engine.engine import ClaimedAttempt
from tests.contract.backends import Backend, Server, in_memory, new_attempt, on_loop, refused, runner_message
from tests.support.lab import TENANT, Lease, gate, task

JOBS: Final = 200


async def claim_all(server: Server, by: str, limit: int, enough: asyncio.Event, found: list[ClaimedAttempt]) -> None:
    """Claim, with all servers together, until all attempts are claimed."""
    while not enough.is_set():
        found += await server.claim(by, limit)
        if len(found) >= JOBS:
            enough.set()


@pytest.mark.proves("PRO-F3")
@on_loop
async def test_concurrent_claims_never_hand_out_one_attempt_twice(backend: Backend) -> None:
    """Two runners on one attempt is the one thing that a queue must never do."""
    async with backend.server() as one, backend.server() as two:
        await one.engine.do_all([new_attempt(f"a{n:03}", priority=n % 3) for n in range(JOBS)])
        enough, found = asyncio.Event(), list[ClaimedAttempt]()

        await asyncio.gather(
            claim_all(one, "w1", 7, enough, found),
            claim_all(one, "w2", 1, enough, found),
            claim_all(two, "w3", 5, enough, found),
            claim_all(two, "w4", 3, enough, found),
        )

        assert max(Counter(each.attempt.id for each in found).values()) == 1
        assert len(found) == JOBS
        assert len({each.lease_id for each in found}) == JOBS
        events = await two.verified()
        assert Counter(event.trigger for event in events) == {"enqueued": JOBS, "claimed": JOBS}


@on_loop
async def test_claims_of_one_batch_do_not_share_an_attempt(backend: Backend) -> None:
    """Claims that are decided together see each other's grants."""
    async with backend.server() as server:
        await server.engine.do_all([new_attempt(f"a{n}") for n in range(10)])

        found = await asyncio.gather(*(server.claim(f"w{n}", 2) for n in range(8)))

        ids = [each.attempt.id for claimed in found for each in claimed]
        assert len(ids) == len(set(ids)) == 10
        assert sorted(len(claimed) for claimed in found if claimed) == [2] * 5
        await server.verified()


@on_loop
async def test_of_two_commands_that_expect_one_revision_exactly_one_succeeds(backend: Backend) -> None:
    """Compare-and-set must hold across servers."""
    async with backend.server() as one, backend.server() as two:
        await one.engine.do_all([new_attempt(f"a{n}") for n in range(20)])

        for n in range(20):
            results = await asyncio.gather(
                *(
                    server.do(attempt.Cancel(id=f"a{n}", reason=reason, expected_rev=1))
                    for server, reason in ((one, "ONE"), (two, "TWO"))
                ),
                return_exceptions=True,
            )

            assert sorted(type(each).__name__ for each in results) == ["Decision", "Refused"], results
            winner = next(each.record for each in results if isinstance(each, Decision))
            assert await two.store.find(f"a{n}") == winner
        await two.verified()


@on_loop
async def test_two_servers_at_one_record_are_applied_one_after_the_other(backend: Backend) -> None:
    """Two heartbeats at once are two heartbeats: none is lost, none is counted twice."""
    async with backend.server() as one, backend.server() as two:
        await one.enqueue("a")
        lease = await one.take()
        await one.send(attempt.Start, lease)
        before = (await one.find("a", Attempt)).rev

        for _ in range(10):
            await asyncio.gather(*(server.send(attempt.Extend, lease) for server in (one, two, one, two)))

        assert (await two.find("a", Attempt)).rev == before + 40
        assert [event.rev for event in await two.log(entity_id="a")] == list(range(1, before + 41))
        await two.verified()


@on_loop
async def test_one_request_through_two_servers_is_applied_once(backend: Backend) -> None:
    """A client that tries the next server because the first one was slow must not do it twice."""
    async with backend.server() as one, backend.server() as two:
        results = await asyncio.gather(
            *(server.do(new_attempt("a", request_id="r")) for server in (one, two, one, two))
        )

        assert {each.record.rev for each in results} == {1}
        assert sum(len(each.events) for each in results) == 1
        assert len(await one.verified()) == 1


@on_loop
async def test_a_server_does_not_refuse_because_of_a_cached_record(backend: Backend) -> None:
    """A worker may claim through one server and start through another one that has an older record cached."""
    async with backend.server() as one, backend.server() as two:
        await one.enqueue("a")
        lease = await two.take()

        await one.send(attempt.Start, lease)
        await two.send(attempt.Extend, lease)
        done = await one.send(attempt.Finish, lease, is_success=True)

        assert done.state == attempt.SUCCEEDED
        await two.verified()


@on_loop
async def test_a_server_does_not_accept_because_of_a_cached_record(backend: Backend) -> None:
    """A record that another server finished is finished, also where it is cached as running."""
    async with backend.server() as one, backend.server() as two:
        await one.enqueue("a")
        lease = await one.take()
        await one.send(attempt.Start, lease)
        await two.do(attempt.Stall(id="a"))

        refusal = await one.refused(runner_message(attempt.Extend, lease))

        assert refusal.code == "stale_lease"
        assert "REVOKED" in refusal.message
        await two.verified()


@on_loop
async def test_a_repeat_is_not_answered_from_the_cache(backend: Backend) -> None:
    """A success without a change returns the record as it is now."""
    async with backend.server() as one, backend.server() as two:
        await one.enqueue("a")
        lease = await one.take()
        await one.do(runner_message(attempt.Start, lease, request_id="s"))
        done = await two.send(attempt.Finish, lease, is_success=True)

        again = await one.do(runner_message(attempt.Start, lease, request_id="s"))

        assert again.record == done
        assert again.events == []


@in_memory
@on_loop
async def test_a_timer_in_its_batch_does_not_let_a_stale_heartbeat_count(backend: Backend) -> None:
    """The timer loaded the newer record, whose version then guarded the write of the older one."""
    async with backend.server() as one, backend.server() as two:
        lease = await one.running("a")
        rev_before = (await one.find("a", Attempt)).rev
        backend.after(60)  # The stored due time, the end of the accept window, has passed; the lease has not ended.
        await two.send(attempt.Extend, lease)

        await asyncio.gather(one.send(attempt.Extend, lease), one.engine.tick())

        assert [event.rev for event in await two.log(entity_id="a")] == list(range(1, rev_before + 3))
        await two.verified()


@in_memory
@on_loop
async def test_a_claim_in_its_batch_does_not_let_a_stale_heartbeat_count(backend: Backend) -> None:
    """The claim found the attempt, which its first worker had handed back to another server."""
    async with backend.server() as one, backend.server() as two:
        lease = await one.running("a")
        await two.do(attempt.Stall(id="a", reason=attempt.HANDED_BACK))

        refusal, claimed = await asyncio.gather(
            refused(one.send(attempt.Extend, lease)), one.claim("w2"), return_exceptions=True
        )

        assert isinstance(refusal, Refused), refusal
        assert refusal.code == "stale_lease"
        assert isinstance(claimed, list), claimed
        assert [grant.attempt.lease.worker_id for grant in claimed if grant.attempt.lease] == ["w2"]
        await two.verified()


@on_loop
async def test_every_message_may_take_another_way(backend: Backend) -> None:
    """A load balancer in front of the servers knows nothing of attempts."""
    async with backend.server() as one, backend.server() as two:
        servers = (one, two)
        await asyncio.gather(*(servers[n % 2].enqueue(f"a{n}") for n in range(20)))
        for n in range(20):
            lease = await servers[n % 2].take()
            await servers[(n + 1) % 2].send(attempt.Ack, lease)
            await servers[n % 2].send(attempt.Heartbeat, lease)
            await servers[(n // 2) % 2].send(attempt.Complete, lease, is_success=True, exit_code=0)

        assert await one.claim(limit=50) == []
        assert {await two.state(f"a{n}") for n in range(20)} == {attempt.SUCCEEDED}
        await one.verified()


# -- a run that two servers carry


async def complete_run(server: Server, by: str, run_id: str) -> None:
    """Claim and complete, with a heartbeat in between, until the run has no open attempts."""
    with server.store.commit_hints.subscribe() as waker:
        while (await server.find(run_id, Run)).state in (run.QUEUED, run.RUNNING):
            claimed = await server.claim(by, 3)
            for each in claimed:
                lease = Lease(by, each.lease_id)
                await server.send(attempt.Heartbeat, lease)
                await server.send(attempt.Complete, lease, is_success=True, exit_code=0)
            if not claimed:
                await waker.wait()


@on_loop
async def test_a_run_on_two_servers_ends_once(backend: Backend) -> None:
    """Counters of both servers meet in one record: each count must arrive."""
    async with backend.server() as one, backend.server() as two:
        layers = [[f"l{layer}-{n}" for n in range(6)] for layer in range(3)]
        specs = [task(name, *(layers[depth - 1] if depth else ())) for depth, row in enumerate(layers) for name in row]
        await one.do(NewRecord(id="r1", record=Run(id="r1", run_id="r1", tenant=TENANT)))
        await two.do(run.BeginPlanning(id="r1"))
        await one.do(Plan(id="r1", jobs=tuple(specs)))
        for name in ("w1", "w2"):
            await one.register(name, slots=3)

        await asyncio.gather(complete_run(one, "w1", "r1"), complete_run(two, "w2", "r1"))

        ended = await one.find("r1", Run)
        assert (ended.state, ended.conclusion) == (run.SUCCESS, run.SUCCESS)
        assert ended.tally.open == 0
        steps = [event.to for event in await two.verified() if event.entity_id == "r1"]
        assert steps == ["CREATED", "PLANNING", "QUEUED", "RUNNING", "VALIDATING", "SUCCESS"]


@on_loop
async def test_a_concurrent_cancel_and_completion_end_legally(backend: Backend) -> None:
    """In either order, each record ends once and the log can be verified."""
    async with backend.server() as one, backend.server() as two:
        for n in range(8):
            id = f"r{n}"
            await one.do(NewRecord(id=id, record=Run(id=id, run_id=id, tenant=TENANT)))
            await one.do(run.BeginPlanning(id=id))
            await one.do(Plan(id=id, jobs=(task("a"), task("b", "a"), gate("g"))))
            lease = await one.take()

            results = await asyncio.gather(
                one.do(runner_message(attempt.Complete, lease, is_success=True, exit_code=0)),
                two.do(run.Cancel(id=id, actor="user:ada")),
                return_exceptions=True,
            )

            assert not [each for each in results if isinstance(each, BaseException) and not isinstance(each, Refused)]
            assert (await two.find(id, Run)).state == run.CANCELED
            assert not (await one.do(run.Cancel(id=id, actor="user:ada"))).events
        await one.verified()
