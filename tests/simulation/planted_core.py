"""Mistakes in the core: cancels and approvals, jobs and runs, workers and requests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from typing import Any

from deltaci.core import approvals, attempt, cascade, decide, ids, job, machine, run, worker
from deltaci.core.attempt import Attempt
from deltaci.core.errors import Refused
from deltaci.core.events import ATTEMPT, JOB, RUN, Event
from deltaci.core.machine import Command
from deltaci.core.unit_of_work import UnitOfWork
from deltaci.server.runner_api.registration import RunnerRegistry
from tests.simulation.planted_leases import without_timers
from tests.simulation.planting import accepted_command, fault, patched, replaced_follow_up, replaced_handler, set_field

# -- cancels and approvals


@fault
def complete_after_cancel_is_accepted() -> Iterator[None]:
    """A result that arrives after the cancel makes the attempt succeed."""

    ends = {"SUCCEEDED": "succeeded", "FAILED": "failed"}
    with ExitStack() as stack:
        for command in (attempt.Complete, attempt.Finish):
            stack.enter_context(
                replaced_handler(attempt.MACHINE, ("CANCEL_REQUESTED",), command, attempt._finish, **ends)
            )
        yield


@fault
def cancel_is_ignored_while_starting() -> Iterator[None]:
    """A cancel does not reach an attempt that was just acknowledged."""
    with replaced_handler(attempt.MACHINE, ("LEASED", "STARTING"), attempt.Cancel, machine.no_change):
        yield


@fault
def cancel_ignores_attempts_without_a_lease() -> Iterator[None]:
    """A cancel does not reach an attempt without a lease."""
    with replaced_handler(attempt.MACHINE, ("QUEUED", "STALE"), attempt.Cancel, machine.no_change):
        yield


@fault
def cancel_during_planning_is_lost() -> Iterator[None]:
    """A cancel that comes while a run is planned is acknowledged and lost."""

    def start(unit: UnitOfWork, event: Event) -> Iterable[Command]:
        planned_run = unit.run(event.run_id)
        ready = [open_job for open_job in unit.live_jobs(planned_run.id) if not open_job.unmet]
        unit.require(ids.attempt_id(open_job.id, 1) for open_job in ready)
        return [cascade.open_job(open_job) for open_job in ready]

    with replaced_follow_up(RUN, ("QUEUED",), cascade._start_jobs, start):
        yield


@fault
def jobs_outlive_their_run() -> Iterator[None]:
    """Jobs that still run when their run ends continue."""
    with replaced_follow_up(RUN, ("CANCEL_REQUESTED", "FAILED", "TIMEOUT"), cascade._cancel_open_jobs):
        yield


@fault
def superseded_run_continues() -> Iterator[None]:
    """A run is cancelled only by users, not when a newer run supersedes it."""
    real = run._cancel

    def cancel(record: run.Run, command: run.Cancel, at: int) -> Any:
        return None if command.reason == "SUPERSEDED" else real(record, command, at)

    with replaced_handler(run.MACHINE, ("QUEUED", "RUNNING", "WAITING_APPROVAL", "VALIDATING"), run.Cancel, cancel):
        yield


@fault
def workers_may_approve() -> Iterator[None]:
    """The actor of an approval is not checked."""
    with patched((job.Approve, "by", frozenset({"user", "worker"}))):
        yield


@fault
def users_may_report() -> Iterator[None]:
    """The actor of a report is not checked."""
    with patched((run.Report, "by", frozenset({"user", "reporter"}))):
        yield


@fault
def approval_after_cancel_is_accepted() -> Iterator[None]:
    """An approval that arrives after the cancel makes the job succeed."""
    with accepted_command(job.MACHINE, "CANCELED", job.Approve, like="WAITING_APPROVAL"):
        yield


@fault
def one_approval_is_enough() -> Iterator[None]:
    """The number of required approvals is ignored."""

    def approve(record: job.Job, command: job.Approve, at: int) -> Any:
        return job._approve(set_field(record, spec=set_field(record.spec, gate=approvals.PLAIN_GATE)), command, at)

    with replaced_handler(job.MACHINE, ("WAITING_APPROVAL",), job.Approve, approve):
        yield


@fault
def repeated_approval_counts_twice() -> Iterator[None]:
    """An earlier approval by the same person is not noticed."""

    def approve(record: job.Job, command: job.Approve, at: int) -> Any:
        nobody = tuple(set_field(open_job, person="") for open_job in record.approvals)
        return job._approve(set_field(record, approvals=nobody), command, at)

    with replaced_handler(job.MACHINE, ("WAITING_APPROVAL",), job.Approve, approve):
        yield


@fault
def approval_gets_an_attempt() -> Iterator[None]:
    """An approval is given to workers like any other job."""

    def next_attempt(record: job.Job, command: job.OpenApproval, at: int) -> Any:
        return job._next_attempt(record)

    with replaced_handler(job.MACHINE, ("PENDING",), job.OpenApproval, next_attempt, QUEUED="scheduler_assigned"):
        yield


# -- jobs and runs


@fault
def jobs_do_not_wait_for_their_needs() -> Iterator[None]:
    """All jobs of a plan start at once."""

    def start(unit: UnitOfWork, event: Event) -> Iterable[Command]:
        planned_run = unit.run(event.run_id)
        if planned_run.cancel_reason:
            return [run.Cancel(id=planned_run.id, reason=planned_run.cancel_reason)]
        live = unit.live_jobs(planned_run.id)
        unit.require(ids.attempt_id(open_job.id, 1) for open_job in live)
        return [cascade.open_job(open_job) for open_job in live]

    with (
        patched((job, "_check_eligible", lambda record, kind: None)),
        replaced_follow_up(RUN, ("QUEUED",), cascade._start_jobs, start),
    ):
        yield


@fault
def canceled_need_counts_as_met() -> Iterator[None]:
    """A job starts although a job that it needs was cancelled."""
    with patched((job, "satisfies", lambda record: True)):
        yield


@fault
def dependents_are_not_released() -> Iterator[None]:
    """The end of a job does not release its dependents."""
    with replaced_follow_up(JOB, ("SUCCEEDED", "FAILED", "CANCELED"), cascade._release_dependents):
        yield


@fault
def optional_failure_fails_the_run() -> Iterator[None]:
    """A failed job that is not required fails its run."""
    with patched((job, "dooms_run", lambda record: record.state in ("FAILED", "CANCELED"))):
        yield


@fault
def required_failure_is_ignored() -> Iterator[None]:
    """A run succeeds although a required job failed."""
    with patched((job, "dooms_run", lambda record: False)):
        yield


@fault
def fail_fast_is_ignored() -> Iterator[None]:
    """A fail-fast run waits for its other jobs."""
    real = run.next_command
    with patched((run, "next_command", lambda record: real(set_field(record, is_fail_fast=False)))):
        yield


@fault
def every_run_fails_fast() -> Iterator[None]:
    """A run does not wait for its other jobs after a failure."""
    real = run.next_command
    with patched((run, "next_command", lambda record: real(set_field(record, is_fail_fast=True)))):
        yield


@fault
def run_ends_with_a_job_open() -> Iterator[None]:
    """A run ends while one of its jobs is still open."""
    real = run.next_command

    def next_command(record: run.Run) -> Command | None:
        tally = record.tally
        if tally.open == 1 and not tally.doomed and record.state == "RUNNING":
            return run.AllDone(id=record.id)
        return real(record)

    done = ("VALIDATING", dict[str, Any](), dict[str, Any]())
    with (
        patched((run, "next_command", next_command)),
        replaced_handler(run.MACHINE, ("RUNNING",), run.AllDone, lambda record, command, at: done),
    ):
        yield


@fault
def optional_wait_never_ends() -> Iterator[None]:
    """A decided run waits for ever for a job that no worker takes."""
    with without_timers(run.EndOptionalWait):
        yield


@fault
def optional_wait_is_cut_short() -> Iterator[None]:
    """A decided run does not wait for its optional jobs."""
    real = run._begin_optional_wait

    def begin(record: run.Run, command: run.BeginOptionalWait, at: int) -> Any:
        return real(set_field(record, optional_wait_seconds=0), command, at)

    states = ("QUEUED", "RUNNING", "WAITING_APPROVAL")
    with replaced_handler(run.MACHINE, states, run.BeginOptionalWait, begin):
        yield


@fault
def optional_wait_begins_while_a_required_job_is_open() -> Iterator[None]:
    """A run counts its required jobs as optional."""
    with patched((run, "is_decided", lambda record: run.may_start_jobs(record) and record.tally.open > 0)):
        yield


@fault
def workers_are_not_asked_for_the_labels_of_optional_jobs() -> Iterator[None]:
    """A decided run does not wait for a job whose labels a registered worker has."""
    with patched((UnitOfWork, "registered_workers", lambda unit, tenant: [])):
        yield


@fault
def waiting_run_stays_running() -> Iterator[None]:
    """A run that only waits for approvals stays RUNNING."""
    real = run.next_command

    def next_command(record: run.Run) -> Command | None:
        command = real(record)
        return None if isinstance(command, run.AwaitApproval) else command

    with patched((run, "next_command", next_command)):
        yield


@fault
def validation_is_skipped() -> Iterator[None]:
    """A job with validation is valid at once."""

    def passed(unit: UnitOfWork, event: Event) -> Iterable[Command]:
        yield job.Validate(id=event.entity_id, is_passed=True)

    with replaced_follow_up(JOB, ("VALIDATING",), cascade._validate_job, passed):
        yield


@fault
def exit_code_is_ignored() -> Iterator[None]:
    """The exit code is ignored."""

    def finish(record: Attempt, command: attempt.Outcome, at: int) -> Any:
        return attempt._finish(record, set_field(command, is_success=True, exit_code=0), at)

    with (
        replaced_handler(attempt.MACHINE, ("UPLOADING",), attempt.Complete, finish),
        replaced_handler(attempt.MACHINE, ("UPLOADING",), attempt.Finish, finish),
    ):
        yield


@fault
def every_conclusion_is_success() -> Iterator[None]:
    """Every run is reported as a success."""
    transition = ("REPORTED", dict[str, Any](), {"conclusion": "SUCCESS"})
    with replaced_handler(run.MACHINE, run.OVER, run.Report, lambda record, command, at: transition):
        yield


@fault
def late_plan_is_accepted() -> Iterator[None]:
    """A plan is accepted after its deadline."""
    real = run._plan_ready

    def ready(record: run.Run, command: run.PlanReady, at: int) -> Any:
        return real(set_field(record, plan_by=at + 1), command, at)

    with without_timers(run.TimeOutPlanning), replaced_handler(run.MACHINE, ("PLANNING",), run.PlanReady, ready):
        yield


# -- workers


@fault
def lease_takes_no_slot() -> Iterator[None]:
    """A worker's record does not contain its leases."""
    with replaced_follow_up(ATTEMPT, ("LEASED",), cascade._assign_worker):
        yield


