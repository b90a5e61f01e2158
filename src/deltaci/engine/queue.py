"""The queue as a library: document 004's contract, over any store.

Every method is durable when it returns, safe to repeat with the same `request_id`, and refused without any
change when it does not apply. A worker proves itself with the lease id that its claim gave it.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Iterable, Sequence
from datetime import datetime
from hashlib import blake2b
from typing import Any, Final

import msgspec

from deltaci.audit.projections.job_events import job_events
from deltaci.core import attempt, lease
from deltaci.core.attempt import Attempt
from deltaci.core.cascade import CreateRecords, NewRecord
from deltaci.core.decide import Decision
from deltaci.core.errors import Refused
from deltaci.core.events import Event, worker_actor
from deltaci.core.failures import Facts, Failure
from deltaci.core.instants import rfc3339
from deltaci.core.machine import Command
from deltaci.core.status.queue import job_status
from deltaci.core.worker import queue_key
from deltaci.engine import feed
from deltaci.engine.engine import Claim, Engine
from deltaci.engine.event_loop import cancel_and_wait
from deltaci.engine.timers import Timers
from deltaci.engine.unreadable_records import unreadable_refusal
from deltaci.engine.validation import (
    MAX_CLAIM,
    MAX_SECONDS,
    bad_request,
    check_labels,
    check_number,
    check_options,
    check_seconds,
    check_text,
    json_copy,
    parse_instant,
    parse_lease_id,
    replace_surrogates,
    short_repr,
    valid_id,
)
from deltaci.engine.waiters import ClaimWaiters
from deltaci.storage.port import Store

MAX_INT: Final = 2**31 - 1
MAX_EVENTS: Final = 10_000
MAX_ERROR_LINES: Final = 50


class QueueJob:
    """A job of the queue, in document 004's words. What is not asked for costs nothing."""

    __slots__ = ("_record",)

    def __init__(self, record: Attempt) -> None:
        self._record = record

    @property
    def id(self) -> str:
        """Its name for life."""
        return self._record.id

    @property
    def status(self) -> str:
        """queued, claimed, running, succeeded, failed or stalled."""
        return job_status(self._record)

    @property
    def attempt(self) -> int:
        """How often it was claimed."""
        return self._record.claims

    @property
    def rev(self) -> int:
        """How often it changed; `expected_rev` compares with it."""
        return self._record.rev

    @property
    def owner(self) -> str | None:
        """The worker that holds it."""
        return self._record.lease.worker_id if self._record.lease else None

    @property
    def lease_expires_at(self) -> str | None:
        """Until when its owner has it, unless it is renewed."""
        return rfc3339(self._record.lease.expires_at) if self._record.lease else None

    @property
    def payload(self) -> Any:
        """What it was enqueued with."""
        return _copied(self._record.spec)

    @property
    def result(self) -> Any:
        """What it succeeded with."""
        return _copied(self._record.result)

    @property
    def error(self) -> Failure | None:
        """Why it failed."""
        return self._record.error

    @property
    def labels(self) -> tuple[str, ...]:
        """What a worker must have to claim it."""
        return tuple(self._record.queue_key.split(",")) if self._record.queue_key else ()

    @property
    def priority(self) -> int:
        """The greater, the sooner."""
        return self._record.priority

    @property
    def run_at(self) -> str | None:
        """Not before this."""
        return rfc3339(self._record.run_at) if self._record.run_at else None

    def to_dict(self) -> dict[str, Any]:
        """Everything, ready for JSON."""
        told = {name: getattr(self, name) for name in _SHOWN}
        told["error"] = msgspec.to_builtins(self.error)
        return told

    def __eq__(self, other: object) -> bool:
        return isinstance(other, QueueJob) and self._record == other._record

    def __hash__(self) -> int:
        return hash((self.id, self.rev))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id!r}, {self.status}, attempt={self.attempt}, rev={self.rev})"


_SHOWN: Final = (
    *("id", "status", "attempt", "rev", "owner", "lease_expires_at"),
    *("payload", "result", "error", "labels", "priority", "run_at"),
)


class ClaimedJob(QueueJob):
    """A job that was claimed. Whoever has the lease id may work on it; it is shown only here."""

    __slots__ = ("lease_id",)

    def __init__(self, record: Attempt, lease_id: str) -> None:
        super().__init__(record)
        self.lease_id = lease_id


class JobOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """How one job ended: with a result, or with what its failure said."""

    lease_id: str
    result: Any = None
    error: str | None = None


class NewJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job to enqueue."""

    payload: Any = None
    labels: Sequence[str] = ()
    dedupe_key: str = ""
    priority: int = 0
    run_at: datetime | None = None
    timeout_seconds: int = attempt.TIMEOUT_SECONDS
    max_lost_leases: int = attempt.MAX_LOST_LEASES
    request_id: str = ""


class AsyncQueue:
    """The queue for programs that use asyncio. Use it as a context manager."""

    def __init__(self, store: Store, *, tenant: str = "default", has_timers: bool = True) -> None:
        check_text("tenant", tenant)
        self._store = store
        self._tenant = tenant
        self._has_timers = has_timers
        self._engine = Engine(store)
        self._line = ClaimWaiters(self._engine, store.commit_hints)
        self._timers: asyncio.Task[None] | None = None

    async def __aenter__(self) -> AsyncQueue:
        await self._store.open()
        await self._engine.start()
        if self._has_timers:
            self._timers = asyncio.create_task(Timers(self._engine).run(), name="timers")
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._timers is not None:
            await cancel_and_wait(self._timers)
        await self._engine.stop()
        await self._store.close()

    # -- putting work in

    async def enqueue(self, payload: Any = None, **fields: Any) -> QueueJob:
        """Add a job. With a `dedupe_key` that is known, the job that has it is returned instead."""
        try:
            new = NewJob(payload=payload, **fields)
        except TypeError as error:
            raise bad_request(f"{error}; see NewJob for what can be given") from None
        return (await self.enqueue_all([new]))[0]

    async def enqueue_all(self, jobs: Iterable[NewJob]) -> list[QueueJob]:
        """Add many jobs in one go. If one of them is refused, none is added.

        That holds for refusals. When the store fails on the way, some may have been added: jobs with a `dedupe_key`
        or a `request_id` can simply be enqueued again.
        """
        births = [self._birth(new) for new in jobs]
        # What passed the checks can only be refused for a request_id that was used for something else. Jobs that
        # have one are decided together; all others take the short way, in as many transactions as they need.
        if len(births) > 1 and any(birth.request_id and not birth.or_existing for birth in births):
            return await self._bear_all(births)
        return [QueueJob(each) for each in await self._all(births)]

    async def _bear_all(self, births: Sequence[NewRecord]) -> list[QueueJob]:
        decision = await self._engine.do(CreateRecords(id=births[0].id, records=tuple(births)))
        found: list[QueueJob] = []
        for birth in births:
            record = decision.changed.get(birth.id)
            # What was there already is shown as it is now.
            found.append(QueueJob(record) if isinstance(record, Attempt) else await self.get(birth.id))
        return found

    def _birth(self, new: NewJob) -> NewRecord:
        _check_new(new)
        if new.dedupe_key:
            # The id follows from the key: whoever enqueues it again, anywhere, means the same record.
            content = f"{self._tenant}\0{new.dedupe_key}".encode()
            id = f"q-{blake2b(content, digest_size=16).hexdigest()}"
        else:
            seed = new.request_id and blake2b(f"{self._tenant}\1{new.request_id}".encode(), digest_size=16).hexdigest()
            id = f"q-{seed or _drawn()}"
        record = Attempt(
            id=id,
            tenant=self._tenant,
            queue_key=queue_key(new.labels),
            priority=new.priority,
            run_at=0 if new.run_at is None else parse_instant("run_at", new.run_at),
            timeout_seconds=new.timeout_seconds,
            max_lost_leases=new.max_lost_leases,
            spec=json_copy("payload", new.payload),
        )
        return NewRecord(
            id=id,
            record=record,
            request_id=new.request_id,
            or_existing=bool(new.dedupe_key),
            has_random_id=not new.dedupe_key and not new.request_id,
        )

    # -- taking work out

    async def claim_next(
        self,
        worker: str,
        *,
        labels: Sequence[str] = (),
        limit: int = 1,
        wait_seconds: float = 0.0,
        ttl_seconds: int = lease.TTL_SECONDS,
        accept_seconds: int = lease.ACCEPT_SECONDS,
        starts: bool = False,
    ) -> list[ClaimedJob]:
        """Claim up to `limit` jobs, the most urgent first; waits up to `wait_seconds` for the first one.

        With `starts`, each is started in the same transaction: for a worker that begins as soon as it hears.
        """
        check_text("worker", worker)
        check_labels(labels)
        check_number("limit", limit, MAX_CLAIM)
        check_seconds("wait_seconds", wait_seconds)
        check_number("ttl_seconds", ttl_seconds, MAX_SECONDS)
        check_number("accept_seconds", accept_seconds, MAX_SECONDS)
        claim = Claim(
            tenant=self._tenant,
            worker_id=worker,
            labels=tuple(labels),
            limit=limit,
            ttl_seconds=ttl_seconds,
            accept_seconds=accept_seconds,
            start_immediately=starts,
        )
        claimed = await self._line.claim(claim, wait_seconds)
        return [ClaimedJob(each.attempt, each.lease_id) for each in claimed]

    async def start(self, lease_id: str, **options: Any) -> QueueJob:
        """Execution begins."""
        return await self._say(attempt.Start, lease_id, options)

    async def heartbeat(self, lease_id: str, **options: Any) -> QueueJob:
        """Keep the lease."""
        return await self._say(attempt.Extend, lease_id, options)

    async def complete(self, lease_id: str, result: Any = None, **options: Any) -> QueueJob:
        """The job succeeded."""
        kept = json_copy("result", result)
        return await self._say(attempt.Finish, lease_id, options, is_success=True, result=kept)

    async def fail(self, lease_id: str, error: str = "", **options: Any) -> QueueJob:
        """The job failed; `error` is what it said: the first line is kept for people, the end is classified."""
        return await self._say(attempt.Finish, lease_id, options, is_success=False, facts=_failed(error))

    async def start_all(self, lease_ids: Iterable[str], worker: str) -> list[QueueJob | Refused]:
        """Many executions begin: one transaction for all, each accepted or refused on its own."""
        check_text("worker", worker)
        return await self._say_all([self._message(attempt.Start, lease_id, worker) for lease_id in lease_ids])

    async def heartbeat_all(self, lease_ids: Iterable[str], worker: str) -> list[QueueJob | Refused]:
        """Keep many leases."""
        check_text("worker", worker)
        return await self._say_all([self._message(attempt.Extend, lease_id, worker) for lease_id in lease_ids])

    async def finish_all(self, ends: Iterable[JobOutcome], worker: str) -> list[QueueJob | Refused]:
        """Many jobs ended, each in its own way."""
        check_text("worker", worker)
        found: list[Command | Refused] = []
        for end in ends:
            try:
                fields = _outcome(end)
                found.append(self._message(attempt.Finish, end.lease_id, worker, **fields))
            except Refused as refused:
                found.append(refused)
        return await self._say_all(found)

    def _message(
        self, kind: type[attempt.LeasedCommand], lease_id: str, worker: str, **fields: Any
    ) -> Command | Refused:
        try:
            ref = parse_lease_id(lease_id)
        except Refused as refused:
            return refused
        return kind(id=ref.attempt_id, actor=worker_actor(worker), lease=ref, tenant=self._tenant, **fields)

    async def _say_all(self, messages: Sequence[Command | Refused]) -> list[QueueJob | Refused]:
        """Say what makes sense; what does not has its refusal already."""
        answers = iter(await self._engine.do_all(each for each in messages if not isinstance(each, Refused)))
        found: list[QueueJob | Refused] = []
        for each in messages:
            answer = each if isinstance(each, Refused) else next(answers)
            if isinstance(answer, Refused):
                found.append(answer)
            else:
                assert isinstance(answer.record, Attempt)
                found.append(QueueJob(answer.record))
        return found

    async def stall(self, id: str, **options: Any) -> QueueJob:
        """Its worker is no longer trusted: take the lease away."""
        return await self._order(attempt.Stall(id=await self._own(id), **check_options(options)))

    async def requeue_stalled(self, id: str, **options: Any) -> QueueJob:
        """Make a stalled job claimable again."""
        return await self._order(attempt.Requeue(id=await self._own(id), **check_options(options)))

    async def hand_back(self, id: str, **options: Any) -> QueueJob:
        """Its worker leaves: the job goes back to the queue, and nothing is counted against it."""
        stall = attempt.Stall(id=await self._own(id), reason=attempt.HANDED_BACK, **check_options(options))
        return await self._order(stall)

    async def cancel(self, id: str, reason: str = "CANCELED", **options: Any) -> QueueJob:
        """Ask for a stop: at once when nobody works on it, at its worker's next word or the deadline otherwise."""
        check_text("reason", reason)
        return await self._order(attempt.Cancel(id=await self._own(id), reason=reason, **check_options(options)))

    # -- looking

    async def get(self, id: str) -> QueueJob:
        """The job as it is now."""
        record = await self._store.find(valid_id(id))
        if (unread := unreadable_refusal(record)) is not None:
            raise unread
        if not isinstance(record, Attempt) or record.tenant != self._tenant:
            raise Refused("not_found", f"there is no job {id!r}; check the id")
        return QueueJob(record)

    async def _own(self, id: str) -> str:
        """The id of a job of this tenant: another's does not exist here. A record never changes its tenant."""
        return (await self.get(id)).id

    async def events(self, id: str) -> list[dict[str, Any]]:
        """Everything that happened to the job, as document 004's events."""
        await self.get(id)
        return list(job_events(await self.log(id)))

    async def log(self, id: str = "", after: int = 0, limit: int = MAX_EVENTS) -> list[Event]:
        """The log itself, of one job or of everything that is this tenant's."""
        return await feed.read(self._store, after, limit, tenant=self._tenant, entity_id=id and valid_id(id))

    async def _say(
        self, message: type[attempt.LeasedCommand], lease_id: str, options: dict[str, Any], **fields: Any
    ) -> QueueJob:
        ref = parse_lease_id(lease_id)
        known = await self._owner(ref.attempt_id, options)
        said = message(
            id=ref.attempt_id, actor=known, lease=ref, tenant=self._tenant, **check_options(options), **fields
        )
        return await self._order(said)

    async def _owner(self, id: str, options: dict[str, Any]) -> str:
        """Who speaks: the worker that the caller names, or the one that the lease was granted to."""
        worker = options.pop("worker", None)
        if worker is not None:
            check_text("worker", worker)
            return worker_actor(worker)
        record = await self._store.find(id)
        held = (record.lease or record.ended_lease) if isinstance(record, Attempt) else None
        return worker_actor(held.worker_id if held else "unknown")

    async def _order(self, command: Command) -> QueueJob:
        decision = await self._engine.do(command)
        assert isinstance(decision.record, Attempt)
        return QueueJob(decision.record)

    async def _all(self, commands: Sequence[Command]) -> list[Attempt]:
        found: list[Attempt] = []
        for answer in await self._engine.do_all(commands):
            if isinstance(answer, Refused):
                raise answer
            assert isinstance(answer, Decision)
            assert isinstance(answer.record, Attempt)
            found.append(answer.record)
        return found


