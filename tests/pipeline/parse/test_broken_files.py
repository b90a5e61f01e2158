"""Whoever writes a wrong file is told where, what was found, what is expected, and what was probably meant."""

from __future__ import annotations

import pytest

from deltaci.core.text import edit_distance, nearest
from deltaci.pipeline.parse.problems import format_with_source
from deltaci.pipeline.parse.reader import parse_pipeline
from tests.pipeline.parse.broken import ALL, Broken, job, top


@pytest.mark.parametrize("broken", ALL, ids=[broken.name for broken in ALL])
def test_a_broken_file_is_refused_where_it_is_broken(broken: Broken) -> None:
    """The first problem is the one that is meant, at its very column."""
    found = parse_pipeline(broken.text)

    assert found.pipeline is None
    problem = found.problems[0]
    assert (problem.line, problem.column) == (broken.line, broken.column), str(problem)
    assert not [part for part in broken.said if part not in str(problem)], str(problem)
    assert len(found.problems) == 1, [str(each) for each in found.problems]


def test_the_table_is_long_enough() -> None:
    """And every row has a name of its own."""
    assert len({broken.name for broken in ALL}) == len(ALL) >= 40


def test_all_problems_are_told_at_once() -> None:
    """In the order of the file."""
    text = job("runs_on: linux\ntimeout-minutes: no\nneeds: [nobody]\nretry: 0") + "nmae: x\n"

    found = parse_pipeline(text, "ci.yml").problems

    assert [(each.line, each.column) for each in found] == [(4, 5), (5, 22), (6, 13), (7, 12), (8, 1)]
    assert str(found[0]) == "ci.yml:4:5: the key 'runs_on', which a job does not have; did you mean 'runs-on'?"


def test_a_problem_is_shown_with_its_line() -> None:
    """And a caret below the place."""
    text = job("runs_on: linux")
    [problem] = parse_pipeline(text).problems

    assert format_with_source(problem, text).splitlines()[1:] == ["  4 |     runs_on: linux", "    |     ^"]


def test_a_long_line_is_shown_around_the_place() -> None:
    """Nobody reads a thousand characters."""
    text = job(f"env: {{A: {'x' * 1500}, B: [1]}}")
    [problem] = parse_pipeline(text).problems

    _, line, caret = format_with_source(problem, text).splitlines()
    assert len(line) < 200
    assert line[caret.index("^")] == "["


def test_what_is_shown_cannot_reach_the_terminal() -> None:
    """A name may be anything in double quotes."""
    text = 'jobs:\n  "\\e[31mred":\n    steps: [x]\n    needs: "\\e[2J"\n'

    told = "\n".join(format_with_source(problem, text) for problem in parse_pipeline(text).problems)

    assert "\x1b" not in told
    assert "·[31mred" in told


def test_there_is_an_end_to_what_is_told() -> None:
    """A file with thousands of problems has a hundred for its reader, and is bad even if its warnings come first."""
    many = job("".join(f"key{number}: 1\n" for number in range(3000)))
    noisy = job("env:\n" + "".join(f"  A{number}: yes\n" for number in range(150)) + "nmae: x")

    assert len(parse_pipeline(many).problems) == 100
    assert parse_pipeline(noisy).pipeline is None
    assert any(not problem.is_warning for problem in parse_pipeline(noisy).problems)


def test_a_problem_of_an_anchor_is_told_once() -> None:
    """However often it is used."""
    text = "jobs:\n  a: &a\n    steps: [x]\n    nmae: 1\n  b: *a\n  c:\n    <<: *a\n"

    assert [problem.line for problem in parse_pipeline(text).problems] == [4]


@pytest.mark.parametrize(
    ("text", "place", "said"),
    [
        (job("env: {DEBUG: yes}"), (4, 18), "'yes' is a text here, but a boolean, true, for YAML 1.1 readers"),
        (job("strategy: {matrix: {a: [on, b]}}"), (4, 29), "put it in quotes, or write true"),
        (top("env: {A: off}\n"), (3, 10), "write false"),
    ],
)
def test_a_text_that_other_yaml_readers_take_as_boolean_is_a_warning(
    text: str, place: tuple[int, int], said: str
) -> None:
    """The file is good."""
    found = parse_pipeline(text)

    [warning] = found.problems
    assert found.pipeline is not None
    assert warning.is_warning
    assert (warning.line, warning.column) == place
    assert said in str(warning)


def test_the_nearest_word_is_a_near_one() -> None:
    """Better no advice than one that leads astray."""
    assert nearest("runs_on", ["runs-on", "run"]) == "runs-on"
    assert nearest("stpes", ["steps", "needs"]) == "steps"
    assert nearest("deploy", ["steps", "needs"]) == ""
    assert nearest("", ["a"]) == ""
    assert nearest("x" * 10_000, ["x"]) == ""
    assert edit_distance("abcd", "acbd") == 1
    assert edit_distance("", "abc") == 3
