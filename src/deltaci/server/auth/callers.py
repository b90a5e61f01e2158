"""Who asks: API keys, and tokens that the operator of this server signed.

A key's secret is shown once and kept only as a hash. What is known of a key is remembered for two seconds, so that a
busy caller does not cost a look at the store for each request; for so long may another server still let in a key that
was revoked here.
"""

from __future__ import annotations

import hmac
import re
import secrets
from collections.abc import Callable
from hashlib import sha256
from typing import Final

import msgspec

from deltaci.api.routes import ANY_KEY, OPERATOR, RequiredScope
from deltaci.api.schemas.inputs import SCOPES, KeyInput, Scope
from deltaci.core.errors import Refused
from deltaci.core.instants import SECOND
from deltaci.server.auth.credentials import PREFIX, Signer
from deltaci.server.rest.http.cache import TtlCache
from deltaci.storage.port import Conflict, Document, Store

KEY: Final = "key"  # The kind of document.
KEY_PREFIX: Final = "dck_"  # So that a scanner for secrets recognises one that got out.
ID_BYTES: Final = 8
SECRET_BYTES: Final = 32
REMEMBERED_SECONDS: Final = 2.0
MAX_REMEMBERED: Final = 10_000
TOKEN: Final = re.compile(r"dck_([0-9a-f]{16})_([A-Za-z0-9_\-]{43})")

# What else a scope allows.
INCLUDED: Final[dict[Scope, frozenset[Scope]]] = {
    "read": frozenset({"read"}),
    "run": frozenset({"run", "read"}),
    "approve": frozenset({"approve", "read"}),
    "runner": frozenset({"runner"}),
    "admin": frozenset(SCOPES),
}


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """Who asks, and what for. `expires_at` is 0 for a key without an end."""

    tenant: str
    person: str
    scopes: frozenset[Scope]
    roles: tuple[str, ...] = ()
    key_id: str = ""
    expires_at: int = 0
    is_operator: bool = False

    def check(self, needed: RequiredScope) -> None:
        """Refuse what the key is not for."""
        if needed == ANY_KEY or needed in self.scopes:
            return
        if needed != OPERATOR:
            has = ", ".join(sorted(self.scopes)) or "none"
            raise Refused("missing_scope", f"this needs the scope {needed!r}; the key has {has}")
        if not self.is_operator:
            raise Refused("missing_scope", "only who operates the server may do this; no API key is enough")


class KeyRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A key as it is kept. Times are microseconds, 0 for never."""

    id: str
    tenant: str
    person: str
    scopes: tuple[Scope, ...]
    roles: tuple[str, ...]
    description: str
    digest: str
    created_at: int
    created_by: str
    expires_at: int = 0
    revoked_at: int = 0
    revoked_by: str = ""


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(KeyRecord).decode


class Keys:
    """The keys of all tenants."""

    def __init__(self, store: Store, signer: Signer, clock: Callable[[], float]) -> None:
        self._store = store
        self._signer = signer
        self._known: TtlCache[str, KeyRecord] = TtlCache(REMEMBERED_SECONDS, MAX_REMEMBERED, clock)

    async def caller(self, token: str) -> Caller:
        """Who shows this token; refused if it is not good."""
        if token.startswith(PREFIX):
            claims = self._signer.read(token, "operate")
            return Caller(
                tenant=claims.tenant,
                person=claims.runner_id,
                scopes=frozenset(SCOPES),
                expires_at=int(claims.expires_at * SECOND),
                is_operator=True,
            )
        found = TOKEN.fullmatch(token)
        record = await self._find(found[1]) if found else None
        # Compared also when there is none: whether a key exists must not show in the time that it takes.
        digest = sha256(found[2].encode() if found else b"").hexdigest()
        is_good = hmac.compare_digest(digest, record.digest if record is not None else "0" * 64)
        return self._good(record if is_good else None)

    async def by_id(self, id: str) -> Caller:
        """Who a key is, for one who showed it before; refused if it is no longer good."""
        return self._good(await self._find(id))

    def _good(self, record: KeyRecord | None) -> Caller:
        if record is None:
            raise Refused("bad_credential", "that is no API key of this server")
        if record.revoked_at:
            raise Refused("bad_credential", "the API key was revoked")
        if record.expires_at and record.expires_at <= self.now():
            raise Refused("expired_credential", "the API key has expired")
        return Caller(
            tenant=record.tenant,
            person=record.person,
            scopes=frozenset[Scope]().union(*(INCLUDED[scope] for scope in record.scopes)),
            roles=record.roles,
            key_id=record.id,
            expires_at=record.expires_at,
        )

    def now(self) -> int:
        """The time by which keys end."""
        return int(self._signer.now() * SECOND)

    async def make(self, tenant: str, asked: KeyInput, by: str) -> tuple[KeyRecord, str]:
        """A new key, and the token that is shown once."""
        id, secret = secrets.token_hex(ID_BYTES), secrets.token_urlsafe(SECRET_BYTES)
        now = self.now()
        record = KeyRecord(
            id=id,
            tenant=tenant,
            person=asked.person,
            scopes=tuple(dict.fromkeys(asked.scopes)),
            roles=tuple(dict.fromkeys(asked.roles)),
            description=asked.description,
            digest=sha256(secret.encode()).hexdigest(),
            created_at=now,
            created_by=by,
            expires_at=now + asked.expires_seconds * SECOND if asked.expires_seconds else 0,
        )
        await self._put(record, 0)
        return record, f"{KEY_PREFIX}{id}_{secret}"

    async def read(self, tenant: str, id: str) -> KeyRecord | None:
        """A key of this tenant, also one that is no longer good."""
        document = await self._store.find_document(KEY, id, tenant)
        return _decode(document.body) if document is not None else None

    async def page(self, tenant: str, after: str, limit: int) -> list[KeyRecord]:
        """The tenant's keys, in the order of their ids."""
        return [_decode(each.body) for each in await self._store.list_documents(KEY, tenant, after=after, limit=limit)]

    async def revoke(self, tenant: str, id: str, by: str) -> KeyRecord | None:
        """Let nobody in with it any more. Safe to repeat; None when there is no such key."""
        while True:
            document = await self._store.find_document(KEY, id, tenant)
            if document is None:
                return None
            record = _decode(document.body)
            if record.revoked_at:
                return record
            record = msgspec.structs.replace(record, revoked_at=self.now(), revoked_by=by)
            try:
                await self._put(record, document.version)
            except Conflict:
                continue  # Somebody else revoked it at the same moment: theirs is what is answered.
            self._known.discard(id)
            return record

    async def _put(self, record: KeyRecord, version: int) -> None:
        document = Document(kind=KEY, tenant=record.tenant, name=record.id, version=version, at=0, body=_encode(record))
        await self._store.put_documents([document])

    async def _find(self, id: str) -> KeyRecord | None:
        if (known := self._known.get(id)) is not None:
            return known
        document = await self._store.find_document(KEY, id)
        return self._known.put(id, _decode(document.body)) if document is not None else None
