"""Projects and changes, as `/api/v1` takes and answers them."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import Meta

from deltaci.api.schemas.inputs import Asked, PageQuery, TemplateName, Word
from deltaci.api.schemas.records import Shown
from deltaci.protocol.messages import Line, Moment, says

MAX_POLL_SECONDS: Final = 7 * 86400
MAX_NEWS: Final = 1000

ProjectName = TemplateName
ForgeKind = Literal["git", "github", "gitlab", "gitea", "forgejo"]
Superseded = Literal["none", "queued", "all"]
Url = Annotated[str, Meta(max_length=500, pattern=r"^[^\x00-\x20\x7f]*$(?!\n)")]
SecretWord = Annotated[str, Meta(max_length=200, pattern=r"^([A-Za-z_][A-Za-z0-9_]*)?$(?!\n)")]
BranchName = Annotated[str, Meta(max_length=250, pattern=r"^[^\x00-\x20\x7f~^:?*\[\\]*$(?!\n)")]
Ref = Annotated[str, Meta(min_length=6, max_length=250, pattern=r"^refs/[^\x00-\x20\x7f~^:?*\[\\]+$(?!\n)")]
CommitName = Annotated[str, Meta(pattern=r"^([0-9a-f]{40}|[0-9a-f]{64})$(?!\n)")]
Reports = Literal["statuses", "checks", "nothing"]
Role = Annotated[str, Meta(max_length=100, pattern=r"^[!-~]*$(?!\n)")]


class Policies(Asked, frozen=True, kw_only=True, omit_defaults=False):
    """What the server does by itself for a project."""

    supersede_pushes: Annotated[
        Superseded, says("which older runs of a branch a newer push cancels: none, those that have not begun, or all")
    ] = "queued"
    supersede_pull_requests: Annotated[
        Superseded, says("the same for newer commits of a pull request, and for one that is closed")
    ] = "all"
    fork_role: Annotated[
        Role, says("who may approve runs for pull requests from forks: a role; empty: whoever may approve")
    ] = ""
    poll_seconds: Annotated[
        Annotated[int, Meta(ge=0, le=MAX_POLL_SECONDS)], says("how often to look for pushes; 0: never")
    ] = 0
    schedules: Annotated[bool, says("whether `on.schedule` of its pipeline files starts runs")] = True


class ProjectInput(Asked, frozen=True, kw_only=True):
    """A repository that the server should know."""

    url: Annotated[Url, says("where to clone it from: https or ssh; others only if the server allows them")]
    forge: Annotated[ForgeKind, says("what kind of server it is on")] = "git"
    default_branch: Annotated[BranchName, says("its main branch; empty: what the repository itself says")] = ""
    credential: Annotated[
        SecretWord, says("the secret to clone with: a token, `user:password`, or a private key for ssh; empty: none")
    ] = ""
    webhook_secret: Annotated[SecretWord, says("the secret by which webhooks are signed")] = ""
    api_url: Annotated[Url, says("the forge's API, if it is not where the forge's own is")] = ""
    api_token: Annotated[SecretWord, says("the secret with which statuses are reported")] = ""
    reports: Annotated[Reports, says("how the forge is told what came of a commit, if there is a token")] = "statuses"
    policies: Annotated[Policies, says("what the server does by itself")] = Policies()
    description: Annotated[Line, says("for people")] = ""
    expected_version: Annotated[
        Annotated[int, Meta(ge=0, le=2**31)] | None,
        says("the version that this one replaces, 0 for none; another one is refused"),
    ] = None


class Project(Shown, frozen=True, kw_only=True):
    """A repository that the server knows."""

    name: str
    version: Annotated[int, says("counts how often it was saved")]
    url: str
    forge: str
    default_branch: str
    credential: Annotated[str, says("the name of the secret to clone with")]
    webhook_secret: Annotated[str, says("the name of the secret by which webhooks are signed")]
    api_url: str
    api_token: Annotated[str, says("the name of the secret with which statuses are reported")]
    reports: str
    policies: Policies
    description: str
    created_at: Moment
    created_by: str


class ProjectPage(Shown, frozen=True, kw_only=True):
    """Projects by name."""

    projects: list[Project]
    next: str | None


class Pushed(Asked, frozen=True, kw_only=True):
    """One ref that was pushed, as a post-receive hook is told: zeros for what was not there before, or is not now."""

    ref: Annotated[Ref, says("e.g. `refs/heads/main`")]
    before: Annotated[CommitName, says("the commit that it had before")]
    after: Annotated[CommitName, says("the commit that it has now")]


class PushInput(Asked, frozen=True, kw_only=True):
    """What was pushed to a repository without a forge, told by its hook."""

    delivery: Annotated[
        Annotated[str, Meta(min_length=8, max_length=200, pattern=r"^[!-~]+$(?!\n)")],
        says("new for every push; the same again makes nothing new"),
    ]
    refs: Annotated[Annotated[list[Pushed], Meta(min_length=1, max_length=MAX_NEWS)], says("every ref that changed")]
    pusher: Annotated[Word, says("who pushed")] = ""


class AcceptedChange(Shown, frozen=True, kw_only=True):
    """A change that was accepted."""

    id: str
    is_new: Annotated[bool, says("whether it was not known before")]
    ref: str


class AcceptedChanges(Shown, frozen=True, kw_only=True):
    """What was accepted, in the order in which it was told."""

    changes: list[AcceptedChange]


class ChangeQuery(PageQuery, frozen=True, kw_only=True):
    """Which changes."""

    project: Annotated[Word | None, says("of this project")] = None


class HandledFile(Shown, frozen=True, kw_only=True):
    """What a change meant for one pipeline file."""

    file: str
    run: Annotated[str, says("the run that it made; empty: none")]
    reason: str


class Change(Shown, frozen=True, kw_only=True):
    """Something that happened in a repository, and what became of it."""

    id: str
    project: str
    status: Annotated[str, says("`waiting`, `handled`, or `put_aside` when it could not be handled")]
    reason: Annotated[str, says("what came of it, or why nothing did")]
    event: str
    action: str
    commit: str
    ref: str
    branch: str
    number: Annotated[int, says("of the pull request; 0: it is none")]
    is_fork: bool
    title: str
    actor: str
    cron: str
    delivery: str
    tries: int
    files: list[HandledFile]
    superseded: Annotated[list[str], says("older runs that were cancelled for it")]
    created_at: Moment
    updated_at: Moment


class ChangePage(Shown, frozen=True, kw_only=True):
    """Changes, the newest first."""

    changes: list[Change]
    next: str | None
