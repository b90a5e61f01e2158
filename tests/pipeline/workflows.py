"""Workflows for tests, in as few words as they can have."""

from __future__ import annotations

from textwrap import dedent, indent

from deltaci.pipeline import model
from deltaci.pipeline.github import ParsedWorkflow, parse_workflow

FILE = ".github/workflows/ci.yml"


def job(keys: str = "", steps: str = "- run: make") -> str:
    """A workflow with one job. Its keys begin in line 5, its steps below `steps:`, both in column 5 and 7."""
    more = indent(dedent(keys).strip("\n"), "    ") + "\n" if keys else ""
    runs_on = "" if "runs-on:" in keys else "    runs-on: ubuntu-latest\n"
    return f"on: push\njobs:\n  test:\n{runs_on}{more}    steps:\n{indent(dedent(steps).strip(chr(10)), '      ')}\n"


def found(text: str, files: dict[str, str] | None = None) -> ParsedWorkflow:
    """What the reader says."""
    return parse_workflow(text, FILE, files)


def only_job(text: str, files: dict[str, str] | None = None) -> model.Job:
    """The job of a workflow that is inside."""
    workflow = found(text, files)
    assert workflow.pipeline is not None, [str(problem) for problem in workflow.problems]
    return workflow.pipeline.jobs["test"]


def first_step(steps: str, keys: str = "") -> model.Step:
    """The first step of a job that is inside."""
    read_steps = only_job(job(keys, steps)).steps
    assert read_steps
    return read_steps[0]


def told(text: str, *, notes: bool = False) -> list[str]:
    """What is outside (or the notes), as `line:column: message`."""
    problems = [problem for problem in found(text).problems if problem.is_warning is notes]
    return [str(problem).removeprefix(f"{FILE}:").replace("warning: ", "") for problem in problems]
