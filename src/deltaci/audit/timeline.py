"""When a run did what: each job as phases, one after the other, from the run's events.

Runners speak seldom: that the steps began is heard with the first heartbeat, that they ended with the result. What an
attempt's report says of its times is therefore taken where it fits what the log says, and left aside where it does not.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec

from deltaci.core import attempt, job, run
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

# A state that is not here is no phase: the job waits for others, or is over, or its attempt says more.
_ATTEMPT: Final = {
    attempt.QUEUED: QUEUED,
    attempt.STALE: QUEUED,
    attempt.LEASED: STARTING,
    attempt.STARTING: STARTING,
    attempt.RUNNING: RUNNING,
    attempt.UPLOADING: UPLOADING,
    attempt.CANCEL_REQUESTED: STOPPING,
}
_JOB: Final = {job.WAITING_APPROVAL: APPROVAL, job.RETRYING: BACKOFF}
_PHASE: Final = {ATTEMPT: _ATTEMPT, JOB: _JOB}
_WORKED: Final = frozenset({STARTING, RUNNING, UPLOADING})


class Phase(msgspec.Struct, frozen=True):
    """What a job did for a while. `attempt` is 0 for what is the job's own; without an `end` it goes on."""

    name: str
    attempt: int
    start: int
    end: int | None = None


class JobTimes(msgspec.Struct, frozen=True):
    """One job, its phases in order of time; none if it had no turn."""

    name: str
    phases: tuple[Phase, ...]


class Timeline(msgspec.Struct, frozen=True, kw_only=True):
    """A whole run. `until` is when something was heard last.

    `critical` names the jobs that the run's length comes from: the last one to end, the one that it waited for, and
    so on. It is empty until all jobs are over.
    """

    start: int
    until: int
    is_over: bool
    jobs: tuple[JobTimes, ...]
    critical: tuple[str, ...] = ()


def timeline(of: Run, jobs: Sequence[Job], tries: Iterable[Attempt], events: Iterable[Event]) -> Timeline:
    """Every job in the order of the plan. Linear in the events."""
    reports = {each.id: each.report for each in tries}
    found: dict[str, list[Phase]] = {each.id: [] for each in jobs}
    lives: dict[str, _Life] = {}
    until = of.created_at
    for event in events:
        until = max(until, event.at)
        if event.entity not in _PHASE:
            continue
        life = lives.get(event.entity_id)
        if life is None:
            life = lives[event.entity_id] = _Life(event)
        life.go_on(event)
    for id, life in lives.items():
        if life.job_id in found:
            found[life.job_id] += _told(life.phases(), reports.get(id))
    times = tuple(JobTimes(each.spec.name, tuple(sorted(found[each.id], key=_start))) for each in jobs)
    return Timeline(
        start=of.created_at,
        until=until,
        is_over=run.is_over(of) and all(phase.end is not None for each in times for phase in each.phases),
        jobs=times,
        critical=_critical(jobs, found),
    )


def _start(phase: Phase) -> int:
    return phase.start


class _Life:
    """One job or attempt, as its events tell it."""

    def __init__(self, first: Event) -> None:
        is_attempt = first.entity == ATTEMPT
        self.job_id = str(first.metadata.get("job_id", "")) if is_attempt else first.entity_id
        self._index = int(first.metadata.get("index", 0)) if is_attempt else 0
        self._over: list[Phase] = []
        self._name = ""
        self._since = 0

    def go_on(self, event: Event) -> None:
        """The next event. Most leave it where it is: heartbeats do."""
        name = _PHASE[event.entity].get(event.to, "")
        if name == self._name:
            return
        if self._name and event.at > self._since:
            self._over.append(Phase(self._name, self._index, self._since, event.at))
        self._name, self._since = name, event.at

    def phases(self) -> list[Phase]:
        """All of them; the last may go on."""
        return [*self._over, Phase(self._name, self._index, self._since)] if self._name else self._over


def _told(phases: list[Phase], report: Any) -> list[Phase]:
    """The phases with what the runner says of its last turn: when the first step began, when the last one ended."""
    first = len(phases)
    while first and phases[first - 1].name in _WORKED:
        first -= 1
    turn = phases[first:]
    if not turn or turn[-1].end is None:
        return phases
    start, end, index = turn[0].start, turn[-1].end, turn[0].attempt
    times = report.get("timings") if isinstance(report, dict) else None
    began, ended = (_moment(times, name) for name in ("started_at", "finished_at"))
    if began is None or ended is None or not start <= began <= ended <= end:
        return phases  # By another clock than ours, or by none.
    bounds = ((STARTING, start, began), (RUNNING, began, ended), (UPLOADING, ended, end))
    return [*phases[:first], *(Phase(name, index, at, to) for name, at, to in bounds if to > at)]


def _moment(times: Any, name: str) -> int | None:
    try:
        return from_datetime(msgspec.convert(times[name], datetime)) if isinstance(times, dict) else None
    except (KeyError, TypeError, msgspec.ValidationError, OverflowError):
        return None


def _critical(jobs: Sequence[Job], phases: dict[str, list[Phase]]) -> tuple[str, ...]:
    known = {each.id: each for each in jobs if each.completed_at and phases[each.id]}
    if not known or not all(each.completed_at for each in jobs):
        return ()
    at: Job | None = max(known.values(), key=lambda each: each.completed_at)
    path: list[str] = []
    while at is not None:
        path.append(at.spec.name)
        before = [known[id] for id in (*at.needs, *at.after) if id in known]
        at = max(before, key=lambda each: each.completed_at, default=None)
    return tuple(reversed(path))
