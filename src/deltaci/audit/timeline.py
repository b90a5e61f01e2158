"""Compute the phases of each job of a run (queued, starting, running, ...) from the run's events.

A runner reports rarely: the log learns of the start of the steps with the first heartbeat, and of their end with the
result. The start and end times in the attempt's report are therefore more precise. They are used if they lie within the
bounds that the log gives, else ignored: a runner's clock is not trusted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec

from deltaci.core import attempt as core_attempt
from deltaci.core import job as core_job
from deltaci.core import run as core_run
from deltaci.core.attempt import Attempt
from deltaci.core.events import ATTEMPT, JOB, Event
from deltaci.core.instants import from_datetime
from deltaci.core.job import Job
from deltaci.core.run import Run

QUEUED: Final = "queued"
STARTING: Final = "starting"
RUNNING: Final = "running"
UPLOADING: Final = "uploading"
STOPPING: Final = "stopping"
APPROVAL: Final = "approval"
BACKOFF: Final = "backoff"
PHASES: Final = (QUEUED, STARTING, RUNNING, UPLOADING, STOPPING, APPROVAL, BACKOFF)

# State -> phase. Other states have no phase: the job waits for others or has ended, or its attempt has the phase.
_ATTEMPT_PHASES: Final = {
    core_attempt.QUEUED: QUEUED,
    core_attempt.STALE: QUEUED,
    core_attempt.LEASED: STARTING,
    core_attempt.STARTING: STARTING,
    core_attempt.RUNNING: RUNNING,
    core_attempt.UPLOADING: UPLOADING,
    core_attempt.CANCEL_REQUESTED: STOPPING,
}
_JOB_PHASES: Final = {core_job.WAITING_APPROVAL: APPROVAL, core_job.RETRYING: BACKOFF}
_PHASES_BY_ENTITY: Final = {ATTEMPT: _ATTEMPT_PHASES, JOB: _JOB_PHASES}
_EXECUTION: Final = frozenset({STARTING, RUNNING, UPLOADING})


class Phase(msgspec.Struct, frozen=True):
    """A period of a job, such as `running`. Times are instants in microseconds.

    `attempt_index` is the index of the attempt, 0 if the phase belongs to the job itself; `end` is None while the phase
    lasts.
    """

    name: str
    attempt_index: int
    start: int
    end: int | None = None


class JobTimes(msgspec.Struct, frozen=True):
    """A job's name and its phases in order of time. There are none if the job was never ready."""

    name: str
    phases: tuple[Phase, ...]


class Timeline(msgspec.Struct, frozen=True, kw_only=True):
    """The phases of all jobs of a run. `until` is the time of the last event.

    `critical` has the names of the jobs on the critical path: the job that ended last, preceded by the job for which it
    waited longest, and so on. It is empty until all jobs have ended.
    """

    start: int
    until: int
    is_over: bool
    jobs: tuple[JobTimes, ...]
    critical: tuple[str, ...] = ()


def timeline(run: Run, jobs: Sequence[Job], attempts: Iterable[Attempt], events: Iterable[Event]) -> Timeline:
    """Return the phases of all jobs of a run, in the order of the plan. Takes time linear in the number of events."""
    report_by_attempt = {attempt.id: attempt.report for attempt in attempts}
    phases_by_job: dict[str, list[Phase]] = {job.id: [] for job in jobs}
    recorder_by_id: dict[str, _PhaseRecorder] = {}
    last_event_at = run.created_at
    for event in events:
        last_event_at = max(last_event_at, event.at)
        if event.entity not in _PHASES_BY_ENTITY:
            continue
        recorder = recorder_by_id.get(event.entity_id)
        if recorder is None:
            recorder = recorder_by_id[event.entity_id] = _PhaseRecorder(event)
        recorder.record(event)
    for record_id, recorder in recorder_by_id.items():
        if recorder.job_id in phases_by_job:
            phases_by_job[recorder.job_id] += _refine(recorder.phases(), report_by_attempt.get(record_id))
    job_times = tuple(JobTimes(job.spec.name, tuple(sorted(phases_by_job[job.id], key=_phase_start))) for job in jobs)
    return Timeline(
        start=run.created_at,
        until=last_event_at,
        is_over=core_run.is_over(run) and all(phase.end is not None for job in job_times for phase in job.phases),
        jobs=job_times,
        critical=_critical_path(jobs, phases_by_job),
    )


