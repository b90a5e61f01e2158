"""The hash of a job's inputs: what changes it, what does not, and which jobs have none."""

from __future__ import annotations

from typing import Any, Final

import pytest
from msgspec.structs import replace

from deltaci.core.results import JobResult, ResultKey, job_key
from deltaci.core.run import Origin
from deltaci.pipeline.change import Change
from deltaci.pipeline.planning.plan import Plan
from deltaci.pipeline.planning.reuse import CODES, leave_out_reused, result_keys
from deltaci.protocol.messages import Source
from tests.pipeline.planning.planned import PULL, PUSH, SOURCE, by_name, plan, work

DIGEST: Final = "@sha256:" + "1" * 64
CONTENTS: Final = {".deltaci.yml": "100644 blob 1", "api/a": "100644 blob 1", "docs/a": "100644 blob 1"}
ORIGIN: Final = Origin(project="shop", file=".deltaci.yml")
NOW: Final = 10**15


def pipeline(keys: str = "", step: str = "make") -> str:
    """Return a pipeline whose job `test` has these further keys."""
    return f"jobs:\n  test: {{paths: [api/**], steps: ['{step}']{keys and ', '}{keys}}}\n"


def inputs(text: str, change: Change = PUSH, name: str = "test", **options: Any) -> str:
    """Return the hash of the inputs of a job, an empty string if it is never reused."""
    return by_name(plan(text, change, **{"contents": CONTENTS, **options}))[name].spec.inputs


def reason(text: str, name: str = "test", change: Change = PUSH) -> str:
    return by_name(plan(text, change, contents=CONTENTS))[name].not_reusable


# -- jobs that are never reused


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ("reuse: false", "does not declare"),
        ("concurrency: production", "concurrency group"),
        ("secrets: [TOKEN]", "secrets"),
        ("image: 'node:20'", "without a digest"),
        (f"image: 'node{DIGEST}', services: {{db: 'postgres:16'}}", "without a digest"),
    ],
)
def test_a_job_whose_inputs_are_not_all_known_always_runs(keys: str, expected: str) -> None:
    """In doubt, a job runs; so does one that acts on the world outside."""
    text = pipeline(keys)

    assert inputs(text) == ""
    assert expected in reason(text)


def test_a_job_after_an_approval_always_runs() -> None:
    """Also after one that it needs indirectly: a person decided about this commit."""
    text = (
        "jobs:\n  gate: {approval: {}}\n  build: {needs: gate, paths: [api], steps: [x]}\n"
        "  test: {needs: build, paths: [api], steps: [x]}\n"
    )

    assert [inputs(text, name=name) for name in ("gate", "build", "test")] == ["", "", ""]
    assert "approval" in reason(text)


def test_a_job_with_a_condition_over_other_jobs_always_runs() -> None:
    """If it is skipped it succeeds, although it did nothing."""
    text = "jobs:\n  lint: {steps: [x]}\n  test: {needs: lint, if: always(), paths: [api], steps: [x]}\n"

    assert "condition" in reason(text)


def test_a_job_that_reads_outputs_of_one_that_always_runs_always_runs() -> None:
    """Its inputs contain outputs that nobody knows yet."""
    text = (
        "jobs:\n  build: {steps: [x], outputs: {v: '1'}}\n"
        "  test: {needs: build, paths: [api], steps: ['x ${{ needs.build.outputs.v }}']}\n"
    )

    assert "outputs or artifacts" in reason(text)


@pytest.mark.parametrize(
    "change",
    [
        Change(event="schedule", commit=PUSH.commit, branch="main"),
        Change(event="manual", commit=PUSH.commit, branch="main"),
        replace(PUSH, tag="v1", ref="refs/tags/v1", branch=""),
    ],
)
def test_runs_of_other_events_have_no_inputs(change: Change) -> None:
    """The planner passes no contents for them, so that nothing is left out."""
    assert inputs(pipeline(), change, contents=None) == ""


# -- what the hash depends on


@pytest.mark.parametrize(
    "other",
    [
        pipeline(step="make all"),
        pipeline("env: {A: '1'}"),
        pipeline("runs-on: gpu"),
        pipeline("executor: sandbox"),
        pipeline("timeout-minutes: 5"),
        pipeline("allow_failure: true"),
        pipeline(f"image: 'node{DIGEST}'"),
        pipeline("checkout: 0"),
        pipeline() + "env: {A: '1'}\n",
    ],
)
def test_another_definition_is_another_input(other: str) -> None:
    """After interpolation and with defaults."""
    assert inputs(other)
    assert inputs(other) != inputs(pipeline())


@pytest.mark.parametrize("path", ["api/a", "api/new", ".deltaci.yml", "poetry.lock", ".gitattributes"])
def test_a_file_that_affects_the_job_is_an_input(path: str) -> None:
    """New, changed or with another mode."""
    assert inputs(pipeline(), contents={**CONTENTS, path: "100644 blob 2"}) != inputs(pipeline())
    assert inputs(pipeline(), contents={**CONTENTS, path: "100755 blob 1"}) != inputs(pipeline())


