"""Mistakes around the core: in the write path, the store, the timers, the line and the protocol."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from deltaci.core import attempt, worker
from deltaci.core.errors import Refused
from deltaci.core.events import Event
from deltaci.engine import waiters
from deltaci.engine.clock import MonotonicClock
from deltaci.engine.shard import Shard
from deltaci.engine.timers import Timers
from deltaci.engine.waiters import ClaimWaiters
from deltaci.protocol.messages import Complete, CompleteAck
from deltaci.server.runner_api import message_handlers
from deltaci.simulation.database import LockedReads, ServerConnection
from deltaci.storage import memory
from deltaci.storage.memory import MemoryStore
from deltaci.storage.port import Unavailable, Write
from tests.simulation.planting import fault, instead, rule, set_field


def _writing(change: Any) -> Any:
    """Let every commit write something else."""
    real = MemoryStore._write

    def write(self: MemoryStore, asked: Write) -> int:
        return real(self, change(asked))

    return instead((MemoryStore, "_write", write))


# -- the log


@fault
def an_event_is_forgotten() -> Iterator[None]:
    """A job that begins is stored, but nobody tells."""
    with _writing(lambda asked: set_field(asked, events=[e for e in asked.events if e.trigger != "worker_started"])):
        yield


@fault
def events_are_swapped() -> Iterator[None]:
    """The events of a commit are written the wrong way round."""
    with _writing(lambda asked: set_field(asked, events=list(reversed(asked.events)))):
        yield


@fault
def rev_is_not_counted() -> Iterator[None]:
    """A renewed lease does not count as a change."""

    def change(asked: Write) -> Write:
        puts = [
            set_field(put, record=set_field(put.record, rev=put.record.rev - 1))
            if any(e.entity_id == put.record.id and e.trigger == "heartbeat" for e in asked.events)
            else put
            for put in asked.puts
        ]
        return set_field(asked, puts=puts)

    with _writing(change):
        yield


@fault
def an_event_without_its_record() -> Iterator[None]:
    """The last record of a large commit is not written."""
    with _writing(lambda asked: set_field(asked, puts=asked.puts[:-1] if len(asked.puts) > 3 else asked.puts)):
        yield


@fault
def an_event_is_written_twice() -> Iterator[None]:
    """What is over is told twice."""

    def change(asked: Write) -> Write:
        found: list[Event] = []
        for event in asked.events:
            found += [event] * (2 if event.trigger == "succeeded" else 1)
        return set_field(asked, events=found)

    with _writing(change):
        yield


@fault
def the_log_is_tidied_up() -> Iterator[None]:
    """Heartbeats are dropped from the log when there are many."""
    real = MemoryStore._write

    def write(self: MemoryStore, asked: Write) -> int:
        beats = [event for event in self._events if event.trigger == "heartbeat"]
        if len(beats) > 20:
            self._events.remove(beats[0])
            self._pruned += 1
        return real(self, asked)

    with instead((MemoryStore, "_write", write)):
        yield


# -- commits


@fault
def answer_before_commit() -> Iterator[None]:
    """Callers are answered as soon as it is decided; it is written half a second later."""
    real = ServerConnection._commit

    async def commit(self: ServerConnection, write: Write, counted: LockedReads) -> int:
        async def later() -> None:
            with suppress(Exception):
                await real(self, write, counted)

        loop = asyncio.get_running_loop()
        loop.call_later(0.5, lambda: loop.create_task(later()))
        return await self._database.last_seq()

    with instead((ServerConnection, "_commit", commit)):
        yield


@fault
def a_broken_commit_counts() -> Iterator[None]:
    """A commit that broke off is taken for done."""
    real = ServerConnection._commit

    async def commit(self: ServerConnection, write: Write, counted: LockedReads) -> int:
        try:
            return await real(self, write, counted)
        except Unavailable:
            return await self._database.last_seq()

    with instead((ServerConnection, "_commit", commit)):
        yield


@fault
def no_version_guard() -> Iterator[None]:
    """Whoever writes last wins, whatever it was decided by."""
    with instead((MemoryStore, "_version", lambda self, id: _Any())):
        yield


class _Any:
    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False

    def __hash__(self) -> int:
        return 0


@fault
def memory_is_believed_after_a_conflict() -> Iterator[None]:
    """What is remembered is not loaded again when another server was faster."""
    with instead((Shard, "_clear_cache", lambda self: None), (Shard, "_evict_stale", lambda self, id, changed: False)):
        yield


@fault
def a_lost_answer_is_a_failure() -> Iterator[None]:
    """Whoever loses the answer to a commit gives the same order under a new name."""
    real = Shard.apply
    count = 0

    async def apply(self: Shard, items: Any) -> Any:
        nonlocal count
        try:
            return await real(self, items)
        except Unavailable:
            count += 1
            renamed = [
                set_field(item, request_id=f"{item.request_id} again {count}")
                if getattr(item, "request_id", "")
                else item
                for item in items
            ]
            return await real(self, renamed)

    with instead((Shard, "apply", apply)):
        yield


# -- timers and the line


@fault
def timers_stand_still() -> Iterator[None]:
    """No server looks at what is due."""

    async def still(self: Timers) -> None:
        await asyncio.get_running_loop().create_future()

    with instead((Timers, "run", still)):
        yield


@fault
def timers_of_the_first_server_only() -> Iterator[None]:
    """One server looks at what is due; when it dies, nobody does."""
    real = Timers.run
    seen: dict[int, Timers] = {}

    async def run(self: Timers) -> None:
        loop = asyncio.get_running_loop()
        if seen.setdefault(id(loop), self) is self:
            await real(self)
        await loop.create_future()

    with instead((Timers, "run", run)):
        yield


@fault
def timers_are_not_armed_again() -> Iterator[None]:
    """A lease that was renewed is not looked at any more."""
    real = Shard._run_due

    def tick(self: Shard, tick: Any, now: int, changed: Any, events: Any, rearmed: Any) -> Any:
        answer = yield from real(self, tick, now, changed, events, rearmed)
        rearmed.update(dict.fromkeys(rearmed))
        return answer

    with instead((Shard, "_run_due", tick)):
        yield


@fault
def nobody_polls() -> Iterator[None]:
    """Whoever wants work relies on hints alone: it does not look when it comes, and nobody polls."""
    real = ClaimWaiters.claim

    async def poll(self: ClaimWaiters) -> None:
        await asyncio.get_running_loop().create_future()

    async def claim(self: ClaimWaiters, claim: Any, wait_seconds: float = 0.0, gone: Any = None) -> Any:
        if wait_seconds <= 0 or claim.only:
            return await real(self, claim, wait_seconds, gone)
        own = self._enter((claim.tenant, claim.labels))
        try:
            return await self._wait(own, claim, wait_seconds, gone)
        finally:
            self._leave(own)

    with instead((ClaimWaiters, "_poll", poll), (ClaimWaiters, "claim", claim)):
        yield


@fault
def hints_are_not_heard() -> Iterator[None]:
    """Whoever waits for work is not woken, and nobody polls."""

    async def poll(self: ClaimWaiters) -> None:
        await asyncio.get_running_loop().create_future()

    with instead((ClaimWaiters, "_poll", poll), (ClaimWaiters, "_on_commit", lambda self, ready: None)):
        yield


@fault
def labels_are_ignored() -> Iterator[None]:
    """Every worker may have everything."""
    nothing = set[str]()
    with instead(
        (memory, "matching_queue_keys", lambda keys, labels: list(keys)),
        (attempt, "required_labels", lambda key: nothing),
        (worker, "required_labels", lambda key: nothing),
        (waiters, "required_labels", lambda key: nothing),
    ):
        yield


@fault
def claims_do_not_look_at_the_clock() -> Iterator[None]:
    """What may be claimed later is claimed now."""

    def grant(record: Any, command: Any, at: int) -> Any:
        return attempt._grant(set_field(record, run_at=0, fence_until=0), command, at)

    real = MemoryStore._find_ready

    def find(self: MemoryStore, request: Any) -> Any:
        return real(self, set_field(request, now=request.now + 10**9))

    with instead((MemoryStore, "_find_ready", find)), rule(attempt.MACHINE, ("QUEUED",), attempt.Grant, grant):
        yield


@fault
def time_by_a_clock_that_is_ahead() -> Iterator[None]:
    """A server's own clock counts, and it is a minute ahead."""
    real = MonotonicClock.read
    with instead((MonotonicClock, "read", lambda self, stored: real(self, stored) + 60_000_000)):
        yield


# -- the protocol


@fault
def a_stale_result_is_acknowledged() -> Iterator[None]:
    """Who completes too late is told that it counts."""
    real = message_handlers._refusal

    def refusal(message: Any, refused: Refused) -> Any:
        if isinstance(message, Complete):
            return CompleteAck(lease_id=message.lease_id, accepted=True)
        return real(message, refused)

    with instead((message_handlers, "_refusal", refusal)):
        yield


@fault
def a_canceled_result_is_acknowledged() -> Iterator[None]:
    """Who completes after a cancel is told that its result counts."""
    with instead((attempt, "complete_answer", lambda record: (True, ""))):
        yield
