"""Export events of attempts as document 004's `JobEvent`s.

One event may become several `JobEvent`s (a takeover becomes four), so the export has its own `rev`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from deltaci.core.attempt import CANCEL_REQUESTED, TERMINAL
from deltaci.core.events import ATTEMPT, ORCHESTRATOR, Event
from deltaci.core.instants import rfc3339
from deltaci.core.status.queue import JOB_VIEW
from deltaci.core.status.view import change_of


class _JobState:
    __slots__ = ("attempt_number", "rev", "status")

    def __init__(self) -> None:
        self.status: str | None = None
        self.rev = 0
        self.attempt_number = 0


class JobEventsExporter:
    """Converts the events of a log, in order, to `JobEvent`s. Keeps state only for jobs that have not ended."""

    def __init__(self) -> None:
        self._live_jobs: dict[str, _JobState] = {}

    def export(self, events: Iterable[Event]) -> Iterator[dict[str, Any]]:
        """Yield the `JobEvent`s for these events, which must follow those of the previous call in the log."""
        for event in events:
            if event.entity == ATTEMPT:
                yield from self._export(event)

    def _export(self, event: Event) -> Iterator[dict[str, Any]]:
        job_state = self._live_jobs.setdefault(event.entity_id, _JobState())
        steps, job_state.status = JOB_VIEW.project_change(job_state.status, change_of(event))
        for step in steps:
            job_state.rev += 1
            job_state.attempt_number += step.trigger == "claimed"
            job_event: dict[str, Any] = {
                "type": step.trigger,
                "job_id": event.entity_id,
                "from_status": step.source,
                "to_status": step.target,
                "at": rfc3339(event.at),
                "actor": step.actor,
                "attempt": job_state.attempt_number,
                "rev": job_state.rev,
            }
            if event.request_id:
                job_event["request_id"] = event.request_id
            if step.is_takeover:
                job_event["metadata"] = {"takeover": takeover(event)}
            elif event.metadata.get("implied_by"):
                job_event["metadata"] = {"implied_by": event.metadata["implied_by"]}
            yield job_event
        if event.to in TERMINAL:
            del self._live_jobs[event.entity_id]


def takeover(event: Event) -> dict[str, str]:
    """Return who ended the attempt in a way that document 004 has no word for, and why."""
    metadata = event.metadata
    canceler = event.actor if event.to == CANCEL_REQUESTED else metadata.get("canceled_by", ORCHESTRATOR)
    return {"by": canceler, "reason": metadata["error"]["code"] if "error" in metadata else metadata.get("reason", "")}


def job_events(events: Iterable[Event]) -> Iterator[dict[str, Any]]:
    """Yield the `JobEvent`s for the events of a whole log."""
    return JobEventsExporter().export(events)
