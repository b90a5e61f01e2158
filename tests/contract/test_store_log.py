"""What every store promises about the log: committed with the records, in order, never renumbered, pruned by age."""

from __future__ import annotations

import pytest

from deltaci.core.attempt import SUCCEEDED, Attempt
from deltaci.core.events import Event
from deltaci.core.instants import SECOND
from deltaci.core.run import Run
from deltaci.storage.port import Store
from tests.contract.backends import EVERYTHING, Backend, new_event, on_loop, put, write
from tests.support.lab import START


async def append(store: Store, *events: Event) -> None:
    """One transaction that adds to the log; every write has a record."""
    await write(store, put(Attempt(id=f"holder-{events[0].entity_id}-{events[0].rev}")), events=events)


async def entities_and_revs(
    store: Store, after: int = 0, limit: int = EVERYTHING, **chosen: str
) -> list[tuple[str, int]]:
    """Return entity and rev of the events that a reader gets."""
    return [(event.entity_id, event.rev) for event in await store.events(after, limit, **chosen)]


@on_loop
async def test_a_log_without_events_ends_at_zero(backend: Backend) -> None:
    """A reader of a new deployment starts before its first event."""
    async with backend.opened() as store:
        assert await store.last_seq() == 0
        assert await store.events(0, EVERYTHING) == []


@on_loop
async def test_events_are_returned_as_written_in_commit_order(backend: Backend) -> None:
    """No event may be lost, changed or moved."""
    async with backend.opened() as store:
        await append(store, new_event("a", 1), new_event("b", 1))
        await append(store, new_event("a", 2, at=START - SECOND))
        events = await store.events(0, EVERYTHING)

        assert [(event.entity_id, event.rev) for event in events] == [("a", 1), ("b", 1), ("a", 2)]
        assert [event.seq for event in events] == sorted({event.seq for event in events})
        assert events[0].seq > 0
        assert events[2] == Event(
            events[2].seq, *(getattr(new_event("a", 2, at=START - SECOND), name) for name in FIELDS)
        )
        assert await store.last_seq() == events[-1].seq


FIELDS = [name for name in Event.__struct_fields__ if name != "seq"]


@on_loop
async def test_a_reader_continues_after_its_last_event(backend: Backend) -> None:
    """Pages neither overlap nor leave out events."""
    async with backend.opened() as store:
        await append(store, *(new_event("a", rev) for rev in range(1, 11)))
        seqs = [event.seq for event in await store.events(0, EVERYTHING)]

        first = await store.events(0, 4)
        second = await store.events(first[-1].seq, 4)
        third = await store.events(second[-1].seq, 4)

        assert [event.seq for event in (*first, *second, *third)] == seqs
        assert await store.events(seqs[-1], 4) == []
        assert await entities_and_revs(store, seqs[4], 2) == [("a", 6), ("a", 7)]


@on_loop
async def test_the_events_of_one_entity_or_run_are_read_alone(backend: Backend) -> None:
    """The page of a run must cost what the run is worth."""
    async with backend.opened() as store:
        await write(
            store,
            put(Run(id="r1", run_id="r1")),
            put(Attempt(id="r1/a", run_id="r1")),
            put(Attempt(id="q")),
            put(Run(id="r2", run_id="r2")),
            events=[
                new_event("r1", run_id="r1"),
                new_event("r1/a", run_id="r1"),
                new_event("q"),
                new_event("r2", run_id="r2"),
            ],
        )
        await append(store, new_event("r1/a", 2, run_id="r1"), new_event("q", 2))
        middle = (await store.events(0, EVERYTHING))[3].seq

        assert await entities_and_revs(store, run_id="r1") == [("r1", 1), ("r1/a", 1), ("r1/a", 2)]
        assert await entities_and_revs(store, entity_id="r1/a") == [("r1/a", 1), ("r1/a", 2)]
        assert await entities_and_revs(store, middle, run_id="r1") == [("r1/a", 2)]
        assert await entities_and_revs(store, middle, entity_id="q") == [("q", 2)]
        assert await entities_and_revs(store, 0, 2, run_id="r1") == [("r1", 1), ("r1/a", 1)]
        assert await entities_and_revs(store, entity_id="nobody") == []


