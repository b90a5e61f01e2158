"""GitLab: a token or a signature in; commit statuses out."""

from __future__ import annotations

import hmac
from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from contextlib import suppress
from hashlib import sha256
from typing import Any, Final
from urllib.parse import quote

import msgspec

from deltaci.forges.projects import ForgeProject
from deltaci.forges.status_state import Answer, Call, Report
from deltaci.forges.webhook_event import (
    Asked,
    Delivery,
    Heard,
    Name,
    Nothing,
    Number,
    Pushed,
    Ref,
    Sha,
    decoded,
    is_fresh,
    is_zero,
    pull_request,
    push,
    same,
)

API: Final = "https://gitlab.com/api/v4"
SIGNING: Final = "whsec_"  # What a signing token begins with; the key follows, in base64.
MAX_SIGNATURES: Final = 10
MAX_COMMITS: Final = 100
_ACTIONS: Final = {"open": "opened", "reopen": "reopened", "close": "closed", "merge": "closed"}
_STATES: Final = {
    "pending": "pending",
    "running": "running",
    "success": "success",
    "failure": "failed",
    "canceled": "canceled",
    "error": "failed",
}
_ALREADY: Final = "Cannot transition status"  # What versions before 18.3 say to a state that is told twice.


class Project(msgspec.Struct, frozen=True):
    """A project there."""

    id: int
    path_with_namespace: Name = ""
    default_branch: Name | None = ""


class Commit(msgspec.Struct, frozen=True):
    """A commit of a push."""

    id: Sha
    message: str = ""


class Push(msgspec.Struct, frozen=True):
    """`Push Hook` and `Tag Push Hook`. There is no `checkout_sha` after a deletion."""

    ref: Ref
    before: Sha
    after: Sha
    project: Project
    checkout_sha: Sha | None = None
    user_username: Name | None = ""
    message: str | None = ""
    commits: list[Commit] = []


class User(msgspec.Struct, frozen=True):
    """Somebody."""

    username: Name = ""


class Label(msgspec.Struct, frozen=True):
    """A label."""

    title: Name = ""


class MergeRequest(msgspec.Struct, frozen=True):
    """`object_attributes` of a merge request. `oldrev` is there when new commits came."""

    iid: Number
    source_branch: Ref
    target_branch: Ref
    last_commit: Commit
    action: Name = ""
    source_project_id: int | None = None
    target_project_id: int | None = None
    oldrev: str | None = None
    title: str = ""
    draft: bool = False
    state: Name = ""
    updated_at: str | None = ""


class Labels(msgspec.Struct, frozen=True):
    """Which there were, and are."""

    previous: list[Label] = []
    current: list[Label] = []


class Draft(msgspec.Struct, frozen=True):
    """Whether it was a draft, and is one."""

    previous: bool = False
    current: bool = False


class Changes(msgspec.Struct, frozen=True):
    """What an update changed."""

    labels: Labels | None = None
    draft: Draft | None = None


class Source(msgspec.Struct, frozen=True):
    """Where a merge request comes from."""

    path_with_namespace: Name = ""


class MergeRequestHook(msgspec.Struct, frozen=True):
    """`Merge Request Hook`."""

    project: Project
    object_attributes: MergeRequest
    user: User = User()
    labels: list[Label] = []
    changes: Changes = Changes()


