"""Handlers for the messages of the runner protocol (document 001).

Each message becomes a command for the engine, and the decision of the core becomes the response. The handlers decide
nothing: the sender is already authenticated, and the core checks the lease in the transaction that accepts the message.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any, Final
from urllib.parse import quote

import msgspec

from deltaci.core import attempt, ids, lease
from deltaci.core.attempt import Attempt
from deltaci.core.decide import Decision
from deltaci.core.errors import Refused, StaleLease
from deltaci.core.events import worker_actor
from deltaci.core.failures import Facts, FailureRule
from deltaci.core.flaky import failed_tests, job_name
from deltaci.core.instants import SECOND, from_datetime
from deltaci.core.job import Job
from deltaci.core.json_values import json_copy, short_repr
from deltaci.core.machine import Command, Record
from deltaci.core.run import Origin, Run
from deltaci.core.text import plain_line
from deltaci.core.timers import ready_at
from deltaci.core.worker import LEFT, Shutdown, Worker, is_over
from deltaci.engine.engine import Claim, ClaimedAttempt, Engine
from deltaci.engine.unreadable_records import unreadable_refusal
from deltaci.engine.waiters import ClaimWaiters, LeaseLimit, WaitForDisconnect
from deltaci.fleet.liveness import Fleet
from deltaci.protocol import messages as wire
from deltaci.protocol.job_spec import SentJobSpec
from deltaci.protocol.messages import (
    AckLease,
    CancelAck,
    CancelAcked,
    Complete,
    CompleteAck,
    Heartbeat,
    HeartbeatAck,
    JobSpec,
    LeaseGranted,
    RunnerMessage,
    ServerMessage,
)
from deltaci.protocol.reports.rule_results import validation_verdict
from deltaci.protocol.routes import ROOT
from deltaci.server.follower import read_time_and_records
from deltaci.storage.port import Begin, Store, Transaction, load_jobs

MAX_STEP_CHARS: Final = 500  # The limit for the current step in a heartbeat, which is stored with each heartbeat.

Response = ServerMessage | Refused
# (tenant, attempt id) -> known flaky tests of the job
ReadFlakyTests = Callable[[str, str], Awaitable[Collection[str]]]
# tenant -> failure rules that apply before the built-in ones
ReadFailureRules = Callable[[str], Awaitable[tuple[FailureRule, ...]]]
REPORTED_FIELDS: Final = (
    *("timings", "artifacts", "summary", "steps", "tests", "cost"),
    *("is_skipped", "verdicts", "head", "place"),
)
MAX_REMEMBERED: Final = 100_000
MAX_REPORTED_TEXT: Final = 2000  # The length limit of a line in the protocol.


class Runner(msgspec.Struct, frozen=True):
    """The runner that sent a request, as proved by its credential."""

    id: str
    tenant: str

    def may_speak_for(self, worker_id: str) -> bool:
        """Return whether `id` is this runner or one of its slots: runner `host` may act as `host` and `host/1`."""
        return worker_id == self.id or worker_id.startswith(f"{self.id}/")


class MessageHandlers:
    """Turns each message of the runner protocol into a command, and the core's decision into a response."""

    def __init__(
        self,
        store: Store,
        engine: Engine,
        ttl_seconds: int = lease.TTL_SECONDS,
        limit: LeaseLimit | None = None,
        read_failure_rules: ReadFailureRules | None = None,
        read_flaky_tests: ReadFlakyTests | None = None,
        fleet: Fleet | None = None,
    ) -> None:
        self._store = store
        self._engine = engine
        self._ttl_seconds = ttl_seconds
        self._read_failure_rules = read_failure_rules
        self._read_flaky_tests = read_flaky_tests
        self._fleet = fleet
        # Attempts that were leased here and have no validation rules. If one is missing, its record is read instead.
        self._without_rules: set[str] = set()
        self._waiters = ClaimWaiters(
            engine, store.commit_hints, limit, fleet.eligible_workers if fleet is not None else None
        )

    def stop_waiting(self) -> None:
        """Answer every blocked claim with no leases, because the server is about to stop."""
        self._waiters.close()
        if self._fleet is not None:
            self._fleet.stop_waiting()

    async def lease(
        self, runner: Runner, request: wire.LeaseRequest, wait_for_disconnect: WaitForDisconnect | None = None
    ) -> list[LeaseGranted]:
        """Grant up to `request.slots` attempts, waiting up to `request.wait_seconds` for the first one.

        Claims nothing for a runner that has disconnected: an unaccepted lease would count against the attempt.
        """
        self._check_runner_id(runner, request.runner_id)
        claim = Claim(
            tenant=runner.tenant,
            worker_id=request.runner_id,
            labels=tuple(request.capabilities),
            limit=request.slots,
            ttl_seconds=self._ttl_seconds,
            accept_seconds=lease.ACCEPT_SECONDS,
            only_ids=tuple(request.attempts),
        )
        clock = asyncio.get_running_loop().time
        deadline = clock() + request.wait_seconds
        fleet = self._fleet
        if fleet is not None:
            await fleet.mark_alive(runner.tenant, [request.runner_id])
        while True:
            if fleet is not None and not await fleet.wait_until_eligible(
                runner.tenant, request.runner_id, deadline - clock(), wait_for_disconnect
            ):
                return []
            claimed_attempts = await self._waiters.claim(
                claim, deadline - clock(), self._ineligible_waiter(runner, request.runner_id, wait_for_disconnect)
            )
            granted_leases = await self._grant(runner, claimed_attempts)
            is_on_hold = fleet is not None and fleet.is_on_hold(runner.tenant, request.runner_id)
            if granted_leases or not (claimed_attempts or is_on_hold):
                return granted_leases

    def _ineligible_waiter(
        self, runner: Runner, worker_id: str, wait_for_disconnect: WaitForDisconnect | None
    ) -> WaitForDisconnect | None:
        """Return a function that waits until the runner has disconnected or may not get any more work.

        Without a fleet, it only waits for the disconnection.
        """
        fleet = self._fleet
        return (
            wait_for_disconnect
            if fleet is None
            else lambda: fleet.wait_until_on_hold(runner.tenant, worker_id, wait_for_disconnect)
        )

    async def leave(self, runner: Runner, request: wire.LeaveRequest) -> bool:
        """Shut the runner's worker down, so that it gets no new work. Return whether it is over already.

        A worker without a record counts as over.
        """
        self._check_runner_id(runner, request.runner_id)
        worker_record = await self._store.find(request.runner_id)
        if not isinstance(worker_record, Worker) or worker_record.tenant != runner.tenant or is_over(worker_record):
            return True
        if self._fleet is not None:
            await self._fleet.mark_alive(runner.tenant, [worker_record.id])
        try:
            shutdown_command = Shutdown(id=worker_record.id, actor=worker_actor(worker_record.id), reason=LEFT)
            worker_record = (await self._engine.do(shutdown_command)).record
        except Refused as refused:
            if refused.code != "wrong_state":
                raise
            worker_record = await self._store.find(worker_record.id)  # It was shut down meanwhile.
        return not isinstance(worker_record, Worker) or is_over(worker_record)

    async def unclaimable(self, runner: Runner, attempt_ids: Sequence[str]) -> list[str]:
        """Return those of the attempts that cannot be claimed now: leased, finished, or not found for this tenant."""
        _, records = await self._store.transact(lambda: read_time_and_records(attempt_ids))
        claimable_ids = {
            record.id
            for record in records
            if unreadable_refusal(record) is not None
            or (record.tenant == runner.tenant and ready_at(record) is not None)
        }
        return [attempt_id for attempt_id in attempt_ids if attempt_id not in claimable_ids]

    async def _grant(self, runner: Runner, claimed_attempts: Sequence[ClaimedAttempt]) -> list[LeaseGranted]:
        """Return the leases of those attempts whose job a runner can execute.

        Fails all other attempts at once, because no other runner could execute them either.
        """
        granted_leases: list[LeaseGranted] = []
        failed_completions: list[Command] = []
        for claimed_attempt in claimed_attempts:
            try:
                granted_leases.append(self._lease_granted(claimed_attempt))
            except Refused as refused:
                facts = Facts(error_code="BAD_SPEC", message=refused.message)
                failed_completions.append(
                    attempt.Complete(**_command_fields(runner, claimed_attempt), is_success=False, facts=facts)
                )
        if failed_completions:
            await self._engine.do_all(failed_completions)
        return granted_leases

    def _lease_granted(self, claimed_attempt: ClaimedAttempt) -> LeaseGranted:
        """Return the message that grants a lease, with the job spec or a reference to it."""
        attempt_record = claimed_attempt.attempt
        spec, spec_ref = _spec_or_ref(attempt_record)
        if spec is not None and not spec.rules:
            if len(self._without_rules) >= MAX_REMEMBERED:
                self._without_rules.clear()
            self._without_rules.add(attempt_record.id)
        return LeaseGranted(
            lease_id=claimed_attempt.lease_id,
            job_id=attempt_record.job_id or attempt_record.id,
            run_id=attempt_record.run_id,
            lease_ttl_seconds=self._ttl_seconds,
            heartbeat_interval_seconds=max(1, self._ttl_seconds * lease.HEARTBEAT_SECONDS // lease.TTL_SECONDS),
            # The server ends the attempt at its timeout; a runner that does not learn of that ends it a little later.
            max_runtime_seconds=min(attempt_record.timeout_seconds + lease.RUNTIME_BUFFER_SECONDS, wire.MAX_SECONDS),
            job_spec=spec,
            job_spec_ref=spec_ref,
        )

    async def leased_attempt(self, runner: Runner, lease_id: str) -> Attempt:
        """Return the attempt of a lease that this runner holds.

        Raises `StaleLease` if it does not, by the store's clock.
        """
        lease_ref = ids.lease_ref(lease_id)
        now, attempt_record = await self._store.transact(lambda: self._read_record(lease_ref.attempt_id))
        if (refusal := unreadable_refusal(attempt_record)) is not None:
            raise refusal
        if not isinstance(attempt_record, Attempt) or attempt_record.tenant != runner.tenant:
            raise lease.unknown_attempt(lease_ref.attempt_id)
        # The request does not name the slot that holds the lease: accept any slot of this runner.
        latest_lease = attempt_record.lease or attempt_record.ended_lease
        worker_id = (
            latest_lease.worker_id
            if latest_lease is not None and runner.may_speak_for(latest_lease.worker_id)
            else runner.id
        )
        lease.check_fence(
            attempt_record.lease, attempt_record.ended_lease, lease_ref, worker_id, max(now, attempt_record.updated_at)
        )
        return attempt_record

    async def run_origin(self, attempt_record: Attempt) -> Origin:
        """Return the origin of the attempt's run, or an empty origin for an attempt of the plain queue."""
        run_record = await self._store.find(attempt_record.run_id) if attempt_record.run_id else None
        if (refusal := unreadable_refusal(run_record)) is not None:
            raise refusal
        return (
            run_record.origin
            if isinstance(run_record, Run) and run_record.tenant == attempt_record.tenant
            else Origin()
        )

    async def find_records(self, record_ids: Sequence[str]) -> list[Record]:
        """Return the records with these ids that exist."""
        return (await self._store.transact(lambda: read_time_and_records(record_ids)))[1]

    async def load_jobs(self, run_id: str) -> list[Job]:
        """Return all jobs of a run, including finished ones."""
        return await self._store.read(lambda: load_jobs(run_id)) if run_id else []

    async def hand_back(self, runner: Runner, lease_id: str) -> None:
        """Return an attempt whose processes have ended to the queue, without counting a lost lease."""
        while True:
            leased_attempt = await self.leased_attempt(runner, lease_id)
            try:
                await self._engine.do(
                    attempt.Stall(id=leased_attempt.id, reason=attempt.HANDED_BACK, expected_rev=leased_attempt.rev)
                )
                return
            except Refused as refused:
                if refused.code != "stale_rev":  # A heartbeat was accepted in between: check the lease again.
                    raise

    async def submit(self, runner: Runner, messages: Sequence[RunnerMessage]) -> list[Response]:
        """Accept or refuse each message on its own and return the responses in order.

        All accepted messages are written in one batch.
        """
        responses: list[Response | None] = [None] * len(messages)
        commands: list[Command] = []
        message_indexes: list[int] = []
        for message_index, message in enumerate(messages):
            try:
                self._check_runner_id(runner, message.runner_id)
                if isinstance(message, AckLease):
                    await self._check_job(runner, message)
                commands.append(await self._add_failure_facts(runner, _to_command(runner, message)))
                message_indexes.append(message_index)
            except Refused as refused:
                responses[message_index] = _refusal_response(message, refused)
        commands = await self._add_verdicts(commands, [messages[message_index] for message_index in message_indexes])
        uploads = [
            command
            for message_index in message_indexes
            for command in _upload_commands(runner, messages[message_index])
        ]
        results = await self._engine.do_all([*uploads, *commands])
        if self._fleet is not None:
            sender_ids = {message.runner_id for message in messages if runner.may_speak_for(message.runner_id)}
            await self._fleet.mark_alive(runner.tenant, sender_ids, results)
        # What happens to an upload report is in the answer to its heartbeat: one that comes too late changes nothing.
        results = results[len(uploads) :]
        for message_index, result in zip(message_indexes, results, strict=True):
            message = messages[message_index]
            responses[message_index] = (
                _refusal_response(message, result)
                if isinstance(result, Refused)
                else await self._response(message, result)
            )
        return [response for response in responses if response is not None]

    async def _add_failure_facts(self, runner: Runner, command: Command) -> Command:
        """Return a failed `Complete` with the tenant's failure rules and the names of its flaky failed tests.

        Return any other command unchanged.
        """
        if not isinstance(command, attempt.Complete) or command.is_success:
            return command
        rules = await self._read_failure_rules(runner.tenant) if self._read_failure_rules is not None else ()
        failed_test_names, has_all_names = failed_tests(command.report)
        flaky_test_names = (
            await self._read_flaky_tests(runner.tenant, command.id)
            if self._read_flaky_tests is not None and failed_test_names and has_all_names
            else ()
        )
        facts = msgspec.structs.replace(
            command.facts,
            flaky_tests=tuple(test_name for test_name in failed_test_names if test_name in flaky_test_names),
        )
        return msgspec.structs.replace(command, rules=rules, facts=facts)

    async def _add_verdicts(self, commands: list[Command], messages: Sequence[RunnerMessage]) -> list[Command]:
        """Return the commands, each successful `Complete` with the verdict on its job's validation rules."""
        succeeded_ids: list[str] = []
        for command, message in zip(commands, messages, strict=True):
            if isinstance(message, Complete) and message.status == "SUCCEEDED":
                if message.verdicts or command.id not in self._without_rules:
                    succeeded_ids.append(command.id)
                self._without_rules.discard(command.id)
        if not succeeded_ids:
            return commands
        attempt_by_id = {record.id: record for record in await self._store.find_all(succeeded_ids)}
        return [
            _with_verdict(command, message, attempt_by_id.get(command.id))
            for command, message in zip(commands, messages, strict=True)
        ]

    @staticmethod
    def _check_runner_id(runner: Runner, worker_id: str) -> None:
        if not runner.may_speak_for(worker_id):
            raise Refused(
                "wrong_runner", f"this credential is for runner {runner.id}, not for {worker_id}; use that runner's own"
            )

    async def _check_job(self, runner: Runner, message: AckLease) -> None:
        attempt_id = ids.lease_ref(message.lease_id).attempt_id
        if message.job_id not in (attempt_id, attempt_id.rpartition(".")[0]):
            await self.leased_attempt(runner, message.lease_id)  # A stale lease takes precedence over other errors.
            raise Refused("bad_request", f"the lease is not for job {short_repr(message.job_id)}; name its own")

    async def _response(self, message: RunnerMessage, decision: Decision) -> ServerMessage:
        """Return the answer to a message whose command was applied.

        That to an AckLease or a Heartbeat has the remaining time and any cancel request.
        """
        attempt_record = decision.record
        assert isinstance(attempt_record, Attempt)
        if isinstance(message, Complete):
            is_accepted, stale_reason = attempt.complete_answer(attempt_record)
            return CompleteAck(lease_id=message.lease_id, accepted=is_accepted, reason=stale_reason)
        if isinstance(message, CancelAck):
            return CancelAcked(lease_id=message.lease_id, accepted=True)
        # A repeated heartbeat extended nothing: report the time that is left, not the full TTL.
        now = (
            attempt_record.updated_at
            if decision.events
            else (await self._store.transact(lambda: self._read_record(attempt_record.id)))[0]
        )
        remaining_microseconds = attempt_record.lease.expires_at - now if attempt_record.lease is not None else 0
        stop_request = attempt.stop_request(attempt_record, now)
        return HeartbeatAck(
            lease_id=message.lease_id,
            extend_lease=True,
            new_lease_ttl_seconds=max(0, remaining_microseconds // SECOND),
            cancel_requested=stop_request is not None,
            cancel_deadline_seconds=stop_request[1] if stop_request is not None else 0,
            reason=stop_request[0] if stop_request is not None else msgspec.UNSET,
        )

    def _read_record(self, record_id: str) -> Transaction[tuple[int, Record | None]]:
        """Return the store's time, and the record or None. Writes nothing."""
        now, stored_records = yield Begin((record_id,))
        return self._engine.clock.read(now), stored_records[0].record if stored_records else None


def _command_fields(runner: Runner, claimed_attempt: ClaimedAttempt) -> dict[str, Any]:
    """Return the fields of a command under a lease that was just granted."""
    granted_lease = claimed_attempt.attempt.lease
    assert granted_lease is not None
    return {
        "id": claimed_attempt.attempt.id,
        "actor": worker_actor(granted_lease.worker_id),
        "lease": ids.lease_ref(claimed_attempt.lease_id),
        "tenant": runner.tenant,
    }


def job_spec(attempt_record: Attempt) -> SentJobSpec:
    """Return the job spec of the attempt. An attempt of the plain queue has it as its payload.

    A spec without a name gets that of the job in its run, or the attempt's id. Raises `Refused` for an invalid spec.
    """
    try:
        spec = msgspec.convert(attempt_record.spec or {}, SentJobSpec)
        return spec if spec.name else msgspec.structs.replace(spec, name=job_name(attempt_record) or attempt_record.id)
    except msgspec.ValidationError as error:
        raise Refused(
            "bad_spec", f"the job of attempt {attempt_record.id} cannot be executed by a runner: {error}"
        ) from None


def _spec_or_ref(attempt_record: Attempt) -> tuple[JobSpec | None, str | None]:
    spec = job_spec(attempt_record)
    if len(wire.encode(spec)) <= wire.MAX_SPEC_BYTES:
        return spec, None
    return None, f"{ROOT}specs/{quote(attempt_record.id)}"


def _message_fields(runner: Runner, message: RunnerMessage) -> dict[str, Any]:
    """Return the fields that every command has which follows from a message under a lease."""
    lease_ref = ids.lease_ref(message.lease_id)
    return {
        "id": lease_ref.attempt_id,
        "actor": worker_actor(message.runner_id),
        "lease": lease_ref,
        "tenant": runner.tenant,
    }


def _upload_commands(runner: Runner, message: RunnerMessage) -> list[Command]:
    """Return the command to apply before a heartbeat that reports the begin of uploads; else none."""
    is_uploading = isinstance(message, Heartbeat) and message.progress is not None and message.progress.phase
    return [attempt.BeginUpload(**_message_fields(runner, message))] if is_uploading else []


def _to_command(runner: Runner, message: RunnerMessage) -> Command:
    """Return the command for a runner's message. Texts from the job are cleaned and shortened."""
    command_fields = _message_fields(runner, message)
    match message:
        case AckLease():
            return attempt.Ack(**command_fields)
        case Heartbeat():
            sent_at = from_datetime(message.ts)
            return attempt.Heartbeat(
                **command_fields, progress=_progress(message), sequence_no=message.sequence_no, sent_at=sent_at
            )
        case CancelAck():
            return attempt.CancelAck(**command_fields, report=_report(message))
        case Complete():
            report = _report(message)
            return attempt.Complete(
                **command_fields,
                is_success=message.status == "SUCCEEDED",
                exit_code=message.exit_code,
                result=json_copy("output", message.output),
                report=report,
                facts=Facts(
                    exit_code=message.exit_code,
                    signal=message.signal,
                    error_code=message.error_code or "",
                    message=plain_line(message.summary, MAX_REPORTED_TEXT),
                    log_tail=tuple(plain_line(log_line, MAX_REPORTED_TEXT) for log_line in message.log_tail),
                    failed_tests=failed_tests(report)[0],
                ),
            )


def _with_verdict(command: Command, message: RunnerMessage, record: Record | None) -> Command:
    """Return a successful `Complete` with the verdict on the job's validation rules; any other command unchanged."""
    if not (isinstance(command, attempt.Complete) and command.is_success and isinstance(message, Complete)):
        return command
    try:
        spec = job_spec(record) if isinstance(record, Attempt) else JobSpec()
    except Refused:  # It is not the job spec of a runner, so it has no rules.
        return command
    if not (spec.rules or message.verdicts):
        return command
    return msgspec.structs.replace(command, verdict=validation_verdict(message, spec))


def _progress(message: Heartbeat) -> dict[str, Any] | None:
    """Return the progress that a heartbeat reports, for display, or None if it reports none."""
    progress: dict[str, Any] = msgspec.to_builtins(message.progress) if message.progress is not None else {}
    if "current_step" in progress:
        progress["current_step"] = progress["current_step"][:MAX_STEP_CHARS]
    if message.log_cursor is not None:
        progress["log_bytes"] = message.log_cursor.bytes_sent
    return progress or None


def _report(message: Complete | CancelAck) -> dict[str, Any]:
    """Return the non-empty `REPORTED_FIELDS` of the message, which are stored for display."""
    if isinstance(message, Complete):
        json_copy("cost", message.cost)
    message_fields: dict[str, Any] = msgspec.to_builtins(message)
    return {
        field_name: _sanitize(message_fields[field_name])
        for field_name in REPORTED_FIELDS
        if message_fields.get(field_name)
    }


def _sanitize(json_value: Any) -> Any:
    """Return the value with control characters removed from each text in it, and the texts shortened.

    The texts come from the job, so they are not trusted.
    """
    match json_value:
        case str():
            return plain_line(json_value, MAX_REPORTED_TEXT)
        case list():
            return [_sanitize(element) for element in json_value]
        case dict():
            return {_sanitize(member_name): _sanitize(element) for member_name, element in json_value.items()}
    return json_value


def _refusal_response(message: RunnerMessage, refused: Refused) -> Response:
    if not isinstance(refused, StaleLease):
        return refused
    stale_response = stale_lease(message.lease_id, refused)
    return (
        msgspec.structs.replace(stale_response, extend_lease=False, stale=True)
        if isinstance(message, Heartbeat)
        else stale_response
    )


def stale_lease(lease_id: str, refused: StaleLease) -> wire.StaleLease:
    """Return the protocol's response to a message under a stale lease. The core's reasons are those of the protocol."""
    return wire.StaleLease(lease_id=lease_id, reason=refused.reason)  # type: ignore[arg-type]
