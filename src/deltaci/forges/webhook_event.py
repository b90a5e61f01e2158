"""Webhook deliveries of all forges: their signatures, and the change that a push or a pull request stands for.

Each forge's module parses its own payloads into a `Push` or a `PullRequest`; this module turns these into a `Change`
with a payload in GitHub's form, which is what expressions of a pipeline see.

A body is parsed only after its signature was verified over the bytes as received. Only the needed fields are decoded
and validated; a forge may add others.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from datetime import datetime
from hashlib import blake2b, sha256
from typing import Annotated, Any, Final, Protocol, TypeVar, get_args

import msgspec
from msgspec import Meta

from deltaci.core.instants import SECOND
from deltaci.core.text import plain_line
from deltaci.pipeline.change import Change
from deltaci.pipeline.model import PullRequestType

MAX_MESSAGE: Final = 10_000
MAX_TITLE: Final = 200
MAX_DELIVERY: Final = 200
TOLERANCE_SECONDS: Final = 300.0  # How far the time of a signature may be from the server's.
BRANCH_REFS: Final = "refs/heads/"
TAG_REFS: Final = "refs/tags/"
# The allowed values of `on.pull_request.types`.
ACTIONS: Final = frozenset(get_args(PullRequestType))

Sha = Annotated[str, Meta(pattern=r"^([0-9a-f]{40}|[0-9a-f]{64})\Z")]
Ref = Annotated[str, Meta(min_length=1, max_length=1000, pattern=r"^[^\x00-\x20\x7f]+\Z")]
Name = Annotated[str, Meta(max_length=500)]
Number = Annotated[int, Meta(ge=1, le=2**53)]

GetHeader = Callable[[bytes], str]  # Returns a header by its lower-case name, or an empty string.
T = TypeVar("T")


class Delivery(msgspec.Struct, frozen=True):
    """One webhook request as received. `now` is the time of its arrival in Unix seconds."""

    header: GetHeader
    body: bytes
    now: float


class IgnoredEvent(msgspec.Struct, frozen=True):
    """A delivery that causes no change. `is_ping`: the forge only tests the webhook."""

    reason: str
    is_ping: bool = False


class WebhookEvent(msgspec.Struct, frozen=True):
    """A delivery that causes a change.

    `occurred_at` is its time by the forge's clock in microseconds, or 0. `repository_id` is the forge's id of the
    repository, which stays the same when it is renamed.
    """

    change: Change
    occurred_at: int = 0
    repository_id: str = ""


class WebhookParser(Protocol):
    """Verifies and parses the webhook requests of one kind of forge."""

    def has_valid_signature(self, delivery: Delivery, secret: str) -> bool:
        """Return whether the sender knows the secret and, where the forge signs a time, that it is recent."""
        ...

    def delivery_id(self, delivery: Delivery) -> str:
        """Return the forge's id of the delivery, or an empty string if it sends none."""
        ...

    def event_name(self, delivery: Delivery) -> str:
        """Return the forge's name of the kind of event."""
        ...

    def parse(self, delivery: Delivery) -> WebhookEvent | IgnoredEvent:
        """Return the event, or the reason why it is ignored. Raise `msgspec.DecodeError` if the body is invalid."""
        ...


def hmac_hex(secret: str, *message_parts: bytes) -> str:
    """Return the HMAC-SHA256 of the concatenated parts as hexadecimal digits."""
    mac = hmac.new(secret.encode(), digestmod=sha256)
    for part in message_parts:
        mac.update(part)
    return mac.hexdigest()


def signatures_equal(received_signature: str, expected_signature: str) -> bool:
    """Return whether the signatures are equal. Takes the same time for any received one, to reveal nothing."""
    return hmac.compare_digest(received_signature.encode("utf-8", "replace"), expected_signature.encode())


def is_recent(timestamp: str, now: float) -> bool:
    """Return whether a decimal Unix time differs from `now` by at most `TOLERANCE_SECONDS`."""
    is_number = timestamp.isascii() and timestamp.isdecimal() and len(timestamp) <= 12
    return is_number and abs(int(timestamp) - now) <= TOLERANCE_SECONDS


def is_zero(commit: str) -> bool:
    """Return whether the hash consists of zeros, which forges send in place of a missing commit."""
    return not commit.strip("0")


def microseconds(time: int | str | None) -> int:
    """Return a time of a forge's payload, in Unix seconds or as text, in microseconds; 0 if it is none."""
    if isinstance(time, int):
        return time * SECOND if 0 < time < 2**40 else 0
    try:
        moment = datetime.fromisoformat((time or "").replace(" UTC", "Z"))
    except ValueError:
        return 0
    return int(moment.timestamp() * SECOND) if moment.tzinfo is not None and moment.year > 1970 else 0


def title_of(commit_message: str) -> str:
    """Return the first line of a commit message or title, cleaned and shortened for display."""
    return plain_line(commit_message.strip().partition("\n")[0], MAX_TITLE)


def decode_payload(body: bytes, payload_type: type[T]) -> T:
    """Decode the fields of `payload_type` from a JSON body and ignore all others.

    Raise `msgspec.DecodeError` if the body is not JSON in UTF-8 or a field is invalid.
    """
    try:
        return msgspec.json.decode(body, type=payload_type)
    except UnicodeDecodeError as error:
        raise msgspec.DecodeError(f"it is not UTF-8: {error}") from None


