"""The logs of jobs, each of one lease: what there is of it, or that and what is added until the lease is over.

Whoever waits for more is woken by what this server appends and by what happens to the attempt. Another server may
append to the same folder: so the log is looked at every second anyway.
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
from deltaci.server.auth.revalidate import Stay
from deltaci.server.log_index import BLOCK_BYTES
from deltaci.server.rest.event_streams import Subscription
from deltaci.server.rest.http.lookup import attempt_of, job_of
from deltaci.server.rest.http.ranges import Bytes, chosen, first_byte
from deltaci.server.rest.http.request import Call, Handler, Send, missing
from deltaci.server.rest.http.streaming import Gone, Outlet, disposition, sending, write_span
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
    """The lease that it has, or else the one that it had last."""
    return attempt.lease or attempt.ended_lease


async def read_log(call: Call) -> LogFile | Tail:
    """The log of an attempt."""
    attempt = await attempt_of(call)
    return await _log(call, attempt.job_id, attempt.id, attempt)


async def read_job_log(call: Call) -> LogFile | Tail:
    """The log of the job's last attempt; of its first one, should it come."""
    job = await job_of(call)
    id = ids.attempt_id(job.id, max(1, job.attempts))
    found = await call.parts.store.find(id)
    return await _log(call, job.id, id, found if isinstance(found, Attempt) else None)


async def _log(call: Call, job_id: str, id: str, attempt: Attempt | None) -> LogFile | Tail:
    query: LogQuery = call.query
    number = _number(attempt, query.lease)
    logs, wanted = call.parts.logs, call.request.header(b"range")
    if call.request.header(b"if-range"):
        wanted = ""  # A log has nothing to compare it with.
    size = await call.parts.disk.do(lambda: logs.size(id, number)) if number else 0
    if not query.follow:
        return LogFile(call, id, number, chosen(wanted, size))
    call.parts.streams.check_room(call.who.tenant)
    return Tail(call, job_id, id, number, first_byte(wanted, size))


def _number(attempt: Attempt | None, wanted: int) -> int:
    """Of the lease that is asked for, or else of the last one; 0: there was none yet."""
    last = last_lease(attempt) if attempt is not None else None
    number = last.number if last is not None else 0
    if wanted > number:
        raise missing("lease", str(wanted))
    return wanted or number


async def read_log_index(call: Call) -> LogIndex:
    """Where the lines and steps of an attempt's log are."""
    attempt, query = await attempt_of(call), call.query
    number, held = _number(attempt, query.lease), attempt.lease
    logs, indexes = call.parts.logs, call.parts.log_indexes
    seen = await call.parts.disk.do(lambda: indexes.look(logs, attempt.id, number, query.block))
    return LogIndex(
        lease=number,
        size=seen.size,
        lines=seen.lines,
        newlines=seen.newlines,
        block_bytes=BLOCK_BYTES,
        first_block=query.block,
        blocks=seen.blocks,
        has_header=seen.has_header,
        sections=seen.sections,
        is_open=held.number == number if held is not None else not (number or is_over(attempt)),
    )


class LogFile:
    """An answer that is a log as it was, or a part of it."""

    def __init__(self, call: Call, id: str, number: int, span: Bytes) -> None:
        self._call = call
        self._id = id
        self._number = number
        self._span = span

    async def send(self, send: Send) -> None:
        """All that was asked for."""
        headers = {**HEADERS, LEASE_NUMBER_HEADER: str(self._number), **self._span.headers}
        if self._call.query.download:
            headers["Content-Disposition"] = disposition(self._file_name)
        async with sending(send, self._call.request) as out:
            await out.begin(headers, self._span.status)
            await write_span(out, self._span, self._call.parts.disk, self._part)

    async def last(self, limit: int) -> bytes:
        """The end of it, for somebody of this process."""
        start = max(self._span.start, self._span.stop - limit)
        logs = self._call.parts.logs
        return await self._call.parts.disk.do(lambda: logs.read(self._id, self._number, start, self._span.stop - start))

    @property
    def _file_name(self) -> str:
        params = self._call.params
        lease = f".{self._number}" if self._number > 1 else ""
        return f"{params['job']}-{params.get('index', 'last')}{lease}.log"

    def _part(self, at: int) -> bytes:
        limit = min(PART_BYTES, self._span.stop - at)
        part = self._call.parts.logs.read(self._id, self._number, at, limit)
        if not part:
            raise BlobStoreUnavailable(f"the log of {self._id} ended at byte {at}: it was removed while it was read")
        return part


