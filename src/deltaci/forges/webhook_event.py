"""What a delivery means, in everybody's words, and what all forges have in common.

A delivery is believed only after its signature was checked over the bytes as they came; then only the fields that are
needed are read, and each must be what it should be. Forges add fields as they like: nobody looks at what is not needed.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from hashlib import blake2b, sha256
from typing import Annotated, Any, Final, Protocol, TypeVar, get_args

import msgspec
from msgspec import Meta

from deltaci.core.text import plain_line
from deltaci.git.mirrors import TEMPORARY_BRANCH_PREFIX
from deltaci.pipeline.change import Change
from deltaci.pipeline.model import PullRequestType

MAX_MESSAGE: Final = 10_000
MAX_TITLE: Final = 200
MAX_DELIVERY: Final = 200
TOLERANCE_SECONDS: Final = 300.0  # How far the time of a signature may be off.
BRANCHES: Final = "refs/heads/"
TAGS: Final = "refs/tags/"
# What `on.pull_request.types` may name.
ACTIONS: Final = frozenset(get_args(PullRequestType))

Sha = Annotated[str, Meta(pattern=r"^([0-9a-f]{40}|[0-9a-f]{64})\Z")]
Ref = Annotated[str, Meta(min_length=1, max_length=1000, pattern=r"^[^\x00-\x20\x7f]+\Z")]
Name = Annotated[str, Meta(max_length=500)]
Number = Annotated[int, Meta(ge=1, le=2**53)]

Headers = Callable[[bytes], str]  # What a header says, by its name in small letters; empty: there is none.
T = TypeVar("T")


class Delivery(msgspec.Struct, frozen=True):
    """One request, as it came. `now` is when, in seconds."""

    header: Headers
    body: bytes
    now: float


class Nothing(msgspec.Struct, frozen=True):
    """There is nothing to do, and why. A `is_ping` only wants to know whether somebody is there."""

    why: str
    is_ping: bool = False


class Heard(msgspec.Struct, frozen=True):
    """Something happened. `moment` tells two events apart that say the same: when it was, as the forge puts it."""

    change: Change
    moment: str = ""


class Listener(Protocol):
    """One kind of forge, as far as it tells us something."""

    def is_signed(self, delivery: Delivery, secret: str) -> bool:
        """Whether it comes from somebody who knows the secret, and is not old, where that can be known."""
        ...

    def delivery_id(self, delivery: Delivery) -> str:
        """What the forge calls this delivery; empty: nothing."""
        ...

    def read(self, delivery: Delivery) -> Heard | Nothing:
        """What it says. Raises `msgspec.DecodeError` when it makes no sense."""
        ...


def hmac_hex(secret: str, *parts: bytes) -> str:
    """The HMAC-SHA256 of these bytes, in hex."""
    made = hmac.new(secret.encode(), digestmod=sha256)
    for part in parts:
        made.update(part)
    return made.hexdigest()


def same(told: str, expected: str) -> bool:
    """Whether they are equal, in a time that does not tell how far they are."""
    return hmac.compare_digest(told.encode("utf-8", "replace"), expected.encode())


def is_fresh(told: str, now: float) -> bool:
    """Whether a time in whole seconds is not far from now."""
    return told.isascii() and told.isdecimal() and len(told) <= 12 and abs(int(told) - now) <= TOLERANCE_SECONDS


def is_zero(sha: str) -> bool:
    """Whether it stands for no commit."""
    return not sha.strip("0")


def title_of(message: str) -> str:
    """The first line for people."""
    return plain_line(message.strip().partition("\n")[0], MAX_TITLE)


def decoded(body: bytes, kind: type[T]) -> T:
    """The fields that are needed."""
    return msgspec.json.decode(body, type=kind)


class Pushed(msgspec.Struct, frozen=True, kw_only=True):
    """What a push is, whichever forge tells it."""

    ref: str
    before: str
    after: str
    commit: str
    repository: str = ""
    message: str = ""
    actor: str = ""
    default_branch: str = ""


def push(said: Pushed) -> Change | Nothing:
    """A change, if the branch or the tag is there afterwards."""
    branch = said.ref.removeprefix(BRANCHES) if said.ref.startswith(BRANCHES) else ""
    tag = said.ref.removeprefix(TAGS) if said.ref.startswith(TAGS) else ""
    if not branch and not tag:
        return Nothing(f"{plain_line(said.ref, MAX_TITLE)!r} is neither a branch nor a tag")
    if branch.startswith(TEMPORARY_BRANCH_PREFIX):
        return Nothing(f"{plain_line(branch, MAX_TITLE)!r} is a branch of the merge queue")
    if is_zero(said.after) or is_zero(said.commit):
        return Nothing(f"the {'branch' if branch else 'tag'} {plain_line(branch or tag, MAX_TITLE)!r} was deleted")
    if said.before == said.after:
        return Nothing("nothing was moved: before and after are the same commit")
    before = "" if is_zero(said.before) else said.before
    owner, _, name = said.repository.rpartition("/")
    payload: dict[str, Any] = {
        "ref": said.ref,
        "before": said.before,
        "after": said.after,
        "created": not before,
        "deleted": False,
        "head_commit": {"id": said.commit, "message": said.message[:MAX_MESSAGE]},
        "repository": {
            "name": name,
            "full_name": said.repository,
            "owner": {"login": owner},
            "default_branch": said.default_branch,
        },
        "pusher": {"name": said.actor},
        "sender": {"login": said.actor},
    }
    return Change(
        event="push",
        commit=said.commit,
        repository=said.repository,
        ref=said.ref,
        branch=branch,
        tag=tag,
        before=before,
        title=title_of(said.message),
        message=said.message[:MAX_MESSAGE],
        actor=said.actor,
        default_branch=said.default_branch,
        payload=payload,
    )


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What a pull request is, whichever forge tells it."""

    action: str
    number: int
    ref: str
    commit: str
    branch: str
    head: str
    is_fork: bool
    repository: str = ""
    head_repository: str = ""
    base: str = ""
    title: str = ""
    actor: str = ""
    default_branch: str = ""
    is_draft: bool = False
    is_merged: bool = False
    labels: tuple[str, ...] = ()
    label: str = ""  # that was added or removed, where that is said


