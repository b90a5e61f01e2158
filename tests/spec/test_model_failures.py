"""The rules of docs/spec/model.md about failure classes and backoff, each proved on the real core."""

from __future__ import annotations

import msgspec
import pytest

from deltaci.audit.verify import verify
from deltaci.core import attempt, backoff, failures, job
from deltaci.core.failures import Facts, FailureRule, classify
from deltaci.core.instants import SECOND
from tests.support.lab import START, Lab, task


@pytest.mark.proves("MOD-F1")
@pytest.mark.parametrize(
    ("facts", "failure_class", "rule"),
    [
        (Facts(exit_code=1), "USER", "failed"),
        (Facts(exit_code=127), "TOOLING", "tool-missing"),
        (Facts(signal=9), "INFRA", "killed"),
        (Facts(signal=11), "USER", "failed"),
        (Facts(error_code="LEASE_LOST"), "INFRA", "lease-lost"),
        (Facts(error_code="CACHE_FETCH", exit_code=1), "TOOLING", "cache-or-registry"),
        (Facts(error_code="BAD_SPEC"), "USER", "bad-job-spec"),
        (Facts(exit_code=1, log_tail=("ok", "curl: Could not resolve host: x")), "INFRA", "network:names"),
        (Facts(exit_code=137), "INFRA", "killed:exit-code"),
        (Facts(exit_code=1, log_tail=("npm ERR! ETIMEDOUT",)), "TOOLING", "package-registry"),
        (Facts(exit_code=1, failed_tests=("t1",), flaky_tests=("t1", "t2")), "FLAKY", "known-flaky-tests"),
        (Facts(exit_code=1, failed_tests=("t1", "t3"), flaky_tests=("t1",)), "USER", "failed-tests"),
        (Facts(exit_code=1, failed_tests=("t1",)), "USER", "failed-tests"),
    ],
)
def test_a_failure_is_classified_by_what_is_known_of_it(facts: Facts, failure_class: str, rule: str) -> None:
    """Exit code, signal, error code, the tail of the log and the test reports each can tell the class."""
    failure = classify(facts)

    assert (failure.failure_class, failure.rule) == (failure_class, rule)


@pytest.mark.proves("MOD-F1")
def test_there_are_four_classes_and_every_failure_has_one() -> None:
    """Also a failure of which nothing at all is known."""
    assert failures.CLASSES == ("INFRA", "TOOLING", "FLAKY", "USER")
    assert {rule.failure_class for rule in failures.RULES} == set(failures.CLASSES)
    assert classify(Facts()).failure_class == "USER"
    assert classify(Facts(), rules=()).failure_class == "USER"


@pytest.mark.proves("MOD-F1")
def test_only_the_tail_of_the_log_is_looked_at() -> None:
    """A line from long before the end is not why it failed."""
    old = ("Connection reset by peer", *["fine"] * failures.MAX_LOG_LINES)

    assert classify(Facts(exit_code=1, log_tail=old)).rule == "failed"


@pytest.mark.proves("MOD-F2")
@pytest.mark.parametrize(
    ("facts", "state"),
    [
        (Facts(exit_code=1), job.FAILED),
        (Facts(error_code="BAD_SPEC"), job.FAILED),
        (Facts(exit_code=127), job.FAILED),
        (Facts(signal=9), job.RETRYING),
        (Facts(error_code="CACHE_FETCH"), job.RETRYING),
        (Facts(error_code="REGISTRY_FETCH"), job.RETRYING),
        (Facts(exit_code=1, failed_tests=("t1",), flaky_tests=("t1",)), job.RETRYING),
    ],
)
def test_the_class_decides_whether_there_is_a_retry(facts: Facts, state: str) -> None:
    """A mistake of the user stays one, however often it is repeated; of tools, only a fetch may work next time."""
    lab = Lab().plan(task("a", max_attempts=2))

    lab.complete(lab.claim(lab.attempt("a")), ok=False, exit_code=facts.exit_code or 1, facts=facts)

    assert lab.job("a").state == state
    lab.verified()


