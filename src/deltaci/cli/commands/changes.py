"""`deltaci changes`, `deliveries`, `redeliver`: pushes and pull requests, their deliveries and the runs they start."""

from __future__ import annotations

import itertools
from typing import Annotated

import typer

from deltaci.api.schemas import projects as wire
from deltaci.cli.completers import complete_project
from deltaci.cli.output import TableOutput, ago, console, facts, safe, show, since
from deltaci.cli.session import CommandSession, command

app = typer.Typer(add_completion=False)


@command(app, "changes")
def changes_command(
    session: CommandSession,
    change: Annotated[str, typer.Argument(metavar="[CHANGE]", help="Show one change, by id.")] = "",
    project: Annotated[
        str | None, typer.Option(help="Only changes of this project.", autocompletion=complete_project)
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Maximum number to show.")] = 20,
) -> None:
    """List pushes and pull requests and the runs they started, newest first.

    Examples:

      deltaci changes --project shop

      deltaci changes c5f0c2b7
    """
    if change:
        found = session.client.change(change)
        session.print_json(found) if session.is_json else _one(found)
        return
    every = list(itertools.islice(session.client.iter_changes(project=project), limit))
    if session.is_json:
        session.print_json(every)
        return
    rows = TableOutput("CHANGE", "PROJECT", "EVENT", "~REF", "COMMIT", "STATUS", "WHEN", "~RESULT")
    for each in every:
        runs = ", ".join(file.run for file in each.files if file.run)
        rows.add(
            each.id,
            each.project,
            f"{each.event} {each.action}".strip(),
            each.ref,
            each.commit[:12],
            each.status.replace("_", " "),
            since(each.created_at),
            runs or each.reason,
        )
    rows.print("no changes yet; webhooks, Git hooks, polling and schedules report them to the server")


@command(app, "deliveries")
def deliveries_command(
    session: CommandSession,
    project: Annotated[str, typer.Argument(help="The project.", autocompletion=complete_project)],
    limit: Annotated[int, typer.Option(min=1, max=500, help="Maximum number to show.")] = 20,
) -> None:
    """List the last webhook deliveries to a project, newest first: when, event, answer and run.

    Examples:

      deltaci deliveries shop --limit 100
    """
    deliveries = list(itertools.islice(session.client.iter_deliveries(project), limit))
    if session.is_json:
        session.print_json(deliveries)
        return
    rows = TableOutput("WHEN", "DELIVERY", "EVENT", "~REF", "ANSWER", "CHANGE", "~RESULT")
    for delivery in deliveries:
        rows.add(
            since(delivery.at),
            delivery.delivery[:13],
            delivery.event,
            delivery.ref,
            delivery.result,
            delivery.change,
            ", ".join(delivery.runs) or delivery.reason,
        )
    rows.print("no deliveries yet; configure the webhook of the project's forge")


@command(app, "redeliver")
def redeliver_command(
    session: CommandSession,
    change: Annotated[str, typer.Argument(help="The id of the change.")],
) -> None:
    """Handle a change again that could not be handled, for instance because its repository was unreachable.

    Examples:

      deltaci redeliver c5f0c2b7
    """
    redelivered = session.client.redeliver(change)
    if session.is_json:
        session.print_json(redelivered)
        return
    _one(redelivered)


def _one(found: wire.Change) -> None:
    show(
        facts(
            (
                ("change", found.id),
                ("status", found.status.replace("_", " ")),
                ("outcome", found.reason),
                ("project", found.project),
                ("event", f"{found.event} {found.action}".strip()),
                ("pull request", f"{found.number}{' from a fork' if found.is_fork else ''}" if found.number else ""),
                ("schedule", found.cron),
                ("ref", found.ref),
                ("commit", found.commit),
                ("title", found.title),
                ("by", found.actor),
                ("told", f"{ago(found.created_at)} as {found.delivery}"),
                ("tries", found.tries if found.tries > 1 else ""),
                ("superseded", ", ".join(found.superseded)),
            )
        )
    )
    if found.files:
        rows = TableOutput("FILE", "RUN", "~WHY")
        for each in found.files:
            rows.add(safe(each.file), each.run, each.reason)
        console().print()
        show(rows.table())
