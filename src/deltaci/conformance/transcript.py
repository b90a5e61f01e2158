"""The record of one scenario: every observation in order. Verdicts are computed from nothing else."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import field

EntryKind = Literal["granted", "heard", "answered", "job", "nobody", "began", "exited", "ended"]


class Entry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One observation. Times are seconds since the start of the scenario.

    Kinds: `granted` a lease was granted; `heard` a request or message was received; `answered` it was answered; `job` a
    process of the job wrote a marker; `nobody` the last process of the job ended; `began`, `exited` the runner itself
    started or exited; `ended` the scenario ended.
    """

    at: float
    kind: EntryKind = field(name="what")
    job: str = ""
    type: str = ""  # The message type, or the route name of another request.
    answer: str = ""  # The message type of the answer, an error code, or `cut`.
    note: str = ""  # The job's marker, or a detail of the observation.
    body: dict[str, Any] = {}


class Transcript(msgspec.Struct, kw_only=True):
    """Everything that was observed in one scenario."""

    scenario: str
    entries: list[Entry] = []
    secrets: dict[str, str] = {}  # Values that must not appear anywhere, with their kind.
    output: str = ""  # Output of the runner process.
    logs: dict[str, str] = {}  # The uploaded log of each job.
    targets: list[str] = []  # Method and path of every request.

    def find(self, kind: EntryKind, job_name: str = "", message_type: str = "") -> list[Entry]:
        """Return all entries of a kind; an empty job or message type matches any."""
        return [
            entry
            for entry in self.entries
            if entry.kind == kind
            and (not job_name or entry.job == job_name)
            and (not message_type or entry.type == message_type)
        ]

    def first(self, kind: EntryKind, job_name: str = "", message_type: str = "") -> Entry | None:
        """Return the first entry of this kind, job and type; None if there is none. Empty arguments match any."""
        return next(iter(self.find(kind, job_name, message_type)), None)

    def received(self, message_type: str, job_name: str = "") -> list[Entry]:
        """Return the entries of all messages and requests of this type that the runner sent."""
        return self.find("heard", job_name, message_type)

    def answered(self, message_type: str, answer_type: str, job_name: str = "") -> list[Entry]:
        """Return the entries of all messages of this type to which the server gave this answer."""
        return [entry for entry in self.find("answered", job_name, message_type) if entry.answer == answer_type]

    def process_exits(self, job_name: str) -> list[Entry]:
        """Return the entries that record the end of the last running process of the job."""
        return self.find("nobody", job_name)

    def markers(self, job_name: str) -> list[str]:
        """Return the markers that the job's processes wrote, one at the beginning of each step."""
        return [entry.note for entry in self.find("job", job_name)]

    def is_running(self, job_name: str, until_entry: Entry) -> bool:
        """Return whether a process of the job was running when the entry `until_entry` was recorded."""
        was_running = False
        for entry in self.entries:
            if entry is until_entry:
                break
            if entry.job == job_name and entry.kind in ("job", "nobody"):
                was_running = entry.kind == "job"
        return was_running
