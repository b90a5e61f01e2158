"""Events, as pages or as a stream.

A stream has the format of server-sent events. It ends when the run can no longer change, when the caller's API key has
expired or was revoked, and when the server stops. A client resumes by connecting again with the id of the last event
that it received.
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
from deltaci.core.events import RESOURCE, Event, to_json_line
from deltaci.core.job import Job
from deltaci.core.timers import is_over
from deltaci.server.auth.revalidate import Revalidation
from deltaci.server.rest.http.lookup import get_run, load_all_jobs
from deltaci.server.rest.http.request import Call, Handler, JsonResponse, Send
from deltaci.server.rest.http.streaming import ClientDisconnected, ResponseStream, open_response
from deltaci.server.rest.streams import log_tails
from deltaci.server.rest.streams.event_streams import ADMINISTRATION, CHUNK_BYTES, Frame, Subscription
from deltaci.storage.port import Unavailable

STREAM: Final = "text/event-stream"
HEARTBEAT_SECONDS: Final = 15.0
RETRY_MILLISECONDS: Final = 1000
MAX_PAGES: Final = 10  # The number of log pages that are searched for one page of a tenant.
PAGE_SIZE: Final = 1000
HEADERS: Final = {
    "Content-Type": f"{STREAM}; charset=utf-8",
    "Cache-Control": "no-store",
    "X-Accel-Buffering": "no",
    "X-Content-Type-Options": "nosniff",
}
_QUALITY: Final = re.compile(r"q=([01](?:\.[0-9]{0,3})?)")


async def read_run_events(call: Call) -> JsonResponse | EventStream:
    """Return a page of the events of a run, or a stream of them; see `prefers_stream`."""
    run = await get_run(call)
    query, last_event_id = call.query, _last_event_id(call)
    if prefers_stream(call.request.header(b"accept")):
        return await _event_stream(call, last_event_id, run.id, is_run_over=is_over(run))
    events = await call.app.store.events(query.after, query.limit, run_id=run.id)
    events = [event for event in events if event.tenant == call.caller.tenant]
    return _page(events, events[-1].seq if events else query.after)


async def read_events(call: Call) -> JsonResponse | EventStream:
    """Return a page of the events of the tenant, or a stream of them; see `prefers_stream`.

    Events of resources are only in the response to an administrator.
    """
    query, last_event_id = call.query, _last_event_id(call)
    is_admin = _is_admin(call)
    if prefers_stream(call.request.header(b"accept")):
        return await _event_stream(call, last_event_id, "", is_run_over=False)
    events: list[Event] = []
    last_read_seq = query.after
    for _ in range(MAX_PAGES):
        page = await call.app.store.events(last_read_seq, PAGE_SIZE)
        for event in page:
            last_read_seq = event.seq
            if event.tenant == call.caller.tenant and (is_admin or event.entity != RESOURCE):
                events.append(event)
                if len(events) == query.limit:
                    return _page(events, last_read_seq)
        if len(page) < PAGE_SIZE:
            break
    return _page(events, last_read_seq)


def _page(events: list[Event], last_seq: int) -> JsonResponse:
    """Return a page of events, each encoded as in a stream, with the seq after which the next page begins."""
    return JsonResponse(value={"events": [msgspec.Raw(to_json_line(event)) for event in events], "last": last_seq})


def prefers_stream(accept: str) -> bool:
    """Return whether an Accept header names the stream with at least the quality of JSON."""
    quality_by_format = {"json": 0.0, "stream": 0.0}
    for media_range in accept.split(","):
        media_type, _, parameters = media_range.strip().lower().partition(";")
        quality_match = _QUALITY.search(parameters)
        quality = float(quality_match[1]) if quality_match else 1.0
        for format_name, media_types in (("stream", (STREAM,)), ("json", ("application/json", "application/*", "*/*"))):
            if media_type.strip() in media_types:
                quality_by_format[format_name] = max(quality_by_format[format_name], quality)
    return quality_by_format["stream"] > 0 and quality_by_format["stream"] >= quality_by_format["json"]


def _last_event_id(call: Call) -> int | None:
    """Return the Last-Event-ID header. Raise Refused if it is malformed, even if the response is not a stream."""
    header_text = call.request.header(LAST_EVENT_HEADER.lower().encode())
    if header_text and not (header_text.isascii() and header_text.isdecimal() and len(header_text) <= MAX_SEQ_DIGITS):
        raise Refused("bad_request", f"{LAST_EVENT_HEADER} is {header_text[:20]!r}; send the id of an event")
    return int(header_text) if header_text else None


def _is_admin(call: Call) -> bool:
    """Return whether the caller may read all resources, and so their events."""
    return "admin" in call.caller.scopes


async def _event_stream(call: Call, last_event_id: int | None, run_id: str, *, is_run_over: bool) -> EventStream:
    """Return the stream of events after the requested seq. Raise Refused if there are too many streams."""
    query: EventQuery = call.query
    after_seq = last_event_id if last_event_id is not None else query.after
    streams = call.app.streams
    streams.check_capacity(call.caller.tenant)
    await streams.check_seq(after_seq)
    channel = run_id or (ADMINISTRATION if _is_admin(call) else "")
    return EventStream(call, streams.subscribe(call.caller.tenant, after_seq, channel), run_id, is_run_over=is_run_over)


class EventStream:
    """A response that streams events. With `is_run_over`, the run is over: the stream ends after its last event."""

    def __init__(
        self, call: Call, subscription: AbstractContextManager[Subscription], run_id: str, *, is_run_over: bool
    ) -> None:
        self._call = call
        self._subscription = subscription
        self._run_id = run_id
        self._is_run_over = is_run_over

    async def send(self, send: Send) -> None:
        """Send events until the stream ends."""
        async with open_response(send, self._call.request) as out:
            with self._subscription as subscription:
                out.on_disconnect(subscription.wake)
                subscription.has_last = self._is_run_over
                await out.start(HEADERS)
                await out.write(b"retry: %d\n\n" % RETRY_MILLISECONDS)
                try:
                    await self._follow(out, subscription)
                except Unavailable:
                    return  # End the response normally; the client connects again, to any server.

    async def _follow(self, out: ResponseStream, subscription: Subscription) -> None:
        """Write events until the client disconnects, its access is revoked, or the run's last event is written."""
        revalidation, clock = Revalidation(self._call), asyncio.get_running_loop().time
        heartbeat_at = clock() + HEARTBEAT_SECONDS
        has_new = True
        while not subscription.is_closed:
            now = clock()
            if now >= revalidation.next_check_at and await revalidation.is_revoked():
                return
            encoded_events = subscription.next_buffered()
            if encoded_events:
                await out.write(encoded_events)
            elif encoded_events is None:
                await _write(out, await subscription.next_frames())
            elif has_new and subscription.has_last and self._run_id and await self._is_settled():
                # The newest events may be in the store and not in the channel yet.
                if not (frames := await subscription.read_from_store()):
                    return
                await _write(out, frames)
            elif now >= heartbeat_at:
                await out.write(b":\n\n")
            elif out.is_disconnected:
                raise ClientDisconnected
            else:
                has_new, subscription.due_at = False, min(heartbeat_at, revalidation.next_check_at)
                await subscription.wait()
                continue
            has_new, heartbeat_at = True, now + HEARTBEAT_SECONDS

    async def _is_settled(self) -> bool:
        """Return True if all jobs of the run are over. The jobs of a failed run may still be stopping."""
        jobs = await self._call.app.store.read(lambda: load_all_jobs(self._run_id))
        return not any(isinstance(job, Job) and not is_over(job) for job in jobs)


async def _write(out: ResponseStream, frames: list[Frame]) -> None:
    """Write frames in chunks of about CHUNK_BYTES."""
    encoded_frames: list[bytes] = []
    buffered_bytes = 0
    for frame in frames:
        encoded_frames.append(frame.encoded)
        buffered_bytes += len(frame.encoded)
        if buffered_bytes >= CHUNK_BYTES:
            await out.write(b"".join(encoded_frames))
            encoded_frames, buffered_bytes = [], 0
    if encoded_frames:
        await out.write(b"".join(encoded_frames))


HANDLERS: Final[Mapping[str, Handler]] = {
    "readRunEvents": read_run_events,
    "readEvents": read_events,
    **log_tails.HANDLERS,
}
