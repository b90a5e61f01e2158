"""The worker: however a handler ends, its job ends once, with a reason."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

import pytest

from deltaci.core.errors import Refused
from deltaci.core.failures import MAX_LINE_CHARS
from deltaci.engine import worker as engine
from deltaci.engine.queue import NewJob
from deltaci.engine.worker import Handler, Task, Worker
from deltaci.storage.port import Store, Transaction, Unavailable
from tests.contract.backends import Backend, T, Wrapped, in_memory, legal, on_loop

SOON: Final = 60.0  # Nothing here takes as long, unless it hangs.


class Switched(Wrapped):
    """A store that can be switched off, or fails so many times."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.is_off = False
        self.failures = 0

    async def transact(self, work: Callable[[], Transaction[T]]) -> T:
        if self.is_off or self.failures > 0:
            self.failures -= 1
            raise Unavailable("switched off")
        return await self.inner.transact(work)


def wait_for(event: threading.Event) -> Any:
    """Wait for an event of another thread without blocking this one."""
    return asyncio.to_thread(event.wait, SOON)


async def double_async(task: Task) -> Any:
    """An async handler."""
    return {"twice": task.payload * 2}


def double_plain(task: Task) -> Any:
    """A plain handler."""
    return {"twice": task.payload * 2}


# -- refusals


@in_memory
@on_loop
async def test_a_worker_that_could_not_work_is_refused(backend: Backend) -> None:
    """A lease that is shorter than a heartbeat can keep is lost before it begins."""
    async with backend.queue() as queue:
        wrong: list[dict[str, Any]] = [{"concurrency": 0}, {"concurrency": -1}, {"ttl_seconds": 1}, {"ttl_seconds": 0}]
        for options in wrong:
            with pytest.raises(Refused, match="bad_request"):
                Worker(queue, double_plain, **options)


@in_memory
@on_loop
async def test_a_worker_with_labels_that_make_no_sense_ends_at_once(backend: Backend) -> None:
    """A mistake in its own settings is not something to try again."""
    async with backend.queue() as queue:
        with pytest.raises(Refused, match="comma"):
            await Worker(queue, double_plain, labels=["a,b"]).run()


# -- how jobs end


@pytest.mark.parametrize("handler", [double_plain, double_async], ids=["plain", "async"])
@on_loop
async def test_the_result_of_a_handler_is_stored(backend: Backend, handler: Handler) -> None:
    """A handler may be a plain or an async function."""
    async with backend.queue() as queue:
        jobs = await queue.enqueue_all([NewJob(payload=n) for n in range(6)])
        worker = Worker(queue, handler, concurrency=2, name="w1")

        await worker.run(until_empty=True)

        found = [await queue.get(job.id) for job in jobs]
        assert [job.result for job in found] == [{"twice": n * 2} for n in range(6)]
        assert {(job.status, job.attempt) for job in found} == {("succeeded", 1)}
        assert worker.finished == 6
        legal(await queue.log())


def breaks_plain(task: Task) -> None:
    raise ConnectionError(task.payload)


async def breaks_async(task: Task) -> None:
    raise ConnectionError(task.payload)


@pytest.mark.parametrize("handler", [breaks_plain, breaks_async], ids=["plain", "async"])
@in_memory
@on_loop
async def test_an_exception_fails_its_job_and_is_classified_by_its_text(backend: Backend, handler: Handler) -> None:
    """A failure of the infrastructure differs from one that somebody must fix."""
    async with backend.queue() as queue:
        infra = await queue.enqueue("Connection reset by peer")
        user = await queue.enqueue("the answer is 41")

        await Worker(queue, handler).run(until_empty=True)

        first, second = (await queue.get(infra.id)).error, (await queue.get(user.id)).error
        assert first is not None
        assert second is not None
        assert (first.failure_class, first.line) == ("INFRA", "ConnectionError: Connection reset by peer")
        assert (second.failure_class, second.code, second.rule) == ("USER", "FAILED", "failed")
        assert {(await queue.get(job.id)).status for job in (infra, user)} == {"failed"}
        legal(await queue.log())


