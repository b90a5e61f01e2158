"""Document 003's derivation of a workstream's state, written from its text, and all differences from our state.

The derivation uses only the tasks. A workstream also has a plan, a possible cancel, a timeout and a final validation,
and the model says when a failure counts. `DIFFERENCES` lists every difference.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from deltaci.core import run
from deltaci.core.decide import Decision
from deltaci.core.events import JOB, RUN
from deltaci.core.job import Job
from deltaci.core.machine import Command
from deltaci.core.run import Run
from tests.support.lab import Lab

TASK_STATES: Final = {
    "PENDING": "pending",
    "QUEUED": "queued",
    "RUNNING": "running",
    "VALIDATING": "validating",
    "RETRYING": "retrying",
    "SUCCEEDED": "completed",
    "FAILED": "failed",
    "CANCELED": "cancelled",
}
WORKSTREAM_STATES: Final = {
    "CREATED": "planned",
    "PLANNING": "planned",
    "QUEUED": "ready",
    "RUNNING": "executing",
    "VALIDATING": "validating",
    "SUCCESS": "completed",
    "FAILED": "failed",
    "TIMEOUT": "failed",
    "CANCELED": "cancelled",
}
OVER: Final = ("completed", "failed", "cancelled")


class Task(NamedTuple):
    """The input of document 003's function for one task."""

    state: str
    is_critical: bool


def task_is_critical(tasks: Sequence[Task]) -> bool:
    """Return whether a critical task failed."""
    return any(t.is_critical for t in tasks if t.state == "failed")


def document_003(tasks: Sequence[Task]) -> str:
    """Return the derived state: document 003's `derive_workstream_state`, line by line."""
    if any(t.state == "running" for t in tasks):
        return "executing"

    if all(t.state == "completed" for t in tasks):
        return "validating"

    if any(t.state == "failed" for t in tasks) and task_is_critical(tasks):
        return "failed"

    if all(t.state in ["pending", "queued"] for t in tasks):
        return "ready"

    return "executing"


class Workstream:
    """The tasks of one workstream, and the commands and settings that also decide its state."""

    def __init__(self) -> None:
        self.tasks: list[Task] = []
        self.is_planned = self.has_started = self.is_fail_fast = False
        self.is_plan_failed = self.is_cancelled = self.is_late = False
        self.has_validation = False
        self.verdict: bool | None = None

    @property
    def is_lost(self) -> bool:
        """Whether a critical task failed or was cancelled."""
        return any(t.is_critical and t.state in ("failed", "cancelled") for t in self.tasks)

    @property
    def is_open(self) -> bool:
        """Whether a task has not ended."""
        return any(t.state not in OVER for t in self.tasks)

    @property
    def is_passed(self) -> bool | None:
        """Return the result of the final validation; without one, it passes as soon as it is reached."""
        is_reached = self.is_planned and not self.is_open and not self.is_lost
        return self.verdict if self.has_validation or not is_reached else True


class Difference(NamedTuple):
    """If `when` holds, a workstream's state is `state`, while the document derives one of the states `derived`."""

    why: str
    state: str
    derived: frozenset[str]
    when: Callable[[Workstream], bool]


def _row(why: str, state: str, derived: str, when: Callable[[Workstream], bool]) -> Difference:
    return Difference(why, state, frozenset(derived.split()), when)


# The first row that applies decides.
DIFFERENCES: Final = (
    _row("planning failed: there are no tasks", "failed", "validating", lambda s: s.is_plan_failed),
    _row("its tasks do not exist yet", "planned", "validating", lambda s: not s.is_planned),
    _row("a person cancelled it, and its tasks are being stopped", "executing", "executing",
         lambda s: s.is_cancelled and s.is_open),
    _row("a person cancelled it", "cancelled", "executing failed validating", lambda s: s.is_cancelled),
    _row("it timed out", "failed", "executing failed validating", lambda s: s.is_late),
    _row("its final validation passed", "completed", "executing validating", lambda s: s.is_passed is True),
    _row("its final validation failed", "failed", "executing validating", lambda s: s.is_passed is False),
    _row("fail_fast: failed at once, while the other tasks are cancelled", "failed", "executing failed",
         lambda s: s.is_lost and s.is_fail_fast),
    _row("all tasks ended, and a critical one failed or was cancelled", "failed", "executing failed",
         lambda s: s.is_lost and not s.is_open),
    _row("no fail_fast: executing until nothing else can progress", "executing", "executing failed",
         lambda s: s.is_lost and s.has_started),
    _row("all critical tasks completed, others did not", "validating", "executing validating",
         lambda s: not s.is_open),
    _row("it has started, and stays executing while all tasks are queued again", "executing", "ready executing",
         lambda s: s.has_started),
    _row("no task has started, even if some were cancelled", "ready", "ready executing", lambda s: not s.has_started),
)  # fmt: skip


class Derivation:
    """Observer of a lab: check after each decision that the touched workstreams have the state of the table."""

    def __init__(self, lab: Lab, counts: Counter[tuple[str, str]] | None = None) -> None:
        self._lab = lab
        self._streams: dict[str, Workstream] = {}
        self.counts = Counter[tuple[str, str]]() if counts is None else counts  # By reason and derived state.

    def __call__(self, command: Command, decision: Decision) -> None:
        """Check every workstream that this decision touched."""
        if decision.events:
            self._record_command(command)
        for id in {event.run_id for event in decision.events if event.entity in (RUN, JOB)}:
            self._check(self._lab.run(id))

    def _record_command(self, command: Command) -> None:
        stream = self._streams.setdefault(command.id, Workstream())
        stream.is_cancelled |= isinstance(command, run.Cancel)
        stream.is_plan_failed |= isinstance(command, run.PlanFailed | run.TimeOutPlanning)
        stream.is_late |= isinstance(command, run.TimeOut)
        if isinstance(command, run.Validate):
            stream.verdict = command.is_passed

    def _check(self, record: Run) -> None:
        stream, jobs = self._streams[record.id], jobs_of(self._lab, record.id)
        stream.tasks = [Task(TASK_STATES[job.state], job.spec.is_required) for job in jobs]
        stream.is_planned = bool(record.plan_hash)
        stream.has_started = any(job.started_at for job in jobs)
        stream.is_fail_fast, stream.has_validation = record.is_fail_fast, record.has_validation
        derived, state = document_003(stream.tasks), workstream_state_of(record)
        row = next(row for row in DIFFERENCES if row.when(stream))
        assert state == row.state, f"{record.id} is {state}, expected {row.state}: {row.why}; its tasks: {stream.tasks}"
        assert derived in row.derived, f"{record.id} is {state} and derived as {derived}: {row.why}; {stream.tasks}"
        self.counts[row.why, derived] += 1


def workstream_state_of(record: Run) -> str:
    """Return document 003's state of a run."""
    shown = {"REPORTED": record.conclusion, "CANCEL_REQUESTED": record.state_before_cancel}
    return WORKSTREAM_STATES[shown.get(record.state, record.state)]


def jobs_of(lab: Lab, run_id: str) -> list[Job]:
    """Return all tasks of a run in any state."""
    return [lab.unit.job(id) for id in lab.unit.job_ids.get(run_id, ())]
