"""What a job of a file becomes for the core and for the runner."""

from __future__ import annotations

import re

import msgspec
import pytest
from msgspec.structs import replace

from deltaci.api.schemas import inputs as api_input
from deltaci.core.approvals import Gate
from deltaci.pipeline import model
from deltaci.pipeline.change import Change
from deltaci.pipeline.parse.reader import parse_pipeline
from deltaci.pipeline.planning.compile import compile_pipeline
from deltaci.protocol.messages import JobSpec, Source
from tests.pipeline.parse.good import on_the_page
from tests.pipeline.planning.planned import COMMIT, PULL, PUSH, SOURCE, by_name, compiled, job, plan, problems, work

FULL = next(text for text in on_the_page() if "pg_isready" in text)


def a_job(lines: str, more: str = "") -> str:
    """A pipeline with one job."""
    return "jobs:\n  test:\n    steps: [make]\n" + "".join(f"    {line}\n" for line in lines.splitlines()) + more


def test_the_job_specifications_are_valid_protocol_messages() -> None:
    """This holds for all examples of docs/pipelines.md."""
    for text in on_the_page():
        for job_record in plan(text).jobs:
            msgspec.convert(job_record.spec.name, api_input.JobName)
            if job_record.spec.work is not None:
                msgspec.convert(job_record.spec.work, JobSpec)


@pytest.mark.parametrize(
    ("lines", "max_attempts", "retry_on"),
    [
        ("", 2, ("INFRA", "TOOLING")),
        ("retry: 1", 1, ("INFRA", "TOOLING", "FLAKY")),
        ("retry: 3", 3, ("INFRA", "TOOLING", "FLAKY")),
        ("concurrency: production", 1, ()),
        ("concurrency: production\nretry: 2", 2, ("INFRA", "TOOLING", "FLAKY")),
    ],
)
def test_a_job_is_retried_once_after_a_failure_of_the_infrastructure(
    lines: str, max_attempts: int, retry_on: tuple[str, ...]
) -> None:
    """But not one of a group, which changes something that others share, unless its author says so."""
    spec = job(a_job(lines)).spec

    assert (spec.max_attempts, spec.retry_on) == (max_attempts, retry_on)


def test_without_the_default_nothing_is_retried() -> None:
    """As for runs on the machine of a person, who sees each failure at once."""
    plan = compile_pipeline(parse_pipeline(a_job("")), PUSH, changed=None, has_default_retry=False).plan

    assert plan is not None
    assert [planned.spec.max_attempts for planned in plan.jobs] == [1]


def test_every_key_of_a_job_arrives() -> None:
    """Nothing is ignored silently."""
    told = job(FULL, "build (linux, release)")
    spec = msgspec.convert(told.spec.work, JobSpec)

    assert (told.spec.queue_key, told.spec.priority, told.spec.timeout_seconds) == ("large,linux", 10, 1800)
    assert (told.spec.max_attempts, told.spec.base_delay_seconds, told.spec.max_delay_seconds) == (3, 10, 300)
    assert (told.spec.retry_on, told.spec.jitter) == (("INFRA", "FLAKY", "TOOLING"), 0.2)
    assert (told.spec.family, told.spec.is_family_fail_fast) == ("build", False)
    assert told.spec.group == "ann/shop/build-linux"
    assert told.spec.is_required
    assert not job(FULL, "build (linux, debug)").spec.is_required
    assert told.matrix == {"os": "linux", "mode": "release", "extra": "docs"}
    assert (spec.name, spec.image, spec.executor, spec.network) == (
        "Build linux", "registry.example/build:1", "container", True,
    )  # fmt: skip
    assert (spec.limits.memory_bytes, spec.limits.processes, spec.limits.cpus) == (4 * 1024**3, 500, 2)
    assert [service.name for service in spec.services] == ["cache", "db"]
    assert spec.services[1].ports == ["5432", "8080:80"]
    assert spec.services[1].health == "pg_isready"
    assert spec.env == {"MODE": "${{ matrix.mode }}"}
    assert spec.contexts is not None
    assert spec.contexts["matrix"] == {"mode": "release"}
    assert spec.secrets == ["REGISTRY_TOKEN"]
    assert spec.source is not None
    assert spec.source.depth == 100
    assert [getattr(step, "uses", None) for step in spec.steps] == ["checkout", None, "setup-python", None]
    assert spec.outputs == {"version": "${{ steps.version.outputs.version }}"}
    assert spec.output_path == "result.json"
    assert spec.caches[0].lock_files == ["requirements.lock"]
    assert [artifact.type for artifact in spec.artifacts] == ["file", "junit"]
    assert [(rule.run, rule.files, rule.min_tests) for rule in spec.rules][:3] == [
        ("test -s dist/app", [], 0),
        ("", ["dist/app", "dist/app.sig"], 0),
        ("", [], 100),
    ]


