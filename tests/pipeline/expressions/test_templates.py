"""Templates and conditions."""

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
def test_expressions_are_replaced_by_values_that_are_not_parsed_again(template: str, expected: Value) -> None:
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
def test_a_template_of_one_expression_keeps_the_type_of_its_value(template: str, expected: Value) -> None:
    value = interpolate(template, CONTEXTS)

    assert value == expected
    assert type(value) is type(expected)


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
def test_a_syntax_error_has_the_column_within_the_whole_text(template: str, column: int, found: str) -> None:
    with pytest.raises(ExpressionSyntaxError) as refused:
        parse_template(template)

    assert (refused.value.problem.column, refused.value.problem.found) == (column, found)


def test_unknown_names_have_the_column_within_the_whole_text() -> None:
    template = parse_template("echo ${{ matrx.os }} ${{ 1 }} ${{ frmat('x') }}")

    problems = check_template(template, ["matrix"], ["format"])

    assert [(problem.column, problem.nearest) for problem in problems] == [(10, "'matrix'"), (35, "'format'")]


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
def test_a_condition_without_a_status_function_implies_success(written: str, expected: str) -> None:
    assert format_expression(parse_condition(written)) == expected


def test_a_status_function_is_found_anywhere_in_a_condition() -> None:
    assert uses_status_function(parse("a && !(b == success())"))
    assert not uses_status_function(parse("success.x && hashFiles('a')"))


@pytest.mark.parametrize(
    ("written", "column"), [(" a = b", 4), (" ${{ a = b }}", 8), ("${{ a }} && b", 1), ("${{ a", 1), ("  x${{ a }}", 3)]
)
def test_a_condition_that_would_always_be_true_is_refused(written: str, column: int) -> None:
    """`${{ }}` around a part makes the whole a non-empty text, which is always true."""
    with pytest.raises(ExpressionSyntaxError) as refused:
        parse_condition(written)

    assert refused.value.problem.column == column


def test_a_condition_is_true_if_its_value_is_truthy() -> None:
    status = {"success": lambda _: True, "failure": lambda _: False}

    assert evaluate_condition(parse_condition("matrix.os"), CONTEXTS, status)
    assert not evaluate_condition(parse_condition("matrix.none"), CONTEXTS, status)
    assert not evaluate_condition(parse_condition("failure() && matrix.os"), CONTEXTS, status)
