"""Job logs, one for each lease: the stored bytes, or a stream that continues until the lease ends.

A stream is woken when this server appends to the log and when the attempt changes. Another server may append to the
same log, so the log is also polled every second.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

from deltaci.api.routes import LEASE_NUMBER_HEADER
from deltaci.api.schemas.inputs import LogQuery
from deltaci.api.schemas.logs import LogIndex
from deltaci.core import ids
from deltaci.core.attempt import Attempt
from deltaci.core.job import Job
from deltaci.core.lease import Lease
from deltaci.core.timers import is_over
from deltaci.protocol.routes import OFFSET_HEADER
from deltaci.server.auth.revalidate import Revalidation
from deltaci.server.log_index import BLOCK_BYTES
from deltaci.server.rest.http.lookup import get_attempt, get_job
from deltaci.server.rest.http.ranges import ByteRange, requested_range, requested_start
from deltaci.server.rest.http.request import Call, Handler, Send, not_found
from deltaci.server.rest.http.streaming import (
    ClientDisconnected,
    ResponseStream,
    content_disposition,
    open_response,
    write_range,
)
from deltaci.server.rest.streams.event_streams import Subscription
from deltaci.storage.blobs.keys import PART_BYTES
from deltaci.storage.blobs.store import BlobStoreUnavailable
from deltaci.storage.port import Unavailable

POLL_SECONDS: Final = 1.0
HEADERS: Final = {
    "Content-Type": "text/plain; charset=utf-8",
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "sandbox",
}


def last_lease(attempt: Attempt) -> Lease | None:
    """Return the current lease of an attempt, else its last one."""
    return attempt.lease or attempt.ended_lease


async def read_log(call: Call) -> LogFile | LogStream:
    """Return the stored log of an attempt, or with `follow` a stream of it."""
    attempt = await get_attempt(call)
    return await _log_response(call, attempt.job_id, attempt.id, attempt)


async def read_job_log(call: Call) -> LogFile | LogStream:
    """Return the stored log of a job's last attempt, or with `follow` a stream of it.

    If the job has no attempt yet, the stored log is empty and the stream waits for the first attempt.
    """
    job = await get_job(call)
    attempt_id = ids.attempt_id(job.id, max(1, job.attempts))
    attempt_record = await call.app.store.find(attempt_id)
    return await _log_response(
        call, job.id, attempt_id, attempt_record if isinstance(attempt_record, Attempt) else None
    )


async def _log_response(call: Call, job_id: str, attempt_id: str, attempt: Attempt | None) -> LogFile | LogStream:
    """Return the requested part of a log or, with `follow`, a stream of it until the lease ends."""
    query: LogQuery = call.query
    lease_number = _lease_number(attempt, query.lease)
    logs, range_header = call.app.logs, call.request.header(b"range")
    if call.request.header(b"if-range"):
        range_header = ""  # A log has no ETag that If-Range could match.
    log_bytes = await call.app.disk.run(lambda: logs.size(attempt_id, lease_number)) if lease_number else 0
    if not query.follow:
        return LogFile(call, attempt_id, lease_number, requested_range(range_header, log_bytes))
    call.app.streams.check_capacity(call.caller.tenant)
    return LogStream(call, job_id, attempt_id, lease_number, requested_start(range_header, log_bytes))


def _lease_number(attempt: Attempt | None, requested_number: int) -> int:
    """Return the requested lease number, else that of the last lease, else 0. Raise Refused for an unknown one."""
    lease = last_lease(attempt) if attempt is not None else None
    last_number = lease.number if lease is not None else 0
    if requested_number > last_number:
        raise not_found("lease", str(requested_number))
    return requested_number or last_number


async def read_log_index(call: Call) -> LogIndex:
    """Return an attempt's log index: its steps, and how many newlines precede each block from the requested one on."""
    attempt, query = await get_attempt(call), call.query
    lease_number, lease = _lease_number(attempt, query.lease), attempt.lease
    logs, indexes = call.app.logs, call.app.log_indexes
    index_snapshot = await call.app.disk.run(lambda: indexes.snapshot(logs, attempt.id, lease_number, query.block))
    return LogIndex(
        lease=lease_number,
        size=index_snapshot.size,
        lines=index_snapshot.lines,
        newlines=index_snapshot.newlines,
        block_bytes=BLOCK_BYTES,
        first_block=query.block,
        blocks=index_snapshot.blocks,
        has_header=index_snapshot.has_header,
        sections=index_snapshot.sections,
        is_open=lease.number == lease_number if lease is not None else not (lease_number or is_over(attempt)),
    )


