"""Unsupported workflows: positions and reasons, and the effect on the other jobs."""

from __future__ import annotations

import pytest

from tests.pipeline.github.workflows import job, messages, parsed

# Keys of a job, which begin in line 5.
JOBS = [
    (
        "uses: ./.github/workflows/x.yml\nwith: {a: 1}",
        "5:5: 'uses' of a job; reusable workflows are not supported: copy the jobs into this file",
    ),
    (
        "container: {image: a, options: --privileged}",
        "5:27: 'options' of 'container'; options depend on the container engine, and may weaken the isolation",
    ),
    (
        "container: {image: a, volumes: ['/:/x']}",
        "5:27: 'volumes' of 'container'; host directories are not mounted into jobs",
    ),
    ("container: {env: {A: 1}}", "5:16: 'container' without 'image'; expected the image"),
    (
        "services: {db: {image: a, options: --privileged --health-cmd x}}",
        "5:40: the option '--privileged' of a service; only health options are supported: --health-cmd and its timing",
    ),
    (
        "services: {db: {image: a, options: '--health-cmd \"x'}}",
        "5:40: options with an unterminated quote, or too many options; close the quote",
    ),
    (
        "services: {db: {image: a, ports: [53/udp]}}",
        "5:39: the text '53/udp' as a port; expected a TCP port, e.g. 5432 or '5432:5432'",
    ),
    ("services: {db: {ports: [1]}}", "5:16: the service 'db' without 'image'; expected the image"),
    (
        "strategy: {matrix: '${{ fromJSON(needs.a.outputs.m) }}'}",
        "5:38: 'needs', which is not known when a run is planned; write the value itself, or use it in a command",
    ),
    (
        "runs-on: ${{ needs.a.outputs.os }}",
        "4:18: 'needs', which is not known when a run is planned; write the value itself, or use it in a command",
    ),
    (
        "timeout-minutes: soon",
        "5:22: the text 'soon' as 'timeout-minutes'; expected a number or an expression ${{ … }}",
    ),
    (
        "continue-on-error: 3",
        "5:24: the number 3 as 'continue-on-error'; expected true, false or an expression ${{ … }}",
    ),
    ("env: {A: [1]}", "5:14: a list as 'A'; expected a text, a number, true or false"),
    ("env: [A]", "5:10: a list as 'env'; expected names, each with a text, a number, true or false"),
    ("if: matrix.a == 1", "5:9: the context 'matrix'; expected github, inputs, needs, vars"),
    ("if: github.ref =", "5:20: '='; expected an operator; did you mean '=='?"),
    ("runs_on: x", "5:5: the key 'runs_on', which a job does not have; did you mean 'runs-on'?"),
    ("concurrency: {cancel-in-progress: true}", "5:18: 'concurrency' without 'group'; expected the group's name"),
    ("strategy: {matrix: {a: x}}", "5:28: the text 'x' as the axis 'a'; expected a list of values"),
    (
        "strategy: {matrix: {a: []}}",
        "5:28: matrix.a: has no values, so there would be no jobs; expected at least one",
    ),
    ("strategy: {matrix: {a: [1], exclude: [{b: 1}]}}", "5:47: matrix.exclude[0].b: is not an axis; expected a"),
    ("strategy: {matrix: {a: [1], include: [x]}}", "5:43: the text 'x' in 'include'; expected names with values"),
    (
        "defaults: {run: {shell: cmd}}",
        "5:29: the shell 'cmd'; Windows shells are not supported: expected bash, sh or python",
    ),
    ("snapshot: a", "5:5: 'snapshot' of a job; runner images are not built here"),
]

