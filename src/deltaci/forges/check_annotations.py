"""Places in files that a job complained about, found in its log and in its test reports: for the forge to show there.

A job may write what it likes, so everything is bounded: how much of a log is read, how long a line may be, how many
notes are taken. A path that leads out of the repository is none of its files.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, Final, Literal

from deltaci.core.text import plain_line
from deltaci.forges.status_state import Note

MAX_NOTES: Final = 50
MAX_LINE: Final = 2000
MAX_MESSAGE: Final = 1000
MAX_PATH: Final = 500
MAX_LINE_NUMBER: Final = 10_000_000

Level = Literal["failure", "warning", "notice"]
_LEVELS: Final[dict[str, Level]] = {"error": "failure", "warning": "warning", "notice": "notice"}
# `::error file=src/a.py,line=3,col=5,title=Oh::it is wrong`
_COMMAND: Final = re.compile(r"^::(error|warning|notice)(?: ([^:]*(?::(?!:)[^:]*)*))?::(.*)$")
# `src/a.c:3:5: error: it is wrong`, `src/a.ts(3,5): error TS2304: …`; a test's `tests/test_a.py:12: AssertionError`
_COMPILER: Final = re.compile(r"^([^\s:()][^:()]*):(\d{1,8})(?::(\d{1,8}))?: (?:fatal )?(error|warning)\b:?\s*(.*)$")
_PARENTHESES: Final = re.compile(r"^([^\s:()][^:()]*)\((\d{1,8})(?:,(\d{1,8}))?\): (error|warning)\b:?\s*(.*)$")
_PLACE: Final = re.compile(r"(?<![\w./-])([\w.-][\w./-]*\.\w{1,10}):(\d{1,8})\b")
_ESCAPES: Final = (("%0D", "\r"), ("%0A", "\n"), ("%3A", ":"), ("%2C", ","), ("%25", "%"))


def from_log(text: str) -> Iterator[Note]:
    """What is said in a log about lines of files."""
    for line in text.splitlines():
        found = _note(plain_line(line, MAX_LINE)) if ":" in line else None
        if found is not None:
            yield found


def from_tests(failures: Iterable[Any]) -> Iterator[Note]:
    """Tests that failed, where their message names a line of a file."""
    for each in failures:
        if not isinstance(each, dict):
            continue
        name, message = str(each.get("name", "")), str(each.get("message", ""))
        found = _PLACE.search(message) or _PLACE.search(name)
        if found is not None and (path := _path(found[1])) and (line := _number(found[2])):
            yield Note(
                path=path, line=line, message=plain_line(message or name, MAX_MESSAGE), title=plain_line(name, 200)
            )


def few(notes: Iterable[Note], most: int = MAX_NOTES) -> tuple[Note, ...]:
    """The first ones of them, each place and message once; failures come before anything else."""
    found: dict[tuple[str, int, str], Note] = {}
    for note in notes:
        found.setdefault((note.path, note.line, note.message), note)
        if len(found) >= 20 * most:
            break
    order = ("failure", "warning", "notice")
    return tuple(sorted(found.values(), key=lambda each: order.index(each.level))[:most])


def _note(line: str) -> Note | None:
    if line.startswith("::"):
        return _command(line)
    found = _COMPILER.match(line) or _PARENTHESES.match(line)
    if found is None:
        return None
    path, number = _path(found[1]), _number(found[2])
    if not path or not number:
        return None
    message = plain_line(found[5] or line, MAX_MESSAGE)
    return Note(path=path, line=number, column=_number(found[3] or ""), message=message, level=_LEVELS[found[4]])


def _command(line: str) -> Note | None:
    found = _COMMAND.match(line)
    if found is None:
        return None
    said = dict(part.strip().split("=", 1) for part in (found[2] or "").split(",") if "=" in part)
    path = _path(_unescaped(said.get("file", "")))
    if not path:
        return None
    return Note(
        path=path,
        line=_number(said.get("line", "1")) or 1,
        column=_number(said.get("col", "")),
        message=plain_line(_unescaped(found[3]), MAX_MESSAGE) or "no message",
        title=plain_line(_unescaped(said.get("title", "")), 200),
        level=_LEVELS[found[1]],
    )


def _unescaped(text: str) -> str:
    for written, meant in _ESCAPES:
        text = text.replace(written, meant)
    return text


def _path(text: str) -> str:
    """A path inside of the repository; empty: it is none."""
    path = text.strip().replace("\\", "/").removeprefix("./")
    parts = path.split("/")
    is_outside = path.startswith("/") or "://" in path or ".." in parts or "" in parts
    if is_outside or len(path) > MAX_PATH or not any(map(str.isalpha, path)):
        return ""
    return path


def _number(text: str) -> int:
    text = text.strip()
    if not (text.isascii() and text.isdecimal()) or len(text) > 8:
        return 0
    return min(int(text), MAX_LINE_NUMBER)
