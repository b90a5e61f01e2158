"""`deltaci template`: manage templates, which are reusable plans."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import typer
from rich.text import Text

from deltaci.api.schemas import records as api
from deltaci.cli import arguments
from deltaci.cli.completers import complete_template
from deltaci.cli.output import TableOutput, ago, console, facts, safe, show, since
from deltaci.cli.session import CommandSession, command

app = typer.Typer(
    name="template",
    add_completion=False,
    help="Save, list and show templates: reusable plans.",
    no_args_is_help=True,
)

NameArgument = Annotated[
    str, typer.Argument(metavar="NAME", help="The template's name.", autocompletion=complete_template)
]


@command(app, "list")
def list_command(session: CommandSession) -> None:
    """List templates by name, with their newest versions.

    Example:

      deltaci template list
    """
    _print(session, list(session.client.iter_templates()), "no templates; save one with 'deltaci template save'")


@command(app, "versions")
def versions_command(session: CommandSession, name: NameArgument) -> None:
    """List the versions of a template, oldest first.

    Example:

      deltaci template versions deploy
    """
    _print(session, list(session.client.iter_versions(name)), "no versions")


def _print(session: CommandSession, found: list[api.TemplateSummary], empty: str) -> None:
    if session.is_json:
        session.print_json(found)
        return
    rows = TableOutput("NAME", "#VERSION", "SAVED", "~BY", "~DESCRIPTION")
    for each in found:
        rows.add(each.name, each.version, since(each.created_at), each.created_by, each.description)
    rows.print(empty)


@command(app, "show")
def show_command(
    session: CommandSession,
    name: Annotated[
        str,
        typer.Argument(metavar="NAME[@VERSION]", help="The template's name.", autocompletion=complete_template),
    ],
) -> None:
    """Show a template: its inputs and its plan.

    Example:

      deltaci template show deploy@2
    """
    _show(session, session.client.template(*arguments.template(name)))


def _show(session: CommandSession, found: api.Template) -> None:
    if session.is_json:
        session.print_json(found)
        return
    out = console()
    show(
        facts(
            (
                ("template", f"{found.name}@{found.version}"),
                ("about", found.description),
                ("saved", f"{ago(found.created_at)} by {found.created_by}"),
                ("fail fast", "yes" if found.plan.fail_fast else ""),
            )
        )
    )
    if found.inputs:
        rows = TableOutput("INPUT", "NEEDED", "DEFAULT", "~CHOICES", "~DESCRIPTION")
        for name, rule in found.inputs.items():
            rows.add(name, "yes" if rule.required else "", rule.default, ", ".join(rule.choices), rule.description)
        out.print()
        show(rows.table())
    rows = TableOutput("JOB", "KIND", "~NEEDS", "~RUNS ON", "~STEPS")
    is_chain = all(job.needs is None and not job.after for job in found.plan.jobs)
    for job in found.plan.jobs:
        needs = "(previous)" if is_chain and job is not found.plan.jobs[0] else ", ".join(job.needs or ())
        steps = msgspec.to_builtins(job.work).get("steps", []) if job.work is not None else []
        shown = "; ".join(step if isinstance(step, str) else str(step.get("run", step)) for step in steps)
        rows.add(job.name, job.kind, needs, ", ".join(job.runs_on), shown)
    out.print()
    show(rows.table())


@command(app, "save")
def save_command(
    session: CommandSession,
    name: NameArgument,
    file: Annotated[str, typer.Argument(metavar="FILE", help="A plan or a template, as JSON; - reads standard input.")],
    description: Annotated[str, typer.Option(help="A description; overrides that of the file.")] = "",
    expect: Annotated[
        int | None,
        typer.Option(
            min=0, metavar="VERSION", help="Fails unless this is the newest version; 0: fails if the template exists."
        ),
    ] = None,
) -> None:
    """Save a new version of a template. Runs keep the version that they started with.

    The file contains a plan, {"jobs": […]}, or a template, {"plan": {"jobs": […]},
    "inputs": {"env": {"required": true}}}. An input is passed to every job as an environment
    variable, here INPUT_ENV.

    Example:

      deltaci template save deploy deploy.json
    """
    given = arguments.json_file(file)
    body: dict[str, Any] = given if "plan" in given else {"plan": given}
    unknown = set(body) - {"plan", "description", "inputs", "expected_version"}
    if unknown:
        raise ValueError(f"{file} has a field {min(unknown)!r}; a template has plan, description and inputs")
    saved = session.client.save_template(
        name,
        body["plan"],
        description=description or body.get("description", ""),
        inputs=body.get("inputs"),
        expected_version=expect if expect is not None else body.get("expected_version"),
    )
    if session.is_json:
        session.print_json(saved)
    else:
        print(f"saved {safe(saved.name)}@{saved.version}")


@command(app, "remove")
def remove_command(session: CommandSession, name: NameArgument) -> None:
    """Remove a template. Its runs are kept.

    Example:

      deltaci template remove deploy
    """
    gone = session.client.remove_template(name)
    if session.is_json:
        session.print_json(gone)
    else:
        console().print(f"removed {safe(gone.name)};", Text(f"its newest version was {gone.version}", style="dim"))