# Steps, which begin in line 6 and column 7.
STEPS = [
    (
        "- uses: codecov/codecov-action@v5",
        "6:15: the action 'codecov/codecov-action'; only some of GitHub's own actions are supported: use a command",
    ),
    (
        "- uses: docker://alpine:3",
        "6:15: the action 'docker://alpine:3'; actions that are container images are not supported",
    ),
    (
        "- uses: actions/cache/restore@v4",
        "6:15: the action 'actions/cache/restore'; of actions/cache only the combined action is supported",
    ),
    ("- uses: ./here", "6:15: the action './here'; there is no here/action.yml to read it from"),
    (
        "- uses: actions/checkout",
        "6:15: the action 'actions/checkout' without a version; write it as actions/checkout@v4",
    ),
    (
        "- uses: actions/checkout@v4\n  with: {lfs: true}",
        "7:16: 'lfs' of actions/checkout; fetch the files in a step: git lfs pull",
    ),
    (
        "- uses: actions/checkout@v4\n  with: {repository: a/b}",
        "7:28: a checkout of another repository, 'a/b'; clone it in a step, with git",
    ),
    (
        "- uses: actions/checkout@v4\n  with: {fetch-deph: 0}",
        "7:16: 'fetch-deph', which actions/checkout does not have; did you mean 'fetch-depth'?",
    ),
    (
        "- uses: actions/cache@v4\n  with: {path: a}",
        "6:15: actions/cache without 'key'; GitHub's action needs it as well",
    ),
    (
        "- uses: actions/download-artifact@v4\n  with: {run-id: 1}",
        "7:16: 'run-id' of actions/download-artifact; only artifacts of the same run are available",
    ),
    (
        "- uses: actions/setup-python@v5\n  with: {architecture: x86}",
        "7:16: 'architecture' of actions/setup-python; it depends on the runner: choose a runner by its labels",
    ),
    (
        "- run: make\n  shell: powershell",
        "7:16: the shell 'powershell'; Windows shells are not supported: expected bash, sh or python",
    ),
    (
        "- run: make\n  shell: bsh",
        "7:16: the shell 'bsh'; expected bash, sh, python, pwsh, or a command with {0}; did you mean 'bash'?",
    ),
    (
        "- run: make\n  timeout-minutes: ${{ env.T }}",
        "7:30: 'env', which is not known when a run is planned; write the value itself, or use it in a command",
    ),
    ("- run: make\n  background: true", "7:9: 'background' of a step; steps always run one after the other"),
    ("- run: make\n  uses: actions/checkout@v4", "7:9: 'uses' beside 'run'; a step has one of them"),
    ("- run: make\n  with: {a: 1}", "7:9: 'with' in a step without 'uses'; use 'env' for a command"),
    ("- name: x", "6:9: a step without 'run' or 'uses'; expected one of them"),
    ("- make", "6:9: the text 'make' as a step; expected an object with 'run' or 'uses'"),
    ("- {run: a, id: x}\n- {run: b, id: X}", "7:22: the id 'X' a second time; the step in line 6 has it"),
    (
        "- run: |\n    one\n    echo ${{ secrets[matrix.a] }}",
        "8:20: all secrets at once, or a secret with a computed name; a job gets secrets by name: write secrets.NAME",
    ),
    (
        "- run: echo ${{ toJSON(secrets) }}",
        "6:30: all secrets at once, or a secret with a computed name; a job gets secrets by name: write secrets.NAME",
    ),
    (
        "- run: echo ${{ martix.a }}",
        "6:23: the context 'martix'; expected env, github, inputs, job, matrix, needs, runner, secrets, "
        "steps, strategy, vars; did you mean 'matrix'?",
    ),
    ("- run: echo ${{ github.ref", "6:19: '${{ github.ref'; expected }} at its end"),
    (
        "- run: make\n  if: hashFile('a')",
        "7:13: the function 'hashFile'; expected always, cancelled, case, contains, endsWith, failure, "
        "format, fromJSON, hashFiles, join, startsWith, success, toJSON; did you mean 'hashFiles'?",
    ),
    (
        "- uses: dtolnay/rust-toolchain@master",
        "6:15: dtolnay/rust-toolchain without a toolchain that rustup knows; set 'toolchain', e.g. stable",
    ),
    (
        "- run: a\n  if: !cancelled()",
        "7:13: the tag '!cancelled()', and tags are not allowed; remove it, or quote the text if the '!' belongs to it",
    ),
]


@pytest.mark.parametrize(("keys", "first"), JOBS, ids=[keys[:40] for keys, _ in JOBS])
def test_an_unsupported_job(keys: str, first: str) -> None:
    """The message has the position, what was found, and the reason."""
    assert messages(job(keys))[0] == first


