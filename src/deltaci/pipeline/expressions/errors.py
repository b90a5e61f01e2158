"""Errors of expressions. Each has a column, the unexpected text, the expected alternatives and a suggested word."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from deltaci.core.errors import Refused

MAX_QUOTED_LENGTH: Final = 60  # characters of quoted input in a message


class ExpressionProblem(Struct, frozen=True):
    """A problem of an expression: its column (from 1), the unexpected text, and the expected and suggested ones."""

    column: int
    found: str
    expected: str
    nearest: str = ""

    def __str__(self) -> str:
        hint = f"; did you mean {self.nearest}?" if self.nearest else ""
        return f"column {self.column}: found {self.found}, expected {self.expected}{hint}"

    def shifted(self, characters: int) -> ExpressionProblem:
        """Return a copy with the column increased, for an expression that begins after so many characters of a text."""
        return ExpressionProblem(self.column + characters, self.found, self.expected, self.nearest)


class ExpressionError(Refused):
    """An expression is invalid or cannot be evaluated. The content of an expression raises no other exception."""

    def __init__(self, problem: ExpressionProblem) -> None:
        super().__init__("bad_spec", str(problem))
        self.problem = problem


class ExpressionSyntaxError(ExpressionError):
    """The text is not a valid expression. Detected when the file is read."""

    def shifted(self, characters: int) -> ExpressionSyntaxError:
        """Return a copy with the column increased, for an expression that begins after so many characters of a text."""
        return ExpressionSyntaxError(self.problem.shifted(characters))


class EvaluationError(ExpressionError):
    """The expression has no value with the given contexts. Detected when it is evaluated."""


def quote(text: str) -> str:
    """Return text in single quotes for a message, shortened, with unprintable characters replaced."""
    shortened = text if len(text) <= MAX_QUOTED_LENGTH else text[: MAX_QUOTED_LENGTH - 1] + "…"
    return "'" + "".join(character if character.isprintable() else "�" for character in shortened) + "'"


def line_and_column(text: str, column: int) -> tuple[int, int]:
    """Convert a column that counts through all lines of a text to a line and a column on that line, both from 1."""
    text_before = text[: column - 1]
    return text_before.count("\n") + 1, len(text_before) - (text_before.rfind("\n") + 1) + 1
