"""What happened in one scenario, in the order in which it was observed: all that a verdict may be based on."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

EntryKind = Literal["granted", "heard", "answered", "job", "nobody", "began", "exited", "ended"]


class Entry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One observation. Times are seconds since the scenario began.

    granted: a lease was handed out. heard: a request or message came in. answered: what was sent back for it.
    job: a process of the job said a word. nobody: no process of the job is left. began, exited: the runner itself.
    ended: the scenario.
    """

    at: float
    what: EntryKind
    job: str = ""
    type: str = ""  # Of what was heard or answered: a message's type, else the address.
    answer: str = ""  # The type of the answer, a refusal's code, or `cut`.
    note: str = ""  # The job's word, or what else there is to tell.
    body: dict[str, Any] = {}


class Transcript(msgspec.Struct, kw_only=True):
    """Everything that was said and seen in one scenario."""

    scenario: str
    entries: list[Entry] = []
    secrets: dict[str, str] = {}  # What must never be seen anywhere: its kind, by its text.
    output: str = ""  # What the runner itself printed.
    logs: dict[str, str] = {}  # The uploaded log of each job.
    targets: list[str] = []  # The request lines that came in.

    def find(self, what: EntryKind, job: str = "", type: str = "") -> list[Entry]:
        """All entries of this kind; an empty job or type is any."""
        return [
            each
            for each in self.entries
            if each.what == what and (not job or each.job == job) and (not type or each.type == type)
        ]

    def first(self, what: EntryKind, job: str = "", type: str = "") -> Entry | None:
        """The first of them."""
        return next(iter(self.find(what, job, type)), None)

    def heard(self, type: str, job: str = "") -> list[Entry]:
        """Every time the runner said it."""
        return self.find("heard", job, type)

    def answered(self, type: str, answer: str, job: str = "") -> list[Entry]:
        """Every time the runner's message got this answer."""
        return [each for each in self.find("answered", job, type) if each.answer == answer]

    def words(self, job: str) -> list[str]:
        """What the job's processes said."""
        return [each.note for each in self.find("job", job)]

    def is_running(self, job: str, until: Entry) -> bool:
        """Whether a process of the job was there when this was observed."""
        is_there = False
        for each in self.entries:
            if each is until:
                break
            if each.job == job and each.what in ("job", "nobody"):
                is_there = each.what == "job"
        return is_there
