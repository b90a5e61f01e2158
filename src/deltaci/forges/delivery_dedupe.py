"""Documents that recognize repeated webhook deliveries and record sent statuses, and their retention.

The documents of all tenants are stored under one tenant, so that one scan finds the expired ones. A delivery that is
sent again after its document was deleted is processed like a new one; nothing else depends on these documents.
"""

from __future__ import annotations

from typing import Final

from deltaci.core.instants import SECOND
from deltaci.core.listing import ALL_TENANTS
from deltaci.storage.port import Document, Store

DELIVERY_KIND: Final = "delivery"  # Documents that identify a webhook delivery.
STATUS_KIND: Final = "told"  # Documents with the status of a commit that was sent to a forge.
DAY: Final = 86400 * SECOND
RETENTION: Final = {DELIVERY_KIND: 400 * DAY, STATUS_KIND: 100 * DAY}
SEPARATOR: Final = "\n"  # Not allowed in the name of a tenant.
PAGE_SIZE: Final = 200


def new_document(kind: str, tenant: str, name: str, body: bytes, version: int = 0) -> Document:
    """Return a document of the tenant that is not stored yet. Storing it replaces `version`; 0 creates it."""
    return Document(kind=kind, tenant=ALL_TENANTS, name=_full_name(tenant, name), version=version, at=0, body=body)


async def find(store: Store, kind: str, tenant: str, name: str) -> Document | None:
    """Return the tenant's document of this kind and name, or None if it does not exist."""
    return await store.find_document(kind, _full_name(tenant, name), ALL_TENANTS)


async def delete_expired(store: Store) -> int:
    """Delete all expired documents and return their number. Safe to run on several servers at once."""
    deleted_count, now = 0, await store.now()
    for document_kind, retention in RETENTION.items():
        last_name = ""
        while page := await store.list_documents(document_kind, ALL_TENANTS, after=last_name, limit=PAGE_SIZE):
            last_name = page[-1].name
            for document in page:
                if document.at < now - retention:
                    deleted_count += await store.delete_document(
                        document_kind, ALL_TENANTS, document.name, document.version
                    )
    return deleted_count


def _full_name(tenant: str, name: str) -> str:
    return f"{tenant}{SEPARATOR}{name}"
