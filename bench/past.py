"""A tenant's long past: so many runs, each on all its lists, written through the store's own port.

Ids are drawn, so what is near in a list is far apart in the tables, as it is for runs that people start. Everything is
written in the order of its table, which is how a million of them take a minute or two and not an hour.
"""

from __future__ import annotations

import gc
import random
from collections.abc import Iterator
from typing import Final

from bench.places import say
from deltaci.core import run
from deltaci.core.instants import SECOND
from deltaci.core.listing import ListKey, lists_of
from deltaci.core.run import Origin, Run
from deltaci.core.timers import is_over
from deltaci.storage.port import Begin, ListChange, ListPosition, Put, Store, Transaction, Write

TENANT: Final = "default"
BATCH: Final = 20_000
ENDED: Final = 1_700_000_000 * SECOND
BETWEEN: Final = 37 * SECOND
BRANCHES: Final = 997
PEOPLE: Final = 50
PROJECTS: Final = 20
ENDS: Final = (*[run.SUCCESS] * 17, run.FAILED, run.FAILED, run.CANCELED)
_NOTHING: Final[frozenset[ListKey]] = frozenset()


def one(id: str, age: int) -> Run:
    """The run that so many came after; one of a hundred still goes on. The newest are the same in every past."""
    drawn = (age + 1) * 2_654_435_761 >> 7  # Scattered enough, and the same every time.
    at = ENDED - age * BETWEEN
    is_reported = drawn % 101 != 0
    return Run(
        id=id,
        run_id=id,
        tenant=TENANT,
        state=run.REPORTED if is_reported else run.RUNNING,
        conclusion=ENDS[drawn % len(ENDS)] if is_reported else "",
        rev=9,
        created_at=at,
        started_at=at + 3 * SECOND,
        updated_at=at + 200 * SECOND,
        plan_hash=f"{age:064x}",
        started_by=f"person-{drawn % PEOPLE}",
        origin=Origin(
            project=f"project-{drawn % PROJECTS}",
            branch="main" if age % 2 == 0 else f"feature-{drawn % BRANCHES}",
            repository="https://git.example.com/shop/shop.git",
            commit=f"{age:040x}",
            title=f"Change number {age}",
        ),
    )


async def live(store: Store, count: int) -> ListPosition:
    """Let so many runs have been; the place of the one in the middle."""
    gc.disable()  # Nothing here is garbage before the end, and there is a lot to look through.
    try:
        return await _live(store, count)
    finally:
        gc.enable()


async def _live(store: Store, count: int) -> ListPosition:
    draw = random.Random(count)
    order = list(range(count))
    draw.shuffle(order)
    ids = sorted(f"r{draw.getrandbits(80):020x}" for _ in order)
    found: dict[ListKey, list[tuple[int, str]]] = {}
    middle = ListPosition(0, "")
    for start in range(0, count, BATCH):
        puts: list[Put] = []
        for id, age in zip(ids[start : start + BATCH], order[start : start + BATCH], strict=True):
            record = one(id, age)
            puts.append(Put(record, 0, None, None, is_over(record)))
            place = (record.created_at, id)
            for name in lists_of(record):
                found.setdefault(name, []).append(place)
            if age == count // 2:
                middle = ListPosition(*place)
        await store.transact(lambda puts=puts: _written(puts, []))  # type: ignore[misc]
        _say_how_far("records", start, count)
    total, done = sum(map(len, found.values())), 0
    for entries in _batches(found):
        await store.transact(lambda entries=entries: _written([], entries))  # type: ignore[misc]
        _say_how_far("entries of lists", done, total)
        done += len(entries)
    return middle


def _batches(found: dict[ListKey, list[tuple[int, str]]]) -> Iterator[list[ListChange]]:
    batch: list[ListChange] = []
    for name in sorted(found):
        joined = frozenset({name})
        for at, id in sorted(found.pop(name)):
            batch.append(ListChange(id, at, joined, _NOTHING))
            if len(batch) == BATCH:
                yield batch
                batch = []
    yield batch


def _written(puts: list[Put], entries: list[ListChange]) -> Transaction[None]:
    yield Begin(())
    yield Write(puts, [], True, entries)


def _say_how_far(what: str, start: int, total: int) -> None:
    if start and start * 5 // total != (start - BATCH) * 5 // total:
        say(f"{what}: {start:,} of {total:,}")
