"""Render a proposal as a pipeline file: each job with its evidence as comments. Guessed jobs are commented out."""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import wrap
from typing import Final

from deltaci.pipeline import model
from deltaci.pipeline.detect.findings import Finding, Proposal
from deltaci.pipeline.parse.printer import format_pipeline

WIDTH: Final = 110
HEADER: Final = (
    "Written by `deltaci init` from the files of this repository. Edit it as needed, and check it with `deltaci lint`.",
    "Without this file, the jobs that are not commented out are detected and run automatically.",
)
NOTHING_CERTAIN: Final = "deltaci init found no job that is certain: choose from the comments in .deltaci.yml"


def render_pipeline_file(proposal: Proposal) -> str:
    """Return the text of the pipeline file. Parsing it returns the pipeline of the proposal, without problems."""
    lines = [f"# {line}" for line in HEADER]
    lines += ["", "jobs:"]
    included = [finding for finding in proposal.findings if finding.is_included]
    for finding in included:
        lines += [*_explanation(finding), *_job_lines(finding.id, finding.job), ""]
    if not included:
        job = model.Job(checkout=False, steps=(model.Step(run=f"echo '{NOTHING_CERTAIN}'\nexit 1\n"),))
        lines += [
            "  # This job fails on purpose, because a run without tests must not succeed.",
            *_job_lines("undecided", job),
            "",
        ]
    for finding in proposal.findings:
        if not finding.is_included:
            lines += [
                *_explanation(finding),
                *(f"  # {line[2:]}".rstrip() for line in _job_lines(finding.id, finding.job)),
                "",
            ]
    if proposal.unclear:
        lines += [
            "# Also detected:",
            *(line for message in proposal.unclear for line in _comment_lines(f"- {message}", "", "  ")),
            "",
        ]
    return "\n".join(lines).rstrip("\n") + "\n"


def _explanation(finding: Finding) -> Iterator[str]:
    reason = f": {finding.reason}" if finding.reason else ""
    yield from _comment_lines(f"{finding.title} ({finding.confidence}{reason})", "  ")
    for message in (*finding.evidence, *finding.hints):
        yield from _comment_lines(f"- {message}", "  ", "  ")


def _job_lines(name: str, job: model.Job) -> list[str]:
    _, _, text = format_pipeline(model.Pipeline(jobs={name: job})).partition("jobs:\n")
    return text.splitlines()


def _comment_lines(text: str, indent: str, hanging_indent: str = "") -> Iterator[str]:
    for index, line in enumerate(wrap(text, WIDTH, break_on_hyphens=False)):
        yield f"{indent}# {hanging_indent if index else ''}{line}"
