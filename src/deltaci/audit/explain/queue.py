"""What waits, and why, of all runs of a tenant at once: only as things are now, without a look at what led here.

Each says it in a sentence that begins with the verb, because whoever lists them names them. Those that wait for the
same are told of together: a kind of reason, and what else makes them alike, such as the labels that nobody offers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from deltaci.audit.explain import waits, workers
from deltaci.audit.explain.context import ExplainContext
from deltaci.audit.explain.formatting import capital, count, listed
from deltaci.audit.explain.reasons import Clause, Reason
from deltaci.core import job as jobs_
from deltaci.core.attempt import Attempt
from deltaci.core.ids import attempt_id
from deltaci.core.job import Job, satisfies
from deltaci.core.run import Run
from deltaci.core.timers import ready_at

# In which order they are listed.
IN_QUEUE: Final = 0
BY_ITSELF: Final = 1  # A job that waits for people or a time, a run that has no plan yet.
BEHIND: Final = 2  # A job that waits for others of its run.

FOR_JOBS: Final = "waiting_for_jobs"
MAX_NEEDS: Final = 4
MAX_ALIKE: Final = 100  # Characters of what makes some alike.

# What is said of all who wait for the same, where their own sentences differ.
_TOGETHER: Final = {
    FOR_JOBS: ("waits for other jobs of its run", "wait for other jobs of their runs"),
    "waiting_for_approval": ("waits for people to approve it", "wait for people to approve them"),
    "waiting_for_validation": ("waits for its result to be validated", "wait for their results to be validated"),
    "waiting_for_acceptance": ("waits for its worker to take it", "wait for their workers to take them"),
    "retry_scheduled": ("waits to be tried again", "wait to be tried again"),
    "not_before": ("is meant for later", "are meant for later"),
    "fence": (
        "waits until the worker that lost it must have stopped",
        "wait until workers that lost them have stopped",
    ),
    "planning": ("waits for its plan", "wait for their plans"),
    "stopping": ("is being stopped", "are being stopped"),
    "stalled": ("waits for somebody to put it back", "wait for somebody to put them back"),
}
_BY_LABELS: Final = frozenset({*workers.TROUBLE, workers.BUSY, workers.TURN})
# Who is named by all of them is who has to be looked at.
_TO_LOOK_AT: Final = frozenset({workers.HELD, workers.UNRESPONSIVE, workers.LEAVING, "waiting_for_group"})
# What needs somebody to do something comes first.
_URGENT: Final = frozenset({*workers.TROUBLE, "waiting_for_approval", "stalled"})


class Wait(msgspec.Struct, frozen=True, kw_only=True):
    """One that waits: the record, why, the most important first, and what makes it like others.

    There may be very many of which few are shown: their sentences are written only when somebody asks for them.
    """

    of: Attempt | Job | Run
    rank: int
    since: int
    clauses: Sequence[Clause]
    alike: str

    @property
    def code(self) -> str:
        """The kind of its first reason."""
        return self.clauses[0].code

    @property
    def reasons(self) -> tuple[Reason, ...]:
        """Its reasons; what is true of all that need the same labels only in one sentence."""
        return tuple(_sentence(each.briefly() if is_about_workers(each.code) else each) for each in self.clauses)

    @property
    def whole(self) -> Reason:
        """Its first reason, with what can be done about it."""
        return _sentence(self.clauses[0])

    @property
    def place(self) -> tuple[int, int, int, str]:
        """Where it stands in the list: as it is claimed, and the oldest first among what nobody claims."""
        if isinstance(self.of, Attempt):
            return self.rank, -self.of.priority, ready_at(self.of) or self.since, self.of.id
        return self.rank, 0, self.since, self.of.id


class Together(msgspec.Struct, frozen=True, kw_only=True):
    """So many wait for the same."""

    alike: str
    code: str
    text: str
    about: str
    count: int


def is_urgent(code: str) -> bool:
    """Whether what waits for this does not go on before somebody does something."""
    return code in _URGENT


def is_about_workers(code: str) -> bool:
    """Whether workers are what it is about: what they lack, or do, or that they do not answer."""
    return code in _BY_LABELS


def current_attempts(jobs: Iterable[Job]) -> list[str]:
    """The ids of the attempts that say more about these jobs: the newest of each that is not over."""
    return [attempt_id(each.id, each.attempts) for each in jobs if each.attempts and each.state not in jobs_.TERMINAL]


def is_held(attempt: Attempt) -> bool:
    """Whether a worker has it now."""
    return attempt.lease is not None


def held_since(attempt: Attempt) -> int:
    """Since when its worker has it; since when it runs, if it does."""
    return attempt.started_at or attempt.updated_at


def attempt_wait(story: ExplainContext, attempt: Attempt) -> Wait | None:
    """Why no worker has it; None for one that a worker has, or that is over."""
    clauses = waits.attempt_waits(story, attempt) if not is_held(attempt) else []
    if not clauses:
        return None
    code, alike = clauses[0].code, ""
    if is_about_workers(code):
        alike = attempt.queue_key
    elif code == "waiting_for_group":
        alike = attempt.group
    return _wait(attempt, IN_QUEUE, attempt.updated_at, clauses, alike)


def job_wait(story: ExplainContext, job: Job) -> Wait | None:
    """What the job itself waits for; None for one of which its attempt says it, or that goes on."""
    if job.state in jobs_.TERMINAL:
        return None
    if job.state == jobs_.PENDING:
        return _wait(job, BEHIND, job.created_at, [_needs(story, job)])
    if story.attempt_of(job) is not None and job.state in (jobs_.QUEUED, jobs_.RUNNING):
        return None
    clauses = waits.own_waits(story, job)
    return _wait(job, BY_ITSELF, job.updated_at, clauses) if clauses else None


def run_wait(story: ExplainContext, run: Run) -> Wait | None:
    """Why a run has no jobs under way; None for one whose jobs say it."""
    clauses = [clause for _, clause in waits.run_waits(story, run)]
    return _wait(run, BY_ITSELF, run.updated_at, clauses) if clauses else None


def under_way(story: ExplainContext, attempt: Attempt) -> tuple[Reason, ...]:
    """What is to be said of one that a worker has, besides that: that it is being stopped, or was not taken yet."""
    return tuple(_sentence(clause) for clause in waits.attempt_waits(story, attempt))


def together(all: Sequence[Wait]) -> list[Together]:
    """How many wait for what: first what needs somebody to do something, then the most."""
    alike: dict[str, list[Wait]] = {}
    for each in all:
        alike.setdefault(each.alike, []).append(each)
    found = [_together(some) for some in alike.values()]
    return sorted(found, key=lambda each: (not is_urgent(each.code), each.code == FOR_JOBS, -each.count, each.alike))


def _together(some: Sequence[Wait]) -> Together:
    first = some[0]
    known = _TOGETHER.get(first.code)
    text = capital(known[len(some) > 1]) + "." if known is not None else first.whole.text
    if known is None and len(some) > 1 and text.startswith("Waits "):
        text = "Wait " + text.removeprefix("Waits ")
    about = first.whole.about if first.code in _TO_LOOK_AT else ""
    return Together(alike=first.alike, code=first.code, text=text, about=about, count=len(some))


def _wait(of: Attempt | Job | Run, rank: int, since: int, clauses: Sequence[Clause], alike: str = "") -> Wait:
    code = clauses[0].code
    return Wait(
        of=of,
        rank=rank,
        since=since,
        clauses=clauses,
        alike=f"{code}:{alike[:MAX_ALIKE]}" if alike else code,
    )


def _sentence(clause: Clause) -> Reason:
    said = clause.of("")
    return msgspec.structs.replace(said, text=capital(said.text.strip()))


def _needs(story: ExplainContext, job: Job) -> Clause:
    """Named by what it needs only: to follow that to where it begins is for whoever looks at the job."""
    known = [story.jobs[id] for id in (*job.needs, *job.after) if id in story.jobs]
    open = [each for each in known if not satisfies(each) and each.state not in jobs_.TERMINAL]
    if not open:
        text = f"waits for {count(job.unmet, 'other job')}" if job.unmet else "waits for its run to begin"
        return Clause(FOR_JOBS, text, job.id)
    names = listed(list(dict.fromkeys(each.spec.name for each in open)), MAX_NEEDS)
    return Clause(FOR_JOBS, f"waits for {names}", open[0].id)
