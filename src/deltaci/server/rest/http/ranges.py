"""Which bytes of a file were asked for, as RFC 9110 has it: one range, or else all of it."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from deltaci.core.errors import Refused

MAX_DIGITS: Final = 18
_RANGE: Final = re.compile(r"bytes=[ \t]*([0-9]*)-([0-9]*)[ \t]*", re.IGNORECASE)


class BadRange(Refused):
    """There is no such byte. Who asked is told how many there are."""

    def __init__(self, size: int) -> None:
        super().__init__("bad_range", f"there are {size} bytes; ask for some of them")
        self.size = size


class Bytes(msgspec.Struct, frozen=True):
    """From `start` to before `stop`, of `size`."""

    start: int
    stop: int
    size: int
    is_part: bool

    @property
    def status(self) -> int:
        """What the answer is sent with."""
        return 206 if self.is_part else 200

    @property
    def headers(self) -> dict[str, str]:
        """What the answer says about it."""
        told = {"Accept-Ranges": "bytes", "Content-Length": str(self.stop - self.start)}
        if self.is_part:
            told["Content-Range"] = f"bytes {self.start}-{self.stop - 1}/{self.size}"
        return told


def chosen(header: str, size: int) -> Bytes:
    """The range that the header asks for. All of it, if that is none, or several; refused if no byte is in it."""
    whole = Bytes(0, size, size, False)
    found = _RANGE.fullmatch(header)
    if found is None or not (found[1] or found[2]):
        return whole
    if not found[1]:
        length = _number(found[2])
        if not length:
            raise BadRange(size)
        return Bytes(max(0, size - length), size, size, True) if size else whole
    first, last = _number(found[1]), _number(found[2]) if found[2] else size
    if found[2] and last < first:
        return whole
    if first >= size:
        raise BadRange(size)
    return Bytes(first, min(last + 1, size), size, True)


def first_byte(header: str, size: int) -> int:
    """Where to begin, for one who waits for more: that may be the byte that comes next."""
    found = _RANGE.fullmatch(header)
    if found is not None and found[1] and not found[2] and _number(found[1]) == size:
        return size
    return chosen(header, size).start


def _number(digits: str) -> int:
    """More digits than any file has bytes are as good as infinite."""
    digits = digits.lstrip("0")
    return int(digits or "0") if len(digits) <= MAX_DIGITS else 10**MAX_DIGITS
