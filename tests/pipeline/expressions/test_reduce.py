"""Partial evaluation: known parts are evaluated, and the residual later gives the same value."""

import pytest

from deltaci.pipeline.expressions import (
    ExpressionError,
    Function,
    Residual,
    ResidualText,
    Resolved,
    Value,
    context_names,
    evaluate,
    interpolate,
    parse,
    reduce_expression,
    reduce_template,
)
from deltaci.pipeline.expressions.limits import MAX_DEPTH
from deltaci.pipeline.expressions.reducer import MAX_EMBEDDED
from deltaci.pipeline.expressions.tree import And, Literal

KNOWN: dict[str, Value] = {
    "matrix": {"os": "linux", "n": 3, "list": ["a", "b"], "objects": [{"x": 1}], "none": None, "quote": "it's"},
    "env": {"LONG": "x" * (MAX_EMBEDDED + 1), "TRICK": "${{ steps.a }}", "DOLLAR": "$"},
}
LATER: dict[str, Value] = {
    "steps": {"a": "yes", "b": "", "key": "os", "index": 1, "name": "b"},
    "needs": {"build": {"result": "success", "outputs": {"n": "3"}}},
}

WHOLE: list[tuple[str, Value]] = [
    ("matrix.os == 'Linux'", True),
    ("matrix.none", None),
    ("matrix.list", ["a", "b"]),
    ("matrix.list.*", ["a", "b"]),
    ("false && steps.a", False),
    ("matrix.os || steps.a", "linux"),
    ("matrix.none && steps.a == 'x'", None),
    ("case(matrix.n == 3, 'three', steps.a, 'never', 'neither')", "three"),
    ("format('{0}-{1}', matrix.os, matrix.n)", "linux-3"),
    ("matrix.objects == matrix.objects", True),
]


@pytest.mark.parametrize(("expression", "expected"), WHOLE)
def test_an_expression_over_known_contexts_reduces_to_its_value(expression: str, expected: Value) -> None:
    assert reduce_expression(parse(expression), KNOWN) == Resolved(expected)


PARTLY: list[tuple[str, str]] = [
    ("steps.a", "steps.a"),
    ("steps.a == matrix.os", "steps.a == 'linux'"),
    ("true && steps.a", "steps.a"),
    ("matrix.os && steps.a && matrix.n && steps.b", "steps.a && steps.b"),
    ("steps.a && matrix.n", "steps.a && 3"),
    ("steps.a && matrix.none && steps.b", "steps.a && null"),
    ("matrix.none || steps.a || false || matrix.quote || steps.b", "steps.a || 'it''s'"),
    ("!(matrix.n == 3 && steps.a)", "!steps.a"),
    ("steps[matrix.os]", "steps.linux"),
    ("steps[format('{0} x', matrix.n)]", "steps['3 x']"),
    ("matrix.list[steps.index]", 'fromJSON(\'["a","b"]\')[steps.index]'),
    ("matrix.objects.*[steps.key]", "fromJSON('[{\"x\":1}]').*[steps.key]"),
    ("contains(matrix.list, steps.name)", 'contains(fromJSON(\'["a","b"]\'), steps.name)'),
    ("contains(matrix.objects, steps.a)", "contains(matrix.objects, steps.a)"),
    ("matrix.objects == steps.a", "matrix.objects == steps.a"),
    ("(steps.a && matrix.objects) == matrix.objects", "(steps.a && matrix.objects) == matrix.objects"),
    ("format('{0} {1}', matrix.os, steps.a)", "format('{0} {1}', 'linux', steps.a)"),
    ("case(matrix.n == 4, 1, steps.a == 'x', matrix.n, true, 5, steps.b)", "case(steps.a == 'x', 3, 5)"),
    ("case(false, 1, steps.a)", "steps.a"),
    ("success() && matrix.n == 3 && steps.a", "success() && steps.a"),
    ("success() && matrix.n == 4 && steps.a", "success() && false"),
    ("hashFiles(matrix.os, 'x')", "hashFiles('linux', 'x')"),
    ("steps.a == env.LONG", "steps.a == env.LONG"),
    ("steps.a && fromJSON('broken')", "steps.a && fromJSON('broken')"),
    ("steps.a && case(matrix.n, 1, 2)", "steps.a && case(matrix.n, 1, 2)"),
    ("steps.a && missing.x", "steps.a && missing.x"),
]


