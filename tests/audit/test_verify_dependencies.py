"""The verifier knows what ties jobs together: the same log is illegal as soon as a birth says something else."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from deltaci.audit.verify import verify
from deltaci.core import attempt
from deltaci.core.events import worker_actor
from tests.lab import Lab, task

KIN = {"family": "os", "is_family_fail_fast": True}


def rules(lab: Lab, **births: dict[str, Any]) -> set[str]:
    """What is reported of the log when these jobs are born with something else; None takes it away."""
    lab.verified()
    lines = []
    for raw in lab.canonical():
        line = msgspec.json.decode(raw)
        changes = births.get(line["entity_id"].partition("/")[2], {})
        if line["entity"] == "job" and line["from"] is None and changes:
            told = {**line["metadata"], **changes}
            line["metadata"] = {key: value for key, value in told.items() if value is not None}
        lines.append(msgspec.json.encode(line))
    return {violation.rule for violation in verify(lines, "canonical").violations}


@pytest.mark.proves("MOD-D1")
def test_a_job_that_begins_before_what_it_comes_after_is_reported() -> None:
    """Both begin with the run."""
    lab = Lab().plan(task("a"), task("b"))

    assert rules(lab, b={"after": ["r1/a"]}) == {"MOD-D1"}
    assert "WST-TG1" in rules(lab, b={"after": ["r1/nobody"]})


@pytest.mark.proves("MOD-D1", "MOD-6")
def test_a_job_that_is_blocked_by_what_it_only_comes_after_is_reported() -> None:
    """And one that goes on although what it needs is lost."""
    blocked = Lab().plan(task("a"), task("b", "a"), task("c"))
    blocked.work("a", ok=False)
    opened = Lab().plan(task("a"), task("b", after=("a",)), task("c"))
    opened.work("a", ok=False)

    assert "MOD-6" in rules(blocked, b={"needs": [], "after": ["r1/a"]})
    assert "WST-TI6" in rules(opened, b={"needs": ["r1/a"], "after": None})


@pytest.mark.proves("MOD-D1")
def test_a_job_that_waits_although_all_before_it_is_over_is_reported() -> None:
    """Nobody would ever set it going."""
    lab = Lab().plan(task("a"), task("b"), task("late", "b"))
    lab.work("a", ok=False)

    assert rules(lab, late={"needs": [], "after": ["r1/a"]}) == {"WST-T1"}


@pytest.mark.proves("MOD-D2")
def test_a_family_that_goes_on_is_reported_and_so_is_one_that_ends_for_nothing() -> None:
    """Whether a failure ends the others is said at the births."""
    alive = Lab().plan(task("a", family="os"), task("b", family="os"))
    alive.work("a", ok=False)
    ended = Lab().plan(task("a", **KIN), task("b", after=("a",), **KIN), task("c"))
    ended.work("a", ok=False)

    assert rules(alive, a={"is_family_fail_fast": True}) == {"MOD-D2"}
    assert rules(ended, b={"family": "other"}) == {"MOD-6"}
    assert rules(ended, a={"is_required": False}) >= {"MOD-6"}


@pytest.mark.proves("MOD-F5")
def test_a_retry_that_the_job_does_not_ask_for_is_reported_and_so_is_one_that_is_missing() -> None:
    """The class of the failure is in the log."""
    retried = Lab().plan(task("a", max_attempts=2))
    retried.fail(retried.claim(retried.attempt("a")))
    failed = Lab().plan(task("a", max_attempts=2, retry_on=("FLAKY",)))
    failed.fail(failed.claim(failed.attempt("a")))

    assert rules(retried, a={"retry_on": ["FLAKY"]}) == {"WST-TG4"}
    assert rules(failed, a={"retry_on": None}) == {"WST-TG5"}
    assert "MOD-E1" in rules(failed, a={"retry_on": ["USER"]})


@pytest.mark.proves("MOD-D3")
def test_two_of_a_group_at_once_are_reported() -> None:
    """In whatever runs; not those of another group or tenant, nor one after the other."""
    lab = Lab().plan(task("a", group="g"), task("b", group="other"))
    lab.plan(task("a", group="g"), id="r2")
    held = lab.claim(lab.attempt("a"))
    lab.claim(lab.attempt("b"))
    lab.verified()

    lab.do(attempt.Grant(id="r2/a.1", actor=worker_actor("w2"), fingerprint="f" * 64))

    [violation] = verify(lab.canonical(), "canonical").violations
    assert (violation.rule, "r1/a.1" in violation.found) == ("MOD-D3", True)
    other = Lab().plan(task("a", group="g"), task("b", group="g"))
    held = other.claim(other.attempt("a"))
    other.complete(held)
    other.claim(other.attempt("b"))
    other.verified()


@pytest.mark.proves("MOD-D3", "MOD-5")
def test_the_next_of_a_group_while_the_last_may_still_be_at_work_is_reported() -> None:
    """Its lease is lost, but would not have ended yet."""
    lab = Lab().plan(task("a", group="g"), task("b", group="g"))
    lab.say(attempt.Start, lab.claim(lab.attempt("a")))
    lab.after(10).do(attempt.Stall(id="r1/a.1"))
    lab.do(attempt.Requeue(id="r1/a.1"))

    lab.do(attempt.Grant(id="r1/b.1", actor=worker_actor("w2"), fingerprint="f" * 64))

    assert {each.rule for each in verify(lab.canonical(), "canonical").violations} == {"MOD-D3"}
