"""Conversion of supported workflows to pipelines."""

from __future__ import annotations

import pytest

from deltaci.pipeline import model
from deltaci.pipeline.change import Change
from deltaci.pipeline.expressions import interpolate
from deltaci.pipeline.github.converter import GITHUB_CONTEXT_KEYS
from deltaci.pipeline.parse.problems import Position
from deltaci.pipeline.planning.contexts import github_context
from tests.pipeline.github.workflows import first_step, job, messages, only_job, parsed

SERVICES = """
services:
  db:
    image: postgres:17
    env: {POSTGRES_PASSWORD: x, DEBUG: yes}
    ports: ['5432:5432', 80, 6379/tcp]
    options: >-
      --health-cmd "pg_isready -U me"
      --health-interval 10s
      --health-timeout=5s --health-retries 5
  cache: redis
"""


def test_a_small_workflow_converts_to_a_pipeline() -> None:
    """Jobs do not check out implicitly, may use the network, and have GitHub's default timeout."""
    workflow = parsed(
        "name: CI\non: [push, workflow_dispatch]\n" + job("name: All tests", "- run: make\n").split("\n", 1)[1]
    )

    assert workflow.pipeline is not None
    assert workflow.pipeline.name == "CI"
    assert workflow.pipeline.on == model.On(push=model.Push(), manual=model.Manual())
    assert workflow.pipeline.jobs["test"] == model.Job(
        name="All tests",
        runs_on=("linux",),
        checkout=False,
        network=True,
        timeout_minutes=360,
        defaults=model.Defaults(run=model.RunDefaults(shell="bash -e {0}")),
        steps=(model.Step(run="make"),),
    )
    assert workflow.pipeline == workflow.supported_pipeline
    assert (workflow.problems, workflow.unsupported_jobs, workflow.job_ids) == ((), {}, ("test",))


def test_a_job_with_an_environment_is_not_retried_by_default() -> None:
    """It deploys: only its author knows whether it can be repeated."""
    pipeline = parsed(job("environment: production")).pipeline

    assert pipeline is not None
    assert pipeline.jobs["test"].retry == model.Retry(max_attempts=1)


def test_positions_refer_to_the_workflow_file() -> None:
    """So that planning can report positions in the file."""
    workflow = parsed(job("if: github.ref == 'x'\nenv: {A: '${{ github.sha }}'}"))

    assert workflow.position("jobs", "test", "steps", 0, "run") == Position(8, 14)
    assert workflow.position("jobs", "test", "env", "A") == Position(6, 14)
    assert [(expression.path, expression.is_condition) for expression in workflow.expressions] == [
        (("jobs", "test", "if"), True),
        (("jobs", "test", "env", "A"), False),
    ]


@pytest.mark.parametrize(
    ("runs_on", "labels"),
    [
        ("ubuntu-latest", ("linux",)),
        ("ubuntu-24.04-arm", ("linux", "arm64")),
        ("macOS-14", ("macos",)),
        ("windows-2022", ("windows",)),
        ("self-hosted", ()),
        ("[self-hosted, Linux, X64, gpu]", ("linux", "x64", "gpu")),
        ("{group: big, labels: [ubuntu-latest-8-cores]}", ("linux",)),
        ("buildjet-4vcpu", ("buildjet-4vcpu",)),
        ("${{ 'ubuntu-22.04' }}", ("linux",)),
    ],
)
def test_runner_names_of_github_become_labels(runs_on: str, labels: tuple[str, ...]) -> None:
    """The prefix of the name tells the operating system."""
    assert only_job(job(f"runs-on: {runs_on}")).runs_on == labels


@pytest.mark.parametrize(
    ("os", "labels"),
    [
        ("ubuntu-latest", {"linux"}),
        ("Windows-2022", {"windows"}),
        ("macos-13", {"macos"}),
        ("ubuntu-24.04-arm", {"linux", "arm64"}),
        ("gpu", {"gpu"}),
    ],
)
def test_labels_that_depend_on_the_matrix_become_expressions(os: str, labels: set[str]) -> None:
    """The matrix keeps its values, because conditions compare them."""
    test = only_job(
        job(
            "runs-on: ${{ matrix.os }}\n"
            "strategy: {matrix: {os: [ubuntu-latest, Windows-2022, macos-13, ubuntu-24.04-arm, gpu]}}"
        )
    )

    assert {interpolate(label, {"matrix": {"os": os}}) for label in test.runs_on} == labels


