"""The documents of one kind as values of one type, with optimistic updates."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Final, Generic, TypeVar

import msgspec

from deltaci.storage.port import Conflict, Document, Store

MAX_TRIES: Final = 20
PAGE: Final = 200

T = TypeVar("T", bound=msgspec.Struct)


class TypedDocuments(Generic[T]):
    """Reads and writes the documents of one kind as values of type `T`, which are encoded as JSON."""

    def __init__(self, store: Store, kind: str, type: type[T]) -> None:
        self._store = store
        self._kind = kind
        self._encode = msgspec.json.Encoder().encode
        self._decode = msgspec.json.Decoder(type).decode

    async def find(self, tenant: str, name: str) -> T | None:
        """Return the value of the tenant's document with this name, or None."""
        stored_document = await self._store.find_document(self._kind, name, tenant)
        return self._decode(stored_document.body) if stored_document is not None else None

    async def add(self, tenant: str, name: str, value: T) -> bool:
        """Store a new document. Return False if a document with this name exists."""
        try:
            await self._store.put_documents([Document(self._kind, tenant, name, 0, 0, self._encode(value))])
        except Conflict:
            return False
        return True

    async def update(self, tenant: str, name: str, change: Callable[[T | None], T | None]) -> T | None:
        """Call `change` with the stored value (None if there is none) and store its result.

        Return the value stored afterwards. After a conflict, `change` is called again with the new value. If it returns
        None or an equal value, or raises, nothing is written.
        """
        for _ in range(MAX_TRIES):
            stored_document = await self._store.find_document(self._kind, name, tenant)
            old_value = self._decode(stored_document.body) if stored_document is not None else None
            new_value = change(old_value)
            if new_value is None or new_value == old_value:
                return old_value
            version = stored_document.version if stored_document is not None else 0
            try:
                await self._store.put_documents(
                    [Document(self._kind, tenant, name, version, 0, self._encode(new_value))]
                )
            except Conflict:
                continue
            return new_value
        raise Conflict((name,))

    async def delete(self, tenant: str, name: str) -> None:
        """Delete the document if it exists. Raises `Conflict` if it is changed at the same time."""
        stored_document = await self._store.find_document(self._kind, name, tenant)
        if stored_document is not None and not await self._store.delete_document(
            self._kind, tenant, name, stored_document.version
        ):
            raise Conflict((name,))

    async def delete_if(self, tenant: str, name: str, condition: Callable[[T], bool]) -> bool:
        """Delete the document if `condition` holds for its value.

        Return whether the document does not exist afterwards. It is not deleted if it is changed at the same time.
        """
        stored_document = await self._store.find_document(self._kind, name, tenant)
        if stored_document is None:
            return True
        return condition(self._decode(stored_document.body)) and await self._store.delete_document(
            self._kind, tenant, name, stored_document.version
        )

    async def iterate(self, tenant: str, prefix: str = "") -> AsyncIterator[tuple[str, T]]:
        """Yield the names and values of the tenant's documents whose name has the prefix, sorted by name."""
        last_name = ""
        while True:
            page = await self._store.list_documents(self._kind, tenant, after=last_name, limit=PAGE, prefix=prefix)
            for document in page:
                yield document.name, self._decode(document.body)
            if len(page) < PAGE:
                return
            last_name = page[-1].name
