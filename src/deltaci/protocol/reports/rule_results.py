"""Results of validation rules: the verdict on a job, and one text for its log, its error and every page."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from deltaci.core.attempt import Verdict
from deltaci.core.text import plain_line
from deltaci.protocol.job_spec import JobSpec, RuleResult
from deltaci.protocol.messages import Complete

MAX_TEXT_CHARS: Final = 500  # Of each text of a result.
MAX_DETAILS_CHARS: Final = 2000


def describe_result(result: RuleResult) -> str:
    """Return the result of one validation rule as one line of text."""
    rule_name = plain_line(result.rule, MAX_TEXT_CHARS)
    if result.is_passed:
        return f"rule {rule_name}: holds"
    actual, expected = plain_line(result.actual, MAX_TEXT_CHARS), plain_line(result.expected, MAX_TEXT_CHARS)
    return f"rule {rule_name}: found {actual or 'nothing'}, wanted {expected or 'it to hold'}"


def describe_failed(results: Iterable[RuleResult]) -> str:
    """Return all results that are not passed as one line for a job's error; empty if every rule holds."""
    return "; ".join(describe_result(result) for result in results if not result.is_passed)[:MAX_DETAILS_CHARS]


def validation_verdict(complete: Complete, spec: JobSpec) -> Verdict | None:
    """Return the verdict on a successful attempt's validation rules.

    Return None if there are no rules that the runner checks, or if the job was skipped. A runner that reports no
    results, because it is old or dishonest, has not shown that the rules hold.
    """
    if complete.is_skipped and spec.condition:
        return None  # The job was skipped, so there is nothing to validate.
    rules, results = [rule for rule in spec.rules if not rule.is_checked_by_server], complete.verdicts or []
    if failed := describe_failed(results):
        return Verdict(is_passed=False, details=failed)
    if len(results) < len(rules):
        details = f"the runner reported results for {len(results)} of {len(rules)} validation rules; update the runner"
        return Verdict(is_passed=False, details=details)
    return Verdict(is_passed=True) if rules else None