def test_every_key_of_a_step_arrives() -> None:
    """Texts keep their expressions."""
    step = work(FULL, "build (linux, release)")["steps"][-1]

    assert step == {
        "run": "./version.sh\n",
        "name": "Find the version",
        "env": {"V": "1"},
        "workdir": "tools",
        "timeout_seconds": 90,
        "continue_on_error": True,
        "id": "version",
        "shell": "bash",
    }


def test_an_approval_is_a_gate() -> None:
    """For people, not for a runner."""
    spec = job(FULL, "gate").spec

    assert (spec.kind, spec.gate) == ("approval", Gate(role="release", approvers=2, not_by_starter=True))
    assert (spec.approval_seconds, spec.work) == (7 * 86400, None)


def test_defaults_apply_to_absent_values() -> None:
    """The step wins over the job, the job over the file."""
    text = "defaults: {run: {shell: sh, working-directory: a}}\n" + a_job(
        "defaults: {run: {working-directory: b}}", "  other: {steps: [{run: x, shell: bash}, {uses: setup-node}]}\n"
    )

    assert [(step.get("shell"), step.get("workdir")) for step in work(text)["steps"][1:]] == [("sh", "b")]
    assert [(step.get("shell"), step.get("workdir")) for step in work(text, "other")["steps"][1:]] == [
        ("bash", "a"), (None, None),
    ]  # fmt: skip


def test_variables_of_the_file_are_those_of_every_job() -> None:
    """Those of the job win; numbers and booleans become texts."""
    text = "env: {A: 1, B: true, C: x}\n" + a_job("env: {C: 0.5}")

    assert work(text)["env"] == {"A": "1", "B": "true", "C": "0.5"}


@pytest.mark.parametrize(
    ("lines", "uses", "depth"),
    [
        ("checkout: true", ["checkout"], 1),
        ("checkout: 0", ["checkout"], 0),
        ("checkout: 50", ["checkout"], 50),
        ("checkout: false", [], None),
    ],
)
def test_the_commit_is_in_the_workspace(lines: str, uses: list[str], depth: int | None) -> None:
    """Unless the job turns it off."""
    told = work(a_job(lines))

    assert [step["uses"] for step in told["steps"] if "uses" in step] == uses
    assert (msgspec.convert(told["source"], Source).depth if "source" in told else None) == depth


def test_a_checkout_of_its_own_is_the_only_one() -> None:
    """An explicit checkout step replaces the automatic one."""
    own = "jobs: {test: {steps: [make, {uses: checkout, with: {fetch-depth: 0}}]}}"
    other = "jobs: {test: {steps: [{uses: checkout, with: {repository: a/b, path: b}}]}}"

    assert [step.get("uses") for step in work(own)["steps"]] == [None, "checkout"]
    assert work(own)["steps"][1]["inputs"] == {"fetch-depth": "0"}
    assert [step.get("uses") for step in work(other)["steps"]] == ["checkout", "checkout"]
    assert [step.get("uses") for step in work(own, source=None)["steps"]] == [None, "checkout"]
    assert len(work(other, source=None)["steps"]) == 1


