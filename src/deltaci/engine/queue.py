"""The job queue of document 004 as a library, over any store.

The result of every method is durable when it returns. A method may be repeated with the same `request_id`. A method
that does not apply is refused and changes nothing. A worker authenticates with the lease id that its claim returned.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from hashlib import blake2b
from typing import Any, Final

import msgspec

from deltaci.audit.projections.job_events import job_events
from deltaci.core import attempt, lease
from deltaci.core.attempt import Attempt
from deltaci.core.cascade import CreateRecords, NewRecord
from deltaci.core.decide import Decision
from deltaci.core.errors import JobCanceled, LeaseLost, Refused
from deltaci.core.events import Event, worker_actor
from deltaci.core.failures import Facts, Failure
from deltaci.core.instants import rfc3339
from deltaci.core.json_values import bad_request, json_copy, replace_surrogates, short_repr
from deltaci.core.machine import Command
from deltaci.core.status.queue import job_status
from deltaci.core.timers import ready_at
from deltaci.core.worker import queue_key
from deltaci.engine import feed
from deltaci.engine.engine import Claim, Engine
from deltaci.engine.event_loop import cancel_and_wait
from deltaci.engine.lease_ids import LeaseIdMinter
from deltaci.engine.timers import Timers
from deltaci.engine.unreadable_records import unreadable_refusal
from deltaci.engine.validation import (
    MAX_CLAIM,
    MAX_SECONDS,
    check_labels,
    check_options,
    check_positive_integer,
    check_request_id,
    check_seconds,
    check_text,
    parse_instant,
    parse_lease_id,
    valid_id,
)
from deltaci.engine.waiters import ClaimWaiters
from deltaci.storage.port import Conflict, Document, Store

MAX_INT: Final = 2**31 - 1
MAX_EVENTS: Final = 10_000
MAX_ERROR_LINES: Final = 50
LEASE_KEY_KIND: Final = "lease_key"
LEASE_KEY_NAME: Final = "key"
KEY_BYTES: Final = 32


class JobLease(msgspec.Struct, frozen=True, kw_only=True):
    """The live lease of a job, without the secret that proves it. Times are RFC 3339 text.

    `number` is that of the claim. `state` is GRANTED until its worker acknowledges it, which it must do until
    `accept_by`, and ACTIVE from then on.
    """

    number: int
    worker_id: str
    state: str
    ttl_seconds: int
    accept_by: str
    expires_at: str


class QueueJob:
    """A job as it was when it was read, with the fields of document 004. Values are computed on access."""

    __slots__ = ("_record",)

    def __init__(self, attempt_record: Attempt) -> None:
        self._record = attempt_record

    @property
    def id(self) -> str:
        return self._record.id

    @property
    def status(self) -> str:
        """The status: queued, claimed, running, succeeded, failed or stalled."""
        return job_status(self._record)

    @property
    def attempt(self) -> int:
        """How often the job was claimed."""
        return self._record.claims

    @property
    def rev(self) -> int:
        """The revision, which grows with every change.

        Pass it as `expected_rev` to be refused if the job has changed since.
        """
        return self._record.rev

    @property
    def owner(self) -> str | None:
        """The id of the worker that has the lease, or None."""
        return self._record.lease.worker_id if self._record.lease else None

    @property
    def lease(self) -> JobLease | None:
        """The live lease, or None."""
        lease = self._record.lease
        if lease is None:
            return None
        return JobLease(
            number=lease.number,
            worker_id=lease.worker_id,
            state=lease.state,
            ttl_seconds=lease.ttl_seconds,
            accept_by=rfc3339(lease.accept_by),
            expires_at=rfc3339(lease.expires_at),
        )

    @property
    def claimable_at(self) -> str | None:
        """The time, as RFC 3339 text, from which on a worker can claim the job; None unless it is queued or stalled.

        It is in the future if `run_at` is, or if the worker that lost the job may still be running it.
        """
        claimable_at = ready_at(self._record)
        return rfc3339(claimable_at) if claimable_at is not None else None

    @property
    def dedupe_key(self) -> str:
        """The key that makes jobs one job; empty if none was given, or if an older version enqueued the job."""
        return self._record.dedupe_key

    @property
    def lease_expires_at(self) -> str | None:
        """When the lease ends unless it is renewed, as RFC 3339 text; None without a lease."""
        return rfc3339(self._record.lease.expires_at) if self._record.lease else None

    @property
    def payload(self) -> Any:
        """A copy of the payload that was enqueued."""
        return _deep_copy(self._record.spec)

    @property
    def result(self) -> Any:
        """A copy of the result; None before the job succeeded."""
        return _deep_copy(self._record.result)

    @property
    def error(self) -> Failure | None:
        """Why the job failed; None if it has not failed."""
        return self._record.error

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels that a worker must have to claim the job."""
        return tuple(self._record.queue_key.split(",")) if self._record.queue_key else ()

    @property
    def priority(self) -> int:
        """The priority. Jobs with a greater one are claimed first."""
        return self._record.priority

    @property
    def run_at(self) -> str | None:
        """The time, as RFC 3339 text, before which the job cannot be claimed; None if there is none."""
        return rfc3339(self._record.run_at) if self._record.run_at else None

    def to_dict(self) -> dict[str, Any]:
        """Return all properties as a dict of values that JSON can represent."""
        value_by_field = {field_name: getattr(self, field_name) for field_name in _FIELDS}
        value_by_field |= {
            field_name: msgspec.to_builtins(value_by_field[field_name]) for field_name in ("error", "lease")
        }
        return value_by_field

    def __eq__(self, other: object) -> bool:
        return isinstance(other, QueueJob) and (self.id, self.rev) == (other.id, other.rev)

    def __hash__(self) -> int:
        return hash((self.id, self.rev))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id!r}, {self.status}, attempt={self.attempt}, rev={self.rev})"


