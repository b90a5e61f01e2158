"""Interpolate texts with `${{ … }}` whose values must be known when a run is planned.

A value that is not known yet is reported as a problem at its position in the file.
"""

from __future__ import annotations

from typing import Final

from deltaci.pipeline.expressions import (
    Contexts,
    Expression,
    ExpressionError,
    ExpressionProblem,
    ResidualText,
    Resolved,
    Template,
    Value,
    interpolate,
    parse_template,
    reduce_template,
)
from deltaci.pipeline.expressions.limits import Budget
from deltaci.pipeline.expressions.references import ContextReference, context_references
from deltaci.pipeline.expressions.templates import OPEN, parse_bare_condition
from deltaci.pipeline.expressions.values import to_number, to_text
from deltaci.pipeline.parse.parse_result import ParseResult, Path, expression_problem
from deltaci.pipeline.parse.problems import ProblemList, position_within, quote

MAX_STEPS: Final = 1_000_000  # of all expressions of a file together
MAX_CHARACTERS: Final = 32 * 1024 * 1024
MAX_NAMED: Final = 3  # unknown references named in one message
KNOWN_CONTEXTS: Final = "a context that is known when planning: github, inputs, vars, strategy or matrix"


class Interpolator:
    """Evaluates the texts of one file within a shared budget, and collects the problems.

    Parsed templates and conditions are cached by their text, because the jobs of a matrix repeat them. In all methods,
    `path` is the path of a value in the file and `original` its value there.
    """

    def __init__(self, parsed: ParseResult) -> None:
        self._parsed = parsed
        self.problems = ProblemList(parsed.file)
        self.budget = Budget(MAX_STEPS, MAX_CHARACTERS)
        self._references_by_text: dict[str, tuple[ContextReference, ...]] = {}
        self._templates_by_text: dict[str, Template] = {}
        self._conditions_by_text: dict[str, Expression | None] = {}

    def report(
        self, path: Path, found: str, expected: str = "", nearest: str = "", *, is_warning: bool = False
    ) -> None:
        """Add a problem at the position of the value at a path of the file."""
        self.problems.add(self._parsed.position(*path), found, expected, nearest, is_warning=is_warning)

    def report_expression(self, path: Path, text: str, problem: ExpressionProblem) -> None:
        """Add a problem of an expression within `text`, the value at this path of the file."""
        self.problems.add(*expression_problem(self._parsed.source, self._parsed.position(*path), text, problem))

    def resolve(self, path: Path, original: object, contexts: Contexts) -> Resolved | None:
        """Return the value of a field with its expressions evaluated, converted to text unless it is one expression.

        Report an invalid expression, and a value that is not known yet, and return None.
        """
        if not isinstance(original, str) or OPEN not in original:
            return Resolved(original)  # type: ignore[arg-type]  # A scalar of the model.
        try:
            if original not in self._templates_by_text:
                self._templates_by_text[original] = parse_template(original)
            reduced = reduce_template(self._templates_by_text[original], contexts, shared_budget=self.budget)
            if isinstance(reduced, Resolved):
                return reduced
            unknown_references = self._unknown_references(reduced, contexts)
            if not unknown_references:
                # All references are known, so evaluation fails; evaluating again raises the error with the reason.
                return Resolved(interpolate(original, contexts, shared_budget=self.budget))
        except ExpressionError as error:
            self.report_expression(path, original, error.problem)
            return None
        self.problems.add(
            position_within(self._parsed.source, self._parsed.position(*path), original, original.index(OPEN)),
            f"{', '.join(unknown_references[:MAX_NAMED])}, which is not known when planning",
            f"expected {KNOWN_CONTEXTS}",
        )
        return None

    def value(self, path: Path, original: object, contexts: Contexts) -> Value:
        """Like `resolve`, but return the value itself, or None after reporting a problem."""
        resolved = self.resolve(path, original, contexts)
        return resolved.value if resolved is not None else None

    def _unknown_references(self, remaining: ResidualText, contexts: Contexts) -> list[str]:
        """Return the references of a reduced text to contexts that are not known, e.g. `needs.build.result`."""
        references = (
            reference
            for expression in parse_template(remaining.text).expressions
            for reference in context_references(expression)
        )
        return list(
            dict.fromkeys(
                ".".join((reference.context, *reference.keys))
                for reference in references
                if reference.context not in contexts
            )
        )

    def text(self, path: Path, original: object, contexts: Contexts) -> str:
        """Like `value`, with the result converted to text."""
        return to_text(self.value(path, original, contexts))

    def boolean(self, path: Path, original: object, contexts: Contexts) -> bool:
        """Return the value as a boolean; an empty text is False. Report any other value and return False."""
        resolved = self.resolve(path, original, contexts)
        if resolved is None or isinstance(resolved.value, bool):
            return bool(resolved and resolved.value)
        text = to_text(resolved.value)
        if text not in ("", "false", "true"):
            self.report(path, f"{quote(text)} as {quote(str(path[-1]))}", "expected true or false")
        return text == "true"

    def number(self, path: Path, original: object, contexts: Contexts, *, maximum: float) -> float:
        """Return the value as a number above 0 and up to `maximum`. Report any other value and return 1."""
        resolved = self.resolve(path, original, contexts)
        if resolved is None:
            return 1
        number = to_number(resolved.value)
        if 0 < number <= maximum and not isinstance(resolved.value, bool):
            return number
        expected = f"expected a number above 0 and up to {maximum:,}"
        self.report(path, f"{quote(to_text(resolved.value))} as {quote(str(path[-1]))}", expected)
        return 1

    def condition(self, original: str | None) -> Expression | None:
        """Return the parsed expression of an `if`, or None if it is empty. Raise `ExpressionError` if it is invalid."""
        condition_text = original or ""
        if condition_text not in self._conditions_by_text:
            self._conditions_by_text[condition_text] = parse_bare_condition(condition_text)
        return self._conditions_by_text[condition_text]

    def references(self, path: Path, text: str) -> tuple[ContextReference, ...]:
        """Return all context references of the expressions in a text.

        Report a text that cannot be parsed, and return none.
        """
        if OPEN not in text:
            return ()
        if text not in self._references_by_text:
            try:
                self._references_by_text[text] = tuple(
                    reference
                    for expression in parse_template(text).expressions
                    for reference in context_references(expression)
                )
            except ExpressionError as error:
                self.report_expression(path, text, error.problem)
                self._references_by_text[text] = ()
        return self._references_by_text[text]
