"""The syntax tree of an expression.

Two nodes are equal if they have the same structure; `column` is ignored. Literals are equal if they have the same type
and text: `1` and `true` differ although Python considers them equal, and NaN equals NaN.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, TypeAlias

from msgspec import Struct

Primitive: TypeAlias = str | float | bool | None

COMPARISONS: Final = frozenset({"==", "!=", "<", "<=", ">", ">="})


class Node(Struct, frozen=True, eq=False):
    """A node of the tree. `column` (from 1) is the position of its beginning or operator; 0 for a generated node."""

    def _compared_fields(self) -> tuple[object, ...]:
        return tuple(getattr(self, field_name) for field_name in self.__struct_fields__ if field_name != "column")

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Node)
            and type(self) is type(other)
            and self._compared_fields() == other._compared_fields()
        )

    def __ne__(self, other: object) -> bool:
        return not self == other  # Struct defines __ne__ itself, by identity.

    def __hash__(self) -> int:
        return hash((type(self).__name__, self._compared_fields()))


class Literal(Node, frozen=True, eq=False):
    """A literal: `null`, `true`, `12.5` or `'text'`."""

    value: Primitive
    column: int = 0

    def _compared_fields(self) -> tuple[object, ...]:
        return type(self.value).__name__, repr(self.value)


class Context(Node, frozen=True, eq=False):
    """The name of a context, such as `matrix`, which is case-insensitive."""

    name: str
    column: int = 0


class Index(Node, frozen=True, eq=False):
    """Access to a property or item: `target.key`, `target['key']` or `target[0]`."""

    target: Expression
    key: Expression
    column: int = 0


class Filter(Node, frozen=True, eq=False):
    """An object filter, `target.*` or `target[*]`: all items of the target. A following index applies to each item."""

    target: Expression
    column: int = 0


class Call(Node, frozen=True, eq=False):
    """A function call: `name(arguments)`."""

    name: str
    arguments: tuple[Expression, ...] = ()
    column: int = 0


class Not(Node, frozen=True, eq=False):
    """A negation: `!operand`."""

    operand: Expression
    column: int = 0


class Compare(Node, frozen=True, eq=False):
    """A comparison: `left == right`, or with one of the other five operators."""

    operator: str
    left: Expression
    right: Expression
    column: int = 0


class And(Node, frozen=True, eq=False):
    """`a && b && …`, with at least two operands. Its value is that of the first falsy operand, else of the last one."""

    operands: tuple[Expression, ...]
    column: int = 0


class Or(Node, frozen=True, eq=False):
    """`a || b || …`, with at least two operands.

    Its value is that of the first truthy operand, else of the last one.
    """

    operands: tuple[Expression, ...]
    column: int = 0


Expression: TypeAlias = Literal | Context | Index | Filter | Call | Not | Compare | And | Or


def children(expression: Expression) -> tuple[Expression, ...]:
    """Return the direct subexpressions of an expression, in source order."""
    match expression:
        case Index(target, key):
            return (target, key)
        case Filter(target):
            return (target,)
        case Not(operand):
            return (operand,)
        case Call(_, arguments):
            return arguments
        case Compare(_, left, right):
            return (left, right)
        case And(operands) | Or(operands):
            return operands
        case _:
            return ()


def walk(expression: Expression) -> Iterator[tuple[Expression, int]]:
    """Yield each node of an expression with its depth (from 1), parents before children, in source order."""
    pending = [(expression, 1)]
    while pending:
        node, depth = pending.pop()
        yield node, depth
        pending.extend((child, depth + 1) for child in reversed(children(node)))


def context_names(expression: Expression) -> frozenset[str]:
    """Return the lower-case names of the contexts that an expression reads."""
    return frozenset(node.name.lower() for node, _ in walk(expression) if isinstance(node, Context))


def function_names(expression: Expression) -> frozenset[str]:
    """Return the lower-case names of the functions that an expression calls."""
    return frozenset(node.name.lower() for node, _ in walk(expression) if isinstance(node, Call))
