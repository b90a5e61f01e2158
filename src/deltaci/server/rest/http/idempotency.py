"""Idempotency keys: repeating a request with the same key returns the run that the first request created.

The id of the run is a digest of the tenant, the caller's key and the idempotency key, so that a repeat finds the run by
its id, on any server. A digest of the request is stored in the run; a different request with the same key is refused.
"""

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


class IdempotentRequest:
    """A request that creates a run, with the id and the fingerprint of this run.

    Without an idempotency key the id is random and the fingerprint is empty.
    """

    def __init__(self, call: Call, operation: str, body: RequestSchema) -> None:
        self._call = call
        self.key = _idempotency_key(call)
        self.fingerprint = ""
        if not self.key:
            self.id = f"r{secrets.token_hex(ID_BYTES)}"
            return
        caller = call.caller
        owner = caller.key_id or f"operator {caller.person}"
        request_content = msgspec.json.encode([operation, body], order="sorted")
        self.id = f"r{_digest(caller.tenant.encode(), owner.encode(), self.key.encode())}"
        self.fingerprint = _digest(request_content)

    def new_run(self, **run_fields: Any) -> Run:
        """Return a new run record with the id, caller and fingerprint of this request, and with these fields."""
        caller = self._call.caller
        return Run(
            id=self.id,
            run_id=self.id,
            tenant=caller.tenant,
            started_by=caller.person,
            request_fingerprint=self.fingerprint,
            **run_fields,
        )

    async def find_existing(self) -> Run | None:
        """Return the run that an earlier request with this key created, or None.

        Raise Refused if that request was a different one.
        """
        if not self.key:
            return None
        run_record = await self._call.app.store.find(self.id)
        if not isinstance(run_record, Run):
            return None
        if run_record.request_fingerprint != self.fingerprint:
            raise Refused(
                "request_id_reused",
                f"{IDEMPOTENCY_HEADER} {self.key[:80]!r} was used for another request, "
                f"which created run {run_record.id}",
            )
        return run_record


def _idempotency_key(call: Call) -> str:
    if not call.idempotency_key and not call.request.has_header(_KEY):
        return ""
    request_key = call.idempotency_key or call.request.header(_KEY)
    if not (0 < len(request_key) <= MAX_KEY_CHARS and request_key.isascii() and request_key.isprintable()):
        raise Refused("bad_request", f"{IDEMPOTENCY_HEADER} has 1 to {MAX_KEY_CHARS} printable ASCII characters")
    return request_key


def _digest(*digested_parts: bytes) -> str:
    combined_hash = blake2b(digest_size=ID_BYTES)
    for part in digested_parts:
        combined_hash.update(len(part).to_bytes(4, "big") + part)
    return combined_hash.hexdigest()
