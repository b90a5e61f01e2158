"""The `if` of a job, as far as it can be decided when planning; and the `if` of a step, as a runner reads it."""

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

MAX_CONDITION: Final = 2000  # characters, as the wire has it
MAX_REASON_VALUES: Final = 4  # values in a reason
MAX_VALUE: Final = 60  # characters of one
SUCCESS: Final = Call("success")
ALWAYS_TRUE: Final = Call("always")
SKIPPED_NEED: Final[Mapping[str, Any]] = {"result": "skipped", "outputs": {}}
# What is in `github` only while a job runs.
RUNNER_GITHUB_KEYS: Final = frozenset(
    {"*", "action", "action_path", "action_status", "env", "event_path", "output", "path", "token", "workspace"}
)
_SKIPPED_TEXT: Final = '{"outputs":{},"result":"skipped"}'


class ConditionResult(Struct, frozen=True, kw_only=True):
    """What an `if` comes to. `remaining` is left for the runner; `asks_status`: it also decides after a failure."""

    holds: bool | None  # None: it is not known yet
    remaining: Expression | None = None
    asks_status: bool = False
    reason: str = ""


ALWAYS: Final = ConditionResult(holds=True)


def decide_condition(
    expression: Expression | None,
    known: Contexts,
    *,
    skipped: Collection[str] = (),
    status: Mapping[str, bool] | None = None,
    whole: Budget | None = None,
) -> ConditionResult:
    """An `if` over what is known. `skipped` are needs that are no part of the run; `status`: how things went so far."""
    if expression is None:
        return ALWAYS
    asks_status = uses_status_function(expression)
    reduced = reduce_expression(
        _with_skipped(expression, skipped), known, _functions({"always": True, **(status or {})}), whole
    )
    holds = _holds(reduced)
    if holds is None and isinstance(reduced, Residual):
        return ConditionResult(holds=None, remaining=reduced.expression, asks_status=asks_status)
    if holds:
        return ConditionResult(holds=True, asks_status=asks_status)
    reason = _false_because(expression, known, skipped)
    return ConditionResult(holds=False, asks_status=asks_status, reason=reason)


def _holds(reduced: Resolved | Residual) -> bool | None:
    """Whether it is true, where that is sure: one operand may be enough, wherever it stands."""
    return is_truthy(reduced.value) if isinstance(reduced, Resolved) else _is_true(reduced.expression)


def _is_true(expression: Expression) -> bool | None:
    match expression:
        case Literal(value):
            return is_truthy(value)
        case Not(operand):
            inner = _is_true(operand)
            return None if inner is None else not inner
        case And(operands) | Or(operands):
            decisive = isinstance(expression, Or)
            told = [_is_true(each) for each in operands]
            return decisive if decisive in told else None if None in told else not decisive
        case _:
            return None


def _functions(values: Mapping[str, bool]) -> Functions:
    return {name: lambda _arguments, value=value: value for name, value in values.items()}  # type: ignore[misc]


def _with_skipped(expression: Expression, skipped: Collection[str]) -> Expression:
    """The expression with `needs.x` as it is for a job that does not run."""
    names = {name.lower() for name in skipped}

    def by(node: Expression) -> Expression | None:
        match node:
            case Index(Context(name), Literal(str() as key)) if name.lower() == "needs" and key.lower() in names:
                return Call("fromJSON", (Literal(_SKIPPED_TEXT, node.column),), node.column)
            case _:
                return None

    return replace_nodes(expression, by) if names else expression


def _false_because(expression: Expression, known: Contexts, skipped: Collection[str]) -> str:
    told = format_expression(expression)
    values = []
    contexts = {**known, "needs": dict.fromkeys(skipped, SKIPPED_NEED)}
    for mention in dict.fromkeys((each.context, each.keys) for each in context_references(expression)):
        context, keys = mention
        node: Expression = Context(context)
        for key in keys:
            node = Index(node, Literal(key))
        try:
            value = evaluate(node, contexts)
        except ExpressionError:
            continue
        if keys and is_primitive(value):
            shown = to_text(value)
            cut = shown if len(shown) <= MAX_VALUE else f"{shown[: MAX_VALUE - 1]}…"
            quoted = f"'{cut}'" if isinstance(value, str) else "not given" if value is None else cut
            values.append(f"{'.'.join((context, *keys))} is {quoted}")
    because = f": {', '.join(values[:MAX_REASON_VALUES])}" if values else ""
    return f"its condition is false{because} (if: {told if len(told) <= 200 else told[:199] + '…'})"


def job_condition(verdict: ConditionResult, *, has_needs: bool, may_be_skipped: bool) -> Expression | None:
    """What the runner asks before a job: nothing, if it runs as soon as the core starts it.

    `may_be_skipped` says that something it needs may succeed without having done anything: then it is skipped, too.
    """
    if verdict.holds and not has_needs:
        return None
    if verdict.asks_status:
        return _asking(verdict.remaining or ALWAYS_TRUE)
    if verdict.remaining is not None:
        return _all_of(SUCCESS, verdict.remaining)
    return SUCCESS if may_be_skipped else None


def _asking(expression: Expression) -> Expression:
    """A condition that goes on asking how things went, so that nobody who reads it adds a success()."""
    return _all_of(expression) if uses_status_function(expression) else _all_of(ALWAYS_TRUE, expression)


def _all_of(*expressions: Expression) -> Expression:
    """One condition of several, without what is true anyway."""
    operands: list[Expression] = []
    for each in expressions:
        operands += each.operands if isinstance(each, And) else (each,)
    left = list(dict.fromkeys(each for each in operands if each != Literal(True)))
    return And(tuple(left)) if len(left) > 1 else left[0] if left else Literal(True)


def step_condition(expression: Expression | None, known: Contexts, whole: Budget | None = None) -> Expression | None:
    """What the runner asks before a step: nothing, if it only runs while all went well."""
    if expression is None:
        return None
    asks_status = uses_status_function(expression)
    if any(_is_for_the_runner(each) for each in context_references(expression)):
        known = {name: value for name, value in known.items() if name != "github"}
    reduced = reduce_expression(expression, known, shared_budget=whole)
    holds = _holds(reduced)
    if holds is not None or isinstance(reduced, Resolved):
        return None if holds and not asks_status else ALWAYS_TRUE if holds else Literal(False)
    if asks_status:
        left = _asking(reduced.expression)
        return None if left == SUCCESS else left
    return _all_of(SUCCESS, reduced.expression)


def _is_for_the_runner(mention: ContextReference) -> bool:
    return mention.context == "github" and (not mention.keys or mention.keys[0].lower() in RUNNER_GITHUB_KEYS)


def unreduced(written: str) -> Expression:
    """What people wrote, with its success(): for what is shorter that way."""
    expression = parse_bare_condition(written)
    if expression is None:
        return SUCCESS
    return expression if uses_status_function(expression) else And((SUCCESS, expression))


def format_condition(expression: Expression, written: str | None) -> tuple[str, Expression] | None:
    """The shorter of both as one line, with what it says; nothing if neither is short enough for the wire."""
    for each in (expression, *([unreduced(written)] if written else [])):
        line = format_expression(each)
        if len(line) <= MAX_CONDITION:
            return line, each
    return None
