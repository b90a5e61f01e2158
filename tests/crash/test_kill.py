"""SIGKILL at any moment loses nothing that was acknowledged, and leaves a log that is legal."""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random

import pytest

from deltaci.audit.projections.canonical import canonical_lines
from deltaci.audit.verify.canonical import CanonicalVerifier
from deltaci.core.attempt import Attempt
from deltaci.storage import open_store
from deltaci.storage.port import Store
from tests.crash import busy
from tests.support.budget import budget

KILLS = budget(40, 100)  # For each of the two stores.
MAX_BUSY_SECONDS = {"sqlite": 0.06, "postgresql": 0.2}  # A connection takes a while before it is of use.
ORDER = ("queued", "claimed", "running", "succeeded")

Promises = dict[str, tuple[int, str]]


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A fresh database, on disk and with every commit flushed."""
    if request.param == "sqlite":
        return f"sqlite:{tmp_path / 'jobs.db'}"
    return str(request.getfixturevalue("postgres_dsn"))


def kill_one(url: str, draw: Random, promises: Promises) -> int:
    """Start the busy process, kill it at a random moment, and keep what it was promised until then."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.crash.busy", "deltaci.storage.sqlite", "deltaci.storage.postgres"])
    ours, theirs = context.Pipe(duplex=False)
    child = context.Process(target=busy.main, args=(url, theirs), daemon=True)
    child.start()
    theirs.close()
    try:
        assert ours.recv() == "ready"
        read_until(ours, time.monotonic() + draw.uniform(0, MAX_BUSY_SECONDS[url.partition(":")[0]]), promises)
    finally:
        child.kill()
        child.join()
    return read_until(ours, None, promises)


def read_until(connection: Connection, end: float | None, promises: Promises) -> int:
    """Take down promises until the time is over, or until the dead child's last one."""
    count = 0
    while end is None or time.monotonic() < end:
        try:
            if not connection.poll(None if end is None else max(0.0, end - time.monotonic())):
                return count
            told = connection.recv()
        except EOFError:
            return count
        for id, rev, status in told:
            promises[id] = (rev, status)
            count += 1
    return count


async def check(store: Store, verifier: CanonicalVerifier, seen: int, promises: Promises) -> int:
    """Every promise is kept, and the log goes on legally. Returns how far it was read."""
    await store.open()
    try:
        while page := await store.events(seen, 5000):
            for line in canonical_lines(page):
                verifier.feed(verifier.line_number + 1, line)
            seen = page[-1].seq
        for id, (rev, status) in promises.items():
            record = await store.find(id)
            assert isinstance(record, Attempt), f"{id} was acknowledged and is gone"
            assert record.rev >= rev, f"{id} was acknowledged at rev {rev} ({status}) and is at {record.rev}"
    finally:
        await store.close()
    return seen


@pytest.mark.proves("PRO-F4")
def test_a_killed_process_loses_nothing_that_it_acknowledged(
    url: str, record_property: Callable[[str, object], None]
) -> None:
    """Nobody is answered before the commit, so a crash looks like a lost answer and nothing worse."""
    draw, verifier, seen, kept, kills = Random(20261118), CanonicalVerifier(), 0, 0, 0

    while kills < KILLS or kept <= KILLS:  # On a slow machine few kills come after the first promise.
        assert kills < 10 * KILLS, f"only {kept} promises in {kills} lives"
        promises: Promises = {}
        kill_one(url, draw, promises)
        kept += len(promises)
        seen = asyncio.run(check(open_store(url), verifier, seen, promises))
        assert not verifier.report.violations, f"kill {kills}: {verifier.report.violations[0]}"
        kills += 1

    store = url.partition(":")[0]
    record_property("figure", f"kills: {kills} of a busy process on {store}, {kept} promises kept, {seen} events legal")
