"""Webhook requests as forges send them: the documented payloads, written by hand, with unused fields."""

from __future__ import annotations

import hmac
import json
from base64 import b64encode
from hashlib import sha256
from typing import Any, Final, NamedTuple

SECRET: Final = "a secret of the webhook's own"
OLD: Final = "1" * 40
NEW: Final = "a1b2c3d4e5" * 4
TAG: Final = "9" * 40
ZERO: Final = "0" * 40
NOW: Final = 1_767_500_000
UUID: Final = "72d3162e-cc78-11e3-81ab-4c9367dc0958"


class WebhookRequest(NamedTuple):
    """A webhook request of a forge."""

    headers: dict[str, str]
    body: bytes


def _hex(body: bytes, secret: str) -> str:
    return hmac.new(secret.encode(), body, sha256).hexdigest()


# -- GitHub


def github(
    event: str, payload: Any, *, delivery: str = "72d3162e-cc78-11e3-81ab-4c9367dc0958", secret: str = SECRET
) -> WebhookRequest:
    """Return a request signed as GitHub does."""
    body = json.dumps(payload).encode()
    headers = {
        "Content-Type": "application/json",
        "User-Agent": "GitHub-Hookshot/044aadd",
        "X-GitHub-Delivery": delivery,
        "X-GitHub-Event": event,
        "X-GitHub-Hook-ID": "292430182",
        "X-GitHub-Hook-Installation-Target-Type": "repository",
        "X-Hub-Signature": "sha1=" + "0" * 40,
        "X-Hub-Signature-256": f"sha256={_hex(body, secret)}",
    }
    return WebhookRequest(headers, body)


def _github_repo(id: int = 35129377, name: str = "octo/hello", **fields: Any) -> dict[str, Any]:
    owner, _, short = name.partition("/")
    return {
        "id": id,
        "node_id": "MDEwOlJlcG9zaXRvcnk=",
        "name": short,
        "full_name": name,
        "private": False,
        "owner": {"login": owner, "id": 6752317, "type": "Organization"},
        "fork": False,
        "default_branch": "main",
        "pushed_at": "2026-01-04T08:00:00Z",
        "updated_at": "2026-01-03T08:00:00Z",
        "stargazers_count": 3,
        **fields,
    }


def github_push(ref: str = "refs/heads/main", before: str = OLD, after: str = NEW, **fields: Any) -> dict[str, Any]:
    """Return the payload of the event `push`."""
    is_deleted = after == ZERO
    commit = {
        "id": after,
        "tree_id": "f" * 40,
        "distinct": True,
        "message": "Fix the gate\n\nIt did not close.",
        "timestamp": "2026-01-04T09:00:00+01:00",
        "author": {"name": "Ada", "email": "ada@example.org", "username": "ada"},
        "added": [],
        "removed": [],
        "modified": ["gate.py"],
    }
    return {
        "ref": ref,
        "before": before,
        "after": after,
        "created": before == ZERO,
        "deleted": is_deleted,
        "forced": False,
        "base_ref": None,
        "compare": "https://github.com/octo/hello/compare/1...a",
        "commits": [] if is_deleted else [commit],
        "head_commit": None if is_deleted else commit,
        "repository": _github_repo(pushed_at=1767513600),
        "pusher": {"name": "ada", "email": "ada@example.org"},
        "sender": {"login": "ada", "id": 6752317, "type": "User"},
        **fields,
    }


def github_pull_request(action: str = "opened", *, head_repo: Any = "same", **fields: Any) -> dict[str, Any]:
    """The event `pull_request`; `head_repo` is `same`, `fork` or None."""
    repos = {"same": _github_repo(), "fork": _github_repo(77, "mallory/hello", fork=True), None: None}
    return {
        "action": action,
        "number": 7,
        "pull_request": {
            "id": 34778301,
            "number": 7,
            "state": "open",
            "locked": False,
            "title": "Close the gate",
            "body": None,
            "user": {"login": "ada", "id": 6752317},
            "created_at": "2026-01-04T08:00:00Z",
            "updated_at": "2026-01-04T08:05:00Z",
            "merged": None,
            "draft": False,
            "labels": [{"id": 208045946, "name": "bug", "color": "f29513"}],
            "head": {"label": "octo:gate", "ref": "gate", "sha": NEW, "repo": repos[head_repo]},
            "base": {"label": "octo:main", "ref": "main", "sha": OLD, "repo": _github_repo()},
            "commits": 1,
        },
        "repository": _github_repo(),
        "sender": {"login": "ada", "id": 6752317},
        **fields,
    }