_FIELDS: Final = (
    *("id", "status", "attempt", "rev", "owner", "lease", "lease_expires_at", "claimable_at", "dedupe_key"),
    *("payload", "result", "error", "labels", "priority", "run_at"),
)


class ClaimedJob(QueueJob):
    """A claimed job with its lease id, which proves the right to run the job. Only the claim returns the lease id."""

    __slots__ = ("lease_id",)

    def __init__(self, attempt_record: Attempt, lease_id: str) -> None:
        super().__init__(attempt_record)
        self.lease_id = lease_id


class JobOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one job, or an error text if it failed, for `finish_all`."""

    lease_id: str
    result: Any = None
    error: str | None = None


class NewJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job to enqueue.

    Jobs with the same `dedupe_key` are one job. `run_at` is the time before which it cannot be claimed.
    """

    payload: Any = None
    labels: Sequence[str] = ()
    dedupe_key: str = ""
    priority: int = 0
    run_at: datetime | None = None
    timeout_seconds: int = attempt.TIMEOUT_SECONDS
    max_lost_leases: int = attempt.MAX_LOST_LEASES
    request_id: str = ""


class AsyncQueue:
    """The job queue for asyncio programs. Use it as an asynchronous context manager."""

    def __init__(self, store: Store, *, tenant: str = "default", has_timers: bool = True) -> None:
        check_text("tenant", tenant)
        self._store = store
        self._tenant = tenant
        self._has_timers = has_timers
        self._engine = Engine(store)
        self._waiters = ClaimWaiters(self._engine, store.commit_hints)
        self._timers_task: asyncio.Task[None] | None = None
        self._minter: LeaseIdMinter | None = None

    async def __aenter__(self) -> AsyncQueue:
        await self._store.open()
        await self._engine.start()
        if self._has_timers:
            self._timers_task = asyncio.create_task(Timers(self._engine).run(), name="timers")
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._timers_task is not None:
            await cancel_and_wait(self._timers_task)
        await self._waiters.stop()
        await self._engine.stop()
        await self._store.close()

    # -- enqueue

    async def enqueue(self, payload: Any = None, **fields: Any) -> QueueJob:
        """Add a job and return it. If a job with the same `dedupe_key` exists, return that job instead."""
        try:
            job = NewJob(payload=payload, **fields)
        except TypeError as error:
            raise bad_request(f"{error}; see NewJob for what can be given") from None
        return (await self.enqueue_all([job]))[0]

    async def enqueue_all(self, jobs: Iterable[NewJob]) -> list[QueueJob]:
        """Add many jobs and return them. If one of them is refused, none is added.

        If the store fails instead, some jobs may have been added. Repeat the call: jobs with a `dedupe_key` or a
        `request_id` are not added twice.
        """
        creations = [self._creation_command(job) for job in jobs]
        # After the checks, a job can only be refused because its request_id was used for something else. Jobs with a
        # request_id are decided together in one transaction; all others are written in as many as they need.
        if len(creations) > 1 and any(creation.request_id and not creation.or_existing for creation in creations):
            return await self._create_together(creations)
        return [QueueJob(attempt_record) for attempt_record in await self._apply_commands(creations)]

    async def _create_together(self, creations: Sequence[NewRecord]) -> list[QueueJob]:
        decision = await self._engine.do(CreateRecords(id=creations[0].id, records=tuple(creations)))
        jobs: list[QueueJob] = []
        for creation in creations:
            record = decision.changed.get(creation.id)
            # A job that existed before is not part of the decision: return its current state.
            jobs.append(QueueJob(record) if isinstance(record, Attempt) else await self.get(creation.id))
        return jobs

    def _creation_command(self, job: NewJob) -> NewRecord:
        _check_new_job(job)
        if job.dedupe_key:
            # The id is derived from the key, so that enqueueing the key again, anywhere, means the same record.
            content = f"{self._tenant}\0{job.dedupe_key}".encode()
            id = f"q-{blake2b(content, digest_size=16).hexdigest()}"
        else:
            seed = job.request_id and blake2b(f"{self._tenant}\1{job.request_id}".encode(), digest_size=16).hexdigest()
            id = f"q-{seed or _random_id()}"
        attempt_record = Attempt(
            id=id,
            tenant=self._tenant,
            queue_key=queue_key(job.labels),
            priority=job.priority,
            run_at=0 if job.run_at is None else parse_instant("run_at", job.run_at),
            timeout_seconds=job.timeout_seconds,
            max_lost_leases=job.max_lost_leases,
            spec=json_copy("payload", job.payload),
            dedupe_key=job.dedupe_key,
        )
        return NewRecord(
            id=id,
            record=attempt_record,
            request_id=job.request_id,
            or_existing=bool(job.dedupe_key),
            has_random_id=not job.dedupe_key and not job.request_id,
        )

    # -- claim and run

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
        request_id: str = "",
    ) -> list[ClaimedJob]:
        """Claim up to `limit` jobs, the most urgent first; wait up to `wait_seconds` for the first one.

        With `starts`, each job is also started in the same transaction: for a worker that runs it at once.

        If the worker repeats a claim that got jobs, with the same `request_id`, it gets the jobs that it still
        holds, with the same lease ids. Raises `StaleLease` if it holds none any more.
        """
        check_text("worker", worker)
        check_labels(labels)
        check_positive_integer("limit", limit, MAX_CLAIM)
        check_seconds("wait_seconds", wait_seconds)
        check_positive_integer("ttl_seconds", ttl_seconds, MAX_SECONDS)
        check_positive_integer("accept_seconds", accept_seconds, MAX_SECONDS)
        check_request_id(request_id)
        claim = Claim(
            tenant=self._tenant,
            worker_id=worker,
            labels=tuple(labels),
            limit=limit,
            ttl_seconds=ttl_seconds,
            accept_seconds=accept_seconds,
            start_immediately=starts,
            request_id=request_id,
            derive_lease_secret=(await self._lease_id_minter()).mint if request_id else None,
        )
        claimed = await self._waiters.claim(claim, wait_seconds)
        return [ClaimedJob(grant.attempt, grant.lease_id) for grant in claimed]

    async def _lease_id_minter(self) -> LeaseIdMinter:
        """Return the minter with the key that all processes with this store share; store a new key if there is none."""
        while self._minter is None:
            key = await self._store.find_document(LEASE_KEY_KIND, LEASE_KEY_NAME, self._tenant)
            if key is not None:
                self._minter = LeaseIdMinter(key.body)
                break
            body = secrets.token_bytes(KEY_BYTES)
            with suppress(Conflict):  # Another process was faster.
                await self._store.put_documents([Document(LEASE_KEY_KIND, self._tenant, LEASE_KEY_NAME, 0, 0, body)])
        return self._minter

    async def start(self, lease_id: str, **options: Any) -> QueueJob:
        """Record that the worker has started to run the job."""
        return await self._send_leased(attempt.Start, lease_id, options)

    async def heartbeat(self, lease_id: str, **options: Any) -> QueueJob:
        """Renew the lease of a claimed job."""
        return await self._send_leased(attempt.Extend, lease_id, options)

    async def complete(self, lease_id: str, result: Any = None, **options: Any) -> QueueJob:
        """Finish the job as succeeded, with its result.

        Raise `JobCanceled` if the job's cancellation was requested before.
        """
        stored_result = json_copy("result", result)
        return await self._send_leased(attempt.Finish, lease_id, options, is_success=True, result=stored_result)

    async def fail(self, lease_id: str, error: str = "", **options: Any) -> QueueJob:
        """Finish the job as failed. Raise `JobCanceled` if its cancellation was requested before.

        The first line of `error` that is not empty becomes the failure's message. Its last lines are matched against
        the failure rules.
        """
        return await self._send_leased(attempt.Finish, lease_id, options, is_success=False, facts=_failure_facts(error))

    async def start_all(
        self, lease_ids: Iterable[str], worker: str, *, request_id: str = ""
    ) -> list[QueueJob | Refused]:
        """Start many jobs in one request. Return the job or the refusal for each, in order.

        The `request_id` applies to each job.
        """
        return await self._send_to_all(attempt.Start, lease_ids, worker, request_id)

    async def heartbeat_all(
        self, lease_ids: Iterable[str], worker: str, *, request_id: str = ""
    ) -> list[QueueJob | Refused]:
        """Renew many leases in one request. Return the job or the refusal for each, in order.

        The `request_id` applies to each job.
        """
        return await self._send_to_all(attempt.Extend, lease_ids, worker, request_id)

    async def _send_to_all(
        self, command_type: type[attempt.LeasedCommand], lease_ids: Iterable[str], worker: str, request_id: str
    ) -> list[QueueJob | Refused]:
        check_text("worker", worker)
        check_request_id(request_id)
        actor = worker_actor(worker)
        return await self._send_all(
            [self._leased_command(command_type, lease_id, actor, request_id=request_id) for lease_id in lease_ids]
        )

    async def finish_all(
        self, ends: Iterable[JobOutcome], worker: str, *, request_id: str = ""
    ) -> list[QueueJob | Refused]:
        """Finish many jobs in one request. Return the job or the refusal for each, in order.

        The `request_id` applies to each job.
        """
        check_text("worker", worker)
        check_request_id(request_id)
        actor = worker_actor(worker)
        commands: list[Command | Refused] = []
        for outcome in ends:
            try:
                fields = {**_finish_fields(outcome), "request_id": request_id}
                commands.append(self._leased_command(attempt.Finish, outcome.lease_id, actor, **fields))
            except Refused as refused:
                commands.append(refused)
        return await self._send_all(commands)

    def _leased_command(
        self, command_type: type[attempt.LeasedCommand], lease_id: str, actor: str, **fields: Any
    ) -> Command | Refused:
        try:
            lease_ref = parse_lease_id(lease_id)
        except Refused as refused:
            return refused
        return command_type(id=lease_ref.attempt_id, actor=actor, lease=lease_ref, tenant=self._tenant, **fields)

    async def _send_all(self, commands: Sequence[Command | Refused]) -> list[QueueJob | Refused]:
        """Apply the commands.

        Return a job or refusal for each, in order; refusals among the commands are passed through.
        """
        decisions = iter(
            await self._engine.do_all([command for command in commands if not isinstance(command, Refused)])
        )
        results: list[QueueJob | Refused] = []
        for command in commands:
            if isinstance(command, Refused):
                results.append(command)
                continue
            decision = next(decisions)
            if isinstance(decision, Refused):
                results.append(decision)
                continue
            assert isinstance(decision.record, Attempt)
            results.append(_unexpected_end_error(command, decision.record) or QueueJob(decision.record))
        return results

    async def stall(self, id: str, **options: Any) -> QueueJob:
        """Revoke the lease of a job, because its worker is no longer trusted.

        The job is stalled, and can be claimed from `claimable_at` on, when the revoked lease would have ended. If it
        has lost more leases than allowed, it fails, and `LeaseLost` is raised.
        """
        return await self._apply_command(attempt.Stall(id=await self._check_tenant(id), **check_options(options)))

    async def requeue_stalled(self, id: str, **options: Any) -> QueueJob:
        """Queue a stalled job again. Raise `LeaseLost` if it failed instead, because its lease was lost too often.

        Before `claimable_at` the job stays stalled: its last worker may still be running it. It can be claimed then.
        """
        return await self._apply_command(attempt.Requeue(id=await self._check_tenant(id), **check_options(options)))

    async def hand_back(self, id: str, **options: Any) -> QueueJob:
        """Return a claimed job to the queue, because its worker leaves. This does not count as a lost lease."""
        stall_command = attempt.Stall(
            id=await self._check_tenant(id), reason=attempt.HANDED_BACK, **check_options(options)
        )
        return await self._apply_command(stall_command)

    async def cancel(self, id: str, reason: str = "CANCELED", **options: Any) -> QueueJob:
        """Cancel the job at once if it has no lease, else at its worker's next message or at the cancel deadline."""
        check_text("reason", reason)
        return await self._apply_command(
            attempt.Cancel(id=await self._check_tenant(id), reason=reason, **check_options(options))
        )

    # -- read

    async def get(self, id: str) -> QueueJob:
        """Return the current state of the job."""
        record = await self._store.find(valid_id(id))
        if (refusal := unreadable_refusal(record)) is not None:
            raise refusal
        if not isinstance(record, Attempt) or record.tenant != self._tenant:
            raise Refused("not_found", f"there is no job {id!r}; check the id")
        return QueueJob(record)

    async def _check_tenant(self, id: str) -> str:
        """Return the id if it is that of a job of this tenant. Raises `Refused` with `not_found` otherwise."""
        return (await self.get(id)).id

    async def events(self, id: str) -> list[dict[str, Any]]:
        """Return the history of the job as events of document 004."""
        await self.get(id)
        return list(job_events(await self.log(id)))

    async def log(self, id: str = "", after: int = 0, limit: int = MAX_EVENTS) -> list[Event]:
        """Return up to `limit` events with a `seq` above `after`, of one job or, without an id, of the tenant."""
        return await feed.read(self._store, after, limit, tenant=self._tenant, entity_id=id and valid_id(id))

    async def _send_leased(
        self, command_type: type[attempt.LeasedCommand], lease_id: str, options: dict[str, Any], **fields: Any
    ) -> QueueJob:
        lease_ref = parse_lease_id(lease_id)
        actor = await self._worker_actor_of(lease_ref.attempt_id, options)
        command = command_type(
            id=lease_ref.attempt_id,
            actor=actor,
            lease=lease_ref,
            tenant=self._tenant,
            **check_options(options),
            **fields,
        )
        return await self._apply_command(command)

    async def _worker_actor_of(self, id: str, options: dict[str, Any]) -> str:
        """Return the actor of a message about an attempt: the worker named in the options.

        If none is named, it is the worker to which the lease was granted. The option is removed.
        """
        worker = options.pop("worker", None)
        if worker is not None:
            check_text("worker", worker)
            return worker_actor(worker)
        record = await self._store.find(id)
        lease = (record.lease or record.ended_lease) if isinstance(record, Attempt) else None
        return worker_actor(lease.worker_id if lease else "unknown")

    async def _apply_command(self, command: Command) -> QueueJob:
        decision = await self._engine.do(command)
        assert isinstance(decision.record, Attempt)
        error = _unexpected_end_error(command, decision.record)
        if error is not None:
            raise error
        return QueueJob(decision.record)

    async def _apply_commands(self, commands: Sequence[Command]) -> list[Attempt]:
        attempts: list[Attempt] = []
        for decision in await self._engine.do_all(commands):
            if isinstance(decision, Refused):
                raise decision
            assert isinstance(decision, Decision)
            assert isinstance(decision.record, Attempt)
            attempts.append(decision.record)
        return attempts


