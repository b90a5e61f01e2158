"""The value of a tree with these contexts. Nothing is ever given to Python to run; all work is counted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import assert_never

from deltaci.core.nearest import nearest
from deltaci.pipeline.expressions.errors import FailedExpression, Mistake, shown
from deltaci.pipeline.expressions.functions import Function, builtin, find, is_builtin, wrong_arguments
from deltaci.pipeline.expressions.limits import Budget, check_text
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
    Filtered,
    Value,
    compare,
    fold,
    is_list,
    is_object,
    is_primitive,
    kind,
    position,
    text,
    truthy,
)

Contexts = Mapping[str, Value]
Functions = Mapping[str, Function]


def evaluate(
    expression: Expression, contexts: Contexts, functions: Functions | None = None, whole: Budget | None = None
) -> Value:
    """The value of an expression. `functions` has those that look at files or at how the job goes."""
    value = Evaluator(contexts, functions or {}, whole).value(expression)
    if isinstance(value, str):
        check_text(expression.at, len(value))
    return list(value) if isinstance(value, Filtered) else value


class Evaluator:
    """One evaluation: what is known, and what may still be done."""

    def __init__(self, contexts: Contexts, functions: Functions, whole: Budget | None = None) -> None:
        self._contexts = {name.lower(): value for name, value in contexts.items()}
        self._functions = functions
        self.budget = Budget(whole=whole)

    def value(self, expression: Expression) -> Value:
        """The value of one expression, and first of those within it."""
        self.budget.step(expression.at)
        match expression:
            case Literal(value):
                return value
            case Context():
                return self._context(expression)
            case Index(of, key):
                return self.index(expression.at, self.value(of), self.value(key))
            case Filter(of):
                return self.filter(expression.at, self.value(of))
            case Call():
                return self._call(expression)
            case Not(of):
                return not truthy(self.value(of))
            case Compare(operator, left, right):
                return self.compare(expression.at, operator, self.value(left), self.value(right))
            case And(operands):
                return self._first(operands, wanted=False)
            case Or(operands):
                return self._first(operands, wanted=True)
            case _:
                assert_never(expression)

    def compare(self, at: int, operator: str, left: Value, right: Value) -> Value:
        """The value of a comparison, once both sides are known."""
        if isinstance(left, str) and isinstance(right, str):
            self.budget.text(at, len(left) + len(right))
        return compare(operator, left, right)

    def call(self, call: Call, arguments: Sequence[Value]) -> Value:
        """The value of a function, once its arguments are known."""
        if wrong := wrong_arguments(call):
            raise FailedExpression(wrong)
        if given := find(self._functions, call.name):
            return given(arguments)
        if not is_builtin(call.name):
            names = self._functions
            raise FailedExpression(
                Mistake(call.at, shown(call.name), "a function that is known here", nearest(call.name, names))
            )
        return builtin(call, arguments, self.budget)

    def condition(self, argument: Expression, value: Value) -> bool:
        """The value of a condition of case(), which must be a boolean."""
        if not isinstance(value, bool):
            found = f"{kind(value)} as a condition of case()"
            raise FailedExpression(Mistake(argument.at, found, "true or false; compare it with something"))
        return value

    def filter(self, at: int, of: Value) -> Filtered:
        """Every item of an array, an object, or of each item that a filter gave before."""
        items: list[Value] = []
        for each in of if isinstance(of, Filtered) else (of,):
            more = _items(each)
            self.budget.step(at, len(more) + 1)
            items.extend(more)
        return Filtered(items)

    def index(self, at: int, of: Value, key: Value) -> Value:
        """A property or an item; null if there is none. After a filter: of every item that has it."""
        if isinstance(of, Filtered):
            self.budget.step(at, len(of))
            found = (self._one(at, item, key) for item in of)
            return Filtered(item for has, item in found if has)
        return self._one(at, of, key)[1]

    def _one(self, at: int, of: Value, key: Value) -> tuple[bool, Value]:
        if is_object(of) and is_primitive(key):
            return self._property(at, of, text(key))
        if is_list(of):
            index = position(key)
            if index is not None and index < len(of):
                return True, of[index]
        return False, None

    def _property(self, at: int, of: Mapping[str, Value], name: str) -> tuple[bool, Value]:
        if name in of:
            return True, of[name]
        self.budget.step(at, len(of))
        folded = fold(name)
        for key, value in of.items():
            if len(key) == len(name) and fold(key) == folded:
                return True, value
        return False, None

    def _context(self, context: Context) -> Value:
        name = context.name.lower()
        if name not in self._contexts:
            names = self._contexts
            raise FailedExpression(
                Mistake(context.at, shown(context.name), "a context that is known here", nearest(name, names))
            )
        return self._contexts[name]

    def _call(self, call: Call) -> Value:
        if call.name.lower() == "case" and not wrong_arguments(call):
            return self._case(call.arguments)
        return self.call(call, [self.value(argument) for argument in call.arguments])

    def _case(self, arguments: Sequence[Expression]) -> Value:
        for condition, result in zip(arguments[:-1:2], arguments[1::2], strict=True):
            if self.condition(condition, self.value(condition)):
                return self.value(result)
        return self.value(arguments[-1])

    def _first(self, operands: Sequence[Expression], *, wanted: bool) -> Value:
        value: Value = None
        for operand in operands:
            value = self.value(operand)
            if truthy(value) is wanted:
                break
        return value


def _items(of: Value) -> Sequence[Value]:
    if is_object(of):
        return list(of.values())
    return of if is_list(of) else ()
