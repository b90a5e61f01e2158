"""The table of docs/planning.md is true."""

from __future__ import annotations

import re

import pytest
from msgspec.structs import replace

from deltaci.pipeline.planning import compile, job_filter, select
from tests.pipeline.parse.good import ROOT
from tests.pipeline.planning.planned import PUSH, plan

PAGE = (ROOT / "docs" / "planning.md").read_text("utf-8")
FILE = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)[0]


def rows() -> list[tuple[str, str, str]]:
    """Branch, what changed, what is kept."""
    found = []
    for table in re.findall(r"\| changed on `(\w+)` \| kept \|\n\|---\|---\|\n((?:\|.*\n)+)", PAGE):
        branch, lines = table
        for line in lines.splitlines():
            _, changed, kept, _ = line.split("|")
            found.append((branch, changed.strip(), kept.strip()))
    return found


@pytest.mark.parametrize(("branch", "changed", "kept"), rows())
def test_a_diff_keeps_what_the_page_says(branch: str, changed: str, kept: str) -> None:
    """And every job has its reason."""
    paths = None if changed == "not known" else frozenset(re.findall(r"`([^`]+)`", changed))
    change = replace(PUSH, branch=branch, ref=f"refs/heads/{branch}")

    made = plan(FILE, change, changed=paths)

    names = [job.spec.name for job in made.jobs]
    assert sorted(names) == sorted(kept.split())
    assert sorted([*names, *(each.name for each in made.excluded)]) == sorted(plan_of_all())
    codes = {*select.CODES, *job_filter.CODES}
    assert all(job.code in codes and job.reason for job in made.jobs)
    assert all(each.code in codes and each.reason for each in made.excluded)


def plan_of_all() -> list[str]:
    """Every job of the file."""
    return [job.spec.name for job in plan(FILE).jobs]


def test_the_table_is_long_enough() -> None:
    """Both branches, and what is not known."""
    assert len(rows()) >= 15
    assert {branch for branch, _, _ in rows()} == {"main", "topic"}


def test_the_page_has_every_code() -> None:
    """Programs depend on these words."""
    for code in (*job_filter.CODES, compile.UNTRUSTED):
        assert f"| `{code}` |" in PAGE
