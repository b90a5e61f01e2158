"""Documents that recognize repeated webhook deliveries, log deliveries and record sent statuses, and their retention.

The documents of all tenants are stored under one tenant, so that one scan finds the expired ones. A delivery that is
sent again after its document was deleted is processed like a new one; nothing else depends on these documents.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from deltaci.core.instants import SECOND
from deltaci.core.listing import ALL_TENANTS
from deltaci.storage.port import Document, Store

DELIVERY_KIND: Final = "delivery"  # Documents that identify a webhook delivery.
LOG_KIND: Final = "delivery-log"  # Documents with one delivery, ordered by project and time, the newest first.
STATUS_KIND: Final = "told"  # Documents with the status of a commit that was sent to a forge.
DAY: Final = 86400 * SECOND
RETENTION: Final = {DELIVERY_KIND: 40 * DAY, LOG_KIND: 400 * DAY, STATUS_KIND: 100 * DAY}
MAX_LOGGED: Final = 500  # Of one project.
SEPARATOR: Final = "\n"  # Not allowed in the name of a tenant.
PAGE_SIZE: Final = 200
_LAST: Final = 2**63 - 1


def new_document(kind: str, tenant: str, document_name: str, body: bytes, version: int = 0) -> Document:
    """Return a document of the tenant that is not stored yet. Storing it replaces `version`; 0 creates it."""
    return Document(
        kind=kind, tenant=ALL_TENANTS, name=_full_name(tenant, document_name), version=version, at=0, body=body
    )


async def find(store: Store, kind: str, tenant: str, document_name: str) -> Document | None:
    """Return the tenant's document of this kind and name, or None if it does not exist."""
    return await store.find_document(kind, _full_name(tenant, document_name), ALL_TENANTS)


async def delete_expired(store: Store) -> int:
    """Delete all expired documents and the oldest entries of full logs, and return their number.

    Safe to run on several servers at once.
    """
    deleted_count, now = 0, await store.now()
    log_sizes = Counter[str]()
    for document_kind, retention in RETENTION.items():
        last_name = ""
        while page := await store.list_documents(document_kind, ALL_TENANTS, after=last_name, limit=PAGE_SIZE):
            last_name = page[-1].name
            for document in page:
                log = document.name.rpartition(SEPARATOR)[0]
                log_sizes[log] += document_kind == LOG_KIND
                if document.at < now - retention or log_sizes[log] > MAX_LOGGED:
                    deleted_count += await store.delete_document(
                        document_kind, ALL_TENANTS, document.name, document.version
                    )
    return deleted_count


def log_name(tenant: str, project: str, at: int) -> str:
    """Return the beginning of the name of a log entry: the newest entry of a project has the first name."""
    return f"{tenant}{SEPARATOR}{project}{SEPARATOR}{_LAST - at:016x}"


def _full_name(tenant: str, name: str) -> str:
    return f"{tenant}{SEPARATOR}{name}"
