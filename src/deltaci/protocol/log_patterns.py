"""Patterns of lines in a log that people write: the part of Python's regular expressions that never takes long.

Python's `re` has no limit of time, and a line comes from a job. So a pattern is read here before it is ever matched:
what it may repeat is one character, never a group; nothing refers back or looks around; and in how many ways a line can
be tried at one place is counted, and bounded. With lines that are cut at 300 characters that bounds everything.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from deltaci.core.failures import MAX_LINE_CHARS
from deltaci.protocol.path_patterns import BadPattern

MAX_LENGTH: Final = 500
MAX_DEPTH: Final = 10
MAX_WAYS: Final = 700  # One `.*` in a line of 300 characters, and a choice of two beside it.

_CLASSES: Final = frozenset("dDwWsS")
_EDGES: Final = frozenset("bB")
_COUNT: Final = re.compile(r"\{([0-9]{0,3})(,?)([0-9]{0,3})\}")
_STRANGE_SETS: Final = ("--", "&&", "||", "~~")


class _Piece(NamedTuple):
    """What a quantifier may stand behind: in how many ways it can match, and whether it is one character."""

    ways: int
    is_character: bool
    is_edge: bool = False


def check(pattern: str) -> int:
    """In how many ways the pattern can be tried at one place; raises BadPattern where it may not be used."""
    if not pattern:
        raise BadPattern(1, "nothing", "a pattern")
    if len(pattern) > MAX_LENGTH:
        raise BadPattern(MAX_LENGTH + 1, f"{len(pattern)} characters", f"at most {MAX_LENGTH}")
    if not pattern.isprintable():
        at = next(index for index, sign in enumerate(pattern) if not sign.isprintable())
        raise BadPattern(at + 1, "a character that cannot be printed", "a pattern on one line; write '\\t' for a tab")
    ways = _Reading(pattern).all()
    try:
        compiled = re.compile(pattern, re.IGNORECASE)
    except re.error as error:
        raise BadPattern((error.pos or 0) + 1, f"what is no pattern: {error.msg}", "a regular expression") from None
    if compiled.search(""):
        raise BadPattern(1, "a pattern that an empty line fits", "one that needs some letters: this fits every line")
    return ways


class _Reading:
    """The way through one pattern, from left to right."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0

    def all(self) -> int:
        """The ways of the whole pattern."""
        ways = self._choices()
        if self._at < len(self._text):
            raise self._bad("')' without '('", "write '\\)' for the character itself")
        return ways

    def _choices(self) -> int:
        ways = self._sequence()
        while self._next() == "|":
            self._at += 1
            ways = self._bounded(ways + self._sequence(), self._at - 1)
        return ways

    def _sequence(self) -> int:
        ways = 1
        while (sign := self._next()) and sign not in "|)":
            begin = self._at
            piece = self._piece(sign)
            ways = self._bounded(ways * self._repeated(piece), begin)
        return ways

    def _bounded(self, ways: int, at: int) -> int:
        if ways > MAX_WAYS:
            told = "one '*' or '+' in a row of letters, or bounded ones such as '.{0,40}'; or two rules"
            raise BadPattern(at + 1, f"more than {MAX_WAYS:,} ways to match at one place", told)
        return ways

    def _piece(self, sign: str) -> _Piece:
        if sign == "(":
            return self._group()
        if sign == "[":
            return self._set()
        if sign == "\\":
            return self._escape()
        if sign in "^$":
            self._at += 1
            return _Piece(1, is_character=False, is_edge=True)
        if sign in "*+?{":
            raise self._bad(f"'{sign}' with nothing to repeat", f"write '\\{sign}' for the character itself")
        self._at += 1
        return _Piece(1, is_character=True)

    def _group(self) -> _Piece:
        begin = self._at
        if self._text.startswith("(?", begin) and not self._text.startswith("(?:", begin):
            raise self._bad(f"'{self._text[begin : begin + 4]}'", "a plain group, '(…)' or '(?:…)'")
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self._bad(f"more than {MAX_DEPTH} groups inside each other", "fewer")
        self._at += 3 if self._text.startswith("(?:", begin) else 1
        ways = self._choices()
        if self._next() != ")":
            self._at = begin
            raise self._bad("'(' without ')'", "write '\\(' for the character itself")
        self._at += 1
        self._depth -= 1
        return _Piece(ways, is_character=False)

    def _escape(self) -> _Piece:
        sign = self._text[self._at + 1 : self._at + 2]
        if sign.isdigit():
            raise self._bad(f"'\\{sign}', which refers back to a group", "write out what is meant")
        if not sign or (sign.isalnum() and sign not in _CLASSES | _EDGES | {"t"}):
            raise self._bad(f"'\\{sign}'", "a sign behind '\\', or one of: \\d \\D \\w \\W \\s \\S \\b \\B \\t")
        self._at += 2
        return _Piece(1, is_character=sign not in _EDGES, is_edge=sign in _EDGES)

    def _set(self) -> _Piece:
        begin = self._at
        at = begin + 1 + self._text.startswith("^", begin + 1)
        first = at
        while at < len(self._text) and self._text[at] != "]":
            if self._text[at] == "[" or self._text[at : at + 2] in _STRANGE_SETS:
                self._at = at
                raise self._bad(f"'{self._text[at]}' in brackets", f"write '\\{self._text[at]}' for the sign itself")
            if self._text[at] == "\\":
                self._at = at
                if self._escape().is_edge:
                    self._at = at
                    raise self._bad(f"'{self._text[at : at + 2]}' in brackets", "characters")
                at = self._at
            else:
                at += 1
        if at >= len(self._text) or at == first:
            self._at = begin
            raise self._bad("'[' without characters and ']'", "write '\\[' or '\\]' for the characters themselves")
        self._at = at + 1
        return _Piece(1, is_character=True)

    def _repeated(self, piece: _Piece) -> int:
        """The ways of a piece with the quantifier behind it."""
        begin, sign = self._at, self._next()
        counted = _COUNT.match(self._text, begin) if sign == "{" else None
        if sign not in ("*", "+", "?") and counted is None:
            return piece.ways
        if piece.is_edge or not (piece.is_character or sign == "?"):
            found = "an edge" if piece.is_edge else "a group"
            raise self._bad(f"{found} that is repeated by '{sign}'", "repeat single characters; a group only by '?'")
        self._at += counted.end() - begin if counted is not None else 1
        if self._next() == "?":  # As few as possible: the same ways in another order.
            self._at += 1
        if self._next() in ("*", "+", "?", "{") and self._next():
            raise self._bad(f"a second quantifier '{self._next()}'", "one behind each character")
        if sign == "?":
            return piece.ways + 1
        low, high = _bounds(counted) if counted is not None else (0, MAX_LINE_CHARS)
        if not 0 <= low <= high <= MAX_LINE_CHARS:
            self._at = begin
            raise self._bad("a count that cannot be", f"'{{n,m}}' with n up to m, and m up to {MAX_LINE_CHARS}")
        return high - low + 1

    def _next(self) -> str:
        return self._text[self._at : self._at + 1]

    def _bad(self, found: str, expected: str) -> BadPattern:
        return BadPattern(self._at + 1, found, expected)


def _bounds(counted: re.Match[str]) -> tuple[int, int]:
    low, comma, high = counted.groups()
    if not low and not high:
        return 1, 0
    return int(low or 0), int(high) if high else MAX_LINE_CHARS if comma else int(low)
