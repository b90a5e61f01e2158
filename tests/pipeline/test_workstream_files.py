"""Workstream files: what good ones say, and where broken ones are broken; the same through the API's plain values."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from deltaci.pipeline.parse.reader import read as read_pipeline
from deltaci.pipeline.workstream.model import Merge, Workstream
from deltaci.pipeline.workstream.parse import is_workstream, parse_file, parse_values
from scripts.docgen.workstreams import document
from tests.pipeline.broken import Broken
from tests.pipeline.broken_workstreams import ALL, GOOD, task, top

ROOT = Path(__file__).parents[2]


def plain(text: str) -> Any:
    """A file as an editor sees it."""
    return YAML(typ="safe", pure=True).load(text)


@pytest.mark.parametrize("broken", ALL, ids=[broken.name for broken in ALL])
def test_a_broken_file_is_refused_where_it_is_broken(broken: Broken) -> None:
    """One problem, at its very column."""
    found = parse_file(broken.text)

    assert found.workstream is None
    problem = found.problems[0]
    assert (problem.line, problem.column) == (broken.line, broken.column), str(problem)
    assert not [part for part in broken.said if part not in str(problem)], str(problem)
    assert len(found.problems) == 1, [str(each) for each in found.problems]


def test_the_table_is_long_enough() -> None:
    """And every row has a name of its own."""
    assert len({broken.name for broken in ALL}) == len(ALL) >= 40


def test_all_problems_are_told_at_once() -> None:
    """In the order of the file."""
    text = task("retry: 0\nneeds: [nobody]\nworktree: mine") + "bsae: main\n"

    found = parse_file(text, "login.yml").problems

    assert [(each.line, each.column) for each in found] == [(5, 12), (6, 13), (7, 15), (8, 1)]
    assert str(found[3]) == "login.yml:8:1: the key 'bsae', which a workstream does not have; did you mean 'base'?"


def test_a_good_file_is_read() -> None:
    """Texts stand for lists, objects and rules where that is plain."""
    stream = parse_file(GOOD).workstream

    assert stream is not None
    assert [each.name for each in stream.tasks] == ["schema", "api", "notes"]
    assert stream.tasks[1].run == ("make api", "make docs")
    assert stream.tasks[1].retry is not None
    assert stream.tasks[1].retry.max_attempts == 3
    assert [rule.run for rule in stream.tasks[1].post_execution] == ["make test", None]
    assert stream.validation[0].run == "make check"
    assert stream.merge == Merge(method="squash")
    assert parse_file(top("merge: false\n")).workstream == msgspec.structs.replace(
        parse_file(top("")).workstream or stream, merge=False
    )


def test_a_workstream_survives_being_kept() -> None:
    """What is stored is plain values of the model."""
    for text in (GOOD, top("merge: false\n")):
        stream = parse_file(text).workstream
        assert msgspec.convert(msgspec.json.decode(msgspec.json.encode(stream)), Workstream) == stream


def test_plain_values_say_the_same() -> None:
    """Whoever sends JSON gets the same workstream as whoever wrote YAML."""
    assert parse_values(plain(GOOD)) == (parse_file(GOOD).workstream, ())


def test_a_problem_of_plain_values_names_its_path() -> None:
    """Every problem; there are no lines to name."""
    spec = {
        "workstream": "x",
        "tasks": [{"name": "a", "run": "make", "needs": ["b"]}, {"name": "a", "run": 3}, {"name": "c", "run": "x"}],
        "merge": {"methd": "squash"},
        "env": {"N": 10**40},
    }

    found, problems = parse_values(spec)

    assert found is None
    assert problems == (
        "tasks[1].name: the name 'a' a second time; another task has it",
        "tasks[1].run: the number 3; expected a command for the shell; put it in quotes: '3'",
        "merge.methd: the key 'methd', which 'merge' does not have; did you mean 'method'?",
    )


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ([], "spec: a list instead of keys"),
        (None, "spec: nothing"),
        ({"workstream": "x", "tasks": [[[[[[]]]]]]}, "tasks[0]: a list"),
        ({"workstream": "x" * 600_000}, "workstream: more than 524,288 characters"),
        ({"workstream": "x", "tasks": [0] * 60_000}, "tasks[49995]: more than 50,000 values"),
    ],
)
def test_plain_values_of_any_kind_are_refused_with_words(value: object, said: str) -> None:
    """Nothing that a program can send does more than that."""
    found, problems = parse_values(value)

    assert found is None
    assert problems[0].startswith(said)


def test_what_is_too_deep_is_not_followed() -> None:
    """However deep it is."""
    value: object = "x"
    for _ in range(500):
        value = {"env": [value]}

    found, [problem] = parse_values(value)

    assert found is None
    assert "more than 24 nested levels" in problem


def test_files_are_told_apart() -> None:
    """By their keys, even when they are broken; what has jobs is a pipeline."""
    for text in (GOOD, "tasks: [\n", '{"workstream": 1}', "# about\nworkstream: x\n"):
        assert is_workstream(text.encode())
    for text in ("", "jobs: {}\n", "tasks: 1\njobs: {}\n", "name: workstream\n", "env:\n  workstream: x\n"):
        assert not is_workstream(text.encode())
    [problem] = [each for each in read_pipeline(GOOD).problems if "'workstream'" in each.found]
    assert "deltaci ws create" in problem.expected


def test_editors_find_what_a_schema_can_find() -> None:
    """And have nothing against what is good."""
    jsonschema_rs = pytest.importorskip("jsonschema_rs")
    validator = jsonschema_rs.validator_for(document())

    assert validator.is_valid(plain(GOOD))
    assert validator.is_valid(plain(top("merge: false\n")))
    assert not [
        each.name
        for each in ALL
        if each.is_for_schema and isinstance(each.text, str) and validator.is_valid(plain(each.text))
    ]


def test_every_file_on_the_page_is_good() -> None:
    """Whoever copies one must not be refused."""
    files = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / "workstreams.md").read_text("utf-8"), re.DOTALL)

    assert len(files) >= 4
    for text in files:
        assert not [str(each) for each in parse_file(text).problems], text


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
def test_whatever_a_file_has_in_it_a_workstream_or_problems_come_out(pieces: list[str]) -> None:
    """At places that are there, and nothing else."""
    text = "".join(pieces)
    found = parse_file(text)

    assert (found.workstream is None) == any(not problem.is_warning for problem in found.problems)
    lines = text.removeprefix("\ufeff").split("\n")
    assert all(1 <= problem.line <= len(lines) for problem in found.problems)


@settings(max_examples=150)
@given(PLAIN)
def test_whatever_a_program_sends_a_workstream_or_problems_come_out(value: object) -> None:
    """Each with words."""
    found, problems = parse_values(value)

    assert (found is None) == bool(problems)
    assert all(": " in problem and problem.isprintable() for problem in problems)
