"""The functions of the language, one table each; functions of files and job status come from the caller."""

from collections.abc import Sequence

import pytest

from deltaci.pipeline.expressions import EvaluationError, Value, evaluate, parse

CONTEXTS: dict[str, Value] = {
    "list": ["push", "Pull_Request", 3, None, True],
    "labels": [{"name": "bug"}, {"name": "help wanted"}],
    "object": {"one": 1, "two": ["a", {}], "three": {"x": None, "y": [], "z": False}},
    "mixed": [None, True, 123.456, "abc", [], ["def"], {}],
}


def value(expression: str) -> Value:
    return evaluate(parse(expression), CONTEXTS)


SEARCHES: list[tuple[str, bool]] = [
    ("contains('Hello world', 'llo')", True),
    ("contains('Hello world', 'LLO')", True),
    ("contains('Hello world', '')", True),
    ("contains('12345', 34)", True),
    ("contains(null, '')", True),
    ("contains('true story', true)", True),
    ("contains('Array', list)", False),
    ("contains(list, 'PUSH')", True),
    ("contains(list, 'pus')", False),
    ("contains(list, '3')", True),
    ("contains(list, 0)", True),
    ("contains(list, 4)", False),
    ("contains(labels.*.name, 'bug')", True),
    ("contains(labels, labels[0])", True),
    ("contains(object, 'one')", False),
    ("contains(fromJSON('[\"push\", \"tag\"]'), 'tag')", True),
    ("contains(fromJSON('[]'), '')", False),
    ("startsWith('Hello world', 'HE')", True),
    ("startsWith('Hello world', 'e')", False),
    ("startsWith('Hello', '')", True),
    ("startsWith(1234, 12)", True),
    ("startsWith(list, 'A')", False),
    ("endsWith('Hello world', 'LD')", True),
    ("endsWith('Hello world', 'l')", False),
    ("endsWith(null, '')", True),
    ("endsWith('x', object)", False),
    ("STARTSWITH('a', 'a')", True),
]


@pytest.mark.parametrize(("expression", "expected"), SEARCHES)
def test_searches_ignore_case_and_convert_to_text_or_compare_each_item(expression: str, expected: bool) -> None:
    assert value(expression) is expected


FORMATS: list[tuple[str, str]] = [
    ("format('Hello {0} {1} {2}', 'Mona', 'the', 'Octocat')", "Hello Mona the Octocat"),
    ("format('{{Hello {0}!}}', 'Mona')", "{Hello Mona!}"),
    ("format('{0}{0}', 'a')", "aa"),
    ("format('{1}{0}', 'a', 'b')", "ba"),
    ("format('{{0}}', 'a')", "{0}"),
    ("format('{{{{0}}}}')", "{{0}}"),
    ("format('}}{{')", "}{"),
    ("format('{0}', '{1}', 'x')", "{1}"),
    ("format(null)", ""),
    ("format('')", ""),
    ("format('{0}|{1}|{2}', null, true, 1.50)", "|true|1.5"),
    ("format('{0} {1}', list, object)", "Array Object"),
]


@pytest.mark.parametrize(("expression", "expected"), FORMATS)
def test_format_inserts_arguments_by_number_and_unescapes_doubled_brackets(expression: str, expected: str) -> None:
    assert value(expression) == expected


JOINS: list[tuple[str, str]] = [
    ("join(labels.*.name, ', ')", "bug, help wanted"),
    ("join(mixed)", ",true,123.456,abc,Array,Array,Object"),
    ("join(list, null)", "pushPull_Request3true"),
    ("join(list, list)", "push,Pull_Request,3,,true"),
    ("join(fromJSON('[]'), '-')", ""),
    ("join('abc', '-')", "abc"),
    ("join(12.5)", "12.5"),
    ("join(null)", ""),
    ("join(object)", ""),
]


@pytest.mark.parametrize(("expression", "expected"), JOINS)
def test_join_separates_by_comma_by_default_and_returns_a_single_value(expression: str, expected: str) -> None:
    assert value(expression) == expected


