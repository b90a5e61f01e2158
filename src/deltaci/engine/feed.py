"""Events as they happen: from any seq on, in order, none missed, none twice."""

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
    """Committed events with a greater seq; of this tenant alone, unless none is named."""
    found: list[Event] = []
    while len(found) < limit:
        size = min(limit, PAGE)
        page = await store.events(after, size, entity_id=entity_id, run_id=run_id)
        found += [event for event in page if tenant in ("", event.tenant)]
        if len(page) < size:
            break
        after = page[-1].seq
    return found[:limit]


async def follow(
    store: Store, after: int, *, tenant: str = "", entity_id: str = "", run_id: str = ""
) -> AsyncIterator[Event]:
    """Every committed event with a greater seq, first those that are there, then the rest as they come.

    Of this tenant alone, unless none is named. A slow reader costs nobody anything: it reads pages at its own
    pace and nothing is kept for it.
    """
    async with aclosing(pages(store, after, entity_id=entity_id, run_id=run_id)) as read:
        async for page in read:
            for event in page:
                if tenant in ("", event.tenant):
                    yield event


async def pages(
    store: Store, after: int, *, entity_id: str = "", run_id: str = ""
) -> AsyncGenerator[list[Event], None]:
    """The same, as many at a time as there are: for one who looks things up for all of them together."""
    seen = after
    with store.commit_hints.subscribe() as waker:
        while True:
            page = await store.events(seen, PAGE, entity_id=entity_id, run_id=run_id)
            if page:
                seen = page[-1].seq
                yield page
            if len(page) < PAGE:
                await waker.wait()
