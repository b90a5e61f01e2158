"""`deltaci submit` and `deltaci rerun`: start a run, and wait for what becomes of it."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from deltaci.api.schemas import records as api
from deltaci.cli import inputs
from deltaci.cli.completing import complete_run, complete_template
from deltaci.cli.session import Session, command, leave_by
from deltaci.cli.telling import tell_event, tell_outcome

app = typer.Typer(add_completion=False)

RunArgument = Annotated[str, typer.Argument(metavar="RUN", help="The run's id.", autocompletion=complete_run)]
WaitOption = Annotated[
    bool, typer.Option("--wait", help="Wait until the run is over; the exit code tells how it ended.")
]
FollowOption = Annotated[bool, typer.Option("--follow", "-f", help="The same, and show what happens meanwhile.")]
KeyOption = Annotated[
    str, typer.Option("--idempotency-key", help="The same key again gives the same run, not another one.")
]

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
    str, typer.Option(help="The repository that it is about; without a plan and a template, the project to run.")
]


@command(app, "submit")
def submit_command(
    session: Session,
    plan: Annotated[
        str, typer.Argument(metavar="[PLAN]", help="A file with the plan, as JSON; - reads standard input.")
    ] = "",
    template: TemplateOption = "",
    input: Annotated[
        list[str] | None,
        typer.Option("--input", "-i", metavar="NAME=VALUE", help="What the template or the file asks for."),
    ] = None,
    project: Annotated[str, typer.Option(help="What it belongs to.")] = "",
    branch: Annotated[str, typer.Option(help="The branch that it is about.")] = "",
    commit: Annotated[str, typer.Option(help="The commit that it is about.")] = "",
    repository: RepositoryOption = "",
    file: Annotated[str, typer.Option(help="Of a repository: the pipeline file to run.")] = "",
    title: Annotated[str, typer.Option(help="One line for people.")] = "",
    label: Annotated[list[str] | None, typer.Option(help="To find it by; may be repeated.")] = None,
    idempotency_key: KeyOption = "",
    wait: WaitOption = False,
    follow: FollowOption = False,
) -> None:
    """Start a run, from a template, from a plan or from a repository, and print its id.

    The plan is a JSON object: {"jobs": [{"name": "hello", "work": {"steps":
    ["echo hello"]}}]}. See docs/cli.md for more of them.

    Examples:

      deltaci submit --template deploy --input env=staging --follow

      deltaci submit plan.json --branch main --wait

      deltaci submit --repository shop --branch main --follow
    """
    if (template and plan) or not (template or plan or repository):
        raise ValueError("give one of: a file with a plan, --template NAME, --repository PROJECT")
    what: dict[str, Any] = {"plan": inputs.json_file(plan)} if plan else {}
    if template:
        what["template"], what["version"] = inputs.template(template)
    elif input and plan:
        raise ValueError("--input belongs to a template or a repository; a plan has none")
    run = session.client.start(
        **what,
        inputs=inputs.pairs(input),
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
    session: Session,
    run: RunArgument,
    failed: Annotated[bool, typer.Option("--failed", help="Only what failed or was cancelled.")] = False,
    idempotency_key: KeyOption = "",
    wait: WaitOption = False,
    follow: FollowOption = False,
) -> None:
    """Start a new run that does the same again, or only what failed, and print its id.

    Example:

      deltaci rerun r4c1d --failed --wait
    """
    new = session.client.rerun(inputs.run_only(run), failed_only=failed, idempotency_key=idempotency_key)
    started(session, new, wait=wait, follow=follow)


def started(session: Session, run: api.Run, *, wait: bool, follow: bool) -> None:
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
