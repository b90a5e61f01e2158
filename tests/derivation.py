"""Document 003's derivation of a workstream's state, written down from its text, and every place where ours differs.

The derivation knows tasks alone. A workstream also has a plan, a person who may stop it, a time limit and a final
validation, and the model says when failure counts. Each such place is a row of the table; there are no others.
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
from tests.lab import Lab

TASK_WORDS: Final = {
    "PENDING": "pending",
    "QUEUED": "queued",
    "RUNNING": "running",
    "VALIDATING": "validating",
    "RETRYING": "retrying",
    "SUCCEEDED": "completed",
    "FAILED": "failed",
    "CANCELED": "cancelled",
}
STREAM_WORDS: Final = {
    "CREATED": "planned",
    "PLANNING": "planned",
    "QUEUED": "ready",
    "RUNNING": "executing",
    "VALIDATING": "validating",
    "SUCCESS": "completed",
    "FAILED": "failed",
    "TIMEOUT": "failed",
    "CANCEL_REQUESTED": "cancelled",
    "CANCELED": "cancelled",
}
OVER: Final = ("completed", "failed", "cancelled")


class Task(NamedTuple):
    """A task as document 003's function sees it."""

    state: str
    is_critical: bool


def task_is_critical(tasks: Sequence[Task]) -> bool:
    """Of the tasks that failed, whether one is critical."""
    return any(t.is_critical for t in tasks if t.state == "failed")


def document_003(tasks: Sequence[Task]) -> str:
    """`derive_workstream_state`, line by line."""
    if any(t.state == "running" for t in tasks):
        return "executing"

    if all(t.state == "completed" for t in tasks):
        return "validating"

    if any(t.state == "failed" for t in tasks) and task_is_critical(tasks):
        return "failed"

    if all(t.state in ["pending", "queued"] for t in tasks):
        return "ready"

    return "executing"


class Stream:
    """What is known of one workstream besides the states of its tasks: what was asked of it and decided about it."""

    def __init__(self) -> None:
        self.tasks: list[Task] = []
        self.is_planned = self.has_begun = self.is_fail_fast = False
        self.is_plan_failed = self.is_cancelled = self.is_late = False
        self.has_validation = False
        self.verdict: bool | None = None

    @property
    def is_lost(self) -> bool:
        """A critical task failed, or a person cancelled one, or one was cancelled because of another."""
        return any(t.is_critical and t.state in ("failed", "cancelled") for t in self.tasks)

    @property
    def is_open(self) -> bool:
        """Something can still progress."""
        return any(t.state not in OVER for t in self.tasks)

    @property
    def is_passed(self) -> bool | None:
        """What the final validation said; without one, it says yes as soon as it is reached."""
        is_reached = self.is_planned and not self.is_open and not self.is_lost
        return self.verdict if self.has_validation or not is_reached else True


class Difference(NamedTuple):
    """Where this holds, a workstream is shown as `shown`, while the document derives any of `derived` and nothing else.

    Where both are the same word there is no difference; the other words are those that the model allows.
    """

    why: str
    shown: str
    derived: frozenset[str]
    when: Callable[[Stream], bool]


def _row(why: str, shown: str, derived: str, when: Callable[[Stream], bool]) -> Difference:
    return Difference(why, shown, frozenset(derived.split()), when)


# In this order; the first that holds.
DIFFERENCES: Final = (
    _row("planning failed: there are no tasks", "failed", "validating", lambda s: s.is_plan_failed),
    _row("its tasks do not exist yet", "planned", "validating", lambda s: not s.is_planned),
    _row("a person cancelled it", "cancelled", "executing failed validating", lambda s: s.is_cancelled),
    _row("its time was over", "failed", "executing failed validating", lambda s: s.is_late),
    _row("its final validation passed", "completed", "executing validating", lambda s: s.is_passed is True),
    _row("its final validation failed", "failed", "executing validating", lambda s: s.is_passed is False),
    _row("fail_fast: failed at once, while the rest is being stopped", "failed", "executing failed",
         lambda s: s.is_lost and s.is_fail_fast),
    _row("all is over, and a critical task failed or was cancelled", "failed", "executing failed",
         lambda s: s.is_lost and not s.is_open),
    _row("no fail_fast: executing until nothing else can progress", "executing", "executing failed",
         lambda s: s.is_lost and s.has_begun),
    _row("all critical tasks completed, others did not", "validating", "executing validating",
         lambda s: not s.is_open),
    _row("it has begun, and stays so while all is queued again", "executing", "ready executing",
         lambda s: s.has_begun),
    _row("nothing has begun, even if tasks were cancelled", "ready", "ready executing", lambda s: not s.has_begun),
)  # fmt: skip


class Derivation:
    """Watches every workstream of a lab: after each decision it stands exactly where the table says."""

    def __init__(self, lab: Lab, met: Counter[tuple[str, str]] | None = None) -> None:
        self._lab = lab
        self._streams: dict[str, Stream] = {}
        self.met = Counter[tuple[str, str]]() if met is None else met  # How often each row made which difference.

    def __call__(self, command: Command, decision: Decision) -> None:
        """Look at every workstream that this decision touched."""
        if decision.events:
            self._hear(command)
        for id in {event.run_id for event in decision.events if event.entity in (RUN, JOB)}:
            self._look(self._lab.run(id))

    def _hear(self, command: Command) -> None:
        of = self._streams.setdefault(command.id, Stream())
        of.is_cancelled |= isinstance(command, run.Cancel)
        of.is_plan_failed |= isinstance(command, run.PlanFailed | run.TimeOutPlanning)
        of.is_late |= isinstance(command, run.TimeOut)
        if isinstance(command, run.Validate):
            of.verdict = command.is_passed

    def _look(self, record: Run) -> None:
        of, jobs = self._streams[record.id], jobs_of(self._lab, record.id)
        of.tasks = [Task(TASK_WORDS[each.state], each.spec.is_required) for each in jobs]
        of.is_planned = bool(record.plan_hash)
        of.has_begun = any(each.started_at for each in jobs)
        of.is_fail_fast, of.has_validation = record.is_fail_fast, record.has_validation
        derived, shown = document_003(of.tasks), shown_as(record)
        row = next(row for row in DIFFERENCES if row.when(of))
        assert shown == row.shown, f"{record.id} is {shown}, expected {row.shown}: {row.why}; its tasks: {of.tasks}"
        assert derived in row.derived, f"{record.id} is {shown} and derived as {derived}: {row.why}; {of.tasks}"
        self.met[row.why, derived] += 1


def shown_as(record: Run) -> str:
    """Document 003's word for a run."""
    return STREAM_WORDS[record.conclusion if record.state == "REPORTED" else record.state]


def jobs_of(lab: Lab, run_id: str) -> list[Job]:
    """All tasks of a run, whatever became of them."""
    return [lab.unit.job(id) for id in lab.unit.job_ids.get(run_id, ())]
