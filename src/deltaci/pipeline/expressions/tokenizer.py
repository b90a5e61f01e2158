"""An expression as a list of words and signs, each with its column."""

from __future__ import annotations

import math
from typing import Final

from msgspec import Struct

from deltaci.pipeline.expressions.errors import BadExpression, Mistake, shown
from deltaci.pipeline.expressions.limits import MAX_LENGTH
from deltaci.pipeline.expressions.tree import Primitive
from deltaci.pipeline.expressions.values import number_of_text

# What a token is. A sign is its own kind.
NAME, VALUE, END = "name", "value", "end"
OPERATORS: Final = ("==", "!=", "<=", ">=", "&&", "||", "<", ">", "!")
SIGNS: Final = frozenset("()[],.*")
HALVES: Final = {"=": "==", "&": "&&", "|": "||"}
BOUNDARIES: Final = frozenset("()[],.!<>=&|")
WORDS: Final[dict[str, Primitive]] = {
    "null": None,
    "true": True,
    "false": False,
    "NaN": math.nan,
    "Infinity": math.inf,
}
# After one of these a dot takes a property; anywhere else it may begin a number.
ENDS_OPERAND: Final = frozenset({NAME, ")", "]", "*"})
LETTERS: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_")
REST_OF_NAME: Final = LETTERS | frozenset("0123456789-")


class Token(Struct, frozen=True):
    """One word or sign: what it is, how it is written, what it is worth, and where it stands."""

    kind: str
    text: str
    at: int
    value: Primitive = None

    @property
    def told(self) -> str:
        """How a message names it."""
        return "the end" if self.kind == END else shown(self.text)


def tokens(text: str, before: int = 0) -> list[Token]:
    """Every token of an expression, and one more for its end, with `before` characters of something else in front."""
    try:
        return _tokens(text, before)
    except BadExpression as refused:
        raise refused.moved(before) from None


def _tokens(text: str, before: int) -> list[Token]:
    if len(text) > MAX_LENGTH:
        raise BadExpression(
            Mistake(1, f"{len(text)} characters", f"at most {MAX_LENGTH}; divide it, with an output of a step between")
        )
    read: list[Token] = []
    index = 0
    while index < len(text):
        if text[index].isspace():
            index += 1
            continue
        token = _next(text, index, read[-1].kind if read else "")
        read.append(Token(token.kind, token.text, token.at + before, token.value))
        index += len(token.text)
    read.append(Token(END, "", len(text) + 1 + before))
    return read


def is_name(text: str) -> bool:
    """Can this stand after a dot, or name a context or a function?"""
    return bool(text) and text[0] in LETTERS and all(letter in REST_OF_NAME for letter in text)


def _next(text: str, index: int, before: str) -> Token:
    sign = text[index]
    if sign == "'":
        return _quoted(text, index)
    if sign in "+-0123456789" or (sign == "." and before not in ENDS_OPERAND and text[index + 1 : index + 2].isdigit()):
        return _number(text, index)
    if sign in SIGNS:
        return Token(sign, sign, index + 1)
    for operator in OPERATORS:
        if text.startswith(operator, index):
            return Token(operator, operator, index + 1)
    if sign in HALVES:
        raise BadExpression(Mistake(index + 1, shown(sign), "an operator", shown(HALVES[sign])))
    return _word(text, index, before)


def _quoted(text: str, index: int) -> Token:
    end = index + 1
    while True:
        end = text.find("'", end)
        if end < 0:
            raise BadExpression(Mistake(index + 1, shown(text[index:]), "a text that ends with a single quote"))
        if text[end + 1 : end + 2] != "'":
            break
        end += 2
    return Token(VALUE, text[index : end + 1], index + 1, text[index + 1 : end].replace("''", "'"))


def _number(text: str, index: int) -> Token:
    end = _boundary(text, index, dots=True)
    written = text[index:end]
    value = number_of_text(written)
    if math.isnan(value):
        raise BadExpression(Mistake(index + 1, shown(written), "a number such as 12, -0.5, 0xff or 2.99e-2"))
    return Token(VALUE, written, index + 1, value)


def _word(text: str, index: int, before: str) -> Token:
    end = _boundary(text, index, dots=False)
    written = text[index:end]
    if not is_name(written):
        if written[0] == '"':
            raise BadExpression(Mistake(index + 1, "a double quote", "a text in single quotes, such as 'main'"))
        raise BadExpression(Mistake(index + 1, shown(written), "a name of letters, digits, '-' and '_'"))
    if before != "." and written in WORDS:
        return Token(VALUE, written, index + 1, WORDS[written])
    return Token(NAME, written, index + 1)


def _boundary(text: str, index: int, *, dots: bool) -> int:
    end = index + 1
    while end < len(text):
        sign = text[end]
        if sign.isspace() or (sign in BOUNDARIES and not (dots and sign == ".")):
            break
        end += 1
    return end
