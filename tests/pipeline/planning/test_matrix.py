"""Expansion of strategy.matrix: combinations, names and problems."""

from __future__ import annotations

import contextlib
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltaci.pipeline.planning import matrix
from deltaci.pipeline.planning.matrix import MatrixError, expand


def values(raw: object) -> list[dict[str, Any]]:
    return [dict(one.values) for one in expand("test", {"matrix": raw}).combinations]


def names(raw: object, job: str = "test") -> list[str]:
    return [one.name for one in expand(job, {"matrix": raw}).combinations]


def problems(strategy: object) -> list[str]:
    with pytest.raises(MatrixError) as refused:
        expand("test", strategy)
    return [str(problem) for problem in refused.value.problems]


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        ("x", ["strategy: found the text x; expected matrix, fail-fast, max-parallel"]),
        ({"matrx": {}}, ["matrx: is an unknown key; expected matrix, fail-fast or max-parallel"]),
        ({"fail-fast": "no"}, ["fail-fast: found the text no; expected true or false"]),
        ({"max-parallel": 0}, ["max-parallel: found the number 0; expected a whole number of at least 1"]),
        ({"max-parallel": True}, ["max-parallel: found true; expected a whole number of at least 1"]),
        ({"matrix": None}, ["matrix: found nothing; expected axes, each a list of values"]),
        ({"matrix": {}}, ["matrix: is empty; add an axis with values, or combinations in include, or remove it"]),
        (
            {"matrix": {"os": []}},
            ["matrix.os: has no values, so there would be no jobs; expected at least one"],
        ),
        ({"matrix": {"os": "linux"}}, ["matrix.os: found the text linux; expected a list of values"]),
        (
            {"matrix": {"o s": [1], "os": [1, "1", 1.0]}},
            [
                "matrix.o s: is not a valid axis name; expected letters, digits, '_' and '-', as in matrix.NAME",
                "matrix.os[2]: is the number 1.0 again, as in [0]; list each value once",
            ],
        ),
        ({"matrix": {"os": [1, float("nan")]}}, ["matrix.os[1]: found nan; expected a finite number"]),
        ({"matrix": {"os": [2**70]}}, ["matrix.os[0]: found a number that is too large; write it as text"]),
        ({"matrix": {"os": ["\ud800"]}}, ["matrix.os[0]: found half of a surrogate pair; expected text"]),
        (
            {"matrix": {"os": [1], "include": {}}},
            ["matrix.include: found names with values; expected a list of combinations"],
        ),
        (
            {"matrix": {"os": [1], "include": [{"a": 1}, {}, 5, {"a b": 1}, {"x": {1, 2}}]}},
            [
                "matrix.include[1]: is empty; expected names with values",
                "matrix.include[2]: found the number 5; expected names with values",
                "matrix.include[3].a b: is not a valid name; expected letters, digits, '_' and '-'",
                "matrix.include[4].x: found the set {1, 2}; "
                "expected text, a number, true or false, a list or names with values",
            ],
        ),
        (
            {"matrix": {"os": [1], "arch": [2], "exclude": [{"os": 1}, {"oss": 1}]}},
            ["matrix.exclude[1].oss: is not an axis; expected os or arch"],
        ),
        (
            {"matrix": {"os": [1], "exclude": [{"os": 1}]}},
            ["matrix.exclude: leaves out every combination, so there would be no jobs"],
        ),
        (
            {"matrix": {"include": [{"a": 1}, {"b": 1}, {"a": 1}]}},
            ["matrix.include[2]: is the same as include[0]; remove one of them"],
        ),
        ({"matrix": {"a": list(range(257))}}, ["matrix: has 257 combinations; at most 256"]),
        (
            {"matrix": {axis: list(range(90)) for axis in "abcdefgh"}},
            [f"matrix: has {90**8} combinations before exclude; at most 1024"],
        ),
        (
            {"matrix": {"a": [1], "include": [{"b": n} for n in range(257)]}},
            ["matrix.include: has 257 entries; at most 256"],
        ),
        (
            {"matrix": {"a": [list(range(10_001))]}},
            ["matrix.a[0]: is too large: all values of a matrix together have at most 10000 parts"],
        ),
        ({"matrix": {"a": [[[[[[[[[[1]]]]]]]]]]}}, ["matrix.a[0]: is more than 8 levels deep"]),
    ],
    ids=range(23),
)
def test_problems_have_their_path(strategy: object, expected: list[str]) -> None:
    assert problems(strategy) == expected


def test_a_value_that_contains_itself_is_rejected() -> None:
    endless: list[object] = []
    endless.append(endless)

    assert problems({"matrix": {"a": [endless]}}) == ["matrix.a[0]: is more than 8 levels deep"]


