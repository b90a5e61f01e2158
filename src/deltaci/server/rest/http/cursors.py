"""Cursors of paginated lists: the position at which a page ended, as opaque URL-safe text."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode

from deltaci.core.errors import Refused
from deltaci.storage.port import ListPosition


def encode_position(position: ListPosition | None) -> str | None:
    """Return the cursor of a position in a list of records, or None if there is no next page."""
    return encode_cursor(f"{position.created_at} {position.id}") if position is not None else None


def decode_position(cursor: str) -> ListPosition | None:
    """Return the position of a cursor, or None for an empty cursor. Raise Refused if it is malformed."""
    if not cursor:
        return None
    created_at, _, record_id = decode_cursor(cursor).partition(" ")
    if not (created_at.isascii() and created_at.isdecimal()) or len(created_at) > 18 or not record_id:
        raise _invalid_cursor(cursor)
    return ListPosition(int(created_at), record_id)


def encode_cursor(cursor_text: str) -> str:
    """Return a cursor that contains this text."""
    return urlsafe_b64encode(cursor_text.encode()).decode().rstrip("=")


def decode_cursor(cursor: str) -> str:
    """Return the text in a cursor. Raise Refused if it is malformed."""
    try:
        cursor_text = urlsafe_b64decode(cursor.encode("ascii") + b"==").decode()
    except ValueError:
        raise _invalid_cursor(cursor) from None
    if not cursor_text or encode_cursor(cursor_text) != cursor:
        raise _invalid_cursor(cursor)
    return cursor_text


def _invalid_cursor(cursor: str) -> Refused:
    return Refused("bad_request", f"{cursor[:80]!r} is no cursor of this list; use `next` of the page before, as it is")
