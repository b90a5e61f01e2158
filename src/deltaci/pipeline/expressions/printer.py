"""Formats a syntax tree as source text that parses to the same tree, with brackets only where they are needed."""

from __future__ import annotations

import math
from typing import assert_never

from deltaci.pipeline.expressions.parser import PRECEDENCE
from deltaci.pipeline.expressions.tokenizer import is_identifier
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

_NOT_PRECEDENCE = 5  # above every binary operator
_EXPONENT_FROM = 1e15  # integers below this are written without an exponent
_ACCESS_PRECEDENCE = 6  # of `.`, `[]` and calls


def format_expression(expression: Expression) -> str:
    """Return the source text of an expression, without `${{` and `}}`."""
    match expression:
        case Literal(value):
            return _format_literal(value)
        case Context(name):
            return name
        case Index(target, Literal(str(key))) if is_identifier(key):
            return f"{_operand(target, _ACCESS_PRECEDENCE)}.{key}"
        case Index(target, key):
            return f"{_operand(target, _ACCESS_PRECEDENCE)}[{format_expression(key)}]"
        case Filter(target):
            return f"{_operand(target, _ACCESS_PRECEDENCE)}.*"
        case Call(name, arguments):
            return f"{name}({', '.join(map(format_expression, arguments))})"
        case Not(operand):
            return f"!{_operand(operand, _NOT_PRECEDENCE)}"
        case Compare(operator, left, right):
            precedence = PRECEDENCE[operator]
            return f"{_operand(left, precedence)} {operator} {_operand(right, precedence + 1)}"
        case And(operands):
            return " && ".join(_operand(operand, PRECEDENCE["&&"] + 1) for operand in operands)
        case Or(operands):
            return " || ".join(_operand(operand, PRECEDENCE["||"] + 1) for operand in operands)
        case _:
            assert_never(expression)


def _operand(expression: Expression, min_precedence: int) -> str:
    """Return the source text of a subexpression, in brackets if its precedence is below `min_precedence`."""
    operand_text = format_expression(expression)
    return operand_text if _precedence(expression) >= min_precedence else f"({operand_text})"


def _precedence(expression: Expression) -> int:
    match expression:
        case Or():
            return PRECEDENCE["||"]
        case And():
            return PRECEDENCE["&&"]
        case Compare(operator):
            return PRECEDENCE[operator]
        case Not() | Literal():
            return _NOT_PRECEDENCE  # `'a'.b` does not parse, but `('a').b` does
        case _:
            return _ACCESS_PRECEDENCE


def _format_literal(value: Primitive) -> str:
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
            if value.is_integer() and abs(value) < _EXPONENT_FROM:
                return ("-" if math.copysign(1, value) < 0 else "") + str(abs(int(value)))
            return repr(value)
