"""Tokens become a tree. Refuses with the column, what was found there, and what could have stood there."""

from __future__ import annotations

from typing import Final

from deltaci.pipeline.expressions.errors import BadExpression, Mistake
from deltaci.pipeline.expressions.limits import MAX_DEPTH
from deltaci.pipeline.expressions.tokenizer import END, NAME, Token, tokens
from deltaci.pipeline.expressions.tree import (
    COMPARISONS,
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
    walk,
)

# How tightly an operator binds. `!` binds tighter than all of these, and `.`, `[]` and `()` tighter still.
BINDS: Final = {"||": 1, "&&": 2, "==": 3, "!=": 3, "<": 4, "<=": 4, ">": 4, ">=": 4}
OPERAND: Final = "a value, a context or a function"
# How other languages say it.
FOREIGN: Final = {"and": "'&&'", "or": "'||'", "not": "'!'", "is": "'=='", "eq": "'=='", "ne": "'!='"}


def parse(text: str, before: int = 0) -> Expression:
    """The tree of an expression, without `${{` and `}}` around it. Columns count the characters `before` it."""
    expression = _Parser(tokens(text, before)).whole()
    check_depth(expression)
    return expression


def check_depth(expression: Expression) -> None:
    """Refuse an expression that is too deep, where it becomes so."""
    for node, depth in walk(expression):
        if depth > MAX_DEPTH:
            raise _too_deep(node.at)


class _Parser:
    """Reads from left to right. Only brackets make it call itself, and those are counted."""

    def __init__(self, read: list[Token]) -> None:
        self._tokens = read
        self._index = 0
        self._depth = 0

    def whole(self) -> Expression:
        """The one expression that all tokens are."""
        expression = self._binary(1)
        if self._here.kind != END:
            word = self._here.text.lower() if self._here.kind == NAME else ""
            raise self._wrong("an operator or the end", FOREIGN.get(word, ""))
        return expression

    @property
    def _here(self) -> Token:
        return self._tokens[self._index]

    def _take(self) -> Token:
        token = self._here
        self._index += 1
        return token

    def _expect(self, kind: str, expected: str) -> Token:
        if self._here.kind != kind:
            raise self._wrong(expected)
        return self._take()

    def _wrong(self, expected: str, nearest: str = "") -> BadExpression:
        return BadExpression(Mistake(self._here.at, self._here.told, expected, nearest))

    def _binary(self, binds: int) -> Expression:
        """Everything that binds at least so tightly. The loop keeps `a == b == c` from nesting."""
        left = self._unary()
        while BINDS.get(self._here.kind, 0) >= binds:
            operator = self._take()
            tighter = BINDS[operator.kind] + 1
            if operator.kind in COMPARISONS:
                left = Compare(operator.kind, left, self._binary(tighter), operator.at)
                continue
            operands = [left, self._binary(tighter)]
            while self._here.kind == operator.kind:
                self._take()
                operands.append(self._binary(tighter))
            left = (And if operator.kind == "&&" else Or)(tuple(operands), operator.at)
        return left

    def _unary(self) -> Expression:
        negations = []
        while self._here.kind == "!":
            negations.append(self._take().at)
        expression = self._operand()
        for at in reversed(negations):
            expression = Not(expression, at)
        return expression

    def _operand(self) -> Expression:
        token = self._here
        match token.kind:
            case "value":
                self._take()
                return Literal(token.value, token.at)
            case "name":
                self._take()
                if self._here.kind == "(":
                    return self._indexed(Call(token.text, self._arguments(), token.at))
                return self._indexed(Context(token.text, token.at))
            case "(":
                self._take()
                inner = self._within(token)
                self._expect(")", "an operator or ')'")
                return self._indexed(inner)
            case _:
                raise self._wrong(OPERAND)

    def _within(self, opening: Token) -> Expression:
        """An expression in brackets."""
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise _too_deep(opening.at)
        inner = self._binary(1)
        self._depth -= 1
        return inner

    def _arguments(self) -> tuple[Expression, ...]:
        opening = self._take()
        arguments: list[Expression] = []
        if self._here.kind != ")":
            arguments.append(self._within(opening))
            while self._here.kind == ",":
                self._take()
                arguments.append(self._within(opening))
        self._expect(")", "an operator, ',' or ')'" if arguments else f"{OPERAND}, or ')'")
        return tuple(arguments)

    def _indexed(self, expression: Expression) -> Expression:
        while self._here.kind in (".", "["):
            opening = self._take()
            if self._here.kind == "*":
                self._take()
                expression = Filter(expression, opening.at)
            elif opening.kind == ".":
                name = self._expect(NAME, "the name of a property, or '*'")
                expression = Index(expression, Literal(name.text, name.at), opening.at)
            else:
                expression = Index(expression, self._within(opening), opening.at)
            if opening.kind == "[":
                self._expect("]", "an operator or ']'")
        return expression


def _too_deep(at: int) -> BadExpression:
    return BadExpression(Mistake(at, "expressions too deep within each other", f"at most {MAX_DEPTH} levels"))
