"""`deltaci project`: manage projects, and install hooks that report pushes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any, Final, get_args

import msgspec
import typer
from rich.text import Text

from deltaci.api.schemas import projects as wire
from deltaci.cli import arguments, git_hooks
from deltaci.cli.completers import complete_project
from deltaci.cli.output import TableOutput, ago, console, facts, safe, show, since
from deltaci.cli.session import CommandSession, command
from deltaci.client.errors import ApiError

app = typer.Typer(
    name="project",
    add_completion=False,
    help="Add, list, edit and remove projects (repositories).",
    no_args_is_help=True,
)

FORGES: Final = get_args(wire.ForgeKind)
SUPERSEDED: Final = get_args(wire.Superseded)
REPORTS: Final = get_args(wire.Reports)

NameArgument = Annotated[
    str, typer.Argument(metavar="NAME", help="The project's name.", autocompletion=complete_project)
]
ForgeOption = Annotated[
    str | None, typer.Option(help=f"The forge that hosts it: {', '.join(FORGES)}.", autocompletion=lambda: list(FORGES))
]
BranchOption = Annotated[
    str | None, typer.Option("--default-branch", help="The default branch. Default: that of the repository.")
]
CredentialOption = Annotated[
    str | None,
    typer.Option(
        metavar="SECRET", help="The name of the secret for cloning: a token, user:password, or a private key for ssh."
    ),
]
WebhookOption = Annotated[
    str | None, typer.Option(metavar="SECRET", help="The name of the secret with which the forge signs webhooks.")
]
ApiUrlOption = Annotated[str | None, typer.Option(metavar="URL", help="The URL of the forge API, if not the default.")]
ApiTokenOption = Annotated[
    str | None, typer.Option(metavar="SECRET", help="The name of the secret for reporting statuses to the forge.")
]
ReportsOption = Annotated[
    str | None,
    typer.Option(
        help=f"How results are reported to the forge: {', '.join(REPORTS)}.", autocompletion=lambda: list(REPORTS)
    ),
]
PushesOption = Annotated[
    str | None,
    typer.Option(
        "--supersede-pushes",
        help=f"Which older runs of the branch a push cancels: {', '.join(SUPERSEDED)}.",
        autocompletion=lambda: list(SUPERSEDED),
    ),
]
RequestsOption = Annotated[
    str | None,
    typer.Option(
        "--supersede-pull-requests",
        help=f"Which older runs a new commit of a pull request cancels: {', '.join(SUPERSEDED)}.",
        autocompletion=lambda: list(SUPERSEDED),
    ),
]
ForkRoleOption = Annotated[
    str | None, typer.Option(metavar="ROLE", help="The role that may approve runs of pull requests from forks.")
]
PollOption = Annotated[
    str | None, typer.Option(metavar="TIME", help="The poll interval, e.g. 60s or 5m; 0s: no polling.")
]
SchedulesOption = Annotated[
    bool | None, typer.Option("--schedules/--no-schedules", help="Whether schedules in pipeline files start runs.")
]
DescriptionOption = Annotated[str | None, typer.Option(help="A description.")]

_POLICIES: Final = ("supersede_pushes", "supersede_pull_requests", "fork_role", "poll_seconds", "schedules")


@command(app, "add")
def add_command(
    session: CommandSession,
    name: NameArgument,
    url: Annotated[str, typer.Argument(metavar="URL", help="The URL to clone from: https or ssh.")],
    forge: ForgeOption = None,
    default_branch: BranchOption = None,
    credential: CredentialOption = None,
    webhook_secret: WebhookOption = None,
    api_url: ApiUrlOption = None,
    api_token: ApiTokenOption = None,
    reports: ReportsOption = None,
    supersede_pushes: PushesOption = None,
    supersede_pull_requests: RequestsOption = None,
    fork_role: ForkRoleOption = None,
    poll: PollOption = None,
    schedules: SchedulesOption = None,
    description: DescriptionOption = None,
) -> None:
    """Add a project (a repository). Secrets are given by name, never by value.

    Example:

      deltaci project add shop https://github.com/acme/shop.git --forge github --webhook-secret SHOP_HOOK
    """
    given = _given(locals())
    try:
        saved = session.client.save_project(name, {**_merged({}, given), "url": url, "expected_version": 0})
    except ApiError as error:
        if error.code != "stale_version":
            raise
        raise ValueError(f"the project {name!r} already exists; change it with: deltaci project edit {name}") from None
    _show(session, saved)


@command(app, "list")
def list_command(session: CommandSession) -> None:
    """List projects.

    Example:

      deltaci project list
    """
    found = list(session.client.iter_projects())
    if session.is_json:
        session.print_json(found)
        return
    rows = TableOutput("NAME", "FORGE", "~URL", "~BRANCH", "POLL", "ADDED", "~DESCRIPTION")
    for each in found:
        every = each.policies.poll_seconds
        poll = f"{every} s" if every else ""
        rows.add(each.name, each.forge, each.url, each.default_branch, poll, since(each.created_at), each.description)
    rows.print("no projects; add one with 'deltaci project add NAME URL'")


@command(app, "show")
def show_command(session: CommandSession, name: NameArgument) -> None:
    """Show a project. Secrets are shown by name only.

    Example:

      deltaci project show shop
    """
    _show(session, session.client.project(name))


@command(app, "edit")
def edit_command(
    session: CommandSession,
    name: NameArgument,
    url: Annotated[str | None, typer.Option(help="The URL to clone from.")] = None,
    forge: ForgeOption = None,
    default_branch: BranchOption = None,
    credential: CredentialOption = None,
    webhook_secret: WebhookOption = None,
    api_url: ApiUrlOption = None,
    api_token: ApiTokenOption = None,
    reports: ReportsOption = None,
    supersede_pushes: PushesOption = None,
    supersede_pull_requests: RequestsOption = None,
    fork_role: ForkRoleOption = None,
    poll: PollOption = None,
    schedules: SchedulesOption = None,
    description: DescriptionOption = None,
) -> None:
    """Change a project. Options that are not given keep their value; '' clears a value.

    Example:

      deltaci project edit shop --poll 60s --supersede-pushes all
    """
    given = _given(locals())
    known = session.client.project(name)
    fields = {
        each: value for each, value in msgspec.to_builtins(known).items() if each in wire.ProjectInput.__struct_fields__
    }
    _show(session, session.client.save_project(name, {**_merged(fields, given), "expected_version": known.version}))


@command(app, "remove")
def remove_command(session: CommandSession, name: NameArgument) -> None:
    """Remove a project. Its runs are kept.

    Example:

      deltaci project remove shop
    """
    gone = session.client.remove_project(name)
    if session.is_json:
        session.print_json(gone)
    else:
        console().print(f"removed {safe(gone.name)};", Text(safe(gone.url), style="dim"))


@command(app, "hook")
def hook_command(
    session: CommandSession,
    name: NameArgument,
    repository: Annotated[
        Path, typer.Option(metavar="FOLDER", help="The bare repository on this machine that people push to.")
    ],
    force: Annotated[
        bool, typer.Option("--force", help="Install even if there is a hook; it is kept and called first.")
    ] = False,
) -> None:
    """Install a post-receive hook that reports every push to the server without delaying pushes for long.

    Creates an API key for the hook with the scope 'run'; revoke it with 'deltaci key
    revoke'.

    Example:

      deltaci project hook shop --repository /srv/git/shop.git
    """
    project = session.client.project(name)
    place = git_hooks.HookInstaller(repository)
    place.check(is_forced=force)
    key = session.client.make_key(f"hook-{name}"[:100], ["run"], description=f"hook of {place.folder}"[:200])
    place.install(f"{session.client.url}/api/v1/projects/{project.name}/pushes", key.token, is_forced=force)
    if session.is_json:
        session.print_json({"hook": str(place.hook), "key": key.id, "kept": str(place.kept) if place.has_kept else ""})
        return
    print(f"installed {place.hook}; its key is {key.id}")
    if place.has_kept:
        print(f"the previous hook was moved to {place.kept} and is called first", file=sys.stderr)


def _given(words: dict[str, Any]) -> dict[str, Any]:
    """What was said on the command line."""
    found = {name: value for name, value in words.items() if name not in ("session", "name") and value is not None}
    if "poll" in found:
        found["poll_seconds"] = arguments.seconds(found.pop("poll"))
    return found


def _merged(fields: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    policies = {**fields.get("policies", {}), **{each: given[each] for each in _POLICIES if each in given}}
    plain = {name: value for name, value in given.items() if name not in _POLICIES}
    return {**fields, **plain, "policies": policies}


def _show(session: CommandSession, found: wire.Project) -> None:
    if session.is_json:
        session.print_json(found)
        return
    policies = found.policies
    show(
        facts(
            (
                ("project", found.name),
                ("about", found.description),
                ("url", found.url),
                ("forge", found.forge),
                ("default branch", found.default_branch or "(default branch of the repository)"),
                ("credential", found.credential and f"the secret {found.credential}"),
                ("webhooks", found.webhook_secret and f"signed with the secret {found.webhook_secret}"),
                ("reports", found.api_token and f"{found.reports}, with the secret {found.api_token}"),
                ("API", found.api_url),
                (
                    "supersedes",
                    f"pushes: {policies.supersede_pushes}; pull requests: {policies.supersede_pull_requests}",
                ),
                ("forks", f"approved by {policies.fork_role or 'anyone with the scope approve'}"),
                ("polled", f"every {policies.poll_seconds} s" if policies.poll_seconds else "never"),
                ("schedules", "on" if policies.schedules else "off"),
                ("saved", f"{ago(found.created_at)} by {found.created_by}, version {found.version}"),
            )
        )
    )
