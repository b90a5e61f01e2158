"""Expressions in which names are replaced: what an action calls its inputs and steps is called otherwise in a job."""

from __future__ import annotations

from collections.abc import Callable
from typing import assert_never

from deltaci.pipeline.expressions import BadExpression, Expression, read
from deltaci.pipeline.expressions.printer import printed
from deltaci.pipeline.expressions.templates import CLOSE, OPEN
from deltaci.pipeline.expressions.tree import And, Call, Compare, Context, Filter, Index, Literal, Not, Or

Change = Callable[[Expression], Expression | None]


def replaced(expression: Expression, change: Change) -> Expression:
    """The expression with every part for which `change` gives another; of that nothing more is replaced."""
    found = change(expression)
    if found is not None:
        return found
    match expression:
        case Literal() | Context():
            return expression
        case Index(of, key):
            return Index(replaced(of, change), replaced(key, change))
        case Filter(of):
            return Filter(replaced(of, change))
        case Not(of):
            return Not(replaced(of, change))
        case Call(name, arguments):
            return Call(name, tuple(replaced(each, change) for each in arguments))
        case Compare(operator, left, right):
            return Compare(operator, replaced(left, change), replaced(right, change))
        case And(operands):
            return And(tuple(replaced(each, change) for each in operands))
        case Or(operands):
            return Or(tuple(replaced(each, change) for each in operands))
        case _:
            assert_never(expression)


def text(written: str, change: Change) -> str:
    """A text with its expressions replaced; one that cannot be read stays as it is, to be refused later."""
    if OPEN not in written:
        return written
    try:
        parts = read(written).parts
    except BadExpression:
        return written
    return "".join(part if isinstance(part, str) else _hole(replaced(part, change)) for part in parts)


def _hole(expression: Expression) -> str:
    if isinstance(expression, Literal) and isinstance(expression.value, str) and OPEN not in expression.value:
        return expression.value  # It is known: there is nothing to work out.
    return f"{OPEN} {printed(expression)} {CLOSE}"
