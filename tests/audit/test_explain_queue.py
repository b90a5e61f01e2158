"""Explanations of all waits of a tenant: order, groups and sentences; and the conditions of workers."""

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
from tests.support.lab import Lab, gate, task


def waits(lab: Lab, **tenant: Any) -> list[Wait]:
    """Return all waits of the lab, sorted."""
    archive = Archive(lab)
    jobs = [job for run_jobs in archive.jobs.values() for job in run_jobs]
    attempts = [attempt for run_attempts in archive.attempts.values() for attempt in run_attempts]
    tenant_state = TenantState(now=lab.now, workers=archive.workers, **tenant)
    context = ExplainContext(None, jobs, attempts, (), tenant_state, is_brief=True)
    found = [
        *(queue.attempt_wait(context, attempt) for attempt in attempts),
        *(queue.wait_before_queue(context, job) for job in jobs),
    ]
    return sorted((wait for wait in found if wait is not None), key=lambda wait: wait.sort_key)


def first_reasons(waits: list[Wait]) -> list[tuple[str, str]]:
    """Return the id and the first reason of each."""
    return [(wait.record.id, wait.reasons[0].text) for wait in waits]


def test_waits_are_sorted_by_claim_order_with_dependent_jobs_last() -> None:
    """By priority; jobs that wait for people come before jobs that wait for jobs."""
    lab = Lab().plan(task("build", priority=1), gate("ask"), task("ship", "build", "ask"), task("first", priority=9))

    assert first_reasons(waits(lab)) == [
        ("r1/first.1", "Waits for a worker: no worker is registered."),
        ("r1/build.1", "Waits for a worker: no worker is registered."),
        (
            "r1/ask",
            "Waits for approval by a person until 2026-02-03 08:00:00 UTC (in 30 d). Without approval it fails then.",
        ),
        ("r1/ship", "Waits for build and ask."),
    ]


def test_a_leased_attempt_does_not_wait_and_reasons_are_brief() -> None:
    """The work of busy workers is left out in a list."""
    lab = Lab().plan(task("a"), task("b"))
    lab.register("w1")
    lab.send(attempt.Start, lab.claim(lab.attempt("a")))

    waiting = waits(lab)

    assert first_reasons(waiting) == [("r1/b.1", "Waits for a worker: the only matching worker is busy.")]
    assert [group.text for group in queue.group_waits(waiting)] == [
        "Waits for a worker: the only matching worker is busy. It is claimed when a slot becomes free."
    ]


def test_waits_are_grouped_and_urgent_groups_come_first() -> None:
    """By labels and by groups; other waits by their code."""
    specs: list[JobSpec] = [task(f"gpu{n}", queue_key="gpu") for n in range(2)]
    specs += [task(f"free{n}", group="prod") for n in range(3)]
    lab = Lab().plan(*specs, task("last", "gpu0"), gate("ask"), gate("too"))
    lab.register("w1", labels=("linux",))

    groups = queue.group_waits(waits(lab, groups={"prod": "r9/deploy.1"}))

    assert [(group.key, group.count) for group in groups] == [
        ("no_fitting_worker:gpu", 2),
        ("waiting_for_approval", 2),
        ("waiting_for_group:prod", 3),
        ("waiting_for_jobs", 1),
    ]
    assert groups[0].text.startswith("Wait for a worker with the label gpu: the only worker, w1, lacks gpu.")
    assert groups[1].text == "Wait for approval."
    assert (groups[2].about, groups[0].about) == ("r9/deploy", "")
    assert [queue.is_urgent(group.code) for group in groups] == [True, True, False, False]


def test_the_plain_queue_and_jobs_of_runs_have_different_reasons() -> None:
    """Workers of the plain queue need not register."""
    lab = Lab().plan(task("a"))
    lab.enqueue("plain")
    archive = Archive(lab)
    context = ExplainContext(None, (), (), (), TenantState(now=lab.now))

    codes = []
    for record in (lab.attempt("a"), archive.records["plain"]):
        assert isinstance(record, attempt.Attempt)
        wait = queue.attempt_wait(context, record)
        assert wait is not None
        codes.append(wait.code)

    assert codes == ["no_worker", "waiting_for_worker"]


# -- the conditions of workers


def record(**fields: Any) -> Worker:
    """Return a worker with these fields."""
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
def test_a_worker_has_one_condition(fields: dict[str, Any], is_missed: bool, word: str) -> None:
    """The most important one wins."""
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
def test_only_commands_that_change_something_are_offered(
    state: str, hold: str, is_leaving: bool, tasks: int, orders: str
) -> None:
    """Commands that would be refused or have no effect are left out."""
    found = worker.available_commands(state, hold, is_leaving=is_leaving, tasks=tasks)

    assert " ".join(sorted(each.__name__ for each in found)) == orders
