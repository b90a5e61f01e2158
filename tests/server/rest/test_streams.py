"""EventStreams: each reader gets its own events once and in order, whatever is dropped and whoever is slow."""

from __future__ import annotations

import asyncio
import random
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest

from deltaci.app import HttpListener, Server
from deltaci.core.events import Event, with_seq
from deltaci.server.rest.streams import event_streams
from deltaci.server.rest.streams.event_streams import EventStreams, Frame, Subscription
from deltaci.storage.sqlite import SqliteStore
from tests.contract.backends import Backend, new_event, on_loop, write
from tests.server.rest.following import open_stream
from tests.server.rest.site import ApiSite

TENANTS = ("a", "b")
SEEDS = range(60)


def committed(seq: int, tenant: str, run_id: str, **fields: Any) -> Event:
    """Return an event with a seq."""
    made = with_seq(new_event(f"e{seq}", run_id=run_id), seq)
    return msgspec.structs.replace(made, tenant=tenant, **fields)


class GrowingLog:
    """A store with only the two methods that EventStreams calls. It counts the reads."""

    def __init__(self) -> None:
        self.events_: list[Event] = []
        self.reads = 0

    def grow(self, count: int, random: random.Random) -> list[Event]:
        """Append events of random tenants and runs."""
        new = [
            committed(len(self.events_) + n + 1, random.choice(TENANTS), random.choice(("", "r1", "r2")))
            for n in range(count)
        ]
        self.events_ += new
        return new

    async def events(self, after: int, limit: int, *, run_id: str = "") -> list[Event]:
        """Return a page of events like a store, giving other tasks a chance to run."""
        self.reads += 1
        found = [each for each in self.events_[after:] if run_id in ("", each.run_id)][:limit]
        await asyncio.wait([asyncio.get_running_loop().create_task(_one_loop_turn())])
        return found

    async def last_seq(self) -> int:
        """Return the seq of the last event."""
        await asyncio.wait([asyncio.get_running_loop().create_task(_one_loop_turn())])
        return len(self.events_)


async def _one_loop_turn() -> None:
    """Complete in one turn of the event loop."""


class Reader:
    """A subscriber, and the seqs of the events that it has received."""

    def __init__(self, tenant: str, run_id: str, after: int) -> None:
        self.tenant = tenant
        self.run_id = run_id
        self.after = after
        self.got: list[int] = []

    def expected(self, log: GrowingLog) -> list[int]:
        """Return the seqs that it must have received in the end."""
        return [
            each.seq
            for each in log.events_
            if each.seq > self.after and each.tenant == self.tenant and self.run_id in ("", each.run_id)
        ]

    async def read(self, subscription: Subscription) -> bool:
        """Read once. Return True if there were events."""
        frames = await subscription.next_frames()
        self.got += [frame.seq for frame in frames]
        return bool(frames)


