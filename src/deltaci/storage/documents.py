"""Typed documents: read, written in place of exactly the version that was read, and edited until nobody is faster."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Final, Generic, TypeVar

import msgspec

from deltaci.storage.port import Conflict, Document, Store

MAX_TRIES: Final = 20
PAGE: Final = 200

T = TypeVar("T", bound=msgspec.Struct)


class TypedDocuments(Generic[T]):
    """All documents of one kind, each a value of one type."""

    def __init__(self, store: Store, kind: str, type: type[T]) -> None:
        self._store = store
        self._kind = kind
        self._encode = msgspec.json.Encoder().encode
        self._decode = msgspec.json.Decoder(type).decode

    async def find(self, tenant: str, name: str) -> T | None:
        """The tenant's document of this name."""
        found = await self._store.find_document(self._kind, name, tenant)
        return self._decode(found.body) if found is not None else None

    async def add(self, tenant: str, name: str, value: T) -> bool:
        """Keep a new one; False if there is one of this name already."""
        try:
            await self._store.put_documents([Document(self._kind, tenant, name, 0, 0, self._encode(value))])
        except Conflict:
            return False
        return True

    async def update(self, tenant: str, name: str, change: Callable[[T | None], T | None]) -> T | None:
        """Change it, from what is stored, as often as somebody else was faster. None stays, or becomes, as it was.

        What `change` returns is what is stored then; it may raise, and then nothing is.
        """
        for _ in range(MAX_TRIES):
            found = await self._store.find_document(self._kind, name, tenant)
            before = self._decode(found.body) if found is not None else None
            after = change(before)
            if after is None or after == before:
                return before
            version = found.version if found is not None else 0
            try:
                await self._store.put_documents([Document(self._kind, tenant, name, version, 0, self._encode(after))])
            except Conflict:
                continue
            return after
        raise Conflict((name,))

    async def delete(self, tenant: str, name: str) -> None:
        """Keep it no longer."""
        found = await self._store.find_document(self._kind, name, tenant)
        if found is not None and not await self._store.delete_document(self._kind, tenant, name, found.version):
            raise Conflict((name,))

    async def delete_if(self, tenant: str, name: str, is_over: Callable[[T], bool]) -> bool:
        """Keep it no longer, if it is like this and nobody changes it meanwhile; whether it is not there any more."""
        found = await self._store.find_document(self._kind, name, tenant)
        if found is None:
            return True
        return is_over(self._decode(found.body)) and await self._store.delete_document(
            self._kind, tenant, name, found.version
        )

    async def iterate(self, tenant: str, prefix: str = "") -> AsyncIterator[tuple[str, T]]:
        """All of them whose names begin like this, by name."""
        after = ""
        while True:
            page = await self._store.list_documents(self._kind, tenant, after=after, limit=PAGE, prefix=prefix)
            for each in page:
                yield each.name, self._decode(each.body)
            if len(page) < PAGE:
                return
            after = page[-1].name
