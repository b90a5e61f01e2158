"""`transitions.jsonl` as it is written live: complete, legal, and in nobody's way."""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import resource
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from random import Random

import pytest

from deltaci.app import Server
from deltaci.controllers import transitions
from deltaci.controllers.journal import FILE, SNAPSHOT
from deltaci.controllers.transitions import TransitionWriter
from deltaci.core.events import Event
from deltaci.engine import feed
from deltaci.server.follower import Follower
from deltaci.storage import open_store
from deltaci.storage.memory import MemoryStore
from deltaci.storage.port import Store
from tests.contract.backends import within
from tests.controllers import busy
from tests.controllers.logs import checked, commit, many, one_run, whole
from tests.support.budget import budget

VALIDATOR = Path(__file__).parents[2] / "scripts" / "validate" / "validate_state_transitions.py"
KILLS = budget(12, 30)
MANY = budget(20_000, 100_000)
MAX_BUSY_SECONDS = 0.25
EVERYTHING = 1_000_000


@asynccontextmanager
async def writing(store: Store, folder: Path) -> AsyncIterator[TransitionWriter]:
    """A server's part that writes, until the block ends."""
    follower, live = Follower(store), TransitionWriter(store, folder)
    follower.subscribe(live.on_events)
    await follower.start()
    live.start()
    try:
        yield live
    finally:
        await follower.stop()
        await live.stop()


async def log_of(store: Store) -> list[Event]:
    """All that was committed."""
    return await feed.read(store, 0, EVERYTHING)


@within(30)
async def test_what_is_committed_is_written_at_once_and_passes_the_validator(tmp_path: Path) -> None:
    """Also what was committed before it began; and the script that document 003 names accepts it."""
    store = MemoryStore()
    await commit(store, one_run()[:10])

    async with writing(store, tmp_path) as live:
        await live.written(10)
        assert (tmp_path / FILE).read_bytes() == whole((await log_of(store))[:10])
        last = await commit(store, one_run()[10:])
        await live.written(last)
        assert (tmp_path / FILE).read_bytes() == whole(await log_of(store))

    done = await asyncio.to_thread(
        lambda: subprocess.run(
            [sys.executable, str(VALIDATOR), str(tmp_path / FILE)], capture_output=True, timeout=25, check=False
        )
    )
    assert done.returncode == 0, done.stdout + done.stderr


@within(30)
async def test_a_restart_goes_on_where_the_last_one_ended(tmp_path: Path) -> None:
    """Also with what others committed meanwhile."""
    store, events = MemoryStore(), many(400)

    for at in range(0, len(events), 90):
        await commit(store, events[at : at + 45])
        async with writing(store, tmp_path):
            await commit(store, events[at + 45 : at + 90])

    assert (tmp_path / FILE).read_bytes() == whole(await log_of(store))
    assert sorted(path.name for path in tmp_path.iterdir() if path.suffix == ".jsonl") == [FILE]
    checked(tmp_path / FILE)


@within(30)
async def test_one_that_falls_behind_reads_what_it_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is kept for a slow disk but the store's own log."""
    monkeypatch.setattr(transitions, "MAX_HEARD", 7)
    monkeypatch.setattr(transitions, "PAGE", 10)
    store, events = MemoryStore(), many(600)

    async with writing(store, tmp_path) as live:
        for at in range(0, len(events), 20):
            await commit(store, events[at : at + 20])
        await live.written(len(events))

    assert (tmp_path / FILE).read_bytes() == whole(await log_of(store))