def _unexpected_end_error(command: Command, attempt_record: Attempt) -> JobCanceled | LeaseLost | None:
    """Return the error for a command after which the job has ended in another way than its sender asked for, or None.

    That is a result after the request to cancel the job, and a stall or requeue after too many lost leases.
    """
    if attempt_record.lease is not None:
        return None
    if isinstance(command, attempt.Outcome) and not attempt.complete_answer(attempt_record)[0]:
        return JobCanceled(
            attempt_record.cancel_reason,
            f"job {attempt_record.id} was cancelled ({attempt_record.cancel_reason}); its result was not stored",
        )
    has_failed_as_lost = attempt_record.state == attempt.FAILED and attempt_record.is_lost_too_often
    if has_failed_as_lost and isinstance(command, attempt.Stall | attempt.Requeue):
        return LeaseLost(
            attempt_record.lost_leases,
            f"job {attempt_record.id} lost {attempt_record.lost_leases} "
            f"{'lease' if attempt_record.lost_leases == 1 else 'leases'}, more than "
            f"max_lost_leases allows ({attempt_record.max_lost_leases}), and has failed; enqueue it again if needed",
        )
    return None


def _random_id() -> str:
    """Return a new random id.

    It begins with the time, so that jobs created together are neighbours in the store's index.
    """
    return f"{time.time_ns() // 1_000_000:012x}{secrets.token_hex(10)}"