def pull_request(said: Asked) -> Change | Nothing:
    """A change, if a pipeline can ask for what happened."""
    if said.action not in ACTIONS:
        return Nothing(f"no pipeline asks for the action {plain_line(said.action, MAX_TITLE)!r} of a pull request")
    if said.head.startswith(TEMPORARY_BRANCH_PREFIX) and not said.is_fork:
        return Nothing(f"{plain_line(said.head, MAX_TITLE)!r} is a branch of the merge queue")
    owner, _, name = said.repository.rpartition("/")
    payload: dict[str, Any] = {
        "action": said.action,
        "number": said.number,
        "pull_request": {
            "number": said.number,
            "title": said.title[:MAX_MESSAGE],
            "draft": said.is_draft,
            "merged": said.is_merged,
            "labels": [{"name": each} for each in said.labels[:100]],
            "user": {"login": said.actor},
            "head": {
                "ref": said.head,
                "sha": said.commit,
                "repo": {"full_name": said.head_repository, "fork": said.is_fork},
            },
            "base": {"ref": said.branch, "sha": said.base, "repo": {"full_name": said.repository}},
        },
        "repository": {
            "name": name,
            "full_name": said.repository,
            "owner": {"login": owner},
            "default_branch": said.default_branch,
        },
        "sender": {"login": said.actor},
    }
    if said.label:
        payload["label"] = {"name": said.label}
    return Change(
        event="pull_request",
        commit=said.commit,
        repository=said.repository,
        ref=said.ref,
        branch=said.branch,
        base=said.base,
        head=said.head,
        number=said.number,
        action=said.action,
        title=title_of(said.title),
        actor=said.actor,
        is_fork=said.is_fork,
        default_branch=said.default_branch,
        payload=payload,
    )


def fingerprint(*parts: str) -> str:
    """The same for the same texts, and for no others."""
    return blake2b(msgspec.json.encode(parts), digest_size=20).hexdigest()
