"""Time as the core sees it: whole microseconds since the epoch, by the store's clock."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

SECOND = 1_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def rfc3339(at: int) -> str:
    """The instant as text, always UTC and always with six decimals, so that texts sort like times."""
    return (_EPOCH + timedelta(microseconds=at)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def from_datetime(moment: datetime) -> int:
    """The inverse of `rfc3339` for a parsed time, exact to the microsecond."""
    return (moment - _EPOCH) // _MICROSECOND
