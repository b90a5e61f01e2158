"""A large repository is planned while nobody waits."""

from __future__ import annotations

import time

import pytest

from deltaci.pipeline.compile import compile, triggered
from deltaci.pipeline.plan import Plan
from deltaci.pipeline.reader import read
from tests.pipeline.monorepo import files, pipeline
from tests.pipeline.planned import PUSH, SOURCE

PROJECTS, FILES = 60, 2000
SOON_SECONDS = 5.0  # Of a busy machine; alone it takes a tenth of that.


def planned(text: str, changed: list[str]) -> Plan:
    """Everything from the text on."""
    found = read(text)
    assert found.pipeline is not None, found.problems
    assert triggered(found.pipeline, PUSH, changed)[0]
    made = compile(found, PUSH, changed=changed, source=SOURCE)
    assert made.plan is not None, made.problems
    return made.plan


def test_a_monorepo_of_sixty_projects_is_planned_in_a_second(capsys: pytest.CaptureFixture[str]) -> None:
    """Read, selected by the diff, compiled and hashed."""
    text, everything = pipeline(PROJECTS), files(FILES, PROJECTS)

    began = time.process_time()
    whole = planned(text, everything)
    took = time.process_time() - began
    few = planned(text, [f"packages/p{PROJECTS - 1}/src/a.py"])

    with capsys.disabled():
        print(f" {took:.2f} s ", end="")
    assert took < SOON_SECONDS
    assert len(whole.kept) == 4 * PROJECTS
    assert not whole.left_out
    assert {each.job for each in few.kept} == {f"{kind}-p{PROJECTS - 1}" for kind in ("build", "test", "ship")}
    assert len(few.left_out) == 3 * (PROJECTS - 1)


def test_a_long_chain_of_jobs_is_no_deep_recursion() -> None:
    """As many jobs as a file may have, one after the other."""
    jobs = "".join(f"  j{n}: {{needs: j{n - 1}, if: always(), steps: [x]}}\n" for n in range(1, 1000))

    made = planned("jobs:\n  j0: {steps: [x]}\n" + jobs, ["a"])

    assert [each.spec.name for each in made.kept[:3]] == ["j0", "j1", "j2"]
    assert made.kept[-1].spec.after == ("j998",)
