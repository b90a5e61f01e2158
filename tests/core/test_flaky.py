"""What is flaky, by its definition: both outcomes on one commit, in any order, told once or again, within bounds."""

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


def seen(attempt: str, *failed: str, tests: int = 10, at: int = 1, ok: bool | None = None) -> Observation:
    """An attempt in which these tests failed."""
    is_success = not failed if ok is None else ok
    return Observation(attempt=attempt, at=at, is_success=is_success, tests=tests, failed=tuple(sorted(failed)))


def told(*all_of_it: tuple[str, Observation]) -> History:
    """What is known after all of this."""
    history = History(project="p", job="j")
    for commit, each in all_of_it:
        history = add_observation(history, commit, each)
    return history


def by_definition(all_of_it: list[tuple[str, Observation]]) -> set[str]:
    """Tests that failed in one attempt and not in another of the same commit, which ran at least as many."""
    return {
        name
        for commit, bad in all_of_it
        for other, good in all_of_it
        if commit == other and good.tests >= bad.tests > 0
        for name in bad.failed
        if name not in good.failed
    }


@st.composite
def histories(draw: Any) -> list[tuple[str, Observation]]:
    """A few attempts on a few commits."""
    found = []
    for number in range(draw(st.integers(0, 6))):
        failed = draw(st.sets(st.sampled_from(NAMES)))
        ok = draw(st.booleans()) and not failed
        each = seen(f"x{number}", *failed, tests=draw(st.sampled_from([0, 5, 10])) if not failed else 5, ok=ok)
        found.append((draw(st.sampled_from(["c1", "c2"])), each))
    return found


@given(histories(), st.randoms())
def test_a_test_is_flaky_by_its_definition_in_whatever_order_it_is_told(
    all_of_it: list[tuple[str, Observation]], random: Any
) -> None:
    """And whoever hears it twice knows no more than who heard it once."""
    shuffled = [*all_of_it, *all_of_it]
    random.shuffle(shuffled)

    history = told(*shuffled)

    assert set(flaky_tests(history, 2)) == by_definition(all_of_it)
    both = any(one.is_success != other.is_success for at, one in all_of_it for on, other in all_of_it if at == on)
    assert flaky.is_current(history.flake, 2) == both
    for commit, each in all_of_it:
        assert add_observation(history, commit, each) is history


@given(st.sets(st.sampled_from(NAMES), min_size=1), st.sets(st.sampled_from(NAMES)), histories())
def test_a_failure_is_flaky_exactly_if_every_failed_test_is_known_to_be(
    failed: set[str], others: set[str], all_of_it: list[tuple[str, Observation]]
) -> None:
    """One that is not among them makes it a mistake, which is never tried again."""
    known = set(flaky_tests(told(*all_of_it), 2)) | others
    facts = Facts(exit_code=1, failed_tests=tuple(sorted(failed)), flaky_tests=tuple(sorted(known)))

    verdict = classify(facts)

    assert (verdict.failure_class == "FLAKY") == (failed <= known)
    assert verdict.is_retryable == (failed <= known)
    assert verdict.rule == ("known-flaky-tests" if failed <= known else "failed-tests")


def test_what_fails_always_or_on_another_commit_is_not_flaky() -> None:
    """A mistake that was corrected looks the same from afar."""
    assert told(("c1", seen("1", "a")), ("c1", seen("2", "a")), ("c2", seen("3"))).tests == {}
    assert told(("c1", seen("1", "a")), ("c1", seen("2", tests=9))).tests == {}
    assert told(("c1", seen("1", "a")), ("c1", seen("2", tests=0, ok=True))).tests == {}


def test_what_is_flaky_is_forgotten_after_a_while() -> None:
    """Unless it was seen again."""
    history = told(("c1", seen("1", "a", at=1)), ("c1", seen("2", at=5)))

    assert history.tests == {"a": Flake(times=1, last_at=5, commit="c1")}
    assert list(flaky_tests(history, 5 + EXPIRES - 1)) == ["a"]
    assert flaky_tests(history, 5 + EXPIRES) == {}
    again = add_observation(add_observation(history, "c2", seen("3", at=EXPIRES)), "c2", seen("4", "a", at=EXPIRES))
    assert again.tests["a"] == Flake(times=2, last_at=EXPIRES, commit="c2")
    assert list(flaky_tests(again, 2 * EXPIRES - 1)) == ["a"]


