"""A large repository is planned while nobody waits."""

from __future__ import annotations

import time

import pytest

from deltaci.pipeline.parse.reader import parse_pipeline
from deltaci.pipeline.planning.compile import check_triggers, compile_pipeline
from deltaci.pipeline.planning.plan import Plan
from tests.pipeline.planning.monorepo import files, pipeline
from tests.pipeline.planning.planned import PUSH, SOURCE, problems

PROJECTS, FILES = 60, 2000
SOON_SECONDS = 5.0  # Of a busy machine; alone it takes a tenth of that.


def planned(text: str, changed: list[str]) -> Plan:
    """Parse and compile a text."""
    found = parse_pipeline(text)
    assert found.pipeline is not None, found.problems
    assert check_triggers(found.pipeline, PUSH, changed)[0]
    made = compile_pipeline(found, PUSH, changed=changed, source=SOURCE)
    assert made.plan is not None, made.problems
    return made.plan


def test_a_monorepo_of_sixty_projects_is_planned_in_a_second(capsys: pytest.CaptureFixture[str]) -> None:
    """With parsing, selection by changed paths, compilation and hash."""
    text, everything = pipeline(PROJECTS), files(FILES, PROJECTS)

    began = time.process_time()
    whole = planned(text, everything)
    took = time.process_time() - began
    few = planned(text, [f"packages/p{PROJECTS - 1}/src/a.py"])

    with capsys.disabled():
        print(f" {took:.2f} s ", end="")
    assert took < SOON_SECONDS
    assert len(whole.jobs) == 4 * PROJECTS
    assert not whole.excluded
    assert {job.job for job in few.jobs} == {f"{kind}-p{PROJECTS - 1}" for kind in ("build", "test", "ship")}
    assert len(few.excluded) == 3 * (PROJECTS - 1)


def test_a_plan_that_is_too_large_is_rejected_before_it_is_built() -> None:
    """A small file can request a huge plan by combinations and repeated texts."""
    some = "[" + ", ".join(map(str, range(16))) + "]"
    many = f"strategy: {{matrix: {{a: {some}, b: {some}}}}}"
    long = "'" + "x" * 90_000 + "'"
    wide = "".join(f"  j{n}: {{{many}, steps: [x]}}\n" for n in range(45))
    deep = f"  a:\n    steps: [&a {long}" + ", *a" * 20 + "]\n"
    both = f"  a: {{{many}, steps: [&a {long}, *a, *a]}}\n"

    assert "more than 10,000 jobs with all matrices" in problems("jobs:\n" + wide)[0]
    assert "bytes of steps in the job 'a'" in problems("jobs:\n" + deep)[0]
    assert "bytes of steps in the job 'a'" in problems("jobs:\n" + both)[0]


def test_expensive_expressions_are_stopped() -> None:
    """All expressions share a budget. Conditions that exceed it are left to the runner."""
    heavy = "{run: x, if: \"contains(format('" + "{0}" * 600 + "', github.repository), vars.a) || env.B\"}"
    steps = f"[&a {heavy}{', *a' * 100}]"
    text = f"jobs:\n  a: {{strategy: {{matrix: {{a: [{', '.join(map(str, range(40)))}]}}}}, steps: {steps}}}\n"
    found = parse_pipeline(text)

    began = time.process_time()
    made = compile_pipeline(found, PUSH, changed=None, variables={"a": "zzz"})
    took = time.process_time() - began

    assert took < 30.0
    assert made.plan is not None
    first, *_, last = made.plan.jobs
    assert first.spec.work["steps"][0]["condition"] == "success() && env.B"
    assert last.spec.work["steps"][0]["condition"].startswith("success() && (contains(format(")


def test_a_long_chain_of_jobs_does_not_recurse_deeply() -> None:
    """With the maximum number of jobs, each needing the one before."""
    jobs = "".join(f"  j{n}: {{needs: j{n - 1}, if: always(), steps: [x]}}\n" for n in range(1, 1000))

    made = planned("jobs:\n  j0: {steps: [x]}\n" + jobs, ["a"])

    assert [job.spec.name for job in made.jobs[:3]] == ["j0", "j1", "j2"]
    assert made.jobs[-1].spec.after == ("j998",)