class LogFile:
    """A stored log, or a range of it, as a response."""

    def __init__(self, call: Call, attempt_id: str, lease_number: int, byte_range: ByteRange) -> None:
        self._call = call
        self._attempt_id = attempt_id
        self._lease_number = lease_number
        self._range = byte_range

    async def send(self, send: Send) -> None:
        """Send the requested range."""
        response_headers = {**HEADERS, LEASE_NUMBER_HEADER: str(self._lease_number), **self._range.headers}
        if self._call.query.download:
            response_headers["Content-Disposition"] = content_disposition(self._file_name)
        async with open_response(send, self._call.request) as out:
            await out.start(response_headers, self._range.status)
            await write_range(out, self._range, self._call.app.disk, self._read_log)

    async def last(self, max_bytes: int) -> bytes:
        """Return the last `max_bytes` bytes of the range, for the web interface."""
        tail_start = max(self._range.start, self._range.stop - max_bytes)
        logs = self._call.app.logs
        return await self._call.app.disk.run(
            lambda: logs.read(self._attempt_id, self._lease_number, tail_start, self._range.stop - tail_start)
        )

    @property
    def _file_name(self) -> str:
        path_params = self._call.params
        lease_suffix = f".{self._lease_number}" if self._lease_number > 1 else ""
        return f"{path_params['job']}-{path_params.get('index', 'last')}{lease_suffix}.log"

    def _read_log(self, offset: int) -> bytes:
        part_bytes = min(PART_BYTES, self._range.stop - offset)
        chunk = self._call.app.logs.read(self._attempt_id, self._lease_number, offset, part_bytes)
        if not chunk:
            raise BlobStoreUnavailable(
                f"the log of {self._attempt_id} ended at byte {offset}: it was removed during the response"
            )
        return chunk


class LogStream:
    """A response that continues while a log is written. `lease_number` 0: the attempt has no lease yet."""

    def __init__(self, call: Call, job_id: str, attempt_id: str, lease_number: int, start_offset: int) -> None:
        self._call = call
        self._ids = (job_id, attempt_id)
        self._attempt_id = attempt_id
        self._lease_number = lease_number
        self._offset = start_offset
        self._is_over = False
        self._is_appended = False
        self._clock = asyncio.get_running_loop().time
        self._deadline = self._clock() + call.query.follow
        self._revalidation = Revalidation(call)

    async def send(self, send: Send) -> None:
        """Send the log as it grows, until the lease ends, `follow` seconds have passed or the client disconnects."""
        call = self._call
        subscription_context = call.app.streams.subscribe(call.caller.tenant, 0, call.params["run"])
        async with open_response(send, call.request) as out:
            with subscription_context as subscription:
                out.on_disconnect(subscription.wake)
                # While the store is unavailable the response ends normally, and the client sends another request.
                with suppress(Unavailable):
                    await self._wait_for_lease(out, subscription)
                await out.start(
                    {
                        **HEADERS,
                        LEASE_NUMBER_HEADER: str(self._lease_number),
                        OFFSET_HEADER: str(self._offset),
                        "Accept-Ranges": "bytes",
                        "X-Accel-Buffering": "no",
                    }
                )
                with suppress(Unavailable):
                    await self._follow(out, subscription)

    async def _wait_for_lease(self, out: ResponseStream, subscription: Subscription) -> None:
        await subscription.skip_unbuffered()
        await self._refresh()
        while not self._lease_number and not self._is_over and not await self._is_time_up(subscription):
            await self._wait(out, subscription)

    async def _follow(self, out: ResponseStream, subscription: Subscription) -> None:
        """Write the log while it grows, until its lease is over."""
        if not self._lease_number:
            return
        loop = asyncio.get_running_loop()

        def on_append() -> None:
            loop.call_soon_threadsafe(self._on_append, subscription)

        logs, disk = self._call.app.logs, self._call.app.disk
        with logs.subscribe(self._attempt_id, self._lease_number, on_append):
            while True:
                # Read before the log: if the lease was over by then, an empty chunk is the end of its log.
                was_over, self._is_appended = self._is_over, False
                chunk = await disk.run(
                    lambda: logs.read(self._attempt_id, self._lease_number, self._offset, PART_BYTES)
                )
                self._offset += len(chunk)
                if chunk:
                    await out.write(chunk)
                elif was_over or await self._is_time_up(subscription):
                    return
                else:
                    await self._wait(out, subscription)

    def _on_append(self, subscription: Subscription) -> None:
        self._is_appended = True
        subscription.wake()

    async def _wait(self, out: ResponseStream, subscription: Subscription) -> None:
        """Wait until the log was appended to, the attempt changed, POLL_SECONDS passed, or the stream has to end.

        Raise `ClientDisconnected` if the client has closed the connection.
        """
        wait_until = min(self._deadline, self._clock() + POLL_SECONDS)
        while not self._is_appended and not subscription.is_closed:
            if out.is_disconnected:
                raise ClientDisconnected
            for frame in await subscription.next_frames():
                if frame.entity_id in self._ids and frame.is_change:
                    await self._refresh()
                    return
            if self._clock() >= wait_until:
                return
            subscription.due_at = wait_until
            await subscription.wait()

    async def _is_time_up(self, subscription: Subscription) -> bool:
        is_past_deadline = self._clock() >= self._deadline
        return is_past_deadline or subscription.is_closed or await self._revalidation.is_revoked()

    async def _refresh(self) -> None:
        """Update whether the lease is over.

        Without a lease, look for one, and update whether there can still be one.
        """
        records = await self._call.app.store.find_all(self._ids)
        attempt = next((owner for owner in records if isinstance(owner, Attempt)), None)
        job = next((owner for owner in records if isinstance(owner, Job)), None)
        if not self._lease_number and attempt is not None and (new_lease := last_lease(attempt)) is not None:
            self._lease_number = new_lease.number
        if self._lease_number:
            lease = attempt.lease if attempt is not None else None
            self._is_over = lease is None or lease.number != self._lease_number
        else:
            owner = attempt or job
            self._is_over = owner is None or is_over(owner)


HANDLERS: Final[Mapping[str, Handler]] = {
    "readLog": read_log,
    "readJobLog": read_job_log,
    "readLogIndex": read_log_index,
}
