"""A tree as text that is read back as the same tree, with brackets only where they are needed."""

from __future__ import annotations

import math
from typing import assert_never

from deltaci.pipeline.expressions.parser import BINDS
from deltaci.pipeline.expressions.tokenizer import is_name
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
    Primitive,
)

_NOT = 5  # binds tighter than every operator between two operands
_PLAIN = 1e15  # a whole number below this is written without an exponent
_INDEXED = 6  # binds tightest: nothing else may stand before a dot


def printed(expression: Expression) -> str:
    """The text of an expression, without `${{` and `}}`."""
    match expression:
        case Literal(value):
            return _literal(value)
        case Context(name):
            return name
        case Index(of, Literal(str(key))) if is_name(key):
            return f"{_within(of, _INDEXED)}.{key}"
        case Index(of, key):
            return f"{_within(of, _INDEXED)}[{printed(key)}]"
        case Filter(of):
            return f"{_within(of, _INDEXED)}.*"
        case Call(name, arguments):
            return f"{name}({', '.join(map(printed, arguments))})"
        case Not(of):
            return f"!{_within(of, _NOT)}"
        case Compare(operator, left, right):
            binds = BINDS[operator]
            return f"{_within(left, binds)} {operator} {_within(right, binds + 1)}"
        case And(operands):
            return " && ".join(_within(operand, BINDS["&&"] + 1) for operand in operands)
        case Or(operands):
            return " || ".join(_within(operand, BINDS["||"] + 1) for operand in operands)
        case _:
            assert_never(expression)


def _within(expression: Expression, binds: int) -> str:
    """The text of a part, in brackets if it binds less tightly than its place asks for."""
    text = printed(expression)
    return text if _binds(expression) >= binds else f"({text})"


def _binds(expression: Expression) -> int:
    match expression:
        case Or():
            return BINDS["||"]
        case And():
            return BINDS["&&"]
        case Compare(operator):
            return BINDS[operator]
        case Not() | Literal():
            return _NOT  # a literal has no properties of its own: `('a').b`, not `'a'.b`
        case _:
            return _INDEXED


def _literal(value: Primitive) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case str():
            return "'" + value.replace("'", "''") + "'"
        case _:
            if math.isnan(value):
                return "NaN"
            if math.isinf(value):
                return "Infinity" if value > 0 else "-Infinity"
            if value.is_integer() and abs(value) < _PLAIN:
                return ("-" if math.copysign(1, value) < 0 else "") + str(abs(int(value)))
            return repr(value)
