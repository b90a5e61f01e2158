"""The built-in failure rules on a labelled corpus of logs, and what counts as evidence in a log."""

from __future__ import annotations

import pytest

from deltaci.core import failures
from deltaci.core.failures import LOG_RULES, MAX_LOG_LINES, Facts, classify
from deltaci.protocol.patterns import log_patterns
from tests.support.failure_corpus import Measures, measure, read_corpus

MIN_CASES = 300
MIN_RECALL = 0.85
MAX_FALSE_RETRIES = 0.03


def measured(*, is_for_measuring: bool) -> Measures:
    """Return the measures of one half of the corpus."""
    return measure(classify, [case for case in read_corpus() if case.is_for_measuring == is_for_measuring])


def test_the_corpus_is_large_and_both_halves_have_both_labels() -> None:
    """A measure of few cases says nothing."""
    cases = read_corpus()
    halves = [[case for case in cases if case.is_for_measuring == half] for half in (False, True)]

    assert len({case.id for case in cases}) == len(cases) >= MIN_CASES
    assert {case.label for case in cases} == {"infra", "tooling", "user"}
    for half in halves:
        assert min(sum(case.is_transient for case in half), sum(not case.is_transient for case in half)) >= 100
    assert all(case.tool and case.fact and case.log_tail for case in cases)


@pytest.mark.parametrize("is_for_measuring", [False, True], ids=["tuning", "measuring"])
def test_transient_failures_are_retried_and_others_hardly_ever(is_for_measuring: bool) -> None:
    """No rule was written with the measuring half. A case that is decided wrongly is named."""
    measures = measured(is_for_measuring=is_for_measuring)

    assert measures.recall >= MIN_RECALL, f"not retried: {', '.join(measures.missed)}"
    assert measures.false_retry_rate <= MAX_FALSE_RETRIES, f"retried: {', '.join(measures.retried)}"


@pytest.mark.parametrize("rule", LOG_RULES, ids=lambda rule: rule.name)
def test_the_patterns_of_the_built_in_rules_have_a_bounded_time(rule: failures.FailureRule) -> None:
    """They are matched against lines that jobs write. In lower case, because that is faster to search."""
    assert log_patterns.check(rule.log_pattern) <= log_patterns.MAX_WAYS
    assert rule.log_pattern == rule.log_pattern.lower()


@pytest.mark.parametrize("pattern", [*failures.NO_EVIDENCE, *failures.CLOSING, failures.LOCAL_ADDRESS])
def test_the_patterns_of_lines_without_evidence_have_a_bounded_time(pattern: str) -> None:
    """They are matched against the same lines."""
    assert log_patterns.check(pattern) <= log_patterns.MAX_WAYS


@pytest.mark.parametrize(
    ("log", "rule"),
    [
        (["503 Service Unavailable", *["ok"] * MAX_LOG_LINES, "AssertionError: 1 != 2"], "job:tests"),
        (["503 Service Unavailable", "12 rows written", "the report has no rows"], "failed"),
        (
            ["AssertionError: 1 != 2", *["ok"] * 20, "curl: (56) Recv failure: Connection reset by peer"],
            "transfer:curl",
        ),
        (["E   AssertionError", "E   - 503 Service Unavailable"], "job:tests"),
        (["Connection reset by peer, retrying in 5 s", "done", "version mismatch"], "job:other"),
        (["GET http://localhost:8080/ 503 Service Unavailable"], "failed"),
        (["x" * 400 + ": Connection reset by peer"], "network"),
    ],
)
def test_the_evidence_nearest_to_the_exit_counts(log: list[str], rule: str) -> None:
    """A job prints much that is not why it failed."""
    assert classify(Facts(exit_code=1, log_tail=tuple(log))).rule == rule