def test_the_runner_gets_only_referenced_context_values() -> None:
    """Other values would make equivalent plans differ."""
    text = (
        "jobs: {test: {steps: ['echo ${{ github.ref_name }} ${{ github.event.head_commit.message }} ${{ vars.A }}']}}"
    )

    told = work(text, variables={"A": "1", "B": "2"})

    assert told["contexts"]["vars"] == {"A": "1"}
    assert told["contexts"]["github"]["event"] == {"head_commit": {"message": "Mend it"}}
    assert set(work(a_job(""))["contexts"]) == {"github"}
    plain = work(a_job(""))["contexts"]["github"]
    assert {name: plain[name] for name in ("sha", "ref_name", "job", "server_url")} == {
        "sha": COMMIT, "ref_name": "main", "job": "test", "server_url": "https://forge.example",
    }  # fmt: skip
    assert not {"event", "run_id", "run_number"} & set(plain)
    assert work("jobs: {test: {steps: ['echo $GITHUB_RUN_ID']}}", run_id="r1")["contexts"]["github"]["run_id"] == "r1"
    whole = work("jobs: {test: {steps: ['echo ${{ toJSON(github) }}']}}")["contexts"]["github"]
    assert whole["event"]["after"] == COMMIT


def test_the_github_context_of_a_pull_request() -> None:
    """It is the same for all forges; values of the payload win."""
    text = "jobs: {test: {steps: ['${{ toJSON(github) }}']}}"
    asked = replace(PULL, payload={"pull_request": {"draft": True, "head": {"label": "bob:topic"}}})

    seen = work(text, change=asked)["contexts"]["github"]

    assert (seen["event_name"], seen["head_ref"], seen["base_ref"]) == ("pull_request", "topic", "main")
    assert (seen["ref"], seen["ref_name"], seen["repository_owner"]) == ("refs/pull/7/head", "7/head", "ann")
    assert seen["event"]["pull_request"]["number"] == 7
    assert seen["event"]["pull_request"]["draft"] is True
    assert seen["event"]["pull_request"]["head"]["sha"] == COMMIT
    assert seen["event"]["pull_request"]["head"]["label"] == "bob:topic"


@pytest.mark.parametrize(
    ("written", "condition"),
    [
        ("success()", None),
        ("true", None),
        ("github.ref == 'refs/heads/main'", None),
        ("github.ref == 'refs/heads/other'", "false"),
        ("failure()", "failure()"),
        ("always()", "always()"),
        ("always() && github.event_name == 'push'", "always()"),
        ("steps.a.outputs.b == 'c'", "success() && steps.a.outputs.b == 'c'"),
        ("failure() && matrix.os == 'x' && steps.a.outcome", "failure() && steps.a.outcome"),
        ("env.A", "success() && env.A"),
        ("env.A && github.ref == 'x'", "false"),
        ("github.workspace && github.ref", "success() && github.workspace && github.ref"),
    ],
)
def test_the_condition_of_a_step_is_reduced(written: str, condition: str | None) -> None:
    """It is empty if the step runs only after success."""
    text = "jobs:\n  test:\n    strategy: {matrix: {os: [x]}}\n    steps:\n      - {id: a, run: x}\n"
    text += f'      - {{run: x, if: "{written}"}}\n'

    assert work(text, "test (x)")["steps"][-1].get("condition") == condition


def test_a_long_value_does_not_make_a_condition_too_long() -> None:
    """Then the original condition is sent, together with the value."""
    change = replace(PUSH, message="m" * 3000)
    text = "jobs: {test: {steps: [{run: x, if: 'contains(github.event.head_commit.message, env.WORD)'}]}}"

    told = work(text, change=change)

    assert told["steps"][-1]["condition"] == "success() && contains(github.event.head_commit.message, env.WORD)"
    assert told["contexts"]["github"]["event"]["head_commit"]["message"] == "m" * 3000
    very_long = "jobs: {test: {steps: [{run: x, if: \"env.A == '" + "x" * 2500 + "'\"}]}}"
    assert re.match(r"1:36: a condition that is too long", problems(very_long)[0])


