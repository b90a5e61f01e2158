"""Minimal workflow files for tests."""

from __future__ import annotations

from textwrap import dedent, indent

from deltaci.pipeline import model
from deltaci.pipeline.github import ParsedWorkflow, parse_workflow

FILE = ".github/workflows/ci.yml"


def job(keys: str = "", steps: str = "- run: make") -> str:
    """Return a workflow with one job. Its keys begin in line 5, column 5, its steps in column 7."""
    more = indent(dedent(keys).strip("\n"), "    ") + "\n" if keys else ""
    runs_on = "" if "runs-on:" in keys else "    runs-on: ubuntu-latest\n"
    return f"on: push\njobs:\n  test:\n{runs_on}{more}    steps:\n{indent(dedent(steps).strip(chr(10)), '      ')}\n"


def parsed(text: str, files: dict[str, str] | None = None) -> ParsedWorkflow:
    return parse_workflow(text, FILE, files)


def only_job(text: str, files: dict[str, str] | None = None) -> model.Job:
    """Return the job of a supported workflow."""
    workflow = parsed(text, files)
    assert workflow.pipeline is not None, [str(problem) for problem in workflow.problems]
    return workflow.pipeline.jobs["test"]


def first_step(steps: str, keys: str = "") -> model.Step:
    """Return the first step of a supported job."""
    steps_ = only_job(job(keys, steps)).steps
    assert steps_
    return steps_[0]


def messages(text: str, *, notes: bool = False) -> list[str]:
    """Return the errors (or the warnings) of a workflow, as `line:column: message`."""
    problems = [problem for problem in parsed(text).problems if problem.is_warning is notes]
    return [str(problem).removeprefix(f"{FILE}:").replace("warning: ", "") for problem in problems]
