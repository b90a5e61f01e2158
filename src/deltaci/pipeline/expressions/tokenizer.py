"""Splits an expression into tokens."""

from __future__ import annotations

import math
from typing import Final

from msgspec import Struct

from deltaci.pipeline.expressions.errors import ExpressionProblem, ExpressionSyntaxError, quote
from deltaci.pipeline.expressions.limits import MAX_LENGTH
from deltaci.pipeline.expressions.tree import Primitive
from deltaci.pipeline.expressions.values import parse_number

# Token kinds. An operator or punctuation character is its own kind.
NAME, VALUE, END = "name", "value", "end"
OPERATORS: Final = ("==", "!=", "<=", ">=", "&&", "||", "<", ">", "!")
PUNCTUATION: Final = frozenset("()[],.*")
INCOMPLETE_OPERATORS: Final = {"=": "==", "&": "&&", "|": "||"}
DELIMITERS: Final = frozenset("()[],.!<>=&|")
KEYWORDS: Final[dict[str, Primitive]] = {
    "null": None,
    "true": True,
    "false": False,
    "NaN": math.nan,
    "Infinity": math.inf,
}
# After these kinds a dot accesses a property; elsewhere it may begin a number.
OPERAND_ENDS: Final = frozenset({NAME, ")", "]", "*"})
NAME_START: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_")
NAME_CHARACTERS: Final = NAME_START | frozenset("0123456789-")


class Token(Struct, frozen=True):
    """A token: its kind, source text and column (from 1), and for a literal its value."""

    kind: str
    text: str
    column: int
    value: Primitive = None

    @property
    def description(self) -> str:
        """The name of the token in error messages."""
        return "the end" if self.kind == END else quote(self.text)


def tokenize(text: str, offset: int = 0) -> list[Token]:
    """Return the tokens of an expression and a final END token. Columns are increased by `offset`."""
    try:
        return _tokenize(text, offset)
    except ExpressionSyntaxError as error:
        raise error.shifted(offset) from None


def _tokenize(text: str, offset: int) -> list[Token]:
    if len(text) > MAX_LENGTH:
        raise ExpressionSyntaxError(
            ExpressionProblem(1, f"{len(text)} characters", f"at most {MAX_LENGTH}; split it, e.g. with a step output")
        )
    tokens: list[Token] = []
    index = 0
    while index < len(text):
        if text[index].isspace():
            index += 1
            continue
        token = _read_token(text, index, tokens[-1].kind if tokens else "")
        tokens.append(Token(token.kind, token.text, token.column + offset, token.value))
        index += len(token.text)
    tokens.append(Token(END, "", len(text) + 1 + offset))
    return tokens


def is_identifier(text: str) -> bool:
    """Return whether a text is valid as the name of a property, context or function."""
    return bool(text) and text[0] in NAME_START and all(character in NAME_CHARACTERS for character in text)


def _read_token(text: str, index: int, previous_kind: str) -> Token:
    character = text[index]
    if character == "'":
        return _read_string(text, index)
    if character in "+-0123456789" or (
        character == "." and previous_kind not in OPERAND_ENDS and text[index + 1 : index + 2].isdigit()
    ):
        return _read_number(text, index)
    if character in PUNCTUATION:
        return Token(character, character, index + 1)
    for operator in OPERATORS:
        if text.startswith(operator, index):
            return Token(operator, operator, index + 1)
    if character in INCOMPLETE_OPERATORS:
        raise ExpressionSyntaxError(
            ExpressionProblem(index + 1, quote(character), "an operator", quote(INCOMPLETE_OPERATORS[character]))
        )
    return _read_word(text, index, previous_kind)


def _read_string(text: str, index: int) -> Token:
    closing_index = index + 1
    while True:
        closing_index = text.find("'", closing_index)
        if closing_index < 0:
            raise ExpressionSyntaxError(ExpressionProblem(index + 1, quote(text[index:]), "a closing single quote"))
        if text[closing_index + 1 : closing_index + 2] != "'":
            break
        closing_index += 2
    return Token(VALUE, text[index : closing_index + 1], index + 1, text[index + 1 : closing_index].replace("''", "'"))


def _read_number(text: str, index: int) -> Token:
    word_end = _end_of_word(text, index, may_contain_dots=True)
    word = text[index:word_end]
    number = parse_number(word)
    if math.isnan(number):
        raise ExpressionSyntaxError(
            ExpressionProblem(index + 1, quote(word), "a number such as 12, -0.5, 0xff or 2.99e-2")
        )
    return Token(VALUE, word, index + 1, number)


def _read_word(text: str, index: int, previous_kind: str) -> Token:
    word_end = _end_of_word(text, index, may_contain_dots=False)
    word = text[index:word_end]
    if not is_identifier(word):
        if word[0] == '"':
            raise ExpressionSyntaxError(
                ExpressionProblem(index + 1, "a double quote", "a text in single quotes, such as 'main'")
            )
        raise ExpressionSyntaxError(ExpressionProblem(index + 1, quote(word), "a name of letters, digits, '-' and '_'"))
    if previous_kind != "." and word in KEYWORDS:
        return Token(VALUE, word, index + 1, KEYWORDS[word])
    return Token(NAME, word, index + 1)


def _end_of_word(text: str, index: int, *, may_contain_dots: bool) -> int:
    """Return the index after the word that starts at `index`. `may_contain_dots` says that a word may contain dots."""
    end = index + 1
    while end < len(text):
        character = text[end]
        if character.isspace() or (character in DELIMITERS and not (may_contain_dots and character == ".")):
            break
        end += 1
    return end