def test_a_job_gets_only_the_secrets_that_it_names() -> None:
    """In GitHub workflows, a reference is enough, and a secret that is not set is empty."""
    text = "jobs: {test: {secrets: [A, B], steps: ['${{ secrets.A }}']}}"
    steps = (model.Step(run="${{ secrets.A }} ${{ secrets.GITHUB_TOKEN }} ${{ secrets.Z }}"),)
    workflow = model.Pipeline(jobs={"test": model.Job(steps=steps, secrets=("B",))})

    made = compile_pipeline(workflow, PUSH, changed=None, grants_mentioned_secrets=True).plan

    assert work(text)["secrets"] == ["A", "B"]
    assert made is not None
    assert made.jobs[0].spec.work["secrets"] == ["B"]
    assert made.jobs[0].spec.work["optional_secrets"] == ["A", "GITHUB_TOKEN", "Z"]


def test_an_untrusted_change_gets_no_secrets_no_caches_and_an_approval() -> None:
    """No setting of the file changes that."""
    text = (
        "concurrency: {group: deploy, cancel-in-progress: true}\n"
        "jobs:\n  approve-fork: {steps: [x]}\n"
        "  test: {secrets: [A], executor: process, priority: 5, concurrency: g, needs: approve-fork, steps: [x]}\n"
        "  last: {if: always(), needs: test, steps: [x]}\n"
    )
    fork = replace(PULL, is_fork=True)

    made = plan(text, fork)
    jobs = by_name(made)

    assert [job_record.spec.name for job_record in made.jobs] == ["approve-fork-2", "approve-fork", "test", "last"]
    assert jobs["approve-fork-2"].spec.kind == "approval"
    assert all("approve-fork-2" in job_record.spec.needs for job_record in made.jobs[1:])
    assert jobs["last"].spec.after == ("test",)
    spec = jobs["test"].spec
    told = msgspec.convert(spec.work, JobSpec)
    assert (told.secrets, told.executor, told.cache_scope) == ([], None, "fork:ann/shop:7")
    assert (spec.priority, spec.group, made.group) == (0, "fork:ann/shop:7/g", "fork:ann/shop:7/deploy")
    assert plan(text, PULL, is_untrusted=True) == plan(text, replace(PULL, is_fork=False), is_untrusted=True)


def test_a_group_belongs_to_its_repository() -> None:
    """Its name may depend on the change."""
    text = "concurrency:\n  group: deploy-${{ github.ref_name }}\n"
    text += "  cancel-in-progress: ${{ github.ref_name != 'main' }}\n"
    text += "fail-fast: true\ntimeout-minutes: 10\noptional-wait-minutes: 3\n" + a_job("")

    made = plan(text)

    assert (made.group, made.cancels_in_progress) == ("ann/shop/deploy-main", False)
    assert (made.is_fail_fast, made.timeout_seconds, made.optional_wait_seconds) == (True, 600, 180)
    assert made.hash != plan(text.replace("optional-wait-minutes: 3", "optional-wait-minutes: 4")).hash
    assert plan(text, replace(PUSH, ref="refs/heads/x", branch="x")).cancels_in_progress
    ids = "concurrency: '${{ github.head_ref || github.run_id }}'\n" + a_job("")
    assert plan(ids, run_id="r1").group == "ann/shop/r1"
    assert plan(ids, PULL, run_id="r1").group == "ann/shop/topic"