@on_loop
async def test_another_store_over_the_same_data_reads_the_same_log(backend: Backend) -> None:
    """All servers write one log."""
    async with backend.opened() as one, backend.opened() as two:
        await write(one, put(Attempt(id="a")), events=[new_event("a")])
        await write(two, put(Attempt(id="b")), events=[new_event("b")])

        assert await one.events(0, EVERYTHING) == await two.events(0, EVERYTHING)
        assert await entities_and_revs(one) == [("a", 1), ("b", 1)]
        assert await one.last_seq() == await two.last_seq()


# -- retention


async def finished(store: Store, id: str, ended_at: int) -> None:
    """A record that was over at this time."""
    await write(store, put(Attempt(id=id, state=SUCCEEDED, updated_at=ended_at), is_terminal=True))


@on_loop
async def test_prune_deletes_only_older_records(backend: Backend) -> None:
    """Retention first promises to keep records, then permits to delete them."""
    async with backend.opened() as store:
        await write(store, put(Attempt(id="live", updated_at=START - 100)))
        for id, ended_at in (("old", START - 2), ("edge", START), ("new", START + 2)):
            await finished(store, id, ended_at)
        for rev in (1, 2, 3, 4):
            await append(store, new_event("x", rev, at=START + rev))

        dropped = await store.prune(finished_before=START, events_before=START + 3, limit=100)

        assert dropped == 3
        assert await store.find("old") is None
        assert [id for id in ("live", "edge", "new") if await store.find(id)] == ["live", "edge", "new"]
        assert await entities_and_revs(store) == [("x", 3), ("x", 4)]


@on_loop
async def test_the_log_of_a_record_outlives_the_record(backend: Backend) -> None:
    """Records and events have separate retention times."""
    events = [new_event("r1/a.1", run_id="r1"), new_event("r1/b.1", run_id="r1"), new_event("q"), new_event("host/1")]
    async with backend.opened() as store:
        for id, run_id in (("r1/a.1", "r1"), ("r1/b.1", "r1"), ("q", ""), ("host/1", "")):
            await write(store, put(Attempt(id=id, run_id=run_id, state=SUCCEEDED), is_terminal=True))
        await append(store, *events)

        assert await store.prune(finished_before=START, events_before=0, limit=100) == 4

        for event in events:
            assert await store.find(event.entity_id) is None
            assert await entities_and_revs(store, entity_id=event.entity_id) == [(event.entity_id, 1)]
            assert await entities_and_revs(store, await store.last_seq(), entity_id=event.entity_id) == []


@pytest.mark.parametrize("limit", [1, 2])
@on_loop
async def test_prune_deletes_no_more_than_its_limit(backend: Backend, limit: int) -> None:
    """Pruning must never delay other work."""
    async with backend.opened() as store:
        for n in range(3):
            await finished(store, f"a{n}", START + n)
        for rev in (1, 2, 3):
            await append(store, new_event("x", rev))

        dropped = await store.prune(finished_before=START + 9, events_before=START + 9, limit=limit)

        assert dropped == 2 * limit
        assert sum([await store.find(f"a{n}") is not None for n in range(3)]) == 3 - limit
        assert len(await entities_and_revs(store)) == 3 - limit


@on_loop
async def test_a_pruned_seq_is_never_reused(backend: Backend) -> None:
    """A reader that remembers its position must not take a new event for an old one."""
    async with backend.opened() as store:
        await append(store, new_event("a", 1), new_event("a", 2))
        last = await store.last_seq()
        await store.prune(finished_before=0, events_before=START + 9, limit=100)
        assert await entities_and_revs(store) == []

        await append(store, new_event("a", 3))

        assert await store.last_seq() > last
        assert await entities_and_revs(store, last) == [("a", 3)]
