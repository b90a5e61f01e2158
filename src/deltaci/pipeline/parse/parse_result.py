"""The result of parsing a file: the pipeline or its problems, and the position of each value."""

from __future__ import annotations

import msgspec

from deltaci.pipeline import model
from deltaci.pipeline.expressions import ExpressionProblem
from deltaci.pipeline.parse.problems import Position, Problem, position_within

Path = tuple[str | int, ...]


class SourceExpression(msgspec.Struct, frozen=True, kw_only=True):
    """A text of the file that is evaluated later: as a whole if it is a condition, else only inside `${{ … }}`."""

    path: Path
    text: str
    position: Position
    is_condition: bool = False


class ParseResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of parsing a pipeline file. `pipeline` is None if a problem is more than a warning."""

    file: str
    pipeline: model.Pipeline | None
    problems: tuple[Problem, ...] = ()
    expressions: tuple[SourceExpression, ...] = ()
    positions: dict[Path, Position] = {}
    source: str = ""  # the text of the file, to find positions within its values

    def position(self, *path: str | int) -> Position:
        """Return the position of the value at a path such as ("jobs", "test", "steps", 0), or its nearest ancestor."""
        while path not in self.positions and path:
            path = path[:-1]
        return self.positions.get(path, Position())


def expression_problem(
    file_text: str, position: Position, value_text: str, problem: ExpressionProblem
) -> tuple[Position, str, str, str]:
    """Return the arguments of `ProblemList.add` for a problem of an expression in the value at `position`."""
    problem_position = position_within(file_text, position, value_text, problem.column - 1)
    return problem_position, problem.found, f"expected {problem.expected}", problem.nearest.strip("'")
