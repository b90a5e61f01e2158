"""Check patterns for log lines: the subset of Python's regular expressions whose matching time is bounded.

Python's `re` has no time limit, and jobs write the lines. So a pattern is parsed and checked before it is used: only a
single character may be repeated, never a group; there are no back-references and no look-around; and the number of ways
in which the pattern can match at one position is computed and limited. Lines are truncated to 300 characters, so the
total time is bounded.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from deltaci.core.failures import MAX_LINE_CHARS
from deltaci.protocol.patterns.path_patterns import BadPattern

MAX_LENGTH: Final = 500
MAX_DEPTH: Final = 10
MAX_WAYS: Final = 700  # One `.*` in a line of 300 characters, combined with an alternative of two.

_CLASSES: Final = frozenset("dDwWsS")
_EDGES: Final = frozenset("bB")
_COUNT: Final = re.compile(r"\{([0-9]{0,3})(,?)([0-9]{0,3})\}")
_RESERVED_IN_SETS: Final = ("--", "&&", "||", "~~")


class _Piece(NamedTuple):
    """A part of a pattern that a quantifier can follow, and in how many ways it can match."""

    ways: int
    is_character: bool
    is_edge: bool = False


def check(pattern: str) -> int:
    """Return in how many ways a pattern can match at one position, which bounds its matching time.

    Raise `BadPattern` if the pattern is not allowed.
    """
    if not pattern:
        raise BadPattern(1, "nothing", "a pattern")
    if len(pattern) > MAX_LENGTH:
        raise BadPattern(MAX_LENGTH + 1, f"{len(pattern)} characters", f"at most {MAX_LENGTH}")
    if not pattern.isprintable():
        position = next(index for index, character in enumerate(pattern) if not character.isprintable())
        raise BadPattern(
            position + 1, "a character that cannot be printed", "a pattern on one line; write '\\t' for a tab"
        )
    ways = _Parser(pattern).parse()
    try:
        compiled = re.compile(pattern, re.IGNORECASE)
    except re.error as error:
        raise BadPattern((error.pos or 0) + 1, f"what is no pattern: {error.msg}", "a regular expression") from None
    if compiled.search(""):
        raise BadPattern(1, "a pattern that an empty line fits", "one that needs some letters: this fits every line")
    return ways


class _Parser:
    """Recursive-descent parser of one pattern, which counts the ways to match."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._position = 0
        self._depth = 0

    def parse(self) -> int:
        """Return in how many ways the whole pattern can match at one position."""
        ways = self._parse_alternatives()
        if self._position < len(self._text):
            raise self._error("')' without '('", "write '\\)' for the character itself")
        return ways

    def _parse_alternatives(self) -> int:
        ways = self._parse_sequence()
        while self._peek() == "|":
            self._position += 1
            ways = self._check_ways(ways + self._parse_sequence(), self._position - 1)
        return ways

    def _parse_sequence(self) -> int:
        ways = 1
        while (character := self._peek()) and character not in "|)":
            start = self._position
            piece = self._parse_piece(character)
            ways = self._check_ways(ways * self._parse_quantifier(piece), start)
        return ways

    def _check_ways(self, ways: int, position: int) -> int:
        """Return `ways`. Raise `BadPattern` at this position if there are more than `MAX_WAYS`."""
        if ways > MAX_WAYS:
            expected = "one '*' or '+' in a row of letters, or bounded ones such as '.{0,40}'; or two rules"
            raise BadPattern(position + 1, f"more than {MAX_WAYS:,} ways to match at one place", expected)
        return ways

    def _parse_piece(self, character: str) -> _Piece:
        if character == "(":
            return self._parse_group()
        if character == "[":
            return self._parse_set()
        if character == "\\":
            return self._parse_escape()
        if character in "^$":
            self._position += 1
            return _Piece(1, is_character=False, is_edge=True)
        if character in "*+?{":
            raise self._error(
                f"'{character}' with nothing to repeat", f"write '\\{character}' for the character itself"
            )
        self._position += 1
        return _Piece(1, is_character=True)

    def _parse_group(self) -> _Piece:
        start = self._position
        if self._text.startswith("(?", start) and not self._text.startswith("(?:", start):
            raise self._error(f"'{self._text[start : start + 4]}'", "a plain group, '(…)' or '(?:…)'")
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self._error(f"more than {MAX_DEPTH} groups inside each other", "fewer")
        self._position += 3 if self._text.startswith("(?:", start) else 1
        ways = self._parse_alternatives()
        if self._peek() != ")":
            self._position = start
            raise self._error("'(' without ')'", "write '\\(' for the character itself")
        self._position += 1
        self._depth -= 1
        return _Piece(ways, is_character=False)

    def _parse_escape(self) -> _Piece:
        character = self._text[self._position + 1 : self._position + 2]
        if character.isdigit():
            raise self._error(f"'\\{character}', which refers back to a group", "write out what is meant")
        if not character or (character.isalnum() and character not in _CLASSES | _EDGES | {"t"}):
            raise self._error(
                f"'\\{character}'", "a character behind '\\', or one of: \\d \\D \\w \\W \\s \\S \\b \\B \\t"
            )
        self._position += 2
        return _Piece(1, is_character=character not in _EDGES, is_edge=character in _EDGES)

    def _parse_set(self) -> _Piece:
        start = self._position
        position = start + 1 + self._text.startswith("^", start + 1)
        first_member = position
        while position < len(self._text) and self._text[position] != "]":
            if self._text[position] == "[" or self._text[position : position + 2] in _RESERVED_IN_SETS:
                self._position = position
                raise self._error(
                    f"'{self._text[position]}' in brackets",
                    f"write '\\{self._text[position]}' for the character itself",
                )
            if self._text[position] == "\\":
                self._position = position
                if self._parse_escape().is_edge:
                    self._position = position
                    raise self._error(f"'{self._text[position : position + 2]}' in brackets", "characters")
                position = self._position
            else:
                position += 1
        if position >= len(self._text) or position == first_member:
            self._position = start
            raise self._error("'[' without characters and ']'", "write '\\[' or '\\]' for the characters themselves")
        self._position = position + 1
        return _Piece(1, is_character=True)

    def _parse_quantifier(self, piece: _Piece) -> int:
        """Consume the quantifier after a piece, if any. Return in how many ways both together can match."""
        start, character = self._position, self._peek()
        count_match = _COUNT.match(self._text, start) if character == "{" else None
        if character not in ("*", "+", "?") and count_match is None:
            return piece.ways
        if piece.is_edge or not (piece.is_character or character == "?"):
            operand_name = "an edge" if piece.is_edge else "a group"
            raise self._error(
                f"{operand_name} that is repeated by '{character}'", "repeat single characters; a group only by '?'"
            )
        self._position += count_match.end() - start if count_match is not None else 1
        if self._peek() == "?":  # A non-greedy quantifier has the same ways in another order.
            self._position += 1
        if self._peek() in ("*", "+", "?", "{") and self._peek():
            raise self._error(f"a second quantifier '{self._peek()}'", "one behind each character")
        if character == "?":
            return piece.ways + 1
        min_count, max_count = _repetition_range(count_match) if count_match is not None else (0, MAX_LINE_CHARS)
        if not 0 <= min_count <= max_count <= MAX_LINE_CHARS:
            self._position = start
            raise self._error("a count that cannot be", f"'{{n,m}}' with n up to m, and m up to {MAX_LINE_CHARS}")
        return max_count - min_count + 1

    def _peek(self) -> str:
        """Return the next character without consuming it; empty at the end."""
        return self._text[self._position : self._position + 1]

    def _error(self, found: str, expected: str) -> BadPattern:
        return BadPattern(self._position + 1, found, expected)


def _repetition_range(count_match: re.Match[str]) -> tuple[int, int]:
    """Return the lower and upper bound of `{n,m}`. Return 1 and 0, which is no valid range, if both are missing."""
    min_text, comma, max_text = count_match.groups()
    if not min_text and not max_text:
        return 1, 0
    return int(min_text or 0), int(max_text) if max_text else MAX_LINE_CHARS if comma else int(min_text)
