"""How large an expression may be, and how much work it may cause. Whoever writes one is not trusted."""

from __future__ import annotations

from typing import Final

from deltaci.pipeline.expressions.errors import FailedExpression, Mistake

MAX_LENGTH: Final = 21_000  # characters of one expression, as on GitHub
MAX_DEPTH: Final = 50  # expressions within expressions, as on GitHub
MAX_ARGUMENTS: Final = 255  # of one function, as on GitHub
MAX_TEMPLATE: Final = 1_048_576  # characters of a text with expressions in it
MAX_EXPRESSIONS: Final = 1_000  # in one text
MAX_TEXT: Final = 1_048_576  # characters that one evaluation may give back as a text
MAX_VALUE_DEPTH: Final = 100  # lists and objects within each other
MAX_STEPS: Final = 100_000  # expressions evaluated and items looked at
MAX_WORK: Final = 4_194_304  # characters compared or made


class Budget:
    """What one evaluation may still do. The counts are of work, not of time, so every machine refuses the same.

    What is done counts for `whole` as well, if there is one: what many evaluations may do together.
    """

    def __init__(self, steps: int = MAX_STEPS, characters: int = MAX_WORK, whole: Budget | None = None) -> None:
        self._limits = (steps, characters)
        self._steps = steps
        self._characters = characters
        self._whole = whole

    def step(self, column: int, count: int = 1) -> None:
        """Count expressions that are evaluated, or items that are looked at."""
        if self._whole is not None:
            self._whole.step(column, count)
        self._steps -= count
        if self._steps < 0:
            self._steps = -1
            raise FailedExpression(
                Mistake(column, f"more than {self._limits[0]} steps", "an expression that looks at fewer items")
            )

    def text(self, column: int, count: int) -> None:
        """Count characters before they are compared or made."""
        if self._whole is not None:
            self._whole.text(column, count)
        self._characters -= count
        if self._characters < 0:
            self._characters = -1
            raise FailedExpression(
                Mistake(column, f"more than {self._limits[1]} characters of work", "an expression about shorter texts")
            )


def check_text(column: int, length: int) -> None:
    """Refuse a text before it is made, if it would be too long."""
    if length > MAX_TEXT:
        raise FailedExpression(
            Mistake(column, f"a result of {length} characters", f"at most {MAX_TEXT}; take only what is needed")
        )
