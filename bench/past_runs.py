"""Writes many ended runs of a tenant, each on all its lists, through the store's interface.

Ids are random, so that neighbours in a list are far apart in the tables, as for runs that users start. Everything is
written in the order of its table: a million runs take a minute or two instead of an hour.
"""

from __future__ import annotations

import gc
import random
from collections.abc import Iterator
from typing import Final

from bench.databases import log_progress
from deltaci.core import run
from deltaci.core.instants import SECOND
from deltaci.core.listing import ListKey, lists_of
from deltaci.core.run import Origin, Run
from deltaci.core.timers import is_over
from deltaci.storage.port import Begin, ListChange, ListPosition, Put, Store, Transaction, Write

TENANT: Final = "default"
BATCH: Final = 20_000
ENDED: Final = 1_700_000_000 * SECOND
INTERVAL: Final = 37 * SECOND
BRANCHES: Final = 997
PEOPLE: Final = 50
PROJECTS: Final = 20
ENDS: Final = (*[run.SUCCESS] * 17, run.FAILED, run.FAILED, run.CANCELED)
_NOTHING: Final[frozenset[ListKey]] = frozenset()


def past_run(id: str, age: int) -> Run:
    """Return the run with this age, counted from the newest.

    One of a hundred is still running; the newest are the same in every history.
    """
    pseudo_random = (age + 1) * 2_654_435_761 >> 7  # Pseudo-random, and the same every time.
    at = ENDED - age * INTERVAL
    is_reported = pseudo_random % 101 != 0
    return Run(
        id=id,
        run_id=id,
        tenant=TENANT,
        state=run.REPORTED if is_reported else run.RUNNING,
        conclusion=ENDS[pseudo_random % len(ENDS)] if is_reported else "",
        rev=9,
        created_at=at,
        started_at=at + 3 * SECOND,
        updated_at=at + 200 * SECOND,
        plan_hash=f"{age:064x}",
        started_by=f"person-{pseudo_random % PEOPLE}",
        origin=Origin(
            project=f"project-{pseudo_random % PROJECTS}",
            branch="main" if age % 2 == 0 else f"feature-{pseudo_random % BRANCHES}",
            repository="https://git.example.com/shop/shop.git",
            commit=f"{age:040x}",
            title=f"Change number {age}",
        ),
    )


async def write_past_runs(store: Store, count: int) -> ListPosition:
    """Write so many runs. Returns the list position of the middle one."""
    gc.disable()  # There is no garbage before the end, but many objects to scan.
    try:
        return await _write_past_runs(store, count)
    finally:
        gc.enable()


async def _write_past_runs(store: Store, count: int) -> ListPosition:
    draw = random.Random(count)
    order = list(range(count))
    draw.shuffle(order)
    ids = sorted(f"r{draw.getrandbits(80):020x}" for _ in order)
    entries_by_list: dict[ListKey, list[tuple[int, str]]] = {}
    middle = ListPosition(0, "")
    for start in range(0, count, BATCH):
        puts: list[Put] = []
        for id, age in zip(ids[start : start + BATCH], order[start : start + BATCH], strict=True):
            record = past_run(id, age)
            puts.append(Put(record, 0, None, None, is_over(record)))
            position = (record.created_at, id)
            for name in lists_of(record):
                entries_by_list.setdefault(name, []).append(position)
            if age == count // 2:
                middle = ListPosition(*position)
        await store.transact(lambda puts=puts: _write(puts, []))  # type: ignore[misc]
        _log_progress("records", start, count)
    total, done = sum(map(len, entries_by_list.values())), 0
    for entries in _batches(entries_by_list):
        await store.transact(lambda entries=entries: _write([], entries))  # type: ignore[misc]
        _log_progress("entries of lists", done, total)
        done += len(entries)
    return middle


def _batches(entries_by_list: dict[ListKey, list[tuple[int, str]]]) -> Iterator[list[ListChange]]:
    batch: list[ListChange] = []
    for name in sorted(entries_by_list):
        joined = frozenset({name})
        for at, id in sorted(entries_by_list.pop(name)):
            batch.append(ListChange(id, at, joined, _NOTHING))
            if len(batch) == BATCH:
                yield batch
                batch = []
    yield batch


def _write(puts: list[Put], entries: list[ListChange]) -> Transaction[None]:
    yield Begin(())
    yield Write(puts, [], True, entries)


def _log_progress(what: str, start: int, total: int) -> None:
    if start and start * 5 // total != (start - BATCH) * 5 // total:
        log_progress(f"{what}: {start:,} of {total:,}")