def test_a_history_stays_small_whatever_is_told() -> None:
    """Of everything the newest."""
    history = History()
    for number in range(300):
        history = add_observation(history, f"c{number % 40}", seen(f"x{number}", f"test{number}", at=number))
        history = add_observation(history, f"c{number % 40}", seen(f"y{number}", at=number))

    assert len(history.commits) == flaky.MAX_COMMITS
    assert max(len(each.observations) for each in history.commits) <= flaky.MAX_OBSERVATIONS
    assert len(history.tests) == flaky.MAX_TESTS
    assert "test299" in history.tests
    assert "test0" not in history.tests
    assert len(msgspec.json.encode(history)) < 100_000


# -- what an attempt tells


def attempt(state: str = "FAILED", failure_class: str = "USER", **fields: Any) -> Attempt:
    """A finished one."""
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
    """What a runner reports of tests."""
    failures = [{"name": name, "message": "no"} for name in failed]
    return {"tests": {"total": total, "failed": len(failed), "failures": failures, **more}}


@pytest.mark.parametrize(
    "of",
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
def test_an_end_that_is_not_the_jobs_own_tells_nothing(of: Attempt) -> None:
    """Nor does a run that anybody may have written."""
    assert observe(of) is None


def test_what_is_told_of_tests_is_all_or_nothing() -> None:
    """A list that was cut says nothing of those that are not on it."""
    assert observe(attempt(report=report("b", "a"))) == Observation(
        attempt="r/j.1", at=0, is_success=False, tests=10, failed=("a", "b")
    )
    for bad in (report("a", errors=1), report(*map(str, range(31))), report("x" * 4001), {}, None, {"tests": 3}):
        found = observe(attempt(report=bad))
        assert found is not None
        assert (found.tests, found.failed) == (0, ())
    well = observe(attempt("SUCCEEDED", report=report()))
    assert well is not None
    assert (well.is_success, well.tests) == (True, 10)


def test_where_a_run_is_remembered() -> None:
    """By project, or else by repository; the commit, or else the plan."""
    full = Run(id="r", plan_hash="h", origin=Origin(project="p", repository="o/p", commit="c"))
    assert flaky.history_key(full) == ("p", "c")
    assert flaky.history_key(Run(id="r", plan_hash="h", origin=Origin(repository="o/p"))) == ("o/p", "h")
    assert flaky.history_key(Run(id="r")) == ("", "")
    assert flaky.job_name(attempt()) == "j"
    assert flaky.job_name(Attempt(id="q1")) == ""


@pytest.mark.parametrize(
    ("failed", "known", "said"),
    [
        (["a"], {"a"}, "1 of 1 failed test is known to be flaky: a."),
        (["a", "b"], {"a", "b"}, "2 of 2 failed tests are known to be flaky: a and b."),
        (["a", "b"], {"a"}, "1 of 2 failed tests is known to be flaky: a."),
        (["a"], {"b"}, ""),
        ([], {"b"}, ""),
    ],
)
def test_how_many_of_the_failed_tests_are_flaky_is_said(failed: list[str], known: set[str], said: str) -> None:
    """In a sentence of its own."""
    assert describe_flaky_tests(report(*failed), known) == said
    assert describe_flaky_tests(report(*failed), None) == ""
    assert describe_flaky_tests(None, known) == ""


def test_no_order_of_three_attempts_makes_a_difference() -> None:
    """Small enough to try them all."""
    three = [("c", seen("1", "a", "b")), ("c", seen("2", "b")), ("c", seen("3", "a", "b", "c"))]

    assert {frozenset(told(*order).tests) for order in permutations(three)} == {frozenset({"a", "c"})}
