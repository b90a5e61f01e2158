"""The queue for programs without asyncio, and the public names of the package."""

from __future__ import annotations

import gc
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest

import deltaci
from deltaci import NewJob, Queue, Refused, StaleLease
from deltaci.audit.verify import verify
from deltaci.engine.blocking import BlockingQueue
from deltaci.engine.waiters import Waiter
from deltaci.storage.migrate import Migration, SchemaError, migrations
from tests.contract.backends import Backend, on_loop


def test_every_method_behaves_like_its_async_counterpart(backend: Backend) -> None:
    """One contract, blocking and awaited."""
    with BlockingQueue(backend.queue()) as queue:
        assert [job.payload for job in queue.enqueue_all([NewJob(payload=1), NewJob(payload=2, priority=-1)])] == [1, 2]
        [first] = queue.claim_next("w1")
        assert queue.heartbeat(first.lease_id).status == "claimed"
        assert queue.start(first.lease_id, worker="w1").status == "running"
        assert queue.complete(first.lease_id, {"n": 1}).status == "succeeded"
        [second] = queue.claim_next("w1", limit=5)
        queue.start(second.lease_id)
        assert queue.stall(second.id).status == "stalled"
        assert queue.requeue_stalled(second.id).status == "stalled"
        backend.after(121)
        assert queue.requeue_stalled(second.id).status == "queued"
        assert queue.cancel(second.id, "NOT_NEEDED").status == "failed"
        third = queue.enqueue("x", dedupe_key="k")
        assert queue.enqueue("y", dedupe_key="k") == third
        [claimed] = queue.claim_next("w2")
        queue.start(claimed.lease_id)
        assert queue.fail(claimed.lease_id, "boom").status == "failed"

        assert queue.get(first.id).result == {"n": 1}
        events = queue.events(first.id)
        assert [event["type"] for event in events] == [
            "enqueued", "claimed", "heartbeat", "started", "succeeded",
        ]  # fmt: skip
        assert verify([msgspec.json.encode(event) for event in events], "job-events").is_legal


def test_refusals_are_raised_in_the_calling_thread(backend: Backend) -> None:
    """A refusal is an exception of the caller's own thread."""
    with BlockingQueue(backend.queue()) as queue:
        with pytest.raises(Refused, match="not_found"):
            queue.get("nobody")
        with pytest.raises(StaleLease):
            queue.start("garbage")
        with pytest.raises(Refused, match="bad_request"):
            queue.enqueue(object())


def test_many_threads_share_one_queue(backend: Backend) -> None:
    """A program with threads needs no locks of its own."""
    with BlockingQueue(backend.queue()) as queue, ThreadPoolExecutor(8) as threads:
        jobs = list(threads.map(lambda n: queue.enqueue(n, dedupe_key=f"k{n % 20}"), range(60)))
        claims = [job for found in threads.map(lambda n: queue.claim_next(f"w{n}", limit=3), range(8)) for job in found]

        assert len({job.id for job in jobs}) == 20
        assert len({job.id for job in claims}) == len(claims) == 20


def test_a_waiting_claim_blocks_only_its_own_thread(backend: Backend) -> None:
    """One thread waits for work, another one enqueues it."""
    with BlockingQueue(backend.queue()) as queue, ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(queue.claim_next, "w1", wait_seconds=60)

        queue.enqueue("a")

        assert [job.payload for job in waiting.result(60)] == ["a"]


def test_the_thread_ends_with_the_queue(backend: Backend) -> None:
    """Leaving the `with` block leaves no thread."""
    before = set(threading.enumerate())

    with BlockingQueue(backend.queue()) as queue:
        queue.enqueue(1)

    assert set(threading.enumerate()) <= before


def test_closing_after_a_claim_that_waited_leaves_no_pending_task(
    backend: Backend, caplog: pytest.LogCaptureFixture
) -> None:
    """asyncio reports a pending task that is destroyed on stderr, where the users of the library see it."""
    with BlockingQueue(backend.queue()) as queue:
        assert queue.claim_next("w1", wait_seconds=0.01) == []
    del queue
    gc.collect()

    assert [record.message for record in caplog.records if "destroyed" in record.message] == []


def test_closing_ends_a_claim_that_another_thread_waits_for(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise that thread would wait forever: nothing runs its claim after the close."""
    is_waiting, wait = threading.Event(), Waiter.wait

    def announced(waiter: Waiter, **options: bool) -> Any:
        is_waiting.set()
        return wait(waiter, **options)

    monkeypatch.setattr(Waiter, "wait", announced)
    with ThreadPoolExecutor(1) as threads:
        with BlockingQueue(backend.queue()) as queue:
            waiting = threads.submit(queue.claim_next, "w1", wait_seconds=600)
            is_waiting.wait()

        assert waiting.result(60) == []


def test_a_worker_runs_here_until_nothing_is_left(backend: Backend) -> None:
    """The shortest program that works: enqueue, then work."""
    with BlockingQueue(backend.queue()) as queue:
        jobs = [queue.enqueue(n) for n in range(5)]

        assert queue.work(lambda task: task.payload * 2, until_empty=True, concurrency=2) == 5

        assert [queue.get(job.id).result for job in jobs] == [0, 2, 4, 6, 8]


# -- as programs import it


def test_a_queue_is_named_by_its_url(tmp_path: Path) -> None:
    """`from deltaci import Queue` and a file name: nothing else is needed, and nothing is lost."""
    url = f"sqlite:{tmp_path / 'new' / 'jobs.db'}"
    with Queue(url) as queue:
        job = queue.enqueue({"n": 1}, dedupe_key="k")

    with Queue(url) as queue:
        assert queue.get(job.id) == job
        assert [each.id for each in queue.claim_next("w1")] == [job.id]
    with Queue(url, tenant="other") as queue, pytest.raises(Refused, match="not_found"):
        queue.get(job.id)


@on_loop
async def test_the_async_queue_is_named_by_its_url() -> None:
    """The same names, for programs with a loop."""
    async with deltaci.AsyncQueue("memory:") as queue:
        job = await queue.enqueue(1)
        assert (await queue.get(job.id)).status == "queued"


def test_every_public_name_can_be_imported() -> None:
    """The package exports all names of `__all__`."""
    assert [name for name in deltaci.__all__ if getattr(deltaci, name, None) is None] == []
    with pytest.raises(AttributeError, match="nothing"):
        _ = deltaci.nothing


def test_an_error_while_opening_is_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The database of another program is refused in the caller's thread."""
    url = f"sqlite:{tmp_path / 'jobs.db'}"
    with Queue(url) as queue:
        queue.enqueue(1)
    edited = [Migration(step.number, step.name, step.text + "--") for step in migrations("sqlite")]
    monkeypatch.setattr("deltaci.storage.sqlite.migrations", lambda _: edited)

    with pytest.raises(SchemaError, match="other content"), Queue(url):
        raise AssertionError("it was opened")