def test_the_event_is_an_input() -> None:
    """A job may behave differently for a pull request."""
    assert inputs(pipeline(), PULL) not in ("", inputs(pipeline()))


@pytest.mark.parametrize(
    "step", ["make ${{ github.ref_name }}", "make $GITHUB_REF_NAME", "make ${{ toJSON(github) }}", "x $GITHUB_SHA"]
)
def test_a_context_that_the_job_reads_is_an_input(step: str) -> None:
    """By an expression, or as a variable that a command names."""
    other = replace(PUSH, ref="refs/heads/topic", branch="topic", commit="c" * 40)

    assert inputs(pipeline(step=step), other) != inputs(pipeline(step=step))


def test_values_of_the_matrix_and_inputs_of_needs_are_inputs() -> None:
    """A change of what a job needs is a change of the job."""
    text = (
        "jobs:\n  build: {paths: [docs], steps: [x]}\n"
        "  test: {needs: build, paths: [api], strategy: {matrix: {v: [1, 2]}}, steps: [x]}\n"
    )
    other = {**CONTENTS, "docs/a": "100644 blob 2"}

    assert inputs(text, name="test (1)") != inputs(text, name="test (2)")
    assert inputs(text, name="test (1)", contents=other) != inputs(text, name="test (1)")


def test_what_the_job_does_not_read_is_no_input() -> None:
    """Another commit, branch, person, or file outside of its paths."""
    other = replace(PUSH, commit="c" * 40, before="d" * 40, ref="refs/heads/topic", branch="topic", actor="bob")
    source = Source(url=SOURCE.url, commit="c" * 40, ref="refs/heads/topic")
    contents = {**CONTENTS, "docs/a": "100644 blob 2"}

    assert inputs(pipeline(), other, source=source, contents=contents, run_id="r2") == inputs(pipeline())


def test_with_reuse_true_every_file_is_an_input() -> None:
    """A job without paths can be reused only for an equal tree."""
    text = "jobs: {test: {steps: [x], reuse: true}}\n"

    assert inputs(text)
    assert inputs(text, contents={**CONTENTS, "docs/a": "100644 blob 2"}) != inputs(text)


def test_the_specification_for_the_runner_is_the_same_with_and_without_contents() -> None:
    """The variables of every step are sent whether or not the job reads them."""
    assert work(pipeline(), contents=CONTENTS) == work(pipeline())


# -- what a plan without reused jobs looks like

NEEDING: Final = """\
jobs:
  build: {paths: [api], steps: [x], strategy: {matrix: {v: [1, 2]}}}
  test: {paths: [api], steps: [x], needs: build}
  report: {needs: [build, test], if: "needs.build.result == 'success'", steps: [x]}
"""


def reused(text: str, *names: str, runs: dict[str, str] | None = None) -> Plan:
    """Return the plan of a file in which these jobs have succeeded with equal inputs, by default in run `r1`."""
    full = plan(text, contents=CONTENTS, changed={"other"})
    keys = {key.job: key for key in result_keys(full, "t", ORIGIN)}
    stored = [result(keys[job_key(full.file, name)], run=(runs or {}).get(name, "r1")) for name in names]
    return leave_out_reused(full, stored, NOW)


def result(key: ResultKey, run: str) -> JobResult:
    return JobResult(key, "SUCCEEDED", "c" * 40, run, NOW - 1)


def test_expressions_see_a_reused_need_as_a_success() -> None:
    """A condition over it holds as if the job had run."""
    made = reused(NEEDING, "build (1)", "build (2)", "test")

    [report] = made.jobs
    assert (report.spec.name, report.spec.needs) == ("report", ())
    assert report.spec.work["needs"] == []
    assert report.spec.work["contexts"]["needs"] == {
        "build": {"result": "success", "outputs": {}},
        "test": {"result": "success", "outputs": {}},
    }
    assert {job.code for job in made.excluded} <= set(CODES)


def test_single_jobs_of_a_matrix_are_reused() -> None:
    """The others still run, and the result of the matrix is theirs."""
    made = reused(NEEDING, "build (1)")

    assert [job.spec.name for job in made.jobs] == ["build (2)", "test", "report"]
    report = by_name(made)["report"].spec
    assert report.work["needs"] == ["build (2)", "test"]
    assert report.work["contexts"]["needs"] == {}


USING: Final = """\
jobs:
  build: {paths: [api], steps: [x], outputs: {v: '1'}}
  test: {paths: [docs], needs: build, steps: ['x ${{ needs.build.outputs.v }}']}
"""


def test_a_job_and_those_that_read_its_outputs_are_reused_only_together_and_from_one_run() -> None:
    """Equal inputs do not mean equal outputs."""
    together = reused(USING, "build", "test")
    apart = reused(USING, "build", "test", runs={"build": "r2"})
    single = [reused(USING, name) for name in ("build", "test")]

    assert together.jobs == ()
    assert [[job.spec.name for job in made.jobs] for made in (apart, *single)] == [["build", "test"]] * 3
