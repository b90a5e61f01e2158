"""Flaky jobs and tests, which both failed and passed on the same commit, learned from finished attempts.

A test is flaky if it failed in one attempt and not in another one of the same job on the same commit that ran at least
as many tests. A job is flaky if it failed by its own fault and also succeeded. Attempts may be added in any order and
repeatedly; each counts once. A history is bounded, and flakes that were not seen for `EXPIRES` are ignored.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from deltaci.core import attempt
from deltaci.core.attempt import Attempt
from deltaci.core.failures import FLAKY, USER
from deltaci.core.instants import SECOND
from deltaci.core.run import Run

EXPIRES: Final = 14 * 24 * 3600 * SECOND
MAX_COMMITS: Final = 10
MAX_OBSERVATIONS: Final = 6  # Per commit.
MAX_TESTS: Final = 100
MAX_FAILED: Final = 30  # If more fail at once, the cause is not a flaky test.
MAX_CHARS: Final = 4000  # For all names of failed tests of one attempt together.


class Observation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The result of one attempt, as evidence for flaky jobs and tests. `failed` are the names of its failed tests.

    `tests` is the number of tests that ran, 0 if single tests are unknown.
    """

    attempt: str
    at: int
    is_success: bool
    tests: int = 0
    failed: tuple[str, ...] = ()


class CommitObservations(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The observations of a job on one commit, oldest first."""

    key: str
    observations: tuple[Observation, ...] = msgspec.field(default=(), name="sightings")


class Flake(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How often a job or test was observed to be flaky (`times`), when last, and on which commit that was."""

    times: int = 0
    last_at: int = 0
    commit: str = ""


class History(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The recent observations of one job of one project, and its flakes."""

    project: str = ""
    job: str = ""
    commits: tuple[CommitObservations, ...] = ()  # The latest is last.
    flake: Flake = Flake()
    tests: dict[str, Flake] = {}


def history_key(run: Run) -> tuple[str, str]:
    """Return the project and the commit whose observations the run adds to.

    Without a commit, its plan's hash stands for it.
    """
    origin = run.origin
    return origin.project or origin.repository, origin.commit or run.plan_hash


def job_name(attempt: Attempt) -> str:
    """Return the name of the attempt's job in the plan; empty for an attempt of the plain queue."""
    return attempt.job_id.removeprefix(f"{attempt.run_id}/") if attempt.run_id else ""


def observe(record: Attempt) -> Observation | None:
    """Return the observation of a finished attempt: its success and its failed tests.

    None if the attempt is no evidence: infrastructure ended it, it was skipped or cancelled, or it ran untrusted code,
    which has a `cache_scope`.
    """
    spec: Any = record.spec
    if isinstance(spec, dict) and spec.get("cache_scope"):
        return None
    if isinstance(record.report, dict) and record.report.get("is_skipped"):
        return None  # A skipped job did nothing, which is no success.
    is_own_fault = record.error is not None and record.error.failure_class in (USER, FLAKY)
    if record.state != attempt.SUCCEEDED and not (record.state == attempt.FAILED and is_own_fault):
        return None
    test_count, failed_names = _test_counts(record.report)
    is_success = record.state == attempt.SUCCEEDED and (record.verdict is None or record.verdict.is_passed)
    return Observation(
        attempt=record.id, at=record.updated_at, is_success=is_success, tests=test_count, failed=failed_names
    )


def failed_tests(report: Any) -> tuple[tuple[str, ...], bool]:
    """Return the names of the failed tests of an attempt's report, and whether the list is complete."""
    test_totals = report.get("tests") if isinstance(report, dict) else None
    if not isinstance(test_totals, dict):
        return (), True
    failed_names = tuple(str(failed_test.get("name", "")) for failed_test in test_totals.get("failures", ()))
    return failed_names, len(failed_names) == test_totals.get("failed", 0) + test_totals.get("errors", 0)


def _test_counts(report: Any) -> tuple[int, tuple[str, ...]]:
    """Return how many tests ran and the names of the failed ones, sorted.

    Return 0 and none if the report has no tests, does not name all failed ones, or names too many.
    """
    failed_names, is_complete = failed_tests(report)
    test_totals = report.get("tests") if isinstance(report, dict) else None
    if (
        not isinstance(test_totals, dict)
        or not is_complete
        or len(failed_names) > MAX_FAILED
        or sum(map(len, failed_names)) > MAX_CHARS
    ):
        return 0, ()
    return test_totals.get("total", 0), tuple(sorted(set(failed_names)))


def add_observation(history: History, commit_key: str, new_observation: Observation) -> History:
    """Return the history with one more observation, or the same object if the attempt was added before."""
    old_observations = next(
        (
            observations_of_commit
            for observations_of_commit in history.commits
            if observations_of_commit.key == commit_key
        ),
        CommitObservations(key=commit_key),
    )
    if any(observation.attempt == new_observation.attempt for observation in old_observations.observations):
        return history
    flake, flake_by_test = history.flake, dict(history.tests)
    if any(observation.is_success != new_observation.is_success for observation in old_observations.observations):
        flake = _count_flake(flake, commit_key, new_observation.at)
    for test_name in _flaky_between(old_observations.observations, new_observation):
        flake_by_test[test_name] = _count_flake(flake_by_test.get(test_name, Flake()), commit_key, new_observation.at)
    if len(flake_by_test) > MAX_TESTS:
        newest_names = sorted(flake_by_test, key=lambda test_name: (-flake_by_test[test_name].last_at, test_name))[
            :MAX_TESTS
        ]
        flake_by_test = {test_name: flake_by_test[test_name] for test_name in newest_names}
    new_observations = CommitObservations(
        key=commit_key, observations=(*old_observations.observations, new_observation)[-MAX_OBSERVATIONS:]
    )
    observations_of_other_commits = tuple(
        observations_of_commit for observations_of_commit in history.commits if observations_of_commit.key != commit_key
    )
    return msgspec.structs.replace(
        history,
        commits=(*observations_of_other_commits, new_observations)[-MAX_COMMITS:],
        flake=flake,
        tests=flake_by_test,
    )


def _count_flake(flake: Flake, commit_key: str, at: int) -> Flake:
    """Return the flake with one more occurrence, on the commit `commit_key` at the time `at`."""
    return Flake(times=flake.times + 1, last_at=max(flake.last_at, at), commit=commit_key)


def _flaky_between(earlier_observations: Iterable[Observation], new_observation: Observation) -> set[str]:
    """Return the tests that failed in `new_observation` and not in an earlier observation, or the other way round.

    Two observations are compared only if the one in which the test passed ran at least as many tests.
    """
    flaky_names: set[str] = set()
    for earlier_observation in earlier_observations:
        for failing_observation, passing_observation in (
            (new_observation, earlier_observation),
            (earlier_observation, new_observation),
        ):
            if failing_observation.failed and passing_observation.tests >= failing_observation.tests:
                flaky_names |= set(failing_observation.failed) - set(passing_observation.failed)
    return flaky_names


def flaky_tests(history: History, now: int) -> dict[str, Flake]:
    """Return the flaky tests of the job, without expired ones."""
    return {test_name: flake for test_name, flake in history.tests.items() if is_current(flake, now)}


def is_current(flake: Flake, now: int) -> bool:
    """Return whether the flake was observed and has not expired."""
    return flake.times > 0 and now - flake.last_at < EXPIRES
