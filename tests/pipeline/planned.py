"""Plans for tests: a text and a change in, a plan out."""

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


def compiled(text: str, change: Change = PUSH, **given: Any) -> CompileResult:
    """What becomes of a file; nothing is known of the diff unless it is said."""
    found = parse_pipeline(text)
    assert found.pipeline is not None, "\n".join(map(str, found.problems))
    return compile_pipeline(found, change, **{"changed": None, "source": SOURCE, **given})


def plan(text: str, change: Change = PUSH, **given: Any) -> Plan:
    """The plan of a good file."""
    made = compiled(text, change, **given)
    assert made.plan is not None, "\n".join(map(str, made.problems))
    return made.plan


def job(text: str, name: str = "test", change: Change = PUSH, **given: Any) -> PlannedJob:
    """One job of the plan."""
    return by_name(plan(text, change, **given))[name]


def by_name(made: Plan) -> dict[str, PlannedJob]:
    """The jobs of a plan."""
    return {each.spec.name: each for each in made.jobs}


def work(text: str, name: str = "test", change: Change = PUSH, **given: Any) -> dict[str, Any]:
    """What the runner is told of one job."""
    found: dict[str, Any] = job(text, name, change, **given).spec.work
    return found


def problems(text: str, change: Change = PUSH, **given: Any) -> list[str]:
    """Why there is no plan: `line:column: what`."""
    made = compiled(text, change, **given)
    assert made.plan is None
    return [str(each).removeprefix(".deltaci.yml:") for each in made.problems]
