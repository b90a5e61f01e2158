"""GitLab: webhooks with a secret token or a signature; commit statuses."""

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
from deltaci.forges.status_decisions import ForgeRequest, ForgeResponse, StatusReport
from deltaci.forges.webhook_event import (
    Delivery,
    IgnoredEvent,
    Name,
    Number,
    PullRequest,
    Push,
    Ref,
    Sha,
    WebhookEvent,
    decode_payload,
    is_recent,
    is_zero,
    microseconds,
    pull_request_change,
    push_change,
    signatures_equal,
)

API: Final = "https://gitlab.com/api/v4"
SIGNING_PREFIX: Final = "whsec_"  # Begins a signing token; the key follows in base64.
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
_SAME_STATE_ERROR: Final = "Cannot transition status"  # Before 18.3, GitLab refuses a state that is set already.


class _Project(msgspec.Struct, frozen=True):
    id: int
    path_with_namespace: Name = ""
    default_branch: Name | None = ""


class _Commit(msgspec.Struct, frozen=True):
    id: Sha
    message: str = ""


class _PushPayload(msgspec.Struct, frozen=True):
    """The used parts of the payload of `Push Hook` and `Tag Push Hook`. After a deletion, `checkout_sha` is missing."""

    ref: Ref
    before: Sha
    after: Sha
    project: _Project
    checkout_sha: Sha | None = None
    user_username: Name | None = ""
    message: str | None = ""
    commits: list[_Commit] = []


class _User(msgspec.Struct, frozen=True):
    username: Name = ""


class _Label(msgspec.Struct, frozen=True):
    title: Name = ""


class _MergeRequest(msgspec.Struct, frozen=True):
    """The used parts of `object_attributes` of a merge request. `oldrev` is present if new commits were pushed."""

    iid: Number
    source_branch: Ref
    target_branch: Ref
    last_commit: _Commit
    action: Name = ""
    source_project_id: int | None = None
    target_project_id: int | None = None
    oldrev: str | None = None
    title: str = ""
    draft: bool = False
    state: Name = ""
    updated_at: str | None = ""


class _LabelsChange(msgspec.Struct, frozen=True):
    previous: list[_Label] = []
    current: list[_Label] = []


class _DraftChange(msgspec.Struct, frozen=True):
    previous: bool = False
    current: bool = False


class _Changes(msgspec.Struct, frozen=True):
    """The values before and after an update of a merge request."""

    labels: _LabelsChange | None = None
    draft: _DraftChange | None = None


class _MergeRequestPayload(msgspec.Struct, frozen=True):
    """The used parts of the payload of `Merge Request Hook`."""

    project: _Project
    object_attributes: _MergeRequest
    user: _User = _User()
    labels: list[_Label] = []
    changes: _Changes = _Changes()


class GitLab:
    """Parses webhooks and builds commit status requests for gitlab.com and GitLab installations."""

    def has_valid_signature(self, delivery: Delivery, secret: str) -> bool:
        """Return whether `webhook-signature` and its time are valid, or without it, `X-Gitlab-Token` equals the secret.

        A signing token (`whsec_…`) as the secret always requires a signature: GitLab never sends the token itself.
        """
        received_header = delivery.header(b"webhook-signature")
        if not received_header and not secret.startswith(SIGNING_PREFIX):
            return signatures_equal(delivery.header(b"x-gitlab-token"), secret)
        delivery_id, timestamp = delivery.header(b"webhook-id"), delivery.header(b"webhook-timestamp")
        signed_content = b".".join(
            (delivery_id.encode("utf-8", "replace"), timestamp.encode("utf-8", "replace"), delivery.body)
        )
        expected_signatures = [
            f"v1,{b64encode(hmac.new(key, signed_content, sha256).digest()).decode()}" for key in _signing_keys(secret)
        ]
        signatures = received_header.split(" ")[:MAX_SIGNATURES]
        # All are compared, so that the duration does not depend on the one that matches.
        comparisons = [
            signatures_equal(signature, expected_signature)
            for signature in signatures
            for expected_signature in expected_signatures
        ]
        return any(comparisons) and is_recent(timestamp, delivery.now)

    def delivery_id(self, delivery: Delivery) -> str:
        """Return GitLab's id of the delivery, which stays the same when it is sent again, or an empty string."""
        header_names = (b"webhook-id", b"idempotency-key", b"x-gitlab-event-uuid")
        return next((id_text for header_name in header_names if (id_text := delivery.header(header_name))), "")

    def event_name(self, delivery: Delivery) -> str:
        return delivery.header(b"x-gitlab-event")

    def parse(self, delivery: Delivery) -> WebhookEvent | IgnoredEvent:
        """Return the event of a push to a branch or tag or of a merge request. Any other event is ignored."""
        match self.event_name(delivery):
            case "Push Hook" | "Tag Push Hook":
                return _parse_push(delivery.body)
            case "Merge Request Hook":
                return _parse_merge_request(delivery.body)
            case event_name:
                return IgnoredEvent(f"the event {event_name[:80]!r} is not supported")

    def build_request(self, project: ForgeProject, report: StatusReport, _check_id: str) -> ForgeRequest:
        """Build the request that sets a commit status. GitLab creates an external pipeline for it if necessary."""
        repository_url = f"{project.api_root(API)}/projects/{quote(project.repository, safe='')}"
        status_fields: dict[str, Any] = {
            "state": _STATES[report.state],
            "name": report.context,
            "description": report.description,
        }
        if report.url:
            status_fields["target_url"] = report.url
        if report.ref:
            status_fields["ref"] = report.ref
        return ForgeRequest(
            "POST", f"{repository_url}/statuses/{report.commit}", {"PRIVATE-TOKEN": project.api_token}, status_fields
        )

    def repository_request(self, project: ForgeProject, repository_id: str) -> ForgeRequest:
        url = f"{project.api_root(API)}/projects/{quote(repository_id, safe='')}"
        return ForgeRequest("GET", url, {"PRIVATE-TOKEN": project.api_token}, {})

    def accepted_id(self, response: ForgeResponse) -> str | None:
        """Return the id of the status, or None if GitLab did not accept it.

        The id is empty if the state was set already.
        """
        if response.status == 400 and _SAME_STATE_ERROR in response.text:
            return ""
        return response.id if 200 <= response.status < 300 else None


