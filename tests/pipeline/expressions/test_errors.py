"""Problems that are found without evaluating: column, what was found, what was expected and the nearest word."""

import pytest

from deltaci.core.text import nearest
from deltaci.pipeline.expressions import (
    ExpressionProblem,
    ExpressionSyntaxError,
    check_expression,
    line_and_column,
    parse,
)
from deltaci.pipeline.expressions.errors import MAX_QUOTED_LENGTH, quote

OPERAND = "a value, a context or a function"

UNREADABLE: list[tuple[str, int, str, str, str]] = [
    ("", 1, "the end", OPERAND, ""),
    ("   ", 4, "the end", OPERAND, ""),
    ("a &&", 5, "the end", OPERAND, ""),
    ("a && && b", 6, "'&&'", OPERAND, ""),
    ("== a", 1, "'=='", OPERAND, ""),
    ("a b", 3, "'b'", "an operator or the end", ""),
    ("a and b", 3, "'and'", "an operator or the end", "'&&'"),
    ("a OR b", 3, "'OR'", "an operator or the end", "'||'"),
    ("not a", 5, "'a'", "an operator or the end", ""),
    ("a = b", 3, "'='", "an operator", "'=='"),
    ("a & b", 3, "'&'", "an operator", "'&&'"),
    ("a | b", 3, "'|'", "an operator", "'||'"),
    ("a === b", 5, "'='", "an operator", "'=='"),
    ('a == "main"', 6, "a double quote", "a text in single quotes, such as 'main'", ""),
    ("a == 'main", 6, "''main'", "a closing single quote", ""),
    ("'it''s", 1, "''it''s'", "a closing single quote", ""),
    ("(a", 3, "the end", "an operator or ')'", ""),
    ("a)", 2, "')'", "an operator or the end", ""),
    ("()", 2, "')'", OPERAND, ""),
    ("f(a", 4, "the end", "an operator, ',' or ')'", ""),
    ("f(a b)", 5, "'b'", "an operator, ',' or ')'", ""),
    ("f(a,)", 5, "')'", OPERAND, ""),
    ("f(,a)", 3, "','", OPERAND, ""),
    ("a[1", 4, "the end", "an operator or ']'", ""),
    ("a[]", 3, "']'", OPERAND, ""),
    ("a[*", 4, "the end", "an operator or ']'", ""),
    ("a[1)", 4, "')'", "an operator or ']'", ""),
    ("a.", 3, "the end", "the name of a property, or '*'", ""),
    ("a.1", 3, "'1'", "the name of a property, or '*'", ""),
    ("a.'b'", 3, "''b''", "the name of a property, or '*'", ""),
    ("a..b", 3, "'.'", "the name of a property, or '*'", ""),
    ("a.b@c", 3, "'b@c'", "a name of letters, digits, '-' and '_'", ""),
    ("é", 1, "'é'", "a name of letters, digits, '-' and '_'", ""),
    ("$x", 1, "'$x'", "a name of letters, digits, '-' and '_'", ""),
    ("*", 1, "'*'", OPERAND, ""),
    ("a * b", 3, "'*'", "an operator or the end", ""),
    ("1.2.3", 1, "'1.2.3'", "a number such as 12, -0.5, 0xff or 2.99e-2", ""),
    ("0xfg", 1, "'0xfg'", "a number such as 12, -0.5, 0xff or 2.99e-2", ""),
    ("1_000", 1, "'1_000'", "a number such as 12, -0.5, 0xff or 2.99e-2", ""),
    ("a - b", 3, "'-'", "a number such as 12, -0.5, 0xff or 2.99e-2", ""),
    ("'a'[0]", 4, "'['", "an operator or the end", ""),
    ("true.x", 5, "'.'", "an operator or the end", ""),
    ("'a'.x", 4, "'.'", "an operator or the end", ""),
    (".x", 1, "'.'", OPERAND, ""),
    ("1 .5", 3, "'.5'", "an operator or the end", ""),
    ("true()", 5, "'('", "an operator or the end", ""),
    ("a.b(1)", 4, "'('", "an operator or the end", ""),
]


@pytest.mark.parametrize(("expression", "column", "found", "expected", "hint"), UNREADABLE)
def test_a_syntax_error_names_its_column(expression: str, column: int, found: str, expected: str, hint: str) -> None:
    with pytest.raises(ExpressionSyntaxError) as refused:
        parse(expression)

    assert refused.value.problem == ExpressionProblem(column, found, expected, hint)


CONTEXTS = ("github", "matrix", "needs", "env")
FUNCTIONS = ("contains", "startsWith", "format", "case", "fromJSON", "hashFiles", "success", "failure")
CONTEXT_LIST = "env, github, matrix, needs"
FUNCTION_LIST = "case, contains, failure, format, fromJSON, hashFiles, startsWith, success"

