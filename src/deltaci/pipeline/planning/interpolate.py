"""Texts with `${{ … }}` that must be known when a run is planned; what cannot be is a problem at its very place."""

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
MAX_WORK: Final = 32 * 1024 * 1024
MAX_NAMED: Final = 3  # of what is not known, in one message
LATER: Final = "what is known when planning: github, inputs, vars, strategy or matrix"


class Interpolator:
    """Fills in the texts of one file, and keeps what is wrong with them."""

    def __init__(self, found: ParseResult) -> None:
        self._found = found
        self.problems = ProblemList(found.file)
        self.budget = Budget(MAX_STEPS, MAX_WORK)
        self._mentions: dict[str, tuple[ContextReference, ...]] = {}
        self._templates: dict[str, Template] = {}
        self._conditions: dict[str, Expression | None] = {}

    def report(
        self, path: Path, found: str, expected: str = "", nearest: str = "", *, is_warning: bool = False
    ) -> None:
        """Something is wrong with what stands there."""
        self.problems.add(self._found.position(*path), found, expected, nearest, is_warning=is_warning)

    def report_expression(self, path: Path, text: str, mistake: ExpressionProblem) -> None:
        """The same, of a part of a text."""
        self.problems.add(*expression_problem(self._found.source, self._found.position(*path), text, mistake))

    def resolve(self, path: Path, written: object, known: Contexts) -> Resolved | None:
        """What a value will be; nothing, after it was told why that cannot be known."""
        if not isinstance(written, str) or OPEN not in written:
            return Resolved(written)  # type: ignore[arg-type]  # A scalar of the model.
        try:
            if written not in self._templates:
                self._templates[written] = parse_template(written)
            reduced = reduce_template(self._templates[written], known, shared_budget=self.budget)
            if isinstance(reduced, Resolved):
                return reduced
            unknown = self._unknown(reduced, known)
            if not unknown:
                return Resolved(interpolate(written, known, shared_budget=self.budget))  # It fails; this says why.
        except ExpressionError as refused:
            self.report_expression(path, written, refused.problem)
            return None
        self.problems.add(
            position_within(self._found.source, self._found.position(*path), written, written.index(OPEN)),
            f"{', '.join(unknown[:MAX_NAMED])}, which cannot be known when planning",
            f"expected {LATER}",
        )
        return None

    def value(self, path: Path, written: object, known: Contexts) -> Value:
        """The same; what cannot be known counts as nothing."""
        found = self.resolve(path, written, known)
        return found.value if found is not None else None

    def _unknown(self, remaining: ResidualText, known: Contexts) -> list[str]:
        found = (
            mention
            for expression in parse_template(remaining.text).expressions
            for mention in context_references(expression)
        )
        return list(dict.fromkeys(".".join((each.context, *each.keys)) for each in found if each.context not in known))

    def text(self, path: Path, written: object, known: Contexts) -> str:
        """The same as a text."""
        return to_text(self.value(path, written, known))

    def boolean(self, path: Path, written: object, known: Contexts) -> bool:
        """The same as true or false."""
        found = self.resolve(path, written, known)
        if found is None or isinstance(found.value, bool):
            return bool(found and found.value)
        text = to_text(found.value)
        if text not in ("", "false", "true"):
            self.report(path, f"{quote(text)} as {quote(str(path[-1]))}", "expected true or false")
        return text == "true"

    def number(self, path: Path, written: object, known: Contexts, *, most: float) -> float:
        """The same as a number above 0."""
        found = self.resolve(path, written, known)
        if found is None:
            return 1
        number = to_number(found.value)
        if 0 < number <= most and not isinstance(found.value, bool):
            return number
        wanted = f"expected a number above 0 and up to {most:,}"
        self.report(path, f"{quote(to_text(found.value))} as {quote(str(path[-1]))}", wanted)
        return 1

    def condition(self, written: str | None) -> Expression | None:
        """What an `if` says; nothing if it is empty. Raises ExpressionError."""
        text = written or ""
        if text not in self._conditions:
            self._conditions[text] = parse_bare_condition(text)
        return self._conditions[text]

    def references(self, path: Path, text: str) -> tuple[ContextReference, ...]:
        """Everything that the expressions of a text mention; of what is no expression nothing, after it was told."""
        if OPEN not in text:
            return ()
        if text not in self._mentions:
            try:
                self._mentions[text] = tuple(
                    mention
                    for expression in parse_template(text).expressions
                    for mention in context_references(expression)
                )
            except ExpressionError as refused:
                self.report_expression(path, text, refused.problem)
                self._mentions[text] = ()
        return self._mentions[text]
