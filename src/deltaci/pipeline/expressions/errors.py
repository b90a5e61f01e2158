"""How an expression is refused: where, what was found, what was expected, and the word that was probably meant."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from deltaci.core.errors import Refused

MAX_SHOWN: Final = 60  # characters of somebody else's text in a message


class Mistake(Struct, frozen=True):
    """One thing that is wrong with an expression. Columns count characters from 1."""

    column: int
    found: str
    expected: str
    nearest: str = ""

    def __str__(self) -> str:
        hint = f"; did you mean {self.nearest}?" if self.nearest else ""
        return f"column {self.column}: found {self.found}, expected {self.expected}{hint}"

    def moved(self, by: int) -> Mistake:
        """The same mistake, in a text that has `by` more characters before the expression."""
        return Mistake(self.column + by, self.found, self.expected, self.nearest)


class ExpressionRefused(Refused):
    """An expression that cannot be used. Nothing else is ever raised because of what an expression says."""

    def __init__(self, mistake: Mistake) -> None:
        super().__init__("bad_spec", str(mistake))
        self.mistake = mistake


class BadExpression(ExpressionRefused):
    """The text is no expression: it can be said when the file is read."""

    def moved(self, by: int) -> BadExpression:
        """The same refusal, in a text that has `by` more characters before the expression."""
        return BadExpression(self.mistake.moved(by))


class FailedExpression(ExpressionRefused):
    """The expression has no value with these contexts: it can only be said when it is evaluated."""


def shown(text: str) -> str:
    """Somebody else's text in quotes, on one line and short enough for a message."""
    cut = text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 1] + "…"
    return "'" + "".join(c if c.isprintable() else "�" for c in cut) + "'"


def line_and_column(text: str, column: int) -> tuple[int, int]:
    """The line of a column that counts through a text of several lines, and the column on that line, both from 1."""
    before = text[: column - 1]
    return before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1
