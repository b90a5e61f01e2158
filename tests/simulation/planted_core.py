"""Mistakes in the core: about cancels and approvals, jobs and runs, workers and requests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from deltaci.core import approvals, attempt, cascade, decide, ids, job, machine, run, worker
from deltaci.core.attempt import Attempt
from deltaci.core.errors import Refused
from deltaci.core.events import ATTEMPT, JOB, RUN, Event
from deltaci.core.machine import Command
from deltaci.core.unit_of_work import UnitOfWork
from deltaci.server.runner_api.registration import Registry
from tests.simulation.planted_leases import without
from tests.simulation.planting import fault, instead, new_rule, reaction, rule, set_field

# -- cancels and approvals


@fault
def complete_after_cancel_counts() -> Iterator[None]:
    """A result that comes after the cancel makes the attempt succeed."""

    def complete(record: Attempt, command: attempt.Complete, at: int) -> Any:
        return attempt._finish(record, command, at)

    ends = {"SUCCEEDED": "succeeded", "FAILED": "failed"}
    with rule(attempt.MACHINE, ("CANCEL_REQUESTED",), attempt.Complete, complete, **ends):
        yield


@fault
def cancel_is_ignored_while_starting() -> Iterator[None]:
    """A cancel does not reach an attempt that was just acknowledged."""
    with rule(attempt.MACHINE, ("LEASED", "STARTING"), attempt.Cancel, machine.no_change):
        yield


@fault
def cancel_forgets_what_is_stale() -> Iterator[None]:
    """A cancel does not reach an attempt that rests without a lease."""
    with rule(attempt.MACHINE, ("QUEUED", "STALE"), attempt.Cancel, machine.no_change):
        yield


@fault
def early_cancel_is_forgotten() -> Iterator[None]:
    """A cancel that comes while a run is planned is acknowledged and forgotten."""

    def start(world: UnitOfWork, event: Event) -> Iterable[Command]:
        planned = world.run(event.run_id)
        ready = [each for each in world.live_jobs(planned.id) if not each.unmet]
        world.require(ids.attempt_id(each.id, 1) for each in ready)
        return [cascade.open_job(each) for each in ready]

    with reaction(RUN, ("QUEUED",), cascade._start_jobs, start):
        yield


@fault
def jobs_outlive_their_run() -> Iterator[None]:
    """What still runs when a run ends goes on."""
    with reaction(RUN, ("CANCEL_REQUESTED", "FAILED", "TIMEOUT"), cascade._cancel_open_jobs):
        yield


@fault
def superseded_run_goes_on() -> Iterator[None]:
    """Only people can cancel a run: a newer run asks in vain."""
    real = run._cancel

    def cancel(record: run.Run, command: run.Cancel, at: int) -> Any:
        return None if command.reason == "SUPERSEDED" else real(record, command, at)

    with rule(run.MACHINE, ("QUEUED", "RUNNING", "WAITING_APPROVAL", "VALIDATING"), run.Cancel, cancel):
        yield


@fault
def workers_may_approve() -> Iterator[None]:
    """Nobody looks at who approves."""
    with instead((job.Approve, "by", frozenset({"user", "worker"}))):
        yield


@fault
def anybody_may_report() -> Iterator[None]:
    """Nobody looks at who reports."""
    with instead((run.Report, "by", frozenset({"user", "reporter"}))):
        yield


@fault
def approve_what_is_canceled() -> Iterator[None]:
    """An approval that comes after the cancel makes the job succeed."""
    with new_rule(job.MACHINE, "CANCELED", job.Approve, like="WAITING_APPROVAL"):
        yield


@fault
def one_approval_is_enough() -> Iterator[None]:
    """Nobody counts how many people must approve."""

    def approve(record: job.Job, command: job.Approve, at: int) -> Any:
        return job._approve(set_field(record, spec=set_field(record.spec, gate=approvals.PLAIN_GATE)), command, at)

    with rule(job.MACHINE, ("WAITING_APPROVAL",), job.Approve, approve):
        yield


@fault
def who_approves_twice_counts_twice() -> Iterator[None]:
    """Nobody looks whether somebody has approved already."""

    def approve(record: job.Job, command: job.Approve, at: int) -> Any:
        nobody = tuple(set_field(each, person="") for each in record.approvals)
        return job._approve(set_field(record, approvals=nobody), command, at)

    with rule(job.MACHINE, ("WAITING_APPROVAL",), job.Approve, approve):
        yield


@fault
def approvals_are_work() -> Iterator[None]:
    """An approval is handed to workers like any other job."""

    def next_attempt(record: job.Job, command: job.OpenApproval, at: int) -> Any:
        return job._next_attempt(record)

    with rule(job.MACHINE, ("PENDING",), job.OpenApproval, next_attempt, QUEUED="scheduler_assigned"):
        yield


# -- jobs and runs


@fault
def jobs_do_not_wait_for_their_needs() -> Iterator[None]:
    """All jobs of a plan begin at once."""

    def start(world: UnitOfWork, event: Event) -> Iterable[Command]:
        planned = world.run(event.run_id)
        if planned.cancel_reason:
            return [run.Cancel(id=planned.id, reason=planned.cancel_reason)]
        live = world.live_jobs(planned.id)
        world.require(ids.attempt_id(each.id, 1) for each in live)
        return [cascade.open_job(each) for each in live]

    with (
        instead((job, "_check_ready", lambda record, kind: None)),
        reaction(RUN, ("QUEUED",), cascade._start_jobs, start),
    ):
        yield


@fault
def a_canceled_need_is_met() -> Iterator[None]:
    """Whoever waits for a job that was cancelled goes on."""
    with instead((job, "satisfies", lambda record: True)):
        yield


@fault
def dependents_are_not_told() -> Iterator[None]:
    """Whoever waits for a job never hears of its end."""
    with reaction(JOB, ("SUCCEEDED", "FAILED", "CANCELED"), cascade._release_dependents):
        yield


@fault
def optional_failure_fails_the_run() -> Iterator[None]:
    """A job that may fail fails its run."""
    with instead((job, "dooms_run", lambda record: record.state in ("FAILED", "CANCELED"))):
        yield


@fault
def required_failure_is_ignored() -> Iterator[None]:
    """A run succeeds although a required job failed."""
    with instead((job, "dooms_run", lambda record: False)):
        yield


@fault
def fail_fast_is_forgotten() -> Iterator[None]:
    """A run that should fail fast waits for the rest."""
    real = run.next_command
    with instead((run, "next_command", lambda record: real(set_field(record, is_fail_fast=False)))):
        yield


@fault
def every_run_fails_fast() -> Iterator[None]:
    """A run does not wait for the rest of its jobs."""
    real = run.next_command
    with instead((run, "next_command", lambda record: real(set_field(record, is_fail_fast=True)))):
        yield


@fault
def run_ends_with_a_job_open() -> Iterator[None]:
    """A run is counted as done while one of its jobs still runs."""
    real = run.next_command

    def next_command(record: run.Run) -> Command | None:
        tally = record.tally
        if tally.open == 1 and not tally.doomed and record.state == "RUNNING":
            return run.AllDone(id=record.id)
        return real(record)

    done = ("VALIDATING", dict[str, Any](), dict[str, Any]())
    with (
        instead((run, "next_command", next_command)),
        rule(run.MACHINE, ("RUNNING",), run.AllDone, lambda record, command, at: done),
    ):
        yield


@fault
def waiting_run_looks_busy() -> Iterator[None]:
    """A run that can only wait for people is not shown as waiting."""
    real = run.next_command

    def next_command(record: run.Run) -> Command | None:
        found = real(record)
        return None if isinstance(found, run.AwaitApproval) else found

    with instead((run, "next_command", next_command)):
        yield


@fault
def rules_are_not_run() -> Iterator[None]:
    """A job with rules is valid without them."""

    def passed(world: UnitOfWork, event: Event) -> Iterable[Command]:
        yield job.Validate(id=event.entity_id, is_passed=True)

    with reaction(JOB, ("VALIDATING",), cascade._validate_job, passed):
        yield


@fault
def failure_counts_as_success() -> Iterator[None]:
    """Nobody looks at the exit code."""

    def finish(record: Attempt, command: attempt.Outcome, at: int) -> Any:
        return attempt._finish(record, set_field(command, is_success=True, exit_code=0), at)

    with (
        rule(attempt.MACHINE, ("UPLOADING",), attempt.Complete, finish),
        rule(attempt.MACHINE, ("UPLOADING",), attempt.Finish, finish),
    ):
        yield


@fault
def wrong_conclusion() -> Iterator[None]:
    """Every run is reported as a success."""
    told = ("REPORTED", dict[str, Any](), {"conclusion": "SUCCESS"})
    with rule(run.MACHINE, run.OVER, run.Report, lambda record, command, at: told):
        yield


@fault
def late_plans_count() -> Iterator[None]:
    """A plan counts although the time for it is over."""
    real = run._plan_ready

    def ready(record: run.Run, command: run.PlanReady, at: int) -> Any:
        return real(set_field(record, plan_by=at + 1), command, at)

    with without(run.TimeOutPlanning), rule(run.MACHINE, ("PLANNING",), run.PlanReady, ready):
        yield


# -- workers


@fault
def lease_takes_no_place() -> Iterator[None]:
    """A worker does not know of what it was granted."""
    with reaction(ATTEMPT, ("LEASED",), cascade._assign_worker):
        yield


@fault
def place_is_not_freed() -> Iterator[None]:
    """A worker stays busy with what is over."""
    with reaction(ATTEMPT, cascade._LEASE_ENDS, cascade._release_worker):
        yield


@fault
def place_leaks_with_a_lost_lease() -> Iterator[None]:
    """Only what ends well frees its place."""
    with reaction(ATTEMPT, ("STALE",), cascade._release_worker):
        yield


@fault
def no_limit_of_places() -> Iterator[None]:
    """A worker gets as much as it asks for."""

    def assign(record: worker.Worker, command: worker.Assign, at: int) -> Any:
        return worker._assign(set_field(record, max_concurrent_tasks=1000), command, at)

    with rule(worker.MACHINE, ("IDLE", "BUSY"), worker.Assign, assign):
        yield


@fault
def coming_in_again_frees_all_places() -> Iterator[None]:
    """Who registers again is taken for empty."""

    def offer(record: worker.Worker, command: worker.UpdateCapabilities, at: int) -> Any:
        move = worker._update_capabilities(record, command, at)
        return move if move is None else (move[0], {**move[1], "tasks": ()}, move[2])

    with rule(worker.MACHINE, ("IDLE", "BUSY"), worker.UpdateCapabilities, offer):
        yield


@fault
def who_leaves_gets_more() -> Iterator[None]:
    """A worker that was asked to go gets new work."""

    def assign(record: worker.Worker, command: worker.Assign, at: int) -> Any:
        return worker._assign(set_field(record, shutdown_reason=""), command, at)

    with rule(worker.MACHINE, ("IDLE", "BUSY"), worker.Assign, assign):
        yield


@fault
def silent_worker_keeps_its_leases() -> Iterator[None]:
    """What a worker has that does not answer is left with it."""
    with reaction("worker", ("UNRESPONSIVE",), cascade._stall_tasks):
        yield


# -- requests


@fault
def requests_are_not_remembered() -> Iterator[None]:
    """No record knows what was asked of it."""
    with (
        instead((machine, "remember_request", lambda record, command: record)),
        instead((decide, "remember_request", lambda record, command: record)),
    ):
        yield


@fault
def a_start_is_forgotten() -> Iterator[None]:
    """A run does not know the request that it was started by."""
    real = machine.remember_request

    def remember(record: Any, command: Command) -> Any:
        return record if isinstance(command, decide.StartRun) else real(record, command)

    with instead((decide, "remember_request", remember)):
        yield


@fault
def request_id_fits_everything() -> Iterator[None]:
    """What comes under a known request id is taken for a repetition, whatever it says."""

    def request(command: Command) -> str:
        return f"{command.request_id} same"

    with instead((machine, "_request_fingerprint", request)):
        yield


@fault
def expected_rev_is_ignored() -> Iterator[None]:
    """Who decided by an old state is not told."""
    real = machine.Machine.decide

    def decide(self: Any, record: Any, command: Command, at: int, events: list[Event]) -> Any:
        return real(self, record, set_field(command, expected_rev=None), at, events)

    with instead((machine.Machine, "decide", decide)):
        yield


@fault
def old_tokens_are_good() -> Iterator[None]:
    """A registration token lets somebody in as often as it is shown."""
    real = Registry._admit

    async def admit(self: Any, who: Any, asked: Any, claims: Any) -> str:
        try:
            return await real(self, who, asked, claims)
        except Refused as refused:
            if refused.code != "bad_credential":
                raise
            life = await self._life(who)
            return str(life.id)

    with instead((Registry, "_admit", admit)):
        yield
