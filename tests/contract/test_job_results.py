"""Results of jobs: every store has the latest one of each key, written together with the end of the job."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from deltaci.core import attempt
from deltaci.core.decide import StartRun
from deltaci.core.job import CANCELED, FAILED, SUCCEEDED, JobSpec
from deltaci.core.results import TRUSTED, JobResult, ResultKey, job_key, trust_of
from deltaci.core.run import Cancel, Origin, Run
from deltaci.storage.port import Conflict, Store, Transaction, Write
from tests.contract.backends import Backend, in_memory, new_event, on_loop, put
from tests.support.lab import START, TENANT

KEY = ResultKey(TENANT, "shop", TRUSTED, job_key(".deltaci.yml", "test"), "hash")
ORIGIN = Origin(project="shop", commit="c" * 40, file=".deltaci.yml", event="push", ref="refs/heads/main")


def result(state: str = SUCCEEDED, at: int = START, key: ResultKey = KEY) -> JobResult:
    return JobResult(key, state, "c" * 40, "r1", at)


async def store_results(store: Store, *results: JobResult) -> None:
    def work() -> Transaction[None]:
        yield Write([], [], job_results=sorted(results, key=lambda result: result.key))

    await store.transact(work)


# -- refusals


@on_loop
async def test_an_earlier_result_does_not_replace_a_later_one(backend: Backend) -> None:
    """Whichever server writes last, the latest end decides."""
    async with backend.opened() as store:
        await store_results(store, result(FAILED, START + 2))

        await store_results(store, result(SUCCEEDED, START + 1))

        assert await store.find_job_results([KEY]) == [result(FAILED, START + 2)]


@on_loop
async def test_the_result_of_a_job_whose_end_is_not_written_is_not_written(backend: Backend) -> None:
    """Both are one transaction."""
    run = Run(id="r1", run_id="r1", tenant=TENANT)
    async with backend.opened() as store:

        def work() -> Transaction[None]:
            yield Write([put(run, version=7)], [new_event("r1")], job_results=[result()])

        with pytest.raises(Conflict):
            await store.transact(work)

        assert await store.find_job_results([KEY]) == []


# -- what is stored


@on_loop
async def test_the_latest_result_of_each_key_is_found(backend: Backend) -> None:
    """Every part of the key tells results apart."""
    others = [result(key=replace(KEY, **{field: "other"})) for field in ("tenant", "project", "trust", "job", "inputs")]
    async with backend.opened() as store:
        await store_results(store, result(FAILED), *others)
        await store_results(store, result(SUCCEEDED, START + 1))

        stored = await store.find_job_results([KEY, replace(KEY, inputs="unknown"), others[2].key, KEY])

        assert sorted(stored, key=lambda result: result.key) == [result(SUCCEEDED, START + 1), others[2]]
        assert await store.find_job_results([]) == []


@on_loop
async def test_old_results_are_deleted_a_few_at_a_time(backend: Backend) -> None:
    """By the time at which the job ended."""
    old = [result(SUCCEEDED, START + number, replace(KEY, inputs=str(number))) for number in range(5)]
    async with backend.opened() as store:
        await store_results(store, *old)

        counts = [await store.delete_job_results(START + 4, 3) for _ in range(3)]

        assert counts == [3, 1, 0]
        assert await store.find_job_results([result.key for result in old]) == [old[4]]


# -- which jobs have a result


@pytest.mark.parametrize("status", [SUCCEEDED, FAILED])
@on_loop
async def test_the_end_of_a_started_job_stores_its_result(backend: Backend, status: str) -> None:
    """With the commit and the run in which it ended."""
    async with backend.server() as server:
        await server.do(started(JobSpec(name="test", inputs="hash"), JobSpec(name="lint")))
        for _ in range(2):
            lease = await server.take()
            is_success = status == SUCCEEDED
            await server.send(attempt.Complete, lease, is_success=is_success, exit_code=0 if is_success else 1)

        [stored] = await server.store.find_job_results([KEY])

        assert (stored.state, stored.commit, stored.run_id) == (status, "c" * 40, "r1")


def started(*specs: JobSpec) -> StartRun:
    return StartRun(id="r1", record=Run(id="r1", run_id="r1", tenant=TENANT, origin=ORIGIN), jobs=specs, plan_hash="h")


@in_memory
@on_loop
async def test_a_job_that_no_worker_started_has_no_result(backend: Backend) -> None:
    """A superseded job tested nothing, so that it does not replace an earlier success either."""
    async with backend.server() as server:
        await store_results(server.store, result())
        await server.do(started(JobSpec(name="test", inputs="hash")))

        await server.do(Cancel(id="r1", reason="superseded"))

        assert await server.state("r1/test") == CANCELED
        assert await server.store.find_job_results([KEY]) == [result()]


def test_each_change_from_a_fork_has_its_own_trust() -> None:
    """Otherwise one author could test with changed tools what another one's change reuses."""
    forks = [replace(ORIGIN, is_fork=True, number=number) for number in (1, 2)]

    assert len({TRUSTED, *map(trust_of, forks)}) == 3
    assert trust_of(ORIGIN) == TRUSTED
