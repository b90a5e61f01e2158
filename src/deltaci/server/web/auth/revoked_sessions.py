"""Session ids that were signed out before they expired, because a cookie cannot be taken back.

A revocation is a document, so that every server sees it; lookups are cached for two seconds. It is deleted after the
session would have expired.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Final

from deltaci.server.rest.http.cache import TtlCache
from deltaci.storage.port import Conflict, Document, Store

ENDING: Final = "web-ending"  # The kind of document.
PLACE: Final = "-"  # Endings are of no tenant: a session may be signed in to many.
REMEMBERED_SECONDS: Final = 2.0
MAX_REMEMBERED: Final = 10_000
SWEPT_AT_ONCE: Final = 50


class RevokedSessions:
    """Records and looks up revoked sessions."""

    def __init__(self, store: Store, now: Callable[[], float], monotonic: Callable[[], float]) -> None:
        self._store = store
        self._now = now
        self._known: TtlCache[str, bool] = TtlCache(REMEMBERED_SECONDS, MAX_REMEMBERED, monotonic)

    async def is_ended(self, session_id: str) -> bool:
        """Whether it was signed out."""
        if (known := self._known.get(session_id)) is not None:
            return known
        found = await self._store.find_document(ENDING, session_id, PLACE)
        return self._known.put(session_id, found is not None)

    async def end(self, session_id: str, until: int) -> None:
        """From now on it is signed out. Safe to repeat."""
        body = str(until).encode()
        with suppress(Conflict):  # It was before.
            await self._store.put_documents([Document(ENDING, PLACE, session_id, 0, 0, body)])
        self._known.put(session_id, True)
        await self._sweep(session_id)

    async def _sweep(self, after: str) -> None:
        """Drop some that are over by themselves: ids are random, so in the long run all of them have their turn."""
        for each in await self._store.list_documents(ENDING, PLACE, after=after, limit=SWEPT_AT_ONCE):
            if int(each.body) <= self._now():
                await self._store.delete_document(ENDING, PLACE, each.name, each.version)
