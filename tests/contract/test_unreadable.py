"""An unreadable stored record affects only itself and is logged once."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from deltaci.core import attempt
from deltaci.core.attempt import LEASED, QUEUED, Attempt
from deltaci.core.cascade import NewRecord
from deltaci.core.job import Job
from deltaci.core.lease import Lease
from deltaci.core.run import Run
from deltaci.engine.queue import AsyncQueue, NewJob
from deltaci.engine.worker import Worker
from deltaci.storage.port import Load, Postpone, Store, UnreadableRecord
from tests.contract.backends import Backend, Server, ask, new_attempt, on_loop, put, refused, write
from tests.contract.test_store_port import due_ids, ready, waiting
from tests.support.lab import START, TENANT

NONSENSE: Any = "no number"
SOON = 61  # Seconds after which a record that was put aside is looked at again.


def broken(id: str, **fields: Any) -> Attempt:
    """A record that can be written and never be read again: a field is of the wrong type."""
    return Attempt(id=id, **{"tenant": TENANT, "claims": NONSENSE, **fields})


def logged_problems(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the messages about unreadable records."""
    return [record.getMessage() for record in caplog.records if "cannot be read" in record.getMessage()]


# -- the port


@on_loop
async def test_an_unreadable_record_differs_from_a_missing_one(backend: Backend) -> None:
    """Records that are loaded together with it are returned."""
    async with backend.opened() as store:
        await write(store, put(broken("bad")), put(Attempt(id="good")), put(broken("over"), is_terminal=True))

        [stored] = await ask(store, Load(("bad", "good", "over", "nobody")))

        assert {each.record.id: type(each.record) for each in stored} == {
            "bad": UnreadableRecord,
            "good": Attempt,
            "over": UnreadableRecord,
        }
        record = await store.find("bad")
        assert isinstance(record, UnreadableRecord)
        assert "Expected `int`, got `str`" in record.problem
        assert await store.events(0, 10, entity_id="bad") == []


@on_loop
async def test_a_postponed_record_is_neither_ready_nor_due_until_then(backend: Backend) -> None:
    """It makes room for others, and comes back: another version may be able to read it."""
    async with backend.opened() as store:
        await write(store, waiting("a", 1), waiting("b", 2), put(Attempt(id="c"), due_at=START), put(Attempt(id="d")))

        await ask(store, Postpone(("a", "c", "d"), START + 10))

        assert await ready(store) == ["b"]
        assert await due_ids(store, START) == []
        assert await ready(store, now=START + 10) == ["b", "a"]
        assert await due_ids(store, START + 10) == ["c"]
        await write(store, put(Attempt(id="a", state=LEASED), 1))  # Whoever can read it was not disturbed.


# -- claims


async def poisoned(store: Store, count: int = 3) -> None:
    """The most urgent of the queue cannot be read."""
    urgent = {"priority": 9, "state": QUEUED}
    await write(store, *(put(broken(f"bad{n}", **urgent), ready_at=START) for n in range(count)))


@on_loop
async def test_claims_skip_unreadable_records(backend: Backend, caplog: pytest.LogCaptureFixture) -> None:
    """Each record is logged once, by its id, however often it is found."""
    async with backend.server() as server:
        await poisoned(server.store)
        for n in range(4):
            await server.enqueue(f"a{n}")

        first = await server.claim(limit=2)
        second = await server.claim(limit=9)
        backend.after(SOON)
        assert await server.claim(limit=9) == []

        assert [each.attempt.id for each in (*first, *second)] == ["a0", "a1", "a2", "a3"]
        assert [text.split()[1] for text in logged_problems(caplog)] == ["bad0", "bad1", "bad2"]
        assert all("restore it" in text for text in logged_problems(caplog))


@on_loop
async def test_a_worker_continues_beside_an_unreadable_record(backend: Backend) -> None:
    """One damaged record must not stop it."""
    async with backend.queue(tenant=TENANT) as queue, backend.opened() as store:
        await poisoned(store)
        for n in range(3):
            await queue.enqueue(n)
        worker = Worker(queue, lambda task: task.payload)

        await worker.run(until_empty=True)

        assert worker.finished == 3


