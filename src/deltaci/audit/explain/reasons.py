"""The result of an explanation: reasons in sentences, each with a stable code and the event that it is based on."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from deltaci.core.events import Event
from deltaci.core.worker import Worker


class Reason(msgspec.Struct, frozen=True, kw_only=True):
    """One or two sentences, for people, and a stable `code`, for programs.

    `about` is the id of the run, job, attempt or worker to look at next. `at` and `seq` are those of the event on which
    the reason is based.
    """

    code: str
    text: str
    about: str
    at: int | None = None
    seq: int | None = None


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """Why a record is in its state: a summary, its current waits (`waiting`) and its past events (`history`).

    For a run, `waiting` includes the waits of single jobs while others run.
    """

    id: str
    entity: str
    state: str
    status: str
    summary: str
    waiting: tuple[Reason, ...] = ()
    history: tuple[Reason, ...] = ()


class TenantState(msgspec.Struct, frozen=True, kw_only=True):
    """The current state of a tenant, as far as waits depend on it. A `running_quota` of 0 means no quota.

    `ahead` maps the id of an attempt to the number of attempts before it in the queue, `groups` a concurrency group to
    the id of the attempt that holds it (a missing group is free), `group_fences` a group whose holder has no live lease
    to the time until which it holds the group, and `flaky` a job's name to its tests that are known to be flaky.
    """

    now: int
    workers: tuple[Worker, ...] = ()
    running_quota: int = 0
    running: int = 0
    ahead: Mapping[str, int] = {}
    flaky: Mapping[str, frozenset[str]] = {}
    groups: Mapping[str, str] = {}
    group_fences: Mapping[str, int] = {}


class Clause(msgspec.Struct, frozen=True):
    """The part of a sentence after its subject, such as "waits for a worker", and further sentences (`details`).

    `to_reason` adds the subject, so that one clause can be used for a job, its attempt and the jobs that wait for it.
    """

    code: str
    text: str
    about: str
    event: Event | None = None
    details: str = ""

    def add_detail(self, sentence: str) -> Clause:
        """Return a copy with this sentence appended to the details."""
        return msgspec.structs.replace(self, details=f"{self.details} {sentence}".strip())

    def without_details(self) -> Clause:
        return msgspec.structs.replace(self, details="")

    def to_reason(self, subject: str) -> Reason:
        """Return the reason whose text is the subject, this clause and its details."""
        details = f" {self.details}" if self.details else ""
        return make_reason(self.code, f"{subject} {self.text}.{details}", self.about, self.event)


def make_reason(code: str, text: str, about: str, event: Event | None) -> Reason:
    """Return a reason with this text. If it is based on an event, it has the time and `seq` of the event."""
    if event is None:
        return Reason(code=code, text=text, about=about)
    return Reason(code=code, text=text, about=about, at=event.at, seq=event.seq or None)