@fault
def slot_is_not_freed() -> Iterator[None]:
    """A worker stays busy with attempts that have ended."""
    with replaced_follow_up(ATTEMPT, cascade._LEASE_ENDS, cascade._release_worker):
        yield


@fault
def lost_lease_keeps_its_slot() -> Iterator[None]:
    """A lost lease does not free its slot."""
    with replaced_follow_up(ATTEMPT, ("STALE",), cascade._release_worker):
        yield


@fault
def slot_limit_is_ignored() -> Iterator[None]:
    """A worker gets more leases than it has slots."""

    def assign(record: worker.Worker, command: worker.Assign, at: int) -> Any:
        return worker._assign(set_field(record, max_concurrent_tasks=1000), command, at)

    with replaced_handler(worker.MACHINE, ("IDLE", "BUSY"), worker.Assign, assign):
        yield


@fault
def registering_again_frees_all_slots() -> Iterator[None]:
    """A worker that registers again counts as idle."""

    def offer(record: worker.Worker, command: worker.UpdateCapabilities, at: int) -> Any:
        move = worker._update_capabilities(record, command, at)
        return move if move is None else (move[0], {**move[1], "tasks": ()}, move[2])

    with replaced_handler(worker.MACHINE, ("IDLE", "BUSY"), worker.UpdateCapabilities, offer):
        yield


