"""Decide conditions (`if`) that depend only on known contexts, and build the conditions that runners evaluate."""

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
    """The result of evaluating an `if` when a run is planned.

    `remaining` is the reduced expression for the runner, if the result is not known yet. `uses_status` says that the
    condition calls a status function: then it is also evaluated after a need of the job has failed.
    """

    holds: bool | None  # None: it depends on values that are not known yet
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
    """Evaluate an `if` over the known contexts. Without an expression, it holds.

    `skipped` are the needs that are not part of the run. `status` has the results of status functions that are known.
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
    reason = _explain_false(expression, known_contexts, skipped)
    return ConditionResult(holds=False, uses_status=uses_status, reason=reason)


def _decided_value(reduced: Resolved | Residual) -> bool | None:
    """Return whether a reduced expression is true, or None if that depends on unknown values."""
    return is_truthy(reduced.value) if isinstance(reduced, Resolved) else _truth(reduced.expression)


def _truth(expression: Expression) -> bool | None:
    """Return whether an expression is true, or None if its literals do not decide that. One operand can decide."""
    match expression:
        case Literal(value):
            return is_truthy(value)
        case Not(operand):
            operand_truth = _truth(operand)
            return None if operand_truth is None else not operand_truth
        case And(operands) | Or(operands):
            deciding_truth = isinstance(expression, Or)
            truths = [_truth(operand) for operand in operands]
            return deciding_truth if deciding_truth in truths else None if None in truths else not deciding_truth
        case _:
            return None


def _constant_functions(values: Mapping[str, bool]) -> Functions:
    """Return functions that ignore their arguments and return these values, by name."""
    return {name: lambda _arguments, value=value: value for name, value in values.items()}  # type: ignore[misc]


def _replace_skipped(expression: Expression, skipped: Collection[str]) -> Expression:
    """Return an expression in which `needs.ID` is the value of a skipped job, for each of the skipped needs."""
    skipped_names = {name.lower() for name in skipped}

    def find_replacement(node: Expression) -> Expression | None:
        match node:
            case Index(Context(name), Literal(str() as key)) if (
                name.lower() == "needs" and key.lower() in skipped_names
            ):
                return Call("fromJSON", (Literal(_SKIPPED_TEXT, node.column),), node.column)
            case _:
                return None

    return replace_nodes(expression, find_replacement) if skipped_names else expression


def _explain_false(expression: Expression, known_contexts: Contexts, skipped: Collection[str]) -> str:
    """Return the reason for a false condition, with the values of its references, as a message."""
    condition_text = format_expression(expression)
    descriptions = []
    contexts = {**known_contexts, "needs": dict.fromkeys(skipped, SKIPPED_NEED)}
    references = ((reference.context, reference.keys) for reference in context_references(expression))
    for reference in dict.fromkeys(references):
        context, keys = reference
        reference_node: Expression = Context(context)
        for key in keys:
            reference_node = Index(reference_node, Literal(key))
        try:
            reference_value = evaluate(reference_node, contexts)
        except ExpressionError:
            continue
        if keys and is_primitive(reference_value):
            value_text = to_text(reference_value)
            shortened = value_text if len(value_text) <= MAX_VALUE else f"{value_text[: MAX_VALUE - 1]}…"
            display_value = (
                f"'{shortened}'"
                if isinstance(reference_value, str)
                else "not given"
                if reference_value is None
                else shortened
            )
            descriptions.append(f"{'.'.join((context, *keys))} is {display_value}")
    description_list = f": {', '.join(descriptions[:MAX_REASON_VALUES])}" if descriptions else ""
    short_condition = condition_text if len(condition_text) <= 200 else condition_text[:199] + "…"
    return f"its condition is false{description_list} (if: {short_condition})"


def job_condition(result: ConditionResult, *, has_needs: bool, may_be_skipped: bool) -> Expression | None:
    """Return the condition that the runner evaluates before a job, or None if it runs without a condition.

    `may_be_skipped` says that the runner may skip a need of the job. Then the condition is at least `success()`, so
    that the job is skipped as well.
    """
    if result.holds and not has_needs:
        return None
    if result.uses_status:
        return _with_status_function(result.remaining or ALWAYS_TRUE)
    if result.remaining is not None:
        return _conjunction(SUCCESS, result.remaining)
    return SUCCESS if may_be_skipped else None


def _with_status_function(expression: Expression) -> Expression:
    """Return a condition with `always()` added if it calls no status function, so that `success()` is not implied."""
    return _conjunction(expression) if uses_status_function(expression) else _conjunction(ALWAYS_TRUE, expression)


def _conjunction(*expressions: Expression) -> Expression:
    """Return the conjunction (`&&`) of all expressions, without duplicates and without the literal true."""
    operands: list[Expression] = []
    for expression in expressions:
        operands += expression.operands if isinstance(expression, And) else (expression,)
    remaining = list(dict.fromkeys(operand for operand in operands if operand != Literal(True)))
    return And(tuple(remaining)) if len(remaining) > 1 else remaining[0] if remaining else Literal(True)


def step_condition(
    expression: Expression | None, known_contexts: Contexts, shared_budget: Budget | None = None
) -> Expression | None:
    """Return the condition that the runner evaluates before a step; None for the default, `success()`."""
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
    """Return whether a reference reads keys of `github` that only the runner knows, or the whole context."""
    return reference.context == "github" and (not reference.keys or reference.keys[0].lower() in RUNNER_GITHUB_KEYS)


def original_condition(text: str) -> Expression:
    """Return the condition of the file without reduction, with `success()` added if that is implied."""
    expression = parse_bare_condition(text)
    if expression is None:
        return SUCCESS
    return expression if uses_status_function(expression) else And((SUCCESS, expression))


def format_condition(expression: Expression, original_text: str | None) -> tuple[str, Expression] | None:
    """Return the source text of a condition and its expression, or None if it is too long for the runner protocol.

    If the reduced expression is too long, use the condition of the file, `original_text`.
    """
    for candidate in (expression, *([original_condition(original_text)] if original_text else [])):
        condition_text = format_expression(candidate)
        if len(condition_text) <= MAX_CONDITION:
            return condition_text, candidate
    return None
