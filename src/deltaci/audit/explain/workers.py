"""Why no worker takes what waits in the queue."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from deltaci.audit.explain.context import ExplainContext
from deltaci.audit.explain.formatting import MAX_LISTED, listed, moment, saying, shown
from deltaci.audit.explain.reasons import Clause
from deltaci.core import worker
from deltaci.core.attempt import Attempt, avoids
from deltaci.core.worker import Worker, required_labels

NO_WORKER: Final = "no_worker"
NO_FITTING_WORKER: Final = "no_fitting_worker"
UNRESPONSIVE: Final = "workers_unresponsive"
LEAVING: Final = "workers_leaving"
HELD: Final = "workers_held"
BUSY: Final = "workers_busy"
TURN: Final = "waiting_for_worker"

TROUBLE: Final = frozenset({NO_WORKER, NO_FITTING_WORKER, UNRESPONSIVE, LEAVING, HELD})  # It will not pass by itself.


def why_not_taken(story: ExplainContext, of: Attempt) -> Clause:
    """What the workers of the tenant say to an attempt. Found once for each set of labels that attempts need.

    Those that lost this one leave it to others where there are any.
    """
    queue_key, is_plain = of.queue_key, not of.job_id
    known = story.by_worker.get((queue_key, is_plain))
    if known is None:
        known = story.by_worker[queue_key, is_plain] = _found(story, queue_key, is_plain=is_plain)
    if of.avoid and known.code == TURN:
        return _left(story, of) or known
    return known


def _found(story: ExplainContext, queue_key: str, *, is_plain: bool) -> Clause:
    required = required_labels(queue_key)
    alive = story.workers
    fitting = [each for each, labels in alive if required <= labels]
    wanted = f"a worker{_with(sorted(required))}"
    if is_plain and not fitting:
        # The plain queue also serves workers that never registered: that none is known says nothing.
        return Clause(TURN, f"waits until {wanted} asks the queue for work", "")
    if not alive:
        return Clause(NO_WORKER, f"waits for {wanted}: there is none at all", "", None, _advice(required))
    if not fitting:
        return _lacking(alive, required, wanted)
    working = [each for each in fitting if each.state != worker.UNRESPONSIVE]
    held = [each for each in working if each.hold and not each.shutdown_reason]
    taking = [each for each in working if not each.hold and not each.shutdown_reason]
    if not working:
        text = f"waits for {wanted}: {_part(fitting, fitting)} stopped answering"
        return Clause(UNRESPONSIVE, text, fitting[0].id, None, "Look after what is silent, or start another worker.")
    if not taking and held:
        return _held(held, len(fitting), wanted)
    if not taking:
        rest = ", and the rest stopped answering" if len(working) < len(fitting) else ""
        text = f"waits for {wanted}: {_part(working, fitting)} will leave and take no new work{rest}"
        return Clause(LEAVING, text, working[0].id, None, _advice(required))
    free = [each for each in taking if _has_room(each)]
    if not free:
        return _busy(story, taking, len(fitting), wanted, is_held=bool(held))
    text = f"waits for its turn: {listed([each.id for each in free])} {_has(free)} a free place and may take it"
    return Clause(TURN, text, free[0].id)


def _has_room(of: Worker) -> bool:
    return len(of.tasks) < of.max_concurrent_tasks


def _left(story: ExplainContext, of: Attempt) -> Clause | None:
    """Somebody is free, but lost it before, and leaves it to one that did not: who may be busy."""
    required = required_labels(of.queue_key)
    taking = [each for each, labels in story.workers if required <= labels and worker.accepts_work(each)]
    losers = [each.id for each in taking if avoids(of, each.id) and _has_room(each)]
    others = [each for each in taking if not avoids(of, each.id)]
    if not losers or not others:
        return None
    lost = f"{listed(losers)} lost it before and {'leaves' if len(losers) == 1 else 'leave'} it to others"
    free = [each for each in others if _has_room(each)]
    if not free:
        wanted = f"a worker{_with(sorted(required))}"
        busy = _busy(story, others, len(others), wanted, is_held=False)
        return Clause(BUSY, f"{busy.text}; {lost}", others[0].id, None, busy.advice)
    text = f"waits for its turn: {listed([each.id for each in free])} {_has(free)} a free place and may take it"
    return Clause(TURN, f"{text}; {lost}", free[0].id)


def _held(held: Sequence[Worker], fitting: int, wanted: str) -> Clause:
    """Those that fit are there and would work, if they were let."""
    some = "; ".join(f"worker {shown(each.id)} fits, but {why_held(each)}" for each in held[:MAX_LISTED])
    if len(held) > MAX_LISTED:
        more = len(held) - MAX_LISTED
        some += f"; {more} more {'is' if more == 1 else 'are'} held, too"
    rest = "" if len(held) == fitting else ", and the rest stopped answering or will leave"
    advice = f"`deltaci workers resume {shown(held[0].id)}` lets it take work again."
    return Clause(HELD, f"waits for {wanted}: {some}{rest}", held[0].id, None, advice)


def why_held(of: Worker) -> str:
    """Why a worker takes no new work although it is there, and since when."""
    since = f"since {moment(of.held_at)}"
    if of.hold == worker.DRAINED:
        return f"is drained {since}{saying(of.hold_reason)}"
    if of.hold_reason == worker.REPEATED_INFRA_FAILURES:
        times = worker.MAX_INFRA_FAILURES
        return f"is quarantined {since}: {times} times in a row it lost a job, or failed it by its own infrastructure"
    return f"is quarantined {since}{saying(of.hold_reason)}"


def _lacking(alive: Sequence[tuple[Worker, set[str]]], required: set[str], wanted: str) -> Clause:
    nearest, labels = min(alive, key=lambda pair: len(required - pair[1]))
    missing = sorted(required - labels)
    if len(alive) == 1:
        said = f"the only one, {shown(nearest.id)}, lacks {listed(missing, 8)}"
    elif len(required) == 1:
        said = f"none of the {len(alive)} workers has it"
    else:
        said = f"none of the {len(alive)} workers has all of that; {shown(nearest.id)} comes nearest and"
        said += f" lacks {listed(missing, 8)}"
    return Clause(NO_FITTING_WORKER, f"waits for {wanted}: {said}", nearest.id, None, _advice(required))


def _busy(story: ExplainContext, taking: Sequence[Worker], fitting: int, wanted: str, *, is_held: bool) -> Clause:
    doing = [f"{shown(each.id)} with {listed(each.tasks, 2)}" for each in taking[:MAX_LISTED]]
    if len(taking) > MAX_LISTED:
        doing.append(f"{len(taking) - MAX_LISTED} more with other work")
    who = _all(len(taking)) if len(taking) == fitting else f"{len(taking)} of the {fitting} that fit"
    verb = "is" if len(taking) in (1, fitting) else "are"
    idle = "stopped answering, is held or will leave" if is_held else "stopped answering or will leave"
    rest = "" if len(taking) == fitting else f", and the rest {idle}"
    with_what = "" if story.is_brief else f" ({'; '.join(doing)})"
    text = f"waits for {wanted}: {who} {verb} busy{with_what}{rest}"
    return Clause(BUSY, text, taking[0].id, None, "It is taken when a place becomes free.")


def _with(labels: Sequence[str]) -> str:
    if not labels:
        return ""
    return f" with the label{'' if len(labels) == 1 else 's'} {listed(labels, 8)}"


def _advice(required: set[str]) -> str:
    if not required:
        return "Start one with `deltaci runner`."
    labels = shown(",".join(sorted(required)))
    return f"Start one with `deltaci runner --labels {labels}`, or change the labels that the job asks for."


def _all(number: int) -> str:
    return "the only one that fits" if number == 1 else f"each of the {number} workers that fit"


def _part(some: Sequence[Worker], fitting: Sequence[Worker]) -> str:
    who = _all(len(some)) if len(some) == len(fitting) else f"{len(some)} of the {len(fitting)} workers that fit"
    return f"{who} ({listed([each.id for each in some])})"


def _has(workers: Sequence[Worker]) -> str:
    return "has" if len(workers) == 1 else "have"
