"""Parsing of workstream files and of JSON values from the API: valid ones, and the problems of broken ones."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from deltaci.pipeline.parse.reader import parse_pipeline
from deltaci.pipeline.workstream.model import Merge, Workstream
from deltaci.pipeline.workstream.parse import is_workstream, parse_file, parse_values
from scripts.docgen.workstreams import document
from tests.pipeline.parse.broken import Broken
from tests.pipeline.workstream.broken_workstreams import ALL, GOOD, task, top

ROOT = Path(__file__).parents[3]


def plain(text: str) -> Any:
    """Return a YAML file as plain values."""
    return YAML(typ="safe", pure=True).load(text)


@pytest.mark.parametrize("broken", ALL, ids=[broken.name for broken in ALL])
def test_a_broken_file_is_refused_where_it_is_broken(broken: Broken) -> None:
    """With one problem, at the right column."""
    parsed = parse_file(broken.text)

    assert parsed.workstream is None
    problem = parsed.problems[0]
    assert (problem.line, problem.column) == (broken.line, broken.column), str(problem)
    assert not [part for part in broken.said if part not in str(problem)], str(problem)
    assert len(parsed.problems) == 1, [str(problem) for problem in parsed.problems]


def test_the_table_is_long_enough() -> None:
    """And every row has a unique name."""
    assert len({broken.name for broken in ALL}) == len(ALL) >= 40


def test_all_problems_are_reported_at_once() -> None:
    """In the order of the file."""
    text = task("retry: 0\nneeds: [nobody]\nworktree: mine") + "bsae: main\n"

    problems = parse_file(text, "login.yml").problems

    assert [(problem.line, problem.column) for problem in problems] == [(5, 12), (6, 13), (7, 15), (8, 1)]
    assert str(problems[3]) == "login.yml:8:1: the key 'bsae', which a workstream does not have; did you mean 'base'?"


def test_a_valid_file_is_parsed() -> None:
    """Texts may stand for lists, objects and rules."""
    stream = parse_file(GOOD).workstream

    assert stream is not None
    assert [task.name for task in stream.tasks] == ["schema", "api", "notes"]
    assert stream.tasks[1].run == ("make api", "make docs")
    assert stream.tasks[1].retry is not None
    assert stream.tasks[1].retry.max_attempts == 3
    assert [rule.run for rule in stream.tasks[1].post_execution] == ["make test", None]
    assert stream.validation[0].run == "make check"
    assert stream.merge == Merge(method="squash")
    assert parse_file(top("merge: false\n")).workstream == msgspec.structs.replace(
        parse_file(top("")).workstream or stream, merge=False
    )


def test_a_workstream_survives_storage() -> None:
    """It is stored as JSON."""
    for text in (GOOD, top("merge: false\n")):
        stream = parse_file(text).workstream
        assert msgspec.convert(msgspec.json.decode(msgspec.json.encode(stream)), Workstream) == stream


def test_json_values_parse_to_the_same_workstream() -> None:
    """JSON and YAML give the same workstream."""
    assert parse_values(plain(GOOD)) == (parse_file(GOOD).workstream, ())


def test_a_problem_of_json_values_names_its_path() -> None:
    """Instead of a line."""
    spec = {
        "workstream": "x",
        "tasks": [{"name": "a", "run": "make", "needs": ["b"]}, {"name": "a", "run": 3}, {"name": "c", "run": "x"}],
        "merge": {"methd": "squash"},
        "env": {"N": 10**40},
    }

    workstream, problems = parse_values(spec)

    assert workstream is None
    assert problems == (
        "tasks[1].name: the name 'a' a second time; another task has it",
        "tasks[1].run: the number 3; expected a command for the shell; put it in quotes: '3'",
        "merge.methd: the key 'methd', which 'merge' does not have; did you mean 'method'?",
    )


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([], "spec: a list instead of keys"),
        (None, "spec: nothing"),
        ({"workstream": "x", "tasks": [[[[[[]]]]]]}, "tasks[0]: a list"),
        ({"workstream": "x" * 600_000}, "workstream: more than 524,288 characters"),
        ({"workstream": "x", "tasks": [0] * 60_000}, "tasks[49995]: more than 50,000 values"),
    ],
)
def test_invalid_json_values_are_refused_with_a_message(value: object, message: str) -> None:
    """No value raises another exception."""
    workstream, problems = parse_values(value)

    assert workstream is None
    assert problems[0].startswith(message)


def test_nested_json_values_are_limited() -> None:
    """Regardless of their depth."""
    value: object = "x"
    for _ in range(500):
        value = {"env": [value]}

    workstream, [problem] = parse_values(value)

    assert workstream is None
    assert "more than 24 nested levels" in problem


def test_workstream_files_are_recognized_by_their_keys() -> None:
    """Even if they are invalid; a file with jobs is a pipeline."""
    for text in (GOOD, "tasks: [\n", '{"workstream": 1}', "# about\nworkstream: x\n"):
        assert is_workstream(text.encode())
    for text in ("", "jobs: {}\n", "tasks: 1\njobs: {}\n", "name: workstream\n", "env:\n  workstream: x\n"):
        assert not is_workstream(text.encode())
    [problem] = [problem for problem in parse_pipeline(GOOD).problems if "'workstream'" in problem.found]
    assert "deltaci ws create" in problem.expected


def test_the_schema_finds_what_a_schema_can_find() -> None:
    """And accepts valid files."""
    jsonschema_rs = pytest.importorskip("jsonschema_rs")
    validator = jsonschema_rs.validator_for(document())

    assert validator.is_valid(plain(GOOD))
    assert validator.is_valid(plain(top("merge: false\n")))
    assert not [
        broken.name
        for broken in ALL
        if broken.is_for_schema and isinstance(broken.text, str) and validator.is_valid(plain(broken.text))
    ]


def test_every_file_in_the_documentation_is_valid() -> None:
    """So that they can be copied."""
    files = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / "workstreams.md").read_text("utf-8"), re.DOTALL)

    assert len(files) >= 4
    for text in files:
        assert not [str(problem) for problem in parse_file(text).problems], text


PIECES = st.sampled_from(
    [
        *("workstream: x\n", "tasks:\n", "  - name: a\n", "    run: b\n", "    needs: ", "a", "merge: ", "false\n"),
        *(
            "validation: ",
            "within: ",
            "[",
            "]",
            "{",
            "}",
            ", ",
            ": ",
            "- ",
            "&a ",
            "*a",
            "<<: ",
            "\n",
            "  ",
            "${{ x }}",
        ),
        *("number: ", "min: 1", "!!str ", "'", '"', "|\n", "3.10", "\x00", "\u2028", "é", "\ufeff"),
    ]
)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from(["a", "make", "x"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                ["workstream", "tasks", "name", "run", "needs", "merge", "post_execution", "number", "zz", ""]
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=20,
)


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@example(["tasks: [{name: ", "a", ", run: b}]\nworkstream: x\nmerge: ", "false\n"])
@given(st.lists(PIECES, max_size=30))
def test_any_text_parses_to_a_workstream_or_problems(pieces: list[str]) -> None:
    """With positions within the file, and no exception."""
    text = "".join(pieces)
    parsed = parse_file(text)

    assert (parsed.workstream is None) == any(not problem.is_warning for problem in parsed.problems)
    lines = text.removeprefix("\ufeff").split("\n")
    assert all(1 <= problem.line <= len(lines) for problem in parsed.problems)


@settings(max_examples=150)
@given(PLAIN)
def test_any_json_value_parses_to_a_workstream_or_problems(value: object) -> None:
    """Each problem has a printable message."""
    workstream, problems = parse_values(value)

    assert (workstream is None) == bool(problems)
    assert all(": " in problem and problem.isprintable() for problem in problems)
