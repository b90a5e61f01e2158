"""Documents: the statements that keep them, and how memory does."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from itertools import takewhile
from typing import Any, Final

from msgspec.structs import replace

from deltaci.storage.port import API_KEY_KIND, Conflict, Document, is_storable_text

_COLUMNS: Final = "kind, tenant, name, version, at, body"
FIND: Final = f"SELECT {_COLUMNS} FROM documents WHERE kind = {{m}}1 AND tenant = {{m}}2 AND name = {{m}}3"
FIND_KEY: Final = f"SELECT {_COLUMNS} FROM documents WHERE kind = '{API_KEY_KIND}' AND name = {{m}}1"
# What begins with the same letters lies together, so it is enough to know where it begins.
LIST: Final = (
    f"SELECT {_COLUMNS} FROM documents WHERE kind = {{m}}1 AND tenant = {{m}}2 AND name > {{m}}3 AND name >= {{m}}4 "
    "ORDER BY name LIMIT {m}5"
)
DROP: Final = "DELETE FROM documents WHERE kind = {m}1 AND tenant = {m}2 AND name = {m}3 AND version = {m}4"


def document_conflict(documents: Sequence[Document]) -> Conflict:
    """Somebody else wrote one of these."""
    return Conflict(tuple(f"{each.kind} {each.name}" for each in documents))


def sorted_for_write(documents: Sequence[Document]) -> list[Document]:
    """What can be written, in the order in which everybody writes: then nobody waits for one who waits for him."""
    for each in documents:
        if not all(map(is_storable_text, _key(each))):
            raise ValueError(f"{each.name!r} is no name for a document; use one without null characters")
    return sorted(documents, key=_key)


class SqlDocumentReader:
    """Reads documents with a database's own `fetch`; its values are written as `mark` and a number."""

    def __init__(self, fetch: Callable[..., Awaitable[Sequence[Any]]], mark: str) -> None:
        self._fetch = fetch
        self._find, self._find_key, self._list = (sql.format(m=mark) for sql in (FIND, FIND_KEY, LIST))

    async def find(self, kind: str, name: str, tenant: str) -> Document | None:
        """The document, if there is one."""
        if not is_storable_text(name):
            return None
        is_anybodys = kind == API_KEY_KIND and not tenant
        rows = await (self._fetch(self._find_key, name) if is_anybodys else self._fetch(self._find, kind, tenant, name))
        return Document(*rows[0]) if rows else None

    async def listing(self, kind: str, tenant: str, after: str, limit: int, prefix: str) -> list[Document]:
        """Those whose names begin like this."""
        if not is_storable_text(prefix):
            return []
        after = after if is_storable_text(after) else ""
        rows = await self._fetch(self._list, kind, tenant, after, prefix, limit)
        return list(takewhile(lambda each: each.name.startswith(prefix), (Document(*row) for row in rows)))


class MemoryDocuments:
    """All documents in a dictionary."""

    def __init__(self) -> None:
        self._all: dict[tuple[str, str, str], Document] = {}

    def find(self, kind: str, name: str, tenant: str) -> Document | None:
        """The document, if there is one."""
        if kind == API_KEY_KIND and not tenant:
            return next((each for each in self._all.values() if (each.kind, each.name) == (kind, name)), None)
        return self._all.get((kind, tenant, name))

    def listing(self, kind: str, tenant: str, after: str, limit: int, prefix: str) -> list[Document]:
        """Those whose names begin like this."""
        after = after if is_storable_text(after) else ""
        own = [each for each in self._all.values() if (each.kind, each.tenant) == (kind, tenant)]
        found = [each for each in own if each.name > after and each.name.startswith(prefix)]
        return sorted(found, key=_key)[:limit]

    def put(self, documents: Sequence[Document], now: int) -> None:
        """All of them or none."""
        documents = sorted_for_write(documents)
        names = {_unique_key(each) for each in documents}
        if len(names) < len(documents) or not all(map(self._is_current, documents)):
            raise document_conflict(documents)
        for each in documents:
            self._all[_key(each)] = replace(each, version=each.version + 1, at=now)

    def _is_current(self, document: Document) -> bool:
        known = self._all.get(_key(document))
        if known is not None:
            return document.version == known.version
        is_taken = document.kind == API_KEY_KIND and self.find(API_KEY_KIND, document.name, "") is not None
        return not document.version and not is_taken

    def drop(self, kind: str, tenant: str, name: str, version: int) -> bool:
        """Drop it, if it is still this version of it."""
        known = self._all.get((kind, tenant, name))
        if known is None or known.version != version:
            return False
        del self._all[kind, tenant, name]
        return True


def _key(document: Document) -> tuple[str, str, str]:
    return document.kind, document.tenant, document.name


def _unique_key(document: Document) -> tuple[str, str, str]:
    return (document.kind, "", document.name) if document.kind == API_KEY_KIND else _key(document)