@fault
def leaving_worker_gets_work() -> Iterator[None]:
    """A worker that was asked to shut down gets new work."""

    def assign(record: worker.Worker, command: worker.Assign, at: int) -> Any:
        return worker._assign(set_field(record, shutdown_reason=""), command, at)

    with replaced_handler(worker.MACHINE, ("IDLE", "BUSY"), worker.Assign, assign):
        yield


@fault
def silence_marks_no_attempt() -> Iterator[None]:
    """The attempts of an unresponsive worker are not marked for reassignment."""
    with replaced_follow_up("worker", ("UNRESPONSIVE",), cascade._mark_tasks):
        yield


@fault
def silence_ends_leases() -> Iterator[None]:
    """An unresponsive worker loses its leases before their TTL."""

    def stall(unit: UnitOfWork, event: Event) -> Iterable[Command]:
        return [
            attempt.Stall(id=id) for id in event.metadata["attempts"] if unit.attempt(id).state in attempt.ACTIVE_STATES
        ]

    with replaced_follow_up("worker", ("UNRESPONSIVE",), cascade._mark_tasks, stall):
        yield


@fault
def heartbeat_leaves_its_worker_unresponsive() -> Iterator[None]:
    """A message under a live lease does not recover its worker."""
    with patched((decide, "_expand_message", lambda _unit, command: (command,))):
        yield


