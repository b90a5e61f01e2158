"""Follow the log of a job across lost leases, retries and broken connections."""

from __future__ import annotations

from typing import Final

import msgspec

from deltaci.api.schemas import records as api
from deltaci.client import calls
from deltaci.client.effects import EmitItem, GetRetryPolicy, ReadChunk, Sleep, StreamOperation
from deltaci.client.errors import ApiError, Unreachable
from deltaci.client.operations import SILENCE_SECONDS, ask, opened
from deltaci.client.retry import Patience, RetryDelays

FOLLOW_SECONDS: Final = 25  # Of one request: less than what a proxy takes for silence, and we for a broken line.
ASK_AGAIN_SECONDS: Final = 0.5  # For what no stream tells: whether somebody has taken the job by now.
NOTHING_MORE: Final = frozenset({"not_found", "bad_range"})  # Nothing was said yet, or nothing since.


class LogPart(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a job's log, written under one lease of one attempt."""

    attempt: int
    lease: int
    data: bytes


class _LogPosition(msgspec.Struct, kw_only=True):
    """The attempt, the lease and the byte up to which the log was read."""

    attempt: int
    lease: int
    offset: int = 0


def follow_log(run_id: str, job: str, index: int = 0) -> StreamOperation[LogPart]:
    """Yield the log of a job's last attempt as it is written, then of later attempts, until the job is over.

    With an `index`, only of that attempt. Each lease has a log of its own: a worker that takes a job over begins a new
    one.
    """
    patience: Patience = yield GetRetryPolicy()
    waits = RetryDelays(patience, patience.lost_seconds)
    seen = yield from ask(calls.job(run_id, job))
    place = _begin(seen, index)
    while True:
        # What was over before this reading says nothing more, so the reading is the last one of it.
        is_closed = _is_closed(seen, place)
        before = place.offset
        try:
            if place.lease:
                yield from _read(run_id, job, place, waits, follow_seconds=0 if is_closed else FOLLOW_SECONDS)
            if not (is_closed and _moved_on(seen, place, is_single=bool(index))):
                if is_closed and (index or seen.completed_at is not None):
                    return
                if place.offset == before:
                    yield Sleep(ASK_AGAIN_SECONDS)
            seen = yield from ask(calls.job(run_id, job))
        except Unreachable as error:
            yield Sleep(waits.after(error))
        except ApiError as error:
            if not error.is_passing:
                raise
            yield Sleep(waits.after(error))


def _read(
    run_id: str, job: str, place: _LogPosition, waits: RetryDelays, *, follow_seconds: int
) -> StreamOperation[LogPart]:
    call = calls.log_stream(
        run_id, job, place.attempt, lease=place.lease, start=place.offset, follow_seconds=follow_seconds
    )
    try:
        yield from opened(call, SILENCE_SECONDS)
    except ApiError as error:
        if error.code in NOTHING_MORE:
            return
        raise
    while (chunk := (yield ReadChunk())) is not None:
        waits.reset()
        if chunk:
            place.offset += len(chunk)
            yield EmitItem(LogPart(attempt=place.attempt, lease=place.lease, data=chunk))


def _begin(job: api.Job, index: int) -> _LogPosition:
    index = index or max((each.index for each in job.tries), default=1)
    return _LogPosition(attempt=index, lease=_leases(job, index))


def _leases(job: api.Job, index: int) -> int:
    return next((each.lease for each in job.tries if each.index == index), 0)


def _is_closed(job: api.Job, place: _LogPosition) -> bool:
    """Return whether nothing more can be appended to this log."""
    last = max((each.index for each in job.tries), default=0)
    is_next_awaited = job.completed_at is not None or job.next_run_at is not None
    return is_next_awaited or last > place.attempt or _leases(job, place.attempt) > place.lease


def _moved_on(job: api.Job, place: _LogPosition, *, is_single: bool) -> bool:
    """Move the position to the next lease or attempt. Return False if there is none."""
    if _leases(job, place.attempt) > place.lease:
        place.lease += 1
    elif not is_single and any(each.index > place.attempt for each in job.tries):
        place.attempt += 1
        place.lease = min(1, _leases(job, place.attempt))
    else:
        return False
    place.offset = 0
    return True
