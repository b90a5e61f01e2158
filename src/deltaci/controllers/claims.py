"""Claims: one server at a time works on a key. They only save work; two servers may work on the same key."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

import msgspec

from deltaci.core.instants import SECOND
from deltaci.core.listing import ALL_TENANTS
from deltaci.storage.port import Conflict, Document, Store, Unavailable

CLAIM_SECONDS: Final = 600


class _Claim(msgspec.Struct, frozen=True):
    owner: str
    until: int


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(_Claim).decode


class Claims:
    """Claims of one kind, stored as documents.

    `owner` is `machine/process`. A process takes over the claims of an earlier process of the same machine.
    """

    def __init__(self, store: Store, kind: str, owner: str, seconds: int = CLAIM_SECONDS) -> None:
        self._store = store
        self._kind = kind
        self._owner = owner
        self._seconds = seconds

    async def take(self, name: str) -> bool:
        """Claim a key for this server, or renew the claim. Return False if another server has it."""
        now = await self._store.now()
        known = await self._store.find_document(self._kind, name, ALL_TENANTS)
        if known is not None:
            claim = _decode(known.body)
            if claim.until > now and claim.owner.partition("/")[0] != self._owner.partition("/")[0]:
                return False
        body = _encode(_Claim(self._owner, now + self._seconds * SECOND))
        version = known.version if known is not None else 0
        try:
            await self._store.put_documents([Document(self._kind, ALL_TENANTS, name, version, 0, body)])
        except Conflict:
            return False
        return True

    async def let_go(self, name: str) -> None:
        """Delete the claim of a key if this server has it."""
        with suppress(Unavailable, Conflict):
            known = await self._store.find_document(self._kind, name, ALL_TENANTS)
            if known is not None and _decode(known.body).owner == self._owner:
                await self._store.delete_document(self._kind, ALL_TENANTS, name, known.version)
