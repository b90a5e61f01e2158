"""References of an expression to contexts, such as `needs.build.outputs.tag`, and replacement of nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from msgspec import Struct

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
    children,
)

ANY_KEY: Final = "*"


class ContextReference(Struct, frozen=True):
    """A reference to a context: its name in lower case, and the literal keys that follow it, as written.

    The key `*` stands for all items. `keys` ends before the first key that is computed.
    """

    context: str
    keys: tuple[str, ...]
    column: int = 0


def context_references(expression: Expression) -> Iterator[ContextReference]:
    """Yield the context references of an expression in source order. A reference ends before the first computed key."""
    constant_keys: list[str] = []
    node = expression
    accesses: list[Index | Filter] = []
    while isinstance(node, Index | Filter):
        accesses.append(node)
        node = node.target
    if not isinstance(node, Context):
        for child in children(node):
            yield from context_references(child)
    is_constant = True
    for access in reversed(accesses):
        key = access.key if isinstance(access, Index) else Literal(ANY_KEY)
        is_constant = is_constant and isinstance(key, Literal)
        if is_constant and isinstance(key, Literal):
            constant_keys.append(_key_text(key))
    if isinstance(node, Context):
        yield ContextReference(node.name.lower(), tuple(constant_keys), node.column)
    for access in reversed(accesses):
        if isinstance(access, Index):
            yield from context_references(access.key)


def _key_text(key: Literal) -> str:
    return key.value if isinstance(key.value, str) else str(key.value)


def replace_nodes(expression: Expression, find_replacement: Callable[[Expression], Expression | None]) -> Expression:
    """Return a copy of an expression with some nodes replaced.

    `find_replacement` returns the expression that replaces a node, or None to keep the node. It is called for each node
    before its children, and not for nodes within a replacement.
    """
    if (replacement := find_replacement(expression)) is not None:
        return replacement
    match expression:
        case Index(target, key, column):
            return Index(replace_nodes(target, find_replacement), replace_nodes(key, find_replacement), column)
        case Filter(target, column):
            return Filter(replace_nodes(target, find_replacement), column)
        case Not(operand, column):
            return Not(replace_nodes(operand, find_replacement), column)
        case Call(function_name, arguments, column):
            return Call(
                function_name, tuple(replace_nodes(argument, find_replacement) for argument in arguments), column
            )
        case Compare(operator, left, right, column):
            return Compare(
                operator, replace_nodes(left, find_replacement), replace_nodes(right, find_replacement), column
            )
        case And(operands, column):
            return And(tuple(replace_nodes(operand, find_replacement) for operand in operands), column)
        case Or(operands, column):
            return Or(tuple(replace_nodes(operand, find_replacement) for operand in operands), column)
        case _:
            return expression