def test_a_matrix_for_one_system_needs_no_expression() -> None:
    """Whatever the version."""
    test = only_job(job("runs-on: ubuntu-${{ matrix.v }}\nstrategy: {matrix: {v: [22.04, latest]}}"))

    assert test.runs_on == ("linux",)


def test_a_label_depends_only_on_the_axes_that_it_uses() -> None:
    """Other axes may be unknown."""
    keys = "strategy: {matrix: {os: [ubuntu-22.04], v: '${{ fromJSON(github.event.v) }}'}}"

    assert only_job(job("runs-on: ${{ matrix.os }}\n" + keys)).runs_on == ("linux",)
    assert len(only_job(job("runs-on: ${{ matrix.v }}\n" + keys)).runs_on) == 2


def test_the_default_shell_is_that_of_github() -> None:
    """bash -e; in containers sh -e; on Windows pwsh; where it depends on the matrix, an expression."""

    def shell(keys: str) -> str:
        return only_job(job(keys)).defaults.run.shell or ""

    mixed = shell("runs-on: ${{ matrix.os }}\nstrategy: {matrix: {os: [ubuntu-latest, windows-latest]}}")
    image = shell("container: ${{ matrix.image }}\nstrategy: {matrix: {include: [{image: alpine}, {image: }]}}")
    assert shell("runs-on: ubuntu-latest") == "bash -e {0}"
    assert shell("container: alpine") == "sh -e {0}"
    assert shell("runs-on: windows-latest") == "pwsh"
    assert interpolate(mixed, {"matrix": {"os": "windows-latest"}}) == "pwsh"
    assert interpolate(mixed, {"matrix": {"os": "ubuntu-latest"}}) == "bash -e {0}"
    assert interpolate(image, {"matrix": {"image": "alpine"}}) == "sh -e {0}"
    assert interpolate(image, {"matrix": {"image": ""}}) == "bash -e {0}"


def test_defaults_of_a_job_win_over_those_of_the_workflow() -> None:
    """Each key on its own."""
    text = "defaults: {run: {shell: bash, working-directory: a}}\n" + job("defaults: {run: {working-directory: b}}")

    assert only_job(text).defaults.run == model.RunDefaults(shell="bash", working_directory="b")


def test_a_matrix_is_read_as_on_github() -> None:
    """Numbers lose trailing zeros, with a warning; lists and objects are values; duplicates are removed."""
    text = job(
        "strategy:\n  fail-fast: false\n  max-parallel: 2\n  matrix:\n    v: [3.10, '3.10', 3.10, 2]\n    o: [{a: 1}]"
    )

    strategy = only_job(text).strategy

    assert strategy == model.Strategy(
        matrix=model.Matrix(axes={"v": (3.1, "3.10", 2), "o": ({"a": 1},)}), fail_fast=False, max_parallel=2
    )
    assert messages(text, notes=True) == [
        "9:13: the number 3.10, which is read as 3.1, as on GitHub; put it in quotes if it is a text: '3.10'",
        "9:27: the number 3.1 a second time; the repetition has no effect here",
        "9:27: the number 3.10, which is read as 3.1, as on GitHub; put it in quotes if it is a text: '3.10'",
    ]


def test_a_list_with_nested_expressions_becomes_one_expression() -> None:
    """The expression evaluates to the same list."""
    text = job(
        'strategy:\n  matrix:\n    c:\n      - {os: "it\'s {x}", skip: "${{ github.event_name == \'push\' }}"}\n'
        "      - {os: b, tag: 'v-${{ github.sha }}', n: }"
    )

    strategy = only_job(text).strategy

    assert strategy is not None
    assert isinstance(strategy.matrix, model.Matrix)
    axis = strategy.matrix.axes["c"]
    assert isinstance(axis, str)
    assert interpolate(axis, {"github": {"event_name": "push", "sha": "12"}}) == [
        {"os": "it's {x}", "skip": True},
        {"os": "b", "tag": "v-12", "n": None},
    ]


def test_a_matrix_may_be_an_expression() -> None:
    """If it is known when a run is planned."""
    written = "${{ fromJSON('{\"a\": [1]}') }}"

    strategy = only_job(job(f"strategy: {{matrix: '{written.replace(chr(39), chr(39) * 2)}'}}")).strategy

    assert strategy is not None
    assert strategy.matrix == written