def _failure_facts(error: str) -> Facts:
    """Return the facts of a failure that was reported as text: its first line as message, its last lines as log."""
    lines = replace_surrogates(error).splitlines()
    message = next((line.strip() for line in lines if line.strip()), "")
    return Facts(error_code="FAILED", message=message, log_tail=tuple(lines[-MAX_ERROR_LINES:]))


def _finish_fields(outcome: object) -> dict[str, Any]:
    if not isinstance(outcome, JobOutcome):
        raise bad_request(f"an outcome is {short_repr(outcome)}; give a JobOutcome")
    if outcome.error is None:
        return {"is_success": True, "result": json_copy("result", outcome.result)}
    return {"is_success": False, "facts": _failure_facts(outcome.error)}


def _deep_copy(value: Any) -> Any:
    """Return a copy of a list or dict, so that a caller who changes it does not change the cached record."""
    if isinstance(value, list | dict):
        return msgspec.msgpack.decode(msgspec.msgpack.encode(value))
    return value


def _check_new_job(job: object) -> None:
    if not isinstance(job, NewJob):
        raise bad_request(f"a job to enqueue is {short_repr(job)}; give a NewJob")
    check_labels(job.labels)
    check_request_id(job.request_id)
    if job.dedupe_key != "":
        check_text("dedupe_key", job.dedupe_key)
    for field_name in ("priority", "timeout_seconds", "max_lost_leases"):
        field_value = getattr(job, field_name)
        if not isinstance(field_value, int) or isinstance(field_value, bool) or abs(field_value) > MAX_INT:
            raise bad_request(f"{field_name} is {short_repr(field_value)}; give a whole number of 32 bits")
    if job.timeout_seconds < 1 or job.max_lost_leases < 0:
        raise bad_request("timeout_seconds must be at least 1 and max_lost_leases at least 0; give more")
