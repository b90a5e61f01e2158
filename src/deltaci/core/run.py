"""The run: one evaluation of a change by a graph of jobs.

A run does not read its jobs. It has a tally of them, and `next_command` derives from the tally alone what the run must
do next, so that a step costs the same in a run of ten and of ten thousand jobs.
"""

from __future__ import annotations

from typing import Any, ClassVar, Final

import msgspec

from deltaci.core import job
from deltaci.core.errors import Refused
from deltaci.core.events import CRITICAL, ORCHESTRATOR, REPORTER, RUN, USER
from deltaci.core.instants import SECOND
from deltaci.core.machine import ABSENT, Command, Implies, Machine, Record, Rule, Target, Transition, no_change

CREATED: Final = "CREATED"
PLANNING: Final = "PLANNING"
PLAN_FAILED: Final = "PLAN_FAILED"
QUEUED: Final = "QUEUED"
RUNNING: Final = "RUNNING"
WAITING_APPROVAL: Final = "WAITING_APPROVAL"
VALIDATING: Final = "VALIDATING"
SUCCESS: Final = "SUCCESS"
FAILED: Final = "FAILED"
TIMEOUT: Final = "TIMEOUT"
CANCEL_REQUESTED: Final = "CANCEL_REQUESTED"
CANCELED: Final = "CANCELED"
REPORTED: Final = "REPORTED"

LIVE: Final = (RUNNING, WAITING_APPROVAL, VALIDATING)
TIMED: Final = (RUNNING, VALIDATING)  # Time that people take to approve does not count for the run timeout.
UNPLANNED: Final = (CREATED, PLANNING)
OVER: Final = (SUCCESS, FAILED, CANCELED, TIMEOUT)

# Why jobs that are not required end as NOT_NEEDED in a run whose required jobs have ended.
WAIT_OVER: Final = "wait_over"
NO_WORKER: Final = "no_worker"
OPTIONAL_WAIT_BEGAN: Final = "optional_wait_began"
OPTIONAL_WAIT_ENDED: Final = "optional_wait_ended"

PLANNING_SECONDS: Final = 60
TIMEOUT_SECONDS: Final = 6 * 3600
START_SECONDS: Final = 24 * 3600  # The run timeout counts from RUNNING, so that a queued run has its own.
OPTIONAL_WAIT_SECONDS: Final = 600
MAX_JOBS: Final = 100_000


class Tally(msgspec.Struct, frozen=True):
    """Counts of a run's jobs.

    `open` jobs have not ended, `active` ones progress without people, `waiting` ones wait for approval. `doomed` counts
    the required jobs that failed or were cancelled, so that the run cannot succeed; `first_doomed` is the id of the
    first of them. `open_optional` counts the open jobs that are not required.
    """

    open: int = 0
    active: int = 0
    waiting: int = 0
    doomed: int = 0
    first_doomed: str = ""
    # Records of older versions lack it and count less than their open optional jobs, so that none counts as decided.
    open_optional: int = 0


