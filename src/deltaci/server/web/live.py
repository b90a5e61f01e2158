"""That something changed, told to pages as it happens: not what, for a page that asks again gets the truth.

A hint is a few bytes, however much happened, and there are few of them a second, however busy the tenant is. A stream
that has nothing to tell says so now and then: a page that hears nothing at all knows that it is cut off.
"""

from __future__ import annotations

import asyncio
from typing import Final

from deltaci.api.schemas.records import Run
from deltaci.server.request import Send
from deltaci.server.rest.event_streams import Subscription
from deltaci.server.rest.http.streaming import ClientDisconnected, ResponseStream, open_response
from deltaci.server.rest.live import HEADERS
from deltaci.server.web.page_request import Stream, Visit
from deltaci.storage.port import Unavailable

APART_SECONDS: Final = 0.25  # Between two hints: nobody reads faster.
LOOK_SECONDS: Final = 5.0  # Whether whoever looks may still do so.
BEAT_SECONDS: Final = 15.0  # static/live.js gives up a stream that says nothing for two of them and a half.
CHANGED: Final = b"event: changed\ndata: \n\n"
STILL: Final = b"event: still\ndata: \n\n"


async def live(visit: Visit) -> Stream:
    """Hints about a run, or about all that the tenant has."""
    run_id = visit.query.get("run", "")
    if run_id:
        await visit.ask("readRun", Run, run=run_id)
    visit.parts.streams.check_capacity(visit.who.tenant)
    return Stream(Hints(visit, run_id).send)


class Hints:
    """One stream of them."""

    def __init__(self, visit: Visit, run_id: str) -> None:
        self._visit = visit
        self._run_id = run_id
        self._clock = asyncio.get_running_loop().time

    async def send(self, send: Send) -> None:
        """Until whoever looks is gone, is no longer let in, or the server ends."""
        visit = self._visit
        async with open_response(send, visit.request) as out:
            with visit.parts.streams.subscribe(visit.who.tenant, 0, self._run_id) as subscription:
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
