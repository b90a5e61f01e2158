"""The contract of every store: records are loaded as written, guarded by their version, and found in order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from deltaci.core import worker
from deltaci.core.attempt import QUEUED, SUCCEEDED, Attempt
from deltaci.core.cascade import NewRecord
from deltaci.core.job import Job, JobSpec
from deltaci.core.listing import WORKERS
from deltaci.core.machine import Record
from deltaci.core.run import Run
from deltaci.core.worker import Worker
from deltaci.storage.port import (
    Begin,
    Conflict,
    FindDue,
    FindReady,
    Load,
    LoadJobs,
    LoadList,
    Put,
    Store,
    StoredRecord,
    Transaction,
    Unavailable,
    Write,
)
from tests.contract.backends import EVERYTHING, Backend, ask, new_event, on_loop, put, write
from tests.support.lab import START, TENANT


def waiting(id: str, ready_at: int = 0, *, priority: int = 0, labels: str = "", tenant: str = TENANT) -> Put:
    """A new attempt that waits to be claimed."""
    record = Attempt(id=id, tenant=tenant, state=QUEUED, priority=priority, queue_key=labels, run_at=ready_at)
    return put(record, ready_at=ready_at)


async def ready(store: Store, *labels: str, now: int = START, limit: int = 100, tenant: str = TENANT) -> list[str]:
    """The ids that a worker with these labels finds, in order."""
    [stored] = await ask(store, FindReady(tenant, labels, now, limit))
    return [stored_record.record.id for stored_record in stored]


async def due_ids(store: Store, now: int, limit: int = 100) -> list[str]:
    """Return the ids that are due, in order."""
    [stored] = await ask(store, FindDue(now, limit))
    return [stored_record.record.id for stored_record in stored]


async def stored_record(store: Store, id: str) -> StoredRecord:
    """Return the stored record with its version."""
    [[stored]] = await ask(store, Load((id,)))
    assert isinstance(stored, StoredRecord)
    return stored


# -- refusals


@on_loop
async def test_a_store_that_is_not_open_is_unavailable(durable_backend: Backend) -> None:
    """This is not a bug: the caller may repeat later."""
    store = durable_backend.store()

    with pytest.raises(Unavailable, match="open"):
        await ask(store, Load(("a",)))
    with pytest.raises(Unavailable, match="open"):
        await store.find("a")

    await store.close()


@pytest.mark.parametrize("version", [0, 1, 3])
@on_loop
async def test_a_write_with_another_version_changes_nothing_at_all(backend: Backend, version: int) -> None:
    """A decision about a record that has changed meanwhile is worthless, and so is all that was decided with it."""
    async with backend.opened() as store:
        await write(store, put(Attempt(id="a")), put(Attempt(id="b")), events=[new_event("a")])
        await write(store, put(Attempt(id="a", priority=1), 1))

        with pytest.raises(Conflict):
            await write(
                store,
                put(Attempt(id="new")),
                put(Attempt(id="b", priority=9), 1),
                put(Attempt(id="a", priority=9), version),
                events=[new_event("a", 2), new_event("b")],
            )

        assert (await stored_record(store, "a")).record == Attempt(id="a", priority=1)
        assert (await stored_record(store, "b")).version == 1
        assert await store.find("new") is None
        assert [event.rev for event in await store.events(0, EVERYTHING)] == [1]


@on_loop
async def test_an_existing_record_cannot_be_created(backend: Backend) -> None:
    """Of two concurrent creators, only one may succeed."""
    async with backend.opened() as one, backend.opened() as two:
        await write(one, put(Attempt(id="a", priority=1)))

        with pytest.raises(Conflict):
            await write(two, put(Attempt(id="a", priority=2)), events=[new_event("a")])

        assert await two.find("a") == Attempt(id="a", priority=1)
        assert await two.last_seq() == 0


@on_loop
async def test_a_record_that_is_over_cannot_be_written_again(backend: Backend) -> None:
    """A terminal record never changes: its version died with it."""
    async with backend.opened() as store:
        await write(store, put(Attempt(id="a")))
        await write(store, put(Attempt(id="a", state=SUCCEEDED), 1, is_terminal=True))

        for version in (1, 2):
            with pytest.raises(Conflict):
                await write(store, put(Attempt(id="a", priority=9), version))
            with pytest.raises(Conflict):
                await write(store, put(Attempt(id="a", priority=9), version, is_terminal=True))

        assert await store.find("a") == Attempt(id="a", state=SUCCEEDED)


@on_loop
async def test_a_transaction_that_raises_before_its_write_has_no_effect(backend: Backend) -> None:
    """A bug in a decision must neither leave half of it nor block later transactions."""
    async with backend.opened() as store:

        def broken() -> Transaction[None]:
            yield Begin(("a",))
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await store.transact(broken)

        await write(store, put(Attempt(id="a")))
        assert await store.find("a") == Attempt(id="a")


@on_loop
async def test_a_transaction_that_raises_after_its_write_leaves_nothing_either(backend: Backend) -> None:
    """A write counts when its transaction has ended, and not before."""
    async with backend.opened() as store:
        await write(
            store, waiting("old", 7), put(Job(id="r/a", run_id="r", spec=JobSpec(name="a"))), events=[new_event("a")]
        )

        def broken() -> Transaction[None]:
            over = put(Attempt(id="old", state=SUCCEEDED), 1, is_terminal=True)
            new = put(Job(id="r/b", run_id="r", spec=JobSpec(name="b")), due_at=START)
            yield Write([waiting("new", 8), new, over], [new_event("b")])
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await store.transact(broken)

        assert await store.find("new") is None
        assert await ready(store) == ["old"]
        assert await due_ids(store, START) == []
        assert [stored_record.record.id for stored_record in (await ask(store, LoadJobs("r")))[0]] == ["r/a"]
        assert [event.entity_id for event in await store.events(0, EVERYTHING)] == ["a"]
        await write(store, put(Attempt(id="old", state="LEASED"), 1), events=[new_event("old", 2)])
        assert await store.last_seq() == 2


@pytest.mark.parametrize("is_over", [False, True], ids=["live", "over at once"])
@pytest.mark.parametrize("was_over", [False, True], ids=["of a live one", "of one that is over"])
@on_loop
async def test_an_id_is_used_once(backend: Backend, was_over: bool, is_over: bool) -> None:
    """An id identifies one record, also after its end."""
    async with backend.opened() as store:
        first = Attempt(id="a", state=SUCCEEDED if was_over else QUEUED)
        await write(store, put(first, is_terminal=was_over), events=[new_event("a")])

        second = Attempt(id="a", state=SUCCEEDED if is_over else QUEUED, priority=1)
        with pytest.raises(Conflict):
            await write(store, put(Attempt(id="b")), put(second, is_terminal=is_over), events=[new_event("a")])

        assert await store.find("a") == first
        assert await store.find("b") is None
        assert await store.last_seq() == 1


# -- loading


@pytest.mark.parametrize(
    "record",
    [
        Attempt(id="x", tenant="t", spec={"a": [1, None, 2.5, "ß"]}, result={"b": True}, requests=("r 1",)),
        Job(id="r/x", run_id="r", spec=JobSpec(name="x", needs=("y",), work={"image": "a"}), needs=("r/y",)),
        Run(id="x", run_id="x", is_fail_fast=True, conclusion="SUCCESS"),
        Worker(id="x", labels=("arm", "linux"), tasks=("a", "b")),
    ],
    ids=lambda record: type(record).__name__,
)
@on_loop
async def test_a_record_is_returned_as_written(backend: Backend, record: Record) -> None:
    """The encoding of a store must not be visible."""
    async with backend.opened() as store:
        await write(store, put(record, due_at=START))

        assert await stored_record(store, record.id) == StoredRecord(record, 1, START)
        assert await store.find(record.id) == record


@on_loop
async def test_later_changes_of_an_object_do_not_change_the_stored_record(backend: Backend) -> None:
    """The store copies the objects that it writes and returns."""
    async with backend.opened() as store:
        mine = {"n": [1]}
        await write(store, put(Attempt(id="a", spec=mine)))

        mine["n"].append(2)
        for found in (await store.find("a"), (await stored_record(store, "a")).record):
            assert isinstance(found, Attempt)
            found.spec["n"].append(3)

        assert await store.find("a") == Attempt(id="a", spec={"n": [1]})


@on_loop
async def test_a_transaction_begins_with_the_time_and_its_records(backend: Backend) -> None:
    """One round trip is enough to begin, which makes a batch cheap."""
    async with backend.opened() as store:
        await write(store, put(Attempt(id="a")), put(Attempt(id="b")))
        backend.after(3600)

        [(now, stored)] = await ask(store, Begin(("a", "b", "nobody")))
        [(later, none)] = await ask(store, Begin(()))

        assert abs(now - backend.now()) < 10_000_000
        assert later >= now
        assert {each.record.id for each in stored} == {"a", "b"}
        assert none == []


@on_loop
async def test_a_transaction_sees_its_own_write(backend: Backend) -> None:
    """Later reads of a transaction include its writes."""
    async with backend.opened() as store:
        answers = await ask(store, Write([put(Attempt(id="a"))], []), Load(("a",)))

        assert answers[1] == [StoredRecord(Attempt(id="a"), 1, None)]


@on_loop
async def test_many_records_are_loaded_at_once(backend: Backend) -> None:
    """A batch may need more records than a statement may have variables."""
    ids = tuple(f"a{n}" for n in range(1500))
    async with backend.opened() as store:
        await write(store, *(put(Attempt(id=id)) for id in ids))

        [stored] = await ask(store, Load((*ids, "nobody")))

        assert sorted(each.record.id for each in stored) == sorted(ids)


@on_loop
async def test_versions_count_writes(backend: Backend) -> None:
    """The version is the guard: every write increases it."""
    async with backend.opened() as store:
        await write(store, put(Attempt(id="a")))
        for version in (1, 2, 3):
            await write(store, put(Attempt(id="a", priority=version), version))

        assert await stored_record(store, "a") == StoredRecord(Attempt(id="a", priority=3), 4, None)


@on_loop
async def test_a_finished_record_leaves_the_hot_table_and_is_still_found(backend: Backend) -> None:
    """The hot table stays small; finished records stay readable."""
    done = Attempt(id="a", state=SUCCEEDED, updated_at=START)
    at_once = Attempt(id="b", state=SUCCEEDED, updated_at=START)
    async with backend.opened() as store:
        await write(store, put(Attempt(id="a", state=QUEUED), ready_at=START, due_at=START))
        await write(store, put(done, 1, is_terminal=True), put(at_once, is_terminal=True))

        assert await ready(store) == []
        assert await due_ids(store, START) == []
        assert await store.find("a") == done
        [stored] = await ask(store, Load(("a", "b")))
        [(_, opened)] = await ask(store, Begin(("a", "b")))
        for answer in (stored, opened):
            assert {each.record.id: each.record for each in answer} == {"a": done, "b": at_once}


@on_loop
async def test_the_jobs_of_a_run_are_loaded_whether_or_not_they_are_over(backend: Backend) -> None:
    """A cancel must reach every job of the run, and no other."""

    def job(run_id: str, name: str, **fields: Any) -> Job:
        return Job(id=f"{run_id}/{name}", run_id=run_id, spec=JobSpec(name=name), **fields)

    async with backend.opened() as store:
        await write(store, put(job("r1", "a")), put(job("r1", "b")), put(job("r2", "a")))
        await write(store, put(Run(id="r1", run_id="r1")), put(Attempt(id="r1/a.1", run_id="r1")))
        await write(store, put(job("r1", "b", state="FAILED"), 1, is_terminal=True))

        [of_one] = await ask(store, LoadJobs("r1"))
        [of_nobody] = await ask(store, LoadJobs("r3"))

        assert {each.record.id: each.record.state for each in of_one} == {"r1/a": "", "r1/b": "FAILED"}
        assert of_nobody == []


@on_loop
async def test_a_list_is_loaded_as_it_is_in_the_transaction(backend: Backend) -> None:
    """Whether a run waits for a job depends on the workers that are registered, of its tenant alone."""
    async with backend.server() as server:
        for id in ("w1", "w2"):
            await server.register(id, labels=("gpu",))
        other = Worker(id="w3", tenant="other", max_concurrent_tasks=1)
        await server.do(NewRecord(id="w3", record=other))
        await server.do(worker.Shutdown(id="w2", actor="user:ada"))

        [workers] = await ask(server.store, LoadList(TENANT, WORKERS))
        [of_unknown_tenant] = await ask(server.store, LoadList("unknown", WORKERS))

        assert [(each.record.id, each.version > 0) for each in workers] == [("w1", True)]
        assert of_unknown_tenant == []


# -- what may be claimed


@on_loop
async def test_the_most_urgent_is_found_first_then_the_longest_ready_then_by_id(backend: Backend) -> None:
    """The order depends only on the records, so that every server is fair in the same way."""
    async with backend.opened() as store:
        await write(
            store,
            waiting("d", 20),
            waiting("b", 10),
            waiting("a", 10),
            waiting("urgent", 30, priority=5),
            waiting("lazy", 1, priority=-1),
        )

        assert await ready(store) == ["urgent", "a", "b", "d", "lazy"]
        assert await ready(store, limit=2) == ["urgent", "a"]


@on_loop
async def test_the_order_spans_queues(backend: Backend) -> None:
    """A worker with many labels takes the best attempt of all its queues, not the best of the first."""
    async with backend.opened() as store:
        await write(
            store,
            waiting("late", 30, labels="arm"),
            waiting("plain", 20),
            waiting("urgent", 40, priority=1, labels="arm,linux"),
            waiting("early", 10, labels="linux"),
        )

        assert await ready(store, "linux", "arm") == ["urgent", "early", "plain", "late"]
        assert await ready(store, "linux", "arm", limit=3) == ["urgent", "early", "plain"]


@on_loop
async def test_a_tie_across_queues_is_decided_by_the_id(backend: Backend) -> None:
    """There is one order across all queues."""
    async with backend.opened() as store:
        await write(store, waiting("b", 1), waiting("a", 1, labels="arm"), waiting("c", 1, labels="arm"))

        assert await ready(store, "arm") == ["a", "b", "c"]
        assert await ready(store, "arm", limit=2) == ["a", "b"]


@on_loop
async def test_only_attempts_that_match_the_labels_are_found(backend: Backend) -> None:
    """A job on a machine that lacks a requirement would fail for no fault of its own."""
    async with backend.opened() as store:
        await write(store, waiting("any", 1), waiting("arm", 2, labels="arm"), waiting("both", 3, labels="arm,linux"))

        assert await ready(store) == ["any"]
        assert await ready(store, "linux") == ["any"]
        assert await ready(store, "arm") == ["any", "arm"]
        assert await ready(store, "gpu", "linux", "arm") == ["any", "arm", "both"]


@on_loop
async def test_only_attempts_of_the_tenant_are_found(backend: Backend) -> None:
    """For any urgency and any labels."""
    async with backend.opened() as store:
        await write(
            store,
            waiting("theirs", 1, priority=9, tenant="b"),
            waiting("theirs too", 1, labels="arm", tenant="b"),
            waiting("mine", 2, tenant="a"),
            waiting("mine too", 3, labels="linux", tenant="a"),
        )

        assert await ready(store, tenant="a", limit=1) == ["mine"]
        assert await ready(store, "arm", "linux", tenant="a") == ["mine", "mine too"]
        assert await ready(store, "arm", "linux", tenant="b") == ["theirs", "theirs too"]
        assert await ready(store, "arm", "linux", tenant="") == []


@on_loop
async def test_an_attempt_that_is_not_ready_yet_is_not_found(backend: Backend) -> None:
    """`run_at` is a promise."""
    async with backend.opened() as store:
        await write(store, waiting("later", START + 1, priority=9), waiting("now", START))

        assert await ready(store, now=START - 1) == []
        assert await ready(store, now=START) == ["now"]
        assert await ready(store, now=START + 1) == ["later", "now"]


@on_loop
async def test_a_claimed_attempt_is_not_found(backend: Backend) -> None:
    """Each write sets whether the record can be claimed."""
    async with backend.opened() as store:
        await write(store, waiting("a"), waiting("b"))
        await write(store, put(Attempt(id="a", tenant=TENANT, state="LEASED"), 1))

        assert await ready(store) == ["b"]

        await write(store, put(Attempt(id="a", tenant=TENANT, state=QUEUED), 2, ready_at=0))
        assert await ready(store) == ["a", "b"]


# -- what is due


@on_loop
async def test_due_records_are_found_in_order_of_their_time(backend: Backend) -> None:
    """The longest overdue comes first, so that none starves behind a limit."""
    async with backend.opened() as store:
        await write(
            store, *(put(Attempt(id=f"a{n}"), due_at=START + n) for n in (3, 1, 4, 2)), put(Attempt(id="never"))
        )

        assert await due_ids(store, START) == []
        assert await due_ids(store, START + 3) == ["a1", "a2", "a3"]
        assert await due_ids(store, START + 9, limit=2) == ["a1", "a2"]
        assert await due_ids(store, START + 9) == ["a1", "a2", "a3", "a4"]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda: put(Attempt(id="a"), 1, due_at=START + 5), []),
        (lambda: put(Attempt(id="a"), 1), []),
        (lambda: put(Attempt(id="a", state=SUCCEEDED), 1, is_terminal=True), []),
        (lambda: put(Attempt(id="a"), 1, due_at=START - 5), ["a"]),
    ],
    ids=["later", "never", "over", "sooner"],
)
@on_loop
async def test_the_last_write_sets_when_a_record_is_due(
    backend: Backend, change: Callable[[], Put], expected: list[str]
) -> None:
    """A moved deadline neither fires at the old time nor is forgotten."""
    async with backend.opened() as store:
        await write(store, put(Attempt(id="a"), due_at=START))
        await write(store, change())

        assert await due_ids(store, START) == expected


@on_loop
async def test_a_record_that_was_written_again_is_due_once(backend: Backend) -> None:
    """A deadline that is carried out twice would be refused the second time, and take the place of another."""
    async with backend.opened() as store:
        await write(store, put(Attempt(id="a"), due_at=START), put(Attempt(id="b"), due_at=START + 1))
        for version in (1, 2):
            await write(store, put(Attempt(id="a"), version, due_at=START))

        assert await due_ids(store, START + 1) == ["a", "b"]
        assert await due_ids(store, START + 1, limit=2) == ["a", "b"]


@on_loop
async def test_finding_due_records_does_not_remove_them(backend: Backend) -> None:
    """A server that dies between the read and the write must not lose a deadline."""
    async with backend.opened() as store:
        await write(store, put(Attempt(id="a"), due_at=START))

        assert await due_ids(store, START) == ["a"]
        assert await due_ids(store, START) == ["a"]