# -- GitLab


def gitlab(
    event: str, payload: Any, *, uuid: str = "13792a34-cac6-4fda-95a8-c58e00a3954e", token: str = SECRET
) -> WebhookRequest:
    """Return a request of GitLab with the token in plain text."""
    headers = {
        "Content-Type": "application/json",
        "User-Agent": "GitLab/18.1.0",
        "Idempotency-Key": f"f5e57092-{uuid}",
        "X-Gitlab-Event": event,
        "X-Gitlab-Event-UUID": uuid,
        "X-Gitlab-Instance": "https://gitlab.example.org",
        "X-Gitlab-Webhook-UUID": "02affd2d-2cba-4033-917d-ec22d5dc4b38",
        "X-Gitlab-Token": token,
    }
    return WebhookRequest(headers, json.dumps(payload).encode())


def gitlab_signed(
    event: str, payload: Any, *, id: str = "wh-1", at: int = NOW, key: bytes = b"k" * 32
) -> WebhookRequest:
    """Return a request of GitLab signed over id, time and body."""
    headers, body = gitlab(event, payload)
    del headers["X-Gitlab-Token"]
    signature = hmac.new(key, f"{id}.{at}.".encode() + body, sha256).digest()
    signed = {
        "webhook-id": id,
        "webhook-timestamp": str(at),
        "webhook-signature": f"v1,{b64encode(signature).decode()}",
    }
    return WebhookRequest({**headers, "Idempotency-Key": id, **signed}, body)


def _gitlab_project(id: int = 15, path: str = "mike/diaspora") -> dict[str, Any]:
    return {
        "id": id,
        "name": "Diaspora",
        "web_url": f"https://gitlab.example.org/{path}",
        "namespace": "Mike",
        "visibility_level": 0,
        "path_with_namespace": path,
        "default_branch": "main",
        "ci_config_path": None,
    }


def gitlab_push(ref: str = "refs/heads/main", before: str = OLD, after: str = NEW, **fields: Any) -> dict[str, Any]:
    """Return the payload of `Push Hook`, or for the ref of a tag, of `Tag Push Hook`."""
    is_deleted = after == ZERO
    commit = {
        "id": NEW,
        "message": "Fix the gate\n\nIt did not close.",
        "title": "Fix the gate",
        "timestamp": "2026-01-04T09:00:00+01:00",
        "author": {"name": "Ada", "email": "[REDACTED]"},
        "added": [],
        "modified": ["gate.py"],
        "removed": [],
    }
    return {
        "object_kind": "tag_push" if ref.startswith("refs/tags/") else "push",
        "event_name": "push",
        "before": before,
        "after": after,
        "ref": ref,
        "ref_protected": True,
        "checkout_sha": None if is_deleted else NEW,
        "message": None,
        "user_id": 4,
        "user_name": "Ada",
        "user_username": "ada",
        "user_email": "",
        "project_id": 15,
        "project": _gitlab_project(),
        "commits": [] if is_deleted else [commit],
        "total_commits_count": 0 if is_deleted else 1,
        "push_options": {},
        "repository": {"name": "Diaspora", "url": "git@gitlab.example.org:mike/diaspora.git"},
        **fields,
    }


def gitlab_merge_request(action: str = "open", *, source: int | None = 15, **fields: Any) -> dict[str, Any]:
    """Return the payload of `Merge Request Hook` from the project with id `source`."""
    about = {
        "id": 99,
        "iid": 7,
        "target_branch": "main",
        "source_branch": "gate",
        "source_project_id": source,
        "target_project_id": 15,
        "author_id": 51,
        "title": "Close the gate",
        "created_at": "2026-01-04 08:00:00 UTC",
        "updated_at": "2026-01-04 08:05:00 UTC",
        "state": "merged" if action == "merge" else "opened",
        "merge_status": "unchecked",
        "draft": False,
        "work_in_progress": False,
        "last_commit": {"id": NEW, "message": "Fix the gate", "title": "Fix the gate", "url": "https://…"},
        "source": _gitlab_project(source or 0, "somebody/diaspora"),
        "target": _gitlab_project(),
        "action": action,
        **fields.pop("about", {}),
    }
    return {
        "object_kind": "merge_request",
        "event_type": "merge_request",
        "user": {"id": 4, "name": "Ada", "username": "ada", "avatar_url": "https://…", "email": "[REDACTED]"},
        "project": _gitlab_project(),
        "repository": {"name": "Diaspora"},
        "object_attributes": about,
        "labels": [{"id": 206, "title": "bug", "color": "#ffffff", "project_id": 14}],
        "changes": {},
        "reviewers": [],
        **fields,
    }


