"""Flaky jobs and tests: both outcomes on one commit, in any order, with repeats, within bounds."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltaci.audit.explain.failures import describe_flaky_tests
from deltaci.core import flaky
from deltaci.core.attempt import Attempt
from deltaci.core.failures import Facts, Failure, classify
from deltaci.core.flaky import EXPIRES, Flake, History, Observation, add_observation, flaky_tests, observe
from deltaci.core.run import Origin, Run

NAMES = ["a", "b", "c"]


def observation(attempt: str, *failed: str, tests: int = 10, at: int = 1, ok: bool | None = None) -> Observation:
    """Return the observation of an attempt in which these tests failed."""
    is_success = not failed if ok is None else ok
    return Observation(attempt=attempt, at=at, is_success=is_success, tests=tests, failed=tuple(sorted(failed)))


def history_of(*observations: tuple[str, Observation]) -> History:
    """Return the history after these observations."""
    history = History(project="p", job="j")
    for commit, new in observations:
        history = add_observation(history, commit, new)
    return history


def by_definition(observations: list[tuple[str, Observation]]) -> set[str]:
    """Return the tests that failed in one attempt and not in another of the same commit that ran at least as many."""
    return {
        name
        for commit, failing in observations
        for other, passing in observations
        if commit == other and passing.tests >= failing.tests > 0
        for name in failing.failed
        if name not in passing.failed
    }


@st.composite
def histories(draw: Any) -> list[tuple[str, Observation]]:
    """Draw a few attempts on a few commits."""
    drawn = []
    for number in range(draw(st.integers(0, 6))):
        failed = draw(st.sets(st.sampled_from(NAMES)))
        ok = draw(st.booleans()) and not failed
        new = observation(f"x{number}", *failed, tests=draw(st.sampled_from([0, 5, 10])) if not failed else 5, ok=ok)
        drawn.append((draw(st.sampled_from(["c1", "c2"])), new))
    return drawn


@given(histories(), st.randoms())
def test_a_test_is_flaky_by_its_definition_in_any_order_of_observations(
    observations: list[tuple[str, Observation]], random: Any
) -> None:
    """Adding an observation twice changes nothing."""
    shuffled = [*observations, *observations]
    random.shuffle(shuffled)

    history = history_of(*shuffled)

    assert set(flaky_tests(history, 2)) == by_definition(observations)
    both = any(one.is_success != other.is_success for at, one in observations for on, other in observations if at == on)
    assert flaky.is_current(history.flake, 2) == both
    for commit, new in observations:
        assert add_observation(history, commit, new) is history


@given(st.sets(st.sampled_from(NAMES), min_size=1), st.sets(st.sampled_from(NAMES)), histories())
def test_a_failure_is_flaky_exactly_if_every_failed_test_is_flaky(
    failed: set[str], others: set[str], observations: list[tuple[str, Observation]]
) -> None:
    """One other failed test makes it a failure of the job, which is not retried."""
    flaky_names = set(flaky_tests(history_of(*observations), 2)) | others
    facts = Facts(exit_code=1, failed_tests=tuple(sorted(failed)), flaky_tests=tuple(sorted(flaky_names)))

    verdict = classify(facts)

    assert (verdict.failure_class == "FLAKY") == (failed <= flaky_names)
    assert verdict.is_retryable == (failed <= flaky_names)
    assert verdict.rule == ("known-flaky-tests" if failed <= flaky_names else "failed-tests")


def test_a_test_that_fails_always_or_on_another_commit_is_not_flaky() -> None:
    """A corrected mistake passes on another commit, too."""
    assert (
        history_of(("c1", observation("1", "a")), ("c1", observation("2", "a")), ("c2", observation("3"))).tests == {}
    )
    assert history_of(("c1", observation("1", "a")), ("c1", observation("2", tests=9))).tests == {}
    assert history_of(("c1", observation("1", "a")), ("c1", observation("2", tests=0, ok=True))).tests == {}


def test_a_flake_expires() -> None:
    """Unless it is observed again."""
    history = history_of(("c1", observation("1", "a", at=1)), ("c1", observation("2", at=5)))

    assert history.tests == {"a": Flake(times=1, last_at=5, commit="c1")}
    assert list(flaky_tests(history, 5 + EXPIRES - 1)) == ["a"]
    assert flaky_tests(history, 5 + EXPIRES) == {}
    again = add_observation(
        add_observation(history, "c2", observation("3", at=EXPIRES)), "c2", observation("4", "a", at=EXPIRES)
    )
    assert again.tests["a"] == Flake(times=2, last_at=EXPIRES, commit="c2")
    assert list(flaky_tests(again, 2 * EXPIRES - 1)) == ["a"]


def test_a_history_is_bounded() -> None:
    """It has the latest of everything."""
    history = History()
    for number in range(300):
        history = add_observation(history, f"c{number % 40}", observation(f"x{number}", f"test{number}", at=number))
        history = add_observation(history, f"c{number % 40}", observation(f"y{number}", at=number))

    assert len(history.commits) == flaky.MAX_COMMITS
    assert max(len(commit.observations) for commit in history.commits) <= flaky.MAX_OBSERVATIONS
    assert len(history.tests) == flaky.MAX_TESTS
    assert "test299" in history.tests
    assert "test0" not in history.tests
    assert len(msgspec.json.encode(history)) < 100_000


# -- the observation of an attempt


def attempt(state: str = "FAILED", failure_class: str = "USER", **fields: Any) -> Attempt:
    """Return a finished attempt."""
    error = (
        Failure(code="EXIT", failure_class=failure_class, is_retryable=False, rule="r") if state == "FAILED" else None
    )
    return Attempt(
        **{
            "id": "r/j.1",
            "run_id": "r",
            "job_id": "r/j",
            "state": state,
            "error": error if state == "FAILED" else None,
            **fields,
        }
    )


def report(*failed: str, total: int = 10, **more: Any) -> dict[str, Any]:
    """Return a runner's report with these failed tests."""
    failures = [{"name": name, "message": "no"} for name in failed]
    return {"tests": {"total": total, "failed": len(failed), "failures": failures, **more}}


