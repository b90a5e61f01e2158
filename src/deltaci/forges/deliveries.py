"""The log of each project's webhook deliveries, and the answer to each delivery id, by which a repeat is recognized."""

from __future__ import annotations

import secrets

import msgspec

from deltaci.core.listing import ALL_TENANTS
from deltaci.forges.delivery_dedupe import DELIVERY_KIND, LOG_KIND, MAX_LOGGED, SEPARATOR, find, log_name, new_document
from deltaci.forges.webhook_event import fingerprint
from deltaci.storage.port import Conflict, Document, Store


class DeliveryEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One delivery and its answer. `at` is in microseconds, `delivery` is the forge's id or empty."""

    at: int = 0
    delivery: str = ""
    event: str = ""
    ref: str = ""
    commit: str = ""
    result: str = ""  # accepted, duplicate, ignored, pong, refused
    reason: str = ""
    change: str = ""


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(DeliveryEntry).decode


class DeliveryLog:
    """Stores deliveries with their answers: the newest `MAX_LOGGED` of each project, and the first one of each id."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def find(self, tenant: str, project: str, delivery_id: str) -> DeliveryEntry | None:
        """Return the first delivery with this id that was accepted or ignored, or None."""
        document = await find(self._store, DELIVERY_KIND, tenant, _id_name(project, delivery_id))
        return _decode(document.body) if document is not None else None

    async def add(self, tenant: str, project: str, entry: DeliveryEntry) -> None:
        """Log a delivery. Remember its id if it was accepted or ignored and the id is new."""
        entry = msgspec.structs.replace(entry, at=await self._store.now())
        body = _encode(entry)
        name = f"{log_name(tenant, project, entry.at)}{secrets.token_hex(4)}"
        documents = [Document(LOG_KIND, ALL_TENANTS, name, 0, 0, body)]
        if entry.delivery and (entry.change or entry.result == "ignored"):
            documents.append(new_document(DELIVERY_KIND, tenant, _id_name(project, entry.delivery), body))
        try:
            await self._store.put_documents(documents)
        except Conflict:  # The id is known.
            await self._store.put_documents(documents[:1])

    async def page(self, tenant: str, project: str, after: str, limit: int) -> list[tuple[str, DeliveryEntry]]:
        """Return up to `limit` deliveries of a project, the newest first, each with its position in the log."""
        prefix = f"{tenant}{SEPARATOR}{project}{SEPARATOR}"
        documents = await self._store.list_documents(
            LOG_KIND,
            ALL_TENANTS,
            after=f"{prefix}{after}" if after else "",
            limit=min(limit, MAX_LOGGED),
            prefix=prefix,
        )
        return [(document.name.removeprefix(prefix), _decode(document.body)) for document in documents]


def _id_name(project: str, delivery_id: str) -> str:
    return f"{project}/id-{fingerprint(delivery_id)}"