# -- Gitea and Forgejo


def gitea(event: str, payload: Any, *, delivery: str = UUID, secret: str = SECRET) -> WebhookRequest:
    """Return a request signed as Gitea does, which also sends GitHub's headers."""
    body = json.dumps(payload).encode()
    signature = _hex(body, secret)
    headers = {
        "Content-Type": "application/json",
        "X-GitHub-Delivery": delivery,
        "X-GitHub-Event": event,
        "X-Gogs-Event": event,
        "X-Gitea-Delivery": delivery,
        "X-Gitea-Event": event,
        "X-Gitea-Event-Type": event,
        "X-Gitea-Signature": signature,
        "X-Hub-Signature-256": f"sha256={signature}",
    }
    return WebhookRequest(headers, body)


def forgejo(event: str, payload: Any, *, delivery: str = UUID, secret: str = SECRET) -> WebhookRequest:
    """Return a request of Forgejo, which adds its own headers to Gitea's."""
    headers, body = gitea(event, payload, delivery=delivery, secret=secret)
    more = {"X-Forgejo-Delivery": delivery, "X-Forgejo-Event": event, "X-Forgejo-Signature": _hex(body, secret)}
    return WebhookRequest({**headers, **more}, body)


def _gitea_repo(id: int = 140, name: str = "gitea/webhooks") -> dict[str, Any]:
    owner, _, short = name.partition("/")
    return {
        "id": id,
        "owner": {"id": 1, "login": owner, "username": owner},
        "name": short,
        "full_name": name,
        "fork": False,
        "default_branch": "main",
        "updated_at": "2026-01-04T08:00:00Z",
        "permissions": {"admin": True, "push": True, "pull": True},
    }


def gitea_push(ref: str = "refs/heads/main", before: str = OLD, after: str = NEW, **fields: Any) -> dict[str, Any]:
    """Return the payload of the event `push`."""
    commit = {"id": after, "message": "Fix the gate\n", "url": "https://…", "author": {"name": "Ada"}, "added": None}
    person = {"id": 1, "login": "ada", "full_name": "Ada", "username": "ada"}
    return {
        "ref": ref,
        "before": before,
        "after": after,
        "compare_url": "https://codeberg.example.org/compare",
        "commits": [commit],
        "total_commits": 1,
        "head_commit": None if after == ZERO else commit,
        "repository": _gitea_repo(),
        "pusher": person,
        "sender": person,
        **fields,
    }


def gitea_pull_request(action: str = "opened", *, head_repo: Any = "same", **fields: Any) -> dict[str, Any]:
    """The event `pull_request`; `head_repo` is `same`, `fork` or None."""
    repos = {"same": _gitea_repo(), "fork": _gitea_repo(77, "mallory/webhooks"), None: None}
    person = {"id": 1, "login": "ada", "username": "ada"}
    return {
        "action": action,
        "number": 7,
        "pull_request": {
            "id": 3,
            "number": 7,
            "user": person,
            "title": "Close the gate",
            "body": "",
            "labels": None,
            "state": "open",
            "draft": False,
            "merged": False,
            "merge_base": OLD,
            "updated_at": "2026-01-04T08:05:00Z",
            "base": {"label": "main", "ref": "main", "sha": OLD, "repo_id": 140, "repo": _gitea_repo()},
            "head": {"label": "gate", "ref": "gate", "sha": NEW, "repo_id": 140, "repo": repos[head_repo]},
        },
        "repository": _gitea_repo(),
        "sender": person,
        "commit_id": "",
        "review": None,
        **fields,
    }


# -- a bare repository


def plain_git(*, at: int = NOW, secret: str = SECRET, delivery: str = "3f1c9a52", **fields: Any) -> WebhookRequest:
    """Return a request of our post-receive hook."""
    payload = {"delivery": delivery, "ref": "refs/heads/main", "before": OLD, "after": NEW, "pusher": "ada", **fields}
    body = json.dumps(payload).encode()
    signature = hmac.new(secret.encode(), f"{at}.".encode() + body, sha256).hexdigest()
    return WebhookRequest({"X-Deltaci-Timestamp": str(at), "X-Deltaci-Signature-256": f"sha256={signature}"}, body)
