"""Reads committed events from the log: from any `seq` on, in order, each exactly once."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Final

from deltaci.core.events import Event
from deltaci.storage.port import Store

PAGE: Final = 1000


async def read(
    store: Store, after: int, limit: int, *, tenant: str = "", entity_id: str = "", run_id: str = ""
) -> list[Event]:
    """Return up to `limit` committed events with a `seq` above `after`, of one tenant or, if it is empty, of all."""
    events: list[Event] = []
    while len(events) < limit:
        page_size = min(limit, PAGE)
        page = await store.events(after, page_size, entity_id=entity_id, run_id=run_id)
        events += [event for event in page if tenant in ("", event.tenant)]
        if len(page) < page_size:
            break
        after = page[-1].seq
    return events[:limit]


async def follow(
    store: Store, after: int, *, tenant: str = "", entity_id: str = "", run_id: str = ""
) -> AsyncIterator[Event]:
    """Yield every committed event with a `seq` above `after`, in order: the existing ones, then each new one.

    Without a tenant, the events of all tenants. Each reader reads pages at its own pace; nothing is buffered for it.
    """
    async with aclosing(pages(store, after, entity_id=entity_id, run_id=run_id)) as all_pages:
        async for page in all_pages:
            for event in page:
                if tenant in ("", event.tenant):
                    yield event


async def pages(
    store: Store, after: int, *, entity_id: str = "", run_id: str = ""
) -> AsyncGenerator[list[Event], None]:
    """Yield lists of committed events with a `seq` above `after`, without end.

    Each list has all available events, up to PAGE. Unlike `follow`, for readers that load related records in bulk.
    """
    last_seq = after
    with store.commit_hints.subscribe() as subscription:
        while True:
            events = await store.events(last_seq, PAGE, entity_id=entity_id, run_id=run_id)
            if events:
                last_seq = events[-1].seq
                yield events
            if len(events) < PAGE:
                await subscription.wait()
