"""The log as document 004's `JobEvent`s: only attempts, in the queue's words.

One of our events may be several there (a takeover is four), so an exported log counts its own `rev`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from deltaci.core.attempt import TERMINAL
from deltaci.core.events import ATTEMPT, Event
from deltaci.core.instants import rfc3339
from deltaci.core.status.queue import JOB_VIEW
from deltaci.core.status.view import Change


class _Job:
    __slots__ = ("attempt", "rev", "shown")

    def __init__(self) -> None:
        self.shown: str | None = None
        self.rev = 0
        self.attempt = 0


class JobEventsExporter:
    """Turns our events into document 004's. Remembers only the jobs that are not over."""

    def __init__(self) -> None:
        self._live: dict[str, _Job] = {}

    def export(self, events: Iterable[Event]) -> Iterator[dict[str, Any]]:
        """The `JobEvent`s of the next events of the log, in order."""
        for event in events:
            if event.entity == ATTEMPT:
                yield from self._export(event)

    def _export(self, event: Event) -> Iterator[dict[str, Any]]:
        job = self._live.setdefault(event.entity_id, _Job())
        steps, job.shown = JOB_VIEW.project_change(job.shown, Change(event.from_, event.to, event.trigger, event.actor))
        for step in steps:
            job.rev += 1
            job.attempt += step.trigger == "claimed"
            told: dict[str, Any] = {
                "type": step.trigger,
                "job_id": event.entity_id,
                "from_status": step.source,
                "to_status": step.target,
                "at": rfc3339(event.at),
                "actor": step.actor,
                "attempt": job.attempt,
                "rev": job.rev,
            }
            if event.request_id:
                told["request_id"] = event.request_id
            yield told
        if event.to in TERMINAL:
            del self._live[event.entity_id]


def job_events(events: Iterable[Event]) -> Iterator[dict[str, Any]]:
    """Every `JobEvent` of a whole log, in order."""
    return JobEventsExporter().export(events)
