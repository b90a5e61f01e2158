"""Requests that make something once for all repeats: its name follows from the caller and the idempotency key."""

from __future__ import annotations

import secrets
from hashlib import blake2b
from typing import Any, Final

import msgspec

from deltaci.api.routes import IDEMPOTENCY_HEADER, MAX_KEY_CHARS
from deltaci.api.schemas.inputs import RequestSchema
from deltaci.core.errors import Refused
from deltaci.core.run import Run
from deltaci.server.rest.http.request import Call

ID_BYTES: Final = 10
_KEY: Final = IDEMPOTENCY_HEADER.lower().encode()


class Repeat:
    """Whether a request was made before: the id of its run follows from the caller's key and its idempotency key."""

    def __init__(self, call: Call, what: str, body: RequestSchema) -> None:
        self._call = call
        self.key = _idempotency_key(call)
        self.asked = ""
        if not self.key:
            self.id = f"r{secrets.token_hex(ID_BYTES)}"
            return
        who = call.who
        owner = who.key_id or f"operator {who.person}"
        content = msgspec.json.encode([what, body], order="sorted")
        self.id = f"r{_digest(who.tenant.encode(), owner.encode(), self.key.encode())}"
        self.asked = _digest(content)

    def run(self, **fields: Any) -> Run:
        """The run that this request makes, if it is the first."""
        who = self._call.who
        return Run(
            id=self.id,
            run_id=self.id,
            tenant=who.tenant,
            started_by=who.person,
            request_fingerprint=self.asked,
            **fields,
        )

    async def known(self) -> Run | None:
        """What an earlier request made; None when this is the first. The same key for something else is refused."""
        if not self.key:
            return None
        record = await self._call.parts.store.find(self.id)
        if not isinstance(record, Run):
            return None
        if record.request_fingerprint != self.asked:
            raise Refused(
                "request_id_reused",
                f"{IDEMPOTENCY_HEADER} {self.key[:80]!r} was used for another request, which made run {record.id}",
            )
        return record


def _idempotency_key(call: Call) -> str:
    if not call.once and not call.request.has_header(_KEY):
        return ""
    key = call.once or call.request.header(_KEY)
    if not (0 < len(key) <= MAX_KEY_CHARS and key.isascii() and key.isprintable()):
        raise Refused("bad_request", f"{IDEMPOTENCY_HEADER} has 1 to {MAX_KEY_CHARS} printable ASCII characters")
    return key


def _digest(*parts: bytes) -> str:
    hashed = blake2b(digest_size=ID_BYTES)
    for part in parts:
        hashed.update(len(part).to_bytes(4, "big") + part)
    return hashed.hexdigest()