class Push(msgspec.Struct, frozen=True, kw_only=True):
    """A push event of any forge. `commit` is the commit of `after`, which may be an annotated tag."""

    ref: str
    before: str
    after: str
    commit: str
    repository: str = ""
    message: str = ""
    actor: str = ""
    default_branch: str = ""


def push_change(push: Push) -> Change | IgnoredEvent:
    """Return the change that a push makes, or the reason why it is ignored.

    Ignored are deletions, refs other than branches and tags, and refs that did not move.
    """
    branch = push.ref.removeprefix(BRANCH_REFS) if push.ref.startswith(BRANCH_REFS) else ""
    tag = push.ref.removeprefix(TAG_REFS) if push.ref.startswith(TAG_REFS) else ""
    if not branch and not tag:
        return IgnoredEvent(f"{plain_line(push.ref, MAX_TITLE)!r} is neither a branch nor a tag")
    if is_zero(push.after) or is_zero(push.commit):
        return IgnoredEvent(f"the {'branch' if branch else 'tag'} {plain_line(branch or tag, MAX_TITLE)!r} was deleted")
    if push.before == push.after:
        return IgnoredEvent("the ref did not move: before and after are the same commit")
    old_commit = "" if is_zero(push.before) else push.before
    owner, _, repository_name = push.repository.rpartition("/")
    payload: dict[str, Any] = {
        "ref": push.ref,
        "before": push.before,
        "after": push.after,
        "created": not old_commit,
        "deleted": False,
        "head_commit": {"id": push.commit, "message": push.message[:MAX_MESSAGE]},
        "repository": {
            "name": repository_name,
            "full_name": push.repository,
            "owner": {"login": owner},
            "default_branch": push.default_branch,
        },
        "pusher": {"name": push.actor},
        "sender": {"login": push.actor},
    }
    return Change(
        event="push",
        commit=push.commit,
        repository=push.repository,
        ref=push.ref,
        branch=branch,
        tag=tag,
        before=old_commit,
        title=title_of(push.message),
        message=push.message[:MAX_MESSAGE],
        actor=push.actor,
        default_branch=push.default_branch,
        payload=payload,
    )


class PullRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A pull request event of any forge. `commit` is the head commit, in `head_repository`."""

    action: str
    number: int
    ref: str
    commit: str
    base_branch: str
    head_branch: str
    is_fork: bool
    repository: str = ""
    head_repository: str = ""
    base_commit: str = ""
    title: str = ""
    actor: str = ""
    default_branch: str = ""
    is_draft: bool = False
    is_merged: bool = False
    labels: tuple[str, ...] = ()
    label: str = ""  # The label that was added or removed, if the forge names it.


def pull_request_change(pull_request: PullRequest) -> Change | IgnoredEvent:
    """Return the change that a pull request event makes, or the reason why it is ignored.

    Ignored are actions that no pipeline can name in its triggers.
    """
    if pull_request.action not in ACTIONS:
        action = plain_line(pull_request.action, MAX_TITLE)
        return IgnoredEvent(f"no pipeline can be triggered by the action {action!r} of a pull request")
    return Change(
        event="pull_request",
        commit=pull_request.commit,
        repository=pull_request.repository,
        ref=pull_request.ref,
        branch=pull_request.base_branch,
        base=pull_request.base_commit,
        head=pull_request.head_branch,
        number=pull_request.number,
        action=pull_request.action,
        title=title_of(pull_request.title),
        actor=pull_request.actor,
        is_fork=pull_request.is_fork,
        default_branch=pull_request.default_branch,
        payload=_pull_request_payload(pull_request),
    )


def _pull_request_payload(pull_request: PullRequest) -> dict[str, Any]:
    """Return the event's payload in GitHub's form."""
    owner, _, repository_name = pull_request.repository.rpartition("/")
    payload: dict[str, Any] = {
        "action": pull_request.action,
        "number": pull_request.number,
        "pull_request": {
            "number": pull_request.number,
            "title": pull_request.title[:MAX_MESSAGE],
            "draft": pull_request.is_draft,
            "merged": pull_request.is_merged,
            "labels": [{"name": label} for label in pull_request.labels[:100]],
            "user": {"login": pull_request.actor},
            "head": {
                "ref": pull_request.head_branch,
                "sha": pull_request.commit,
                "repo": {"full_name": pull_request.head_repository, "fork": pull_request.is_fork},
            },
            "base": {
                "ref": pull_request.base_branch,
                "sha": pull_request.base_commit,
                "repo": {"full_name": pull_request.repository},
            },
        },
        "repository": {
            "name": repository_name,
            "full_name": pull_request.repository,
            "owner": {"login": owner},
            "default_branch": pull_request.default_branch,
        },
        "sender": {"login": pull_request.actor},
    }
    if pull_request.label:
        payload["label"] = {"name": pull_request.label}
    return payload


def fingerprint(*texts: str) -> str:
    """Return a hash of a sequence of texts. The same characters split differently have another hash."""
    return blake2b(msgspec.json.encode(texts), digest_size=20).hexdigest()
