"""Projects and changes, as `/api/v1` takes and answers them."""

from __future__ import annotations

from typing import Annotated, ClassVar, Final, Literal

from msgspec import Meta

from deltaci.api.schemas.inputs import LineText, PageQuery, RequestSchema, TemplateName
from deltaci.api.schemas.records import ResponseSchema
from deltaci.protocol.messages import ShortText, Timestamp, doc

MAX_POLL_SECONDS: Final = 7 * 86400
MAX_PUSHED_REFS: Final = 1000

ProjectName = TemplateName
ForgeKind = Literal["git", "github", "gitlab", "gitea", "forgejo"]
Superseded = Literal["none", "queued", "all"]
Url = Annotated[str, Meta(max_length=500, pattern=r"^[^\x00-\x20\x7f]*$(?!\n)")]
SecretReference = Annotated[str, Meta(max_length=200, pattern=r"^([A-Za-z_][A-Za-z0-9_]*)?$(?!\n)")]
BranchName = Annotated[str, Meta(max_length=250, pattern=r"^[^\x00-\x20\x7f~^:?*\[\\]*$(?!\n)")]
Ref = Annotated[str, Meta(min_length=6, max_length=250, pattern=r"^refs/[^\x00-\x20\x7f~^:?*\[\\]+$(?!\n)")]
CommitName = Annotated[str, Meta(pattern=r"^([0-9a-f]{40}|[0-9a-f]{64})$(?!\n)")]
Reports = Literal["statuses", "checks", "nothing"]
Role = Annotated[str, Meta(max_length=100, pattern=r"^[!-~]*$(?!\n)")]


class Policies(RequestSchema, frozen=True, kw_only=True, omit_defaults=False):
    """What the server does by itself for a project."""

    supersede_pushes: Annotated[
        Superseded, doc("which older runs of a branch a newer push cancels: none, those that have not begun, or all")
    ] = "queued"
    supersede_pull_requests: Annotated[
        Superseded, doc("the same for newer commits of a pull request, and for one that is closed")
    ] = "all"
    fork_role: Annotated[
        Role, doc("who may approve runs for pull requests from forks: a role; empty: whoever may approve")
    ] = ""
    poll_seconds: Annotated[
        Annotated[int, Meta(ge=0, le=MAX_POLL_SECONDS)], doc("how often to look for pushes; 0: never")
    ] = 0
    schedules: Annotated[bool, doc("whether `on.schedule` of its pipeline files starts runs")] = True


class ProjectInput(RequestSchema, frozen=True, kw_only=True):
    """A repository that the server should know."""

    url: Annotated[Url, doc("where to clone it from: https or ssh; others only if the server allows them")]
    forge: Annotated[ForgeKind, doc("what kind of server it is on")] = "git"
    default_branch: Annotated[BranchName, doc("its main branch; empty: what the repository itself says")] = ""
    credential: Annotated[
        SecretReference,
        doc("the secret to clone with: a token, `user:password`, or a private key for ssh; empty: none"),
    ] = ""
    webhook_secret: Annotated[SecretReference, doc("the secret by which webhooks are signed")] = ""
    api_url: Annotated[Url, doc("the forge's API, if it is not where the forge's own is")] = ""
    api_token: Annotated[SecretReference, doc("the secret with which statuses are reported")] = ""
    reports: Annotated[Reports, doc("how the forge is told what came of a commit, if there is a token")] = "statuses"
    policies: Annotated[Policies, doc("what the server does by itself")] = Policies()
    description: Annotated[ShortText, doc("for people")] = ""
    expected_version: Annotated[
        Annotated[int, Meta(ge=0, le=2**31)] | None,
        doc("the version that this one replaces, 0 for none; another one is refused"),
    ] = None


class Project(ResponseSchema, frozen=True, kw_only=True):
    """A repository that the server knows."""

    name: str
    version: Annotated[int, doc("counts how often it was saved")]
    url: str
    forge: str
    default_branch: str
    credential: Annotated[str, doc("the name of the secret to clone with")]
    webhook_secret: Annotated[str, doc("the name of the secret by which webhooks are signed")]
    api_url: str
    api_token: Annotated[str, doc("the name of the secret with which statuses are reported")]
    reports: str
    policies: Policies
    description: str
    created_at: Timestamp
    created_by: str


class ProjectPage(ResponseSchema, frozen=True, kw_only=True):
    """Projects by name."""

    projects: list[Project]
    next: str | None


class PushedRef(RequestSchema, frozen=True, kw_only=True):
    """One ref that was pushed, as a post-receive hook is told: zeros for what was not there before, or is not now."""

    schema_name: ClassVar[str] = "Pushed"

    ref: Annotated[Ref, doc("e.g. `refs/heads/main`")]
    before: Annotated[CommitName, doc("the commit that it had before")]
    after: Annotated[CommitName, doc("the commit that it has now")]


class PushInput(RequestSchema, frozen=True, kw_only=True):
    """What was pushed to a repository without a forge, told by its hook."""

    delivery: Annotated[
        Annotated[str, Meta(min_length=8, max_length=200, pattern=r"^[!-~]+$(?!\n)")],
        doc("new for every push; the same again makes nothing new"),
    ]
    refs: Annotated[
        Annotated[list[PushedRef], Meta(min_length=1, max_length=MAX_PUSHED_REFS)], doc("every ref that changed")
    ]
    pusher: Annotated[LineText, doc("who pushed")] = ""


class AcceptedChange(ResponseSchema, frozen=True, kw_only=True):
    """A change that was accepted."""

    id: str
    is_new: Annotated[bool, doc("whether it was not known before")]
    ref: str


class AcceptedChanges(ResponseSchema, frozen=True, kw_only=True):
    """What was accepted, in the order in which it was told."""

    changes: list[AcceptedChange]


class ChangeQuery(PageQuery, frozen=True, kw_only=True):
    """Which changes."""

    project: Annotated[LineText | None, doc("of this project")] = None


class HandledFile(ResponseSchema, frozen=True, kw_only=True):
    """What a change meant for one pipeline file."""

    file: str
    run: Annotated[str, doc("the run that it made; empty: none")]
    reason: str


class Change(ResponseSchema, frozen=True, kw_only=True):
    """Something that happened in a repository, and what became of it."""

    id: str
    project: str
    status: Annotated[str, doc("`waiting`, `handled`, or `put_aside` when it could not be handled")]
    reason: Annotated[str, doc("what came of it, or why nothing did")]
    event: str
    action: str
    commit: str
    ref: str
    branch: str
    number: Annotated[int, doc("of the pull request; 0: it is none")]
    is_fork: bool
    title: str
    actor: str
    cron: str
    delivery: str
    tries: int
    files: list[HandledFile]
    superseded: Annotated[list[str], doc("older runs that were cancelled for it")]
    created_at: Timestamp
    updated_at: Timestamp


class ChangePage(ResponseSchema, frozen=True, kw_only=True):
    """Changes, the newest first."""

    changes: list[Change]
    next: str | None
