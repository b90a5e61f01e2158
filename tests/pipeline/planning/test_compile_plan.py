"""Which jobs a plan has, what they wait for, and why the others are left out."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from deltaci.api.schemas import inputs as api_input
from deltaci.core.plan import plan_hash
from deltaci.pipeline import model
from deltaci.pipeline.change import Change
from deltaci.pipeline.expressions import format_expression, parse, uses_status_function
from deltaci.pipeline.parse.reader import parse_pipeline
from deltaci.pipeline.planning.compile import compile_pipeline
from deltaci.protocol.messages import JobSpec
from tests.pipeline.parse.good import ALL
from tests.pipeline.parse.models import pipelines
from tests.pipeline.planning.planned import PULL, PUSH, SOURCE, by_name, compiled, job, plan, problems, work


def left_out(text: str, **given: Any) -> dict[str, tuple[str, str]]:
    """Return code and reason of each excluded job."""
    return {each.name: (each.code, each.reason) for each in plan(text, **given).excluded}


# -- conditions


def test_a_job_with_a_false_condition_is_left_out_with_a_reason() -> None:
    """The reason has the values of the references."""
    text = "jobs:\n  a: {if: \"github.ref_name == 'old' && !inputs.x\", steps: [x]}\n  b: {steps: [x]}\n"
    text = "on: {push: {}, manual: {inputs: {x: {}}}}\n" + text

    assert left_out(text) == {
        "a": (
            "condition",
            "its condition is false: github.ref_name is 'main', inputs.x is not given "
            "(if: github.ref_name == 'old' && !inputs.x)",
        )
    }


@pytest.mark.parametrize(
    "written", ["needs.a.outputs.o && github.ref == 'x'", "!(needs.a.result || true)", "failure() && inputs.x"]
)
def test_one_operand_can_decide_a_condition_at_any_position(written: str) -> None:
    """A condition that is certainly false is not left to the runner."""
    text = "on: {push: {}, manual: {inputs: {x: {}}}}\njobs:\n  a: {steps: [x], outputs: {o: '1'}}\n"
    text += f'  test: {{needs: a, if: "{written}", steps: [x]}}\n'

    assert left_out(text)["test"][0] == "condition"


@pytest.mark.parametrize("written", ["true", "github.event_name == 'push'", "success()", "always()", "!failure()"])
def test_a_true_condition_is_omitted(written: str) -> None:
    """The runner has nothing to decide, because without needs nothing can have failed."""
    assert "condition" not in work(f'jobs: {{test: {{if: "{written}", steps: [x]}}}}')


def test_the_part_of_a_condition_that_depends_on_results_is_left_to_the_runner() -> None:
    """It contains success(), and parses to an equal expression."""
    text = "jobs:\n  a: {steps: [x], outputs: {o: '1'}}\n"
    text += "  test: {needs: a, if: \"needs.a.outputs.o == 'x' && github.ref_name == 'main'\", steps: [x]}\n"

    told = job(text)

    condition = told.spec.work["condition"]
    assert condition == "success() && needs.a.outputs.o == 'x'"
    assert format_expression(parse(condition)) == condition
    assert (told.spec.needs, told.spec.after) == (("a",), ())
    assert told.spec.work["needs"] == ["a"]


@pytest.mark.parametrize(
    ("written", "condition"),
    [
        ("always()", "always()"),
        ("failure()", "failure()"),
        ("!cancelled()", "!cancelled()"),
        ("always() && github.event_name == 'push'", "always()"),
        ("always() && needs.a.result == 'failure'", "always() && needs.a.result == 'failure'"),
        ("success() || failure()", "success() || failure()"),
        ("failure() || github.event_name == 'push'", "always()"),
        ("failure() && github.ref == 'x' || needs.a.result", "failure() && false || needs.a.result"),
        ("github.ref == 'x' && failure() || needs.a.result", "always() && needs.a.result"),
    ],
)
def test_a_job_with_a_status_function_waits_for_the_end_of_its_needs(written: str, condition: str | None) -> None:
    """The job starts however its needs end, and the runner evaluates the condition."""
    told = job(f'jobs:\n  a: {{steps: [x]}}\n  test: {{needs: a, if: "{written}", steps: [x]}}\n')

    assert (told.spec.needs, told.spec.after) == ((), ("a",))
    assert told.spec.work.get("condition") == condition


def test_a_job_whose_need_is_left_out_by_its_condition_is_left_out() -> None:
    """Unless the need is optional or the condition has a status function."""
    text = (
        "jobs:\n"
        "  a: {if: false, steps: [x]}\n"
        "  b: {needs: a, steps: [x]}\n"
        "  c: {needs: b, if: github.ref, steps: [x]}\n"
        "  d: {needs: {job: a, optional: true}, steps: [x]}\n"
        "  e: {needs: a, if: always(), steps: [x]}\n"
        "  f: {needs: a, if: success() || github.ref == 'x', steps: [x]}\n"
        "  g: {needs: a, if: \"failure() || needs.a.result == 'skipped'\", steps: [x]}\n"
        '  h: {needs: [a, d], if: "!failure() && !success()", steps: [x]}\n'
    )

    made = plan(text)

    assert [job_record.spec.name for job_record in made.jobs] == ["d", "e", "g", "h"]
    assert {name: code for name, (code, _) in left_out(text).items()} == {
        "a": "condition", "b": "need_left_out", "c": "need_left_out", "f": "condition",
    }  # fmt: skip
    assert left_out(text)["b"][1] == "it needs a, which is left out"
    assert all(not job_record.spec.needs for job_record in made.jobs)
    assert by_name(made)["h"].spec.after == ("d",)
    assert by_name(made)["h"].spec.work["condition"] == "!failure()"


def test_an_unaffected_need_counts_as_done_with_the_result_skipped() -> None:
    """Only expressions that read its result notice it."""
    text = (
        "jobs:\n"
        "  a: {paths: a, steps: [x]}\n"
        "  b: {paths: a, needs: a, steps: [x]}\n"
        "  c: {needs: b, steps: ['${{ needs.b.result }} ${{ needs.*.result }}']}\n"
        "  d: {needs: b, if: needs.b.result == 'success', steps: [x]}\n"
        "  e: {needs: [b, c], if: \"!failure() && needs.b.result == 'skipped'\", steps: [x]}\n"
    )

    made = plan(text, changed={"z"})

    assert [job_record.spec.name for job_record in made.jobs] == ["c", "e"]
    assert by_name(made)["c"].spec.needs == ()
    assert by_name(made)["c"].spec.work["needs"] == ["b"]  # The server knows no such job: it is skipped.
    assert by_name(made)["e"].spec.after == ("c",)
    assert left_out(text, changed={"z"})["d"] == (
        "condition", "its condition is false: needs.b.result is 'skipped' (if: needs.b.result == 'success')"
    )  # fmt: skip


def test_a_job_whose_need_may_be_skipped_requires_success() -> None:
    """This holds across approvals, too: nothing is deployed that was not built."""
    text = (
        "jobs:\n"
        "  plan: {steps: [x], outputs: {o: '1'}}\n"
        "  build: {needs: plan, if: needs.plan.outputs.o, steps: [x]}\n"
        "  gate: {needs: build, approval: {}}\n"
        "  deploy: {needs: gate, steps: [x]}\n"
        "  last: {needs: deploy, steps: [x]}\n"
        "  other: {needs: plan, steps: [x]}\n"
    )

    assert work(text, "deploy")["condition"] == "success()"
    assert work(text, "deploy")["needs"] == ["gate", "build"]
    assert work(text, "last")["condition"] == "success()"
    assert "condition" not in work(text, "other")
    assert job(text, "deploy").spec.needs == ("gate",)


def test_a_job_that_is_left_out_does_not_keep_its_needs() -> None:
    """Conditions are decided before the changed paths."""
    text = (
        "jobs:\n"
        "  build: {paths: src, steps: [x], outputs: {o: '1'}}\n"
        "  ship: {needs: build, if: github.event_name == 'pull_request', steps: ['${{ needs.build.outputs.o }}']}\n"
    )

    assert [job_record.spec.name for job_record in plan(text, changed={"a"}).jobs] == []
    assert [(job_record.spec.name, job_record.code) for job_record in plan(text, PULL, changed={"a"}).jobs] == [
        ("build", "needed"), ("ship", "no_paths"),
    ]  # fmt: skip


def test_artifacts_of_indirect_needs_keep_their_jobs() -> None:
    """A job may download artifacts of jobs that it needs only indirectly."""
    text = (
        "jobs:\n"
        "  build: {paths: src, steps: [x, {uses: upload-artifact, with: {path: a}}]}\n"
        "  check: {paths: src, needs: build, steps: [x]}\n"
        "  ship: {needs: check, steps: [{uses: download-artifact}]}\n"
    )

    made = plan(text, changed={"a"})

    assert [(job_record.spec.name, job_record.code) for job_record in made.jobs] == [
        ("build", "needed"),
        ("ship", "no_paths"),
    ]
    assert by_name(made)["ship"].spec.needs == ("build",)


# -- matrices


def test_the_jobs_of_a_matrix_form_a_family() -> None:
    """`max-parallel` orders them with `after`; their names are those of GitHub."""
    text = (
        "jobs:\n"
        "  test:\n    name: Tests on ${{ matrix.os }} ${{ strategy.job-index }} of ${{ strategy.job-total }}\n"
        "    strategy: {max-parallel: 2, matrix: {v: ['3.12', '3.13'], os: [linux, mac]}}\n    steps: [x]\n"
        "  all: {needs: test, if: always(), steps: ['${{ toJSON(needs) }}', '${{ needs.test.result }}']}\n"
        "  one: {strategy: {matrix: {a: [1]}}, steps: [x]}\n"
    )

    made = plan(text)
    names = ["test (3.12, linux)", "test (3.12, mac)", "test (3.13, linux)", "test (3.13, mac)"]

    assert [job_record.spec.name for job_record in made.jobs] == ["one (1)", *names, "all"]
    assert [by_name(made)[name].spec.after for name in names] == [(), (), (names[0],), (names[1],)]
    assert {
        (job_record.spec.family, job_record.spec.is_family_fail_fast)
        for job_record in made.jobs
        if job_record.job == "test"
    } == {("test", True)}
    assert by_name(made)["one (1)"].spec.family == "one"
    assert not by_name(made)["one (1)"].spec.is_family_fail_fast
    assert by_name(made)["all"].spec.after == tuple(names)
    assert by_name(made)["all"].spec.work["needs"] == names
    assert by_name(made)["all"].spec.work["condition"] == "always()"
    assert by_name(made)[names[3]].spec.work["name"] == "Tests on mac 3 of 4"
    assert (
        work("jobs: {test: {name: Unit, strategy: {matrix: {v: [1]}}, steps: [x]}}", "test (1)")["name"] == "Unit (1)"
    )
    assert by_name(made)[names[2]].matrix == {"v": "3.13", "os": "linux"}


def test_job_names_have_only_allowed_characters() -> None:
    """They remain unique."""
    values = ["a/b", "a#b", "ü", "x" * 150, "x" * 150 + "y", "  ", "a\nb"]
    text = f"jobs:\n  test:\n    strategy: {{matrix: {{a: {msgspec.json.encode(values).decode()}}}}}\n    steps: [x]\n"

    names = [job_record.spec.name for job_record in plan(text).jobs]

    assert len(set(names)) == len(values)
    for name in names:
        msgspec.convert(name, api_input.JobName)
    assert names[2] == "test (-)"
    assert names[0].startswith("test (a-b)-")


def test_a_matrix_may_use_known_contexts() -> None:
    """In axes, in rows, and as a whole."""
    text = (
        'on: {manual: {inputs: {os: {default: \'["a", "b"]\'}}}}\n'
        "jobs:\n"
        "  whole: {strategy: {matrix: '${{ fromJSON(vars.m) }}'}, steps: [x]}\n"
        "  axis: {strategy: {fail-fast: '${{ false }}', matrix: {os: '${{ fromJSON(inputs.os) }}'}}, steps: [x]}\n"
        "  cell:\n    strategy: {matrix: {os: ['${{ github.ref_name }}'], include: [{os: z, v: '${{ vars.v }}'}]}}\n"
        "    steps: [x]\n"
    )
    hand = replace(PUSH, event="manual")

    made = plan(text, hand, variables={"m": '{"v": [1, 2]}', "v": "w"})

    assert [job_record.spec.name for job_record in made.jobs] == [
        "axis (a)", "axis (b)", "cell (main)", "cell (z, w)", "whole (1)", "whole (2)",
    ]  # fmt: skip
    assert not by_name(made)["axis (a)"].spec.is_family_fail_fast


def test_a_matrix_entry_without_effect_is_a_warning() -> None:
    """The warning appears once, whether the parser or the planner finds it."""
    text = "jobs: {a: {strategy: {matrix: {v: [1], exclude: [{v: 2}]}}, steps: [x]}}"

    made = compiled(text)

    assert made.plan is not None
    assert [problem.is_warning for problem in made.problems] == [True]
    assert "has no effect" in str(made.problems[0])


# -- what was asked for


def test_requested_jobs_include_their_needs() -> None:
    """Changed paths do not matter, but conditions do."""
    text = (
        "jobs:\n"
        "  a: {paths: z, steps: [x]}\n"
        "  b: {needs: a, paths: z, strategy: {matrix: {v: [1, 2]}}, steps: [x]}\n"
        "  c: {steps: [x]}\n"
        "  d: {if: false, steps: [x]}\n"
    )

    made = plan(text, changed={"q"}, requested_jobs=["b"])

    assert [(job_record.spec.name, job_record.code) for job_record in made.jobs] == [
        ("a", "needed"), ("b (1)", "asked_for"), ("b (2)", "asked_for"),
    ]  # fmt: skip
    assert {each.name: each.code for each in made.excluded} == {"c": "not_asked_for", "d": "not_asked_for"}
    assert [job_record.spec.name for job_record in plan(text, changed=None, requested_jobs=["b (2)"]).jobs] == [
        "a",
        "b (2)",
    ]
    assert left_out(text, requested_jobs=["d"])["d"][0] == "condition"
    assert "there is no job 'e'" in problems(text, requested_jobs=["e"])[0]
    assert "did you mean 'build'?" in problems("jobs: {build: {steps: [x]}}", requested_jobs=["biuld"])[0]


def test_requested_axis_values_select_combinations() -> None:
    """Only jobs that have the axis are restricted."""
    text = (
        "jobs:\n"
        "  a: {strategy: {matrix: {os: [linux, mac], v: [1, 2]}}, steps: [x]}\n"
        "  b: {strategy: {matrix: {os: [mac]}}, steps: [x]}\n"
        "  c: {needs: [a, b], steps: [x]}\n"
    )

    made = plan(text, matrix={"os": ["linux"], "v": ["1", "2"]})

    assert [job_record.spec.name for job_record in made.jobs] == ["a (linux, 1)", "a (linux, 2)", "c"]
    assert [(each.name, each.code) for each in made.excluded] == [("b", "not_asked_for")]
    assert by_name(made)["c"].spec.needs == ("a (linux, 1)", "a (linux, 2)")
    assert "did you mean 'linux'?" in problems(text, matrix={"os": ["linx"]})[0]
    assert "no matrix has this axis" in problems(text, matrix={"x": ["1"]})[0]


# -- the whole


def test_the_hash_is_that_of_the_core() -> None:
    """People approve plans by this hash."""
    made = plan("fail-fast: true\n" + "jobs: {a: {steps: [x]}}")

    assert made.hash == plan_hash(
        [job_record.spec for job_record in made.jobs], is_fail_fast=True, timeout_seconds=6 * 3600
    )
    assert made.compared_with == ""
    assert plan("jobs: {a: {steps: [x]}}", changed=set()).compared_with == PUSH.before


def shuffled(value: Any, random: Any) -> Any:
    """The same, with the keys of every object in another order; axes of a matrix stay, as names follow from them."""
    if isinstance(value, dict):
        keys = list(value)
        if "matrix" not in value:
            random.shuffle(keys)
        return {key: shuffled(value[key], random) if key != "matrix" else value[key] for key in keys}
    if isinstance(value, list):
        return [shuffled(each, random) for each in value]
    return value


@given(st.sampled_from(sorted(ALL)), st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_the_order_of_keys_does_not_matter(name: str, random: Any) -> None:
    """Equal inputs give an equal plan with an equal hash."""
    found = parse_pipeline(ALL[name])
    assert found.pipeline is not None
    other = msgspec.convert(shuffled(msgspec.to_builtins(found.pipeline), random), model.Pipeline)
    variables = {"x": '{"a": [1, 2]}', "y": "2"}

    one, two = (
        compile_pipeline(each, PUSH, changed={"src/a", "web/b"}, source=SOURCE, variables=variables, file="f")
        for each in (found.pipeline, other)
    )

    assert one.plan is not None, one.problems
    assert two.plan is not None
    assert one.plan.hash == two.plan.hash
    assert one == two


def test_the_core_accepts_every_plan() -> None:
    """For all valid files."""
    for text in ALL.values():
        made = plan(text, variables={"x": '{"a": [1, 2]}', "y": "2"})
        for job_record in made.jobs:
            if job_record.spec.work is None:
                continue
            told = msgspec.convert(job_record.spec.work, JobSpec)
            for line in (told.condition, *(getattr(step, "condition", "") for step in told.steps)):
                # Whether it is read as it is or as people write it, it says the same.
                assert not line or line == "false" or uses_status_function(parse(line))


@given(pipelines(), st.sampled_from([PUSH, PULL, replace(PULL, is_fork=True), replace(PUSH, event="manual")]))
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
def test_any_pipeline_gives_a_plan_or_problems(pipeline: model.Pipeline, change: Change) -> None:
    """Nothing but problems prevents a plan, whatever the expressions evaluate to."""
    made = compile_pipeline(pipeline, change, changed={"src/a.py"}, source=SOURCE, variables={"a": "b"})

    assert (made.plan is None) == any(not problem.is_warning for problem in made.problems)
    for job_record in made.plan.jobs if made.plan is not None else ():
        msgspec.convert(job_record.spec.name, api_input.JobName)
        msgspec.convert(job_record.spec.work, JobSpec | None)
