"""A stream that tells pages that something has changed. It does not say what: the page reloads its content.

A hint is a few bytes, and their rate is limited however busy the tenant is. The stream sends a keep-alive, so that a
page can detect that it is disconnected.
"""

from __future__ import annotations

import asyncio
from typing import Final

from deltaci.api.schemas.records import Run
from deltaci.server.request import Send
from deltaci.server.rest.http.streaming import ClientDisconnected, ResponseStream, open_response
from deltaci.server.rest.streams.event_streams import ADMINISTRATION, Subscription
from deltaci.server.rest.streams.live import HEADERS
from deltaci.server.web.page_request import EventStream, PageRequest
from deltaci.storage.port import Unavailable

APART_SECONDS: Final = 0.25  # Between two hints: nobody reads faster.
LOOK_SECONDS: Final = 5.0  # Whether whoever looks may still do so.
BEAT_SECONDS: Final = 15.0  # static/live.js gives up a stream that says nothing for two of them and a half.
CHANGED: Final = b"event: changed\ndata: \n\n"
STILL: Final = b"event: still\ndata: \n\n"


async def live(visit: PageRequest) -> EventStream:
    """Hints about a run, or about all that the tenant has."""
    run_id = visit.query.get("run", "")
    if run_id:
        await visit.ask("readRun", Run, run=run_id)
    visit.parts.streams.check_capacity(visit.who.tenant)
    return EventStream(ChangeStream(visit, run_id).send)


class ChangeStream:
    """The stream of change hints for one page."""

    def __init__(self, visit: PageRequest, run_id: str) -> None:
        self._visit = visit
        self._run_id = run_id
        self._clock = asyncio.get_running_loop().time

    async def send(self, send: Send) -> None:
        """Until whoever looks is gone, is no longer let in, or the server ends."""
        visit = self._visit
        async with open_response(send, visit.request) as out:
            channel = self._run_id or (ADMINISTRATION if "admin" in visit.who.scopes else "")
            with visit.parts.streams.subscribe(visit.who.tenant, 0, channel) as subscription:
                out.on_disconnect(subscription.wake)
                try:
                    await subscription.skip_all()
                    await out.start(HEADERS)
                    # Whoever connects, or connects again, does not know what it missed.
                    await out.write(CHANGED)
                    await self._follow(out, subscription)
                except Unavailable:
                    return  # Ended in order: the page connects again.

    async def _follow(self, out: ResponseStream, subscription: Subscription) -> None:
        look_at, beat_at = self._clock() + LOOK_SECONDS, self._clock() + BEAT_SECONDS
        while not subscription.is_closed:
            if out.is_disconnected:
                raise ClientDisconnected
            # Also one to whom there is always something to tell is looked at.
            if self._clock() >= look_at:
                if await self._visit.is_over():
                    return
                look_at = self._clock() + LOOK_SECONDS
            if self._clock() >= beat_at:
                await out.write(STILL)
                beat_at = self._clock() + BEAT_SECONDS
            if await subscription.skip_all():
                await out.write(CHANGED)
                await asyncio.sleep(APART_SECONDS)
            else:
                subscription.due_at = min(look_at, beat_at)
                await subscription.wait()