class Origin(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where a run comes from. People search for it by these fields, and they decide which secrets its jobs may read.

    A run keeps the version of the template that it started with.
    """

    project: str = ""
    branch: str = ""
    repository: str = ""
    commit: str = ""
    title: str = ""
    labels: tuple[str, ...] = ()
    template: str = ""
    template_version: int = 0
    inputs: dict[str, str] = {}
    # Only of runs that are planned from the files of a repository:
    event: str = ""  # what happened there; if not empty, the planner plans the run
    file: str = ""  # the pipeline file; if empty, the planner finds it
    ref: str = ""
    number: int = 0  # of the pull request
    change: str = ""  # the id of the change that the run evaluates
    is_fork: bool = False  # whether the commit's author may not write to the repository
    is_on_branch: bool = False  # whether the server has verified that the branch had this commit
    workstream: str = ""  # the workstream's name, if the run is one; `branch` is then its base


class Run(Record, frozen=True, kw_only=True):
    """One evaluation of a change. `conclusion` is the final state, which remains known once `state` is REPORTED."""

    plan_hash: str = ""
    is_fail_fast: bool = False
    has_validation: bool = False
    timeout_seconds: int = TIMEOUT_SECONDS
    planning_seconds: int = PLANNING_SECONDS
    plan_by: int = 0  # The planning deadline; 0 before planning begins, and while the plan waits for its group.
    started_at: int = 0
    cancel_reason: str = ""
    conclusion: str = ""
    reason: str = ""
    tally: Tally = Tally()
    rerun_of: str = ""
    started_by: str = ""
    origin: Origin = Origin()
    request_fingerprint: str = ""  # Of the request that created the run, if a repeat returns it.
    waited_microseconds: int = 0  # In WAITING_APPROVAL, before its latest event.
    optional_wait_seconds: int = OPTIONAL_WAIT_SECONDS
    decided_at: int = 0  # When every required job had ended and jobs that are not required were still open.
    optional_until: int = 0  # When those of them that no worker has leased end; 0 if no wait is in progress.
    state_before_cancel: str = ""  # The state in which the cancel was requested; empty if an older version recorded it.
    stop_unconfirmed_until: int = 0  # The latest such time of its attempts; 0 once it has passed when the run ends.

    @property
    def times_out_at(self) -> int:
        """When the run timeout ends: `timeout_seconds` after the run entered RUNNING, not counting waits for approval.

        0 before the run enters RUNNING, and while it waits for approval.
        """
        if not self.started_at or self.state == WAITING_APPROVAL:
            return 0
        return self.started_at + self.timeout_seconds * SECOND + self.waited_microseconds

    @property
    def start_by(self) -> int:
        """When a queued run times out because none of its jobs could start. 0 in other states."""
        return self.updated_at + START_SECONDS * SECOND if self.state == QUEUED else 0


class Create(Command, frozen=True, kw_only=True):
    """Create a run that was requested by a webhook, a person or a program."""

    by: ClassVar[frozenset[str]] = frozenset({ORCHESTRATOR, USER})


class BeginPlanning(Command, frozen=True, kw_only=True):
    """Record that the planner starts to plan the run, before it fetches the commit; set the deadline of the plan."""


class AwaitGroup(Command, frozen=True, kw_only=True):
    """Stop the planning deadline: the plan waits until no earlier run of its concurrency group is active."""

    group: str


class PlanReady(Command, frozen=True, kw_only=True):
    """Queue the run: the planner returned a plan and its jobs exist.

    The settings that are not None replace the run's.
    """

    jobs: int
    plan_hash: str = ""
    is_fail_fast: bool | None = None
    timeout_seconds: int | None = None
    optional_wait_seconds: int | None = None


class PlanFailed(Command, frozen=True, kw_only=True):
    """Record that the planner failed, with its error."""

    error: str


class TimeOutPlanning(Command, frozen=True, kw_only=True):
    """Fail the planning, because the planner did not return a plan in time."""


class FirstActive(Command, frozen=True, kw_only=True):
    """Start the run, because its first job is running or its first approval is open."""

    job_id: str = ""


class AwaitApproval(Command, frozen=True, kw_only=True):
    """Mark the run as waiting: no job can progress until a person decides about an approval."""


class Resume(Command, frozen=True, kw_only=True):
    """End the wait for approval, because a job can progress again or all have ended."""


class BeginOptionalWait(Command, frozen=True, kw_only=True):
    """Begin, or begin anew, the bounded wait for jobs that are not required, because every required job has ended.

    `job_id` is the job that began to wait after that; empty if the last required job has just ended.
    """

    job_id: str = ""


class EndOptionalWait(Command, frozen=True, kw_only=True):
    """End the bounded wait, because its time is over; the jobs that are not leased are cancelled.

    With `queue_keys`, end at once only that of the jobs with these queue keys: no registered worker has their labels.
    """

    queue_keys: tuple[str, ...] = ()


class AllDone(Command, frozen=True, kw_only=True):
    """Begin the final validation: all jobs have ended and no required one failed."""


class Validate(Command, frozen=True, kw_only=True):
    """Record the result of the run's final validation: the run succeeds or fails."""

    is_passed: bool
    details: str = ""


class Fail(Command, frozen=True, kw_only=True):
    """Fail the run: a required job failed, or there is no plan."""


class TimeOut(Command, frozen=True, kw_only=True):
    """End the run, because the run timeout has passed, or because none of its jobs started within START_SECONDS."""


class Cancel(Command, frozen=True, kw_only=True):
    """Request the cancellation of the run, for a person or because of a newer run."""

    by: ClassVar[frozenset[str]] = frozenset({ORCHESTRATOR, USER})

    reason: str = "RUN_CANCELED"


class FinishCancel(Command, frozen=True, kw_only=True):
    """Finish the cancellation: all jobs have ended."""


class Report(Command, frozen=True, kw_only=True):
    """Record that the outcome was published. `reported_to` says how the run's forge was informed, if it has one."""

    by: ClassVar[frozenset[str]] = frozenset({REPORTER})

    reported_to: str = msgspec.field(default="", name="told")


def _create(run: Run, _command: Create, at: int) -> Transition:
    metadata = {
        "is_fail_fast": run.is_fail_fast,
        "has_validation": run.has_validation,
        "timeout_seconds": run.timeout_seconds,
        "optional_wait_seconds": run.optional_wait_seconds,
    }
    return CREATED, {"created_at": at}, metadata


def _begin_planning(run: Run, _command: BeginPlanning, at: int) -> Transition:
    deadline = at + run.planning_seconds * SECOND
    return PLANNING, {"plan_by": deadline}, {"plan_by": deadline}


def _await_group(run: Run, command: AwaitGroup, at: int) -> Transition | None:
    if not run.plan_by:
        return None
    _check_plan_in_time(run, at)
    return PLANNING, {"plan_by": 0}, {"concurrency_group": command.group, "stops_clock": True}


def _check_plan_in_time(run: Run, at: int) -> None:
    """Refuse a plan that arrives after the deadline `plan_by`."""
    if run.plan_by and at >= run.plan_by:
        raise Refused(
            "not_eligible",
            f"the plan of run {run.id} came {(at - run.plan_by) / SECOND:.3f} s too late; start a new run",
        )


def _plan_ready(run: Run, command: PlanReady, at: int) -> Transition:
    _check_plan_in_time(run, at)
    if command.jobs != run.tally.open:
        raise Refused(
            "not_eligible", f"run {run.id} has {run.tally.open} of {command.jobs} planned jobs; create them first"
        )
    settings = {
        "is_fail_fast": command.is_fail_fast,
        "timeout_seconds": command.timeout_seconds,
        "optional_wait_seconds": command.optional_wait_seconds,
    }
    changes = {
        "plan_hash": command.plan_hash,
        **{
            setting_name: setting_value for setting_name, setting_value in settings.items() if setting_value is not None
        },
    }
    return QUEUED, changes, {"jobs": command.jobs, **changes}


def _plan_failed(_run: Run, command: PlanFailed, _at: int) -> Transition:
    return PLAN_FAILED, {"reason": "PLAN_FAILED"}, {"error": command.error}


def _time_out_planning(run: Run, _command: TimeOutPlanning, at: int) -> Transition:
    if not run.plan_by:
        raise Refused("not_due", f"run {run.id} waits for its concurrency group, which has no deadline")
    if at < run.plan_by:
        raise Refused(
            "not_due", f"the planner of run {run.id} has another {(run.plan_by - at) / SECOND:.3f} s; wait for it"
        )
    return PLAN_FAILED, {"reason": "PLAN_TIMEOUT"}, {"error": f"no plan within {run.planning_seconds} s"}


def _finalize_plan(run: Run, _command: Fail, _at: int) -> Transition:
    return FAILED, {"conclusion": FAILED}, {"reason": run.reason}


def _first_active(run: Run, command: Command, at: int) -> Transition:
    job_id = command.job_id if isinstance(command, FirstActive) else ""  # Otherwise another command implied it.
    if isinstance(command, TimeOut):
        if at < run.start_by:
            seconds = (run.start_by - at) / SECOND
            raise Refused("not_due", f"run {run.id} is queued and has another {seconds:.3f} s to start; wait for it")
        return RUNNING, {}, {"cause": "timed_out", "job_id": ""}  # It has not started.
    cause = "job_started" if job_id else "approval_opened" if run.tally.waiting else "nothing_to_run"
    return RUNNING, {"started_at": at}, {"cause": cause, "job_id": job_id}


def _await_approval(_run: Run, _command: AwaitApproval, _at: int) -> Transition:
    return WAITING_APPROVAL, {}, {"stops_clock": True}


def _resume(run: Run, _command: Command, at: int) -> Transition:
    return RUNNING, _waited(run, at), {}


def _waited(run: Run, at: int) -> dict[str, Any]:
    """Return the changed `waited_microseconds`, which every event adds to while the run waits for approval."""
    if run.state != WAITING_APPROVAL:
        return {}
    return {"waited_microseconds": run.waited_microseconds + at - run.updated_at}


def _begin_optional_wait(run: Run, command: BeginOptionalWait, at: int) -> Transition:
    if not is_decided(run):
        required = run.tally.open - run.tally.open_optional
        raise Refused("not_eligible", f"run {run.id} has {required} open required jobs; its outcome is not decided")
    until = at + run.optional_wait_seconds * SECOND
    changes = {"decided_at": run.decided_at or at, "optional_until": until, **_waited(run, at)}
    return run.state, changes, {"optional_until": until, **({"job_id": command.job_id} if command.job_id else {})}


def _end_optional_wait(run: Run, command: EndOptionalWait, at: int) -> Transition:
    if command.queue_keys:
        return run.state, _waited(run, at), {"cause": NO_WORKER, "queue_keys": list(command.queue_keys)}
    if not run.optional_until or at < run.optional_until:
        raise Refused("not_due", f"the wait of run {run.id} for its optional jobs has not ended; wait for it")
    return run.state, {"optional_until": 0, **_waited(run, at)}, {"cause": WAIT_OVER}


def _all_done(run: Run, _command: AllDone, _at: int) -> Transition:
    tally = run.tally
    if tally.open or tally.doomed:
        raise Refused(
            "not_eligible",
            f"run {run.id} has {tally.open} open and {tally.doomed} failed required jobs; it is not done",
        )
    return VALIDATING, {}, {}


def _validate(_run: Run, command: Validate, _at: int) -> Transition:
    metadata = {"details": command.details} if command.details else {}
    if command.is_passed:
        return SUCCESS, {"conclusion": SUCCESS}, metadata
    return FAILED, {"conclusion": FAILED, "reason": "VALIDATION_FAILED"}, metadata


def _fail(run: Run, _command: Fail, _at: int) -> Transition:
    if not run.tally.doomed:
        raise Refused("not_eligible", f"run {run.id} can still succeed; no required job failed")
    return (
        FAILED,
        {"conclusion": FAILED, "reason": "JOB_FAILED"},
        {"reason": "JOB_FAILED", "job_id": run.tally.first_doomed},
    )


def _time_out(run: Run, _command: TimeOut, at: int) -> Transition:
    if at < run.times_out_at:
        raise Refused("not_due", f"run {run.id} has another {(run.times_out_at - at) / SECOND:.3f} s; wait for it")
    return TIMEOUT, {"conclusion": TIMEOUT, "reason": "RUN_TIMEOUT"}, {"reason": "RUN_TIMEOUT"}


def _remember_cancel(run: Run, command: Cancel, _at: int) -> Transition | None:
    if run.cancel_reason:
        return None
    return run.state, {"cancel_reason": command.reason}, {"reason": command.reason, "is_remembered": True}


def _cancel(run: Run, command: Cancel, _at: int) -> Transition:
    changes = {"cancel_reason": command.reason, "state_before_cancel": run.state}
    return CANCEL_REQUESTED, changes, {"reason": command.reason}


def _cancel_again(run: Run, command: Cancel, _at: int) -> None:
    if run.conclusion != CANCELED:
        raise MACHINE.refusal(run, type(command))


def _finish_cancel(run: Run, _command: FinishCancel, at: int) -> Transition:
    if run.tally.open:
        raise Refused("not_eligible", f"run {run.id} has {run.tally.open} jobs that have not ended; they end first")
    until = run.stop_unconfirmed_until if run.stop_unconfirmed_until > at else 0
    changes = {"conclusion": CANCELED, "reason": run.cancel_reason, "stop_unconfirmed_until": until}
    return CANCELED, changes, {"reason": run.cancel_reason}


def _report(run: Run, command: Report, _at: int) -> Transition:
    metadata = {"told": command.reported_to} if command.reported_to else {}
    return REPORTED, {}, {"conclusion": run.conclusion, **metadata}


# fmt: off
MACHINE: Final[Machine[Run]] = Machine(
    RUN,
    Rule(ABSENT, Create, (Target(CREATED, "created"),), _create,
         ORCHESTRATOR, "requested by a webhook, a person or a program", ("ORC-R1",)),
    Rule(CREATED, BeginPlanning, (Target(PLANNING, "run_created"),), _begin_planning,
         ORCHESTRATOR, "the planner starts", ("ORC-R1",)),
    Rule(PLANNING, AwaitGroup, (Target(PLANNING, "group_awaited"),), _await_group,
         ORCHESTRATOR, "planned, but an earlier run of its concurrency group is active", ("ORC-R3",)),
    Rule(PLANNING, PlanReady, (Target(QUEUED, "plan_returned"),), _plan_ready, ORCHESTRATOR,
         "the planner returned a plan and the jobs exist", ("ORC-R2", "WST-W1", "WST-WG1")),
    Rule(PLANNING, PlanFailed, (Target(PLAN_FAILED, "plan_failed", CRITICAL),), _plan_failed, ORCHESTRATOR,
         "the planner failed", ("ORC-R3",)),
    Rule(PLANNING, TimeOutPlanning, (Target(PLAN_FAILED, "plan_failed", CRITICAL),), _time_out_planning, ORCHESTRATOR,
         "the planner did not return a plan in time", ("ORC-R3",)),
    Rule(PLAN_FAILED, Fail, (Target(FAILED, "run_finalized", CRITICAL),), _finalize_plan,
         ORCHESTRATOR, "a run without a plan fails", ("ORC-R4",)),
    Rule(QUEUED, FirstActive, (Target(RUNNING, "first_attempt_active"),), _first_active, ORCHESTRATOR,
         "the first attempt is active, or the first approval is open", ("ORC-R5", "STP-R1", "WST-W2")),
    *(Rule(state, FirstActive, (), no_change,
           ORCHESTRATOR, "a repeat: the run is already active", ("ORC-R5",))
      for state in (*LIVE, CANCEL_REQUESTED)),
    Rule(RUNNING, AwaitApproval, (Target(WAITING_APPROVAL, "approval_gate_reached"),), _await_approval, ORCHESTRATOR,
         "a job waits for approval and no other can progress", ("STP-R2", "MOD-8")),
    Implies(QUEUED, AwaitApproval, FirstActive, "an open approval is progress"),
    Rule(WAITING_APPROVAL, Resume, (Target(RUNNING, "approval_resolved"),), _resume, ORCHESTRATOR,
         "a job can progress again, or all have ended", ("STP-R3", "MOD-8")),
    *(Rule(state, BeginOptionalWait, (Target(state, OPTIONAL_WAIT_BEGAN),), _begin_optional_wait, ORCHESTRATOR,
           "every required job has ended, and others are open", ("MOD-15",))
      for state in (QUEUED, RUNNING, WAITING_APPROVAL)),
    *(Rule(state, EndOptionalWait, (Target(state, OPTIONAL_WAIT_ENDED),), _end_optional_wait, ORCHESTRATOR,
           "the wait is over, or no registered worker has the labels of a job", ("MOD-15",))
      for state in (QUEUED, RUNNING, WAITING_APPROVAL)),
    Rule(RUNNING, AllDone, (Target(VALIDATING, "all_jobs_done"),), _all_done, ORCHESTRATOR,
         "every required job succeeded", ("ORC-R6", "WST-W3", "WST-WG3")),
    Implies(QUEUED, AllDone, FirstActive, "a plan without jobs is complete at once"),
    Implies(WAITING_APPROVAL, AllDone, Resume, "the last approval was given"),
    Rule(VALIDATING, Validate,
         (Target(SUCCESS, "all_required_succeeded"), Target(FAILED, "validation_failed", CRITICAL)),
         _validate, ORCHESTRATOR, "the final validation ended", ("ORC-R6", "STP-R4", "WST-W5", "WST-W6")),
    *(Rule(state, Fail, (Target(FAILED, "required_job_failed", CRITICAL),), _fail, ORCHESTRATOR,
           "a required job failed and no retry is left", ("ORC-R7", "STP-R6", "STP-R7", "WST-W4"))
      for state in (RUNNING, WAITING_APPROVAL)),
    Implies(QUEUED, Fail, FirstActive, "a failed job had been running"),
    *(Rule(state, TimeOut, (Target(TIMEOUT, "run_timed_out", CRITICAL),), _time_out,
           ORCHESTRATOR, "the run timeout has passed", ("ORC-R10", "ORC-T3", "MOD-11"))
      for state in TIMED),
    Implies(QUEUED, TimeOut, FirstActive, "a run whose jobs could not start ends, too"),
    *(Rule(state, Cancel, (Target(state, "cancel_requested"),), _remember_cancel, ORCHESTRATOR,
           "remembered, and applied once the run is queued", ("MOD-3",))
      for state in (CREATED, PLANNING)),
    *(Rule(state, Cancel, (Target(CANCEL_REQUESTED, "cancel_requested"),), _cancel, ORCHESTRATOR,
           "requested by a person, or replaced by a newer run", ("ORC-R8", "STP-R8", "WST-W8", "WST-W9"))
      for state in (QUEUED, *LIVE)),
    Rule(CANCEL_REQUESTED, Cancel, (), no_change,
         ORCHESTRATOR, "requested already; a repeat is no error", ("ORC-I2",)),
    *(Rule(state, Cancel, (), _cancel_again,
           ORCHESTRATOR, "cancelled already; a repeat is no error", ("ORC-I2",)) for state in (CANCELED, REPORTED)),
    Rule(CANCEL_REQUESTED, FinishCancel, (Target(CANCELED, "cancel_finalized"),), _finish_cancel, ORCHESTRATOR,
         "all jobs have ended", ("ORC-R9", "ORC-RF3")),
    *(Rule(state, Report, (Target(REPORTED, "statuses_published"),), _report,
           REPORTER, "the outcome is published", ("ORC-R11",)) for state in OVER),
    initial=CREATED,
)
# fmt: on

TERMINAL: Final = MACHINE.terminal


def is_over(run: Run) -> bool:
    """Return whether the run's outcome is final, so that later changes of its jobs do not affect it."""
    return is_over_state(run.state)


def state_in_views(run: Run) -> str:
    """Return the state of the run as a reader sees it who knows neither `CANCEL_REQUESTED` nor `REPORTED`.

    A run that is being cancelled stays in the state of the request, because its jobs may still run.
    """
    if run.state == CANCEL_REQUESTED:
        return run.state_before_cancel or RUNNING
    return run.conclusion if run.state == REPORTED else run.state


def is_canceling(run: Run) -> bool:
    """Return whether a cancel of the run was requested and has not been finished."""
    return bool(run.cancel_reason) and not is_over(run)


def check_may_decide(run: Run) -> None:
    """Refuse to approve or reject anything in a run that is being cancelled."""
    if is_canceling(run):
        raise Refused(
            "wrong_state",
            f"run {run.id} is being cancelled ({run.cancel_reason}), so nothing in it can be approved or rejected; "
            "start a new run",
        )


def may_discard_workspace(run: Run) -> bool:
    """Return whether the run's workspace may be deleted: the run succeeded or was cancelled. A failed run keeps it."""
    return is_over(run) and run.conclusion in (SUCCESS, CANCELED)


def is_over_state(state: str) -> bool:
    """Return whether the outcome of a run in this state is final."""
    return state in OVER or state == REPORTED


def is_unplanned(run: Run) -> bool:
    """Return whether the run has just been created or is being planned, so that it has no plan yet."""
    return run.state in UNPLANNED


def may_start_jobs(run: Run) -> bool:
    """Return whether jobs of the run may be started: it has a plan, is not being cancelled and its outcome is open."""
    return run.state in (QUEUED, RUNNING, WAITING_APPROVAL)


def is_decided(run: Run) -> bool:
    """Return whether every required job of a planned run has ended while jobs that are not required are open."""
    return may_start_jobs(run) and 0 < run.tally.open == run.tally.open_optional


def updated_tally(tally: Tally, state_before: str, changed_job: job.Job) -> Tally:
    """Return the tally after a transition of one of the run's jobs from `state_before` to its current state.

    `state_before` is ABSENT if the job was just created.
    """
    state_after, is_doomed = changed_job.state, job.dooms_run(changed_job)
    opened = (state_before == ABSENT) - (state_after in job.TERMINAL)
    return Tally(
        tally.open + opened,
        tally.active + (state_after in job.ACTIVE) - (state_before in job.ACTIVE),
        tally.waiting + (state_after == job.WAITING_APPROVAL) - (state_before == job.WAITING_APPROVAL),
        tally.doomed + is_doomed,
        tally.first_doomed or (changed_job.id if is_doomed else ""),
        tally.open_optional + opened * (not changed_job.spec.is_required),
    )


def next_command(run: Run) -> Command | None:
    """Return the command that the run's tally requires, or None if the state of the run agrees with the tally."""
    tally, state, id = run.tally, run.state, run.id
    if state == CANCEL_REQUESTED:
        return None if tally.open else FinishCancel(id=id)
    if not may_start_jobs(run):
        return None
    if tally.doomed and (run.is_fail_fast or not tally.open):
        return Fail(id=id)
    if not tally.open:
        return AllDone(id=id)
    if is_decided(run) and not run.decided_at:
        return BeginOptionalWait(id=id)
    is_waiting = tally.waiting > 0 and tally.active == 0
    if is_waiting and state != WAITING_APPROVAL:
        return AwaitApproval(id=id)
    if not is_waiting and state == WAITING_APPROVAL:
        return Resume(id=id)
    return None


def job_cancel_reason(run: Run) -> str:
    """Return the reason for cancelling the remaining jobs of a run that was cancelled, failed or timed out."""
    return {CANCEL_REQUESTED: job.RUN_CANCELED, TIMEOUT: job.RUN_TIMEOUT}.get(run.state, job.NOT_NEEDED)
