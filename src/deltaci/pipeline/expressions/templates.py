"""Templates: texts that contain `${{ … }}`. Also conditions (`if:`), where `${{ }}` is optional."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final, TypeAlias

from msgspec import Struct

from deltaci.pipeline.expressions.check import check_expression
from deltaci.pipeline.expressions.errors import EvaluationError, ExpressionProblem, ExpressionSyntaxError, quote
from deltaci.pipeline.expressions.evaluator import Contexts, Evaluator, Functions, evaluate
from deltaci.pipeline.expressions.functions import STATUS_FUNCTIONS
from deltaci.pipeline.expressions.limits import MAX_EXPRESSIONS, MAX_TEMPLATE, Budget, check_length
from deltaci.pipeline.expressions.parser import check_depth, parse
from deltaci.pipeline.expressions.reducer import Reducer, Residual, Resolved, reduce_with
from deltaci.pipeline.expressions.tree import And, Call, Expression, Literal, function_names
from deltaci.pipeline.expressions.values import Value, is_truthy, to_text

OPEN: Final = "${{"
CLOSE: Final = "}}"
MAX_QUOTED: Final = 10_000  # characters of plain text per expression: quotes double, so half of MAX_LENGTH
_QUOTE_OR_CLOSE: Final = re.compile(r"'|\}\}")

TemplatePart: TypeAlias = str | Expression


class Template(Struct, frozen=True):
    """A parsed text: its plain parts and expressions, in order.

    Columns of expressions count from the start of the text.
    """

    parts: tuple[TemplatePart, ...]

    @property
    def single_expression(self) -> Expression | None:
        """The expression, if the text is a single `${{ … }}` and nothing else, else None.

        The value of such a text is that of the expression, not converted to a string.
        """
        return self.parts[0] if len(self.parts) == 1 and not isinstance(self.parts[0], str) else None

    @property
    def expressions(self) -> tuple[Expression, ...]:
        return tuple(part for part in self.parts if not isinstance(part, str))


class ResidualText(Struct, frozen=True):
    """The reduced form of a template: `${{ … }}` remains for expressions that depend on unknown contexts."""

    text: str


def parse_template(template: str) -> Template:
    """Parse a text that may contain `${{ … }}`.

    Raise ExpressionSyntaxError if an expression is invalid or unterminated.
    """
    if len(template) > MAX_TEMPLATE:
        raise ExpressionSyntaxError(
            ExpressionProblem(1, f"a text of {len(template)} characters", f"at most {MAX_TEMPLATE}")
        )
    parts: list[TemplatePart] = []
    plain_start = 0
    for start, expression_end in _expression_spans(template):
        if start > plain_start:
            parts.append(template[plain_start:start])
        expression_start = start + len(OPEN)
        if not template[expression_start:expression_end].strip():
            raise ExpressionSyntaxError(
                ExpressionProblem(expression_start + 1, "nothing", f"an expression between {OPEN} and {CLOSE}")
            )
        parts.append(parse(template[expression_start:expression_end], expression_start))
        plain_start = expression_end + len(CLOSE)
    if plain_start < len(template):
        parts.append(template[plain_start:])
    return Template(tuple(parts))


def _expression_spans(template: str) -> Iterator[tuple[int, int]]:
    """Yield the indices of each `${{` and of the `}}` that ends it. A `}}` within a string literal does not end it."""
    open_index = template.find(OPEN)
    for _ in range(MAX_EXPRESSIONS):
        if open_index < 0:
            return
        closing_index, in_string = -1, False
        for quote_or_close in _QUOTE_OR_CLOSE.finditer(template, open_index + len(OPEN)):
            if quote_or_close[0] == "'":
                in_string = not in_string
            elif not in_string:
                closing_index = quote_or_close.start()
                break
        if closing_index < 0:
            expected_end = "a single quote and then }}" if in_string else "}} at its end"
            raise ExpressionSyntaxError(ExpressionProblem(open_index + 1, quote(template[open_index:]), expected_end))
        yield open_index, closing_index
        open_index = template.find(OPEN, closing_index + len(CLOSE))
    if open_index >= 0:
        raise ExpressionSyntaxError(
            ExpressionProblem(open_index + 1, "one more expression", f"at most {MAX_EXPRESSIONS} in one text")
        )


def check_template(template: Template, contexts: Iterable[str], functions: Iterable[str]) -> list[ExpressionProblem]:
    """Return the problems of all expressions of a template; see `check_expression`."""
    context_names, available_functions = tuple(contexts), tuple(functions)
    return [
        problem
        for expression in template.expressions
        for problem in check_expression(expression, context_names, available_functions)
    ]


def interpolate(
    template: str | Template,
    contexts: Contexts,
    functions: Functions | None = None,
    shared_budget: Budget | None = None,
) -> Value:
    """Evaluate a template to a string, or to the unconverted value if it is one expression and nothing else."""
    parsed = parse_template(template) if isinstance(template, str) else template
    if parsed.single_expression is not None:
        return evaluate(parsed.single_expression, contexts, functions, shared_budget)
    # One evaluator for all expressions, because the limits apply to the whole text.
    evaluator = Evaluator(contexts, functions or {}, shared_budget)
    return _join(
        (part, 1) if isinstance(part, str) else (to_text(evaluator.evaluate(part)), part.column)
        for part in parsed.parts
    )


def _join(parts: Iterable[tuple[str, int]]) -> str:
    """Return the texts as one string. Raise EvaluationError at the column of the first text that makes it too long."""
    joined_parts: list[str] = []
    length = 0
    for part, column in parts:
        length += len(part)
        check_length(column, length)
        joined_parts.append(part)
    return "".join(joined_parts)


def reduce_template(
    template: str | Template,
    known_contexts: Contexts,
    functions: Functions | None = None,
    shared_budget: Budget | None = None,
) -> Resolved | ResidualText:
    """Return the value of a template or, if it depends on unknown contexts, the remaining text to be parsed later."""
    parsed = parse_template(template) if isinstance(template, str) else template
    reducer = Reducer(known_contexts, functions or {}, shared_budget)
    if parsed.single_expression is not None:
        reduced = reduce_with(reducer, parsed.single_expression)
        return reduced if isinstance(reduced, Resolved) else ResidualText(_wrap_expression(reduced))
    parts = [part if isinstance(part, str) else reduce_with(reducer, part) for part in parsed.parts]
    evaluated_parts = [to_text(part.value) if isinstance(part, Resolved) else part for part in parts]
    residuals = [part for part in evaluated_parts if isinstance(part, Residual)]
    plain_parts = [(part, 1) for part in evaluated_parts if isinstance(part, str) and part]
    if not residuals:
        return Resolved(_join(plain_parts))
    _join(plain_parts)
    if not plain_parts and len(residuals) == 1:
        # Alone, the expression would keep the type of its value; an empty literal keeps the result a string.
        return ResidualText(_wrap_expression(residuals[0]) + _wrap_expression(Residual(Literal(""))))
    merged_text = "".join(_merge(evaluated_parts))
    if len(merged_text) > MAX_TEMPLATE:
        raise EvaluationError(
            ExpressionProblem(1, f"a text of {len(merged_text)} characters", f"at most {MAX_TEMPLATE}")
        )
    return ResidualText(merged_text)


def _merge(parts: list[str | Residual]) -> Iterator[str]:
    """Yield the parts as template text.

    Plain text that contains `${{` becomes an expression that is a string literal.
    """
    plain_text = ""
    for part in [*parts, None]:
        if isinstance(part, str):
            plain_text += part
            continue
        yield plain_text if OPEN not in plain_text else _as_literals(plain_text)
        plain_text = ""
        if part is not None:
            yield _wrap_expression(part)


def _as_literals(plain_text: str) -> str:
    """Return template text with expressions that are string literals, which evaluates to `plain_text`."""
    pieces = [plain_text[start : start + MAX_QUOTED] for start in range(0, len(plain_text), MAX_QUOTED)]
    return "".join(_wrap_expression(Residual(Literal(piece))) for piece in pieces)


def _wrap_expression(residual: Residual) -> str:
    return f"{OPEN} {residual.text} {CLOSE}"


def uses_status_function(expression: Expression) -> bool:
    """Return whether a condition calls success(), failure(), always() or cancelled(): then success() is not implied."""
    return bool(function_names(expression) & STATUS_FUNCTIONS)


def parse_condition(source: str) -> Expression:
    """Parse an `if:` as written in a file, with or without `${{ }}`. Add success() if it calls no status function.

    A reduced condition already contains the implied success(): use `parse` for it.
    """
    expression = parse_bare_condition(source)
    if expression is None:
        return Call("success")
    if uses_status_function(expression):
        return expression
    with_success = And((Call("success"), expression))
    check_depth(with_success)
    return with_success


def parse_bare_condition(source: str) -> Expression | None:
    """Parse an `if:` without adding the implied success(). Return None if it is empty."""
    stripped = source.strip()
    if not stripped:
        return None
    offset = len(source) - len(source.lstrip())
    if OPEN not in stripped:
        return parse(stripped, offset)
    try:
        template = parse_template(stripped)
    except ExpressionSyntaxError as error:
        raise error.shifted(offset) from None
    if template.single_expression is None:
        # It would be a non-empty string, which is always true.
        raise ExpressionSyntaxError(
            ExpressionProblem(
                offset + 1, f"{OPEN} {CLOSE} around a part of a condition", "it around all of it, or nowhere"
            )
        )
    return parse(stripped[len(OPEN) : -len(CLOSE)], offset + len(OPEN))


def evaluate_condition(expression: Expression, contexts: Contexts, functions: Functions | None = None) -> bool:
    """Return whether a condition is true."""
    return is_truthy(evaluate(expression, contexts, functions))