# -- timers


@on_loop
async def test_timers_continue_beside_an_unreadable_record(backend: Backend, caplog: pytest.LogCaptureFixture) -> None:
    """Other leases expire, and a record that is due first does not fill every batch."""
    async with backend.server() as server:
        await server.enqueue("a")
        await server.take()
        await write(server.store, *(put(broken(f"bad{n}"), due_at=START) for n in range(3)))
        backend.after(200)

        assert await server.engine.tick(limit=2) == 1

        assert await server.state("a") == QUEUED
        for _ in range(3):
            backend.after(SOON)
            assert await server.tick() == 0
        assert sorted(text.split()[1] for text in logged_problems(caplog)) == ["bad0", "bad1", "bad2"]


@on_loop
async def test_a_deadline_that_needs_an_unreadable_record_waits_alone(backend: Backend) -> None:
    """An attempt with a damaged run cannot proceed; all others can."""
    async with backend.server() as server:
        await server.enqueue("a")
        await server.take()
        lease = Lease(id="x", number=1, worker_id="w", fingerprint="f", ttl_seconds=1, accept_by=1, expires_at=1)
        stuck = Attempt(id="r1/x.1", run_id="r1", job_id="r1/x", state="RUNNING", lease=lease, timeout_seconds=1)
        bad: Any = {"tally": NONSENSE}
        await write(
            server.store,
            put(stuck, due_at=START),
            put(Job(id="r1/x", run_id="r1", spec=NONSENSE)),
            put(Run(id="r1", run_id="r1", **bad)),
        )
        backend.after(200)

        await server.tick()

        assert await server.state("a") == QUEUED
        assert await server.state("r1/x.1") == "RUNNING"


# -- who asks for it


@on_loop
async def test_a_request_for_an_unreadable_record_is_refused_with_that_reason(
    backend: Backend, caplog: pytest.LogCaptureFixture
) -> None:
    """The record exists, so the code is not "not found", and nothing may replace it."""
    async with backend.server() as server:
        await write(server.store, put(broken("bad")))

        for round in (1, 2):
            for command in (attempt.Stall(id="bad"), new_attempt("bad"), _or_existing("bad")):
                refusal = await server.refused(command)
                assert (refusal.code, "restore it" in refusal.message) == ("unreadable", True)
            answers = await server.engine.do_all([new_attempt(f"good{round}"), attempt.Stall(id="bad")])
            assert [type(answer).__name__ for answer in answers] == ["Decision", "Refused"]
        assert len(logged_problems(caplog)) == 1


def _or_existing(id: str) -> NewRecord:
    return NewRecord(id=id, record=Attempt(id=id, tenant=TENANT), or_existing=True)


@on_loop
async def test_the_queue_refuses_with_the_same_reason(backend: Backend) -> None:
    """For reads, commands and enqueues with its key."""
    async with backend.queue(tenant=TENANT) as queue, backend.opened() as store:
        job = await queue.enqueue(1, dedupe_key="k")
        await write(store, put(broken(job.id), 1))

    async with backend.queue(tenant=TENANT) as queue:
        await _refused_everywhere(queue, job.id)
        assert (await queue.enqueue(2, dedupe_key="other")).status == "queued"


async def _refused_everywhere(queue: AsyncQueue, id: str) -> None:
    for asked in (queue.get(id), queue.cancel(id), queue.stall(id), queue.events(id)):
        await refused(asked, "unreadable")
    await refused(queue.enqueue(1, dedupe_key="k"), "unreadable")
    await refused(queue.enqueue_all([NewJob(dedupe_key="k")]), "unreadable")


@on_loop
async def test_the_timers_log_stays_short(backend: Backend, caplog: pytest.LogCaptureFixture) -> None:
    """Each of two servers logs it once: a flood would hide other messages."""
    async with backend.server() as one, backend.server() as two:
        await write(one.store, put(broken("bad"), due_at=START))
        for server in (one, two) * 3:
            backend.after(SOON)
            await _tick(server)

        with caplog.at_level(logging.ERROR):
            assert 1 <= len(logged_problems(caplog)) <= 2


async def _tick(server: Server) -> None:
    assert await server.tick() == 0
