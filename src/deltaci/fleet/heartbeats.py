"""Who was heard, and when, by the store's clock: here, and by the servers beside this one.

Each server keeps one document with whom it heard lately, written anew only when it heard somebody, and reads those of
the others. What nobody says anything any more is dropped, so silence costs nothing, however much of it there is.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import msgspec

from deltaci.core.listing import ALL_TENANTS
from deltaci.fleet.health import Limits
from deltaci.storage.port import Conflict, Document, Store

KIND: Final = "heard"
MAX_SERVERS: Final = 200

Key = tuple[str, str]  # A tenant, and the name of its worker.


class Heard(msgspec.Struct, frozen=True, array_like=True):
    """At this time, these workers of this tenant were heard last."""

    at: int
    tenant: str
    names: list[str]


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(list[Heard]).decode


class Hearing:
    """One server's ears. It learns what time it was only when it is asked to `tell`: never later than that."""

    def __init__(self, store: Store, limits: Limits) -> None:
        self._store = store
        self._limits = limits
        self._name = secrets.token_hex(8)
        self._version = 0
        self._spoke: set[Key] = set()
        self._present: Counter[Key] = Counter()
        self._own: dict[Key, int] = {}
        self._at: dict[Key, int] = {}
        self._read: dict[str, int] = {}

    def heard(self, tenant: str, name: str) -> None:
        """This worker just spoke."""
        self._spoke.add((tenant, name))

    @contextmanager
    def present(self, tenant: str, name: str) -> Iterator[None]:
        """This worker waits for an answer: as long as its connection stands, it is heard."""
        key = (tenant, name)
        self._present[key] += 1
        try:
            yield
        finally:
            self._spoke.add(key)
            self._present[key] -= 1
            if not self._present[key]:
                del self._present[key]

    def at(self, key: Key) -> int:
        """When it was heard last, as far as is known; 0: not since anybody remembers."""
        return self._at.get(key, 0)

    async def tell(self, now: int) -> None:
        """Whoever spoke since the last time was heard now, or a little before; the others shall know."""
        fresh = self._spoke | self._present.keys()
        self._spoke = set()
        for key in fresh:
            self._at[key] = self._own[key] = now
        self._forget(now)
        if fresh:
            await self._write()

    def _forget(self, now: int) -> None:
        for known, limit in ((self._own, self._limits.silent), (self._at, self._limits.gone)):
            for key in [key for key, at in known.items() if at <= now - limit]:
                del known[key]
            for key in [key for key, at in known.items() if at > now]:
                known[key] = now  # The clock went back.

    async def _write(self) -> None:
        together: dict[tuple[int, str], list[str]] = {}
        for (tenant, name), at in self._own.items():
            together.setdefault((at, tenant), []).append(name)
        body = _encode([Heard(at, tenant, names) for (at, tenant), names in together.items()])
        try:
            await self._put(body)
        except Conflict:
            # Our own last word was written, and its answer was lost.
            known = await self._store.find_document(KIND, self._name, ALL_TENANTS)
            self._version = known.version if known is not None else 0
            await self._put(body)

    async def _put(self, body: bytes) -> None:
        await self._store.put_documents([Document(KIND, ALL_TENANTS, self._name, self._version, 0, body)])
        self._version += 1

    async def listen(self, now: int) -> None:
        """Learn whom the others heard. What a server left behind that is long gone is dropped."""
        read: dict[str, int] = {}
        for each in await self._store.list_documents(KIND, ALL_TENANTS, limit=MAX_SERVERS):
            if each.name == self._name:
                continue
            if each.at <= now - 2 * self._limits.gone:
                await self._store.delete_document(KIND, ALL_TENANTS, each.name, each.version)
                continue
            read[each.name] = each.version
            if self._read.get(each.name) != each.version:
                self._learn(each.body, now)
        self._read = read

    def _learn(self, body: bytes, now: int) -> None:
        try:
            told = _decode(body)
        except msgspec.DecodeError:
            return  # Another version's: it judges by its own.
        for each in told:
            for name in each.names:
                key = (each.tenant, name)
                self._at[key] = max(min(each.at, now), self._at.get(key, 0))