def test_combinations_follow_the_order_of_the_axes() -> None:
    made = values({"version": [10, 12], "os": ["linux", "mac"]})

    assert made == [
        {"version": 10, "os": "linux"},
        {"version": 10, "os": "mac"},
        {"version": 12, "os": "linux"},
        {"version": 12, "os": "mac"},
    ]
    assert [list(one) for one in made] == [["version", "os"]] * 4


def test_include_extends_or_adds_as_in_githubs_example() -> None:
    made = values(
        {
            "fruit": ["apple", "pear"],
            "animal": ["cat", "dog"],
            "include": [
                {"color": "green"},
                {"color": "pink", "animal": "cat"},
                {"fruit": "apple", "shape": "circle"},
                {"fruit": "banana"},
                {"fruit": "banana", "animal": "cat"},
            ],
        }
    )

    assert made == [
        {"fruit": "apple", "animal": "cat", "color": "pink", "shape": "circle"},
        {"fruit": "apple", "animal": "dog", "color": "green", "shape": "circle"},
        {"fruit": "pear", "animal": "cat", "color": "pink"},
        {"fruit": "pear", "animal": "dog", "color": "green"},
        {"fruit": "banana"},
        {"fruit": "banana", "animal": "cat"},
    ]


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ({"include": [{"a": 1}, {"b": 2}]}, [{"a": 1}, {"b": 2}]),
        ({"os": ["l", "w"], "include": [{"os": "w", "n": 6}]}, [{"os": "l"}, {"os": "w", "n": 6}]),
        ({"os": ["l", "w"], "include": [{"os": "m", "n": 6}]}, [{"os": "l"}, {"os": "w"}, {"os": "m", "n": 6}]),
        ({"os": ["l"], "include": [{"n": 1}, {"n": 2}]}, [{"os": "l", "n": 2}]),
        ({"os": ["l", "w"], "v": [1, 2], "exclude": [{"os": "w"}]}, [{"os": "l", "v": 1}, {"os": "l", "v": 2}]),
        ({"os": ["l", "w"], "exclude": [{"os": "w"}], "include": [{"os": "w"}]}, [{"os": "l"}, {"os": "w"}]),
        ({"os": ["l"], "exclude": [{"os": "l"}], "include": [{"n": 1}]}, [{"n": 1}]),
        ({"v": ["3.10", 3.1], "exclude": [{"v": 3.1}]}, [{"v": "3.10"}]),
        ({"v": [True, 1, "true"], "exclude": [{"v": 1}]}, [{"v": True}, {"v": "true"}]),
        ({"v": [None, ""], "exclude": [{"v": None}]}, [{"v": ""}]),
        (
            {"node": [{"v": 14}, {"v": 20, "env": "x"}], "exclude": [{"node": {"v": 20}}]},
            [{"node": {"v": 14}}],
        ),
        (
            {"node": [{"v": 14}, {"v": 20, "env": "x"}], "include": [{"node": {"v": 20}, "n": 1}]},
            [{"node": {"v": 14}}, {"node": {"v": 20, "env": "x"}, "n": 1}],
        ),
        ({"l": [[1, 2], [1]], "exclude": [{"l": [1]}]}, [{"l": [1, 2]}]),
    ],
)
def test_include_and_exclude(raw: object, expected: list[dict[str, Any]]) -> None:
    assert values(raw) == expected


def test_values_keep_their_types() -> None:
    made = values({"v": ["3.10", 3.1, 3, "3", True, None, {"a": [1, "1"]}]})

    assert [(type(one["v"]), one["v"]) for one in made] == [
        (str, "3.10"),
        (float, 3.1),
        (int, 3),
        (str, "3"),
        (bool, True),
        (type(None), None),
        (dict, {"a": [1, "1"]}),
    ]


def test_included_keys_follow_the_axes_and_large_numbers_keep_their_value() -> None:
    (made,) = values({"a": [1e300], "include": [{"z": 1, "b": 2}]})

    assert list(made.items()) == [("a", 1e300), ("z", 1), ("b", 2)]
    assert names({"a": [1e300]}) == ["test (1e300)"]


def test_an_entry_without_effect_gives_a_note() -> None:
    """The number 3.10 is 3.1, so an entry that names it excludes nothing: a well-known mistake."""
    made = expand("test", {"matrix": {"py": ["3.10", "3.11"], "exclude": [{"py": 3.10}], "include": [{"py": "3.11"}]}})

    assert [str(note) for note in made.notes] == [
        "matrix.exclude[0].py: the number 3.1 is not a value of py ('3.10' (text), '3.11' (text)), so it has no effect",
        "matrix.include[0]: is a combination that already exists, so this entry has no effect",
    ]


