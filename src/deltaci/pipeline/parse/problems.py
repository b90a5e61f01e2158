"""Problems of a pipeline file: the position, the unexpected text, the expected one, and a suggested word."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

MAX_PROBLEMS: Final = 100  # per file
MAX_QUOTED_CHARS: Final = 40
MAX_MESSAGE_CHARS: Final = 600
MAX_LINE_CHARS: Final = 160


class Position(msgspec.Struct, frozen=True, order=True):
    """A position in a file. Lines and columns start at 1, as in editors."""

    line: int = 1
    column: int = 1


class Problem(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """A problem of a file: `found` describes the unexpected text, `nearest` is a suggested word.

    A warning does not make the file invalid.
    """

    file: str
    line: int
    column: int
    found: str
    expected: str = ""
    nearest: str = ""
    is_warning: bool = False

    def __str__(self) -> str:
        """Return `FILE:LINE:COLUMN: FOUND; EXPECTED; did you mean 'NEAREST'?`, without the parts that are empty.

        A warning has `warning: ` before FOUND.
        """
        prefix = "warning: " if self.is_warning else ""
        message_parts = [
            f"{prefix}{self.found}",
            self.expected,
            f"did you mean '{self.nearest}'?" if self.nearest else "",
        ]
        return f"{self.file}:{self.line}:{self.column}: " + "; ".join(part for part in message_parts if part)


class ProblemList:
    """Collects the problems of one file, and drops duplicates, which YAML aliases cause."""

    def __init__(self, file: str) -> None:
        self.file = file
        self._problems: dict[Problem, None] = {}

    def add(
        self, position: Position, found: str, expected: str = "", nearest: str = "", *, is_warning: bool = False
    ) -> None:
        """Add a problem, unless the list has `MAX_PROBLEMS`. If these are all warnings, still add the first error."""
        if self.is_full or (is_warning and len(self._problems) >= MAX_PROBLEMS):
            return
        problem = Problem(
            file=self.file,
            line=position.line,
            column=position.column,
            found=_printable(found),
            expected=_printable(expected),
            nearest=_printable(nearest),
            is_warning=is_warning,
        )
        self._problems[problem] = None

    def __len__(self) -> int:
        return len(self._problems)

    @property
    def is_full(self) -> bool:
        """Whether all further problems will be dropped, so that callers can stop checking."""
        return len(self._problems) >= MAX_PROBLEMS and self.has_errors

    @property
    def has_errors(self) -> bool:
        """Whether any problem is an error, not a warning."""
        return any(not problem.is_warning for problem in self._problems)

    def in_order(self) -> tuple[Problem, ...]:
        """Return all problems, sorted by position."""
        return tuple(sorted(self._problems))


def format_with_source(problem: Problem, file_text: str) -> str:
    """Return the problem, followed by the line of the file at its position and a caret below the column."""
    source_lines = file_text.removeprefix("\ufeff").split("\n")
    if problem.line > len(source_lines):
        return str(problem)
    source_line = source_lines[problem.line - 1].rstrip("\r")
    # Of a very long line, only the part around the column is displayed.
    excerpt_start = max(0, problem.column - 1 - MAX_LINE_CHARS // 2)
    excerpt = "".join(
        char if char.isprintable() else " " for char in source_line[excerpt_start : excerpt_start + MAX_LINE_CHARS]
    )
    line_number = str(problem.line)
    caret = " " * (problem.column - 1 - excerpt_start) + "^"
    return f"{problem}\n  {line_number} | {excerpt}\n  {' ' * len(line_number)} | {caret}"


def position_within(file_text: str, position: Position, value_text: str, offset: int) -> Position:
    """Return the position in the file of the character at `offset` of `value_text`, a value that starts at `position`.

    Return `position` itself if the text differs from its source, as a quoted or folded value may.
    """
    source_lines = [source_line.rstrip("\r") for source_line in file_text.removeprefix("\ufeff").split("\n")]
    source_line = source_lines[position.line - 1] if position.line <= len(source_lines) else ""
    for quote_length in (0, 1):
        if source_line[position.column - 1 + quote_length :].startswith(value_text):
            return Position(position.line, position.column + quote_length + offset)
    line_index, text_column = value_text.count("\n", 0, offset), offset - (value_text.rfind("\n", 0, offset) + 1)
    text_line = value_text.split("\n")[line_index]
    is_literal_block = source_line[position.column - 1 :].startswith("|") and position.line + line_index < len(
        source_lines
    )
    if is_literal_block and source_lines[position.line + line_index].endswith(text_line):
        indentation = len(source_lines[position.line + line_index]) - len(text_line)
        return Position(position.line + line_index + 1, indentation + text_column + 1)
    return position


def _printable(text: str) -> str:
    """Return text without control characters, which a terminal would interpret, and of limited length."""
    return "".join(char if char.isprintable() else "·" for char in text[:MAX_MESSAGE_CHARS])


def quote(text: str) -> str:
    """Return a text for a message: in single quotes, without control characters, and shortened if it is long."""
    printable = "".join(char if char.isprintable() else "·" for char in text[: MAX_QUOTED_CHARS + 1])
    return f"'{printable}'" if len(printable) <= MAX_QUOTED_CHARS else f"'{printable[:MAX_QUOTED_CHARS]}…'"


def join_words(words: Iterable[str], conjunction: str = "or") -> str:
    """Join words for a message: `a, b or c`."""
    *first_words, last_word = [*words]
    return f"{', '.join(first_words)} {conjunction} {last_word}" if first_words else last_word


def select_errors(problems: Iterable[Problem]) -> tuple[Problem, ...]:
    """Return the problems that are not warnings: they prevent a plan."""
    return tuple(problem for problem in problems if not problem.is_warning)
