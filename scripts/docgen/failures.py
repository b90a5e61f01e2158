"""Draws the built-in rules for failures into docs/failures.md, from the table that is executed."""

from __future__ import annotations

from collections.abc import Iterator

from deltaci.core.failures import RULES, FailureRule
from scripts.docgen.pages import replace_below_mark, table


def page(text: str) -> str:
    """The page with its table as it should be; what stands before the mark is written by hand."""
    return replace_below_mark(text, _lines())


def _lines() -> Iterator[str]:
    yield "## The built-in rules"
    yield ""
    yield "In this order, behind a tenant's own and the server's. The last one fits everything."
    yield ""
    rows = ((f"`{rule.name}`", rule.failure_class, "yes" if rule.is_retryable else "no", _fits(rule)) for rule in RULES)
    yield from table(("rule", "class", "retried", "fits"), rows)


def _fits(rule: FailureRule) -> str:
    told = [f"error code {_listed(rule.error_codes)}"] if rule.error_codes else []
    told += [f"signal {_listed(rule.signals)}"] if rule.signals else []
    told += [f"exit code {_listed(rule.exit_codes)}"] if rule.exit_codes else []
    told += ["tests failed, all of them known to be flaky"] if rule.all_failed_tests_flaky else []
    told += ["tests failed"] if rule.has_failed_tests else []
    told += [f"in the log: {_listed(rule.log_pattern.split('|'))}"] if rule.log_pattern else []
    return " and ".join(told) or "every other failure"


def _listed(values: object) -> str:
    assert isinstance(values, (tuple, list))
    return ", ".join(f"`{value}`" for value in values)
