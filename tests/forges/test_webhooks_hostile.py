"""Any delivery is parsed, ignored or refused; none causes an internal error."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltaci.forges import WEBHOOK_PARSERS
from deltaci.forges.webhook_event import Delivery, IgnoredEvent, WebhookEvent
from deltaci.pipeline.change import Change
from tests.forges.payloads import (
    NOW,
    SECRET,
    gitea_pull_request,
    gitea_push,
    github_pull_request,
    github_push,
    gitlab_merge_request,
    gitlab_push,
    plain_git,
)

SHAPES: list[tuple[str, str, Any]] = [
    ("github", "push", github_push()),
    ("github", "pull_request", github_pull_request()),
    ("gitea", "push", gitea_push()),
    ("gitea", "pull_request", gitea_pull_request()),
    ("gitlab", "Push Hook", gitlab_push()),
    ("gitlab", "Merge Request Hook", gitlab_merge_request()),
    ("git", "", json.loads(plain_git().body)),
]
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


def paths(value: Any, so_far: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the paths of all parts of a JSON value that can be replaced."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [so_far, *(path for key, inner in items for path in paths(inner, (*so_far, key)))]


def altered(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """Return a copy with another value at the path."""
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = altered(value[path[0]], path[1:], new)
    return copy


def delivery_of(forge: str, event: str, body: bytes) -> Delivery:
    """Return a delivery as after the check of its signature."""
    headers = {f"x-{forge}-event".encode(): event}
    return Delivery(lambda name: headers.get(name, ""), body, NOW)


@pytest.mark.parametrize(("forge", "event", "payload"), SHAPES)
@given(data=st.data())
def test_an_event_with_arbitrary_parts_is_parsed_or_refused(forge: str, event: str, payload: Any, data: Any) -> None:
    changed = altered(payload, data.draw(st.sampled_from(paths(payload))), data.draw(VALUES))
    delivery = delivery_of(forge, event, json.dumps(changed).encode())

    try:
        parsed = WEBHOOK_PARSERS[forge].parse(delivery)
    except msgspec.DecodeError:
        return

    assert isinstance(parsed, WebhookEvent | IgnoredEvent)
    if isinstance(parsed, WebhookEvent):
        again = msgspec.json.decode(msgspec.json.encode(parsed.change), type=Change)
        assert again == parsed.change
        assert len(again.commit) in (40, 64)
        assert not set(again.ref) & set("\x00\n\r ")


@pytest.mark.parametrize(("forge", "event", "payload"), SHAPES)
@given(cut=st.integers(0, 5000))
def test_a_truncated_event_is_refused(forge: str, event: str, payload: Any, cut: int) -> None:
    body = json.dumps(payload).encode()
    with pytest.raises(msgspec.DecodeError):
        WEBHOOK_PARSERS[forge].parse(delivery_of(forge, event, body[: cut % len(body)]))


@pytest.mark.parametrize("forge", WEBHOOK_PARSERS)
@given(
    headers=st.dictionaries(st.sampled_from(["signature", "token", "time", "id"]), st.text(max_size=80)),
    body=st.binary(),
)
def test_arbitrary_headers_are_no_valid_signature(forge: str, headers: dict[str, str], body: bytes) -> None:
    def header(name: bytes) -> str:
        for word, value in headers.items():
            if word.encode() in name:
                return value
        return ""

    assert not WEBHOOK_PARSERS[forge].has_valid_signature(Delivery(header, body, NOW), SECRET)


def test_a_fork_is_recognized_by_repository_ids_only() -> None:
    """Other fields of its payload do not matter."""
    claims = github_pull_request(head_repo="fork")
    claims["pull_request"]["head"]["repo"] |= {"full_name": "octo/hello", "fork": False, "owner": {"login": "octo"}}

    event = WEBHOOK_PARSERS["github"].parse(delivery_of("github", "pull_request", json.dumps(claims).encode()))

    assert isinstance(event, WebhookEvent)
    assert event.change.is_fork
