"""Time that a workstream and its tasks spent in each state, computed from the event log.

Times come from the store. Open states are counted up to the last event, so that the same events give the same metrics.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from deltaci.controllers.workstreams.records import Workstream
from deltaci.core.events import JOB, RUN, Event
from deltaci.core.instants import SECOND, rfc3339
from deltaci.core.job import Job
from deltaci.core.run import Run
from deltaci.core.status.workstreams import TASK_VIEW, WORKSTREAM_VIEW, task_state, workstream_state
from deltaci.engine.feed import PAGE
from deltaci.storage.port import Store

MAX_KEPT: Final = 1000  # So many workstreams are remembered; others are read again from their beginning.
COUNTED: Final = ("queued", "running", "validating", "retrying")


class StateTimes(msgspec.Struct):
    """Time spent in each state of document 003; `state` is the current one, entered at `since`."""

    state: str = ""
    since: int = 0
    spent: dict[str, int] = {}
    worker: str = ""  # that had it last

    def enter(self, state: str, at: int) -> None:
        """It is in this one from now on."""
        if self.state:
            self.spent[self.state] = self.spent.get(self.state, 0) + max(0, at - self.since)
        self.state, self.since = state, at

    def seconds(self, state: str, now: int) -> float:
        """How long it was in this one."""
        going_on = max(0, now - self.since) if state == self.state else 0
        return (self.spent.get(state, 0) + going_on) / SECOND


class WorkstreamTimes(msgspec.Struct):
    """The times of one workstream. `seq` is the last counted event, `now` its time."""

    seq: int = 0
    now: int = 0
    stream: StateTimes = msgspec.field(default_factory=StateTimes)
    tasks: dict[str, StateTimes] = {}

    def count(self, events: Iterable[Event]) -> None:
        """Hear these, in their order; what was heard before changes nothing."""
        for event in events:
            if event.seq <= self.seq:
                continue
            self.seq, self.now = event.seq, max(self.now, event.at)
            view = {JOB: TASK_VIEW, RUN: WORKSTREAM_VIEW}.get(event.entity)
            if view is not None and event.from_ != event.to and (shown := view.state_map[event.to]) in view.states:
                of = self.stream if event.entity == RUN else self.tasks.setdefault(event.entity_id, StateTimes())
                of.enter(shown, self.now)
                of.worker = event.metadata.get("worker_id") or of.worker


class WorkstreamTimesCache:
    """Times of the active workstreams, updated incrementally."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._gauges: dict[str, WorkstreamTimes] = {}

    async def read(self, id: str) -> WorkstreamTimes:
        """As of now."""
        gauge = self._gauges.pop(id, None) or WorkstreamTimes()
        while len(self._gauges) >= MAX_KEPT:
            del self._gauges[next(iter(self._gauges))]
        self._gauges[id] = gauge
        while page := await self._store.events(gauge.seq, PAGE, run_id=id):
            gauge.count(page)
        return gauge

    def forget(self, id: str) -> None:
        """It is over."""
        self._gauges.pop(id, None)


def metrics(
    stream: Workstream, record: Run, jobs: Sequence[Job], gauge: WorkstreamTimes | None = None
) -> dict[str, Any]:
    """What is told of a workstream under way; without a gauge, what its records say."""
    now = gauge.now if gauge is not None else max((each.updated_at for each in (record, *jobs)), default=0)
    tasks = [_task(each, gauge, now) for each in jobs if task_state(each)]
    counts = {state: sum(each["state"] == state for each in tasks) for state in TASK_VIEW.states}
    end = _end(record, gauge, now)
    return {
        "workstream": stream.id,
        "name": stream.name,
        "state": workstream_state(record),
        "started_at": moment(record.started_at),
        "updated_at": moment(now),
        "elapsed_seconds": max(0, end - record.started_at) / SECOND if record.started_at else 0.0,
        "counts": counts,
        "tasks": tasks,
    }


def _end(record: Run, gauge: WorkstreamTimes | None, now: int) -> int:
    """Until when it counts: what comes after its end, e.g. that it was reported, does not."""
    if workstream_state(record) not in WORKSTREAM_VIEW.terminal:
        return now
    return gauge.stream.since if gauge is not None else record.updated_at


def _task(record: Job, gauge: WorkstreamTimes | None, now: int) -> dict[str, Any]:
    told: dict[str, Any] = {
        "name": record.spec.name,
        "state": task_state(record),
        "attempts": record.attempts,
        "worker": record.worker_id,
        "started_at": moment(record.started_at),
        "completed_at": moment(record.completed_at),
    }
    if gauge is not None:
        spent = gauge.tasks.get(record.id) or StateTimes()
        told["worker"] = spent.worker
        told.update({f"{state}_seconds": spent.seconds(state, now) for state in COUNTED})
    return told


def moment(at: int) -> str | None:
    """A time for people; None: not yet."""
    return rfc3339(at) if at else None
