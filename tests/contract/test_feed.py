"""The feed: from any seq on, in order, each event once, independent of the number and speed of writers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Final

import pytest

from deltaci.core import attempt
from deltaci.core.attempt import Attempt
from deltaci.core.events import Event
from deltaci.engine import feed
from deltaci.engine.feed import follow
from deltaci.storage.port import Store, Transaction, Write
from tests.contract.backends import Backend, Wrapped, new_attempt, new_event, on_loop, put, write

EACH: Final = 60
MOMENT: Final = 0.3  # Long enough for a commit that nothing holds up.


async def first(events: AsyncIterator[Event], count: int) -> list[Event]:
    """The next so many events."""
    return [await anext(events) for _ in range(count)]


async def first_events(store: Store, count: int, after: int = 0, **chosen: str) -> list[Event]:
    """Return the first events that a new reader gets."""
    reader = follow(store, after, **chosen)
    found = await first(reader, count)
    await reader.aclose()  # type: ignore[attr-defined]
    return found


class Between(Wrapped):
    """A store in which an event is written after every read, before its reader continues."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.writes = 0

    async def events(self, after: int, limit: int, *, entity_id: str = "", run_id: str = "") -> list[Event]:
        page = await self.inner.events(after, limit, entity_id=entity_id, run_id=run_id)
        if self.writes < 3:
            self.writes += 1
            await write(self.inner, put(Attempt(id=f"a{self.writes}")), events=[new_event(f"a{self.writes}")])
        return page


@on_loop
async def test_a_reader_gets_stored_events_and_then_new_ones(backend: Backend) -> None:
    """A page shows the past at once and the present as it happens."""
    async with backend.server() as server:
        await server.enqueue("a")
        reader = follow(server.store, 0)
        past = await first(reader, 1)
        coming = asyncio.ensure_future(first(reader, 2))

        await server.enqueue("b")
        await server.enqueue("c")

        assert [event.entity_id for event in past + await coming] == ["a", "b", "c"]
        await reader.aclose()  # type: ignore[attr-defined]


@on_loop
async def test_a_reader_continues_from_the_middle(backend: Backend) -> None:
    """A reader that returns names the last event that it has and gets the rest, exactly."""
    async with backend.server() as server:
        await server.engine.do_all([new_attempt(f"x/{n}") for n in range(10)])
        log = await server.log()

        assert await first_events(server.store, 10) == log
        assert await first_events(server.store, 4, log[5].seq) == log[6:]


@on_loop
async def test_long_logs_are_read_page_by_page(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of a page is not the end of the log, wherever a transaction began."""
    monkeypatch.setattr(feed, "PAGE", 3)
    async with backend.server() as server:
        for size in (1, 4, 2, 5):
            await server.engine.do_all([new_attempt(f"x{size}/{n}") for n in range(size)])

        for after in range(12):
            log = await server.log()
            assert await first_events(server.store, 12 - after, log[after - 1].seq if after else 0) == log[after:]


@on_loop
async def test_a_reader_of_one_entity_or_run_gets_nothing_else(backend: Backend) -> None:
    """A page about one job must not be woken for the whole deployment's news."""
    async with backend.server() as server:
        for id in ("a", "b"):
            await server.enqueue(id)
        reader = follow(server.store, 0, entity_id="b")
        assert [event.entity_id for event in await first(reader, 1)] == ["b"]
        coming = asyncio.ensure_future(first(reader, 2))

        for id in ("a", "b"):
            await server.do(attempt.Cancel(id=id, reason="CANCELED"))

        assert [(event.entity_id, event.to) for event in await coming] == [
            ("b", attempt.CANCEL_REQUESTED),
            ("b", attempt.CANCELED),
        ]
        await reader.aclose()  # type: ignore[attr-defined]


@on_loop
async def test_an_event_written_between_a_read_and_the_wait_is_not_missed(backend: Backend) -> None:
    """The hint must be requested before the read: otherwise an event waits for the next one to be seen."""
    async with backend.opened() as store:
        found = await first_events(Between(store), 3)

        assert [event.entity_id for event in found] == ["a1", "a2", "a3"]


@on_loop
async def test_many_writers_and_many_readers_agree_on_one_order(backend: Backend) -> None:
    """No gap, no double, in order of seq: for each reader, from wherever it began, while two servers write."""
    async with backend.server() as one, backend.server() as two, backend.opened() as third:
        await one.enqueue("before")
        begun = await third.last_seq()

        async def writing(name: str) -> None:
            server = one if name == "one" else two
            for n in range(0, EACH, 4):
                await server.engine.do_all([new_attempt(f"{name}/{n + k}") for k in range(4)])

        readers = [
            asyncio.ensure_future(first_events(store, count, after))
            for store in (one.store, two.store, third)
            for count, after in ((2 * EACH + 1, 0), (2 * EACH, begun))
        ]
        await asyncio.gather(writing("one"), writing("two"))
        results = await asyncio.gather(*readers)

        log = await third.events(0, 10 * EACH)
        assert [event.seq for event in log] == sorted({event.seq for event in log})
        for seen in results:
            assert seen == log[len(log) - len(seen) :]


@on_loop
async def test_a_reader_never_sees_the_newest_seq_before_an_older_one(durable_backend: Backend) -> None:
    """A transaction that is slow to commit cannot be overtaken: a reader that has a seq has all before it."""
    has_written, may_commit = threading.Event(), threading.Event()

    def slow() -> Transaction[None]:
        yield Write([put(Attempt(id="slow"))], [new_event("slow")])
        has_written.set()
        assert may_commit.wait(60)

    async def elsewhere() -> None:
        async with durable_backend.opened() as store:
            await store.transact(slow)

    async with durable_backend.opened() as store, durable_backend.opened() as other:
        reader = follow(other, 0)
        coming = asyncio.ensure_future(first(reader, 2))
        # The slow one has a loop of its own: it stops in the middle of its transaction, and nothing else does.
        writer = asyncio.ensure_future(asyncio.to_thread(lambda: asyncio.run(elsewhere())))
        assert await asyncio.to_thread(has_written.wait, 60)

        quick = asyncio.ensure_future(write(store, put(Attempt(id="quick")), events=[new_event("quick")]))
        await asyncio.wait({quick, coming}, timeout=MOMENT)
        seen_early = await other.events(0, 10)
        may_commit.set()
        await asyncio.gather(writer, quick)

        assert seen_early == []
        assert [event.entity_id for event in await coming] == ["slow", "quick"]
        assert [event.entity_id for event in await other.events(0, 10)] == ["slow", "quick"]
        await reader.aclose()  # type: ignore[attr-defined]


@on_loop
async def test_a_reader_that_leaves_is_forgotten(backend: Backend) -> None:
    """A closed page must cost nothing."""
    async with backend.server() as server:
        await server.enqueue("a")
        readers = [follow(server.store, 0) for _ in range(5)]
        for reader in readers:
            await first(reader, 1)
            await reader.aclose()  # type: ignore[attr-defined]

        await server.enqueue("b")

        assert not server.store.commit_hints._subscriptions
