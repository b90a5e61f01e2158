"""What can be said of an expression before everything is known: its value, or the expression that remains.

What remains has the same value later as the whole would have had. A part that fails stays as it is written, because
it may never be reached. So does an array or an object that is compared, because those are equal only to themselves,
and what would become too long: the contexts that were known are then still mentioned, see `contexts_of`. Values that
are known are written into what remains, so secrets must not be among them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias, assert_never

from msgspec import Struct

from deltaci.pipeline.expressions.errors import FailedExpression, Mistake
from deltaci.pipeline.expressions.evaluator import Contexts, Evaluator, Functions
from deltaci.pipeline.expressions.functions import find, is_builtin, wrong_arguments
from deltaci.pipeline.expressions.json_text import compact
from deltaci.pipeline.expressions.limits import MAX_DEPTH, MAX_LENGTH, Budget
from deltaci.pipeline.expressions.printer import printed
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
from deltaci.pipeline.expressions.values import Filtered, Value, is_list, is_primitive, number, truthy

MAX_EMBEDDED: Final = 4_096  # characters of a known value that an expression carries along


class Known(Struct, frozen=True):
    """Everything that matters is known: this is the value."""

    value: Value


class Remains(Struct, frozen=True):
    """The value waits for something that is not known yet."""

    expression: Expression

    @property
    def text(self) -> str:
        """The expression as text that is read back as the same expression."""
        return printed(self.expression)


_Reduced: TypeAlias = Known | Expression


def reduce(
    expression: Expression, known: Contexts, functions: Functions | None = None, whole: Budget | None = None
) -> Known | Remains:
    """The value of an expression as far as these contexts and functions tell it."""
    return reduce_with(Reducer(known, functions or {}, whole), expression)


def reduce_with(reducer: Reducer, expression: Expression) -> Known | Remains:
    """The same, with what a reducer may still do."""
    reduced = reducer.reduce(expression, by_identity=False)
    if isinstance(reduced, Known):
        return Known(list(reduced.value)) if isinstance(reduced.value, Filtered) else reduced
    for remaining in (reduced, expression):
        if max(depth for _, depth in walk(remaining)) <= MAX_DEPTH and len(printed(remaining)) <= MAX_LENGTH:
            return Remains(remaining)
    raise FailedExpression(Mistake(expression.at, "an expression that is too long to write", "a shorter one"))


class Reducer:
    """One reduction. `by_identity` says that a value may be compared: an array must then stay what it is."""

    def __init__(self, known: Contexts, functions: Functions, whole: Budget | None = None) -> None:
        self._known = frozenset(name.lower() for name in known)
        self._functions = functions
        self._evaluator = Evaluator(known, functions, whole)

    def reduce(self, expression: Expression, *, by_identity: bool) -> _Reduced:
        """The value, or what remains. Whatever fails stays as it is written and fails later, if it is reached."""
        try:
            self._evaluator.budget.step(expression.at)
            return self._reduce(expression, by_identity)
        except FailedExpression:
            return expression

    def _reduce(self, node: Expression, by_identity: bool) -> _Reduced:
        match node:
            case Literal(value):
                return Known(value)
            case Context(name):
                return Known(self._evaluator.value(node)) if name.lower() in self._known else node
            case Index(of, key):
                return self._index(node, of, key, by_identity)
            case Filter(of):
                inner = self.reduce(of, by_identity=by_identity)
                if isinstance(inner, Known):
                    return Known(self._evaluator.filter(node.at, inner.value))
                return Filter(inner, node.at)
            case Call():
                return self._call(node, by_identity)
            case Not(of):
                inner = self.reduce(of, by_identity=False)
                return Known(not truthy(inner.value)) if isinstance(inner, Known) else Not(inner, node.at)
            case Compare(operator, left, right):
                return self._compare(node, operator, left, right)
            case And(operands):
                kept = self._logic(operands, wanted=False, by_identity=by_identity)
                return And(kept, node.at) if isinstance(kept, tuple) else kept
            case Or(operands):
                kept = self._logic(operands, wanted=True, by_identity=by_identity)
                return Or(kept, node.at) if isinstance(kept, tuple) else kept
            case _:
                assert_never(node)

    def _index(self, node: Index, of: Expression, key: Expression, by_identity: bool) -> _Reduced:
        inner = self.reduce(of, by_identity=by_identity)
        place = self.reduce(key, by_identity=False)
        if isinstance(inner, Known) and isinstance(place, Known):
            return Known(self._evaluator.index(node.at, inner.value, place.value))
        return Index(_written(inner, of, by_identity), _written(place, key, False), node.at)

    def _compare(self, node: Compare, operator: str, left: Expression, right: Expression) -> _Reduced:
        first = self.reduce(left, by_identity=True)
        second = self.reduce(right, by_identity=True)
        if isinstance(first, Known) and isinstance(second, Known):
            return Known(self._evaluator.compare(node.at, operator, first.value, second.value))
        return Compare(operator, _written(first, left, True), _written(second, right, True), node.at)

    def _logic(
        self, operands: Sequence[Expression], *, wanted: bool, by_identity: bool
    ) -> _Reduced | tuple[Expression, ...]:
        """The operands that still matter. One that is known and decides nothing is dropped, unless it is the last."""
        kept: list[Expression] = []
        for place, operand in enumerate(operands, 1):
            reduced = self.reduce(operand, by_identity=by_identity)
            if isinstance(reduced, Known):
                decides = truthy(reduced.value) is wanted
                if not decides and place < len(operands):
                    continue
                if not kept:
                    return reduced
                kept.append(_written(reduced, operand, by_identity))
                if decides:
                    break
            else:
                kept.append(reduced)
        return kept[0] if len(kept) == 1 else tuple(kept)

    def _call(self, node: Call, by_identity: bool) -> _Reduced:
        if wrong_arguments(node):
            return node
        name = node.name.lower()
        if name == "case":
            return self._case(node, by_identity)
        identities = [name == "contains"] * len(node.arguments)
        reduced = [
            self.reduce(argument, by_identity=identity)
            for argument, identity in zip(node.arguments, identities, strict=True)
        ]
        if all(isinstance(each, Known) for each in reduced) and (is_builtin(name) or find(self._functions, name)):
            return Known(self._evaluator.call(node, [each.value for each in reduced if isinstance(each, Known)]))
        if name == "contains" and isinstance(reduced[0], Known) and _is_flat(reduced[0].value):
            identities[0] = False
        written = zip(reduced, node.arguments, identities, strict=True)
        return Call(node.name, tuple(_written(*each) for each in written), node.at)

    def _case(self, node: Call, by_identity: bool) -> _Reduced:
        kept: list[Expression] = []
        last = node.arguments[-1]
        for index in range(0, len(node.arguments) - 1, 2):
            condition, result = node.arguments[index : index + 2]
            reduced = self.reduce(condition, by_identity=False)
            if not isinstance(reduced, Known):
                value = self.reduce(result, by_identity=by_identity)
                kept += [reduced, _written(value, result, by_identity)]
            elif not isinstance(reduced.value, bool):  # it fails, but only if it is reached
                return Call(node.name, (*kept, *node.arguments[index:]), node.at)
            elif reduced.value:
                last = result
                break
        value = self.reduce(last, by_identity=by_identity)
        if not kept:
            return value
        return Call(node.name, (*kept, _written(value, last, by_identity)), node.at)


def _written(reduced: _Reduced, original: Expression, by_identity: bool) -> Expression:
    """A value as an expression; as it was written, if no other expression would do."""
    if isinstance(reduced, Node):
        return reduced
    value = reduced.value
    if isinstance(value, str):
        return Literal(value, original.at) if len(value) <= MAX_EMBEDDED else original
    if value is None or isinstance(value, bool):
        return Literal(value, original.at)
    if isinstance(value, int | float):
        return Literal(number(value), original.at)
    carried = None if by_identity else compact(value, MAX_EMBEDDED)
    if carried is None:
        return original
    call = Call("fromJSON", (Literal(carried, original.at),), original.at)
    return Filter(call, original.at) if isinstance(value, Filtered) else call


def _is_flat(value: Value) -> bool:
    """Is it an array of which no item is compared by being itself?"""
    return is_list(value) and all(is_primitive(item) for item in value)
