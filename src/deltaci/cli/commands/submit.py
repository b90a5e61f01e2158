"""`deltaci submit` and `deltaci rerun`: start a run and wait for its outcome."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from deltaci.api.schemas import records as api
from deltaci.cli import arguments
from deltaci.cli.completers import complete_run, complete_template
from deltaci.cli.event_output import tell_event, tell_outcome
from deltaci.cli.session import CommandSession, command, leave_by

app = typer.Typer(add_completion=False)

RunArgument = Annotated[str, typer.Argument(metavar="RUN", help="The run's id.", autocompletion=complete_run)]
WaitOption = Annotated[bool, typer.Option("--wait", help="Wait until the run ends; the exit code reflects the result.")]
FollowOption = Annotated[bool, typer.Option("--follow", "-f", help="Like --wait, and print events as they happen.")]
KeyOption = Annotated[str, typer.Option("--idempotency-key", help="Requests with the same key start only one run.")]

TemplateOption = Annotated[
    str,
    typer.Option(
        "--template",
        "-t",
        metavar="NAME[@VERSION]",
        help="The template to start from.",
        autocompletion=complete_template,
    ),
]
RepositoryOption = Annotated[
    str, typer.Option(help="The project of the run. Without a plan or a template, run its pipelines.")
]


@command(app, "submit")
def submit_command(
    session: CommandSession,
    plan: Annotated[
        str, typer.Argument(metavar="[PLAN]", help="A file with the plan, as JSON; - reads standard input.")
    ] = "",
    template: TemplateOption = "",
    input: Annotated[
        list[str] | None,
        typer.Option("--input", "-i", metavar="NAME=VALUE", help="An input of the template or the pipeline file."),
    ] = None,
    project: Annotated[str, typer.Option(help="The project to record for the run.")] = "",
    branch: Annotated[str, typer.Option(help="The branch of the run.")] = "",
    commit: Annotated[str, typer.Option(help="The commit of the run.")] = "",
    repository: RepositoryOption = "",
    file: Annotated[str, typer.Option(help="With --repository: the pipeline file to run.")] = "",
    title: Annotated[str, typer.Option(help="A one-line title.")] = "",
    label: Annotated[list[str] | None, typer.Option(help="A label to find the run by. May be repeated.")] = None,
    idempotency_key: KeyOption = "",
    wait: WaitOption = False,
    follow: FollowOption = False,
) -> None:
    """Start a run from a template, a plan or a repository, and print its id.

    The plan is a JSON object: {"jobs": [{"name": "hello", "work": {"steps":
    ["echo hello"]}}]}. See docs/cli.md for more examples.

    Examples:

      deltaci submit --template deploy --input env=staging --follow

      deltaci submit plan.json --branch main --wait

      deltaci submit --repository shop --branch main --follow
    """
    if (template and plan) or not (template or plan or repository):
        raise ValueError("give one of: a file with a plan, --template NAME, --repository PROJECT")
    what: dict[str, Any] = {"plan": arguments.json_file(plan)} if plan else {}
    if template:
        what["template"], what["version"] = arguments.template(template)
    elif input and plan:
        raise ValueError("--input needs --template or --repository; a plan has no inputs")
    run = session.client.start(
        **what,
        inputs=arguments.pairs(input),
        project=project,
        branch=branch,
        commit=commit,
        repository=repository,
        file=file,
        title=title,
        labels=label or (),
        idempotency_key=idempotency_key,
    )
    started(session, run, wait=wait, follow=follow)


@command(app, "rerun")
def rerun_command(
    session: CommandSession,
    run: RunArgument,
    failed: Annotated[bool, typer.Option("--failed", help="Only failed and cancelled jobs.")] = False,
    idempotency_key: KeyOption = "",
    wait: WaitOption = False,
    follow: FollowOption = False,
) -> None:
    """Start a new run of all jobs or only the failed ones, and print its id.

    Example:

      deltaci rerun r4c1d --failed --wait
    """
    new = session.client.rerun(arguments.run_only(run), failed_only=failed, idempotency_key=idempotency_key)
    started(session, new, wait=wait, follow=follow)


def started(session: CommandSession, run: api.Run, *, wait: bool, follow: bool) -> None:
    """Say which run it is; with patience also what became of it."""
    if not wait and not follow:
        if session.is_json:
            session.print_json(run)
            return
        print(run.id)
        if sys.stdout.isatty():
            print(f"watch it: deltaci show {run.id} --watch", file=sys.stderr)
        return
    if not session.is_json:
        print(run.id, flush=True)
    for event in session.client.follow(run.id) if follow else ():
        tell_event(session, event, run.id)
    over = session.client.wait(run.id)
    if session.is_json and not follow:
        session.print_json(over)
    elif not session.is_json:
        tell_outcome(over)
    leave_by(over)
