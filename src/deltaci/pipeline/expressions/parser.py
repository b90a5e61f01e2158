"""A recursive descent parser: tokens to a syntax tree."""

from __future__ import annotations

from typing import Final

from deltaci.pipeline.expressions.errors import ExpressionProblem, ExpressionSyntaxError
from deltaci.pipeline.expressions.limits import MAX_DEPTH
from deltaci.pipeline.expressions.tokenizer import END, NAME, Token, tokenize
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

# Precedence of binary operators. `!` binds tighter than all of these, and `.`, `[]` and `()` tighter still.
PRECEDENCE: Final = {"||": 1, "&&": 2, "==": 3, "!=": 3, "<": 4, "<=": 4, ">": 4, ">=": 4}
OPERAND_DESCRIPTION: Final = "a value, a context or a function"
# Operators of other languages, for hints in messages.
WORD_OPERATORS: Final = {"and": "'&&'", "or": "'||'", "not": "'!'", "is": "'=='", "eq": "'=='", "ne": "'!='"}


def parse(source: str, offset: int = 0) -> Expression:
    """Return the syntax tree of an expression without `${{` and `}}`. Raise ExpressionSyntaxError if it is invalid.

    `offset` is the number of characters before the expression in its text; all columns are increased by it.
    """
    expression = _Parser(tokenize(source, offset)).parse()
    check_depth(expression)
    return expression


def check_depth(expression: Expression) -> None:
    """Raise ExpressionSyntaxError at the first node that is nested too deeply."""
    for node, depth in walk(expression):
        if depth > MAX_DEPTH:
            raise _too_deep(node.column)


class _Parser:
    """Parses the tokens of one expression. Limits the depth of brackets and arguments, which are parsed recursively."""

    def __init__(self, tokens: list[Token]) -> None:
        self._tokens = tokens
        self._index = 0
        self._depth = 0

    def parse(self) -> Expression:
        """Parse all tokens as one expression."""
        expression = self._parse_binary(1)
        if self._current.kind != END:
            operator_word = self._current.text.lower() if self._current.kind == NAME else ""
            raise self._syntax_error("an operator or the end", WORD_OPERATORS.get(operator_word, ""))
        return expression

    @property
    def _current(self) -> Token:
        return self._tokens[self._index]

    def _take(self) -> Token:
        """Return the current token and advance to the next one."""
        token = self._current
        self._index += 1
        return token

    def _expect(self, kind: str, expected: str) -> Token:
        if self._current.kind != kind:
            raise self._syntax_error(expected)
        return self._take()

    def _syntax_error(self, expected: str, nearest: str = "") -> ExpressionSyntaxError:
        return ExpressionSyntaxError(
            ExpressionProblem(self._current.column, self._current.description, expected, nearest)
        )

    def _parse_binary(self, precedence: int) -> Expression:
        """Parse an operand and all following binary operators of at least this precedence, with their operands."""
        left_operand = self._parse_unary()
        while PRECEDENCE.get(self._current.kind, 0) >= precedence:
            operator = self._take()
            operand_precedence = PRECEDENCE[operator.kind] + 1
            if operator.kind in COMPARISONS:
                left_operand = Compare(
                    operator.kind, left_operand, self._parse_binary(operand_precedence), operator.column
                )
                continue
            operands = [left_operand, self._parse_binary(operand_precedence)]
            while self._current.kind == operator.kind:
                self._take()
                operands.append(self._parse_binary(operand_precedence))
            left_operand = (And if operator.kind == "&&" else Or)(tuple(operands), operator.column)
        return left_operand

    def _parse_unary(self) -> Expression:
        negations = []
        while self._current.kind == "!":
            negations.append(self._take().column)
        expression = self._parse_operand()
        for column in reversed(negations):
            expression = Not(expression, column)
        return expression

    def _parse_operand(self) -> Expression:
        token = self._current
        match token.kind:
            case "value":
                self._take()
                return Literal(token.value, token.column)
            case "name":
                self._take()
                if self._current.kind == "(":
                    return self._parse_accessors(Call(token.text, self._parse_arguments(), token.column))
                return self._parse_accessors(Context(token.text, token.column))
            case "(":
                self._take()
                nested_expression = self._parse_nested(token)
                self._expect(")", "an operator or ')'")
                return self._parse_accessors(nested_expression)
            case _:
                raise self._syntax_error(OPERAND_DESCRIPTION)

    def _parse_nested(self, opening_bracket: Token) -> Expression:
        """Parse an expression within brackets, or one argument. `opening_bracket` is the opening bracket."""
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise _too_deep(opening_bracket.column)
        nested_expression = self._parse_binary(1)
        self._depth -= 1
        return nested_expression

    def _parse_arguments(self) -> tuple[Expression, ...]:
        opening_bracket = self._take()
        arguments: list[Expression] = []
        if self._current.kind != ")":
            arguments.append(self._parse_nested(opening_bracket))
            while self._current.kind == ",":
                self._take()
                arguments.append(self._parse_nested(opening_bracket))
        self._expect(")", "an operator, ',' or ')'" if arguments else f"{OPERAND_DESCRIPTION}, or ')'")
        return tuple(arguments)

    def _parse_accessors(self, expression: Expression) -> Expression:
        """Parse all `.name`, `.*`, `[key]` and `[*]` that follow an expression."""
        while self._current.kind in (".", "["):
            opening = self._take()
            if self._current.kind == "*":
                self._take()
                expression = Filter(expression, opening.column)
            elif opening.kind == ".":
                property_name = self._expect(NAME, "the name of a property, or '*'")
                expression = Index(expression, Literal(property_name.text, property_name.column), opening.column)
            else:
                expression = Index(expression, self._parse_nested(opening), opening.column)
            if opening.kind == "[":
                self._expect("]", "an operator or ']'")
        return expression


def _too_deep(column: int) -> ExpressionSyntaxError:
    return ExpressionSyntaxError(
        ExpressionProblem(column, "expressions that are nested too deeply", f"at most {MAX_DEPTH} levels")
    )
