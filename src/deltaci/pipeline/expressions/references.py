"""What an expression mentions: contexts, and how far into each of them it can be told from the text alone."""

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
    parts,
)

EVERY: Final = "*"


class Mention(Struct, frozen=True):
    """A context, in small letters, and the keys that follow as written; `*` for every one. `at` is its column.

    `is_whole` says that more may be meant than the keys tell: something unknown follows, or nothing does.
    """

    context: str
    keys: tuple[str, ...]
    at: int = 0
    is_whole: bool = False


def mentions(expression: Expression) -> Iterator[Mention]:
    """Everything that an expression mentions, in the order of the text."""
    keys: list[str] = []
    node = expression
    chain: list[Index | Filter] = []
    while isinstance(node, Index | Filter):
        chain.append(node)
        node = node.of
    if not isinstance(node, Context):
        for part in parts(node):
            yield from mentions(part)
    is_told = True
    for link in reversed(chain):
        key = link.key if isinstance(link, Index) else Literal(EVERY)
        is_told = is_told and isinstance(key, Literal)
        if is_told and isinstance(key, Literal):
            keys.append(_written(key))
    if isinstance(node, Context):
        yield Mention(node.name.lower(), tuple(keys), node.at, is_whole=not keys or not is_told)
    for link in reversed(chain):
        if isinstance(link, Index):
            yield from mentions(link.key)


def _written(key: Literal) -> str:
    return key.value if isinstance(key.value, str) else str(key.value)


def replaced(expression: Expression, by: Callable[[Expression], Expression | None]) -> Expression:
    """The same expression, with another one wherever `by` gives one."""
    if (other := by(expression)) is not None:
        return other
    match expression:
        case Index(of, key, at):
            return Index(replaced(of, by), replaced(key, by), at)
        case Filter(of, at):
            return Filter(replaced(of, by), at)
        case Not(of, at):
            return Not(replaced(of, by), at)
        case Call(name, arguments, at):
            return Call(name, tuple(replaced(each, by) for each in arguments), at)
        case Compare(operator, left, right, at):
            return Compare(operator, replaced(left, by), replaced(right, by), at)
        case And(operands, at):
            return And(tuple(replaced(each, by) for each in operands), at)
        case Or(operands, at):
            return Or(tuple(replaced(each, by) for each in operands), at)
        case _:
            return expression
