"""Whatever a file has in it: a pipeline or problems come out, soon, and nothing else."""

from __future__ import annotations

import time

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from deltaci.pipeline import model
from deltaci.pipeline.parse.printer import format_pipeline
from deltaci.pipeline.parse.problems import format_with_source
from deltaci.pipeline.parse.reader import parse_pipeline
from tests.pipeline.parse import broken, good
from tests.pipeline.parse.models import pipelines
from tests.support.budget import budget

SOON_SECONDS = 20.0  # Of a busy machine; without limits some of these would take minutes.

SIGNS = [
    *"[]{},:-?&*!|>%@`'\"#~<=\\ \t\n",
    "\n  ",
    "\n    ",
    "- ",
    ": ",
    "&a ",
    "*a",
    "<<: ",
    "|\n",
    ">-\n",
    "---\n",
    "...\n",
]
WORDS = ["jobs:", "on:", "steps:", "run:", "needs:", "env:", "push", "test", "true", "null", "3.10", "010", "${{ x }}"]
ODD = [
    "!!str ",
    "!!int ",
    "%TAG ! x\n",
    "%YAML 1.9\n",
    "\\x",
    "\\UFFFFFFFF",
    "\x85",
    "\u2028",
    "\ufeff",
    "\ud800",
    "\x00",
    "é",
    "\r",
]
PIECES = st.sampled_from([*SIGNS, *WORDS, *ODD])


def check(content: str | bytes) -> None:
    """A pipeline, or problems at places that are there."""
    found = parse_pipeline(content)
    text = content.decode("utf-8", "replace") if isinstance(content, bytes) else content
    lines = text.removeprefix("\ufeff").split("\n")
    assert (found.pipeline is None) == any(not problem.is_warning for problem in found.problems)
    for problem in found.problems:
        assert 1 <= problem.line <= len(lines), problem
        assert 1 <= problem.column <= len(lines[problem.line - 1]) + 1, problem
        assert str(problem).isprintable()
        format_with_source(problem, text)


@given(st.lists(PIECES, max_size=30).map("".join) | st.text(max_size=60) | st.binary(max_size=60))
@example('"\\UFFFFFFFF"')
@example("%YAML 1.2.3\n---\na")
@example("%TAG ! tag:x,2000:\n---\n!a b")
@example("!!int x: 1")
@example("a: !<tag:yaml.org,2002:str> 1")
@settings(max_examples=budget(60, 150), deadline=None)
def test_any_text_is_read_or_refused(content: str | bytes) -> None:
    """No other exception leaves the reader."""
    check(content)


@given(st.sampled_from([*good.ALL.values(), *(each.text for each in broken.VALUES)]), st.data())
@settings(max_examples=budget(40, 100), deadline=None)
def test_any_file_with_a_planted_mistake_has_a_problem(text: str, data: st.DataObject) -> None:
    """A piece is put in, or some characters are cut out, somewhere."""
    at = data.draw(st.integers(0, len(text)))
    check(text[:at] + data.draw(PIECES) + text[at + data.draw(st.integers(0, 5)) :])


@given(pipelines())
@settings(max_examples=budget(25, 60), deadline=None, suppress_health_check=list(HealthCheck))
def test_any_formatted_pipeline_parses_to_an_equal_pipeline(pipeline: model.Pipeline) -> None:
    """Every key, every trap of YAML."""
    text = format_pipeline(pipeline)
    found = parse_pipeline(text)

    assert found.pipeline == pipeline, "\n".join([*map(str, found.problems), text])


@pytest.mark.parametrize(
    "text",
    [
        "[" * 200_000,
        "{" * 200_000,
        "[a," * 100_000,
        "{a: " * 100_000,
        "- " * 200_000,
        "? " * 200_000,
        "&a " * 100_000,
        "!" * 200_000,
        "'" + "x\n" * 200_000,
        "a: " + "x " * 200_000,
        "\n" * 500_000,
        "".join(f"k{number}: 1\n" for number in range(40_000)),
        "jobs:\n" + "".join(f"  j{number}: {{needs: k{number}}}\n" for number in range(12_000)),
        "jobs:\n" + "".join(f"  j{n}: {{needs: [j{(n + 1) % 9_000}], steps: [x]}}\n" for n in range(9_000)),
        "jobs: {a: {steps: [x], needs: [" + "b, " * 40_000 + "]}}",
        "jobs: {a: {strategy: {matrix: {" + "".join(f"a{n}: [1], " for n in range(9_000)) + "exclude: [{"
        + "".join(f"b{n}: 1, " for n in range(9_000)) + "}]}}, steps: [x]}}",
        "on: {schedule: '" + "0," * 200_000 + " * * * *'}",
        "a: &a {" + "".join(f"k{n}: 1, " for n in range(4_000)) + "}\n" + "b: {<<: *a}\n" * 200,
        "1" * 400_000,
        "jobs: {a: {if: '" + " " * 400_000 + "', steps: [x]}}",
        "jobs: {a: {steps: [" + "".join(f"{{id: a{n}, run: '${{{{ steps.a{n} }}}}'}}, " for n in range(4_000)) + "]}}",
        "env: {" + "".join(f"A{n}: '${{{{ secrets.S }}}}', " for n in range(4_000)) + "}\njobs:\n"
        + "".join(f"  j{n}: {{secrets: [S], steps: [x]}}\n" for n in range(1_500)),
        "jobs: {a: {steps: ['" + "${{ a" * 80_000 + "']}}",
        "jobs: {a: {steps: ['${{ " + "a[" * 100_000 + " }}']}}",
        "jobs: {a: {paths: [" + "'**/*a+', " * 9_000 + "], steps: [x]}}",
    ],
    ids=range(25),
)  # fmt: skip
def test_hostile_files_are_refused_soon(text: str) -> None:
    """Whatever they repeat."""
    before = time.process_time()

    check(text)

    assert time.process_time() - before < SOON_SECONDS