@fault
def worker_with_a_lease_is_given_up() -> Iterator[None]:
    """An unresponsive worker is shut down although it holds a lease."""

    def give_up(record: worker.Worker, command: worker.GiveUp, at: int) -> Any:
        return worker._give_up(set_field(record, tasks=()), command, at)

    with replaced_handler(worker.MACHINE, ("UNRESPONSIVE",), worker.GiveUp, give_up):
        yield


# -- requests


@fault
def request_ids_are_not_remembered() -> Iterator[None]:
    """Records do not remember request ids."""
    with (
        patched((machine, "remember_request", lambda record, command: record)),
        patched((decide, "remember_request", lambda record, command: record)),
    ):
        yield


@fault
def start_request_is_not_remembered() -> Iterator[None]:
    """A run does not remember the request that started it."""
    real = machine.remember_request

    def remember(record: Any, command: Command) -> Any:
        return record if isinstance(command, decide.StartRun) else real(record, command)

    with patched((decide, "remember_request", remember)):
        yield


@fault
def request_content_is_not_compared() -> Iterator[None]:
    """A different command under a known request id counts as a repetition."""

    def request(command: Command) -> str:
        return f"{command.request_id} same"

    with patched((machine, "_request_fingerprint", request)):
        yield


@fault
def expected_rev_is_ignored() -> Iterator[None]:
    """A command that expects an old rev is accepted."""
    real = machine.Machine.decide

    def decide(self: Any, record: Any, command: Command, at: int, events: list[Event]) -> Any:
        return real(self, record, set_field(command, expected_rev=None), at, events)

    with patched((machine.Machine, "decide", decide)):
        yield


@fault
def registration_token_is_reusable() -> Iterator[None]:
    """A registration token can be used any number of times."""
    real = RunnerRegistry._redeem_token

    async def admit(self: Any, worker: Any, request: Any, claims: Any) -> str:
        try:
            return await real(self, worker, request, claims)
        except Refused as refused:
            if refused.code != "bad_credential":
                raise
            incarnation = await self._latest_incarnation(worker)
            return str(incarnation.id)

    with patched((RunnerRegistry, "_redeem_token", admit)):
        yield
