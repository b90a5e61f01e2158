"""Any text is parsed without an exception, and supported workflows can be printed and parsed as pipeline files."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltaci.pipeline import model
from deltaci.pipeline.github import composite_actions, parse_workflow
from deltaci.pipeline.github.builtin_actions import ACTIONS
from deltaci.pipeline.github.keys import KEY_RULES
from deltaci.pipeline.parse import reader
from deltaci.pipeline.parse.printer import format_pipeline
from tests.pipeline.github.workflows import FILE, job
from tests.support.budget import budget

PAGE = Path(__file__).parents[3] / "docs" / "github-workflows.md"
WORKFLOW = (
    "name: CI\non:\n  push: {branches: [main]}\n  schedule: [{cron: '0 3 * * *'}]\n"
    "  workflow_dispatch:\n    inputs: {a: {}}\n"
    "env: {A: '${{ secrets.X }}'}\njobs:\n  a:\n    runs-on: ${{ matrix.os }}\n    strategy:\n      matrix:\n"
    "        os: [ubuntu-latest, windows-latest]\n        include: [{os: macos-13, x: {y: 1}}]\n"
    "    services: {db: {image: a, options: --health-cmd 'b c'}}\n    steps:\n      - uses: actions/checkout@v4\n"
    "      - {run: 'make ${{ matrix.x.y }}', if: always(), shell: bash}\n      - uses: ./act\n        with: {a: b}\n"
)
ACTION = (
    "inputs: {a: {default: 1}}\noutputs: {o: {value: '${{ steps.x.outputs.o }}'}}\n"
    "runs:\n  using: composite\n  steps:\n    - {id: x, run: 'echo ${{ inputs.a }}', shell: bash}\n"
)
WORDS = [
    *{word for table in KEY_RULES.values() for word in table},
    *ACTIONS,
    "on",
    "true",
    "~",
    "3.10",
    "${{ matrix.os }}",
]
PIECES = st.sampled_from(
    [*WORDS, "${{", "}}", "'", '"', "[", "]", "{", "}", ":", "- ", "\n", "  ", "&a", "*a", "|", "!", "#"]
)
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.sampled_from(WORDS) | st.none() | st.booleans() | st.integers(-9, 9999) | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=4),
    max_leaves=12,
)


def flow_yaml(value: Any) -> str:
    """Return a value as flow YAML."""
    match value:
        case dict():
            return "{" + ", ".join(f"{flow_yaml(key)}: {flow_yaml(item)}" for key, item in value.items()) + "}"
        case list():
            return f"[{', '.join(map(flow_yaml, value))}]"
        case str():
            return "'" + value.replace("'", "''") + "'"
        case bool() | None:
            return {True: "true", False: "false", None: "~"}[value]
        case _:
            return repr(value)


def check_parsed(text: str) -> None:
    """Assert that positions are within the file, and that a supported pipeline can be printed and parsed again."""
    workflow = parse_workflow(text, FILE, {"act/action.yml": ACTION})

    lines = text.removeprefix("\ufeff").split("\n")
    for problem in workflow.problems:
        assert 1 <= problem.line <= len(lines)
        assert problem.found
    if workflow.pipeline is not None:
        assert not workflow.unsupported_jobs
        assert not [problem for problem in workflow.problems if not problem.is_warning]
    if workflow.supported_pipeline is not None:
        again = reader.parse_pipeline(format_pipeline(workflow.supported_pipeline))
        wrong = [str(problem) for problem in again.problems if not problem.is_warning]
        # On GitHub a missing property is null; our linter reports it.
        wrong = [text for text in wrong if "which does not exist" not in text and "which this job does not" not in text]
        assert wrong == [] or workflow.supported_pipeline.on == model.On()
        assert again.pipeline in (workflow.supported_pipeline, None)


@settings(max_examples=budget(60, 120), deadline=None)
@given(st.lists(PIECES | st.text(max_size=3), max_size=40).map("".join))
def test_any_text(text: str) -> None:
    """As a whole file."""
    check_parsed(text)


@settings(max_examples=budget(75, 150), deadline=None)
@given(st.integers(0, len(WORKFLOW)), st.integers(0, 12), st.lists(PIECES, max_size=3).map("".join))
def test_any_change_of_a_valid_workflow(at: int, removed: int, added: str) -> None:
    """Some text is replaced."""
    check_parsed(WORKFLOW[:at] + added + WORKFLOW[at + removed :])


@settings(max_examples=budget(75, 150), deadline=None)
@given(st.sampled_from([*KEY_RULES["a job"]]), VALUES)
def test_any_value_of_a_key_of_a_job(key: str, value: Any) -> None:
    """Including values of unexpected types."""
    check_parsed(job(f"{key}: {flow_yaml(value)}") if key != "steps" else job(steps=flow_yaml(value)))


@settings(max_examples=budget(40, 80), deadline=None)
@given(st.sampled_from([*KEY_RULES["the workflow"]]), VALUES)
def test_any_value_of_a_key_of_a_workflow(key: str, value: Any) -> None:
    """Including values of unexpected types."""
    rest = re.sub(rf"(?ms)^{key}:.*?(?=^\w|\Z)", "", WORKFLOW)
    check_parsed(f"{key}: {flow_yaml(value)}\n{rest}")


@settings(max_examples=budget(40, 80), deadline=None)
@given(VALUES)
def test_any_action_of_the_repository(value: Any) -> None:
    """With any value for its keys."""
    for part in ("inputs", "outputs", "runs"):
        action = re.sub(rf"(?ms)^{part}:.*?(?=^\w|\Z)", "", ACTION) + f"{part}: {flow_yaml(value)}\n"
        parse_workflow(WORKFLOW, FILE, {"act/action.yml": action})


def test_the_sample_workflow_is_supported() -> None:
    """Otherwise the tests above would be void."""
    assert parse_workflow(WORKFLOW, FILE, {"act/action.yml": ACTION}).pipeline is not None
    check_parsed(WORKFLOW)


def test_a_large_workflow_is_parsed_quickly() -> None:
    """Larger ones are refused by their number of values, not by time."""
    steps = "".join(f"      - {{run: 'echo {number} ${{{{ matrix.a }}}}'}}\n" for number in range(8))
    text = "on: push\njobs:\n" + "".join(
        f"  j{number}:\n    runs-on: ubuntu-latest\n    needs: [j0]\n    strategy: {{matrix: {{a: [1, 2, 3]}}}}\n"
        f"    steps:\n{steps}"
        for number in range(200)
    )

    workflow = parse_workflow(text, FILE)

    assert len(workflow.job_ids) == 200


def test_nested_uses_of_actions_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten levels of a hundred uses each would expand without bound."""
    monkeypatch.setattr(composite_actions, "MAX_COST", 500)
    files = {}
    for level in range(9):
        uses = f"      - uses: ./a{level + 1}\n" * 100
        files[f"a{level}/action.yml"] = f"runs:\n  using: composite\n  steps:\n{uses}"
    files["a9/action.yml"] = "runs: {using: composite, steps: [{run: a, shell: sh}]}"

    workflow = parse_workflow(job(steps="- uses: ./a0"), FILE, files)

    assert workflow.supported_pipeline is None
    assert any("more uses of actions than a workflow may have" in problem.found for problem in workflow.problems)
