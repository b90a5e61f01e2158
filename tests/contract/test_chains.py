"""A long chain of jobs that ends at its first link: the rest of it is decided in a few looks, not link by link."""

from __future__ import annotations

from deltaci.core import attempt, run
from deltaci.core.job import BLOCKED, CANCELED, Job
from deltaci.core.run import Run
from deltaci.engine.lane import MAX_LINKS
from deltaci.store.port import Load, LoadJobs
from tests.contract.places import Place, on_loop
from tests.contract.test_start import Watched, start
from tests.lab import task

JOBS = 200
CHAIN = tuple(task(f"j{n}", *([f"j{n - 1}"] if n else [])) for n in range(JOBS))


def looks(store: object) -> int:
    """How often the last decision had to be made again for want of a record."""
    assert isinstance(store, Watched)
    return sum(isinstance(each, Load | LoadJobs) for each in store.asked)


@on_loop
async def test_a_chain_is_cancelled_in_a_few_looks(place: Place) -> None:
    """It took as many as there are links, and ten thousand of them held everybody up for many minutes."""
    async with place.server(Watched) as server:
        await server.do(start(*CHAIN))

        await server.do(run.Cancel(id="r1", actor="user:ada"))

        assert looks(server.store) <= 3
        assert (await server.find("r1", Run)).state == run.CANCELED
        assert (await server.find(f"r1/j{JOBS - 1}", Job)).state == CANCELED
        await server.verified()


@on_loop
async def test_a_chain_whose_first_job_fails_is_blocked_in_a_few_looks(place: Place) -> None:
    """One who depends on few is not made to load the whole run; a long chain is."""
    async with place.server(Watched) as server:
        await server.do(start(*CHAIN))
        held = await server.take()

        await server.say(attempt.Complete, held, is_success=False, exit_code=1)

        assert looks(server.store) <= MAX_LINKS + 3
        last = await server.find(f"r1/j{JOBS - 1}", Job)
        assert (last.state, last.reason) == (CANCELED, BLOCKED)
        assert (await server.find("r1", Run)).state == run.FAILED
        await server.verified()
