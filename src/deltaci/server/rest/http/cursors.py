"""Where a page ended, as a text that only this server needs to understand."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode

from deltaci.core.errors import Refused
from deltaci.storage.port import ListPosition


def cursor(place: ListPosition | None) -> str | None:
    """The text for a place in a list."""
    return written(f"{place.created_at} {place.id}") if place is not None else None


def place(cursor: str) -> ListPosition | None:
    """The place that a cursor names; none for an empty one."""
    if not cursor:
        return None
    at, _, id = read(cursor).partition(" ")
    if not (at.isascii() and at.isdecimal()) or len(at) > 18 or not id:
        raise _bad(cursor)
    return ListPosition(int(at), id)


def written(text: str) -> str:
    """Any text as a cursor."""
    return urlsafe_b64encode(text.encode()).decode().rstrip("=")


def read(cursor: str) -> str:
    """The text that a cursor was made from."""
    try:
        text = urlsafe_b64decode(cursor.encode("ascii") + b"==").decode()
    except ValueError:
        raise _bad(cursor) from None
    if not text or written(text) != cursor:
        raise _bad(cursor)
    return text


def _bad(cursor: str) -> Refused:
    return Refused("bad_request", f"{cursor[:80]!r} is no cursor of this list; use `next` of the page before, as it is")
