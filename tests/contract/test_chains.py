"""Long chains of jobs are decided with few loads, and a long log is read in pages."""

from __future__ import annotations

from deltaci.core import attempt, run
from deltaci.core.decide import Decision
from deltaci.core.events import Event
from deltaci.core.job import BLOCKED, CANCELED, QUEUED, Job
from deltaci.core.run import Run
from deltaci.engine.shard import MAX_CHAIN_LOADS
from deltaci.storage.codec import LAZY_DECODE_COUNT
from deltaci.storage.port import Load, LoadJobs
from tests.contract.backends import Backend, on_loop, runner_message
from tests.contract.test_start import Watched, start
from tests.support.lab import Lease, task

JOBS = 200
CHAIN = tuple(task(f"j{n}", *([f"j{n - 1}"] if n else [])) for n in range(JOBS))


def loads(store: object) -> int:
    """Return how often the last decision was repeated because a record was missing."""
    assert isinstance(store, Watched)
    return sum(isinstance(each, Load | LoadJobs) for each in store.asked)


@on_loop
async def test_a_chain_is_cancelled_with_a_few_loads(backend: Backend) -> None:
    """It once took one load per link, and ten thousand links delayed all other commands for minutes."""
    async with backend.server(Watched) as server:
        await server.do(start(*CHAIN))

        await server.do(run.Cancel(id="r1", actor="user:ada"))

        assert loads(server.store) <= 3
        assert (await server.find("r1", Run)).state == run.CANCELED
        assert (await server.find(f"r1/j{JOBS - 1}", Job)).state == CANCELED
        await server.verified()


@on_loop
async def test_a_chain_whose_first_job_fails_is_blocked_with_a_few_loads(backend: Backend) -> None:
    """A job with few dependents does not load the whole run; a long chain does."""
    async with backend.server(Watched) as server:
        await server.do(start(*CHAIN))
        lease = await server.take()

        await server.send(attempt.Complete, lease, is_success=False, exit_code=1)

        assert loads(server.store) <= MAX_CHAIN_LOADS + 3
        last = await server.find(f"r1/j{JOBS - 1}", Job)
        assert (last.state, last.reason) == (CANCELED, BLOCKED)
        assert (await server.find("r1", Run)).state == run.FAILED
        await server.verified()


@on_loop
async def test_many_jobs_of_a_run_are_claimed_and_completed_with_one_load_each_time(backend: Backend) -> None:
    """It once took one load per claimed job, and one per completed job that others wait for."""
    pairs = [(task(f"a{n}"), task(f"b{n}", f"a{n}")) for n in range(JOBS)]
    async with backend.server(Watched) as server:
        await server.do(start(*(job for pair in pairs for job in pair)))

        claimed = await server.claim(limit=JOBS)

        assert len(claimed) == JOBS
        assert loads(server.store) == 1
        leases = [Lease("w1", granted.lease_id) for granted in claimed]
        outcome = {"is_success": True, "exit_code": 0}
        answers = await server.engine.do_all(runner_message(attempt.Complete, lease, **outcome) for lease in leases)
        assert all(isinstance(answer, Decision) for answer in answers)
        assert loads(server.store) == 1
        assert (await server.find(f"r1/b{JOBS - 1}", Job)).state == QUEUED
        await server.verified()


@on_loop
async def test_the_log_of_a_large_run_is_the_same_in_pages_of_any_size(backend: Backend) -> None:
    """The start of a run is one row of the log; paging by any size returns each event once."""
    async with backend.server() as server:
        await server.do(start(*(task(f"j{n}") for n in range(JOBS * 3))))
        whole = await server.store.events(0, 100_000)

        assert len(whole) > LAZY_DECODE_COUNT
        assert [event.seq for event in whole] == list(range(1, len(whole) + 1))
        for size in (700, len(whole)):
            paged: list[Event] = []
            while page := await server.store.events(paged[-1].seq if paged else 0, size, run_id="r1"):
                paged += page
            assert paged == whole
        last = [event for event in whole if event.entity_id == "r1/j7"]
        assert await server.store.events(0, 100, entity_id="r1/j7") == last
        assert await server.store.events(last[0].seq, 100, entity_id="r1/j7") == last[1:]