def test_fail_fast_and_max_parallel_are_in_the_expansion() -> None:
    plain = expand("test", None)
    said = expand("test", {"matrix": {"a": [1]}, "fail-fast": False, "max-parallel": 2})

    assert [(one.name, one.values) for one in plain.combinations] == [("test", {})]
    assert (plain.is_fail_fast, plain.max_parallel) == (True, None)
    assert (said.is_fail_fast, said.max_parallel) == (False, 2)


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ({"py": ["3.11"], "os": ["linux"]}, ["test (3.11, linux)"]),
        ({"v": [1.0, 2.5, True, False]}, ["test (1)", "test (2.5)", "test (true)", "test (false)"]),
        ({"v": [None, "x"]}, ["test", "test (x)"]),
        ({"n": [{"v": 14, "e": ["a", "b"]}]}, ["test (14, a, b)"]),
        ({"os": ["l"], "include": [{"n": 6}, {"os": "m", "n": 7}]}, ["test (l)", "test (m, 7)"]),
        ({"v": [" a\n\tb "]}, ["test (a b)"]),
    ],
)
def test_jobs_are_named_after_their_values(raw: object, expected: list[str]) -> None:
    assert names(raw) == expected


def test_equal_and_long_names_get_a_hash() -> None:
    equal = names({"v": [1, "1", "2"]})
    long = names({"v": ["x" * 300 + "a", "x" * 300 + "b"]})

    assert [name.partition(" #")[0] for name in equal] == ["test (1)", "test (1)", "test (2)"]
    assert equal[2] == "test (2)"
    assert [len(name) for name in long] == [100, 100]
    assert len({*equal, *long}) == 5
    assert names({"v": ["2", "1", 1]}) == [equal[2], equal[1], equal[0]]  # a mark never depends on the others


SCALARS = st.sampled_from([1, 2, 1.0, "1", "2", "3.10", 3.1, True, "true", None, "", "x" * 120])
PLAIN = st.one_of(SCALARS, st.dictionaries(st.sampled_from(["v", "w"]), SCALARS, min_size=1, max_size=2))
AXES = st.dictionaries(st.sampled_from("abc"), st.lists(PLAIN, min_size=1, max_size=3), max_size=3)
ENTRIES = st.lists(st.dictionaries(st.sampled_from("abcde"), SCALARS, min_size=1, max_size=3), max_size=4)


@settings(max_examples=200, deadline=None)
@given(AXES, ENTRIES, ENTRIES)
def test_names_are_unique_and_axes_keep_their_values_for_any_matrix(
    axes: dict[str, list[Any]], include: list[dict[str, Any]], exclude: list[dict[str, Any]]
) -> None:
    raw = {**axes, "include": include, "exclude": [entry for entry in exclude if set(entry) <= set(axes)]}
    try:
        made = expand("test", {"matrix": raw})
    except MatrixError as refused:
        assert all(problem.message for problem in refused.problems)  # noqa: PT017  # most are fine
        return
    every = [dict(zip(axes, each, strict=True)) for each in product(*axes.values())] if axes else []
    found = [one.name for one in made.combinations]

    assert len(set(found)) == len(found)
    assert all(len(name) <= matrix.MAX_NAME for name in found)
    assert made == expand("test", {"matrix": raw})
    for one in made.combinations:
        own = {key: value for key, value in one.values.items() if key in axes}
        assert own in every or one.values in include


def same(one: object, other: object) -> bool:
    """Return whether two values are equal and of the same type: number, text, boolean or null."""
    return one == other and isinstance(one, bool) == isinstance(other, bool)


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.sampled_from("abc"), st.lists(SCALARS, min_size=1, max_size=3), min_size=1), ENTRIES, ENTRIES)
def test_expansion_equals_a_literal_implementation_of_githubs_rules(
    axes: dict[str, list[Any]], include: list[dict[str, Any]], exclude: list[dict[str, Any]]
) -> None:
    exclude = [entry for entry in exclude if set(entry) <= set(axes)]
    every = [dict(zip(axes, each, strict=True)) for each in product(*axes.values())]
    originals = [one for one in every if not any(all(same(one[k], e[k]) for k in e) for e in exclude)]
    expected = [dict(one) for one in originals]
    alone = []
    for entry in include:
        is_added = False
        for original, whole in zip(originals, expected, strict=True):
            if all(same(original[key], value) for key, value in entry.items() if key in original):
                whole.update({key: value for key, value in entry.items() if key not in original})
                is_added = True
        if not is_added:
            alone.append(entry)

    with contextlib.suppress(MatrixError):  # values that are there twice, or none that is left
        made = values({**axes, "include": include, "exclude": exclude})
        assert made == expected + alone


ANYTHING = st.recursive(
    SCALARS | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["include", "exclude", "matrix", "a", "fail-fast"]), inner, max_size=3)
    ),
    max_leaves=12,
)


@settings(max_examples=200, deadline=None)
@given(ANYTHING)
def test_any_value_is_expanded_or_rejected(raw: object) -> None:
    for strategy in (raw, {"matrix": raw}):
        try:
            made = expand("test", strategy)
        except MatrixError as refused:
            assert refused.problems  # noqa: PT017  # either way is fine
        else:
            assert 1 <= len(made.combinations) <= matrix.MAX_COMBINATIONS
