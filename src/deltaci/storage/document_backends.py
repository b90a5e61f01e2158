"""How stores read and write documents: the SQL that SQLite and PostgreSQL share, and the in-memory implementation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from deltaci.storage.port import Conflict, Document, is_storable_text

_COLUMNS: Final = "kind, tenant, name, version, at, body"
FIND: Final = f"SELECT {_COLUMNS} FROM documents WHERE kind = {{m}}1 AND tenant = {{m}}2 AND name = {{m}}3"
FIRST: Final = f"SELECT {_COLUMNS} FROM documents WHERE kind = {{m}}1 ORDER BY tenant, name LIMIT {{m}}2"
# Names with one prefix are adjacent, so the query starts at the prefix and the reader stops after it.
LIST: Final = (
    f"SELECT {_COLUMNS} FROM documents WHERE kind = {{m}}1 AND tenant = {{m}}2 AND name > {{m}}3 AND name >= {{m}}4 "
    "ORDER BY name LIMIT {m}5"
)
DELETE: Final = "DELETE FROM documents WHERE kind = {m}1 AND tenant = {m}2 AND name = {m}3 AND version = {m}4"


def document_conflict(documents: Sequence[Document]) -> Conflict:
    """Return the `Conflict` for a write of these documents, of which another writer has changed at least one."""
    return Conflict(tuple(f"{document.kind} {document.name}" for document in documents))


def sorted_for_write(documents: Sequence[Document]) -> list[Document]:
    """Return the documents in the order in which every writer locks them, which avoids deadlocks.

    Raises ValueError for a name that cannot be stored.
    """
    for document in documents:
        if not all(map(is_storable_text, _sort_key(document))):
            raise ValueError(f"{document.name!r} is no name for a document; use one without null characters")
    return sorted(documents, key=_sort_key)


class MemoryDocuments:
    """Stores documents in a dictionary."""

    def __init__(self) -> None:
        self._documents: dict[tuple[str, str, str], Document] = {}

    def find(self, kind: str, name: str, tenant: str) -> Document | None:
        """Return the document with this name, or None."""
        return self._documents.get((kind, tenant, name))

    def first(self, kind: str, limit: int) -> list[Document]:
        """Return up to `limit` documents of this kind, of all tenants, by tenant and name."""
        documents = (document for document in self._documents.values() if document.kind == kind)
        return sorted(documents, key=_sort_key)[:limit]

    def list_documents(self, kind: str, tenant: str, after: str, limit: int, prefix: str) -> list[Document]:
        """Return up to `limit` of the tenant's documents with this name prefix, by name, after the name `after`."""
        after = after if is_storable_text(after) else ""
        documents_of_tenant = [
            document for document in self._documents.values() if (document.kind, document.tenant) == (kind, tenant)
        ]
        matching_documents = [
            document for document in documents_of_tenant if document.name > after and document.name.startswith(prefix)
        ]
        return sorted(matching_documents, key=_sort_key)[:limit]

    def put(self, documents: Sequence[Document], now: int) -> None:
        """Write all documents. Raises `Conflict` and writes none if the stored version of one is not its `version`."""
        documents = sorted_for_write(documents)
        unique_keys = {_sort_key(document) for document in documents}
        if len(unique_keys) < len(documents) or not all(map(self._is_current, documents)):
            raise document_conflict(documents)
        for document in documents:
            self._documents[_sort_key(document)] = replace(document, version=document.version + 1, at=now)

    def _is_current(self, document: Document) -> bool:
        """Return whether the document's version is the stored one or, for a new document, its name is free."""
        stored_document = self._documents.get(_sort_key(document))
        return document.version == (stored_document.version if stored_document is not None else 0)

    def delete(self, kind: str, tenant: str, name: str, version: int) -> bool:
        """Delete the document if it still has this version. Return whether it was deleted."""
        stored_document = self._documents.get((kind, tenant, name))
        if stored_document is None or stored_document.version != version:
            return False
        del self._documents[kind, tenant, name]
        return True


def _sort_key(document: Document) -> tuple[str, str, str]:
    return document.kind, document.tenant, document.name
