"""Texts with `${{ … }}` that must be known when a run is planned; what cannot be is a problem at its very place."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Final

from deltaci.pipeline.expressions import (
    Contexts,
    ExpressionRefused,
    Known,
    Mistake,
    RemainingText,
    Value,
    interpolate,
    read,
    reduce_text,
)
from deltaci.pipeline.expressions.mentions import Mention, mentions
from deltaci.pipeline.expressions.texts import OPEN
from deltaci.pipeline.expressions.values import text as as_text
from deltaci.pipeline.found import Found, Path, told
from deltaci.pipeline.problems import Problems, inside, shown

MAX_NAMED: Final = 3  # of what is not known, in one message
LATER: Final = "what is known when planning: github, inputs, vars, strategy or matrix"


class Filling:
    """Fills in the texts of one file, and keeps what is wrong with them."""

    def __init__(self, found: Found) -> None:
        self._found = found
        self.problems = Problems(found.file)

    def refuse(
        self, path: Path, found: str, expected: str = "", nearest: str = "", *, is_warning: bool = False
    ) -> None:
        """Something is wrong with what stands there."""
        self.problems.add(self._found.place(*path), found, expected, nearest, is_warning=is_warning)

    def refuse_expression(self, path: Path, text: str, mistake: Mistake) -> None:
        """The same, of a part of a text."""
        self.problems.add(*told(self._found.source, self._found.place(*path), text, mistake))

    def value(self, path: Path, written: object, known: Contexts) -> Value:
        """What a value will be. What cannot be known yet, or has no value, is told and counts as nothing."""
        if not isinstance(written, str):
            return written  # type: ignore[return-value]  # A scalar of the model.
        if OPEN not in written:
            return written
        try:
            reduced = reduce_text(written, known)
            if isinstance(reduced, Known):
                return reduced.value
            unknown = self._unknown(reduced, known)
            if not unknown:
                return interpolate(written, known)  # It fails; this says why.
        except ExpressionRefused as refused:
            self.refuse_expression(path, written, refused.mistake)
            return None
        self.problems.add(
            inside(self._found.source, self._found.place(*path), written, written.index(OPEN)),
            f"{', '.join(unknown[:MAX_NAMED])}, which cannot be known when planning",
            f"expected {LATER}",
        )
        return None

    def _unknown(self, remaining: RemainingText, known: Contexts) -> list[str]:
        found = (mention for expression in read(remaining.text).expressions for mention in mentions(expression))
        return list(dict.fromkeys(".".join((each.context, *each.keys)) for each in found if each.context not in known))

    def text(self, path: Path, written: object, known: Contexts) -> str:
        """The same as a text."""
        return as_text(self.value(path, written, known))

    def truth(self, path: Path, written: object, known: Contexts) -> bool:
        """The same as true or false."""
        value = self.value(path, written, known)
        if value is None or isinstance(value, bool):
            return bool(value)
        if value in ("true", "false"):
            return value == "true"
        self.refuse(path, f"{shown(as_text(value))} as {shown(str(path[-1]))}", "expected true or false")
        return False

    def number(self, path: Path, written: object, known: Contexts, *, most: float) -> float:
        """The same as a number above 0."""
        value = self.value(path, written, known)
        if value is None:
            return 1
        try:
            number = float(as_text(value))
        except ValueError:
            number = 0
        if 0 < number <= most and not isinstance(value, bool):
            return number
        wanted = f"expected a number above 0 and up to {most:,}"
        self.refuse(path, f"{shown(as_text(value))} as {shown(str(path[-1]))}", wanted)
        return 1


@lru_cache(maxsize=8192)
def mentioned(text: str) -> tuple[Mention, ...]:
    """Everything that the expressions of a text mention. Refuses what is no expression."""
    return tuple(_mentioned(text)) if OPEN in text else ()


def _mentioned(text: str) -> Iterator[Mention]:
    for expression in read(text).expressions:
        yield from mentions(expression)