@pytest.mark.proves("MOD-F2")
@pytest.mark.parametrize("error_code", ["RUNNER_STARTUP", "CACHE_FETCH"])
def test_a_retryable_failure_is_not_retried_when_no_attempt_remains(error_code: str) -> None:
    """The limit holds for every class of failure."""
    lab = Lab().plan(task("a", max_attempts=1))

    lab.fail(lab.claim(lab.attempt("a")), error_code)

    assert lab.job("a").state == job.FAILED


@pytest.mark.proves("MOD-F2")
def test_no_rule_of_the_table_retries_the_user() -> None:
    """A table is easily changed in one place and wrong in another."""
    assert not [rule.name for rule in failures.RULES if rule.failure_class == "USER" and rule.is_retryable]
    tooling = {rule.name for rule in failures.RULES if rule.failure_class == "TOOLING" and rule.is_retryable}
    assert tooling == {"cache-or-registry", "package-registry", "package-registry:download"}
    others = [rule for rule in failures.RULES if rule.failure_class in ("INFRA", "FLAKY")]
    assert all(rule.is_retryable for rule in others)


@pytest.mark.proves("MOD-F1", "MOD-F2")
@pytest.mark.parametrize("line", ["No space left on device", "Connection reset by peer", "npm ERR! ETIMEDOUT"])
def test_failed_tests_that_are_not_known_flaky_outweigh_the_log(line: str) -> None:
    """A test may print anything; a report that names failed tests is better evidence."""
    lab = Lab().plan(task("a", max_attempts=3))
    facts = Facts(failed_tests=("t1", "t2"), flaky_tests=("t2",), log_tail=(line,))

    lab.complete(lab.claim(lab.attempt("a")), ok=False, facts=facts)

    assert (lab.job("a").state, lab.last("r1/a").metadata["rule"]) == (job.FAILED, "failed-tests")
    assert classify(Facts(exit_code=1, log_tail=(line,))).is_retryable
    lab.verified()


OURS = (
    FailureRule(name="license-server", failure_class="INFRA", is_retryable=True, log_pattern="no license left"),
    FailureRule(name="slow-suite", failure_class="FLAKY", is_retryable=True, error_codes=("SLOW",)),
    FailureRule(name="our-lint", failure_class="USER", is_retryable=True, exit_codes=(9,)),
)


@pytest.mark.proves("MOD-F1", "MOD-F2", "MOD-F3")
@pytest.mark.parametrize(
    ("facts", "failure_class", "rule", "state"),
    [
        (Facts(exit_code=1, failed_tests=("t",), log_tail=("no license left",)), "INFRA", "license-server", "RETRYING"),
        (Facts(error_code="SLOW"), "FLAKY", "slow-suite", "RETRYING"),
        (Facts(exit_code=9, log_tail=("ETIMEDOUT",)), "USER", "our-lint", "FAILED"),
        (Facts(exit_code=1, log_tail=("ETIMEDOUT",)), "TOOLING", "package-registry", "RETRYING"),
        (Facts(exit_code=1), "USER", "failed", "FAILED"),
    ],
)
def test_the_rules_of_a_project_come_first_and_none_of_them_retries_a_user_failure(
    facts: Facts, failure_class: str, rule: str, state: str
) -> None:
    """A project knows its failures; a user failure stays final under any rule."""
    lab = Lab().plan(task("a", max_attempts=2))

    lab.complete(lab.claim(lab.attempt("a")), ok=False, facts=facts, rules=OURS)

    told, error = lab.last("r1/a").metadata, lab.attempt("a").error
    assert (told["failure_class"], told["rule"], lab.job("a").state) == (failure_class, rule, state)
    assert error is not None
    assert error.is_retryable == (state == job.RETRYING)
    lab.verified()