def test_inputs_have_their_types_and_defaults() -> None:
    """Only a manual start has inputs."""
    text = (
        "on: {push: {}, manual: {inputs: {n: {type: number, default: 2}, b: {type: boolean}, s: {default: x},\n"
        "  c: {type: choice, options: [l, m]}, r: {required: true}}}}\n"
        "jobs: {test: {steps: ['${{ toJSON(inputs) }}']}}\n"
    )
    hand = Change(event="manual", commit=COMMIT, inputs={"b": "true", "c": "m", "r": 3})

    assert work(text, change=hand)["contexts"]["inputs"] == {"n": 2, "b": True, "s": "x", "c": "m", "r": "3"}
    assert work(text)["contexts"]["inputs"] == {}
    for given, said in (
        ({"c": "m"}, "no value for the input 'r'"),
        ({"r": "x", "c": "k"}, "expected one of: l, m"),
        ({"r": "x", "c": "l", "b": "yes"}, "expected true or false"),
        ({"r": "x", "c": "l", "n": "inf"}, "expected a number"),
        ({"r": "x", "c": "l", "z": "1"}, "the unknown input 'z'"),
    ):
        assert said in problems(text, replace(hand, inputs=given))[0]


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("runs-on: '${{ needs.b.outputs.o }}'\nneeds: b", "4:15: needs.b.outputs.o, which is not known"),
        ("image: 'x:${{ needs.b.outputs.o }}'\nneeds: b", "4:15: needs.b.outputs.o, which is not known"),
        ("strategy: {matrix: '${{ fromJSON(needs.b.outputs.o) }}'}\nneeds: b", "4:25: needs.b.outputs.o, which is not"),
        ("strategy: {matrix: {a: '${{ fromJSON(vars.nothing) }}'}}", "4:33: a text that is not JSON"),
        ("strategy: {matrix: {a: '${{ vars.x }}'}}", "4:28: the text x; expected a list of values"),
        ("timeout-minutes: '${{ vars.x }}'", "4:22: 'x' as 'timeout-minutes'; expected a number above 0"),
        ("timeout-minutes: '${{ vars.nothing }}'", "4:22: '' as 'timeout-minutes'"),
        ("allow_failure: '${{ vars.x }}'", "4:20: 'x' as 'allow_failure'; expected true or false"),
        ("runs-on: '${{ vars.y }}'", "4:14: 'a,b' as a label"),
        ("concurrency: '${{ needs.b.result }}'\nneeds: b", "4:19: needs.b.result, which is not known"),
        ("strategy: {matrix: {a: ['${{ vars.x }}', x]}}", "again"),
    ],
)  # fmt: skip
def test_a_value_that_is_not_known_when_planning_is_a_problem_at_its_position(lines: str, said: str) -> None:
    """There is no partial plan."""
    text = a_job(lines, "  b: {steps: [x], outputs: {o: '1'}}\n")

    [told] = problems(text, variables={"x": "x", "y": "a,b"})

    assert said in told


def test_the_condition_of_an_approval_must_be_known_when_planning() -> None:
    """No runner evaluates the condition of an approval."""
    text = "jobs:\n  a: {steps: [x], outputs: {o: '1'}}\n  b: {needs: a, if: needs.a.outputs.o, approval: {}}\n"

    assert problems(text) == [
        "3:21: a condition of an approval that is not known when planning; expected a condition over github, "
        "inputs and vars"
    ]


def test_a_group_of_jobs_cancels_nothing() -> None:
    """One warning says so."""
    made = compiled(a_job("concurrency: {group: g, cancel-in-progress: true}"))

    assert made.plan is not None
    assert [str(problem) for problem in made.problems if problem.is_warning] == [
        ".deltaci.yml:4:18: warning: 'cancel-in-progress' of a job; expected it at the top of the file: only "
        "whole runs are cancelled"
    ]


def test_a_plan_needs_no_text() -> None:
    """A pipeline that does not come from a text can be compiled as well."""
    pipeline = parse_pipeline(a_job("runs-on: ${{ vars.x }}")).pipeline
    assert pipeline is not None

    made = compile_pipeline(pipeline, PUSH, changed=None, variables={"x": "linux"}, file="found", source=SOURCE)
    bad = compile_pipeline(pipeline, PUSH, changed=None, file="found")

    assert made.plan is not None
    assert made.plan.file == "found"
    assert str(bad.problems[0]).startswith("found:1:1: '' as a label")


def test_an_invalid_file_has_no_plan() -> None:
    """Its problems are those of the parser."""
    found = parse_pipeline("jobs: {}")

    assert compile_pipeline(found, PUSH, changed=None).problems == found.problems
