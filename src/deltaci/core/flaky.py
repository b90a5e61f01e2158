"""What fails now and then: jobs and tests that did both on the same commit, learned from finished attempts.

A test is flaky that failed in one attempt and did not in another one of the same job on the same commit, which ran at
least as many tests; a job that failed by its own fault and succeeded. Attempts may be told in any order and again:
each counts once. Everything is bounded, and what was not seen again for `EXPIRES` is forgotten.
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
MAX_SIGHTINGS: Final = 6  # Of one commit.
MAX_TESTS: Final = 100
MAX_FAILED: Final = 30  # Where more failed at once, it is not one of them that fails now and then.
MAX_CHARS: Final = 4000  # Of the names of those that failed in one attempt.


class Observation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How one attempt ended. `tests` says how many ran; 0: nothing is known of single ones."""

    attempt: str
    at: int
    is_success: bool
    tests: int = 0
    failed: tuple[str, ...] = ()


class Commit(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was seen of a job on one commit, the oldest first."""

    key: str
    observations: tuple[Observation, ...] = msgspec.field(default=(), name="sightings")


class Flake(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How often something was seen to do both, when last, and on which commit."""

    times: int = 0
    last_at: int = 0
    commit: str = ""


class History(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is known of one job of one project."""

    project: str = ""
    job: str = ""
    commits: tuple[Commit, ...] = ()  # the one that was seen last is the last
    flake: Flake = Flake()
    tests: dict[str, Flake] = {}


def history_key(run: Run) -> tuple[str, str]:
    """Under which project the run's jobs are remembered, and what counts as the same commit; empty: nothing does."""
    origin = run.origin
    return origin.project or origin.repository, origin.commit or run.plan_hash


def job_name(of: Attempt) -> str:
    """What the plan calls the attempt's job; empty for one of the plain queue."""
    return of.job_id.removeprefix(f"{of.run_id}/") if of.run_id else ""


def observe(of: Attempt) -> Observation | None:
    """What a finished attempt tells; nothing if its end was not its own, or if it is not trusted."""
    spec: Any = of.spec
    if isinstance(spec, dict) and spec.get("cache_scope"):
        return None
    if isinstance(of.report, dict) and of.report.get("is_skipped"):
        return None  # It did nothing: that is no success.
    is_own = of.error is not None and of.error.failure_class in (USER, FLAKY)
    if of.state != attempt.SUCCEEDED and not (of.state == attempt.FAILED and is_own):
        return None
    tests, failed = _tests(of.report)
    is_success = of.state == attempt.SUCCEEDED and (of.verdict is None or of.verdict.is_passed)
    return Observation(attempt=of.id, at=of.updated_at, is_success=is_success, tests=tests, failed=failed)


def failed_tests(report: Any) -> tuple[tuple[str, ...], bool]:
    """The names of tests that a report says failed, and whether these are all of them."""
    told = report.get("tests") if isinstance(report, dict) else None
    if not isinstance(told, dict):
        return (), True
    names = tuple(str(each.get("name", "")) for each in told.get("failures", ()))
    return names, len(names) == told.get("failed", 0) + told.get("errors", 0)


def _tests(report: Any) -> tuple[int, tuple[str, ...]]:
    names, is_all = failed_tests(report)
    told = report.get("tests") if isinstance(report, dict) else None
    if not isinstance(told, dict) or not is_all or len(names) > MAX_FAILED or sum(map(len, names)) > MAX_CHARS:
        return 0, ()
    return told.get("total", 0), tuple(sorted(set(names)))


def add_observation(history: History, key: str, seen: Observation) -> History:
    """The history with one attempt more; the very same one if it was told before."""
    before = next((each for each in history.commits if each.key == key), Commit(key=key))
    if any(each.attempt == seen.attempt for each in before.observations):
        return history
    flake, tests = history.flake, dict(history.tests)
    if any(each.is_success != seen.is_success for each in before.observations):
        flake = _seen_again(flake, key, seen.at)
    for name in _flipped(before.observations, seen):
        tests[name] = _seen_again(tests.get(name, Flake()), key, seen.at)
    if len(tests) > MAX_TESTS:
        newest = sorted(tests, key=lambda name: (-tests[name].last_at, name))[:MAX_TESTS]
        tests = {name: tests[name] for name in newest}
    now = Commit(key=key, observations=(*before.observations, seen)[-MAX_SIGHTINGS:])
    others = tuple(each for each in history.commits if each.key != key)
    return msgspec.structs.replace(history, commits=(*others, now)[-MAX_COMMITS:], flake=flake, tests=tests)


def _seen_again(flake: Flake, key: str, at: int) -> Flake:
    return Flake(times=flake.times + 1, last_at=max(flake.last_at, at), commit=key)


def _flipped(others: Iterable[Observation], seen: Observation) -> set[str]:
    """The tests that failed in one of two attempts and not in the other, which ran at least as many."""
    found: set[str] = set()
    for other in others:
        for bad, good in ((seen, other), (other, seen)):
            if bad.failed and good.tests >= bad.tests:
                found |= set(bad.failed) - set(good.failed)
    return found


def flaky_tests(history: History, now: int) -> dict[str, Flake]:
    """The tests of the job that are known to be flaky."""
    return {name: flake for name, flake in history.tests.items() if is_current(flake, now)}


def is_current(flake: Flake, now: int) -> bool:
    """Whether it was seen, and not too long ago."""
    return flake.times > 0 and now - flake.last_at < EXPIRES
