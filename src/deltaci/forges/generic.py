"""A bare repository without a forge: its post-receive hook reports each pushed ref.

    POST /hooks/TENANT/PROJECT
    X-Deltaci-Timestamp: 1767510000                     seconds since 1970
    X-Deltaci-Signature-256: sha256=HEX                 HMAC-SHA256 of TIMESTAMP "." BODY with the webhook secret

    {"delivery": "…", "ref": "refs/heads/main", "before": "40 hex", "after": "40 hex", "pusher": "ada"}

The hook sends one request for each ref. `delivery` is any text of 8 to 200 characters that is new for each push of each
ref; a request that is sent again keeps it and may carry a new time. A new ref has zeros for `before`, a deleted one for
`after`. The time may be off by five minutes. The pusher is not verified: the repository decides who may push.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from deltaci.forges.webhook_event import (
    MAX_DELIVERY,
    Delivery,
    IgnoredEvent,
    Name,
    Push,
    Ref,
    Sha,
    WebhookEvent,
    decode_payload,
    hmac_hex,
    is_recent,
    push_change,
    signatures_equal,
)

TIMESTAMP_HEADER = "X-Deltaci-Timestamp"
SIGNATURE_HEADER = "X-Deltaci-Signature-256"


class PushPayload(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a request of the post-receive hook."""

    delivery: Annotated[str, Meta(min_length=8, max_length=MAX_DELIVERY)]
    ref: Ref
    before: Sha
    after: Sha
    pusher: Name = ""


def signature(secret: str, timestamp: str, body: bytes) -> str:
    """Return the value of the signature header for a timestamp and a body."""
    return f"sha256={hmac_hex(secret, timestamp.encode('utf-8', 'replace'), b'.', body)}"


class PlainGit:
    """Verifies and parses the webhook requests of the post-receive hook."""

    def has_valid_signature(self, delivery: Delivery, secret: str) -> bool:
        """Return whether timestamp and body are signed with the secret and the timestamp is recent."""
        timestamp = delivery.header(b"x-deltaci-timestamp")
        expected_signature = signature(secret, timestamp, delivery.body)
        has_expected_signature = signatures_equal(delivery.header(b"x-deltaci-signature-256"), expected_signature)
        return has_expected_signature and is_recent(timestamp, delivery.now)

    def delivery_id(self, delivery: Delivery) -> str:
        """Return the id of the delivery from the body, because only the body is signed."""
        return decode_payload(delivery.body, PushPayload).delivery

    def event_name(self, delivery: Delivery) -> str:
        return "push"

    def parse(self, delivery: Delivery) -> WebhookEvent | IgnoredEvent:
        """Return the event of a push; a deletion is ignored.

        `commit` may be an annotated tag, which is resolved when the repository is fetched.
        """
        payload = decode_payload(delivery.body, PushPayload)
        push = Push(
            ref=payload.ref, before=payload.before, after=payload.after, commit=payload.after, actor=payload.pusher
        )
        change = push_change(push)
        return change if isinstance(change, IgnoredEvent) else WebhookEvent(change)
