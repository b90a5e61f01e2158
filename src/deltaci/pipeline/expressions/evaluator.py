"""Evaluates syntax trees over given contexts. Interprets the tree directly and counts all work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import assert_never

from deltaci.core.text import nearest
from deltaci.pipeline.expressions.errors import EvaluationError, ExpressionProblem, quote
from deltaci.pipeline.expressions.functions import Function, argument_problem, call_builtin, find_function, is_builtin
from deltaci.pipeline.expressions.limits import Budget, check_length
from deltaci.pipeline.expressions.tree import (
    And,
    Call,
    Compare,
    Context,
    Expression,
    Filter,
    Index,
    Literal,
    Not,
    Or,
)
from deltaci.pipeline.expressions.values import (
    FilteredList,
    Value,
    array_index,
    compare,
    fold_case,
    is_list,
    is_object,
    is_primitive,
    is_truthy,
    to_text,
    type_name,
)

Contexts = Mapping[str, Value]
Functions = Mapping[str, Function]


def evaluate(
    expression: Expression, contexts: Contexts, functions: Functions | None = None, shared_budget: Budget | None = None
) -> Value:
    """Return the value of an expression. Raise EvaluationError if the evaluation fails or exceeds the limits.

    `functions` are the functions that depend on files or on the status of the job. The work counts against the limits
    of one evaluation and against `shared_budget`.
    """
    value = Evaluator(contexts, functions or {}, shared_budget).evaluate(expression)
    if isinstance(value, str):
        check_length(expression.column, len(value))
    return list(value) if isinstance(value, FilteredList) else value


class Evaluator:
    """Evaluates expressions over the same contexts and functions, within one budget."""

    def __init__(self, contexts: Contexts, function_by_name: Functions, shared_budget: Budget | None = None) -> None:
        self._contexts = {context_name.lower(): context_value for context_name, context_value in contexts.items()}
        self._function_by_name = function_by_name
        self.budget = Budget(shared=shared_budget)

    def evaluate(self, expression: Expression) -> Value:
        """Return the value of an expression. `&&`, `||` and `case()` evaluate only the operands that they need."""
        self.budget.use_steps(expression.column)
        match expression:
            case Literal(value):
                return value
            case Context():
                return self._find_context(expression)
            case Index(target, key):
                return self.index(expression.column, self.evaluate(target), self.evaluate(key))
            case Filter(target):
                return self.filter(expression.column, self.evaluate(target))
            case Call():
                return self._evaluate_call(expression)
            case Not(operand):
                return not is_truthy(self.evaluate(operand))
            case Compare(operator, left, right):
                return self.compare(expression.column, operator, self.evaluate(left), self.evaluate(right))
            case And(operands):
                return self._evaluate_until(operands, stop_at=False)
            case Or(operands):
                return self._evaluate_until(operands, stop_at=True)
            case _:
                assert_never(expression)

    def compare(self, column: int, operator: str, left: Value, right: Value) -> Value:
        """Return whether a comparison of two values holds. `column` is the position for errors."""
        if isinstance(left, str) and isinstance(right, str):
            self.budget.use_characters(column, len(left) + len(right))
        return compare(operator, left, right)

    def call(self, call: Call, arguments: Sequence[Value]) -> Value:
        """Return the result of a function for evaluated arguments. Raise EvaluationError for an unknown function."""
        if problem := argument_problem(call):
            raise EvaluationError(problem)
        if function := find_function(self._function_by_name, call.name):
            return function(arguments)
        if not is_builtin(call.name):
            function_by_name = self._function_by_name
            raise EvaluationError(
                ExpressionProblem(
                    call.column,
                    quote(call.name),
                    "a function that is available here",
                    nearest(call.name, function_by_name),
                )
            )
        return call_builtin(call, arguments, self.budget)

    def check_condition(self, argument: Expression, value: Value) -> bool:
        """Return `value`, a condition of case(). Raise EvaluationError unless it is a boolean."""
        if not isinstance(value, bool):
            condition_text = f"{type_name(value)} as a condition of case()"
            raise EvaluationError(
                ExpressionProblem(argument.column, condition_text, "true or false; compare it with something")
            )
        return value

    def filter(self, column: int, target: Value) -> FilteredList:
        """Return the items of an array or of an object (`target.*`).

        For a FilteredList, concatenate the items of all of its items.
        """
        filtered_items: list[Value] = []
        for container in target if isinstance(target, FilteredList) else (target,):
            children = _items(container)
            self.budget.use_steps(column, len(children) + 1)
            filtered_items.extend(children)
        return FilteredList(filtered_items)

    def index(self, column: int, target: Value, key: Value) -> Value:
        """Return the property or item of `target` that `key` selects, or null if there is none (`target[key]`).

        For a FilteredList, return a FilteredList of the selected values of those items that have one.
        """
        if isinstance(target, FilteredList):
            self.budget.use_steps(column, len(target))
            lookups = (self._lookup(column, item, key) for item in target)
            return FilteredList(item for is_present, item in lookups if is_present)
        return self._lookup(column, target, key)[1]

    def _lookup(self, column: int, target: Value, key: Value) -> tuple[bool, Value]:
        """Return whether `target` has an item for `key`, and the item, or null."""
        if is_object(target) and is_primitive(key):
            return self._find_property(column, target, to_text(key))
        if is_list(target):
            index = array_index(key)
            if index is not None and index < len(target):
                return True, target[index]
        return False, None

    def _find_property(self, column: int, target: Mapping[str, Value], key: str) -> tuple[bool, Value]:
        if key in target:
            return True, target[key]
        self.budget.use_steps(column, len(target))
        folded_name = fold_case(key)
        for property_name, property_value in target.items():
            if len(property_name) == len(key) and fold_case(property_name) == folded_name:
                return True, property_value
        return False, None

    def _find_context(self, context: Context) -> Value:
        context_name = context.name.lower()
        if context_name not in self._contexts:
            available = self._contexts
            raise EvaluationError(
                ExpressionProblem(
                    context.column,
                    quote(context.name),
                    "a context that is available here",
                    nearest(context_name, available),
                )
            )
        return self._contexts[context_name]

    def _evaluate_call(self, call: Call) -> Value:
        if call.name.lower() == "case" and not argument_problem(call):
            return self._evaluate_case(call.arguments)
        return self.call(call, [self.evaluate(argument) for argument in call.arguments])

    def _evaluate_case(self, arguments: Sequence[Expression]) -> Value:
        for condition, result_expression in zip(arguments[:-1:2], arguments[1::2], strict=True):
            if self.check_condition(condition, self.evaluate(condition)):
                return self.evaluate(result_expression)
        return self.evaluate(arguments[-1])

    def _evaluate_until(self, operands: Sequence[Expression], *, stop_at: bool) -> Value:
        """Return the value of the first operand whose truth is `stop_at`, else that of the last operand."""
        value: Value = None
        for operand in operands:
            value = self.evaluate(operand)
            if is_truthy(value) is stop_at:
                break
        return value


def _items(target: Value) -> Sequence[Value]:
    if is_object(target):
        return list(target.values())
    return target if is_list(target) else ()
