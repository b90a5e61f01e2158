"""Helpers that compile the text of a pipeline file into a plan."""

from __future__ import annotations

from typing import Any

from deltaci.pipeline.change import Change
from deltaci.pipeline.parse.reader import parse_pipeline
from deltaci.pipeline.planning.compile import CompileResult, compile_pipeline
from deltaci.pipeline.planning.plan import Plan, PlannedJob
from deltaci.protocol.messages import Source

COMMIT = "a" * 40
BEFORE = "b" * 40
SOURCE = Source(url="https://forge.example/ann/shop.git", commit=COMMIT, ref="refs/heads/main")
PUSH = Change(
    event="push",
    commit=COMMIT,
    repository="ann/shop",
    ref="refs/heads/main",
    branch="main",
    before=BEFORE,
    actor="ann",
    title="Mend it",
    default_branch="main",
)
PULL = Change(
    event="pull_request",
    commit=COMMIT,
    repository="ann/shop",
    ref="refs/pull/7/head",
    branch="main",
    head="topic",
    base=BEFORE,
    number=7,
    action="opened",
    title="Please",
    actor="bob",
    default_branch="main",
)


def compiled(text: str, change: Change = PUSH, **options: Any) -> CompileResult:
    """Compile a valid file. Unless `changed` is given, the changed files are unknown."""
    parsed = parse_pipeline(text)
    assert parsed.pipeline is not None, "\n".join(map(str, parsed.problems))
    return compile_pipeline(parsed, change, **{"changed": None, "source": SOURCE, **options})


def plan(text: str, change: Change = PUSH, **options: Any) -> Plan:
    """Return the plan of a file that compiles without errors."""
    result = compiled(text, change, **options)
    assert result.plan is not None, "\n".join(map(str, result.problems))
    return result.plan


def job(text: str, name: str = "test", change: Change = PUSH, **options: Any) -> PlannedJob:
    """Return one job of the plan."""
    return by_name(plan(text, change, **options))[name]


def by_name(plan: Plan) -> dict[str, PlannedJob]:
    return {job.spec.name: job for job in plan.jobs}


def work(text: str, name: str = "test", change: Change = PUSH, **options: Any) -> dict[str, Any]:
    """Return the specification that the runner gets for one job."""
    spec: dict[str, Any] = job(text, name, change, **options).spec.work
    return spec


def problems(text: str, change: Change = PUSH, **options: Any) -> list[str]:
    """Return the problems of a file that does not compile, as `line:column: message`."""
    result = compiled(text, change, **options)
    assert result.plan is None
    return [str(problem).removeprefix(".deltaci.yml:") for problem in result.problems]
