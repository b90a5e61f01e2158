"""Values of expressions, one table for each rule of GitHub's documentation."""

import math

import pytest

from deltaci.pipeline.expressions import Value, evaluate, is_truthy, parse
from deltaci.pipeline.expressions.values import to_text

LABELS: list[Value] = [{"name": "bug", "n": 1}, {"Name": "ci", "n": [2, 3]}, "no object", ["in a list"]]
CONTEXTS: dict[str, Value] = {
    "github": {"ref": "refs/heads/main", "event": {"labels": LABELS, "Number": 7}, "b-c_d": "dashed"},
    "fruits": {"one": {"eat": "apple"}, "two": {"eat": "beet"}, "three": {"cook": "yam"}},
    "list": ["a", "b", 3],
    "empty": {"list": [], "object": {}},
    "whole": 12,
    "words": {"true": 1, "null": 2, "NaN": 3, "format": 4},
}


def value(expression: str) -> Value:
    return evaluate(parse(expression), CONTEXTS)


def same(found: Value, expected: Value) -> bool:
    """Return whether two values are equal and of the same type; true is not 1, and NaN equals NaN."""
    if isinstance(found, float) and isinstance(expected, float) and math.isnan(expected):
        return math.isnan(found)
    return found == expected and isinstance(found, bool) == isinstance(expected, bool)


LITERALS: list[tuple[str, Value]] = [
    ("null", None),
    ("true", True),
    ("false", False),
    ("711", 711),
    ("-9.2", -9.2),
    ("+3", 3),
    (".5", 0.5),
    ("5.", 5),
    ("-.5", -0.5),
    ("0xff", 255),
    ("0xFF", 255),
    ("0o17", 15),
    ("-2.99e-2", -0.0299),
    ("1.2E+2", 120),
    ("NaN", math.nan),
    ("Infinity", math.inf),
    ("-Infinity", -math.inf),
    ("1e999", math.inf),
    ("''", ""),
    ("'Mona the Octocat'", "Mona the Octocat"),
    ("'It''s open source!'", "It's open source!"),
    ("''''", "'"),
    ("'''a'''", "'a'"),
    ("'}} {{ ${{'", "}} {{ ${{"),
    ("  \t\n 1 \n", 1),
]


@pytest.mark.parametrize(("expression", "expected"), LITERALS)
def test_a_literal_is_null_a_boolean_a_number_or_a_text_in_single_quotes(expression: str, expected: Value) -> None:
    assert same(value(expression), expected)


PROPERTIES: list[tuple[str, Value]] = [
    ("github.ref", "refs/heads/main"),
    ("github['ref']", "refs/heads/main"),
    ("github [ 'ref' ]", "refs/heads/main"),
    ("github . ref", "refs/heads/main"),
    ("GitHub.REF", "refs/heads/main"),
    ("github['Ref']", "refs/heads/main"),
    ("github.b-c_d", "dashed"),
    ("github.event.number", 7),
    ("github.event['num' && 'number']", 7),
    ("github.nothing", None),
    ("github.nothing.at.all", None),
    ("github.ref.length", None),
    ("github[github]", None),
    ("list[0]", "a"),
    ("list['1']", "b"),
    ("list[1.9]", "b"),
    ("list[true]", "b"),
    ("list[null]", "a"),
    ("list[-1]", None),
    ("list[3]", None),
    ("list['x']", None),
    ("list[Infinity]", None),
    ("list.a", None),
    ("(list)[2]", 3),
    ("('text')[0]", None),
    ("words.true", 1),
    ("words.null", 2),
    ("words.NaN", 3),
    ("words.format", 4),
    ("fromJSON('{\"one\": [1, 2]}').one[1]", 2),
    ("whole", 12),
]


@pytest.mark.parametrize(("expression", "expected"), PROPERTIES)
def test_property_names_ignore_case_and_missing_properties_are_null(expression: str, expected: Value) -> None:
    assert same(value(expression), expected)


FILTERS: list[tuple[str, Value]] = [
    ("list.*", ["a", "b", 3]),
    ("list[*]", ["a", "b", 3]),
    ("fruits.*.eat", ["apple", "beet"]),
    ("fruits.*['EAT']", ["apple", "beet"]),
    ("fruits.*.*", ["apple", "beet", "yam"]),
    ("github.event.labels.*.name", ["bug", "ci"]),
    ("github.event.labels.*.n", [1, [2, 3]]),
    ("github.event.labels.*.n.*", [2, 3]),
    ("github.event.labels.*[0]", ["in a list"]),
    ("github.event.labels.*.n[1]", [3]),
    ("(fruits.*)[0]", []),
    ("(fruits.*).eat", ["apple", "beet"]),
    ("github.ref.*", []),
    ("null == github.x.*", False),
    ("github.nothing.*.name", []),
    ("empty.list.*", []),
]


@pytest.mark.parametrize(("expression", "expected"), FILTERS)
def test_a_filter_returns_all_items_and_the_next_index_applies_to_each(expression: str, expected: Value) -> None:
    assert value(expression) == expected


