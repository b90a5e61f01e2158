"""API keys, and the tokens of the server's operator.

The secret of a key is shown once and stored only as a hash. A key record is cached for two seconds, so that a busy
caller does not cost a read for each request; for that long another server may accept a key that was revoked here.
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
from deltaci.core.events import USER
from deltaci.core.instants import SECOND
from deltaci.core.resource import API_KEY
from deltaci.engine.engine import Engine
from deltaci.engine.resources import Resources
from deltaci.server.auth.credentials import PREFIX, Signer
from deltaci.server.rest.http.cache import TtlCache
from deltaci.storage.port import Store

KEY_PREFIX: Final = "dck_"  # Lets secret scanners recognise a leaked key.
ID_BYTES: Final = 8
SECRET_BYTES: Final = 32
REMEMBERED_SECONDS: Final = 2.0
MAX_REMEMBERED: Final = 10_000
TOKEN: Final = re.compile(r"dck_([0-9a-f]{16})_([A-Za-z0-9_\-]{43})")

# The scopes that a scope includes.
INCLUDED: Final[dict[Scope, frozenset[Scope]]] = {
    "read": frozenset({"read"}),
    "run": frozenset({"run", "read"}),
    "approve": frozenset({"approve", "read"}),
    "runner": frozenset({"runner"}),
    "admin": frozenset(SCOPES),
}


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """An authenticated caller of the API: a person with the scopes and roles of a key, or the server's operator.

    `expires_at` is 0 for a key that does not expire.
    """

    tenant: str
    person: str
    scopes: frozenset[Scope]
    roles: tuple[str, ...] = ()
    key_id: str = ""
    expires_at: int = 0
    is_operator: bool = False

    def check(self, required_scope: RequiredScope) -> None:
        """Raise `Refused` if the caller lacks this scope."""
        if required_scope == ANY_KEY or required_scope in self.scopes:
            return
        if required_scope != OPERATOR:
            listed_scopes = ", ".join(sorted(self.scopes)) or "none"
            raise Refused("missing_scope", f"this needs the scope {required_scope!r}; the key has {listed_scopes}")
        if not self.is_operator:
            raise Refused("missing_scope", "only the operator of the server may do this; no API key is enough")


class KeyRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A stored key. Times are in microseconds, 0 for never."""

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


class ApiKeys:
    """Creates, finds, verifies and revokes the API keys of all tenants."""

    def __init__(self, engine: Engine, store: Store, signer: Signer, clock: Callable[[], float]) -> None:
        self._store = store
        self._keys = Resources(engine, store, API_KEY, KeyRecord, sealed="digest")
        self._signer = signer
        self._cache: TtlCache[str, KeyRecord] = TtlCache(REMEMBERED_SECONDS, MAX_REMEMBERED, clock)

    async def caller(self, token: str) -> Caller:
        """Return the caller that an API key or an operator's token authenticates. Raises `Refused` if it is invalid."""
        if token.startswith(PREFIX):
            claims = self._signer.read(token, "operate")
            return Caller(
                tenant=claims.tenant,
                person=claims.runner_id,
                scopes=frozenset(SCOPES),
                expires_at=int(claims.expires_at * SECOND),
                is_operator=True,
            )
        token_match = TOKEN.fullmatch(token)
        key_record = await self._find(token_match[1]) if token_match else None
        # Compared even if there is no such key, so that the response time does not reveal whether a key exists.
        secret_digest = sha256(token_match[2].encode() if token_match else b"").hexdigest()
        has_matching_secret = hmac.compare_digest(
            secret_digest, key_record.digest if key_record is not None else "0" * 64
        )
        return self._valid_caller(key_record if has_matching_secret else None)

    async def caller_by_id(self, key_id: str) -> Caller:
        """Return the caller of the key with this id. The key's secret must have been verified before.

        Raises `Refused` if the key is no longer valid.
        """
        return self._valid_caller(await self._find(key_id))

    def _valid_caller(self, record: KeyRecord | None) -> Caller:
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
        """Return the present time in microseconds, by the clock that decides when keys expire."""
        return int(self._signer.now() * SECOND)

    async def create(self, tenant: str, key_input: KeyInput, person: str) -> tuple[KeyRecord, str]:
        """Create and store a key for the request of `person`. Return its record and the token, shown only once."""
        key_id, secret_text = secrets.token_hex(ID_BYTES), secrets.token_urlsafe(SECRET_BYTES)
        now = self.now()
        key_record = KeyRecord(
            id=key_id,
            tenant=tenant,
            person=key_input.person,
            scopes=tuple(dict.fromkeys(key_input.scopes)),
            roles=tuple(dict.fromkeys(key_input.roles)),
            description=key_input.description,
            digest=sha256(secret_text.encode()).hexdigest(),
            created_at=now,
            created_by=person,
            expires_at=now + key_input.expires_seconds * SECOND if key_input.expires_seconds else 0,
        )
        await self._keys.put(tenant, key_id, key_record, actor=f"{USER}:{person}", rev=0)
        return key_record, f"{KEY_PREFIX}{key_id}_{secret_text}"

    async def read(self, tenant: str, id: str) -> KeyRecord | None:
        """Return a key of this tenant, even if it has expired or was revoked, or None if it does not exist."""
        return await self._keys.find(tenant, id)

    async def list_page(self, tenant: str, after: str, limit: int) -> list[KeyRecord]:
        """Return up to `limit` keys of the tenant, ordered by id, that come after the id `after`."""
        return [stored.value for stored in await self._keys.page(tenant, after=after, limit=limit)]

    async def revoke(self, tenant: str, id: str, person: str) -> KeyRecord | None:
        """Mark a key as revoked by `person`, unless it is already. Return its record, None if there is no such key."""
        while True:
            key_record, rev = await self._keys.read(tenant, id)
            if key_record is None or key_record.revoked_at:
                return key_record
            key_record = msgspec.structs.replace(key_record, revoked_at=self.now(), revoked_by=person)
            try:
                await self._keys.put(tenant, id, key_record, actor=f"{USER}:{person}", rev=rev)
            except Refused as refused:
                if refused.code != "stale_version":
                    raise
                continue  # Revoked at the same moment by another request: return that one.
            self._cache.discard(id)
            return key_record

    async def _find(self, id: str) -> KeyRecord | None:
        if (cached := self._cache.get(id)) is not None:
            return cached
        key_record = self._keys.value(await self._store.find_api_key(id))
        return self._cache.put(id, key_record) if key_record is not None else None
