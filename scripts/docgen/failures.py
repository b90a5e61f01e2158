"""Draws the built-in rules for failures into docs/failures.md, from the table that is executed."""

from __future__ import annotations

from collections.abc import Iterator

from deltaci.core.failures import RULES, FailureRule
from scripts.docgen.pages import replace_below_mark, table

MAX_ALTERNATIVES = 8  # Of a pattern: the whole one is in the table of the code, and in `deltaci failure-rules show`.


def page(text: str) -> str:
    """The page with its table as it should be; what stands before the mark is written by hand."""
    return replace_below_mark(text, _lines())


def _lines() -> Iterator[str]:
    yield "## The built-in rules"
    yield ""
    yield "In this order, behind a tenant's own and the server's; those for log lines count as one. The last one"
    yield "fits everything."
    yield ""
    rows = ((f"`{rule.name}`", rule.failure_class, "yes" if rule.is_retryable else "no", _fits(rule)) for rule in RULES)
    yield from table(("rule", "class", "retried", "fits"), rows)


def _fits(rule: FailureRule) -> str:
    told = [f"error code {_listed(rule.error_codes)}"] if rule.error_codes else []
    told += [f"signal {_listed(rule.signals)}"] if rule.signals else []
    told += [f"exit code {_listed(rule.exit_codes)}"] if rule.exit_codes else []
    told += ["tests failed, all of them known to be flaky"] if rule.all_failed_tests_flaky else []
    told += ["tests failed"] if rule.has_failed_tests else []
    told += [f"in the log: {_listed(_alternatives(rule.log_pattern))}"] if rule.log_pattern else []
    return " and ".join(told) or "every other failure"


def _alternatives(pattern: str) -> list[str]:
    """The alternatives of a pattern: it is split at each `|` that is in no group."""
    parts, depth, is_escaped = [""], 0, False
    for character in pattern:
        if not is_escaped:
            depth += (character == "(") - (character == ")")
        if character == "|" and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
        is_escaped = character == "\\" and not is_escaped
    return parts[:MAX_ALTERNATIVES] + ["…"] * (len(parts) > MAX_ALTERNATIVES)


def _listed(values: object) -> str:
    assert isinstance(values, (tuple, list))
    return ", ".join(f"`{value}`" for value in values)
