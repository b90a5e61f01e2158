"""Range requests as in RFC 9110: a single range of bytes, else the whole file."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from deltaci.core.errors import Refused

MAX_DIGITS: Final = 18
_RANGE: Final = re.compile(r"bytes=[ \t]*([0-9]*)-([0-9]*)[ \t]*", re.IGNORECASE)


class BadRange(Refused):
    """The file of `size` bytes has no byte in the requested range."""

    def __init__(self, file_size: int) -> None:
        super().__init__(
            "bad_range", f"the range is outside the {file_size} bytes of the file; request bytes within it"
        )
        self.size = file_size


class ByteRange(msgspec.Struct, frozen=True):
    """The bytes from `start` up to but not including `stop`, of a file of `size` bytes.

    `is_part`: a range was requested.
    """

    start: int
    stop: int
    size: int
    is_part: bool

    @property
    def status(self) -> int:
        """Return the HTTP status of the response."""
        return 206 if self.is_part else 200

    @property
    def headers(self) -> dict[str, str]:
        """Return the headers of the response that describe the range."""
        headers = {"Accept-Ranges": "bytes", "Content-Length": str(self.stop - self.start)}
        if self.is_part:
            headers["Content-Range"] = f"bytes {self.start}-{self.stop - 1}/{self.size}"
        return headers


def requested_range(range_header: str, file_size: int) -> ByteRange:
    """Return the range in a Range header.

    Return the whole file for a malformed header or several ranges. Raise BadRange if the file has no byte in the range.
    """
    whole_file = ByteRange(0, file_size, file_size, False)
    range_match = _RANGE.fullmatch(range_header)
    if range_match is None or not (range_match[1] or range_match[2]):
        return whole_file
    if not range_match[1]:
        suffix_length = _number(range_match[2])
        if not suffix_length:
            raise BadRange(file_size)
        return ByteRange(max(0, file_size - suffix_length), file_size, file_size, True) if file_size else whole_file
    first_byte, last_byte = _number(range_match[1]), _number(range_match[2]) if range_match[2] else file_size
    if range_match[2] and last_byte < first_byte:
        return whole_file
    if first_byte >= file_size:
        raise BadRange(file_size)
    return ByteRange(first_byte, min(last_byte + 1, file_size), file_size, True)


def requested_start(range_header: str, file_size: int) -> int:
    """Return the first byte of the range in a Range header, for a file that still grows: its present end is allowed."""
    range_match = _RANGE.fullmatch(range_header)
    if range_match is not None and range_match[1] and not range_match[2] and _number(range_match[1]) == file_size:
        return file_size
    return requested_range(range_header, file_size).start


def _number(digits: str) -> int:
    """Return the digits as a number, or 10^18, which no size reaches, for a longer one."""
    digits = digits.lstrip("0")
    return int(digits or "0") if len(digits) <= MAX_DIGITS else 10**MAX_DIGITS