class Tail:
    """An answer that goes on while a log is written. `number` 0: the attempt has no lease yet."""

    def __init__(self, call: Call, job_id: str, id: str, number: int, start: int) -> None:
        self._call = call
        self._ids = (job_id, id)
        self._id = id
        self._number = number
        self._at = start
        self._is_over = False
        self._is_appended = False
        self._clock = asyncio.get_running_loop().time
        self._until = self._clock() + call.query.follow
        self._stay = Stay(call)

    async def send(self, send: Send) -> None:
        """What there is, then what is added; until the lease is over, the time is, or whoever asked is gone."""
        call = self._call
        of = call.parts.streams.subscribed(call.who.tenant, 0, call.params["run"])
        async with sending(send, call.request) as out:
            with of as subscription:
                out.when_gone(subscription.ring)
                # A store that is away ends it in order, as the time does: whoever follows asks again.
                with suppress(Unavailable):
                    await self._wait_for_lease(out, subscription)
                await out.begin(
                    {
                        **HEADERS,
                        LEASE_NUMBER_HEADER: str(self._number),
                        OFFSET_HEADER: str(self._at),
                        "Accept-Ranges": "bytes",
                        "X-Accel-Buffering": "no",
                    }
                )
                with suppress(Unavailable):
                    await self._follow(out, subscription)

    async def _wait_for_lease(self, out: Outlet, subscription: Subscription) -> None:
        await subscription.skip()
        await self._look()
        while not self._number and not self._is_over and not await self._is_time_up(subscription):
            await self._wait(out, subscription)

    async def _follow(self, out: Outlet, subscription: Subscription) -> None:
        if not self._number:
            return
        loop = asyncio.get_running_loop()

        def hear() -> None:
            loop.call_soon_threadsafe(self._hear, subscription)

        logs = self._call.parts.logs
        with logs.subscribe(self._id, self._number, hear):
            while True:
                # Whether it is over is asked before the log is: what comes after that is no longer of this lease.
                was_over, self._is_appended = self._is_over, False
                part = await self._call.parts.disk.do(lambda: logs.read(self._id, self._number, self._at, PART_BYTES))
                self._at += len(part)
                if part:
                    await out.write(part)
                elif was_over or await self._is_time_up(subscription):
                    return
                else:
                    await self._wait(out, subscription)

    def _hear(self, subscription: Subscription) -> None:
        self._is_appended = True
        subscription.ring()

    async def _wait(self, out: Outlet, subscription: Subscription) -> None:
        """Until there may be something new in the log, or the attempt changed, or it is time to look anyway."""
        until = min(self._until, self._clock() + POLL_SECONDS)
        while not self._is_appended and not subscription.is_closed:
            if out.is_gone:
                raise Gone
            for frame in await subscription.take():
                if frame.entity_id in self._ids and frame.is_change:
                    await self._look()
                    return
            if self._clock() >= until:
                return
            subscription.due_at = until
            await subscription.wait()

    async def _is_time_up(self, subscription: Subscription) -> bool:
        is_late = self._clock() >= self._until
        return is_late or subscription.is_closed or await self._stay.is_over()

    async def _look(self) -> None:
        """Whether the lease is over; or, of an attempt that has none, whether it will never have one."""
        records = await self._call.parts.store.find_all(self._ids)
        attempt = next((each for each in records if isinstance(each, Attempt)), None)
        job = next((each for each in records if isinstance(each, Job)), None)
        if not self._number and attempt is not None and (first := last_lease(attempt)) is not None:
            self._number = first.number
        if self._number:
            held = attempt.lease if attempt is not None else None
            self._is_over = held is None or held.number != self._number
        else:
            of = attempt or job
            self._is_over = of is None or is_over(of)


HANDLERS: Final[Mapping[str, Handler]] = {
    "readLog": read_log,
    "readJobLog": read_job_log,
    "readLogIndex": read_log_index,
}
