"""Texts with expressions in them, and conditions."""

import pytest

from deltaci.pipeline.expressions import (
    ExpressionSyntaxError,
    Value,
    check_template,
    evaluate_condition,
    format_expression,
    interpolate,
    parse,
    parse_condition,
    parse_template,
    uses_status_function,
)

CONTEXTS: dict[str, Value] = {
    "matrix": {"os": "linux", "versions": [1, 2], "on": True, "none": None, "n": 3.10},
    "env": {"TRICK": "${{ matrix.os }}"},
}

TEXTS: list[tuple[str, Value]] = [
    ("", ""),
    ("plain }} text {{ $ { '", "plain }} text {{ $ { '"),
    ("on ${{ matrix.os }}!", "on linux!"),
    ("${{ matrix.os }}-${{matrix.n}}", "linux-3.1"),
    ("${{ matrix.os }}${{ matrix.none }}", "linux"),
    ("[${{ matrix.none }}|${{ matrix.on }}|${{ matrix.versions }}|${{ matrix }}]", "[|true|Array|Object]"),
    ("${{ '}}' }} and ${{ 'it''s }}' }}", "}} and it's }}"),
    ("$${{ 1 }}", "$1"),
    ("${${{ 1 }}}", "${1}"),
    ("{{ x }}", "{{ x }}"),
    ("${{ 'a' }}\n", "a\n"),
    ("${{ env.TRICK }} stays", "${{ matrix.os }} stays"),
]


@pytest.mark.parametrize(("template", "expected"), TEXTS)
def test_every_expression_of_a_text_is_replaced_by_its_value_and_that_is_never_read_again(
    template: str, expected: Value
) -> None:
    assert interpolate(template, CONTEXTS) == expected


TYPED: list[tuple[str, Value]] = [
    ("${{ matrix.versions }}", [1, 2]),
    ('${{ fromJSON(\'{"os": ["linux"]}\') }}', {"os": ["linux"]}),
    ("${{ matrix.versions.* }}", [1, 2]),
    ("${{ true }}", True),
    ("${{matrix.none}}", None),
    ("${{ 1.5 }}", 1.5),
]


@pytest.mark.parametrize(("template", "expected"), TYPED)
def test_a_text_that_is_one_expression_keeps_the_type_of_its_value(template: str, expected: Value) -> None:
    found = interpolate(template, CONTEXTS)

    assert found == expected
    assert type(found) is type(expected)


BROKEN: list[tuple[str, int, str]] = [
    ("a ${{ matrix.os", 3, "'${{ matrix.os'"),
    ("a ${{ 'x }} b", 3, "'${{ 'x }} b'"),
    ("${{ }}", 4, "nothing"),
    ("${{}}", 4, "nothing"),
    ("a ${{ matrix. }}", 16 - 1, "the end"),
    ("1 ${{ 1 }} 2 ${{ 1 = 2 }}", 20, "'='"),
    ("${{ a ${{ b }}", 7, "'${{'"),
]


@pytest.mark.parametrize(("template", "column", "found"), BROKEN)
def test_a_mistake_has_the_column_of_the_whole_text(template: str, column: int, found: str) -> None:
    with pytest.raises(ExpressionSyntaxError) as refused:
        parse_template(template)

    assert (refused.value.problem.column, refused.value.problem.found) == (column, found)


def test_names_are_checked_with_the_column_of_the_whole_text() -> None:
    template = parse_template("echo ${{ matrx.os }} ${{ 1 }} ${{ frmat('x') }}")

    mistakes = check_template(template, ["matrix"], ["format"])

    assert [(problem.column, problem.nearest) for problem in mistakes] == [(10, "'matrix'"), (35, "'format'")]


CONDITIONS: list[tuple[str, str]] = [
    ("", "success()"),
    ("  ", "success()"),
    ("github.ref == 'x'", "success() && github.ref == 'x'"),
    ("${{ github.ref == 'x' }}", "success() && github.ref == 'x'"),
    ("  ${{ a || b }}\n", "success() && (a || b)"),
    ("a && b", "success() && (a && b)"),
    ("always()", "always()"),
    ("${{ !Cancelled() }}", "!Cancelled()"),
    ("a && (b || x[failure()].y)", "a && (b || x[failure()].y)"),
    ("contains('always()', a)", "success() && contains('always()', a)"),
    ("false", "success() && false"),
]


@pytest.mark.parametrize(("written", "expected"), CONDITIONS)
def test_a_condition_without_a_status_function_also_asks_for_success(written: str, expected: str) -> None:
    assert format_expression(parse_condition(written)) == expected


def test_a_status_function_is_mentioned_wherever_it_stands() -> None:
    assert uses_status_function(parse("a && !(b == success())"))
    assert not uses_status_function(parse("success.x && hashFiles('a')"))


@pytest.mark.parametrize(
    ("written", "column"), [(" a = b", 4), (" ${{ a = b }}", 8), ("${{ a }} && b", 1), ("${{ a", 1), ("  x${{ a }}", 3)]
)
def test_a_condition_that_would_always_be_true_is_refused(written: str, column: int) -> None:
    """Brackets around a part make a text of the whole, and a text is true whatever is in it."""
    with pytest.raises(ExpressionSyntaxError) as refused:
        parse_condition(written)

    assert refused.value.problem.column == column


def test_a_condition_holds_if_its_value_is_truthy() -> None:
    status = {"success": lambda _: True, "failure": lambda _: False}

    assert evaluate_condition(parse_condition("matrix.os"), CONTEXTS, status)
    assert not evaluate_condition(parse_condition("matrix.none"), CONTEXTS, status)
    assert not evaluate_condition(parse_condition("failure() && matrix.os"), CONTEXTS, status)