@pytest.mark.parametrize(
    "record",
    [
        attempt(failure_class="INFRA"),
        attempt(failure_class="TOOLING"),
        attempt("TIMED_OUT"),
        attempt("CANCELED"),
        attempt("RUNNING"),
        attempt(spec={"cache_scope": "fork"}),
        attempt("SUCCEEDED", spec={"cache_scope": "fork"}),
        attempt("SUCCEEDED", report={"is_skipped": True}),
    ],
)
def test_an_end_without_the_jobs_own_fault_is_not_observed(record: Attempt) -> None:
    """Neither is a run of untrusted code."""
    assert observe(record) is None


def test_an_incomplete_list_of_failed_tests_is_ignored() -> None:
    """A truncated list does not say which tests passed."""
    assert observe(attempt(report=report("b", "a"))) == Observation(
        attempt="r/j.1", at=0, is_success=False, tests=10, failed=("a", "b")
    )
    for ignored in (report("a", errors=1), report(*map(str, range(31))), report("x" * 4001), {}, None, {"tests": 3}):
        observed = observe(attempt(report=ignored))
        assert observed is not None
        assert (observed.tests, observed.failed) == (0, ())
    passed = observe(attempt("SUCCEEDED", report=report()))
    assert passed is not None
    assert (passed.is_success, passed.tests) == (True, 10)


def test_the_history_of_a_run_is_found_by_project_and_commit() -> None:
    """Or else by repository, and by the hash of the plan."""
    full = Run(id="r", plan_hash="h", origin=Origin(project="p", repository="o/p", commit="c"))
    assert flaky.history_key(full) == ("p", "c")
    assert flaky.history_key(Run(id="r", plan_hash="h", origin=Origin(repository="o/p"))) == ("o/p", "h")
    assert flaky.history_key(Run(id="r")) == ("", "")
    assert flaky.job_name(attempt()) == "j"
    assert flaky.job_name(Attempt(id="q1")) == ""


@pytest.mark.parametrize(
    ("failed", "flaky_names", "sentence"),
    [
        (["a"], {"a"}, "1 of 1 failed test is known to be flaky: a."),
        (["a", "b"], {"a", "b"}, "2 of 2 failed tests are known to be flaky: a and b."),
        (["a", "b"], {"a"}, "1 of 2 failed tests is known to be flaky: a."),
        (["a"], {"b"}, ""),
        ([], {"b"}, ""),
    ],
)
def test_a_sentence_says_how_many_failed_tests_are_flaky(
    failed: list[str], flaky_names: set[str], sentence: str
) -> None:
    assert describe_flaky_tests(report(*failed), flaky_names) == sentence
    assert describe_flaky_tests(report(*failed), None) == ""
    assert describe_flaky_tests(None, flaky_names) == ""


def test_the_order_of_three_attempts_does_not_matter() -> None:
    """Try all permutations."""
    three = [("c", observation("1", "a", "b")), ("c", observation("2", "b")), ("c", observation("3", "a", "b", "c"))]

    assert {frozenset(history_of(*order).tests) for order in permutations(three)} == {frozenset({"a", "c"})}