PRINTED = """{
  "one": 1,
  "two": [
    "a",
    {}
  ],
  "three": {
    "x": null,
    "y": [],
    "z": false
  }
}"""

TO_JSON: list[tuple[str, str]] = [
    ("toJSON(object)", PRINTED),
    ("toJSON(null)", "null"),
    ("toJSON(true)", "true"),
    ("toJSON(-1234.5)", "-1234.5"),
    ("toJSON(-0)", "0"),
    ("toJSON('It''s \"quoted\" \\ é')", '"It\'s \\"quoted\\" \\\\ é"'),
    ("toJSON('a\nb\tc')", '"a\\nb\\tc"'),
    ("toJSON('\x01\u2028')", '"\\u0001\\u2028"'),
    ("toJSON(fromJSON('[]'))", "[]"),
    ("toJSON(labels.*.name)", '[\n  "bug",\n  "help wanted"\n]'),
]


@pytest.mark.parametrize(("expression", "expected"), TO_JSON)
def test_to_json_indents_by_two_spaces(expression: str, expected: str) -> None:
    assert value(expression) == expected


FROM_JSON: list[tuple[str, Value]] = [
    ("fromJSON('null')", None),
    ("fromJSON('true')", True),
    ("fromJSON(true)", True),
    ("fromJSON('-1234.5')", -1234.5),
    ("fromJSON('12345678901234567890')", 12345678901234567890.0),
    ('fromJSON(\' [1, "a", {"b": null}] \')', [1, "a", {"b": None}]),
    ("fromJSON(toJSON(object)).three.y", []),
    ("fromJSON('[3, 4]')[0] < 4", True),
]


@pytest.mark.parametrize(("expression", "expected"), FROM_JSON)
def test_from_json_keeps_types(expression: str, expected: Value) -> None:
    assert value(expression) == expected


CASES: list[tuple[str, Value]] = [
    ("case(true, 'first', 'last')", "first"),
    ("case(false, 'first', 'last')", "last"),
    ("case(false, 1, 2 > 1, 2, 3)", 2),
    ("case(true, '', 'last')", ""),
    ("case(true, 'first', missing)", "first"),
    ("case(false, missing, 'last')", "last"),
    ("case(true, 'first', missing, 'second', 'last')", "first"),
    ("CASE(1 == 1, list, null)[0]", "push"),
]


@pytest.mark.parametrize(("expression", "expected"), CASES)
def test_case_returns_the_value_of_the_first_true_condition_and_skips_the_rest(
    expression: str, expected: Value
) -> None:
    assert value(expression) == expected


FAILURES = [
    ("fromJSON('')", 1, "not JSON"),
    ("'' || fromJSON('{a: 1}')", 7, "not JSON"),
    ("fromJSON(list)", 1, "an array"),
    ("fromJSON('1e999')", 1, "not JSON"),
    ("case('true', 1, 2)", 6, "text as a condition"),
    ("case(null, 1, 2)", 6, "null as a condition"),
    ("format(list[0], 1) && format(object.two[0], 1) && format(toJSON(object))", 51, "a single '{'"),
    ("missing.ref", 1, "'missing'"),
    ("success()", 1, "'success'"),
]


@pytest.mark.parametrize(("expression", "column", "found"), FAILURES)
def test_an_evaluation_error_names_its_column(expression: str, column: int, found: str) -> None:
    with pytest.raises(EvaluationError) as refused:
        value(expression)

    assert refused.value.problem.column == column
    assert found in refused.value.problem.found


def test_functions_of_the_caller_receive_evaluated_arguments() -> None:
    """Functions that depend on files or on the job status are passed in, because the package is pure."""
    asked: list[Sequence[Value]] = []

    def hash_files(arguments: Sequence[Value]) -> Value:
        asked.append(arguments)
        return "abc123"

    functions = {"hashFiles": hash_files, "failure": lambda _: True}

    assert evaluate(parse("HASHFILES('**/*.lock', list[0])"), CONTEXTS, functions) == "abc123"
    assert evaluate(parse("failure() && 'x'"), CONTEXTS, functions) == "x"
    assert asked == [["**/*.lock", "push"]]