class UnprintableError(Exception):
    """An exception that cannot be converted to text."""

    def __str__(self) -> str:
        raise ValueError("no words")


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ValueError("the answer is 41"), "ValueError: the answer is 41"),
        (KeyError("name"), "KeyError: 'name'"),
        (RuntimeError(), "RuntimeError"),
        (OSError("\n  first of two\nlines"), "OSError: first of two"),
        (ValueError("x" * 5000), f"ValueError: {'x' * 5000}"[:MAX_LINE_CHARS]),
        (ValueError("lone \udc80"), "ValueError: lone ?"),
        (UnprintableError(), "UnprintableError: its message cannot be shown"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
@in_memory
@on_loop
async def test_the_error_is_the_first_line_of_an_exception(backend: Backend, error: Exception, message: str) -> None:
    """The type and the first line of the message, up to the limit of a line."""

    def breaks(task: Task) -> None:
        try:
            raise KeyError("what came before")
        except KeyError:
            raise error from None

    async with backend.queue() as queue:
        job = await queue.enqueue(1)

        await Worker(queue, breaks).run(until_empty=True)

        found = await queue.get(job.id)
        assert found.error is not None
        assert found.error.message == message
        assert found.to_dict()["error"]["message"] == message
        assert (await queue.log(job.id))[-1].metadata["error"]["message"] == message


@in_memory
@on_loop
async def test_a_result_that_cannot_be_stored_fails_its_job(backend: Backend) -> None:
    """The work is done and its result is lost: that must be visible, and not be repeated."""
    async with backend.queue() as queue:
        job = await queue.enqueue(1)

        await Worker(queue, lambda task: object()).run(until_empty=True)

        assert (await queue.get(job.id)).status == "failed"


@in_memory
@on_loop
async def test_a_handler_that_fails_does_not_stop_its_worker(backend: Backend) -> None:
    """One bad job among many is one bad job."""

    def odd_fails(task: Task) -> int:
        if task.payload % 2:
            raise ValueError(task.payload)
        return int(task.payload)

    async with backend.queue() as queue:
        jobs = await queue.enqueue_all([NewJob(payload=n) for n in range(6)])

        await Worker(queue, odd_fails).run(until_empty=True)

        statuses = [(await queue.get(job.id)).status for job in jobs]
        assert statuses == ["succeeded", "failed"] * 3


# -- how many, and which


@in_memory
@on_loop
async def test_no_more_handlers_run_than_the_worker_has_slots(backend: Backend) -> None:
    """Here three must run at once, and a fourth must never start."""
    lock, running, most = threading.Lock(), 0, 0
    meeting = threading.Barrier(3, timeout=SOON)

    def meet(task: Task) -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        meeting.wait()
        with lock:
            running -= 1

    async with backend.queue() as queue:
        await queue.enqueue_all([NewJob(payload=n) for n in range(9)])
        worker = Worker(queue, meet, concurrency=3)

        await worker.run(until_empty=True)

        assert (most, worker.finished) == (3, 9)


@in_memory
@on_loop
async def test_a_worker_takes_only_jobs_that_match_its_labels(backend: Backend) -> None:
    """The rest is left for others."""
    async with backend.queue() as queue:
        gpu, arm = await queue.enqueue("gpu", labels=["gpu"]), await queue.enqueue("arm", labels=["arm"])

        await Worker(queue, lambda task: 1, labels=["gpu", "linux"]).run(until_empty=True)

        assert [(await queue.get(job.id)).status for job in (gpu, arm)] == ["succeeded", "queued"]


@in_memory
@on_loop
async def test_two_workers_never_do_one_job_twice(backend: Backend) -> None:
    """The whole point, from end to end."""
    done = Counter[int]()
    lock = threading.Lock()

    def count(task: Task) -> None:
        with lock:
            done[task.payload] += 1

    async with backend.queue() as one, backend.queue() as two:
        await one.enqueue_all([NewJob(payload=n) for n in range(60)])

        workers = [Worker(queue, count, concurrency=4) for queue in (one, two)]
        await asyncio.gather(*(worker.run(until_empty=True) for worker in workers))

        assert done == Counter(range(60))
        assert sum(worker.finished for worker in workers) == 60
        legal(await two.log())


# -- stopping


@in_memory
@on_loop
async def test_a_stopping_worker_finishes_its_jobs_and_takes_no_new_ones(backend: Backend) -> None:
    """A deployment must cost no work."""
    has_begun, may_end = threading.Event(), threading.Event()

    def wait(task: Task) -> str:
        has_begun.set()
        assert may_end.wait(SOON)
        return "done"

    async with backend.queue() as queue:
        job, other = await queue.enqueue(1), await queue.enqueue(2, priority=-1)
        worker = Worker(queue, wait)
        running = asyncio.ensure_future(worker.run())
        assert await wait_for(has_begun)

        worker.stop()
        may_end.set()
        await running

        assert (await queue.get(job.id)).result == "done"
        assert (await queue.get(other.id)).status == "queued"
        assert worker.finished == 1


@in_memory
@on_loop
async def test_a_job_that_does_not_end_in_time_is_released(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another worker gets the job, and no attempt is counted."""
    has_begun, is_stopped = threading.Event(), threading.Event()
    monkeypatch.setattr(engine, "STOP_SECONDS", SOON)

    async def endless(task: Task) -> None:
        has_begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            is_stopped.set()

    async with backend.queue() as queue:
        job = await queue.enqueue(1, max_lost_leases=0)
        worker = Worker(queue, endless, drain_seconds=0.05)
        running = asyncio.ensure_future(worker.run())
        assert await wait_for(has_begun)

        worker.stop()
        await running

        assert await wait_for(is_stopped)
        assert (await queue.get(job.id)).status == "queued"
        assert len(await queue.claim_next("next")) == 1
        legal(await queue.log())


@in_memory
@on_loop
async def test_an_idle_worker_stops(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that waits for work can be stopped."""
    monkeypatch.setattr(engine, "CLAIM_WAIT_SECONDS", 0.2)
    async with backend.queue() as queue:
        job = await queue.enqueue(1)
        worker = Worker(queue, lambda task: worker_stop())
        loop = asyncio.get_running_loop()

        def worker_stop() -> None:
            loop.call_soon_threadsafe(worker.stop)

        await worker.run()

        assert (await queue.get(job.id)).status == "succeeded"


# -- a store that comes and goes


@in_memory
@on_loop
async def test_a_store_that_fails_for_a_moment_costs_no_job(backend: Backend) -> None:
    """Every message is repeated until it is acknowledged; a duplicate counts once."""
    stores: list[Switched] = []

    def switched(store: Store) -> Store:
        stores.append(Switched(store))
        return stores[0]

    def store_failure(task: Task) -> str:
        stores[0].failures = 2
        return "done"

    async with backend.queue(switched) as queue:
        job = await queue.enqueue(1)
        stores[0].failures = 2
        worker = Worker(queue, store_failure)

        await worker.run(until_empty=True)

        found = await queue.get(job.id)
        assert (found.status, found.result, found.attempt) == ("succeeded", "done", 1)
        legal(await queue.log())
