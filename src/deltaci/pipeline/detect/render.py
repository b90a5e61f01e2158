"""Render a proposal as a pipeline file: each job with its evidence as comments. Guessed jobs are commented out."""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import wrap
from typing import Final

from deltaci.pipeline import model
from deltaci.pipeline.detect.proposals import Proposal, ProposedJob
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
    included_jobs = [proposed_job for proposed_job in proposal.proposed_jobs if proposed_job.is_included]
    for proposed_job in included_jobs:
        lines += [*_explanation(proposed_job), *_job_lines(proposed_job.id, proposed_job.job), ""]
    if not included_jobs:
        job = model.Job(checkout=False, steps=(model.Step(run=f"echo '{NOTHING_CERTAIN}'\nexit 1\n"),))
        lines += [
            "  # This job fails on purpose, because a run without tests must not succeed.",
            *_job_lines("undecided", job),
            "",
        ]
    for proposed_job in proposal.proposed_jobs:
        if not proposed_job.is_included:
            lines += [
                *_explanation(proposed_job),
                *(f"  # {line[2:]}".rstrip() for line in _job_lines(proposed_job.id, proposed_job.job)),
                "",
            ]
    if proposal.unclear:
        lines += [
            "# Also detected:",
            *(
                line
                for unclear_message in proposal.unclear
                for line in _comment_lines(f"- {unclear_message}", "", "  ")
            ),
            "",
        ]
    return "\n".join(lines).rstrip("\n") + "\n"


def _explanation(proposed_job: ProposedJob) -> Iterator[str]:
    uncertainty = f": {proposed_job.uncertainty}" if proposed_job.uncertainty else ""
    yield from _comment_lines(f"{proposed_job.title} ({proposed_job.confidence}{uncertainty})", "  ")
    for message in (*proposed_job.evidence, *proposed_job.hints):
        yield from _comment_lines(f"- {message}", "  ", "  ")


def _job_lines(job_id: str, job: model.Job) -> list[str]:
    _, _, jobs_text = format_pipeline(model.Pipeline(jobs={job_id: job})).partition("jobs:\n")
    return jobs_text.splitlines()


def _comment_lines(text: str, indent: str, hanging_indent: str = "") -> Iterator[str]:
    for index, line in enumerate(wrap(text, WIDTH, break_on_hyphens=False)):
        yield f"{indent}# {hanging_indent if index else ''}{line}"
