"""A bare repository without a forge: its post-receive hook says what was pushed.

    POST /hooks/TENANT/PROJECT
    X-Deltaci-Timestamp: 1767510000                     seconds since 1970
    X-Deltaci-Signature-256: sha256=HEX                 HMAC-SHA256 of TIMESTAMP "." BODY with the webhook secret

    {"delivery": "…", "ref": "refs/heads/main", "before": "40 hex", "after": "40 hex", "pusher": "ada"}

One request for each ref. `delivery` is any text of 8 to 200 characters that is new for each push of each ref; a request
that is sent again keeps it and may carry a new time. A ref that is new has zeros for `before`, one that is gone for
`after`. The time may be off by five minutes. What is pushed here is trusted: who may push is decided by the repository.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from deltaci.forges.webhook_event import (
    MAX_DELIVERY,
    Delivery,
    Heard,
    Name,
    Nothing,
    Pushed,
    Ref,
    Sha,
    decoded,
    hmac_hex,
    is_fresh,
    push,
    same,
)

TIMESTAMP_HEADER = "X-Deltaci-Timestamp"
SIGNATURE_HEADER = "X-Deltaci-Signature-256"


class Received(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the hook says."""

    delivery: Annotated[str, Meta(min_length=8, max_length=MAX_DELIVERY)]
    ref: Ref
    before: Sha
    after: Sha
    pusher: Name = ""


def signature(secret: str, timestamp: str, body: bytes) -> str:
    """What the hook puts into the header."""
    return f"sha256={hmac_hex(secret, timestamp.encode('utf-8', 'replace'), b'.', body)}"


class PlainGit:
    """Our own hook."""

    def is_signed(self, delivery: Delivery, secret: str) -> bool:
        """By a signature over time and body."""
        at = delivery.header(b"x-deltaci-timestamp")
        fits = same(delivery.header(b"x-deltaci-signature-256"), signature(secret, at, delivery.body))
        return fits and is_fresh(at, delivery.now)

    def delivery_id(self, delivery: Delivery) -> str:
        """It is in the body, and so it is signed."""
        return decoded(delivery.body, Received).delivery

    def read(self, delivery: Delivery) -> Heard | Nothing:
        """A push. An annotated tag is followed by whoever fetches it."""
        said = decoded(delivery.body, Received)
        change = push(Pushed(ref=said.ref, before=said.before, after=said.after, commit=said.after, actor=said.pusher))
        return change if isinstance(change, Nothing) else Heard(change, said.delivery)