def _drawn() -> str:
    """A new id. They grow with time, so that what is claimed together also lies together in the store's index."""
    return f"{time.time_ns() // 1_000_000:012x}{secrets.token_hex(10)}"


def _failed(error: str) -> Facts:
    """What is known of a job that failed by its own word. Its first line is for people, its end for the rules."""
    lines = replace_surrogates(error).splitlines()
    first = next((line.strip() for line in lines if line.strip()), "")
    return Facts(error_code="FAILED", message=first, log_tail=tuple(lines[-MAX_ERROR_LINES:]))


def _outcome(end: object) -> dict[str, Any]:
    if not isinstance(end, JobOutcome):
        raise bad_request(f"an end is {short_repr(end)}; give an End")
    if end.error is None:
        return {"is_success": True, "result": json_copy("result", end.result)}
    return {"is_success": False, "facts": _failed(end.error)}


def _copied(value: Any) -> Any:
    """The caller's own: what it does to a list or an object must not reach the record that we keep in memory."""
    if isinstance(value, list | dict):
        return msgspec.msgpack.decode(msgspec.msgpack.encode(value))
    return value


def _check_new(new: object) -> None:
    if not isinstance(new, NewJob):
        raise bad_request(f"a job to enqueue is {short_repr(new)}; give a NewJob")
    check_labels(new.labels)
    for name in ("dedupe_key", "request_id"):
        if getattr(new, name) != "":
            check_text(name, getattr(new, name))
    for name in ("priority", "timeout_seconds", "max_lost_leases"):
        value = getattr(new, name)
        if not isinstance(value, int) or isinstance(value, bool) or abs(value) > MAX_INT:
            raise bad_request(f"{name} is {short_repr(value)}; give a whole number of 32 bits")
    if new.timeout_seconds < 1 or new.max_lost_leases < 0:
        raise bad_request("timeout_seconds must be at least 1 and max_lost_leases at least 0; give more")