WRONG: list[tuple[str, list[tuple[int, str, str, str]]]] = [
    ("GITHUB.ref == Matrix.os && startswith(needs.a, 'x')", []),
    ("githb.ref", [(1, "the context 'githb'", CONTEXT_LIST, "'github'")]),
    ("matrix.os == martix.os", [(14, "the context 'martix'", CONTEXT_LIST, "'matrix'")]),
    ("steps.x.outputs.y", [(1, "the context 'steps'", CONTEXT_LIST, "")]),
    ("True", [(1, "the context 'True'", CONTEXT_LIST, "'true'")]),
    ("always", [(1, "the context 'always'", CONTEXT_LIST, "")]),
    ("success", [(1, "'success'", "a context", "'success()'")]),
    ("startWith(env.a, 'b')", [(1, "the function 'startWith'", FUNCTION_LIST, "'startsWith'")]),
    ("always()", [(1, "the function 'always'", f"one that is available here: {FUNCTION_LIST}", "")]),
    ("toLower(env.a)", [(1, "the function 'toLower'", FUNCTION_LIST, "")]),
    ("contains(env.a)", [(1, "1 in contains()", "2 arguments", "")]),
    ("!contains(1, 2, 3)", [(2, "3 in contains()", "2 arguments", "")]),
    ("fromJSON()", [(1, "0 in fromJSON()", "1 argument", "")]),
    ("success('build')", [(1, "1 in success()", "0 arguments", "")]),
    ("hashFiles()", [(1, "0 in hashFiles()", "1 to 255 arguments", "")]),
    ("case(true, 1)", [(1, "2 in case()", "3 to 255 arguments", "")]),
    ("case(true, 1, 2, 3)", [(1, "4 in case()", "pairs of a condition and a value, and one last value", "")]),
    (
        "format('{0} {1}', 'a')",
        [(8, "'{1}' in a format with 1 argument after it", "an argument for every number, counting from {0}", "")],
    ),
    ("format('{0')", [(8, "a single '{' in a format", "{0} for an argument, {{ or }} for a bracket", "")]),
    ("format('{0}}', 1)", [(8, "a single '}' in a format", "{0} for an argument, {{ or }} for a bracket", "")]),
    ("format('{0:x}', 1)", [(8, "a single '{' in a format", "{0} for an argument, {{ or }} for a bracket", "")]),
    (
        "contains(evn.a) && nneds['x'].y",
        [
            (1, "1 in contains()", "2 arguments", ""),
            (10, "the context 'evn'", CONTEXT_LIST, "'env'"),
            (20, "the context 'nneds'", CONTEXT_LIST, "'needs'"),
        ],
    ),
]


@pytest.mark.parametrize(("expression", "expected"), WRONG)
def test_unknown_names_and_wrong_arguments_are_found_statically(
    expression: str, expected: list[tuple[int, str, str, str]]
) -> None:
    assert check_expression(parse(expression), CONTEXTS, FUNCTIONS) == [
        ExpressionProblem(*fields) for fields in expected
    ]


def test_a_missing_property_of_an_available_context_is_accepted() -> None:
    """It is null, as on GitHub: the properties of an event are not known in advance."""
    assert check_expression(parse("github.event.pull_request.draft"), CONTEXTS, FUNCTIONS) == []


def test_the_message_says_that_no_context_or_function_is_available() -> None:
    assert [str(problem) for problem in check_expression(parse("env.a || f()"), (), ())] == [
        "column 1: found the context 'env', expected no context, because none is available here",
        "column 10: found the function 'f', expected no function, because none is available here",
    ]


def test_an_error_message_is_one_line() -> None:
    with pytest.raises(ExpressionSyntaxError) as refused:
        parse("a = 'b'")

    assert str(refused.value) == "bad_spec: column 3: found '=', expected an operator; did you mean '=='?"


def test_a_column_of_a_multi_line_text_converts_to_line_and_column() -> None:
    written = "github.ref ==\n  'main' &&\n  x = 1\n"

    with pytest.raises(ExpressionSyntaxError) as refused:
        parse(written)

    assert line_and_column(written, refused.value.problem.column) == (3, 5)
    assert line_and_column(written, 1) == (1, 1)


def test_quoted_input_has_no_control_characters_and_is_shortened() -> None:
    assert quote("\x1b[31m") == "'�[31m'"
    assert len(quote("x" * 1000)) == MAX_QUOTED_LENGTH + 2


@pytest.mark.parametrize(
    ("word", "expected"),
    [("matix", "matrix"), ("MATRIX2", "matrix"), ("xirtam", ""), ("", ""), ("m", ""), ("x" * 10_000, "")],
)
def test_nearest_returns_a_similar_word_or_nothing(word: str, expected: str) -> None:
    assert nearest(word, ["matrix", "github"]) == expected


def test_equality_of_trees_ignores_columns() -> None:
    assert parse("a.b") == parse("  a.b")
    assert not parse("a.b") != parse("  a.b")  # noqa: SIM202
    assert parse("a.b") != parse("a.c")
