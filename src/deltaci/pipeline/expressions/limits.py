"""Limits on the size of expressions and on the work of evaluating them. Expressions are untrusted input."""

from __future__ import annotations

from typing import Final

from deltaci.pipeline.expressions.errors import EvaluationError, ExpressionProblem

MAX_LENGTH: Final = 21_000  # characters of one expression, as on GitHub
MAX_DEPTH: Final = 50  # expressions within expressions, as on GitHub
MAX_ARGUMENTS: Final = 255  # of one function, as on GitHub
MAX_TEMPLATE: Final = 1_048_576  # characters of a text that contains expressions
MAX_EXPRESSIONS: Final = 1_000  # in one text
MAX_TEXT: Final = 1_048_576  # characters of one result
MAX_VALUE_DEPTH: Final = 100  # nested arrays and objects
MAX_STEPS: Final = 100_000  # nodes evaluated and items visited in one evaluation
MAX_CHARACTERS: Final = 4_194_304  # characters compared or produced in one evaluation


class Budget:
    """The steps and characters that one evaluation may still use.

    Work is counted instead of time, so that every machine refuses the same expressions. It is also subtracted from
    `shared`, a budget for many evaluations together.
    """

    def __init__(
        self, max_steps: int = MAX_STEPS, max_characters: int = MAX_CHARACTERS, shared: Budget | None = None
    ) -> None:
        self._limits = (max_steps, max_characters)
        self._steps = max_steps
        self._characters = max_characters
        self._shared = shared

    def use_steps(self, column: int, step_count: int = 1) -> None:
        """Subtract evaluated nodes or visited items from the remaining steps.

        Raise EvaluationError if there are too few.
        """
        if self._shared is not None:
            self._shared.use_steps(column, step_count)
        self._steps -= step_count
        if self._steps < 0:
            self._steps = -1
            raise EvaluationError(
                ExpressionProblem(column, f"more than {self._limits[0]} steps", "an expression that visits fewer items")
            )

    def use_characters(self, column: int, character_count: int) -> None:
        """Subtract characters, before they are compared or produced. Raise EvaluationError if too few remain."""
        if self._shared is not None:
            self._shared.use_characters(column, character_count)
        self._characters -= character_count
        if self._characters < 0:
            self._characters = -1
            raise EvaluationError(
                ExpressionProblem(
                    column, f"more than {self._limits[1]} characters of work", "an expression about shorter texts"
                )
            )


def check_length(column: int, length: int) -> None:
    """Raise EvaluationError if a string of this length would be too long; call before building it."""
    if length > MAX_TEXT:
        raise EvaluationError(
            ExpressionProblem(
                column, f"a result of {length} characters", f"at most {MAX_TEXT}; take only what is needed"
            )
        )
