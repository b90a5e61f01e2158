"""`on` of a workflow."""

from __future__ import annotations

import pytest

from deltaci.pipeline import model
from tests.pipeline.github.workflows import messages, parsed

JOBS = "jobs: {a: {runs-on: x, steps: [{run: make}]}}\n"


def on(text: str) -> model.On:
    """Return the converted events of a workflow."""
    pipeline = parsed(f"on: {text}\n{JOBS}").pipeline
    assert pipeline is not None, messages(f"on: {text}\n{JOBS}")
    return pipeline.on


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("push", model.On(push=model.Push())),
        ("[push, pull_request]", model.On(push=model.Push(), pull_request=model.PullRequest())),
        ("{push: , workflow_dispatch: }", model.On(push=model.Push(), manual=model.Manual())),
        (
            "{push: {branches: [main, 'r/**'], tags: 'v*', paths-ignore: [docs/**]}}",
            model.On(push=model.Push(branches=("main", "r/**"), tags=("v*",), paths_ignore=("docs/**",))),
        ),
        ("{push: {branches: [3.10]}}", model.On(push=model.Push(branches=("3.1",)))),
        (
            "{pull_request: {types: [opened, assigned, labeled], branches-ignore: [old]}}",
            model.On(pull_request=model.PullRequest(types=("opened", "labeled"), branches_ignore=("old",))),
        ),
        ("{pull_request: {types: [assigned]}}", model.On()),
        ("{schedule: [cron: '0  3 * * 1-5']}", model.On(schedule=(model.Schedule(cron="0 3 * * 1-5"),))),
        ("[release, issues, workflow_call]", model.On()),
        ("{pull_request_target: {types: [opened]}, push: }", model.On(push=model.Push())),
    ],
)
def test_events(text: str, expected: model.On) -> None:
    """Supported events are converted, others dropped."""
    assert on(text) == expected


def test_on_may_be_quoted() -> None:
    """Some quote it, because YAML 1.1 reads `on` as a boolean."""
    assert parsed(f'"on": push\n{JOBS}').pipeline is not None


def test_inputs_of_a_manual_start() -> None:
    """Names may have dashes; an environment is a text."""
    read = on(
        "{workflow_dispatch: {inputs: {dry-run: {type: boolean, default: 'true', required: true}, "
        "level: {type: choice, options: [low, 2], default: low, description: 'a\n\n  b'}, "
        "where: {type: environment}, n: {type: number, default: 3}, plain: }}}"
    )

    assert read.manual == model.Manual(
        inputs={
            "dry-run": model.Input(type="boolean", default=True, required=True),
            "level": model.Input(type="choice", options=("low", "2"), default="low", description="a b"),
            "where": model.Input(),
            "n": model.Input(type="number", default=3),
            "plain": model.Input(),
        }
    )


def test_ignored_events_are_reported() -> None:
    """So that nobody waits for a run."""
    assert messages(f"on: [release, pull_request_target]\n{JOBS}", notes=True) == [
        "1:1: no event starts this workflow here; it can only be started by name",
        "1:6: 'release' does not start this workflow here; the event does not occur here",
        "1:15: 'pull_request_target' does not start this workflow here; it would give "
        "secrets to code from forks: use pull_request, or start it manually",
        "2:21: 'x', a label that is not one of GitHub's; the job waits for a runner that has it",
    ]


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("pusch", "1:5: the event 'pusch'; did you mean 'push'?"),
        ("{push: {branch: main}}", "1:13: the key 'branch', which 'push' does not have; did you mean 'branches'?"),
        ("{schedule: [{cron: '0 25 * * *'}]}", "1:24: '25' as the hour; expected 0 to 23, '*', 'a-b' or '*/n'"),
        ("{schedule: [{}]}", "1:17: a schedule without 'cron'; expected five fields, e.g. '0 3 * * 1-5'"),
        ("{pull_request: {types: [openned]}}", "1:29: 'openned' as a type; did you mean 'opened'?"),
        (
            "{push: {paths: [a], paths-ignore: [b]}}",
            "1:13: 'paths' and 'paths-ignore' together; GitHub accepts only one of them",
        ),
        (
            "{workflow_dispatch: {inputs: {a: {type: text}}}}",
            "1:45: the text 'text'; expected one of: string, number, boolean, choice, environment",
        ),
        ("4", "1:1: the number 4 as 'on'; expected events, e.g. push"),
    ],
)
def test_invalid_events(text: str, first: str) -> None:
    """The whole workflow is invalid then, and none of its jobs can run."""
    workflow = parsed(f"on: {text}\n{JOBS}")

    assert messages(f"on: {text}\n{JOBS}")[0] == first
    assert (workflow.pipeline, workflow.supported_pipeline) == (None, None)