class GitLab:
    """gitlab.com, and one's own."""

    def is_signed(self, delivery: Delivery, secret: str) -> bool:
        """By `webhook-signature` where there is one, with its time; else by the token itself.

        A signing token (`whsec_…`) is never shown by GitLab, so nobody who shows it is believed.
        """
        told = delivery.header(b"webhook-signature")
        if not told and not secret.startswith(SIGNING):
            return same(delivery.header(b"x-gitlab-token"), secret)
        id, at = delivery.header(b"webhook-id"), delivery.header(b"webhook-timestamp")
        signed = b".".join((id.encode("utf-8", "replace"), at.encode("utf-8", "replace"), delivery.body))
        expected = [f"v1,{b64encode(hmac.new(key, signed, sha256).digest()).decode()}" for key in _keys(secret)]
        fits = [same(each, one) for each in told.split(" ")[:MAX_SIGNATURES] for one in expected]
        return any(fits) and is_fresh(at, delivery.now)

    def delivery_id(self, delivery: Delivery) -> str:
        """The one that stays the same when it is tried again."""
        names = (b"webhook-id", b"idempotency-key", b"x-gitlab-event-uuid")
        return next((told for name in names if (told := delivery.header(name))), "")

    def read(self, delivery: Delivery) -> Heard | Nothing:
        """Pushes, tags and merge requests."""
        match delivery.header(b"x-gitlab-event"):
            case "Push Hook" | "Tag Push Hook":
                return _push(delivery)
            case "Merge Request Hook":
                return _merge_request(delivery.body)
            case other:
                return Nothing(f"nothing follows from the event {other[:80]!r}")

    def call(self, project: ForgeProject, report: Report, _check: str) -> Call:
        """A commit status. Where it has no place yet, GitLab makes an external pipeline for it."""
        at = f"{project.api(API)}/projects/{quote(project.repository, safe='')}/statuses/{report.commit}"
        body: dict[str, Any] = {
            "state": _STATES[report.state],
            "name": report.context,
            "description": report.description,
        }
        if report.url:
            body["target_url"] = report.url
        if report.ref:
            body["ref"] = report.ref
        return Call("POST", at, {"PRIVATE-TOKEN": project.api_token}, body)

    def told(self, answer: Answer) -> str | None:
        """The id of the status; None: it was not taken. What was told before is taken, too."""
        if answer.status == 400 and _ALREADY in answer.text:
            return ""
        return answer.id if 200 <= answer.status < 300 else None


def _keys(secret: str) -> list[bytes]:
    """The key of a signing token is written in base64; a plain text is taken as it is."""
    keys = [secret.encode()]
    with suppress(NotBase64):
        keys.append(b64decode(secret.removeprefix(SIGNING), validate=True))
    return [key for key in keys if key]


def _push(delivery: Delivery) -> Heard | Nothing:
    said = decoded(delivery.body, Push)
    commit = said.checkout_sha or ("0" * 40 if is_zero(said.after) else said.after)
    messages = {each.id: each.message for each in said.commits[-MAX_COMMITS:]}
    change = push(
        Pushed(
            ref=said.ref,
            before=said.before,
            after=said.after,
            commit=commit,
            repository=said.project.path_with_namespace,
            message=messages.get(commit, "") or said.message or "",
            actor=said.user_username or "",
            default_branch=said.project.default_branch or "",
        )
    )
    # A push says no time. Where its id is signed, it is as good.
    is_signed = bool(delivery.header(b"webhook-signature"))
    moment = delivery.header(b"webhook-id") if is_signed else ""
    return change if isinstance(change, Nothing) else Heard(change, moment)


def _action(said: MergeRequestHook) -> str:
    """What happened, in the words of a pull request."""
    about, changes = said.object_attributes, said.changes
    if about.action != "update":
        return _ACTIONS.get(about.action, about.action)
    if about.oldrev:
        return "synchronize"
    if changes.draft is not None and changes.draft.previous and not changes.draft.current:
        return "ready_for_review"
    if changes.labels is not None:
        before = {each.title for each in changes.labels.previous}
        return "labeled" if {each.title for each in changes.labels.current} - before else "unlabeled"
    return "edited"


def _merge_request(body: bytes) -> Heard | Nothing:
    said = decoded(body, MergeRequestHook)
    about = said.object_attributes
    is_own = about.source_project_id is not None and about.source_project_id == about.target_project_id
    change = pull_request(
        Asked(
            action=_action(said),
            number=about.iid,
            ref=f"refs/merge-requests/{about.iid}/head",
            commit=about.last_commit.id,
            branch=about.target_branch,
            head=about.source_branch,
            is_fork=not is_own,
            repository=said.project.path_with_namespace,
            head_repository=said.project.path_with_namespace if is_own else "",
            title=about.title,
            actor=said.user.username,
            default_branch=said.project.default_branch or "",
            is_draft=about.draft,
            is_merged=about.state == "merged",
            labels=tuple(each.title for each in said.labels),
        )
    )
    return change if isinstance(change, Nothing) else Heard(change, about.updated_at or "")
