"""What holds for every expression and for every text, tried with many."""

import math
from collections.abc import Mapping

from hypothesis import assume, given, settings

from deltaci.pipeline.expressions import (
    Expression,
    ExpressionError,
    ExpressionSyntaxError,
    Function,
    Residual,
    Resolved,
    Value,
    check_expression,
    evaluate,
    format_expression,
    interpolate,
    parse,
    parse_condition,
    parse_template,
    reduce_expression,
    reduce_template,
)
from tests.pipeline.expressions.expression_trees import EARLY, LATE, TRICKS, scraps, templates, trees

FUNCTIONS: dict[str, Function] = {
    "success": lambda _: True,
    "failure": lambda _: False,
    "always": lambda _: True,
    "cancelled": lambda _: False,
    "hashFiles": lambda arguments: f"hash of {len(arguments)}",
}


def outcome(expression: Expression, contexts: Mapping[str, Value]) -> str:
    """Return the value in a form that distinguishes true from 1 and equates NaN with NaN; or `refused`."""
    try:
        return _canonical(evaluate(expression, contexts, FUNCTIONS))
    except ExpressionError:
        return "refused"


def _canonical(value: Value) -> str:
    match value:
        case bool() | str() | None:
            return repr(value)
        case int() | float():
            return "nan" if math.isnan(value) else repr(float(value))
        case Mapping():
            return "{" + ", ".join(f"{key!r}: {_canonical(item)}" for key, item in value.items()) + "}"
        case _:
            return "[" + ", ".join(map(_canonical, value)) + "]"


@given(trees)
def test_formatting_and_parsing_returns_the_same_tree(tree: Expression) -> None:
    assert parse(format_expression(tree)) == tree
    assert hash(parse(format_expression(tree))) == hash(tree)


@given(trees)
@settings(max_examples=300)
def test_reducing_first_does_not_change_the_value(tree: Expression) -> None:
    """At planning time some contexts are known; the runner evaluates the residual."""
    whole = outcome(tree, EARLY | LATE)

    reduced = reduce_expression(tree, EARLY)

    if isinstance(reduced, Residual):
        assert parse(reduced.text) == reduced.expression
        assert outcome(parse(reduced.text), EARLY | LATE) == whole
    else:
        assert _canonical(reduced.value) == whole


@given(trees)
def test_reducing_with_all_contexts_gives_the_value_or_an_error(tree: Expression) -> None:
    reduced = reduce_expression(tree, EARLY | LATE, FUNCTIONS)

    if isinstance(reduced, Residual):
        assert outcome(tree, EARLY | LATE) == "refused"


@given(templates)
@settings(max_examples=200)
def test_reducing_a_template_first_does_not_change_its_text(template: str) -> None:
    """Also if values look like expressions: the residual is parsed again, and must not contain new expressions."""
    early = EARLY | {"env": TRICKS}

    try:
        parse_template(template)
    except ExpressionSyntaxError:
        assume(False)  # two plain parts became the beginning of an expression
    reduced = reduce_template(template, early)

    result = _canonical(reduced.value) if isinstance(reduced, Resolved) else _interpolation(reduced.text, early | LATE)
    assert result == _interpolation(template, early | LATE)


def _interpolation(template: str, contexts: Mapping[str, Value]) -> str:
    try:
        return _canonical(interpolate(template, contexts, FUNCTIONS))
    except ExpressionError:
        return "refused"


@given(scraps)
@settings(max_examples=500)
def test_any_text_raises_only_expression_errors_with_a_column(text: str) -> None:
    for act in (_parsed, _interpolated, _conditional):
        try:
            act(text)
        except ExpressionError as refused:
            problem = refused.problem
            assert 0 <= problem.column <= len(text) + 1
            assert problem.found
            assert problem.expected


def _parsed(text: str) -> None:
    tree = parse(text)
    assert parse(format_expression(tree)) == tree
    for problem in check_expression(tree, ["github"], ["contains"]):
        assert 1 <= problem.column <= len(text)
    evaluate(tree, EARLY | LATE, FUNCTIONS)


def _interpolated(text: str) -> None:
    reduce_template(text, EARLY)
    interpolate(text, EARLY | LATE, FUNCTIONS)


def _conditional(text: str) -> None:
    evaluate(parse_condition(text), EARLY | LATE, FUNCTIONS)
