"""What a forge was told last about a commit, and what it may be told next. Pure: no clock, no network.

For each context of a commit there is one small document. It says which step of which run the forge knows, who is about
to tell it something, and what went wrong. Steps are ordered: a newer run comes after an older one, a trusted one after
one for a fork, and within a run its `rev` counts. What comes before what was told is never told any more.
"""

from __future__ import annotations

from typing import Any, Final, Literal, Protocol

import msgspec
from msgspec.structs import replace

from deltaci.forges.projects import ForgeProject
from deltaci.forges.webhook_event import fingerprint

MAX_DESCRIPTION: Final = 140  # GitHub takes no more.
MAX_PROBLEM: Final = 500

State = Literal["pending", "running", "success", "failure", "canceled", "error"]


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """Something about one line of a file."""

    path: str
    line: int
    message: str
    column: int = 0
    title: str = ""
    level: Literal["failure", "warning", "notice"] = "failure"


class Mark(msgspec.Struct, frozen=True, order=True):
    """A step of a run, in the order in which steps count: when the run was made, which it is, and its `rev`.

    A run for a fork comes before all others: whoever proposes a commit that is here already does not change what is
    shown of it.
    """

    is_trusted: bool = False
    at: int = 0
    run_id: str = ""
    rev: int = 0


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What a forge is to be told."""

    run_id: str
    commit: str
    context: str
    state: State
    description: str
    url: str = ""
    ref: str = ""
    summary: str = ""
    notes: tuple[Note, ...] = ()


class Call(msgspec.Struct, frozen=True):
    """One request to a forge. Its headers have the token in them."""

    method: str
    url: str
    headers: dict[str, str]
    body: dict[str, Any]

    def __repr__(self) -> str:
        return f"Call({self.method} {self.url})"


class Answer(msgspec.Struct, frozen=True):
    """What a forge said. `wait_seconds` is how long it wants to be left alone, `id` what it calls what it was told."""

    status: int
    text: str = ""
    wait_seconds: float = 0.0
    id: str = ""


class Speaker(Protocol):
    """One kind of forge, as far as it is told something."""

    def call(self, project: ForgeProject, report: Report, check: str) -> Call:
        """How to say it. `check` is what the forge called what it was told before, in the same place."""
        ...

    def told(self, answer: Answer) -> str | None:
        """What the forge calls it, if it has it now, or had it before; None: it has not."""
        ...


class Told(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The document. `mark` is what the forge has, unless it `is_unsure`: then that must be told again.

    `tried` is the newest that anybody began to tell it: without an answer, it may have that. `holder` is about to tell
    it something until `held_until`. `since`, `tries` and `refusals` count what failed for the step `failing`; once it
    `is_given_up`, that step is not tried any more.
    """

    mark: Mark = Mark()
    tried: Mark = Mark()
    state: str = ""
    description: str = ""
    check: str = ""
    check_of: str = ""  # The run that the check belongs to.
    is_unsure: bool = False
    holder: str = ""
    held_until: float = 0.0
    failing: Mark = Mark()
    since: float = 0.0
    tries: int = 0
    refusals: int = 0
    next_at: float = 0.0
    problem: str = ""
    is_given_up: bool = False


class Patience(msgspec.Struct, frozen=True, kw_only=True):
    """How often something is tried."""

    first_seconds: float = 1.0
    most_seconds: float = 300.0
    give_up_seconds: float = 6 * 3600.0
    max_refusals: int = 8  # What a forge refuses may be put right by a person, but hardly by itself.
    hold_seconds: float = 30.0  # Longer than a request can take.
    max_wait_seconds: float = 3600.0  # No forge is believed that wants to be left alone for longer.


class Tell(msgspec.Struct, frozen=True):
    """Tell it now: write this first, so that nobody else does."""

    held: Told


class Done(msgspec.Struct, frozen=True):
    """Nothing is left to be told of this step, and why: for the run's last event."""

    how: str


class Later(msgspec.Struct, frozen=True):
    """Look again then."""

    at: float


def name_of(project: str, commit: str, context: str) -> str:
    """Where the document is. Every part is told by its fingerprint, so that none can lead elsewhere."""
    return f"{fingerprint(project)[:16]}/{commit}/{fingerprint(context)[:16]}"


def next_step(told: Told, mark: Mark, report: Report, who: str, now: float, patience: Patience) -> Tell | Done | Later:
    """What to do about this step of a run."""
    newest = max(told.mark, told.tried)
    if newest > mark:
        return Done(told.state if newest.run_id == mark.run_id else f"superseded by run {newest.run_id}")
    # What it was told before is as good, unless it may have heard something else since then.
    is_same = told.mark.run_id == mark.run_id and (told.state, told.description) == (report.state, report.description)
    is_known = is_same and newest == told.mark
    if not told.is_unsure and (told.mark == mark or is_known):
        return Done(told.state)
    if told.failing == mark and told.is_given_up:
        return Done(f"exhausted: {told.problem}")
    if told.holder and told.holder != who and told.held_until > now:
        return Later(told.held_until)
    if told.failing == mark and told.next_at > now:
        return Later(told.next_at)
    return Tell(replace(told, tried=mark, holder=who, held_until=now + patience.hold_seconds))


def succeeded(told: Told, mark: Mark, report: Report, id: str) -> Told:
    """The forge has it."""
    check = id or check_of(told, report)
    return Told(
        mark=mark,
        tried=mark,
        state=report.state,
        description=report.description,
        check=check,
        check_of=report.run_id,
    )


def check_of(told: Told, report: Report) -> str:
    """What the forge calls what it was told before, if that was about the same run: another run has its own."""
    return told.check if told.check_of == report.run_id else ""


def failed(
    told: Told, mark: Mark, problem: str, *, is_refused: bool, pause: float, now: float, patience: Patience
) -> Told:
    """The forge does not have it. It `is_refused` if the same words will hardly ever be taken."""
    again = told if told.failing == mark else replace(told, failing=mark, since=now, tries=0, refusals=0)
    tries, refusals = again.tries + 1, again.refusals + is_refused
    is_over = refusals >= patience.max_refusals or now - again.since >= patience.give_up_seconds
    return replace(
        again,
        holder="",
        held_until=0.0,
        tries=tries,
        refusals=refusals,
        next_at=now + pause,
        problem=f"{problem}; {tries} {'try' if tries == 1 else 'tries'}"[:MAX_PROBLEM],
        is_given_up=is_over,
    )


def pause(tries: int, answer: Answer | None, dice: float, patience: Patience) -> float:
    """How long to wait after so many tries: twice as long each time, by chance up to half of it less."""
    asked = min(answer.wait_seconds, patience.max_wait_seconds) if answer is not None else 0.0
    grown = min(patience.most_seconds, patience.first_seconds * 2.0 ** min(tries, 30))
    return max(asked, grown * (0.5 + dice / 2))


def is_refusal(answer: Answer) -> bool:
    """Whether the same words will hardly be taken later: what we said is wrong, or we may not say it."""
    if answer.status in (408, 425, 429) or answer.wait_seconds:
        return False
    return 300 <= answer.status < 500
