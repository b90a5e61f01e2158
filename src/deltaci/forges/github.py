"""GitHub: webhooks signed with `X-Hub-Signature-256`; commit statuses or check runs."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import quote

import msgspec

from deltaci.forges.projects import ForgeProject
from deltaci.forges.status_decisions import Annotation, ForgeRequest, ForgeResponse, StatusReport
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
    hmac_hex,
    microseconds,
    pull_request_change,
    push_change,
    signatures_equal,
)

API: Final = "https://api.github.com"
API_VERSION: Final = "2022-11-28"
MAX_ANNOTATIONS: Final = 50  # GitHub's limit for one request.
MAX_SUMMARY: Final = 60_000  # GitHub accepts 65,535 characters.
_STATES: Final = {
    "pending": "pending",
    "running": "pending",
    "success": "success",
    "failure": "failure",
    "canceled": "error",
    "error": "error",
}
_CONCLUSIONS: Final = {"success": "success", "failure": "failure", "canceled": "cancelled", "error": "failure"}


class _User(msgspec.Struct, frozen=True):
    login: Name = ""


class _Repository(msgspec.Struct, frozen=True):
    """A repository; `pushed_at` is a number in some events and a text in others."""

    id: int
    full_name: Name = ""
    default_branch: Name = ""
    pushed_at: int | str | None = None
    updated_at: int | str | None = None


class _Commit(msgspec.Struct, frozen=True):
    id: Sha
    message: str = ""


class _PushPayload(msgspec.Struct, frozen=True):
    """The used parts of the payload of the event `push`."""

    ref: Ref
    before: Sha
    after: Sha
    repository: _Repository
    head_commit: _Commit | None = None
    sender: _User = _User()
    deleted: bool = False


class _Branch(msgspec.Struct, frozen=True):
    """The head or base of a pull request. `repo` is None if the repository was deleted."""

    ref: Ref
    sha: Sha
    repo: _Repository | None = None


class _Label(msgspec.Struct, frozen=True):
    name: Name = ""


class _PullRequest(msgspec.Struct, frozen=True):
    head: _Branch
    base: _Branch
    title: str = ""
    draft: bool = False
    merged: bool | None = False
    labels: list[_Label] | None = None
    updated_at: str | None = ""


class _PullRequestPayload(msgspec.Struct, frozen=True):
    """The used parts of the payload of the event `pull_request`."""

    action: Name
    number: Number
    pull_request: _PullRequest
    repository: _Repository
    sender: _User = _User()
    label: _Label | None = None


def parse_push(body: bytes) -> WebhookEvent | IgnoredEvent:
    """Return the event of a push of GitHub or Gitea, or the reason why it is ignored."""
    payload = decode_payload(body, _PushPayload)
    # For an annotated tag, `after` is the tag and the head commit is its commit.
    commit = payload.head_commit.id if payload.head_commit is not None else payload.after
    change = push_change(
        Push(
            ref=payload.ref,
            before=payload.before,
            after="0" * 40 if payload.deleted else payload.after,
            commit=commit,
            repository=payload.repository.full_name,
            message=payload.head_commit.message if payload.head_commit is not None else "",
            actor=payload.sender.login,
            default_branch=payload.repository.default_branch,
        )
    )
    if isinstance(change, IgnoredEvent):
        return change
    pushed_at = payload.repository.pushed_at or payload.repository.updated_at
    return WebhookEvent(change, microseconds(pushed_at), str(payload.repository.id))


def _is_fork(head_branch: _Branch, base_branch: _Branch) -> bool:
    """Return whether the head is in another repository than the base. A deleted repository counts as another one."""
    return head_branch.repo is None or base_branch.repo is None or head_branch.repo.id != base_branch.repo.id


def parse_pull_request(body: bytes, github_action_by_action: dict[str, str]) -> WebhookEvent | IgnoredEvent:
    """Return the event of a pull request of GitHub or Gitea, or the reason why it is ignored.

    `github_action_by_action` has GitHub's name for each of the forge's names of actions.
    """
    payload = decode_payload(body, _PullRequestPayload)
    pull_request = payload.pull_request
    change = pull_request_change(
        PullRequest(
            action=github_action_by_action.get(payload.action, payload.action),
            number=payload.number,
            ref=f"refs/pull/{payload.number}/head",
            commit=pull_request.head.sha,
            base_branch=pull_request.base.ref,
            head_branch=pull_request.head.ref,
            is_fork=_is_fork(pull_request.head, pull_request.base),
            repository=payload.repository.full_name,
            head_repository=pull_request.head.repo.full_name if pull_request.head.repo is not None else "",
            base_commit=pull_request.base.sha,
            title=pull_request.title,
            actor=payload.sender.login,
            default_branch=payload.repository.default_branch,
            is_draft=pull_request.draft,
            is_merged=bool(pull_request.merged),
            labels=tuple(label.name for label in pull_request.labels or ()),
            label=payload.label.name if payload.label is not None else "",
        )
    )
    if isinstance(change, IgnoredEvent):
        return change
    return WebhookEvent(change, microseconds(pull_request.updated_at), str(payload.repository.id))


class GitHub:
    """Parses webhooks and builds commit status and check run requests for github.com and GitHub Enterprise Server."""

    def has_valid_signature(self, delivery: Delivery, secret: str) -> bool:
        """Return whether `X-Hub-Signature-256` is valid. It covers neither the event's name nor the delivery's id."""
        expected_signature = f"sha256={hmac_hex(secret, delivery.body)}"
        return signatures_equal(delivery.header(b"x-hub-signature-256"), expected_signature)

    def delivery_id(self, delivery: Delivery) -> str:
        """Return the id of the delivery, which a redelivery keeps."""
        return delivery.header(b"x-github-delivery")

    def event_name(self, delivery: Delivery) -> str:
        return delivery.header(b"x-github-event")

    def parse(self, delivery: Delivery) -> WebhookEvent | IgnoredEvent:
        """Return the event of a push or a pull request. A ping and any other event are ignored."""
        match self.event_name(delivery):
            case "push":
                return parse_push(delivery.body)
            case "pull_request":
                return parse_pull_request(delivery.body, {})
            case "ping":
                return IgnoredEvent("the webhook works", is_ping=True)
            case event_name:
                return IgnoredEvent(f"the event {event_name[:80]!r} is not supported")

    def build_request(self, project: ForgeProject, report: StatusReport, check_id: str) -> ForgeRequest:
        """Build the request that sets a commit status, or creates or updates the project's check run.

        Only a GitHub App may create a check run.
        """
        owner, _, repository_name = project.repository.partition("/")
        repository_url = f"{project.api_root(API)}/repos/{quote(owner, safe='')}/{quote(repository_name, safe='')}"
        request_headers = _headers(project)
        if project.reports != "checks":
            return ForgeRequest(
                "POST", f"{repository_url}/statuses/{report.commit}", request_headers, status_body(report, _STATES)
            )
        if check_id:
            return ForgeRequest(
                "PATCH", f"{repository_url}/check-runs/{quote(check_id, safe='')}", request_headers, _check_body(report)
            )
        return ForgeRequest(
            "POST", f"{repository_url}/check-runs", request_headers, {"head_sha": report.commit, **_check_body(report)}
        )

    def repository_request(self, project: ForgeProject, repository_id: str) -> ForgeRequest:
        url = f"{project.api_root(API)}/repositories/{quote(repository_id, safe='')}"
        return ForgeRequest("GET", url, _headers(project), {})

    def accepted_id(self, response: ForgeResponse) -> str | None:
        """Return the id of the check run or status, or None if GitHub did not accept it."""
        return response.id if 200 <= response.status < 300 else None


def _headers(project: ForgeProject) -> dict[str, str]:
    return {
        "Authorization": f"Bearer {project.api_token}",
        "Accept": "application/vnd.github+json",
        "X-GitHub-Api-Version": API_VERSION,
    }


def status_body(report: StatusReport, forge_state_by_state: dict[str, str]) -> dict[str, Any]:
    """Return the body of a commit status for GitHub or Gitea.

    `forge_state_by_state` has the forge's state for each state of a report.
    """
    status_fields = {
        "state": forge_state_by_state[report.state],
        "context": report.context,
        "description": report.description,
    }
    return {**status_fields, "target_url": report.url} if report.url else status_fields


def _check_body(report: StatusReport) -> dict[str, Any]:
    check_run_fields: dict[str, Any] = {
        "name": report.context,
        "external_id": report.run_id,
        "output": {
            "title": report.description,
            "summary": (report.summary or report.description)[:MAX_SUMMARY],
            "annotations": [_annotation_body(annotation) for annotation in report.annotations[:MAX_ANNOTATIONS]],
        },
    }
    if report.url:
        check_run_fields["details_url"] = report.url
    conclusion = _CONCLUSIONS.get(report.state)
    if conclusion is None:
        return {**check_run_fields, "status": "in_progress" if report.state == "running" else "queued"}
    return {**check_run_fields, "status": "completed", "conclusion": conclusion}


def _annotation_body(annotation: Annotation) -> dict[str, Any]:
    annotation_fields: dict[str, Any] = {
        "path": annotation.path,
        "start_line": annotation.line,
        "end_line": annotation.line,
        "annotation_level": annotation.level,
        "message": annotation.message,
    }
    if annotation.column:
        annotation_fields |= {"start_column": annotation.column, "end_column": annotation.column}
    return {**annotation_fields, "title": annotation.title} if annotation.title else annotation_fields
