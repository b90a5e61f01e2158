"""GitHub: `X-Hub-Signature-256` in; commit statuses or check runs out."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import quote

import msgspec

from deltaci.forges.projects import ForgeProject
from deltaci.forges.status_state import Answer, Call, Note, Report
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
    hmac_hex,
    pull_request,
    push,
    same,
)

API: Final = "https://api.github.com"
VERSION: Final = "2022-11-28"
MAX_ANNOTATIONS: Final = 50  # GitHub takes no more at once.
MAX_TEXT: Final = 60_000  # GitHub takes 65,535 characters of a summary.
_STATES: Final = {
    "pending": "pending",
    "running": "pending",
    "success": "success",
    "failure": "failure",
    "canceled": "error",
    "error": "error",
}
_CONCLUSIONS: Final = {"success": "success", "failure": "failure", "canceled": "cancelled", "error": "failure"}


class Owner(msgspec.Struct, frozen=True):
    """Somebody, by their name there."""

    login: Name = ""


class Repo(msgspec.Struct, frozen=True):
    """A repository; `pushed_at` is a number in some events and a text in others."""

    id: int
    full_name: Name = ""
    default_branch: Name = ""
    pushed_at: int | str | None = None
    updated_at: int | str | None = None


class Commit(msgspec.Struct, frozen=True):
    """The last commit of a push."""

    id: Sha
    message: str = ""


class Push(msgspec.Struct, frozen=True):
    """The event `push`."""

    ref: Ref
    before: Sha
    after: Sha
    repository: Repo
    head_commit: Commit | None = None
    sender: Owner = Owner()
    deleted: bool = False


class Side(msgspec.Struct, frozen=True):
    """An end of a pull request. Its repository may be gone."""

    ref: Ref
    sha: Sha
    repo: Repo | None = None


class Label(msgspec.Struct, frozen=True):
    """A label."""

    name: Name = ""


class PullRequest(msgspec.Struct, frozen=True):
    """What it is about."""

    head: Side
    base: Side
    title: str = ""
    draft: bool = False
    merged: bool | None = False
    labels: list[Label] | None = None
    updated_at: str | None = ""


class PullRequestEvent(msgspec.Struct, frozen=True):
    """The event `pull_request`."""

    action: Name
    number: Number
    pull_request: PullRequest
    repository: Repo
    sender: Owner = Owner()
    label: Label | None = None


def read_push(body: bytes) -> Heard | Nothing:
    """A push, in the words that Gitea has taken over."""
    said = decoded(body, Push)
    commit = said.head_commit.id if said.head_commit is not None else said.after  # Of an annotated tag: not the tag.
    change = push(
        Pushed(
            ref=said.ref,
            before=said.before,
            after="0" * 40 if said.deleted else said.after,
            commit=commit,
            repository=said.repository.full_name,
            message=said.head_commit.message if said.head_commit is not None else "",
            actor=said.sender.login,
            default_branch=said.repository.default_branch,
        )
    )
    moment = said.repository.pushed_at or said.repository.updated_at
    return change if isinstance(change, Nothing) else Heard(change, str(moment or ""))


def is_fork(head: Side, base: Side) -> bool:
    """Whether somebody else's repository has the commit. One that is gone is nobody's we know."""
    return head.repo is None or base.repo is None or head.repo.id != base.repo.id


def read_pull_request(body: bytes, actions: dict[str, str]) -> Heard | Nothing:
    """A pull request, in the words that Gitea has taken over."""
    said = decoded(body, PullRequestEvent)
    about = said.pull_request
    change = pull_request(
        Asked(
            action=actions.get(said.action, said.action),
            number=said.number,
            ref=f"refs/pull/{said.number}/head",
            commit=about.head.sha,
            branch=about.base.ref,
            head=about.head.ref,
            is_fork=is_fork(about.head, about.base),
            repository=said.repository.full_name,
            head_repository=about.head.repo.full_name if about.head.repo is not None else "",
            base=about.base.sha,
            title=about.title,
            actor=said.sender.login,
            default_branch=said.repository.default_branch,
            is_draft=about.draft,
            is_merged=bool(about.merged),
            labels=tuple(each.name for each in about.labels or ()),
            label=said.label.name if said.label is not None else "",
        )
    )
    return change if isinstance(change, Nothing) else Heard(change, about.updated_at or "")


class GitHub:
    """github.com, and GitHub Enterprise Server."""

    def is_signed(self, delivery: Delivery, secret: str) -> bool:
        """By `X-Hub-Signature-256`. Neither the event's name nor the delivery's id are signed."""
        return same(delivery.header(b"x-hub-signature-256"), f"sha256={hmac_hex(secret, delivery.body)}")

    def delivery_id(self, delivery: Delivery) -> str:
        """Stays the same when it is delivered again."""
        return delivery.header(b"x-github-delivery")

    def read(self, delivery: Delivery) -> Heard | Nothing:
        """Pushes and pull requests."""
        match delivery.header(b"x-github-event"):
            case "push":
                return read_push(delivery.body)
            case "pull_request":
                return read_pull_request(delivery.body, {})
            case "ping":
                return Nothing("it is heard here", is_ping=True)
            case other:
                return Nothing(f"nothing follows from the event {other[:80]!r}")

    def call(self, project: ForgeProject, report: Report, check: str) -> Call:
        """A commit status; or a check run, which only a GitHub App may make."""
        owner, _, name = project.repository.partition("/")
        at = f"{project.api(API)}/repos/{quote(owner, safe='')}/{quote(name, safe='')}"
        headers = {
            "Authorization": f"Bearer {project.api_token}",
            "Accept": "application/vnd.github+json",
            "X-GitHub-Api-Version": VERSION,
        }
        if project.reports != "checks":
            return Call("POST", f"{at}/statuses/{report.commit}", headers, status_body(report, _STATES))
        if check:
            return Call("PATCH", f"{at}/check-runs/{quote(check, safe='')}", headers, _check(report))
        return Call("POST", f"{at}/check-runs", headers, {"head_sha": report.commit, **_check(report)})

    def told(self, answer: Answer) -> str | None:
        """The id of the check run, or of the status; None: it was not taken."""
        return answer.id if 200 <= answer.status < 300 else None


def status_body(report: Report, states: dict[str, str]) -> dict[str, Any]:
    """A commit status, in the words that Gitea has taken over."""
    body = {"state": states[report.state], "context": report.context, "description": report.description}
    return {**body, "target_url": report.url} if report.url else body


def _check(report: Report) -> dict[str, Any]:
    body: dict[str, Any] = {
        "name": report.context,
        "external_id": report.run_id,
        "output": {
            "title": report.description,
            "summary": (report.summary or report.description)[:MAX_TEXT],
            "annotations": [_annotation(each) for each in report.notes[:MAX_ANNOTATIONS]],
        },
    }
    if report.url:
        body["details_url"] = report.url
    conclusion = _CONCLUSIONS.get(report.state)
    if conclusion is None:
        return {**body, "status": "in_progress" if report.state == "running" else "queued"}
    return {**body, "status": "completed", "conclusion": conclusion}


def _annotation(note: Note) -> dict[str, Any]:
    told: dict[str, Any] = {
        "path": note.path,
        "start_line": note.line,
        "end_line": note.line,
        "annotation_level": note.level,
        "message": note.message,
    }
    if note.column:
        told |= {"start_column": note.column, "end_column": note.column}
    return {**told, "title": note.title} if note.title else told
