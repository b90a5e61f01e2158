"""What waits, of many runs at once: in which order, with whom together, and in how few words; and how workers are."""

from __future__ import annotations

from typing import Any

import pytest

from deltaci.audit.explain import TenantState, queue
from deltaci.audit.explain.context import ExplainContext
from deltaci.audit.explain.queue import Wait
from deltaci.core import attempt, worker
from deltaci.core.job import JobSpec
from deltaci.core.worker import Worker
from tests.audit.explanations import Archive
from tests.lab import Lab, gate, task


def waits(lab: Lab, **around: Any) -> list[Wait]:
    """All that waits in the lab, in order."""
    known = Archive(lab)
    jobs = [each for some in known.jobs.values() for each in some]
    tries = [each for some in known.attempts.values() for each in some]
    surroundings = TenantState(now=lab.now, workers=known.workers, **around)
    story = ExplainContext(None, jobs, tries, (), surroundings, is_brief=True)
    found = [*(queue.attempt_wait(story, each) for each in tries), *(queue.job_wait(story, each) for each in jobs)]
    return sorted((each for each in found if each is not None), key=lambda each: each.sort_key)


def told(found: list[Wait]) -> list[tuple[str, str]]:
    """Who waits, and for what."""
    return [(each.record.id, each.reasons[0].text) for each in found]


def test_all_stand_in_the_order_of_claims_and_those_behind_others_last() -> None:
    """The most important first; what people decide before what only waits for other jobs."""
    lab = Lab().plan(task("build", priority=1), gate("ask"), task("ship", "build", "ask"), task("first", priority=9))

    assert told(waits(lab)) == [
        ("r1/first.1", "Waits for a worker: no worker is registered."),
        ("r1/build.1", "Waits for a worker: no worker is registered."),
        ("r1/ask", "Waits for approval by a person. There is no deadline."),
        ("r1/ship", "Waits for build and ask."),
    ]


def test_who_a_worker_has_does_not_wait_and_who_waits_is_told_briefly() -> None:
    """What busy workers do is for whoever looks at one job."""
    lab = Lab().plan(task("a"), task("b"))
    lab.register("w1")
    lab.say(attempt.Start, lab.claim(lab.attempt("a")))

    found = waits(lab)

    assert told(found) == [("r1/b.1", "Waits for a worker: the only matching worker is busy.")]
    assert [each.text for each in queue.group_waits(found)] == [
        "Waits for a worker: the only matching worker is busy. It is claimed when a slot becomes free."
    ]


def test_those_who_wait_for_the_same_are_counted_and_what_needs_somebody_comes_first() -> None:
    """By labels and by groups; the others by the kind of their reason alone."""
    specs: list[JobSpec] = [task(f"gpu{n}", queue_key="gpu") for n in range(2)]
    specs += [task(f"free{n}", group="prod") for n in range(3)]
    lab = Lab().plan(*specs, task("last", "gpu0"), gate("ask"), gate("too"))
    lab.register("w1", labels=("linux",))

    found = queue.group_waits(waits(lab, groups={"prod": "r9/deploy.1"}))

    assert [(each.key, each.count) for each in found] == [
        ("no_fitting_worker:gpu", 2),
        ("waiting_for_approval", 2),
        ("waiting_for_group:prod", 3),
        ("waiting_for_jobs", 1),
    ]
    assert found[0].text.startswith("Wait for a worker with the label gpu: the only worker, w1, lacks gpu.")
    assert found[1].text == "Wait for approval."
    assert (found[2].about, found[0].about) == ("r9/deploy", "")
    assert [queue.is_urgent(each.code) for each in found] == [True, True, False, False]


def test_the_plain_queue_is_not_told_what_jobs_of_runs_are() -> None:
    """It also serves workers that never registered, with the same labels."""
    lab = Lab().plan(task("a"))
    lab.enqueue("plain")
    known = Archive(lab)
    story = ExplainContext(None, (), (), (), TenantState(now=lab.now))

    reasons = []
    for each in (lab.attempt("a"), known.records["plain"]):
        assert isinstance(each, attempt.Attempt)
        found = queue.attempt_wait(story, each)
        assert found is not None
        reasons.append(found.code)

    assert reasons == ["no_worker", "waiting_for_worker"]


# -- how workers are


def record(**fields: Any) -> Worker:
    """A worker, as it may be."""
    return Worker(id="w1", **{"tenant": "t", "state": worker.IDLE, **fields})


@pytest.mark.parametrize(
    ("fields", "is_missed", "word"),
    [
        ({}, False, "ready"),
        ({}, True, "silent"),
        ({"state": worker.INITIALIZING}, False, "starting"),
        ({"state": worker.BUSY, "tasks": ("a",)}, False, "busy"),
        ({"hold": worker.DRAINED}, False, "drained"),
        ({"state": worker.BUSY, "tasks": ("a",), "hold": worker.QUARANTINED}, False, "quarantined"),
        ({"state": worker.BUSY, "tasks": ("a",), "shutdown_reason": "REMOVED"}, False, "leaving"),
        ({"state": worker.UNRESPONSIVE, "hold": worker.DRAINED}, False, "silent"),
        ({"state": worker.SHUTDOWN, "hold": worker.DRAINED}, True, "gone"),
    ],
)
def test_a_worker_has_one_word(fields: dict[str, Any], is_missed: bool, word: str) -> None:
    """What says most about it goes before the rest."""
    assert worker.condition(record(**fields), is_missed=is_missed) == word
    assert word in worker.CONDITIONS


@pytest.mark.parametrize(
    ("state", "hold", "is_leaving", "tasks", "orders"),
    [
        (worker.IDLE, "", False, 0, "Drain Shutdown"),
        (worker.IDLE, worker.DRAINED, False, 0, "Resume Shutdown"),
        (worker.BUSY, worker.QUARANTINED, False, 1, "Drain Resume Shutdown"),
        (worker.BUSY, "", True, 1, ""),
        (worker.UNRESPONSIVE, "", False, 1, "Drain"),
        (worker.UNRESPONSIVE, "", False, 0, "Drain Shutdown"),
        (worker.SHUTDOWN, worker.DRAINED, True, 0, ""),
        (worker.INITIALIZING, "", False, 0, ""),
    ],
)
def test_people_are_offered_what_makes_sense(state: str, hold: str, is_leaving: bool, tasks: int, orders: str) -> None:
    """What would be refused, or change nothing, is not there."""
    found = worker.available_commands(state, hold, is_leaving=is_leaving, tasks=tasks)

    assert " ".join(sorted(each.__name__ for each in found)) == orders