def _signing_keys(secret: str) -> list[bytes]:
    """Return the keys that a secret may stand for: its text, and its decoded bytes if it is valid base64."""
    signing_keys = [secret.encode()]
    with suppress(NotBase64):
        signing_keys.append(b64decode(secret.removeprefix(SIGNING_PREFIX), validate=True))
    return [key for key in signing_keys if key]


def _parse_push(body: bytes) -> WebhookEvent | IgnoredEvent:
    payload = decode_payload(body, _PushPayload)
    commit = payload.checkout_sha or ("0" * 40 if is_zero(payload.after) else payload.after)
    message_by_commit = {pushed_commit.id: pushed_commit.message for pushed_commit in payload.commits[-MAX_COMMITS:]}
    change = push_change(
        Push(
            ref=payload.ref,
            before=payload.before,
            after=payload.after,
            commit=commit,
            repository=payload.project.path_with_namespace,
            message=message_by_commit.get(commit, "") or payload.message or "",
            actor=payload.user_username or "",
            default_branch=payload.project.default_branch or "",
        )
    )
    return change if isinstance(change, IgnoredEvent) else WebhookEvent(change, 0, str(payload.project.id))


def _action(payload: _MergeRequestPayload) -> str:
    """Return the action of a merge request event under GitHub's name for it."""
    merge_request, changes = payload.object_attributes, payload.changes
    if merge_request.action != "update":
        return _ACTIONS.get(merge_request.action, merge_request.action)
    if merge_request.oldrev:
        return "synchronize"
    if changes.draft is not None and changes.draft.previous and not changes.draft.current:
        return "ready_for_review"
    if changes.labels is not None:
        labels_before = {label.title for label in changes.labels.previous}
        return "labeled" if {label.title for label in changes.labels.current} - labels_before else "unlabeled"
    return "edited"


def _parse_merge_request(body: bytes) -> WebhookEvent | IgnoredEvent:
    payload = decode_payload(body, _MergeRequestPayload)
    merge_request = payload.object_attributes
    source_id, target_id = merge_request.source_project_id, merge_request.target_project_id
    is_fork = source_id is None or source_id != target_id
    change = pull_request_change(
        PullRequest(
            action=_action(payload),
            number=merge_request.iid,
            ref=f"refs/merge-requests/{merge_request.iid}/head",
            commit=merge_request.last_commit.id,
            base_branch=merge_request.target_branch,
            head_branch=merge_request.source_branch,
            is_fork=is_fork,
            repository=payload.project.path_with_namespace,
            head_repository="" if is_fork else payload.project.path_with_namespace,
            title=merge_request.title,
            actor=payload.user.username,
            default_branch=payload.project.default_branch or "",
            is_draft=merge_request.draft,
            is_merged=merge_request.state == "merged",
            labels=tuple(label.title for label in payload.labels),
        )
    )
    if isinstance(change, IgnoredEvent):
        return change
    return WebhookEvent(change, microseconds(merge_request.updated_at), str(payload.project.id))
