"""Mistakes around the core: the write path, the store, the timers, blocked claims and the protocol."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Iterator
from contextlib import suppress
from typing import Any

import msgspec

from deltaci.core import attempt, machine, worker
from deltaci.core.errors import Refused
from deltaci.core.events import Event
from deltaci.core.machine import Command
from deltaci.engine import shard, waiters
from deltaci.engine.clock import MonotonicClock
from deltaci.engine.repeats import Repeats
from deltaci.engine.requests import Claim
from deltaci.engine.shard import Shard
from deltaci.engine.timers import Timers
from deltaci.engine.waiters import ClaimWaiters
from deltaci.protocol.messages import Complete, CompleteAck
from deltaci.server.runner_api import message_handlers
from deltaci.simulation.database import LockedReads, ServerConnection
from deltaci.storage import memory
from deltaci.storage.memory import MemoryStore
from deltaci.storage.port import Unavailable, Write
from tests.simulation.planting import fault, patched, replaced_handler, set_field


def patched_writes(change: Any) -> Any:
    """Patch the store to write what `change` returns."""
    real = MemoryStore._write

    def write(self: MemoryStore, write_request: Write) -> int:
        return real(self, change(write_request))

    return patched((MemoryStore, "_write", write))


# -- the log


@fault
def event_is_not_written() -> Iterator[None]:
    """The start of a job is stored without its event."""
    with patched_writes(
        lambda write_request: set_field(
            write_request, events=[e for e in write_request.events if e.trigger != "worker_started"]
        )
    ):
        yield


@fault
def events_are_reversed() -> Iterator[None]:
    """The events of a commit are written in reverse order."""
    with patched_writes(lambda write_request: set_field(write_request, events=list(reversed(write_request.events)))):
        yield


@fault
def renewal_does_not_increment_rev() -> Iterator[None]:
    """A renewed lease does not increment the rev."""

    def change(write_request: Write) -> Write:
        puts = [
            set_field(put, record=set_field(put.record, rev=put.record.rev - 1))
            if any(e.entity_id == put.record.id and e.trigger == "heartbeat" for e in write_request.events)
            else put
            for put in write_request.puts
        ]
        return set_field(write_request, puts=puts)

    with patched_writes(change):
        yield


@fault
def record_is_not_written() -> Iterator[None]:
    """The last record of a large commit is not written."""
    with patched_writes(
        lambda write_request: set_field(
            write_request, puts=write_request.puts[:-1] if len(write_request.puts) > 3 else write_request.puts
        )
    ):
        yield


@fault
def event_is_written_twice() -> Iterator[None]:
    """The event of a success is written twice."""

    def change(write_request: Write) -> Write:
        events: list[Event] = []
        for event in write_request.events:
            events += [event] * (2 if event.trigger == "succeeded" else 1)
        return set_field(write_request, events=events)

    with patched_writes(change):
        yield


@fault
def log_drops_heartbeats() -> Iterator[None]:
    """Heartbeats are dropped from the log when there are many."""
    real = MemoryStore._write

    def write(self: MemoryStore, write_request: Write) -> int:
        heartbeats = [event for event in self._events if event.trigger == "heartbeat"]
        if len(heartbeats) > 20:
            self._events.remove(heartbeats[0])
            self._pruned += 1
        return real(self, write_request)

    with patched((MemoryStore, "_write", write)):
        yield


# -- commits


@fault
def answer_before_commit() -> Iterator[None]:
    """Callers are answered when a command is decided, half a second before it is written."""
    real = ServerConnection._commit

    async def commit(self: ServerConnection, write: Write, locked_reads: LockedReads) -> int:
        async def later() -> None:
            with suppress(Exception):
                await real(self, write, locked_reads)

        loop = asyncio.get_running_loop()
        loop.call_later(0.5, lambda: loop.create_task(later()))
        return await self._database.last_seq()

    with patched((ServerConnection, "_commit", commit)):
        yield


@fault
def failed_commit_counts_as_done() -> Iterator[None]:
    """A commit whose connection broke counts as done."""
    real = ServerConnection._commit

    async def commit(self: ServerConnection, write: Write, locked_reads: LockedReads) -> int:
        try:
            return await real(self, write, locked_reads)
        except Unavailable:
            return await self._database.last_seq()

    with patched((ServerConnection, "_commit", commit)):
        yield


@fault
def rev_guard_is_missing() -> Iterator[None]:
    """The last writer wins, whatever rev it read."""
    with patched((MemoryStore, "_version", lambda self, id: _EqualToEverything())):
        yield


class _EqualToEverything:
    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False

    def __hash__(self) -> int:
        return 0


@fault
def cache_is_kept_after_a_conflict() -> Iterator[None]:
    """Cached records are not reloaded after a conflict with another server."""
    with patched((Shard, "_clear_cache", lambda self: None), (Shard, "_evict_stale", lambda self, id: False)):
        yield


@fault
def lost_commit_answer_changes_the_request_id() -> Iterator[None]:
    """After a lost commit answer, the same command is sent under another request id."""
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

    with patched((Shard, "apply", apply)):
        yield


# -- timers and blocked claims


@fault
def timers_never_run() -> Iterator[None]:
    """No server runs its timers."""

    async def never(self: Timers) -> None:
        await asyncio.get_running_loop().create_future()

    with patched((Timers, "run", never)):
        yield


@fault
def only_the_first_server_runs_timers() -> Iterator[None]:
    """Only one server runs timers; when it dies, none does."""
    real = Timers.run
    first_timers: dict[int, Timers] = {}

    async def run(self: Timers) -> None:
        loop = asyncio.get_running_loop()
        if first_timers.setdefault(id(loop), self) is self:
            await real(self)
        await loop.create_future()

    with patched((Timers, "run", run)):
        yield


@fault
def timers_are_not_rearmed() -> Iterator[None]:
    """The timer of a renewed lease is not set again."""
    real = Shard._run_due

    def tick(self: Shard, tick: Any, now: int, events: Any, rearmed: Any) -> Any:
        answer = yield from real(self, tick, now, events, rearmed)
        rearmed.update(dict.fromkeys(rearmed))
        return answer

    with patched((Shard, "_run_due", tick)):
        yield


@fault
def waiters_rely_on_hints() -> Iterator[None]:
    """Blocked claims do not query the store at first, and are not polled."""
    real = ClaimWaiters.claim

    async def poll(self: ClaimWaiters) -> None:
        await asyncio.get_running_loop().create_future()

    async def claim(self: ClaimWaiters, claim: Any, wait_seconds: float = 0.0, wait_for_disconnect: Any = None) -> Any:
        if wait_seconds <= 0 or claim.only_ids:
            return await real(self, claim, wait_seconds, wait_for_disconnect)
        waiter = self._enter((claim.tenant, claim.labels))
        try:
            return await self._wait(waiter, claim, wait_seconds, wait_for_disconnect)
        finally:
            self._leave(waiter)

    with patched((ClaimWaiters, "_poll", poll), (ClaimWaiters, "claim", claim)):
        yield


@fault
def hints_wake_no_waiter() -> Iterator[None]:
    """Blocked claims are not woken by hints, and are not polled."""

    async def poll(self: ClaimWaiters) -> None:
        await asyncio.get_running_loop().create_future()

    with patched((ClaimWaiters, "_poll", poll), (ClaimWaiters, "_on_commit", lambda self, ready: None)):
        yield


@fault
def labels_are_ignored() -> Iterator[None]:
    """Every worker may run every attempt."""
    nothing = set[str]()
    with patched(
        (memory, "matching_queue_keys", lambda keys, labels: list(keys)),
        (attempt, "required_labels", lambda key: nothing),
        (worker, "required_labels", lambda key: nothing),
        (waiters, "required_labels", lambda key: nothing),
    ):
        yield


@fault
def claims_ignore_run_at() -> Iterator[None]:
    """An attempt is claimed before its `run_at` or the end of its fence."""

    def grant(record: Any, command: Any, at: int) -> Any:
        return attempt._grant(set_field(record, run_at=0, fence_until=0), command, at)

    real = MemoryStore._find_ready

    def find(self: MemoryStore, request: Any) -> Any:
        return real(self, set_field(request, now=request.now + 10**9))

    with (
        patched((MemoryStore, "_find_ready", find)),
        replaced_handler(attempt.MACHINE, ("QUEUED", "STALE"), attempt.Grant, grant),
    ):
        yield


@fault
def server_clock_is_used() -> Iterator[None]:
    """A server uses its own clock, which is a minute ahead."""
    real = MonotonicClock.read
    with patched((MonotonicClock, "read", lambda self, stored: real(self, stored) + 60_000_000)):
        yield


# -- the protocol


@fault
def stale_result_is_acknowledged() -> Iterator[None]:
    """A result that comes too late is acknowledged as accepted."""
    real = message_handlers._refusal_response

    def refusal(message: Any, refused: Refused) -> Any:
        if isinstance(message, Complete):
            return CompleteAck(lease_id=message.lease_id, accepted=True)
        return real(message, refused)

    with patched((message_handlers, "_refusal_response", refusal)):
        yield


@fault
def canceled_result_is_acknowledged() -> Iterator[None]:
    """A result after a cancel is acknowledged as accepted."""
    with patched((attempt, "complete_answer", lambda record: (True, ""))):
        yield


# -- repeats


@fault
def requests_are_forgotten() -> Iterator[None]:
    """A record remembers only its first request and its latest eight."""

    def remember_request(record: Any, command: Command) -> Any:
        record = real(record, command)
        return msgspec.structs.replace(record, requests=(*record.requests[:1], *record.requests[1:][-7:]))

    real = machine.remember_request
    with patched((machine, "remember_request", remember_request)):
        yield


@fault
def moved_requests_are_not_stored() -> Iterator[None]:
    """Requests that are moved out of a record with many are lost."""
    with (
        patched_writes(lambda write_request: set_field(write_request, moved_requests=[])),
        patched((shard, "REQUESTS_IN_RECORD", 8)),
    ):
        yield


@fault
def repeated_claim_is_a_new_claim() -> Iterator[None]:
    """A repeated claim is granted another attempt, or none."""

    def find_grants(_self: Repeats, _claim: Claim) -> Generator[Any, Any, list[Any]]:
        yield from ()
        return []

    with (
        patched((Repeats, "find_grants", find_grants)),
        patched_writes(lambda write_request: set_field(write_request, claim_grants=[])),
    ):
        yield
