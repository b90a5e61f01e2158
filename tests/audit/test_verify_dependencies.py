"""Verification of `after`, families, groups and `retry_on`: changed creation events make a legal log illegal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from deltaci.audit.verify import verify
from deltaci.core import attempt
from deltaci.core.decide import CancelJob
from deltaci.core.events import worker_actor
from tests.spec.logs import altered, line_of
from tests.support.lab import Lab, task

FAMILY = {"family": "os", "is_family_fail_fast": True}


def broken_rules(lab: Lab, **changes_by_job: dict[str, Any]) -> set[str]:
    """Return the rules that the log breaks with changed metadata in the creation events of jobs. None removes a key."""
    lab.verified()
    lines = []
    for raw in lab.canonical():
        line = msgspec.json.decode(raw)
        changes = changes_by_job.get(line["entity_id"].partition("/")[2], {})
        if line["entity"] == "job" and line["from"] is None and changes:
            metadata = {**line["metadata"], **changes}
            line["metadata"] = {key: value for key, value in metadata.items() if value is not None}
        lines.append(msgspec.json.encode(line))
    return {violation.rule for violation in verify(lines, "canonical").violations}


@pytest.mark.proves("MOD-D1")
def test_a_job_that_starts_before_one_it_comes_after_is_reported() -> None:
    """Both start with the run."""
    lab = Lab().plan(task("a"), task("b"))

    assert broken_rules(lab, b={"after": ["r1/a"]}) == {"MOD-D1"}
    assert "WST-TG1" in broken_rules(lab, b={"after": ["r1/nobody"]})


@pytest.mark.proves("MOD-D1", "MOD-6")
def test_a_job_blocked_by_one_it_only_comes_after_is_reported() -> None:
    """So is a job that starts although a need failed."""
    blocked = Lab().plan(task("a"), task("b", "a"), task("c"))
    blocked.work("a", ok=False)
    opened = Lab().plan(task("a"), task("b", after=("a",)), task("c"))
    opened.work("a", ok=False)

    assert "MOD-6" in broken_rules(blocked, b={"needs": [], "after": ["r1/a"]})
    assert "WST-TI6" in broken_rules(opened, b={"needs": ["r1/a"], "after": None})


@pytest.mark.proves("MOD-D1")
def test_a_job_that_stays_pending_without_a_reason_is_reported() -> None:
    """It would wait for ever."""
    lab = Lab().plan(task("a"), task("b"), task("late", "b"))
    lab.work("a", ok=False)

    assert broken_rules(lab, late={"needs": [], "after": ["r1/a"]}) == {"WST-T1"}


@pytest.mark.proves("MOD-D2")
def test_a_family_that_is_wrongly_continued_or_wrongly_stopped_is_reported() -> None:
    """The creation events say whether a failure stops the family."""
    continued = Lab().plan(task("a", family="os"), task("b", family="os"))
    continued.work("a", ok=False)
    stopped = Lab().plan(task("a", **FAMILY), task("b", after=("a",), **FAMILY), task("c"))
    stopped.work("a", ok=False)

    assert broken_rules(continued, a={"is_family_fail_fast": True}) == {"MOD-D2"}
    assert broken_rules(stopped, b={"family": "other"}) == {"MOD-6"}
    assert broken_rules(stopped, a={"is_required": False}) >= {"MOD-6"}


@pytest.mark.proves("MOD-F5")
def test_an_unwanted_retry_and_a_missing_retry_are_reported() -> None:
    """The log contains the failure class."""
    retried = Lab().plan(task("a", max_attempts=2))
    retried.fail(retried.claim(retried.attempt("a")))
    failed = Lab().plan(task("a", max_attempts=2, retry_on=("FLAKY",)))
    failed.fail(failed.claim(failed.attempt("a")))

    assert broken_rules(retried, a={"retry_on": ["FLAKY"]}) == {"WST-TG4"}
    assert broken_rules(failed, a={"retry_on": None}) == {"WST-TG5"}
    assert "MOD-E1" in broken_rules(failed, a={"retry_on": ["USER"]})


@pytest.mark.proves("MOD-D3")
def test_two_attempts_of_a_group_at_the_same_time_are_reported() -> None:
    """Across runs; not for other groups or tenants, nor one after the other."""
    lab = Lab().plan(task("a", group="g"), task("b", group="other"))
    lab.plan(task("a", group="g"), id="r2")
    lab.claim(lab.attempt("a"))
    lab.claim(lab.attempt("b"))
    lab.verified()

    lab.do(attempt.Grant(id="r2/a.1", actor=worker_actor("w2"), fingerprint="f" * 64))

    [violation] = verify(lab.canonical(), "canonical").violations
    assert (violation.rule, "r1/a.1" in violation.found) == ("MOD-D3", True)
    other = Lab().plan(task("a", group="g"), task("b", group="g"))
    lease = other.claim(other.attempt("a"))
    other.complete(lease)
    other.claim(other.attempt("b"))
    other.verified()


@pytest.mark.proves("MOD-D3", "MOD-5")
def test_a_claim_in_a_group_whose_last_worker_may_still_run_is_reported() -> None:
    """The lost lease would not have expired yet."""
    lab = Lab().plan(task("a", group="g"), task("b", group="g"))
    lab.send(attempt.Start, lab.claim(lab.attempt("a")))
    lab.after(10).do(attempt.Stall(id="r1/a.1"))

    lab.do(attempt.Grant(id="r1/b.1", actor=worker_actor("w2"), fingerprint="f" * 64))

    assert {violation.rule for violation in verify(lab.canonical(), "canonical").violations} == {"MOD-D3"}


def forced_cancel() -> Lab:
    """Return a lab in which a job of a group was cancelled by force 90 s before the end of its lease."""
    lab = Lab().plan(task("a", group="g"), task("b", group="g"))
    lab.send(attempt.Start, lab.claim(lab.attempt("a")))
    lab.do(CancelJob(id="r1/a", actor="user:ada"))
    lab.after(30).do(attempt.ForceCancel(id="r1/a.1"))
    return lab


def timeout() -> Lab:
    """Return a lab in which a job of a group timed out 90 s before the end of its lease."""
    lab = Lab().plan(task("a", group="g", timeout_seconds=30), task("b", group="g"))
    lab.send(attempt.Start, lab.claim(lab.attempt("a")))
    lab.after(30).do(attempt.TimeOut(id="r1/a.1"))
    return lab


def without_fences(log: list[dict[str, Any]]) -> None:
    """Make the log one of an older version, whose events do not name the end of a fence."""
    for line in log:
        line["metadata"].pop("fence_until", None)


@pytest.mark.proves("MOD-D3", "MOD-5")
@pytest.mark.parametrize("end", [forced_cancel, timeout])
def test_a_claim_in_a_group_after_an_end_by_force_is_reported(end: Callable[[], Lab]) -> None:
    """The runner may work until its lease would have ended; older versions freed the group at once."""
    lab = end()

    lab.after(89).do(attempt.Grant(id="r1/b.1", actor=worker_actor("w2"), fingerprint="f" * 64))

    assert altered(lab.canonical(), lambda log: None) == {"MOD-D3"}
    assert altered(lab.canonical(), without_fences) == set()
    later = end()
    later.after(90).claim(later.attempt("b"))
    later.verified()


@pytest.mark.proves("MOD-5")
def test_a_fence_that_does_not_end_with_the_lease_is_reported() -> None:
    """With another time, or where the runner has stopped, the log promises something that was not kept."""
    lab = forced_cancel()
    number = line_of(lab, "r1/a.1", attempt.CANCELED)
    other_time = {"fence_until": "2026-01-04T08:01:59Z"}

    assert "MOD-5" in altered(lab.canonical(), lambda log: log[number]["metadata"].update(other_time))

    finished = Lab().plan(task("a"))
    finished.complete(finished.claim(finished.attempt("a")))
    number = line_of(finished, "r1/a.1", attempt.SUCCEEDED)
    assert "MOD-5" in altered(finished.canonical(), lambda log: log[number]["metadata"].update(other_time))


@pytest.mark.proves("MOD-5", "QUE-L1")
def test_a_log_of_an_older_version_that_queued_a_fenced_attempt_at_once_is_legal() -> None:
    """It queued the attempt with a `run_at` in the future."""
    lab = Lab().plan(task("a", group="g"), task("b", group="g"))
    lab.send(attempt.Start, lab.claim(lab.attempt("a")))
    lab.after(10).do(attempt.Stall(id="r1/a.1"))
    lab.after(110).do(attempt.Requeue(id="r1/a.1"))
    lab.claim(lab.attempt("a"), by="w2")
    stalled = line_of(lab, "r1/a.1", attempt.STALE)

    def make_older(log: list[dict[str, Any]], run_at: str) -> None:
        without_fences(log)
        log[stalled]["metadata"]["reason"] = "WORKER_LOST"
        log[stalled + 2].update(at=log[stalled]["at"], metadata={"run_at": run_at})

    assert altered(lab.canonical(), lambda log: make_older(log, "2026-01-04T08:02:00.000000Z")) == set()
    assert altered(lab.canonical(), lambda log: make_older(log, "2026-01-04T08:01:59.000000Z")) == {"MOD-5"}


@pytest.mark.proves("ORC-A7")
def test_a_lost_attempt_that_stays_stale_without_a_fence_is_reported() -> None:
    """Only a fence keeps it from the queue."""
    lab = Lab().plan(task("a"))
    lab.send(attempt.Start, lab.claim(lab.attempt("a")))
    lab.after(120).do(attempt.Expire(id="r1/a.1"))
    number = line_of(lab, "r1/a.1", attempt.STALE) + 2

    assert "ORC-A7" in altered(lab.canonical(), lambda log: log.pop(number))