def test_health_options_of_services_are_converted() -> None:
    """Only those options are supported."""
    assert only_job(job(SERVICES)).services == {
        "db": model.Service(
            image="postgres:17",
            env={"POSTGRES_PASSWORD": "x", "DEBUG": "yes"},
            ports=("5432:5432", 80, "6379"),
            health="pg_isready -U me",
        ),
        "cache": model.Service(image="redis"),
    }


def test_a_container_becomes_image_and_environment() -> None:
    """The job's own variables win."""
    test = only_job(job("container: {image: 'docker://alpine:3', env: {A: 1, B: 2}}\nenv: {B: 3, C: }"))

    assert (test.image, test.env) == ("alpine:3", {"A": 1, "B": 3, "C": ""})


def test_other_keys_of_a_job() -> None:
    """Needs, conditions, groups, outputs, and that it may fail."""
    test = only_job(
        job(
            "if: ${{ github.ref == 'x' }}\nconcurrency: {group: 'a-${{ github.ref }}', cancel-in-progress: true}\n"
            "continue-on-error: ${{ matrix.e }}\ntimeout-minutes: '5'\noutputs: {v: '${{ steps.a.outputs.v }}'}\n"
            "strategy: {matrix: {e: [true, false]}}",
        )
    )

    assert test.if_ == "${{ github.ref == 'x' }}"
    assert test.concurrency == model.Concurrency(group="a-${{ github.ref }}", cancel_in_progress=True)
    assert (test.allow_failure, test.timeout_minutes) == ("${{ matrix.e }}", 5)
    assert test.outputs == {"v": "${{ steps.a.outputs.v }}"}


@pytest.mark.parametrize(
    ("condition", "expected"),
    [("true", "true"), ("github.ref == 'a'", "github.ref == 'a'"), ("", None)],
)
def test_conditions_are_not_changed(condition: str, expected: str | None) -> None:
    """Also a literal boolean; an empty value is no condition."""
    assert only_job(job(f"if: {condition}")).if_ == expected


@pytest.mark.parametrize(
    ("condition", "expected"),
    [("${{ github.ref }} == 'a'", "true"), ("${{ failure() }} && github.ref", "always()")],
)
def test_a_condition_that_is_a_text_is_true_as_on_github(condition: str, expected: str) -> None:
    """With a warning, because it is probably a mistake."""
    text = job(steps=f"- run: make\n  if: {condition}")

    assert first_step(f"- run: make\n  if: {condition}").if_ == expected
    [note] = messages(text, notes=True)
    assert note.startswith("7:13: ${{ }} around a part of a condition")


def test_secrets_that_are_used_by_name_are_collected() -> None:
    """Also those of the workflow's `env`; the token of the forge is empty."""
    text = "env: {A: '${{ secrets.all }}'}\n" + job(
        steps="- run: make\n  env: {T: '${{ secrets.Deploy_Key }}', G: '${{ secrets.GITHUB_TOKEN || github.token }}'}"
    )

    assert only_job(text).secrets == ("ALL", "DEPLOY_KEY")
    assert [note.split(": ", 1)[1] for note in messages(text, notes=True)] == [
        "'secrets.GITHUB_TOKEN' is empty here; jobs get no token of the forge",
        "'github.token' is empty here; jobs get no token of the forge",
    ]


def test_an_unsupported_key_of_the_github_context_is_reported() -> None:
    """Otherwise it would silently be empty."""
    text = job(steps="- run: curl ${{ github.api_url }}/${{ github.sha }}")
    available = github_context(Change(event="push", commit="a"), workflow="x")

    [note] = messages(text, notes=True)
    assert note.startswith("6:23: 'github.api_url' is empty here; available: actor, ")
    assert set(available) <= set(GITHUB_CONTEXT_KEYS)


def test_all_keys_of_a_step_are_kept() -> None:
    """A name of several lines becomes one."""
    step = first_step(
        "- name: >\n    Run\n    it\n  id: a\n  if: always()\n  run: |\n    a\n    b\n"
        "  shell: sh\n  working-directory: d\n"
        "  timeout-minutes: 1.5\n  continue-on-error: true\n  env: {A-b: 1}"
    )

    assert step == model.Step(
        name="Run it", id="a", if_="always()", run="a\nb\n", shell="sh", working_directory="d",
        timeout_minutes=1.5, continue_on_error=True, env={"A-b": 1},
    )  # fmt: skip
