"""Logs to write down, and what the file must say of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from deltaci.audit.projections.transitions import TransitionsExporter
from deltaci.audit.verify import Report, verify
from deltaci.core.events import Event
from deltaci.storage.port import Begin, Store, Transaction, Write
from tests.support.lab import Lab, task


def whole(events: Iterable[Event]) -> bytes:
    """The file, made at one go."""
    exporter, found = TransitionsExporter(), []
    for event in events:
        for line in exporter.export((event,)):
            line["metadata"]["seq"] = event.seq
            found.append(msgspec.json.encode(line) + b"\n")
    return b"".join(found)


def checked(path: Path) -> Report:
    """The file, which must be legal on its own."""
    report = verify(path.read_bytes().splitlines(keepends=True), "transitions")
    assert report.is_legal, report.violations[0]
    return report


def one_run() -> list[Event]:
    """A worker that registers, and a run of two tasks that it works on."""
    lab = Lab()
    lab.register("w1", labels=("linux",))
    lab.plan(task("a"), task("b", "a"))
    lab.after(1).work("a")
    lab.after(1).work("b")
    return lab.log


def many(count: int) -> list[Event]:
    """At least so many events: the same history, again and again, with other names."""
    log = one_run()
    text = msgspec.json.encode(log).decode()
    found: list[Event] = []
    for number in range(1, 2 + count // len(log)):
        named = text.replace('"r1', f'"r{number}').replace('w1"', f'w{number}"')
        found += msgspec.json.decode(named, type=list[Event])
    return [msgspec.structs.replace(event, seq=seq) for seq, event in enumerate(found, 1)]


async def commit(store: Store, events: Sequence[Event]) -> int:
    """Append these to the store's log, at one go. The last seq."""

    def work() -> Transaction[int]:
        yield Begin(())
        seq: int = yield Write([], [msgspec.structs.replace(event, seq=0) for event in events], is_last=True)
        return seq

    return await store.transact(work)
