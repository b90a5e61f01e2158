"""Verdicts about rules, in words: the same ones in a job's log, in its error and wherever people look."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from deltaci.core.text import plain
from deltaci.protocol.job_spec import RuleResult

MAX_TEXT_CHARS: Final = 500  # Of each text of a verdict.
MAX_DETAILS_CHARS: Final = 2000


def describe_result(verdict: RuleResult) -> str:
    """One verdict as one line."""
    name = plain(verdict.rule, MAX_TEXT_CHARS)
    if verdict.is_passed:
        return f"rule {name}: holds"
    found, wanted = plain(verdict.found, MAX_TEXT_CHARS), plain(verdict.wanted, MAX_TEXT_CHARS)
    return f"rule {name}: found {found or 'nothing'}, wanted {wanted or 'it to hold'}"


def describe_failed(verdicts: Iterable[RuleResult]) -> str:
    """All that do not hold, for the error of a job; empty if all hold."""
    return "; ".join(describe_result(each) for each in verdicts if not each.is_passed)[:MAX_DETAILS_CHARS]
