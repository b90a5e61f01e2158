"""What reading a file comes to: the pipeline or its problems, and where everything stands."""

from __future__ import annotations

import msgspec

from deltaci.pipeline import model
from deltaci.pipeline.expressions import ExpressionProblem
from deltaci.pipeline.parse.problems import Position, Problem, position_within

Path = tuple[str | int, ...]


class SourceExpression(msgspec.Struct, frozen=True, kw_only=True):
    """A text that is evaluated later: all of it (a condition), or what is inside `${{ … }}`."""

    path: Path
    text: str
    position: Position
    is_condition: bool = False


class ParseResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a file says, unless it has problems; warnings alone do not stand in its way."""

    file: str
    pipeline: model.Pipeline | None
    problems: tuple[Problem, ...] = ()
    expressions: tuple[SourceExpression, ...] = ()
    positions: dict[Path, Position] = {}
    source: str = ""  # the text itself, to find places inside of it

    def position(self, *path: str | int) -> Position:
        """Where something stands: `place("jobs", "test", "steps", 0)`. Of what was not written: what holds it."""
        while path not in self.positions and path:
            path = path[:-1]
        return self.positions.get(path, Position())


def expression_problem(
    source: str, at: Position, text: str, mistake: ExpressionProblem
) -> tuple[Position, str, str, str]:
    """A mistake of an expression as a problem of its file: place, what was found, what is expected, nearest word."""
    place = position_within(source, at, text, mistake.column - 1)
    return place, mistake.found, f"expected {mistake.expected}", mistake.nearest.strip("'")
