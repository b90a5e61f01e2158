"""The answer to "why?": sentences for a person, each with what it rests on."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from deltaci.core.events import Event
from deltaci.core.worker import Worker


class Reason(msgspec.Struct, frozen=True, kw_only=True):
    """One sentence or two. `code` is stable; `about` is the run, job, attempt or worker that has to be looked at."""

    code: str
    text: str
    about: str
    at: int | None = None
    seq: int | None = None


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """Why it stands as it does. `waiting`: what keeps it now; `history`: what led here, in order of time.

    Of a run, `waiting` also has what keeps some of its jobs while others go on.
    """

    id: str
    entity: str
    state: str
    status: str
    summary: str
    waiting: tuple[Reason, ...] = ()
    history: tuple[Reason, ...] = ()


class TenantState(msgspec.Struct, frozen=True, kw_only=True):
    """What is known around it. A quota of 0 is none; `ahead` says how many stand before an attempt, where known.

    `groups` says which attempt has a group; nobody has those that it does not name.
    `flaky` has the tests of a job, by its name, that are known to fail now and then.
    """

    now: int
    workers: tuple[Worker, ...] = ()
    running_quota: int = 0
    running: int = 0
    ahead: Mapping[str, int] = {}
    flaky: Mapping[str, frozenset[str]] = {}
    groups: Mapping[str, str] = {}


class Clause(msgspec.Struct, frozen=True):
    """What is said of somebody: `text` goes on after the name, `advice` is a sentence of its own."""

    code: str
    text: str
    about: str
    event: Event | None = None
    advice: str = ""

    def adding(self, sentence: str) -> Clause:
        """The same, with one sentence more behind it."""
        return msgspec.structs.replace(self, advice=f"{self.advice} {sentence}".strip())

    def briefly(self) -> Clause:
        """The same in one sentence."""
        return msgspec.structs.replace(self, advice="")

    def of(self, subject: str) -> Reason:
        """The whole sentence."""
        advice = f" {self.advice}" if self.advice else ""
        return reason(self.code, f"{subject} {self.text}.{advice}", self.about, self.event)


def reason(code: str, text: str, about: str, event: Event | None) -> Reason:
    """A reason that rests on an event, or on what is known around."""
    if event is None:
        return Reason(code=code, text=text, about=about)
    return Reason(code=code, text=text, about=about, at=event.at, seq=event.seq or None)
