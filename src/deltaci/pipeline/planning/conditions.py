"""Decide conditions (`if`) as far as they are known when planning, and build those that runners evaluate."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from msgspec import Struct

from deltaci.pipeline.expressions import (
    Contexts,
    Expression,
    Residual,
    Resolved,
    format_expression,
    is_truthy,
    reduce_expression,
    uses_status_function,
)
from deltaci.pipeline.expressions.errors import ExpressionError
from deltaci.pipeline.expressions.evaluator import Functions, evaluate
from deltaci.pipeline.expressions.limits import Budget
from deltaci.pipeline.expressions.references import ContextReference, context_references, replace_nodes
from deltaci.pipeline.expressions.templates import parse_bare_condition
from deltaci.pipeline.expressions.tree import And, Call, Context, Index, Literal, Not, Or
from deltaci.pipeline.expressions.values import is_primitive, to_text

MAX_CONDITION: Final = 2000  # characters; the limit of the runner protocol
MAX_REASON_VALUES: Final = 4
MAX_VALUE: Final = 60  # characters of one value in a reason
SUCCESS: Final = Call("success")
ALWAYS_TRUE: Final = Call("always")
SKIPPED_NEED: Final[Mapping[str, Any]] = {"result": "skipped", "outputs": {}}
# The keys of `github` that exist only while a job runs.
RUNNER_GITHUB_KEYS: Final = frozenset(
    {"*", "action", "action_path", "action_status", "env", "event_path", "output", "path", "token", "workspace"}
)
_SKIPPED_TEXT: Final = '{"outputs":{},"result":"skipped"}'


class ConditionResult(Struct, frozen=True, kw_only=True):
    """The result of an `if`. `remaining` is left for the runner; `uses_status`: it calls a status function.

    A job whose condition uses the status also has its condition evaluated after a need has failed.
    """

    holds: bool | None  # None: not known yet
    remaining: Expression | None = None
    uses_status: bool = False
    reason: str = ""


ALWAYS: Final = ConditionResult(holds=True)


def decide_condition(
    expression: Expression | None,
    known_contexts: Contexts,
    *,
    skipped: Collection[str] = (),
    status: Mapping[str, bool] | None = None,
    shared_budget: Budget | None = None,
) -> ConditionResult:
    """Evaluate an `if` over the known contexts.

    `skipped` are needs that are not part of the run; `status` has the status functions whose result is known.
    """
    if expression is None:
        return ALWAYS
    uses_status = uses_status_function(expression)
    reduced = reduce_expression(
        _replace_skipped(expression, skipped),
        known_contexts,
        _constant_functions({"always": True, **(status or {})}),
        shared_budget,
    )
    holds = _decided_value(reduced)
    if holds is None and isinstance(reduced, Residual):
        return ConditionResult(holds=None, remaining=reduced.expression, uses_status=uses_status)
    if holds:
        return ConditionResult(holds=True, uses_status=uses_status)
    reason = _reason_false(expression, known_contexts, skipped)
    return ConditionResult(holds=False, uses_status=uses_status, reason=reason)


def _decided_value(reduced: Resolved | Residual) -> bool | None:
    """Return the truth of a reduced expression, or None if it is not certain. One operand can decide `&&` and `||`."""
    return is_truthy(reduced.value) if isinstance(reduced, Resolved) else _truth(reduced.expression)


def _truth(expression: Expression) -> bool | None:
    match expression:
        case Literal(value):
            return is_truthy(value)
        case Not(operand):
            inner = _truth(operand)
            return None if inner is None else not inner
        case And(operands) | Or(operands):
            decisive = isinstance(expression, Or)
            truths = [_truth(operand) for operand in operands]
            return decisive if decisive in truths else None if None in truths else not decisive
        case _:
            return None


def _constant_functions(values: Mapping[str, bool]) -> Functions:
    return {name: lambda _arguments, value=value: value for name, value in values.items()}  # type: ignore[misc]


def _replace_skipped(expression: Expression, skipped: Collection[str]) -> Expression:
    """Return the expression with `needs.x` replaced by the value of a skipped job, for each skipped need."""
    names = {name.lower() for name in skipped}

    def replacement(node: Expression) -> Expression | None:
        match node:
            case Index(Context(name), Literal(str() as key)) if name.lower() == "needs" and key.lower() in names:
                return Call("fromJSON", (Literal(_SKIPPED_TEXT, node.column),), node.column)
            case _:
                return None

    return replace_nodes(expression, replacement) if names else expression


def _reason_false(expression: Expression, known_contexts: Contexts, skipped: Collection[str]) -> str:
    """Return why a condition is false, with the values of its references."""
    text = format_expression(expression)
    values = []
    contexts = {**known_contexts, "needs": dict.fromkeys(skipped, SKIPPED_NEED)}
    references = ((reference.context, reference.keys) for reference in context_references(expression))
    for reference in dict.fromkeys(references):
        context, keys = reference
        node: Expression = Context(context)
        for key in keys:
            node = Index(node, Literal(key))
        try:
            value = evaluate(node, contexts)
        except ExpressionError:
            continue
        if keys and is_primitive(value):
            value_text = to_text(value)
            shortened = value_text if len(value_text) <= MAX_VALUE else f"{value_text[: MAX_VALUE - 1]}…"
            quoted = f"'{shortened}'" if isinstance(value, str) else "not given" if value is None else shortened
            values.append(f"{'.'.join((context, *keys))} is {quoted}")
    because = f": {', '.join(values[:MAX_REASON_VALUES])}" if values else ""
    return f"its condition is false{because} (if: {text if len(text) <= 200 else text[:199] + '…'})"


def job_condition(result: ConditionResult, *, has_needs: bool, may_be_skipped: bool) -> Expression | None:
    """Return the condition that the runner evaluates before a job; None if the job runs as soon as it is queued.

    `may_be_skipped` tells that a need can succeed although it was skipped: then this job is skipped, too.
    """
    if result.holds and not has_needs:
        return None
    if result.uses_status:
        return _with_status_function(result.remaining or ALWAYS_TRUE)
    if result.remaining is not None:
        return _conjunction(SUCCESS, result.remaining)
    return SUCCESS if may_be_skipped else None


def _with_status_function(expression: Expression) -> Expression:
    """Return a condition that still calls a status function, so that no reader adds an implicit `success()`."""
    return _conjunction(expression) if uses_status_function(expression) else _conjunction(ALWAYS_TRUE, expression)


def _conjunction(*expressions: Expression) -> Expression:
    """Return one condition that requires all expressions, without duplicates and constants that are true."""
    operands: list[Expression] = []
    for expression in expressions:
        operands += expression.operands if isinstance(expression, And) else (expression,)
    remaining = list(dict.fromkeys(operand for operand in operands if operand != Literal(True)))
    return And(tuple(remaining)) if len(remaining) > 1 else remaining[0] if remaining else Literal(True)


def step_condition(
    expression: Expression | None, known_contexts: Contexts, shared_budget: Budget | None = None
) -> Expression | None:
    """Return the condition that the runner evaluates before a step; None if it runs only while no step has failed."""
    if expression is None:
        return None
    uses_status = uses_status_function(expression)
    if any(_is_runner_reference(reference) for reference in context_references(expression)):
        known_contexts = {name: value for name, value in known_contexts.items() if name != "github"}
    reduced = reduce_expression(expression, known_contexts, shared_budget=shared_budget)
    holds = _decided_value(reduced)
    if holds is not None or isinstance(reduced, Resolved):
        return None if holds and not uses_status else ALWAYS_TRUE if holds else Literal(False)
    if uses_status:
        remaining = _with_status_function(reduced.expression)
        return None if remaining == SUCCESS else remaining
    return _conjunction(SUCCESS, reduced.expression)


def _is_runner_reference(reference: ContextReference) -> bool:
    return reference.context == "github" and (not reference.keys or reference.keys[0].lower() in RUNNER_GITHUB_KEYS)


def original_condition(text: str) -> Expression:
    """Return the condition as it is in the file, with its `success()`. It may be shorter than the reduced one."""
    expression = parse_bare_condition(text)
    if expression is None:
        return SUCCESS
    return expression if uses_status_function(expression) else And((SUCCESS, expression))


def format_condition(expression: Expression, original_text: str | None) -> tuple[str, Expression] | None:
    """Return a condition as one line, and its expression. Return None if it is too long for the runner protocol.

    If the reduced expression is too long, the original condition is used instead.
    """
    for candidate in (expression, *([original_condition(original_text)] if original_text else [])):
        text = format_expression(candidate)
        if len(text) <= MAX_CONDITION:
            return text, candidate
    return None
