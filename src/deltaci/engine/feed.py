"""Events as they happen: from any seq on, in order, none missed, none twice."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

from deltaci.core.events import Event
from deltaci.store.port import Store

PAGE: Final = 1000


async def follow(store: Store, after: int, *, entity_id: str = "", run_id: str = "") -> AsyncIterator[Event]:
    """Every committed event with a greater seq, first those that are there, then the rest as they come.

    A slow reader costs nobody anything: it reads pages at its own pace and nothing is kept for it.
    """
    seen = after
    with store.wakers.subscribed() as waker:
        while True:
            page = await store.events(seen, PAGE, entity_id=entity_id, run_id=run_id)
            for event in page:
                seen = event.seq
                yield event
            if len(page) < PAGE:
                await waker.wait()
