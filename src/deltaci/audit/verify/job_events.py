"""Verify a log of `JobEvent`s, the format of document 004.

The log may come from another implementation, so only fields that the document defines are used.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Any, Final

import msgspec

from deltaci.audit.verify.log_lines import EPOCH, Count, Name, Timestamp
from deltaci.audit.verify.report import RecentIds, Report
from deltaci.core.status.queue import CLAIMED, JOB_VIEW, RUNNING
from deltaci.core.status.view import Step

_OWNER_ONLY: Final = frozenset({"started", "heartbeat", "succeeded", "failed"})
_TERMINAL: Final = frozenset({"succeeded", "failed"})


class _EventLine(msgspec.Struct, forbid_unknown_fields=True):
    type: Name
    job_id: Name
    from_status: str | None
    to_status: Name
    at: Timestamp
    actor: Name
    attempt: Count
    rev: Annotated[int, msgspec.Meta(ge=1)]
    request_id: str = ""
    metadata: dict[str, Any] | None = None


@dataclass(slots=True, eq=False)
class _TrackedJob:
    status: str | None = None
    owner: str = ""
    attempt_number: int = 0
    rev: int = 0
    at: datetime = EPOCH
    requests: dict[tuple[str, str, str], datetime] = field(default_factory=dict)


_decode = msgspec.json.Decoder(_EventLine).decode


class JobEventsVerifier:
    """Verifies one log of job events, line by line."""

    def __init__(self) -> None:
        self.report = Report("job events (document 004)")
        self.live: dict[str, _TrackedJob] = {}
        self.recent = RecentIds()
        self.line_number = 0

    def flag(self, rule: str, problem: str, legal_text: str) -> None:
        """Report that the current line breaks a rule, with the problem and the legal alternative as text."""
        self.report.add(self.line_number, rule, problem, legal_text)

    def feed(self, number: int, raw_event: bytes) -> None:
        """Verify one line."""
        self.line_number = number
        try:
            event = _decode(raw_event)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            self.flag("QUE-E1", f"the line cannot be read: {error}", "one JSON object with document 004's fields")
            return
        job = self.live.get(event.job_id)
        if job is None:
            if event.job_id in self.recent:
                self.flag(
                    "QUE-C6",
                    f"job {event.job_id} has ended and goes {event.from_status} → {event.to_status}",
                    "nothing",
                )
                return
            job = self.live[event.job_id] = _TrackedJob()
            self.report.entity_count += 1
        self._check_transition(job, event)
        self._check_numbers(job, event)
        self._check_owner(job, event)
        job.status, job.rev, job.at = event.to_status, event.rev, event.at
        if event.to_status in _TERMINAL:
            del self.live[event.job_id]
            self.recent.add(event.job_id)

    def end(self) -> Report:
        """Return the report."""
        return self.report

    def _check_transition(self, job: _TrackedJob, event: _EventLine) -> None:
        if event.from_status != job.status:
            self.flag(
                "QUE-T12",
                f"job {event.job_id} is {job.status} and goes {event.from_status} → {event.to_status}",
                f"from {job.status}",
            )
        if JOB_VIEW.allows(Step(event.from_status, event.to_status, event.type, event.actor)) is None:
            legal_transitions = [
                f"{edge.target} by {edge.triggers[0]}" for edge in JOB_VIEW.edges if edge.source == event.from_status
            ]
            problem = f"job {event.job_id}: {event.from_status} → {event.to_status} by {event.type}"
            self.flag("QUE-T12", problem, ", ".join(legal_transitions) or "nothing: the state is terminal")
        if event.at < job.at:
            self.flag("WST-V4", f"{event.at.isoformat()} after {job.at.isoformat()}", "a time that does not go back")

    def _check_numbers(self, job: _TrackedJob, event: _EventLine) -> None:
        if event.rev != job.rev + 1:
            self.flag("QUE-R1", f"job {event.job_id} has rev {event.rev} after {job.rev}", f"rev {job.rev + 1}")
        expected_attempt_number = job.attempt_number + (event.type == "claimed")
        if event.attempt != expected_attempt_number:
            rule = "QUE-A1" if event.type == "enqueued" else "QUE-A2" if event.type == "claimed" else "QUE-A3"
            self.flag(
                rule,
                f"job {event.job_id} has attempt {event.attempt} after {job.attempt_number}",
                f"attempt {expected_attempt_number}",
            )
        job.attempt_number = expected_attempt_number
        if event.request_id:
            # The request id of a claim is unique per worker.
            request_key = (event.request_id, event.type, event.actor if event.type == "claimed" else "")
            if job.requests.setdefault(request_key, event.at) != event.at:
                self.flag(
                    "QUE-C5",
                    f"job {event.job_id} applied request {event.request_id} twice",
                    "no second event for the same request",
                )

    def _check_owner(self, job: _TrackedJob, event: _EventLine) -> None:
        if event.type in _OWNER_ONLY and event.actor != job.owner:
            self.flag(
                "QUE-C2",
                f"{event.type} of job {event.job_id} comes from {event.actor}",
                job.owner or "no one: it has no owner",
            )
        if event.type == "claimed":
            job.owner = event.actor
        elif event.to_status not in (CLAIMED, RUNNING):
            job.owner = ""