@pytest.mark.parametrize(("expression", "expected"), PARTLY)
def test_the_residual_contains_only_parts_that_affect_the_value(expression: str, expected: str) -> None:
    reduced = reduce_expression(parse(expression), KNOWN)

    assert isinstance(reduced, Residual)
    assert reduced.text == expected
    assert parse(reduced.text) == reduced.expression


@pytest.mark.parametrize("expression", [expression for expression, _ in WHOLE + PARTLY])
def test_the_residual_evaluates_to_the_original_value(expression: str) -> None:
    functions: dict[str, Function] = {
        "success": lambda _: True,
        "hashFiles": lambda arguments: f"hash of {list(arguments)}",
    }

    def later(text: str) -> Value:
        try:
            return evaluate(parse(text), KNOWN | LATER, functions)
        except ExpressionError as refused:
            return type(refused).__name__

    reduced = reduce_expression(parse(expression), KNOWN)

    assert (later(reduced.text) if isinstance(reduced, Residual) else reduced.value) == later(expression)


def test_a_known_object_with_an_unknown_index_is_embedded() -> None:
    """So that the later evaluation does not need the contexts of planning."""
    reduced = reduce_expression(parse("fromJSON(toJSON(matrix.objects))[0][steps.key]"), KNOWN)

    assert isinstance(reduced, Residual)
    assert reduced.text == "fromJSON('{\"x\":1}')[steps.key]"
    assert context_names(reduced.expression) == {"steps"}


def test_given_functions_are_evaluated_when_reducing() -> None:
    reduced = reduce_expression(parse("hashFiles('a') == steps.a"), KNOWN, {"hashfiles": lambda _: "abc"})

    assert isinstance(reduced, Residual)
    assert reduced.text == "'abc' == steps.a"


def test_a_part_that_would_become_too_deep_stays_as_written() -> None:
    written = "!" * (MAX_DEPTH - 3) + "matrix.list[steps.index]"

    reduced = reduce_expression(parse(written), KNOWN)

    assert isinstance(reduced, Residual)
    assert parse(reduced.text) == reduced.expression


def test_a_subtree_may_occur_twice() -> None:
    """Code that builds trees may use a subtree twice."""
    twice, between = parse("matrix.n"), parse("steps.a")

    assert reduce_expression(And((twice, between, twice)), KNOWN) == Residual(And((between, Literal(3.0))))


TEXTS: list[tuple[str, Resolved | ResidualText]] = [
    ("plain", Resolved("plain")),
    ("${{ matrix.list }}", Resolved(["a", "b"])),
    ("on ${{ matrix.os }}", Resolved("on linux")),
    ("${{ steps.a }}", ResidualText("${{ steps.a }}")),
    ("${{ matrix.os }}/${{ steps.a }}", ResidualText("linux/${{ steps.a }}")),
    ("${{ matrix.none }}${{ steps.a }}", ResidualText("${{ steps.a }}${{ '' }}")),
    ("${{ env.TRICK }} ${{ steps.b }}", ResidualText("${{ '${{ steps.a }} ' }}${{ steps.b }}")),
    ("${{ env.DOLLAR }}{{ x ${{ steps.b }}", ResidualText("${{ '${{ x ' }}${{ steps.b }}")),
    ("${{ env.DOLLAR }}${{ steps.b }}", ResidualText("$${{ steps.b }}")),
]


@pytest.mark.parametrize(("template", "expected"), TEXTS)
def test_a_reduced_template_never_turns_values_into_expressions(
    template: str, expected: Resolved | ResidualText
) -> None:
    """A value that looks like an expression must stay a value, otherwise its author could read secrets."""
    reduced = reduce_template(template, KNOWN)

    assert reduced == expected
    later = interpolate(reduced.text, LATER) if isinstance(reduced, ResidualText) else reduced.value
    assert later == interpolate(template, KNOWN | LATER)


def test_the_only_residual_part_of_a_template_is_still_converted_to_text() -> None:
    reduced = reduce_template("${{ matrix.none }}${{ steps.nothing }}", KNOWN)

    assert isinstance(reduced, ResidualText)
    assert interpolate(reduced.text, LATER) == ""


def test_a_long_value_that_looks_like_expressions_is_split_into_literals() -> None:
    trick = "${{ 'it''s' }}" * 5_000

    reduced = reduce_template("${{ env.x }}${{ steps.a }}", {"env": {"x": trick}})

    assert isinstance(reduced, ResidualText)
    assert interpolate(reduced.text, LATER) == trick + "yes"
