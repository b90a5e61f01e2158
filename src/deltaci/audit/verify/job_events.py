"""Is this log of `JobEvent`s legal? Document 004's own format, whoever wrote it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Final

import msgspec

from deltaci.audit.verify.log_lines import EPOCH, Count, Moment, Name
from deltaci.audit.verify.report import Recent, Report
from deltaci.core.status.queue import CLAIMED, JOB_VIEW, RUNNING
from deltaci.core.status.view import Step

_OWNED: Final = frozenset({"started", "heartbeat", "succeeded", "failed"})
_TERMINAL: Final = frozenset({"succeeded", "failed"})


class _Line(msgspec.Struct, forbid_unknown_fields=True):
    type: Name
    job_id: Name
    from_status: str | None
    to_status: Name
    at: Moment
    actor: Name
    attempt: Count
    rev: Annotated[int, msgspec.Meta(ge=1)]
    request_id: str = ""


@dataclass(slots=True, eq=False)
class _Job:
    status: str | None = None
    owner: str = ""
    attempt: int = 0
    rev: int = 0
    at: datetime = EPOCH
    requests: tuple[tuple[str, str, datetime], ...] = ()


_decode = msgspec.json.Decoder(_Line).decode


class JobEventsVerifier:
    """A verification under way."""

    def __init__(self) -> None:
        self.report = Report("job events (document 004)")
        self.live: dict[str, _Job] = {}
        self.recent = Recent()
        self.number = 0

    def bad(self, rule: str, found: str, legal: str) -> None:
        """Note that the current line breaks a rule."""
        self.report.add(self.number, rule, found, legal)

    def feed(self, number: int, raw: bytes) -> None:
        """Check one line."""
        self.number = number
        try:
            line = _decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            self.bad("QUE-E1", f"the line cannot be read: {error}", "one JSON object with document 004's fields")
            return
        job = self.live.get(line.job_id)
        if job is None:
            if line.job_id in self.recent:
                self.bad(
                    "QUE-C6", f"job {line.job_id} is over and goes {line.from_status} → {line.to_status}", "nothing"
                )
                return
            job = self.live[line.job_id] = _Job()
            self.report.entities += 1
        self._transition(job, line)
        self._numbers(job, line)
        self._owner(job, line)
        job.status, job.rev, job.at = line.to_status, line.rev, line.at
        if line.to_status in _TERMINAL:
            del self.live[line.job_id]
            self.recent.add(line.job_id)

    def end(self) -> Report:
        """The log is over."""
        return self.report

    def _transition(self, job: _Job, line: _Line) -> None:
        if line.from_status != job.status:
            self.bad(
                "QUE-T12",
                f"job {line.job_id} is {job.status} and goes {line.from_status} → {line.to_status}",
                f"from {job.status}",
            )
        if JOB_VIEW.allows(Step(line.from_status, line.to_status, line.type, line.actor)) is None:
            legal = [f"{e.target} by {e.triggers[0]}" for e in JOB_VIEW.edges if e.source == line.from_status]
            found = f"job {line.job_id}: {line.from_status} → {line.to_status} by {line.type}"
            self.bad("QUE-T12", found, ", ".join(legal) or "nothing: it is over")
        if line.at < job.at:
            self.bad("WST-V4", f"{line.at.isoformat()} after {job.at.isoformat()}", "a time that does not go back")

    def _numbers(self, job: _Job, line: _Line) -> None:
        if line.rev != job.rev + 1:
            self.bad("QUE-R1", f"job {line.job_id} has rev {line.rev} after {job.rev}", f"rev {job.rev + 1}")
        wanted = job.attempt + (line.type == "claimed")
        if line.attempt != wanted:
            rule = "QUE-A1" if line.type == "enqueued" else "QUE-A2" if line.type == "claimed" else "QUE-A3"
            self.bad(rule, f"job {line.job_id} has attempt {line.attempt} after {job.attempt}", f"attempt {wanted}")
        job.attempt = wanted
        if line.request_id:
            if any(r == line.request_id and t == line.type and at != line.at for r, t, at in job.requests):
                self.bad(
                    "QUE-C5", f"job {line.job_id} applied request {line.request_id} twice", "a repeat appends no event"
                )
            job.requests = (*job.requests, (line.request_id, line.type, line.at))[-8:]

    def _owner(self, job: _Job, line: _Line) -> None:
        if line.type in _OWNED and line.actor != job.owner:
            self.bad(
                "QUE-C2",
                f"{line.type} of job {line.job_id} comes from {line.actor}",
                job.owner or "nobody: it has no owner",
            )
        if line.type == "claimed":
            job.owner = line.actor
        elif line.to_status not in (CLAIMED, RUNNING):
            job.owner = ""
