"""Request and response types of `/api/v1` for projects and changes."""

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
    """What the server does automatically for a project."""

    supersede_pushes: Annotated[
        Superseded, doc("which older runs of a branch a newer push cancels: none, those that have not started, or all")
    ] = "queued"
    supersede_pull_requests: Annotated[
        Superseded, doc("the same for newer commits of a pull request, and when it is closed")
    ] = "all"
    fork_role: Annotated[
        Role, doc("the role that may approve runs for pull requests from forks; empty: everybody who may approve")
    ] = ""
    poll_seconds: Annotated[
        Annotated[int, Meta(ge=0, le=MAX_POLL_SECONDS)], doc("how often to poll for pushes; 0: never")
    ] = 0
    schedules: Annotated[bool, doc("whether `on.schedule` of its pipeline files starts runs")] = True


class ProjectInput(RequestSchema, frozen=True, kw_only=True):
    """The settings of a project to create or change."""

    url: Annotated[Url, doc("the clone URL: https or ssh; other schemes only if the server allows them")]
    forge: Annotated[ForgeKind, doc("the kind of forge that hosts it")] = "git"
    default_branch: Annotated[BranchName, doc("its default branch; empty: that of the repository")] = ""
    credential: Annotated[
        SecretReference,
        doc("the secret to clone with: a token, `user:password`, or a private key for ssh"),
    ] = ""
    webhook_secret: Annotated[SecretReference, doc("the secret that webhooks are signed with")] = ""
    api_url: Annotated[Url, doc("the URL of the forge's API, if it is not the default")] = ""
    api_token: Annotated[SecretReference, doc("the secret to report statuses with")] = ""
    reports: Annotated[Reports, doc("how results are reported to the forge, if there is a token")] = "statuses"
    policies: Annotated[Policies, doc("what the server does automatically")] = Policies()
    description: Annotated[ShortText, doc("for people")] = ""
    expected_version: Annotated[
        Annotated[int, Meta(ge=0, le=2**31)] | None,
        doc("refuse the request unless this is the current version; 0: none exists"),
    ] = None


class Project(ResponseSchema, frozen=True, kw_only=True):
    """A project: a repository that the server builds, with its settings."""

    name: str
    version: Annotated[int, doc("how many times it was saved")]
    url: str
    forge: str
    default_branch: str
    credential: Annotated[str, doc("the name of the secret to clone with")]
    webhook_secret: Annotated[str, doc("the name of the secret that webhooks are signed with")]
    api_url: str
    api_token: Annotated[str, doc("the name of the secret to report statuses with")]
    reports: str
    policies: Policies
    description: str
    created_at: Timestamp
    created_by: str


class ProjectPage(ResponseSchema, frozen=True, kw_only=True):
    """A page of projects, sorted by name."""

    projects: list[Project]
    next: str | None


class PushedRef(RequestSchema, frozen=True, kw_only=True):
    """One pushed ref, as git passes it to a post-receive hook: zeros for a created or deleted ref."""

    schema_name: ClassVar[str] = "Pushed"

    ref: Annotated[Ref, doc("e.g. `refs/heads/main`")]
    before: Annotated[CommitName, doc("its commit before the push")]
    after: Annotated[CommitName, doc("its commit after the push")]


class PushInput(RequestSchema, frozen=True, kw_only=True):
    """The report of a push to a repository without a forge, as the repository's hook sends it."""

    delivery: Annotated[
        Annotated[str, Meta(min_length=8, max_length=200, pattern=r"^[!-~]+$(?!\n)")],
        doc("unique for each push; a repeat has no effect"),
    ]
    refs: Annotated[Annotated[list[PushedRef], Meta(min_length=1, max_length=MAX_PUSHED_REFS)], doc("the changed refs")]
    pusher: Annotated[LineText, doc("who pushed")] = ""


class AcceptedChange(ResponseSchema, frozen=True, kw_only=True):
    """A change that the server has accepted for processing."""

    id: str
    is_new: Annotated[bool, doc("false for a repeat")]
    ref: str


class AcceptedChanges(ResponseSchema, frozen=True, kw_only=True):
    """The accepted changes of a reported push, in the order of its refs."""

    changes: list[AcceptedChange]


class ChangeQuery(PageQuery, frozen=True, kw_only=True):
    """The page of the changes to return, and a filter for it."""

    project: Annotated[LineText | None, doc("only of this project")] = None


class HandledFile(ResponseSchema, frozen=True, kw_only=True):
    """The result of a change for one pipeline file: the run that it started, or why it started none."""

    file: str
    run: Annotated[str, doc("the run that it started; empty: none")]
    reason: str


class Change(ResponseSchema, frozen=True, kw_only=True):
    """A push, pull request, schedule or other event in a repository, and its outcome."""

    id: str
    project: str
    status: Annotated[str, doc("`waiting`, `handled`, or `put_aside` when it could not be processed")]
    reason: Annotated[str, doc("its outcome, or why it had none")]
    event: str
    action: str
    commit: str
    ref: str
    branch: str
    number: Annotated[int, doc("the number of the pull request; 0: none")]
    is_fork: bool
    title: str
    actor: str
    cron: str
    delivery: str
    tries: int
    files: list[HandledFile]
    superseded: Annotated[list[str], doc("older runs that it cancelled")]
    created_at: Timestamp
    updated_at: Timestamp


class ChangePage(ResponseSchema, frozen=True, kw_only=True):
    """A page of changes, newest first."""

    changes: list[Change]
    next: str | None


class Delivery(ResponseSchema, frozen=True, kw_only=True):
    """A webhook request of a forge, the answer to it, and the runs of its change. Refused signatures are not logged."""

    at: Timestamp
    delivery: Annotated[str, doc("the forge's id; empty: it sent none")]
    event: str
    ref: str
    commit: str
    result: Annotated[str, doc("the answer: `accepted`, `duplicate`, `ignored`, `pong` or `refused`")]
    reason: Annotated[str, doc("the outcome of its change, or why there is none")]
    change: Annotated[str, doc("the id of its change; empty: none")]
    status: Annotated[str, doc("`waiting`, `handled`, or `put_aside`; empty: the change does not exist any more")]
    runs: list[str]


class DeliveryPage(ResponseSchema, frozen=True, kw_only=True):
    """A page of the deliveries to a project, newest first."""

    deliveries: list[Delivery]
    next: str | None
