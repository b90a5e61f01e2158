"""Partial evaluation: evaluates an expression over the contexts that are known so far.

The result is a value (`Resolved`) or a smaller expression (`Residual`) that later evaluates to what the original would
have. Parts are left as written if

- they fail: they may never be reached;
- they are arrays or objects that are compared: those are equal only to themselves, so a copy would not do;
- their value would be too long.

The residual expression may therefore still read known contexts (see `context_names`). It contains known values as
literals, so secrets must not be among the known contexts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias, assert_never

from msgspec import Struct

from deltaci.pipeline.expressions.errors import EvaluationError, ExpressionProblem
from deltaci.pipeline.expressions.evaluator import Contexts, Evaluator, Functions
from deltaci.pipeline.expressions.functions import argument_problem, find_function, is_builtin
from deltaci.pipeline.expressions.json_text import compact_json
from deltaci.pipeline.expressions.limits import MAX_DEPTH, MAX_LENGTH, Budget
from deltaci.pipeline.expressions.printer import format_expression
from deltaci.pipeline.expressions.tree import (
    And,
    Call,
    Compare,
    Context,
    Expression,
    Filter,
    Index,
    Literal,
    Node,
    Not,
    Or,
    walk,
)
from deltaci.pipeline.expressions.values import FilteredList, Value, is_list, is_primitive, is_truthy, to_number

MAX_EMBEDDED: Final = 4_096  # characters of a known value that may be embedded in a residual expression


class Resolved(Struct, frozen=True):
    """The value of a fully evaluated expression or template."""

    value: Value


class Residual(Struct, frozen=True):
    """An expression that depends on contexts that are not known yet."""

    expression: Expression

    @property
    def text(self) -> str:
        """The source text of the expression."""
        return format_expression(self.expression)


_Reduced: TypeAlias = Resolved | Expression


def reduce_expression(
    expression: Expression, known: Contexts, functions: Functions | None = None, shared_budget: Budget | None = None
) -> Resolved | Residual:
    """Evaluate an expression as far as the known contexts and functions allow."""
    return reduce_with(Reducer(known, functions or {}, shared_budget), expression)


def reduce_with(reducer: Reducer, expression: Expression) -> Resolved | Residual:
    """Reduce one of several expressions that share a reducer and its budget.

    Raise EvaluationError if neither the reduced nor the original expression fits the limits.
    """
    reduced = reducer.reduce(expression, keep_identity=False)
    if isinstance(reduced, Resolved):
        return Resolved(list(reduced.value)) if isinstance(reduced.value, FilteredList) else reduced
    for remaining in (reduced, expression):
        if max(depth for _, depth in walk(remaining)) <= MAX_DEPTH and len(format_expression(remaining)) <= MAX_LENGTH:
            return Residual(remaining)
    raise EvaluationError(
        ExpressionProblem(expression.column, "an expression that is too long to write", "a shorter one")
    )


class Reducer:
    """Reduces expressions within one budget.

    `keep_identity` says that the result may be compared, so that an array or object must not be replaced by a copy.
    """

    def __init__(self, known: Contexts, functions: Functions, shared_budget: Budget | None = None) -> None:
        self._known_contexts = frozenset(name.lower() for name in known)
        self._functions = functions
        self._evaluator = Evaluator(known, functions, shared_budget)

    def reduce(self, expression: Expression, *, keep_identity: bool) -> _Reduced:
        """Return the value or the remaining expression. Parts that fail stay as written, and fail later if reached."""
        try:
            self._evaluator.budget.use_steps(expression.column)
            return self._reduce(expression, keep_identity)
        except EvaluationError:
            return expression

    def _reduce(self, node: Expression, keep_identity: bool) -> _Reduced:
        match node:
            case Literal(value):
                return Resolved(value)
            case Context(name):
                return Resolved(self._evaluator.value(node)) if name.lower() in self._known_contexts else node
            case Index(target, key):
                return self._reduce_index(node, target, key, keep_identity)
            case Filter(target):
                reduced = self.reduce(target, keep_identity=keep_identity)
                if isinstance(reduced, Resolved):
                    return Resolved(self._evaluator.filter(node.column, reduced.value))
                return Filter(reduced, node.column)
            case Call():
                return self._reduce_call(node, keep_identity)
            case Not(operand):
                reduced = self.reduce(operand, keep_identity=False)
                return (
                    Resolved(not is_truthy(reduced.value))
                    if isinstance(reduced, Resolved)
                    else Not(reduced, node.column)
                )
            case Compare(operator, left, right):
                return self._reduce_comparison(node, operator, left, right)
            case And(operands):
                remaining = self._reduce_operands(operands, stop_at=False, keep_identity=keep_identity)
                return And(remaining, node.column) if isinstance(remaining, tuple) else remaining
            case Or(operands):
                remaining = self._reduce_operands(operands, stop_at=True, keep_identity=keep_identity)
                return Or(remaining, node.column) if isinstance(remaining, tuple) else remaining
            case _:
                assert_never(node)

    def _reduce_index(self, node: Index, target: Expression, key: Expression, keep_identity: bool) -> _Reduced:
        new_target = self.reduce(target, keep_identity=keep_identity)
        new_key = self.reduce(key, keep_identity=False)
        if isinstance(new_target, Resolved) and isinstance(new_key, Resolved):
            return Resolved(self._evaluator.index(node.column, new_target.value, new_key.value))
        return Index(
            _as_expression(new_target, target, keep_identity), _as_expression(new_key, key, False), node.column
        )

    def _reduce_comparison(self, node: Compare, operator: str, left: Expression, right: Expression) -> _Reduced:
        new_left = self.reduce(left, keep_identity=True)
        new_right = self.reduce(right, keep_identity=True)
        if isinstance(new_left, Resolved) and isinstance(new_right, Resolved):
            return Resolved(self._evaluator.compare(node.column, operator, new_left.value, new_right.value))
        return Compare(
            operator, _as_expression(new_left, left, True), _as_expression(new_right, right, True), node.column
        )

    def _reduce_operands(
        self, operands: Sequence[Expression], *, stop_at: bool, keep_identity: bool
    ) -> _Reduced | tuple[Expression, ...]:
        """Return the remaining operands. Known operands that do not decide the result are dropped, except the last."""
        remaining: list[Expression] = []
        for number, operand in enumerate(operands, 1):
            reduced = self.reduce(operand, keep_identity=keep_identity)
            if isinstance(reduced, Resolved):
                decides = is_truthy(reduced.value) is stop_at
                if not decides and number < len(operands):
                    continue
                if not remaining:
                    return reduced
                remaining.append(_as_expression(reduced, operand, keep_identity))
                if decides:
                    break
            else:
                remaining.append(reduced)
        return remaining[0] if len(remaining) == 1 else tuple(remaining)

    def _reduce_call(self, node: Call, keep_identity: bool) -> _Reduced:
        if argument_problem(node):
            return node
        name = node.name.lower()
        if name == "case":
            return self._reduce_case(node, keep_identity)
        keeps = [name == "contains"] * len(node.arguments)
        reduced = [
            self.reduce(argument, keep_identity=keep) for argument, keep in zip(node.arguments, keeps, strict=True)
        ]
        if all(isinstance(argument, Resolved) for argument in reduced) and (
            is_builtin(name) or find_function(self._functions, name)
        ):
            return Resolved(
                self._evaluator.call(node, [argument.value for argument in reduced if isinstance(argument, Resolved)])
            )
        if name == "contains" and isinstance(reduced[0], Resolved) and _is_flat(reduced[0].value):
            keeps[0] = False
        arguments = zip(reduced, node.arguments, keeps, strict=True)
        return Call(node.name, tuple(_as_expression(*argument) for argument in arguments), node.column)

    def _reduce_case(self, node: Call, keep_identity: bool) -> _Reduced:
        remaining: list[Expression] = []
        last = node.arguments[-1]
        for index in range(0, len(node.arguments) - 1, 2):
            condition, result = node.arguments[index : index + 2]
            reduced = self.reduce(condition, keep_identity=False)
            if not isinstance(reduced, Resolved):
                value = self.reduce(result, keep_identity=keep_identity)
                remaining += [reduced, _as_expression(value, result, keep_identity)]
            elif not isinstance(reduced.value, bool):  # evaluating it fails, but only if it is reached
                return Call(node.name, (*remaining, *node.arguments[index:]), node.column)
            elif reduced.value:
                last = result
                break
        value = self.reduce(last, keep_identity=keep_identity)
        if not remaining:
            return value
        return Call(node.name, (*remaining, _as_expression(value, last, keep_identity)), node.column)


def _as_expression(reduced: _Reduced, original: Expression, keep_identity: bool) -> Expression:
    """Return a value as an expression, or the original expression if the value cannot be embedded."""
    if isinstance(reduced, Node):
        return reduced
    value = reduced.value
    if isinstance(value, str):
        return Literal(value, original.column) if len(value) <= MAX_EMBEDDED else original
    if value is None or isinstance(value, bool):
        return Literal(value, original.column)
    if isinstance(value, int | float):
        return Literal(to_number(value), original.column)
    embedded = None if keep_identity else compact_json(value, MAX_EMBEDDED)
    if embedded is None:
        return original
    call = Call("fromJSON", (Literal(embedded, original.column),), original.column)
    return Filter(call, original.column) if isinstance(value, FilteredList) else call


def _is_flat(value: Value) -> bool:
    """Return whether this is an array without items that are compared by identity."""
    return is_list(value) and all(is_primitive(item) for item in value)
