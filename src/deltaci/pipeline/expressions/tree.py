"""What an expression is once it is read: a tree of a few kinds of nodes.

Two nodes are equal if they say the same, wherever they stand: `at`, the column, does not count. Numbers are told
from booleans, and NaN is the same as NaN, because a tree is about what is written and not about what it is worth.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, TypeAlias

from msgspec import Struct

Primitive: TypeAlias = str | float | bool | None

COMPARISONS: Final = frozenset({"==", "!=", "<", "<=", ">", ">="})


class Node(Struct, frozen=True, eq=False):
    """Any expression. `at` is the column where it begins, or its operator stands; 0 if nobody wrote it."""

    def _said(self) -> tuple[object, ...]:
        return tuple(getattr(self, name) for name in self.__struct_fields__ if name != "at")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Node) and type(self) is type(other) and self._said() == other._said()

    def __ne__(self, other: object) -> bool:
        return not self == other  # A struct brings one of its own, which compares by identity.

    def __hash__(self) -> int:
        return hash((type(self).__name__, self._said()))


class Literal(Node, frozen=True, eq=False):
    """`null`, `true`, `12.5` or `'text'`."""

    value: Primitive
    at: int = 0

    def _said(self) -> tuple[object, ...]:
        return type(self.value).__name__, repr(self.value)


class Context(Node, frozen=True, eq=False):
    """The name of a context: `matrix`. Names are the same in capitals and in small letters."""

    name: str
    at: int = 0


class Index(Node, frozen=True, eq=False):
    """`of.key`, `of['key']` or `of[0]`."""

    of: Expression
    key: Expression
    at: int = 0


class Filter(Node, frozen=True, eq=False):
    """`of.*` or `of[*]`: every item, to each of which the next index applies."""

    of: Expression
    at: int = 0


class Call(Node, frozen=True, eq=False):
    """`name(arguments)`."""

    name: str
    arguments: tuple[Expression, ...] = ()
    at: int = 0


class Not(Node, frozen=True, eq=False):
    """`!of`."""

    of: Expression
    at: int = 0


class Compare(Node, frozen=True, eq=False):
    """`left == right`, or another of the six comparisons."""

    operator: str
    left: Expression
    right: Expression
    at: int = 0


class And(Node, frozen=True, eq=False):
    """`a && b && …`: the first operand that is falsy, else the last. At least two."""

    operands: tuple[Expression, ...]
    at: int = 0


class Or(Node, frozen=True, eq=False):
    """`a || b || …`: the first operand that is truthy, else the last. At least two."""

    operands: tuple[Expression, ...]
    at: int = 0


Expression: TypeAlias = Literal | Context | Index | Filter | Call | Not | Compare | And | Or


def parts(expression: Expression) -> tuple[Expression, ...]:
    """The expressions directly within this one."""
    match expression:
        case Index(of, key):
            return (of, key)
        case Filter(of) | Not(of):
            return (of,)
        case Call(_, arguments):
            return arguments
        case Compare(_, left, right):
            return (left, right)
        case And(operands) | Or(operands):
            return operands
        case _:
            return ()


def walk(expression: Expression) -> Iterator[tuple[Expression, int]]:
    """Every expression within this one, itself first, in the order of the text, each with its depth from 1."""
    waiting = [(expression, 1)]
    while waiting:
        node, depth = waiting.pop()
        yield node, depth
        waiting.extend((part, depth + 1) for part in reversed(parts(node)))


def contexts_of(expression: Expression) -> frozenset[str]:
    """The contexts that an expression mentions, in small letters."""
    return frozenset(node.name.lower() for node, _ in walk(expression) if isinstance(node, Context))


def functions_of(expression: Expression) -> frozenset[str]:
    """The functions that an expression mentions, in small letters."""
    return frozenset(node.name.lower() for node, _ in walk(expression) if isinstance(node, Call))
