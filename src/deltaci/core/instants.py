"""Instants: whole microseconds since the Unix epoch, by the clock of the store."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

SECOND = 1_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def rfc3339(at: int) -> str:
    """Return the instant as RFC 3339 text, always in UTC with six decimals, so that texts sort like times."""
    return (_EPOCH + timedelta(microseconds=at)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def from_datetime(moment: datetime) -> int:
    """Return a timezone-aware datetime as microseconds since the Unix epoch."""
    return (moment - _EPOCH) // _MICROSECOND
