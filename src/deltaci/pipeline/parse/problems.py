"""What is wrong with a pipeline file: where, what was found, what is expected, and the nearest right word."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

MAX_PROBLEMS: Final = 100  # Of one file; whoever has more reads the first ones first.
MAX_SHOWN_CHARS: Final = 40
MAX_MESSAGE_CHARS: Final = 600
MAX_LINE_CHARS: Final = 160


class Position(msgspec.Struct, frozen=True, order=True):
    """Where something stands, as editors count: both from 1 on."""

    line: int = 1
    column: int = 1


class Problem(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """One thing that is wrong, as a person should read it. A warning is about what others may read differently."""

    file: str
    line: int
    column: int
    found: str
    expected: str = ""
    nearest: str = ""
    is_warning: bool = False

    def __str__(self) -> str:
        """`file:line:column: what was found; what is expected; did you mean 'x'?`"""
        kind = "warning: " if self.is_warning else ""
        parts = [f"{kind}{self.found}", self.expected, f"did you mean '{self.nearest}'?" if self.nearest else ""]
        return f"{self.file}:{self.line}:{self.column}: " + "; ".join(part for part in parts if part)


class ProblemList:
    """All problems of one file, while it is read. Each is kept once: what is used twice is not wrong twice."""

    def __init__(self, file: str) -> None:
        self.file = file
        self._found: dict[Problem, None] = {}

    def add(self, at: Position, found: str, expected: str = "", nearest: str = "", *, is_warning: bool = False) -> None:
        """Remember one."""
        if self.is_full or (is_warning and len(self._found) >= MAX_PROBLEMS):
            return
        problem = Problem(
            file=self.file,
            line=at.line,
            column=at.column,
            found=_safe(found),
            expected=_safe(expected),
            nearest=_safe(nearest),
            is_warning=is_warning,
        )
        self._found[problem] = None

    def __len__(self) -> int:
        return len(self._found)

    @property
    def is_full(self) -> bool:
        """Whether no more are kept: then nothing more need be worked out for them."""
        return len(self._found) >= MAX_PROBLEMS and self.has_errors

    @property
    def has_errors(self) -> bool:
        """Whether one of them keeps the file from being used."""
        return any(not problem.is_warning for problem in self._found)

    def in_order(self) -> tuple[Problem, ...]:
        """All of them, as they stand in the file."""
        return tuple(sorted(self._found))


def format_with_source(problem: Problem, text: str) -> str:
    """The problem, the line that it is about, and a caret below the place."""
    lines = text.removeprefix("\ufeff").split("\n")
    if problem.line > len(lines):
        return str(problem)
    line = lines[problem.line - 1].rstrip("\r")
    before = max(0, problem.column - 1 - MAX_LINE_CHARS // 2)  # Of a very long line only what is around the place.
    shown = "".join(char if char.isprintable() else " " for char in line[before : before + MAX_LINE_CHARS])
    number = str(problem.line)
    caret = " " * (problem.column - 1 - before) + "^"
    return f"{problem}\n  {number} | {shown}\n  {' ' * len(number)} | {caret}"


def position_within(source: str, at: Position, text: str, offset: int) -> Position:
    """Where a character of a text stands, if the text is in the source as it is; else where the text begins."""
    lines = [line.rstrip("\r") for line in source.removeprefix("\ufeff").split("\n")]
    line = lines[at.line - 1] if at.line <= len(lines) else ""
    for skipped in (0, 1):  # Without and with a quote.
        if line[at.column - 1 + skipped :].startswith(text):
            return Position(at.line, at.column + skipped + offset)
    number, column = text.count("\n", 0, offset), offset - (text.rfind("\n", 0, offset) + 1)
    wanted = text.split("\n")[number]
    is_literal = line[at.column - 1 :].startswith("|") and at.line + number < len(lines)
    if is_literal and lines[at.line + number].endswith(wanted):
        return Position(at.line + number + 1, len(lines[at.line + number]) - len(wanted) + column + 1)
    return at


def _safe(text: str) -> str:
    """Without anything that a terminal would obey: names in messages are from the file."""
    return "".join(char if char.isprintable() else "·" for char in text[:MAX_MESSAGE_CHARS])


def quote(text: str) -> str:
    """A text as part of a message: in quotes, on one line, and not too long."""
    plain = "".join(char if char.isprintable() else "·" for char in text[: MAX_SHOWN_CHARS + 1])
    return f"'{plain}'" if len(plain) <= MAX_SHOWN_CHARS else f"'{plain[:MAX_SHOWN_CHARS]}…'"


def join_words(words: Iterable[str], last: str = "or") -> str:
    """`a, b or c`."""
    *most, end = [*words]
    return f"{', '.join(most)} {last} {end}" if most else end