@pytest.mark.proves("MOD-F3")
def test_the_event_names_the_class_the_rule_and_the_line() -> None:
    """People must see why there was a retry, or none, without reading the whole log."""
    lab = Lab().plan(task("a", max_attempts=2))
    facts = Facts(log_tail=("building", "fatal: Connection reset by peer", "make: *** [all] Error 1"))

    lab.complete(lab.claim(lab.attempt("a")), ok=False, facts=facts)

    told = lab.last("r1/a").metadata
    assert (told["failure_class"], told["rule"]) == ("INFRA", "network")
    assert told["line"] == "fatal: Connection reset by peer"
    assert lab.last("r1/a.1").metadata["error"]["line"] == told["line"]
    lab.verified()


@pytest.mark.proves("MOD-F3", "MOD-F2")
@pytest.mark.parametrize(
    ("entity_id", "change", "rule"),
    [
        ("r1/a", {"rule": "network"}, "MOD-F3"),
        ("r1/a", {"line": "another line"}, "MOD-F3"),
        ("r1/a", {"failure_class": "INFRA"}, "MOD-F3"),
        ("r1/a.1", {"is_retryable": True}, "MOD-F2"),
    ],
)
def test_the_verifier_finds_a_reason_that_differs_from_the_attempts(
    entity_id: str, change: dict[str, object], rule: str
) -> None:
    """A job with another reason than its attempt misleads readers of the job."""
    lab = Lab().plan(task("a"))
    lab.work("a", ok=False)
    log = [msgspec.json.decode(line) for line in lab.canonical()]
    line = next(line for line in log if (line["entity_id"], line["to"]) == (entity_id, "FAILED"))

    (line["metadata"]["error"] if entity_id == "r1/a.1" else line["metadata"]).update(change)

    assert rule in {violation.rule for violation in verify([msgspec.json.encode(each) for each in log]).violations}


@pytest.mark.proves("MOD-F4")
@pytest.mark.parametrize(
    ("attempts", "base", "cap", "wait"),
    [(1, 10, 600, 20), (2, 10, 600, 40), (5, 10, 600, 320), (6, 10, 600, 600), (10**9, 10, 600, 600), (3, 1, 4, 4)],
)
def test_the_wait_is_two_to_the_attempts_times_the_base_delay_up_to_a_cap(
    attempts: int, base: int, cap: int, wait: int
) -> None:
    """What keeps failing is asked less and less often, but never forgotten."""
    assert backoff.next_run_at(START, attempts, base, cap) == START + wait * SECOND


@pytest.mark.proves("MOD-F4")
def test_jitter_spreads_retries_without_shortening_the_wait() -> None:
    """A thousand jobs that failed together must not come back together; the same job gets the same answer."""
    due = [backoff.next_run_at(0, 1, 10, 600, jitter=0.5, salt=f"r1/j{n}.1") for n in range(100)]

    assert min(due) >= 20 * SECOND
    assert max(due) <= 30 * SECOND
    assert len(set(due)) > 90
    assert due == [backoff.next_run_at(0, 1, 10, 600, jitter=0.5, salt=f"r1/j{n}.1") for n in range(100)]


@pytest.mark.proves("MOD-F4")
def test_the_job_waits_as_its_spec_says() -> None:
    """The base delay, the cap and the jitter are the job's own."""
    lab = Lab().plan(task("a", max_attempts=9, base_delay_seconds=7, max_delay_seconds=20, jitter=0.1))
    waits = list[float]()

    for _ in range(3):
        lab.fail(lab.claim(lab.attempt("a")))
        waits.append((lab.job("a").next_run_at - lab.now) / SECOND)
        lab.after(waits[-1]).do(job.RetryDue(id="r1/a"))

    assert all(wait <= found <= wait * 1.1 for wait, found in zip((14, 20, 20), waits, strict=True))
    assert lab.attempt("a").state == attempt.QUEUED
    lab.verified()