@pytest.mark.parametrize(("steps", "first"), STEPS, ids=[steps[:40] for steps, _ in STEPS])
def test_an_unsupported_step(steps: str, first: str) -> None:
    """The message has the position, what was found, and the reason."""
    assert messages(job(steps=steps))[0] == first


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("", "1:1: an empty file; expected at least: jobs"),
        ("a: [", "1:5: a closing sign without an opening one; remove it, or quote the text"),
        (
            "- a",
            "1:1: a list as the workflow; expected an object with name, run-name, on, env, defaults, "
            "concurrency, permissions, jobs",
        ),
        ("on: push\njobs: {}\n", "2:1: an object as 'jobs'; expected at least one job"),
        ("jobs: {a: {runs-on: x, steps: [{run: a}]}}\n", "1:1: a workflow without 'on'; expected 'on'"),
        (
            "on: push\njob: {}\njobs: {a: {runs-on: x, steps: [{run: a}]}}\n",
            "2:1: the key 'job', which the workflow does not have; did you mean 'jobs'?",
        ),
        (
            "on: push\non: push\njobs: {a: {runs-on: x, steps: [{run: a}]}}\n",
            "2:1: the key 'on' a second time; it is already in line 1: remove one of them",
        ),
        (
            "on: push\njobs: {a: {needs: zzz, runs-on: x, steps: [{run: a}]}, b: {runs-on: x, steps: [{run: a}]}}\n",
            "2:19: there is no other job 'zzz'",
        ),
        (
            "on: push\njobs: {a: {needs: b, runs-on: x, steps: [{run: a}]}, b: {needs: [a], runs-on: x, "
            "steps: [{run: a}]}}\n",
            "2:66: jobs that wait for each other: a → b → a; remove one of these needs",
        ),
        (
            "on: push\njobs: {a: {steps: [{run: a}]}}\n",
            "2:8: the job 'a' without 'runs-on'; expected it, e.g. ubuntu-latest",
        ),
        ("on: push\njobs: {a: {runs-on: x}}\n", "2:8: the job 'a' without 'steps'; expected steps"),
    ],
)
def test_an_invalid_workflow(text: str, first: str) -> None:
    """GitHub refuses it as well."""
    assert messages(text)[0] == first
    assert parsed(text).pipeline is None


def test_one_unsupported_job_prevents_a_full_run() -> None:
    """The supported jobs can still be requested by name."""
    text = (
        "on: push\njobs:\n"
        "  a: {runs-on: ubuntu-latest, steps: [{run: a}]}\n"
        "  b: {runs-on: ubuntu-latest, steps: [{uses: x/y@v1}]}\n"
        "  c: {runs-on: ubuntu-latest, needs: a, steps: [{run: c}]}\n"
        "  d: {runs-on: ubuntu-latest, needs: [a, b], steps: [{run: d}]}\n"
        "  e: {runs-on: ubuntu-latest, needs: d, steps: [{run: e}]}\n"
    )

    workflow = parsed(text)

    assert workflow.pipeline is None
    assert workflow.supported_pipeline is not None
    assert list(workflow.supported_pipeline.jobs) == ["a", "c"]
    assert {name: [problem.found for problem in problems] for name, problems in workflow.unsupported_jobs.items()} == {
        "b": ["the action 'x/y'"],
        "d": ["it needs 'b', which is unsupported"],
        "e": ["it needs 'd', which is unsupported"],
    }
    assert workflow.job_ids == ("a", "b", "c", "d", "e")


@pytest.mark.parametrize(
    ("keys", "note"),
    [
        (
            "permissions: {contents: read}",
            "5:5: 'permissions' has no effect here; jobs get no token of the forge, so there are no "
            "permissions to grant",
        ),
        (
            "environment: production",
            "5:5: 'environment' has no effect here; there are no environments here: no approval is waited "
            "for, and there are no environment secrets",
        ),
        ("strategy: {fail-fast: false}", "5:16: 'fail-fast' has no effect here; there is no matrix"),
        ("runs-on: windows-latest", "4:14: a job for Windows; the job waits for a runner with the label 'windows'"),
        (
            "container: {image: a, ports: [80]}",
            "5:27: 'ports' has no effect here; a job can always reach its own ports",
        ),
        ("defaults: {run: {shell: pwsh}}", "5:29: the shell 'pwsh'; PowerShell must be installed where the job runs"),
    ],
)
def test_keys_without_effect_are_reported(keys: str, note: str) -> None:
    """As a warning: the job is supported."""
    assert messages(job(keys)) == []
    assert note in messages(job(keys), notes=True)


def test_a_name_that_is_not_known_when_planning_falls_back_to_the_id() -> None:
    """A name must not make a job unsupported."""
    text = (
        "on: push\njobs:\n  a: {runs-on: ubuntu-latest, steps: [{run: a}]}\n"
        "  b: {name: 'B ${{ needs.a.outputs.x }}', needs: a, runs-on: ubuntu-latest, steps: [{run: b}]}\n"
    )

    pipeline = parsed(text).pipeline

    assert pipeline is not None
    assert pipeline.jobs["b"].name == ""
    assert messages(text, notes=True) == [
        "4:13: a name with 'needs', which is not known when a run is planned; the job is named by its id"
    ]


def test_anchors_are_followed() -> None:
    """GitHub supports them since 2025."""
    workflow = parsed(
        "on: push\njobs:\n  a: &a {runs-on: ubuntu-latest, steps: &s [{run: a}]}\n  b: *a\n"
        "  c: {runs-on: ubuntu-latest, steps: *s}\n"
    )

    assert workflow.pipeline is not None
    assert workflow.pipeline.jobs["a"] == workflow.pipeline.jobs["b"] == workflow.pipeline.jobs["c"]
