"""Good files are read as they are meant."""

from __future__ import annotations

import re

import pytest

from deltaci.pipeline import model
from deltaci.pipeline.parse import json_schema
from deltaci.pipeline.parse.printer import format_pipeline
from deltaci.pipeline.parse.problems import Position, position_within
from deltaci.pipeline.parse.reader import parse_pipeline
from deltaci.pipeline.parse.shapes import NOUNS, get_shape
from deltaci.pipeline.parse.validation_rules import WORKSTREAM_KINDS
from tests.pipeline.parse.good import ALL, OTHERS, on_the_page


def pipeline(text: str) -> model.Pipeline:
    """Parse a valid file."""
    found = parse_pipeline(text)
    assert found.pipeline is not None, "\n".join(map(str, found.problems))
    assert not found.problems
    return found.pipeline


@pytest.mark.parametrize("name", list(ALL))
def test_a_valid_file_has_no_problems_and_survives_formatting(name: str) -> None:
    """In short and in long notation."""
    first = pipeline(ALL[name])

    assert pipeline(format_pipeline(first)) == first


def test_short_forms_equal_their_long_forms() -> None:
    """Later stages see only the long forms."""
    short = "on: push\nconcurrency: g\njobs:\n  a: {steps: [x], runs-on: l, retry: 2, paths: p, services: {s: i}}\n"
    short += "  b: {steps: [x], needs: a, artifacts: f, validate: v}\n"
    long = "on: {push: {}}\nconcurrency: {group: g}\njobs:\n"
    long += "  a: {steps: [{run: x}], runs-on: [l], retry: {max_attempts: 2}, paths: [p], services: {s: {image: i}}}\n"
    long += "  b: {steps: [{run: x}], needs: [{job: a}], artifacts: [{path: f}], validate: [{run: v}]}\n"

    assert pipeline(short) == pipeline(long)


def test_an_absent_event_is_not_an_event_without_conditions() -> None:
    """`on: push` excludes pull requests; a file without `on` runs on both."""
    assert pipeline("on: push\njobs: {a: {steps: [x]}}").on == model.On(push=model.Push())
    assert pipeline("jobs: {a: {steps: [x]}}").on.pull_request is not None


def test_own_keys_win_over_merged_ones_and_the_first_merge_over_the_second() -> None:
    """As YAML's page about merge keys says."""
    assert pipeline(OTHERS["several merges"]).jobs["c"].image == "x"
    own = "jobs:\n  a: &a {image: x, steps: [x]}\n  b: {image: z, <<: *a}\n"
    assert pipeline(own).jobs["b"].image == "z"


def test_expressions_are_listed_with_their_positions() -> None:
    """The position of a failing expression can be reported."""
    text = "jobs:\n  a:\n    if: x == 'y'\n    steps:\n"
    text += "      - run: echo ${{ z }}\n        timeout-minutes: ${{ t }}\n      - b\n"
    found = parse_pipeline(text)

    assert [
        (expression.path, expression.text, expression.position, expression.is_condition)
        for expression in found.expressions
    ] == [
        (("jobs", "a", "if"), "x == 'y'", Position(3, 9), True),
        (("jobs", "a", "steps", 0, "run"), "echo ${{ z }}", Position(5, 14), False),
        (("jobs", "a", "steps", 0, "timeout-minutes"), "${{ t }}", Position(6, 26), False),
    ]


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("jobs:\n  a:\n    steps:\n      - run: echo ${{ z }}\n", (4, 19)),
        ("jobs: {a: {steps: ['echo ${{ z }}']}}", (1, 26)),
        ("jobs:\n  a:\n    steps:\n      - run: |\n\n          a\n            echo ${{ z }}\n", (7, 18)),
        ("jobs:\n  a:\n    steps:\n      - |\r\n          echo ${{ z }}\r\n", (5, 16)),
        ("jobs:\n  a:\n    steps:\n      - >\n        echo\n        ${{ z }}\n", (4, 9)),  # Folded: where it begins.
        ('jobs: {a: {steps: ["ec\\x68o ${{ z }}"]}}', (1, 20)),  # Not as it is written: where it begins.
    ],
)
def test_the_position_within_a_text_is_found(text: str, place: tuple[int, int]) -> None:
    """An invalid expression in a long command is reported at its position."""
    [expression] = parse_pipeline(text).expressions

    assert position_within(text, expression.position, expression.text, expression.text.index("${{")) == Position(*place)


def test_every_path_has_a_position() -> None:
    """An absent value has the position of its parent."""
    found = parse_pipeline("jobs:\n  a:\n    steps: [x, y]\n")

    assert found.position("jobs", "a", "steps", 1) == Position(3, 16)
    assert found.position("jobs", "a", "steps", 1, "name") == Position(3, 16)
    assert found.position("jobs", "a", "retry", "on", 0) == Position(3, 5)
    assert found.position("nothing") == Position(1, 1)


def test_every_key_has_an_example_on_the_page() -> None:
    """People read examples first."""
    examples = "\n".join(on_the_page())
    keys = {key for cls in NOUNS if issubclass(cls, model.FileStruct) for key in get_shape(cls).fields} - set(
        WORKSTREAM_KINDS
    )

    assert not [key for key in sorted(keys) if not re.search(rf"(?<![\w-]){key}:", examples)]


def test_every_key_has_a_description() -> None:
    """For the reference tables and for editors."""
    for part in json_schema.schema()["$defs"].values():
        for way in part.get("anyOf", [part]):
            assert all(field["description"] for field in way.get("properties", {}).values())