@contextmanager
def full_disk(at: int) -> Iterator[None]:
    """No file gets larger than this: what is beyond is refused in the middle of a write."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (at, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextmanager
def said(words: str) -> Iterator[asyncio.Event]:
    """Set once these words are in the server's log."""
    is_said = asyncio.Event()

    class Ear(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if words in record.getMessage():
                is_said.set()

    ear = Ear()
    transitions.LOGGER.addHandler(ear)
    try:
        yield is_said
    finally:
        transitions.LOGGER.removeHandler(ear)


@within(30)
async def test_a_full_disk_costs_nothing_but_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was half written is cut off, and everything is there once there is room."""
    monkeypatch.setattr(transitions, "RETRY_SECONDS", 0.01)
    store, events = MemoryStore(), many(200)

    async with writing(store, tmp_path) as live:
        await live.written(await commit(store, events[:50]))
        with full_disk((tmp_path / FILE).stat().st_size + 1000), said("cannot write") as is_said:
            await commit(store, events[50:])
            await is_said.wait()
        await live.written(len(events))

    assert (tmp_path / FILE).read_bytes() == whole(await log_of(store))
    checked(tmp_path / FILE)


@within(30)
async def test_where_events_were_dropped_a_new_file_begins(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The old one is kept under its last seq, both are legal, and the log says so."""
    store, events = MemoryStore(), many(300)
    async with writing(store, tmp_path):
        await commit(store, events[:70])
    old = (tmp_path / FILE).read_bytes()
    await commit(store, events[70:150])
    await store.prune(finished_before=0, events_before=2**62, limit=100)

    async with writing(store, tmp_path) as live:
        await live.written(await commit(store, events[150:]))

    assert (tmp_path / "transitions-until-70.jsonl").read_bytes() == old
    assert (tmp_path / FILE).read_bytes() == whole(await log_of(store))
    assert checked(tmp_path / FILE).event_count > 10
    assert "begins behind seq 100" in caplog.text


@within(30)
async def test_a_new_file_goes_on_after_a_restart_too(tmp_path: Path) -> None:
    """Where it began is not forgotten, though nothing of it was written yet."""
    store, events = MemoryStore(), many(300)
    await commit(store, events[:150])
    await store.prune(finished_before=0, events_before=2**62, limit=100)

    for at in range(150, len(events), 50):
        async with writing(store, tmp_path):
            await commit(store, events[at : at + 50])

    assert (tmp_path / FILE).read_bytes() == whole(await log_of(store))
    assert sorted(path.name for path in tmp_path.iterdir() if path.suffix == ".jsonl") == [FILE]


@within(30)
@pytest.mark.parametrize("has_snapshot", [True, False])
async def test_a_file_of_another_log_is_put_aside(tmp_path: Path, *, has_snapshot: bool) -> None:
    """Somebody has a new database and the old data folder."""
    async with writing(before := MemoryStore(), tmp_path):
        await commit(before, one_run())
    if not has_snapshot:
        (tmp_path / SNAPSHOT).unlink()
    old = (tmp_path / FILE).read_bytes()

    async with writing(store := MemoryStore(), tmp_path):
        await commit(store, many(200)[30:])

    assert (tmp_path / f"transitions-until-{len(one_run())}.jsonl").read_bytes() == old
    assert (tmp_path / FILE).read_bytes() == whole(await log_of(store))


@within(30)
async def test_a_second_server_over_the_same_folder_takes_over_when_the_first_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One writes; the other waits for its turn, and misses nothing."""
    monkeypatch.setattr(transitions, "RETRY_SECONDS", 0.01)
    store, events = MemoryStore(), many(100)

    async with writing(store, tmp_path) as first:
        await first.written(await commit(store, events[:50]))
        second = TransitionWriter(store, tmp_path)
        second.start()
    second.on_events(events[50:])
    await commit(store, events[50:])
    await second.written(len(events))
    await second.stop()

    assert (tmp_path / FILE).read_bytes() == whole(await log_of(store))


@within(60)
async def test_two_servers_on_one_database_write_the_same_each_for_itself(tmp_path: Path, postgres_dsn: str) -> None:
    """Every file tells everything, whoever committed it."""
    folders = [tmp_path / name for name in ("one", "two")]
    for folder in folders:
        folder.mkdir()

    await asyncio.gather(*(busy.write(open_store(postgres_dsn), folder, 15) for folder in folders))
    for folder in folders:  # Whoever ended first did not see the other's end.
        store = open_store(postgres_dsn)
        await store.open()
        async with writing(store, folder):
            pass
        expected = whole(await log_of(store))
        await store.close()
        assert (folder / FILE).read_bytes() == expected
        assert (
            checked(folder / FILE).event_count == 15 * 2 * 5
        )  # Of each run: ready, cancelled; queued, cancelled; cancelled.


@pytest.mark.proves("WST-E4")
def test_killed_at_any_moment_it_has_every_transition_once(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """SIGKILL, again and again, while it commits, writes and takes snapshots."""
    url, draw = f"sqlite:{tmp_path / 'jobs.db'}", Random(20261118)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.controllers.busy", "deltaci.storage.sqlite"])

    for _ in range(KILLS):
        ours, theirs = context.Pipe(duplex=False)
        child = context.Process(target=busy.main, args=(url, tmp_path, theirs), daemon=True)
        child.start()
        theirs.close()
        assert ours.recv() == "ready"
        ours.poll(draw.uniform(0, MAX_BUSY_SECONDS))
        child.kill()
        child.join()
        ours.close()

    lines = asyncio.run(_ended(url, tmp_path))
    record_property("figure", f"transitions.jsonl: {KILLS} kills, {lines} lines, each once")
    assert lines > KILLS


async def _ended(url: str, folder: Path) -> int:
    """An orderly start and end; how many lines there are."""
    store = open_store(url)
    await store.open()
    async with writing(store, folder):
        pass
    expected = whole(await log_of(store))
    await store.close()
    assert (folder / FILE).read_bytes() == expected
    return checked(folder / FILE).event_count


@within(120)
async def test_many_events_are_written_in_a_few_seconds(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """Somebody who was away for long catches up faster than anybody can commit."""
    store, events = MemoryStore(), many(MANY)
    for at in range(0, len(events), 1000):
        await commit(store, events[at : at + 1000])
    begun = time.monotonic()

    async with writing(store, tmp_path) as live:
        await live.written(len(events))
        seconds = time.monotonic() - begun

    record_property("figure", f"transitions.jsonl: {len(events) / seconds:,.0f} events a second, from the beginning")
    assert checked(tmp_path / FILE).event_count > 0.3 * MANY
    assert seconds < 60


@within(30)
@pytest.mark.parametrize("has_transitions", [True, False])
async def test_every_server_writes_it_unless_it_is_told_not_to(tmp_path: Path, *, has_transitions: bool) -> None:
    """In its data folder, complete when the server has ended."""
    store = MemoryStore()

    async with Server(store, tmp_path, has_transitions=has_transitions) as service:
        await busy.commit_runs(service.engine, 3)

    assert (tmp_path / FILE).exists() == has_transitions
    if has_transitions:
        assert (tmp_path / FILE).read_bytes() == whole(await log_of(store))


@within(30)
async def test_a_file_that_was_moved_away_is_made_anew(tmp_path: Path) -> None:
    """From the events that are there: the snapshot alone is nothing to go on from."""
    store = MemoryStore()
    async with writing(store, tmp_path):
        await commit(store, one_run())
    (tmp_path / FILE).rename(tmp_path / "elsewhere")

    async with writing(store, tmp_path):
        await commit(store, many(60)[len(one_run()) :])

    assert (tmp_path / FILE).read_bytes() == whole(await log_of(store))
