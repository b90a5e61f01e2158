"""What happens, as it happens: events page by page or as a stream, and logs while they are written.

A stream is plain HTTP that does not end: server-sent events, as every browser and many programs read them. It ends by
itself when there is nothing more to come, when the caller's key is no longer good, or when the server stops; whoever
wants more connects again and says where it was.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Final

import msgspec

from deltaci.api.routes import LAST_EVENT_HEADER, MAX_SEQ_DIGITS
from deltaci.api.schemas.inputs import EventQuery
from deltaci.core.errors import Refused
from deltaci.core.events import Event, to_json_line
from deltaci.core.job import Job
from deltaci.core.timers import is_over
from deltaci.server.auth.revalidate import Stay
from deltaci.server.rest import log_tails
from deltaci.server.rest.event_streams import PIECE_BYTES, Frame, Subscription
from deltaci.server.rest.http.lookup import all_jobs, run_of
from deltaci.server.rest.http.request import Call, Handler, Made, Send
from deltaci.server.rest.http.streaming import Gone, Outlet, sending
from deltaci.storage.port import Unavailable

STREAM: Final = "text/event-stream"
HEARTBEAT_SECONDS: Final = 15.0
RETRY_MILLISECONDS: Final = 1000
MAX_PAGES: Final = 10  # Of the log, looked through for one page of a tenant.
PAGE: Final = 1000
HEADERS: Final = {
    "Content-Type": f"{STREAM}; charset=utf-8",
    "Cache-Control": "no-store",
    "X-Accel-Buffering": "no",
    "X-Content-Type-Options": "nosniff",
}
_QUALITY: Final = re.compile(r"q=([01](?:\.[0-9]{0,3})?)")


async def read_run_events(call: Call) -> Made | EventStream:
    """A run's events, or a stream of them."""
    of = await run_of(call)
    query, told = call.query, _last_event(call)
    if wants_stream(call.request.header(b"accept")):
        return await _stream(call, told, of.id, has_last=is_over(of))
    found = await call.parts.store.events(query.after, query.limit, run_id=of.id)
    found = [event for event in found if event.tenant == call.who.tenant]
    return _page(found, found[-1].seq if found else query.after)


async def read_events(call: Call) -> Made | EventStream:
    """All events of the tenant, or a stream of them."""
    query, told = call.query, _last_event(call)
    if wants_stream(call.request.header(b"accept")):
        return await _stream(call, told, "", has_last=False)
    found: list[Event] = []
    last = query.after
    for _ in range(MAX_PAGES):
        page = await call.parts.store.events(last, PAGE)
        for event in page:
            last = event.seq
            if event.tenant == call.who.tenant:
                found.append(event)
                if len(found) == query.limit:
                    return _page(found, last)
        if len(page) < PAGE:
            break
    return _page(found, last)


def _page(events: list[Event], last: int) -> Made:
    """Each event in its canonical form, as a stream has it."""
    return Made(value={"events": [msgspec.Raw(to_json_line(event)) for event in events], "last": last})


def wants_stream(accept: str) -> bool:
    """Whether the Accept header prefers a stream to JSON."""
    found = {"json": 0.0, "stream": 0.0}
    for part in accept.split(","):
        kind, _, rest = part.strip().lower().partition(";")
        told = _QUALITY.search(rest)
        quality = float(told[1]) if told else 1.0
        for name, kinds in (("stream", (STREAM,)), ("json", ("application/json", "application/*", "*/*"))):
            if kind.strip() in kinds:
                found[name] = max(found[name], quality)
    return found["stream"] > 0 and found["stream"] >= found["json"]


def _last_event(call: Call) -> int | None:
    """What the client says that it read last; nonsense is refused, also where it would not matter."""
    told = call.request.header(LAST_EVENT_HEADER.lower().encode())
    if told and not (told.isascii() and told.isdecimal() and len(told) <= MAX_SEQ_DIGITS):
        raise Refused("bad_request", f"{LAST_EVENT_HEADER} is {told[:20]!r}; send the id of an event")
    return int(told) if told else None


async def _stream(call: Call, told: int | None, run_id: str, *, has_last: bool) -> EventStream:
    query: EventQuery = call.query
    after = told if told is not None else query.after
    streams = call.parts.streams
    streams.check_room(call.who.tenant)
    await streams.check_exists(after)
    return EventStream(call, streams.subscribed(call.who.tenant, after, run_id), run_id, has_last=has_last)


class EventStream:
    """An answer that is a stream of events. `has_last`: the run does not change any more."""

    def __init__(
        self, call: Call, subscribed: AbstractContextManager[Subscription], run_id: str, *, has_last: bool
    ) -> None:
        self._call = call
        self._subscribed = subscribed
        self._run_id = run_id
        self._has_last = has_last

    async def send(self, send: Send) -> None:
        """Until it is over. Whoever is cut off goes on after the last event that it read."""
        async with sending(send, self._call.request) as out:
            with self._subscribed as subscription:
                out.when_gone(subscription.ring)
                subscription.has_last = self._has_last
                await out.begin(HEADERS)
                await out.write(b"retry: %d\n\n" % RETRY_MILLISECONDS)
                try:
                    await self._follow(out, subscription)
                except Unavailable:
                    return  # Ended in order: whoever follows connects again, here or elsewhere.

    async def _follow(self, out: Outlet, subscription: Subscription) -> None:
        stay, clock = Stay(self._call), asyncio.get_running_loop().time
        beat_at = clock() + HEARTBEAT_SECONDS
        is_news = True
        while not subscription.is_closed:
            now = clock()
            if now >= stay.look_at and await stay.is_over():
                return
            text = subscription.take_new()
            if text:
                await out.write(text)
            elif text is None:
                await _write(out, await subscription.take())
            elif is_news and subscription.has_last and self._run_id and await self._is_settled():
                # Read once more: what was committed last may not have been heard yet.
                if not (frames := await subscription.read_rest()):
                    return
                await _write(out, frames)
            elif now >= beat_at:
                await out.write(b":\n\n")
            elif out.is_gone:
                raise Gone
            else:
                is_news, subscription.due_at = False, min(beat_at, stay.look_at)
                await subscription.wait()
                continue
            is_news, beat_at = True, now + HEARTBEAT_SECONDS

    async def _is_settled(self) -> bool:
        """Whether nothing more can happen in the run: one that failed may be reported while its jobs still stop."""
        jobs = await self._call.parts.store.read(lambda: all_jobs(self._run_id))
        return not any(isinstance(each, Job) and not is_over(each) for each in jobs)


async def _write(out: Outlet, frames: list[Frame]) -> None:
    """As they are, in pieces that a slow reader may keep waiting."""
    texts: list[bytes] = []
    size = 0
    for frame in frames:
        texts.append(frame.text)
        size += len(frame.text)
        if size >= PIECE_BYTES:
            await out.write(b"".join(texts))
            texts, size = [], 0
    if texts:
        await out.write(b"".join(texts))


HANDLERS: Final[Mapping[str, Handler]] = {
    "readRunEvents": read_run_events,
    "readEvents": read_events,
    **log_tails.HANDLERS,
}