@pytest.mark.parametrize("seed", SEEDS)
@on_loop
async def test_each_reader_gets_its_events_in_any_interleaving(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random order of readers, new events, delayed and missing pages, and dropped buffers."""
    chance = random.Random(seed)
    monkeypatch.setattr(event_streams, "PAGE_SIZE", chance.choice((1, 3, 500)))
    monkeypatch.setattr(event_streams, "MAX_BUFFERED_BYTES", chance.choice((0, 2000, 10_000, 10**7)))
    log = GrowingLog()
    log.grow(chance.randrange(30), chance)
    hub = EventStreams(log)  # type: ignore[arg-type]
    heard = len(log.events_)
    readers: list[tuple[Reader, Subscription]] = []
    with ExitStack() as stack:
        for _ in range(120):
            step = chance.random()
            if step < 0.15:
                tenant, run_id, after = chance.choice(TENANTS), chance.choice(("", "r1", "r2")), chance.randrange(40)
                reader = Reader(tenant, run_id, after)
                of: AbstractContextManager[Subscription] = hub.subscribe(tenant, after, run_id)
                readers.append((reader, stack.enter_context(of)))
            elif step < 0.4:
                log.grow(chance.randrange(1, 8), chance)
            elif step < 0.6 and heard < len(log.events_):
                heard += 0 if step > 0.41 else 1  # Seldom an event is lost on the way.
                until = chance.randrange(heard, len(log.events_)) + 1 if heard < len(log.events_) else heard
                if until > heard:
                    hub.on_events(log.events_[heard:until])
                    heard = until
            elif readers:
                await asyncio.gather(*(reader.read(each) for reader, each in chance.sample(readers, 1)))
        if heard < len(log.events_):
            hub.on_events(log.events_[heard:])
        log.grow(1, chance)
        hub.on_events(log.events_[-1:])
        for reader, each in readers:
            while await reader.read(each):
                pass
            assert reader.got == reader.expected(log)
    assert not hub.channels
    assert hub.subscription_count == 0


@on_loop
async def test_an_up_to_date_reader_does_not_query_the_store() -> None:
    """A thousand idle readers must not read the log a thousand times."""
    log, hub_of = GrowingLog(), EventStreams
    hub = hub_of(log)  # type: ignore[arg-type]
    chance = random.Random(0)
    hub.on_events(log.grow(5, chance))
    with hub.subscribe("a", 5, "r1") as one, hub.subscribe("a", 5) as other:
        hub.on_events(log.grow(50, chance))
        own, all_of_them = await one.next_frames(), await other.next_frames()

    assert log.reads == 0
    shared = {frame.seq: frame for frame in all_of_them}
    assert own
    assert all(shared[frame.seq] is frame for frame in own), "an event is written out once"


@on_loop
async def test_the_buffer_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow reader holds nothing in memory, because the store has all events."""
    monkeypatch.setattr(event_streams, "MAX_BUFFERED_BYTES", 5000)
    log = GrowingLog()
    hub = EventStreams(log)  # type: ignore[arg-type]
    chance = random.Random(0)
    with hub.subscribe("a", 0) as slow:
        for _ in range(100):
            hub.on_events(log.grow(5, chance))
        kept = sum(len(frame.encoded) for channel in hub.channels.values() for frame in channel.after(0))
        frames: list[Frame] = []
        while found := await slow.next_frames():
            frames += found

    assert kept <= 5000
    assert [frame.seq for frame in frames] == [each.seq for each in log.events_ if each.tenant == "a"]


@on_loop
async def test_a_slow_reader_gets_everything_and_does_not_delay_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reads nothing while more is sent than any buffer holds; another reader gets all of it meanwhile."""
    monkeypatch.setattr(event_streams, "MAX_BUFFERED_BYTES", 100_000)
    backend = Backend("sqlite", lambda _: SqliteStore(str(tmp_path / "slow.db")))
    async with Server(backend.store(), tmp_path) as service:
        listener = HttpListener(service, "127.0.0.1", 0)
        serving = asyncio.create_task(listener.serve())
        try:
            token = ApiSite(backend, service, listener.url, tmp_path, None).operator().token  # type: ignore[arg-type]
            facts = [
                msgspec.structs.replace(new_event(f"e{n}"), tenant="default", metadata={"x": "y" * 8000})
                for n in range(50)
            ]
            async with (
                open_stream(listener.url, "/events", token, buffer=4096) as slow,
                open_stream(listener.url, "/events", token) as quick,
            ):
                count = 0
                for _ in range(40):
                    await write(service.store, events=facts)
                    count += len(facts)
                seen = [each.id async for each in _first(quick.events(), count)]
                late = [each.id async for each in _first(slow.events(), count)]
        finally:
            listener.stop()
            await serving

    assert seen == late == list(range(1, count + 1))


async def _first(events: Any, count: int) -> Any:
    found = 0
    async for event in events:
        yield event
        found += 1
        if found == count:
            return
