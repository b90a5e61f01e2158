"""How long it is remembered what forges said and were told: documents of all tenants, dropped when they are old.

Whoever sends an old delivery again after that is heard anew; nothing else depends on it.
"""

from __future__ import annotations

from typing import Final

from deltaci.core.instants import SECOND
from deltaci.core.listing import ALL_TENANTS
from deltaci.storage.port import Document, Store

HEARD: Final = "delivery"  # The kind of documents that remember what was heard.
TOLD: Final = "told"  # And of those that remember what was told.
DAY: Final = 86400 * SECOND
KEPT: Final = {HEARD: 400 * DAY, TOLD: 100 * DAY}
BETWEEN: Final = "\n"  # No tenant has it in its name.
PAGE: Final = 200


def kept(kind: str, tenant: str, name: str, body: bytes, version: int = 0) -> Document:
    """A document to write."""
    return Document(kind=kind, tenant=ALL_TENANTS, name=_named(tenant, name), version=version, at=0, body=body)


async def found(store: Store, kind: str, tenant: str, name: str) -> Document | None:
    """The document, if there is one."""
    return await store.find_document(kind, _named(tenant, name), ALL_TENANTS)


async def sweep(store: Store) -> int:
    """Drop what is old; how much that was. Servers side by side may both try."""
    dropped, now = 0, await store.now()
    for kind, age in KEPT.items():
        after = ""
        while page := await store.list_documents(kind, ALL_TENANTS, after=after, limit=PAGE):
            after = page[-1].name
            for each in page:
                if each.at < now - age:
                    dropped += await store.delete_document(kind, ALL_TENANTS, each.name, each.version)
    return dropped


def _named(tenant: str, name: str) -> str:
    return f"{tenant}{BETWEEN}{name}"