EQUALITY: list[tuple[str, bool]] = [
    ("1 == 1.0", True),
    ("'a' == 'A'", True),
    ("'ß' == 'SS'", False),
    ("'ü' == 'Ü'", True),
    ("'ς' == 'Σ'", True),
    ("'\u0131' == 'I'", False),
    ("'İ' == 'i'", False),
    ("'\u017f' == 's'", False),
    ("true == 1", True),
    ("true == '1'", True),
    ("true == 'true'", False),
    ("false == ''", True),
    ("false == null", True),
    ("null == 0", True),
    ("null == ''", True),
    ("null == '0'", True),
    ("null == null", True),
    ("1 == '1'", True),
    ("1 == ' 1 '", True),
    ("255 == '0xff'", True),
    ("15 == '0o17'", True),
    ("100 == '1e2'", True),
    ("0 == ''", True),
    ("0 == 'a'", False),
    ("1 == '1_0'", False),
    ("1 == '१'", False),
    ("'1' == '1.0'", False),
    ("NaN == NaN", False),
    ("NaN != NaN", True),
    ("'NaN' == NaN", False),
    ("'Infinity' == Infinity", True),
    ("Infinity == 'infinity'", False),
    ("0 == -0", True),
    ("github.event == github.event", True),
    ("github.event == github.event.labels", False),
    ("github.event.labels == github.event.labels", True),
    ("list.* == list.*", False),
    ("fromJSON('[]') == fromJSON('[]')", False),
    ("list == 'Array'", False),
    ("list == 0", False),
    ("list == null", False),
    ("list != null", True),
    ("github.nothing == null", True),
]


@pytest.mark.parametrize(("expression", "expected"), EQUALITY)
def test_equality_is_loose_different_types_are_compared_as_numbers(expression: str, expected: bool) -> None:
    assert value(expression) is expected


ORDER: list[tuple[str, bool]] = [
    ("1 < 2", True),
    ("2 <= 2", True),
    ("2 > 1", True),
    ("1 >= 2", False),
    ("'a' < 'B'", True),
    ("'A' < '['", True),
    ("'a' < '['", True),
    ("'abc' <= 'ABC'", True),
    ("'10' < '9'", True),
    ("10 < '9'", False),
    ("false < true", True),
    ("true > null", True),
    ("null > -1", True),
    ("null <= null", True),
    ("1 < 'a'", False),
    ("1 > 'a'", False),
    ("NaN < 1", False),
    ("NaN >= NaN", False),
    ("list < 1", False),
    ("list > 1", False),
    ("list >= list", True),
    ("list < list", False),
    ("github <= list", False),
]


@pytest.mark.parametrize(("expression", "expected"), ORDER)
def test_order_is_of_numbers_or_of_two_texts_and_nan_is_never_in_order(expression: str, expected: bool) -> None:
    assert value(expression) is expected


OPERATORS: list[tuple[str, Value]] = [
    ("'a' && 'b'", "b"),
    ("'' && 'b'", ""),
    ("0 && missing", 0),
    ("null && missing", None),
    ("'a' || missing", "a"),
    ("'' || 'b'", "b"),
    ("'' || 0 || null", None),
    ("1 && 2 && 3", 3),
    ("1 && 0 && 3", 0),
    ("github.nothing || 'default'", "default"),
    ("list || 'x'", ["a", "b", 3]),
    ("!true", False),
    ("!''", True),
    ("!!'a'", True),
    ("!empty.list", False),
    ("!empty.object", False),
    ("!1 == 0", True),
    ("!(1 == 0)", True),
    ("1 < 2 == true", True),
    ("true == 1 < 2", True),
    ("3 > 2 > 1", False),
    ("1 == 1 == 1", True),
    ("2 == 2 == 2", False),
    ("true || false && false", True),
    ("(true || false) && false", False),
    ("false && true || true", True),
    ("1 == 2 || 3 == 3 && 'yes'", "yes"),
    ("true && 'yes' || 'no'", "yes"),
    ("!github.nothing && github.ref == 'refs/heads/main'", True),
]


@pytest.mark.parametrize(("expression", "expected"), OPERATORS)
def test_operators_have_github_precedence_and_logic_returns_an_operand(expression: str, expected: Value) -> None:
    assert same(value(expression), expected)


TRUTH: list[tuple[Value, bool]] = [
    (None, False),
    (False, False),
    (True, True),
    (0, False),
    (-0.0, False),
    (math.nan, False),
    (0.1, True),
    ("", False),
    ("0", True),
    ("false", True),
    ([], True),
    ({}, True),
]


@pytest.mark.parametrize(("given", "expected"), TRUTH)
def test_only_false_zero_nan_null_and_the_empty_text_are_falsy(given: Value, expected: bool) -> None:
    assert is_truthy(given) is expected


TEXTS: list[tuple[Value, str]] = [
    (None, ""),
    (True, "true"),
    (False, "false"),
    (0, "0"),
    (-0.0, "0"),
    (1.0, "1"),
    (-2.0, "-2"),
    (0.5, "0.5"),
    (123456.789, "123456.789"),
    (0.84551240822557006, "0.84551240822557"),
    (0.1 + 0.2, "0.3"),
    (1e14, "100000000000000"),
    (1e15, "1E+15"),
    (10**400, "Infinity"),
    (1.5e300, "1.5E+300"),
    (0.0001, "0.0001"),
    (0.00001, "1E-05"),
    (math.inf, "Infinity"),
    (-math.inf, "-Infinity"),
    (math.nan, "NaN"),
    ("as it is", "as it is"),
    ([1], "Array"),
    ((), "Array"),
    ({"a": 1}, "Object"),
]


@pytest.mark.parametrize(("given", "expected"), TEXTS)
def test_conversion_to_text(given: Value, expected: str) -> None:
    assert to_text(given) == expected
