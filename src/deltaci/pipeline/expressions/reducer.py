"""Partial evaluation: evaluates an expression over the contexts that are known so far.

The result is a value (`Resolved`) or a smaller expression (`Residual`), which later evaluates to the same value as the
original. A subexpression over known contexts is not replaced by its value if

- its evaluation fails: it may never be reached;
- its value is an array or object that is compared: those are equal only to themselves, not to copies;
- its value would be too long.

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
    """The reduced form of an expression that depends on contexts that are not known yet."""

    expression: Expression

    @property
    def text(self) -> str:
        """The source text of the expression."""
        return format_expression(self.expression)


_Reduced: TypeAlias = Resolved | Expression


def reduce_expression(
    expression: Expression,
    known_contexts: Contexts,
    functions: Functions | None = None,
    shared_budget: Budget | None = None,
) -> Resolved | Residual:
    """Return the value of an expression, or what remains of it if it depends on unknown contexts or functions."""
    return reduce_with(Reducer(known_contexts, functions or {}, shared_budget), expression)


def reduce_with(reducer: Reducer, expression: Expression) -> Resolved | Residual:
    """Like `reduce_expression`, for one of several expressions that share a reducer and its budget.

    Raise EvaluationError if neither the reduced nor the original expression is within the limits of an expression.
    """
    reduced = reducer.reduce(expression, keep_identity=False)
    if isinstance(reduced, Resolved):
        return Resolved(list(reduced.value)) if isinstance(reduced.value, FilteredList) else reduced
    for candidate in (reduced, expression):
        if max(depth for _, depth in walk(candidate)) <= MAX_DEPTH and len(format_expression(candidate)) <= MAX_LENGTH:
            return Residual(candidate)
    raise EvaluationError(
        ExpressionProblem(expression.column, "an expression that is too long to write", "a shorter one")
    )


class Reducer:
    """Reduces expressions over the same known contexts, within one budget.

    In its methods, `keep_identity` says that the result may be compared with `==`, so that an expression must not be
    replaced by a copy of its array or object.
    """

    def __init__(
        self, known_contexts: Contexts, function_by_name: Functions, shared_budget: Budget | None = None
    ) -> None:
        self._known_contexts = frozenset(context_name.lower() for context_name in known_contexts)
        self._function_by_name = function_by_name
        self._evaluator = Evaluator(known_contexts, function_by_name, shared_budget)

    def reduce(self, expression: Expression, *, keep_identity: bool) -> _Reduced:
        """Return the value of an expression, or what remains of it. Return it unchanged if its evaluation fails."""
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
                return Resolved(self._evaluator.evaluate(node)) if name.lower() in self._known_contexts else node
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
        """Reduce the operands of `&&` (`stop_at` is False) or `||` (True) to the ones that can still decide the result.

        Return a single result if one operand remains, else the tuple of the remaining operands.
        """
        remaining: list[Expression] = []
        for operand_number, operand in enumerate(operands, 1):
            reduced = self.reduce(operand, keep_identity=keep_identity)
            if isinstance(reduced, Resolved):
                decides_result = is_truthy(reduced.value) is stop_at
                if not decides_result and operand_number < len(operands):
                    continue
                if not remaining:
                    return reduced
                remaining.append(_as_expression(reduced, operand, keep_identity))
                if decides_result:
                    break
            else:
                remaining.append(reduced)
        return remaining[0] if len(remaining) == 1 else tuple(remaining)

    def _reduce_call(self, node: Call, keep_identity: bool) -> _Reduced:
        if argument_problem(node):
            return node
        function_name = node.name.lower()
        if function_name == "case":
            return self._reduce_case(node, keep_identity)
        identity_flags = [function_name == "contains"] * len(node.arguments)
        reduced_arguments = [
            self.reduce(argument, keep_identity=keeps_identity)
            for argument, keeps_identity in zip(node.arguments, identity_flags, strict=True)
        ]
        if all(isinstance(argument, Resolved) for argument in reduced_arguments) and (
            is_builtin(function_name) or find_function(self._function_by_name, function_name)
        ):
            return Resolved(
                self._evaluator.call(
                    node, [argument.value for argument in reduced_arguments if isinstance(argument, Resolved)]
                )
            )
        if (
            function_name == "contains"
            and isinstance(reduced_arguments[0], Resolved)
            and _is_flat(reduced_arguments[0].value)
        ):
            identity_flags[0] = False
        argument_triples = zip(reduced_arguments, node.arguments, identity_flags, strict=True)
        return Call(node.name, tuple(_as_expression(*argument) for argument in argument_triples), node.column)

    def _reduce_case(self, node: Call, keep_identity: bool) -> _Reduced:
        remaining: list[Expression] = []
        default_expression = node.arguments[-1]
        for condition_index in range(0, len(node.arguments) - 1, 2):
            condition, result_expression = node.arguments[condition_index : condition_index + 2]
            reduced_condition = self.reduce(condition, keep_identity=False)
            if not isinstance(reduced_condition, Resolved):
                reduced_result = self.reduce(result_expression, keep_identity=keep_identity)
                remaining += [reduced_condition, _as_expression(reduced_result, result_expression, keep_identity)]
            elif not isinstance(reduced_condition.value, bool):  # evaluating it fails, but only if it is reached
                return Call(node.name, (*remaining, *node.arguments[condition_index:]), node.column)
            elif reduced_condition.value:
                default_expression = result_expression
                break
        reduced_result = self.reduce(default_expression, keep_identity=keep_identity)
        if not remaining:
            return reduced_result
        return Call(
            node.name, (*remaining, _as_expression(reduced_result, default_expression, keep_identity)), node.column
        )


def _as_expression(reduced: _Reduced, original: Expression, keep_identity: bool) -> Expression:
    """Convert the result of a reduction to an expression.

    Return `original` if the value cannot be written as an expression, or if it is an array or object and must keep its
    identity.
    """
    if isinstance(reduced, Node):
        return reduced
    value = reduced.value
    if isinstance(value, str):
        return Literal(value, original.column) if len(value) <= MAX_EMBEDDED else original
    if value is None or isinstance(value, bool):
        return Literal(value, original.column)
    if isinstance(value, int | float):
        return Literal(to_number(value), original.column)
    json_text = None if keep_identity else compact_json(value, MAX_EMBEDDED)
    if json_text is None:
        return original
    call = Call("fromJSON", (Literal(json_text, original.column),), original.column)
    return Filter(call, original.column) if isinstance(value, FilteredList) else call


def _is_flat(value: Value) -> bool:
    """Return whether a value is an array that contains no arrays or objects."""
    return is_list(value) and all(is_primitive(item) for item in value)