def _phase_start(phase: Phase) -> int:
    return phase.start


class _PhaseRecorder:
    """Collects the phases of one job or attempt from its events, in the order of the log."""

    def __init__(self, first_event: Event) -> None:
        is_attempt = first_event.entity == ATTEMPT
        self.job_id = str(first_event.metadata.get("job_id", "")) if is_attempt else first_event.entity_id
        self._attempt_index = int(first_event.metadata.get("index", 0)) if is_attempt else 0
        self._ended_phases: list[Phase] = []
        self._phase_name = ""
        self._phase_started_at = 0

    def record(self, event: Event) -> None:
        """Begin a new phase if the event's state has another phase than the last one. Most events do not."""
        phase_name = _PHASES_BY_ENTITY[event.entity].get(event.to, "")
        if phase_name == self._phase_name:
            return
        if self._phase_name and event.at > self._phase_started_at:
            self._ended_phases.append(Phase(self._phase_name, self._attempt_index, self._phase_started_at, event.at))
        self._phase_name, self._phase_started_at = phase_name, event.at

    def phases(self) -> list[Phase]:
        """Return the phases recorded so far. The last one may still last, with no end."""
        return (
            [*self._ended_phases, Phase(self._phase_name, self._attempt_index, self._phase_started_at)]
            if self._phase_name
            else self._ended_phases
        )


def _refine(phases: list[Phase], report: Any) -> list[Phase]:
    """Return the phases with more precise times for the last execution, taken from the runner's report.

    The times of the report are used only if they lie within the bounds that the log gives.
    """
    first_index = len(phases)
    while first_index and phases[first_index - 1].name in _EXECUTION:
        first_index -= 1
    execution_phases = phases[first_index:]
    if not execution_phases or execution_phases[-1].end is None:
        return phases
    logged_start, logged_end, attempt_index = (
        execution_phases[0].start,
        execution_phases[-1].end,
        execution_phases[0].attempt_index,
    )
    timings = report.get("timings") if isinstance(report, dict) else None
    reported_start, reported_end = (_reported_time(timings, phase_name) for phase_name in ("started_at", "finished_at"))
    if (
        reported_start is None
        or reported_end is None
        or not logged_start <= reported_start <= reported_end <= logged_end
    ):
        return phases
    bounds = (
        (STARTING, logged_start, reported_start),
        (RUNNING, reported_start, reported_end),
        (UPLOADING, reported_end, logged_end),
    )
    return [
        *phases[:first_index],
        *(
            Phase(phase_name, attempt_index, phase_start, phase_end)
            for phase_name, phase_start, phase_end in bounds
            if phase_end > phase_start
        ),
    ]


def _reported_time(timings: Any, time_field: str) -> int | None:
    try:
        return from_datetime(msgspec.convert(timings[time_field], datetime)) if isinstance(timings, dict) else None
    except (KeyError, TypeError, msgspec.ValidationError, OverflowError):
        return None


def _critical_path(jobs: Sequence[Job], phases_by_job: dict[str, list[Phase]]) -> tuple[str, ...]:
    """Return the names of the jobs on the critical path, in order of time; empty unless all jobs have ended."""
    executed_job_by_id = {job.id: job for job in jobs if job.completed_at and phases_by_job[job.id]}
    if not executed_job_by_id or not all(job.completed_at for job in jobs):
        return ()
    path_job: Job | None = max(executed_job_by_id.values(), key=lambda job: job.completed_at)
    names_backwards: list[str] = []
    while path_job is not None:
        names_backwards.append(path_job.spec.name)
        predecessors = [
            executed_job_by_id[predecessor_id]
            for predecessor_id in (*path_job.needs, *path_job.after)
            if predecessor_id in executed_job_by_id
        ]
        path_job = max(predecessors, key=lambda job: job.completed_at, default=None)
    return tuple(reversed(names_backwards))
