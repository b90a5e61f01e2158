"""Results of validation rules as text: the same text in the job's log, in its error and on every page."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from deltaci.core.text import plain_line
from deltaci.protocol.job_spec import RuleResult

MAX_TEXT_CHARS: Final = 500  # Of each text of a result.
MAX_DETAILS_CHARS: Final = 2000


def describe_result(result: RuleResult) -> str:
    """Return the result of one validation rule as one line of text."""
    name = plain_line(result.rule, MAX_TEXT_CHARS)
    if result.is_passed:
        return f"rule {name}: holds"
    actual, expected = plain_line(result.actual, MAX_TEXT_CHARS), plain_line(result.expected, MAX_TEXT_CHARS)
    return f"rule {name}: found {actual or 'nothing'}, wanted {expected or 'it to hold'}"


def describe_failed(results: Iterable[RuleResult]) -> str:
    """Return all results that are not passed as one line for a job's error; empty if every rule holds."""
    return "; ".join(describe_result(result) for result in results if not result.is_passed)[:MAX_DETAILS_CHARS]
