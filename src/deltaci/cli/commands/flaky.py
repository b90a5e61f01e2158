"""`deltaci flaky`: list flaky jobs and tests."""

from __future__ import annotations

from typing import Annotated

import typer

from deltaci.cli.output import TableOutput, since
from deltaci.cli.session import CommandSession, command

app = typer.Typer(add_completion=False)


@command(app, "flaky")
def flaky_command(
    session: CommandSession,
    project: Annotated[str | None, typer.Option(help="Only tests and jobs of this project.", metavar="NAME")] = None,
) -> None:
    """List flaky jobs and tests: those that both failed and succeeded on the same commit.

    Example:

      deltaci flaky --project shop
    """
    found = list(session.client.iter_flaky(project=project))
    if session.is_json:
        session.print_json(found)
        return
    rows = TableOutput("JOB", "PROJECT", "TEST", "#TIMES", "LAST", "~COMMIT")
    for job in found:
        if job.is_flaky:
            rows.add(job.job, job.project, "(the job itself)", job.times, since(job.last_at), "")
        for test in job.tests:
            rows.add(job.job, job.project, test.name, test.times, since(test.last_at), test.commit[:12])
    rows.print("no flaky tests or jobs are known")
