"""`deltaci project`: the repositories that a server knows, and the hooks that tell it of pushes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any, Final, get_args

import msgspec
import typer
from rich.text import Text

from deltaci.api.schemas import projects as wire
from deltaci.cli import hooks, inputs
from deltaci.cli.completing import complete_project
from deltaci.cli.session import Session, command
from deltaci.cli.shown import Rows, ago, console, facts, safe, show, since
from deltaci.client.errors import ApiError

app = typer.Typer(
    name="project",
    add_completion=False,
    help="Tell a server of repositories, list and change them.",
    no_args_is_help=True,
)

FORGES: Final = get_args(wire.ForgeKind)
SUPERSEDED: Final = get_args(wire.Superseded)
REPORTS: Final = get_args(wire.Reports)

NameArgument = Annotated[
    str, typer.Argument(metavar="NAME", help="The project's name.", autocompletion=complete_project)
]
ForgeOption = Annotated[
    str | None, typer.Option(help=f"What it is on: {', '.join(FORGES)}.", autocompletion=lambda: list(FORGES))
]
BranchOption = Annotated[
    str | None, typer.Option("--default-branch", help="Its main branch; without it, what the repository says.")
]
CredentialOption = Annotated[
    str | None,
    typer.Option(metavar="SECRET", help="The secret to clone with: a token, user:password, or a private key for ssh."),
]
WebhookOption = Annotated[
    str | None, typer.Option(metavar="SECRET", help="The secret by which the forge signs its webhooks.")
]
ApiUrlOption = Annotated[str | None, typer.Option(metavar="URL", help="The forge's API, if it is not the usual one.")]
ApiTokenOption = Annotated[
    str | None, typer.Option(metavar="SECRET", help="The secret with which statuses are reported to the forge.")
]
ReportsOption = Annotated[
    str | None,
    typer.Option(help=f"What the forge is told: {', '.join(REPORTS)}.", autocompletion=lambda: list(REPORTS)),
]
PushesOption = Annotated[
    str | None,
    typer.Option(
        "--supersede-pushes",
        help=f"Which older runs of a branch a push cancels: {', '.join(SUPERSEDED)}.",
        autocompletion=lambda: list(SUPERSEDED),
    ),
]
RequestsOption = Annotated[
    str | None,
    typer.Option(
        "--supersede-pull-requests",
        help=f"The same for pull requests: {', '.join(SUPERSEDED)}.",
        autocompletion=lambda: list(SUPERSEDED),
    ),
]
ForkRoleOption = Annotated[
    str | None, typer.Option(metavar="ROLE", help="Who may approve runs of pull requests from forks.")
]
PollOption = Annotated[
    str | None, typer.Option(metavar="TIME", help="How often to look for pushes: 60s, 5m; 0s for never.")
]
SchedulesOption = Annotated[
    bool | None, typer.Option("--schedules/--no-schedules", help="Whether schedules in its files start runs.")
]
DescriptionOption = Annotated[str | None, typer.Option(help="For people.")]

_POLICIES: Final = ("supersede_pushes", "supersede_pull_requests", "fork_role", "poll_seconds", "schedules")


@command(app, "add")
def add_command(
    session: Session,
    name: NameArgument,
    url: Annotated[str, typer.Argument(metavar="URL", help="Where to clone it from: https or ssh.")],
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
    """Tell the server of a repository. Secrets are named, never given here.

    Example:

      deltaci project add shop https://github.com/acme/shop.git --forge github --webhook-secret SHOP_HOOK
    """
    given = _given(locals())
    try:
        saved = session.client.save_project(name, {**_merged({}, given), "url": url, "expected_version": 0})
    except ApiError as error:
        if error.code != "stale_version":
            raise
        raise ValueError(f"there is a project {name!r} already; change it with: deltaci project edit {name}") from None
    _show(session, saved)


@command(app, "list")
def list_command(session: Session) -> None:
    """List the repositories that the server knows.

    Example:

      deltaci project list
    """
    found = list(session.client.iter_projects())
    if session.is_json:
        session.print_json(found)
        return
    rows = Rows("NAME", "FORGE", "~URL", "~BRANCH", "POLL", "ADDED", "~DESCRIPTION")
    for each in found:
        every = each.policies.poll_seconds
        poll = f"{every} s" if every else ""
        rows.add(each.name, each.forge, each.url, each.default_branch, poll, since(each.created_at), each.description)
    rows.print("no projects; 'deltaci project add NAME URL' makes one")


@command(app, "show")
def show_command(session: Session, name: NameArgument) -> None:
    """Show what the server knows of a repository; of secrets only their names.

    Example:

      deltaci project show shop
    """
    _show(session, session.client.project(name))


@command(app, "edit")
def edit_command(
    session: Session,
    name: NameArgument,
    url: Annotated[str | None, typer.Option(help="Where to clone it from.")] = None,
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
    """Change what the server knows of a repository. What is not given stays as it is; '' takes it away.

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
def remove_command(session: Session, name: NameArgument) -> None:
    """Let the server forget a repository. Its runs stay.

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
    session: Session,
    name: NameArgument,
    repository: Annotated[
        Path, typer.Option(metavar="FOLDER", help="The bare repository on this machine that people push to.")
    ],
    force: Annotated[
        bool, typer.Option("--force", help="Also where there is a hook: it is kept, and called first.")
    ] = False,
) -> None:
    """Install a post-receive hook: the server hears of every push, and no push waits for it for long.

    A key of its own is made for the hook, with the scope 'run'; 'deltaci key
    revoke' ends it.

    Example:

      deltaci project hook shop --repository /srv/git/shop.git
    """
    project = session.client.project(name)
    place = hooks.Place(repository)
    place.check(is_forced=force)
    key = session.client.make_key(f"hook-{name}"[:100], ["run"], description=f"hook of {place.folder}"[:200])
    place.install(f"{session.client.url}/api/v1/projects/{project.name}/pushes", key.token, is_forced=force)
    if session.is_json:
        session.print_json({"hook": str(place.hook), "key": key.id, "kept": str(place.kept) if place.has_kept else ""})
        return
    print(f"installed {place.hook}; its key is {key.id}")
    if place.has_kept:
        print(f"the hook that was there is {place.kept}, and is called first", file=sys.stderr)


def _given(words: dict[str, Any]) -> dict[str, Any]:
    """What was said on the command line."""
    found = {name: value for name, value in words.items() if name not in ("session", "name") and value is not None}
    if "poll" in found:
        found["poll_seconds"] = inputs.seconds(found.pop("poll"))
    return found


def _merged(fields: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    policies = {**fields.get("policies", {}), **{each: given[each] for each in _POLICIES if each in given}}
    plain = {name: value for name, value in given.items() if name not in _POLICIES}
    return {**fields, **plain, "policies": policies}


def _show(session: Session, found: wire.Project) -> None:
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
                ("default branch", found.default_branch or "(what the repository says)"),
                ("credential", found.credential and f"the secret {found.credential}"),
                ("webhooks", found.webhook_secret and f"signed with the secret {found.webhook_secret}"),
                ("reports", found.api_token and f"{found.reports}, with the secret {found.api_token}"),
                ("API", found.api_url),
                (
                    "supersedes",
                    f"pushes: {policies.supersede_pushes}; pull requests: {policies.supersede_pull_requests}",
                ),
                ("forks", f"approved by {policies.fork_role or 'whoever may approve'}"),
                ("polled", f"every {policies.poll_seconds} s" if policies.poll_seconds else "never"),
                ("schedules", "on" if policies.schedules else "off"),
                ("saved", f"{ago(found.created_at)} by {found.created_by}, version {found.version}"),
            )
        )
    )
