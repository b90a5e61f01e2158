"""A proposal as a pipeline file: every job with why it is there, and guesses as comments, which run nothing."""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import wrap
from typing import Final

from deltaci.pipeline import model
from deltaci.pipeline.detect.findings import Finding, Proposal
from deltaci.pipeline.parse.printer import format_pipeline

WIDTH: Final = 110
HEAD: Final = (
    "Written by `deltaci init`, from what is in this repository. It is yours now: change what is wrong, and check it",
    "with `deltaci lint`. Without this file, the jobs that are not commented out would run all the same.",
)
NOTHING: Final = "deltaci init was not sure what to run here: choose from the comments in .deltaci.yml"


def written(proposal: Proposal) -> str:
    """The whole file. It reads back as the proposal's pipeline, without a problem."""
    lines = [f"# {line}" for line in HEAD]
    lines += ["", "jobs:"]
    sure = [finding for finding in proposal.findings if finding.is_run]
    for finding in sure:
        lines += [*_why(finding), *_job(finding.id, finding.job), ""]
    if not sure:
        job = model.Job(checkout=False, steps=(model.Step(run=f"echo '{NOTHING}'\nexit 1\n"),))
        lines += ["  # A run in which nothing is tested must not look like a good one.", *_job("undecided", job), ""]
    for finding in proposal.findings:
        if not finding.is_run:
            lines += [*_why(finding), *(f"  # {line[2:]}".rstrip() for line in _job(finding.id, finding.job)), ""]
    if proposal.unclear:
        lines += [
            "# Seen as well:",
            *(line for each in proposal.unclear for line in _comment(f"- {each}", "", "  ")),
            "",
        ]
    return "\n".join(lines).rstrip("\n") + "\n"


def _why(finding: Finding) -> Iterator[str]:
    doubt = f": {finding.reason}" if finding.reason else ""
    yield from _comment(f"{finding.what} ({finding.confidence}{doubt})", "  ")
    for each in (*finding.evidence, *finding.hints):
        yield from _comment(f"- {each}", "  ", "  ")


def _job(name: str, job: model.Job) -> list[str]:
    _, _, text = format_pipeline(model.Pipeline(jobs={name: job})).partition("jobs:\n")
    return text.splitlines()


def _comment(text: str, space: str, further: str = "") -> Iterator[str]:
    for number, line in enumerate(wrap(text, WIDTH, break_on_hyphens=False)):
        yield f"{space}# {further if number else ''}{line}"
