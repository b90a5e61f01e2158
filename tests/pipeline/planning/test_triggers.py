"""Which changes start a pipeline."""

from __future__ import annotations

from collections.abc import Collection

import pytest
from msgspec.structs import replace

from deltaci.pipeline import model
from deltaci.pipeline.change import Change
from deltaci.pipeline.parse.reader import parse_pipeline
from deltaci.pipeline.planning.compile import check_triggers
from tests.pipeline.planning.planned import PULL, PUSH

TAG = replace(PUSH, branch="", tag="v1", ref="refs/tags/v1")
TOPIC = replace(PUSH, branch="topic", ref="refs/heads/topic")
NIGHT = Change(event="schedule", commit="a" * 40, branch="main", default_branch="main", cron="0 3 * * *")
HAND = Change(event="manual", commit="a" * 40, branch="main")
SOURCES = frozenset({"src/a.py"})
DOCS = frozenset({"docs/a.md"})


def asked(on: str, change: Change, changed: Collection[str] | None = SOURCES) -> tuple[bool, str]:
    """Whether such an `on` wants this change, and why."""
    found = parse_pipeline(f"on: {on}\njobs: {{a: {{steps: [x]}}}}\n")
    assert found.pipeline is not None, found.problems
    return check_triggers(found.pipeline, change, changed)


@pytest.mark.parametrize(
    ("on", "change", "changed", "is_wanted"),
    [
        ("push", PUSH, SOURCES, True),
        ("push", TAG, SOURCES, True),
        ("push", PULL, SOURCES, False),
        ("pull_request", PUSH, SOURCES, False),
        ("{push: {branches: [main, 'release/*']}}", PUSH, SOURCES, True),
        ("{push: {branches: [main]}}", TOPIC, SOURCES, False),
        ("{push: {branches: ['**', '!topic']}}", TOPIC, SOURCES, False),
        ("{push: {branches: [main]}}", TAG, SOURCES, False),
        ("{push: {branches-ignore: [main]}}", TAG, SOURCES, False),
        ("{push: {branches-ignore: [main]}}", PUSH, SOURCES, False),
        ("{push: {branches-ignore: [main]}}", TOPIC, SOURCES, True),
        ("{push: {tags: 'v*'}}", TAG, SOURCES, True),
        ("{push: {tags: 'v*'}}", PUSH, SOURCES, False),
        ("{push: {tags-ignore: 'v*'}}", TAG, SOURCES, False),
        ("{push: {tags: 'v*', branches: main}}", PUSH, SOURCES, True),
        ("{push: {tags: 'v*', branches: main}}", TAG, SOURCES, True),
        ("{push: {paths: 'src/**'}}", PUSH, SOURCES, True),
        ("{push: {paths: 'src/**'}}", PUSH, DOCS, False),
        ("{push: {paths: ['src/**', '!**/*.py']}}", PUSH, SOURCES, False),
        ("{push: {paths: 'src/**'}}", PUSH, None, True),
        ("{push: {paths: 'src/**'}}", PUSH, frozenset(), False),
        ("{push: {paths: 'src/**'}}", TAG, DOCS, True),
        ("{push: {paths-ignore: 'docs/**'}}", PUSH, DOCS, False),
        ("{push: {paths-ignore: 'docs/**'}}", PUSH, DOCS | SOURCES, True),
        ("{push: {paths-ignore: ['docs/**', '!docs/a.md']}}", PUSH, DOCS, True),
        ("{push: {paths: 'sub/x.c'}}", PUSH, frozenset({"sub/"}), True),
        ("pull_request", PULL, SOURCES, True),
        ("pull_request", replace(PULL, action="closed"), SOURCES, False),
        ("pull_request", replace(PULL, action=""), SOURCES, True),
        ("{pull_request: {types: closed}}", replace(PULL, action="closed"), SOURCES, True),
        ("{pull_request: {branches: old}}", PULL, SOURCES, False),
        ("{pull_request: {branches-ignore: main}}", PULL, SOURCES, False),
        ("{pull_request: {paths: 'docs/**'}}", PULL, SOURCES, False),
        ("{schedule: '0 3 * * *'}", NIGHT, None, True),
        ("{schedule: '0 4 * * *'}", NIGHT, None, False),
        ("{schedule: '0 3 * * *'}", replace(NIGHT, branch="topic"), None, False),
        ("{schedule: {cron: '0 3 * * *', branches: 't*'}}", replace(NIGHT, branch="topic"), None, True),
        ("{schedule: {cron: '0 3 * * *', branches: 't*'}}", NIGHT, None, False),
        ("manual", HAND, None, True),
        ("push", HAND, None, False),
    ],
)
def test_on_decides_which_changes_start_a_pipeline(
    on: str, change: Change, changed: Collection[str] | None, is_wanted: bool
) -> None:
    """The rules are GitHub's. Unknown values count as matching."""
    assert asked(on, change, changed)[0] is is_wanted


@pytest.mark.parametrize(
    ("on", "change", "changed", "reason"),
    [
        ("{push: {branches: main}}", PUSH, SOURCES, "somebody pushed the branch main, which matches main"),
        ("{push: {tags: 'v*'}}", PUSH, SOURCES, "the branch main was pushed, and it runs on tags only"),
        ("{push: {branches: ['**', '!topic']}}", TOPIC, SOURCES, "the branch topic is excluded by !topic"),
        ("{push: {paths: 'src/**'}}", PUSH, DOCS, "no changed file matches its paths: src/**"),
        ("{push: {paths-ignore: a}}", PUSH, DOCS, "docs/a.md changed, which none of the ignored paths matches"),
        ("manual", PUSH, SOURCES, "it does not run on pushes"),
        ("pull_request", PULL, SOURCES, "the pull request targets the branch main"),
    ],
)
def test_the_decision_has_a_reason(on: str, change: Change, changed: Collection[str] | None, reason: str) -> None:
    """It tells people why nothing runs."""
    assert reason in asked(on, change, changed)[1]


def test_invalid_patterns_start_the_pipeline() -> None:
    """The parser rejects such patterns, but a pipeline may come from elsewhere: in case of doubt, it runs."""
    pipeline = model.Pipeline(on=model.On(push=model.Push(branches=("a[",))), jobs={})

    assert check_triggers(pipeline, PUSH, None)[0]
