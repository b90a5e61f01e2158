"""What reading a file comes to: the pipeline or its problems, and where everything stands."""

from __future__ import annotations

import msgspec

from deltaci.pipeline import model
from deltaci.pipeline.expressions import ExpressionProblem
from deltaci.pipeline.parse.problems import Place, Problem, inside

Path = tuple[str | int, ...]


class Expression(msgspec.Struct, frozen=True, kw_only=True):
    """A text that is evaluated later: all of it (a condition), or what is inside `${{ … }}`."""

    path: Path
    text: str
    at: Place
    is_condition: bool = False


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """What a file says, unless it has problems; warnings alone do not stand in its way."""

    file: str
    pipeline: model.Pipeline | None
    problems: tuple[Problem, ...] = ()
    expressions: tuple[Expression, ...] = ()
    places: dict[Path, Place] = {}
    source: str = ""  # the text itself, to find places inside of it

    def place(self, *path: str | int) -> Place:
        """Where something stands: `place("jobs", "test", "steps", 0)`. Of what was not written: what holds it."""
        while path not in self.places and path:
            path = path[:-1]
        return self.places.get(path, Place())


def told(source: str, at: Place, text: str, mistake: ExpressionProblem) -> tuple[Place, str, str, str]:
    """A mistake of an expression as a problem of its file: place, what was found, what is expected, nearest word."""
    place = inside(source, at, text, mistake.column - 1)
    return place, mistake.found, f"expected {mistake.expected}", mistake.nearest.strip("'")
