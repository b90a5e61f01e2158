"""Limits: expressions are untrusted input, so size and work are bounded."""

import sys
import time

import pytest

from deltaci.pipeline.expressions import (
    EvaluationError,
    ExpressionError,
    ExpressionSyntaxError,
    Residual,
    Resolved,
    Value,
    evaluate,
    format_expression,
    interpolate,
    parse,
    parse_condition,
    parse_template,
    reduce_expression,
)
from deltaci.pipeline.expressions.limits import (
    MAX_CHARACTERS,
    MAX_DEPTH,
    MAX_EXPRESSIONS,
    MAX_LENGTH,
    MAX_STEPS,
    MAX_TEMPLATE,
    MAX_TEXT,
    MAX_VALUE_DEPTH,
)

LONG_ENOUGH = 10.0  # seconds of work; each of these takes less than one on a slow machine


def laughs(levels: int) -> Value:
    """Return nested lists that share their items, and would expand to 10**levels texts."""
    value: Value = "ha"
    for _ in range(levels):
        value = [value] * 10
    return value


def deep(levels: int) -> Value:
    value: Value = 1
    for _ in range(levels):
        value = [value]
    return value


BIG = "ä" * MAX_TEXT
CONTEXTS: dict[str, Value] = {
    "big": BIG,
    "laughs": laughs(20),
    "deep": deep(MAX_VALUE_DEPTH + 1),
    "many": ["x" * 100] * (MAX_STEPS + 1),
    "bigs": [BIG] * 100,
    "wide": {f"key{index}": index for index in range(MAX_STEPS)},
}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("1" + " " * MAX_LENGTH, f"{MAX_LENGTH + 1} characters"),
        ("(" * (MAX_DEPTH + 1) + "1" + ")" * (MAX_DEPTH + 1), "expressions that are nested too deeply"),
        ("(" * MAX_LENGTH, "expressions that are nested too deeply"),
        ("f(" * (MAX_LENGTH // 2), "expressions that are nested too deeply"),
        ("a[" * (MAX_LENGTH // 2), "expressions that are nested too deeply"),
        ("!" * (MAX_LENGTH - 1) + "1", "expressions that are nested too deeply"),
        ("a" + ".b" * (MAX_LENGTH // 2 - 1), "expressions that are nested too deeply"),
        ("a" + "[*]" * (MAX_LENGTH // 3 - 1), "expressions that are nested too deeply"),
        ("1" + "==1" * (MAX_LENGTH // 3 - 1), "expressions that are nested too deeply"),
    ],
)
def test_an_expression_that_is_too_long_or_too_deep_is_refused(text: str, found: str) -> None:
    with pytest.raises(ExpressionSyntaxError) as refused:
        parse(text)

    assert refused.value.problem.found == found


def test_the_implied_success_counts_towards_the_depth_of_a_condition() -> None:
    """Otherwise the formatted condition could not be parsed again."""
    deepest = "!" * (MAX_DEPTH - 2) + "a"

    assert parse(format_expression(parse_condition(deepest))) == parse_condition(deepest)
    assert format_expression(parse("!" + deepest)) == "!" + deepest
    with pytest.raises(ExpressionSyntaxError):
        parse_condition("!" + deepest)


def test_an_expression_at_the_limits_is_accepted() -> None:
    """Also with a deep call stack: parsing needs a bounded number of frames."""
    levels = MAX_DEPTH // 5 - 1
    nested = "!(1 || 2 && 3 == 4 < " * levels + "x" + ")" * levels
    too_deep = "(1 || 2 && 3 == 4 < f(" * MAX_DEPTH
    flat = "a" + " && a" * ((MAX_LENGTH - 1) // 5)

    def from_below(frames: int, text: str) -> str:
        return from_below(frames - 1, text) if frames else format_expression(parse(text))

    assert len(flat) > MAX_LENGTH - 5
    assert evaluate(parse(flat), {"a": 1}) == 1
    assert from_below(sys.getrecursionlimit() // 4, nested) == nested
    with pytest.raises(ExpressionSyntaxError):
        from_below(sys.getrecursionlimit() // 4, too_deep)


@pytest.mark.parametrize(
    "expression",
    [
        "format('{0}{0}{0}', big)",
        "format('{0}{0}', format('{0}', big))",
        "join(bigs)",
        "join(bigs, '')",
        "join(many, big)",
        "join(many, '')",
        "toJSON(laughs)",
        "toJSON(deep)",
        "toJSON(bigs)",
        "join(laughs.*.*.*.*.*.*.*.*.*.*)",
        "laughs.*.*.*.*.*.*.*.*.*.*",
        "contains(many, 'y')",
        "contains(bigs, big) && contains(bigs, 'y')",
        "fromJSON(format('{0}{0}', big))",
        "fromJSON(format('{0}{0}', '" + "[" * 10_000 + "'))",
        " || ".join(["contains(big, 'b')"] * 20),
        " || ".join(["big == 'b'"] * 20),
        " || ".join(["wide.nothing"] * 20),
        " || ".join(["startsWith(toJSON(wide), 'x')"] * 500),
        "toJSON(wide)",
    ],
)
def test_an_expression_that_amplifies_its_input_is_refused_quickly(expression: str) -> None:
    began = time.process_time()

    with pytest.raises(EvaluationError) as refused:
        evaluate(parse(expression), CONTEXTS)
    reduced = reduce_expression(parse(expression), CONTEXTS)

    assert refused.value.problem.column >= 1
    assert isinstance(reduced, Residual)  # refused again later, if it is reached
    assert time.process_time() - began < LONG_ENOUGH


@pytest.mark.parametrize(
    "expression",
    [
        "big == 1",
        "wide[big]",
        "big[big]",
        "0 < '" + "9" * 20_000 + "'",
        "9" * MAX_LENGTH,
        "0x" + "f" * (MAX_LENGTH - 2),
        "-" * MAX_LENGTH,
        "'" * MAX_LENGTH,
        "1e" + "9" * 1000,
    ],
)
def test_an_expression_that_looks_expensive_is_evaluated_quickly(expression: str) -> None:
    began = time.process_time()

    try:
        evaluate(parse(expression), CONTEXTS)
    except ExpressionError as refused:
        assert refused.code == "bad_spec"  # noqa: PT017

    assert time.process_time() - began < LONG_ENOUGH


def test_a_value_that_expands_beyond_the_limit_is_not_embedded() -> None:
    """A known value is embedded only if its JSON is short, however little memory it takes."""
    reduced = reduce_expression(parse("laughs[steps.a]"), CONTEXTS)

    assert isinstance(reduced, Residual)
    assert reduced.text == "laughs[steps.a]"


def test_a_value_of_any_size_may_be_returned_unchanged() -> None:
    assert reduce_expression(parse("laughs"), CONTEXTS) == Resolved(CONTEXTS["laughs"])


def test_a_template_that_is_too_long_or_has_too_many_expressions_is_refused() -> None:
    with pytest.raises(ExpressionSyntaxError):
        parse_template("x" * (MAX_TEMPLATE + 1))
    with pytest.raises(ExpressionSyntaxError) as refused:
        parse_template("${{ 1 }}" * (MAX_EXPRESSIONS + 1))

    assert refused.value.problem.column == 8 * MAX_EXPRESSIONS + 1
    assert interpolate("${{ 1 }}" * MAX_EXPRESSIONS, {}) == "1" * MAX_EXPRESSIONS


def test_the_expressions_of_one_template_share_a_budget() -> None:
    """Otherwise a thousand expressions could each use a full budget."""
    used_up = MAX_CHARACTERS // MAX_TEXT + 1

    with pytest.raises(EvaluationError):
        interpolate("${{ contains(big, 'b') }}" * used_up, CONTEXTS)
    with pytest.raises(EvaluationError):
        interpolate("${{ big }}${{ big }}", CONTEXTS)
