"""A store that forgets everything when it is closed: for tests, for the simulator and for trying things out."""

from __future__ import annotations

import time
from bisect import insort
from collections.abc import Callable
from typing import Any

from deltaci.core.attempt import Attempt
from deltaci.core.events import Event, numbered
from deltaci.core.job import Job
from deltaci.core.machine import Record
from deltaci.store.port import (
    Conflict,
    FindDue,
    FindReady,
    Held,
    Load,
    LoadJobs,
    Open,
    Put,
    Request,
    T,
    Transaction,
    Write,
    fitting,
)
from deltaci.store.wake import Wakers

ReadyKey = tuple[int, int, str]


def wall_clock() -> int:
    """Microseconds since the epoch."""
    return time.time_ns() // 1000


class MemoryStore:
    """Everything in dictionaries. Transactions run one after another, at once, in the caller's loop."""

    lanes = 1

    def __init__(self, clock: Callable[[], int] = wall_clock) -> None:
        self._clock = clock
        self._held: dict[str, Held] = {}
        self._finished: dict[str, tuple[int, Held]] = {}
        self._events: list[Event] = []
        self._pruned = 0
        self._jobs: dict[str, list[str]] = {}
        self._ready: dict[str, list[ReadyKey]] = {}
        self._ready_key: dict[str, tuple[str, ReadyKey]] = {}
        self._due: list[tuple[int, str]] = []
        self.wakers = Wakers()

    async def open(self) -> None:
        """Nothing to do."""

    async def close(self) -> None:
        """Nothing to do."""

    async def transact(self, work: Callable[[], Transaction[T]]) -> T:
        """Run it at once. A write is checked as a whole before any of it is made."""
        result, is_written = drive(work(), self._answer)
        if is_written:
            self.wakers.hint()
        return result

    def _answer(self, request: Request) -> Any:
        if isinstance(request, Open):
            return self._clock(), self._load(request.ids)
        if isinstance(request, Load):
            return self._load(request.ids)
        if isinstance(request, LoadJobs):
            return self._load(tuple(self._jobs.get(request.run_id, ())))
        if isinstance(request, FindReady):
            return self._find_ready(request)
        if isinstance(request, FindDue):
            return self._find_due(request)
        return self._write(request)

    def _load(self, ids: tuple[str, ...]) -> list[Held]:
        found = [self._held.get(id) or self._finished.get(id, (0, None))[1] for id in ids]
        return [held for held in found if held is not None]

    def _find_ready(self, request: FindReady) -> list[Held]:
        best: list[ReadyKey] = []
        for key in fitting(self._ready, request.labels):
            taken = 0
            for entry in self._ready.get(key, ()):
                if entry[1] <= request.now:
                    best.append(entry)
                    taken += 1
                    if taken == request.limit:
                        break
        best.sort()
        return [self._held[entry[2]] for entry in best[: request.limit]]

    def _find_due(self, request: FindDue) -> list[Held]:
        found, keep = list[Held](), 0
        for due_at, id in self._due:
            if due_at > request.now or len(found) == request.limit:
                break
            keep += 1
            held = self._held.get(id)
            if held is not None and held.due_at == due_at:
                found.append(held)
        # What was taken comes back with the write that follows; what was outdated is gone.
        self._due = sorted([*((h.due_at or 0, h.record.id) for h in found), *self._due[keep:]])
        return found

    def _write(self, write: Write) -> int:
        stale = tuple(put.record.id for put in write.puts if self._version(put.record.id) != put.version)
        if stale:
            raise Conflict(stale)
        for put in write.puts:
            self._put(put)
        for event in write.events:
            self._events.append(numbered(event, self._pruned + len(self._events) + 1))
        return self._pruned + len(self._events)

    def _version(self, id: str) -> int:
        held = self._held.get(id)
        return held.version if held else 0

    def _put(self, put: Put) -> None:
        record, id = put.record, put.record.id
        held = Held(record, put.version + 1, put.due_at)
        known = self._ready_key.pop(id, None)
        if known is not None:
            self._ready[known[0]].remove(known[1])
        if put.version == 0 and isinstance(record, Job):
            self._jobs.setdefault(record.run_id, []).append(id)
        if put.is_over:
            self._held.pop(id, None)
            self._finished[id] = (record.updated_at, held)
            return
        self._held[id] = held
        if put.ready_at is not None and isinstance(record, Attempt):
            entry = (-record.priority, put.ready_at, id)
            insort(self._ready.setdefault(record.queue_key, []), entry)
            self._ready_key[id] = (record.queue_key, entry)
        if put.due_at is not None:
            insort(self._due, (put.due_at, id))

    async def find(self, id: str) -> Record | None:
        """The record as it is now."""
        found = self._load((id,))
        return found[0].record if found else None

    async def events(self, after: int, limit: int, *, entity_id: str = "", run_id: str = "") -> list[Event]:
        """Committed events, in order."""
        chosen = self._events[max(0, after - self._pruned) :] if not (entity_id or run_id) else self._events
        matching = (
            event
            for event in chosen
            if event.seq > after and entity_id in ("", event.entity_id) and run_id in ("", event.run_id)
        )
        return [event for _, event in zip(range(limit), matching, strict=False)]

    async def last_seq(self) -> int:
        """The newest seq."""
        return self._pruned + len(self._events)

    async def prune(self, *, finished_before: int, events_before: int, limit: int) -> int:
        """Drop finished records and old events."""
        old = [id for id, (ended_at, _) in self._finished.items() if ended_at < finished_before][:limit]
        for id in old:
            del self._finished[id]
        count = 0
        while count < min(limit, len(self._events)) and self._events[count].at < events_before:
            count += 1
        del self._events[:count]
        self._pruned += count
        return len(old) + count


def drive(transaction: Transaction[T], answer: Callable[[Request], Any]) -> tuple[T, bool]:
    """Run a transaction to its end with a plain function that answers; whether it wrote anything."""
    is_written = False
    try:
        request = next(transaction)
        while True:
            is_written = is_written or isinstance(request, Write)
            request = transaction.send(answer(request))
    except StopIteration as end:
        result: T = end.value
        return result, is_written
    finally:
        transaction.close()
