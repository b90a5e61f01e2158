"""Patterns of paths and of branches, as the `paths` and `branches` of CI files use them.

A pattern is read once, into steps over single characters; `automaton.py` walks all patterns at once, in time that
is linear in the path, whatever the pattern. What could only be a mistake is refused with its column and never
read as something that matches nothing: a pattern that silently matches nothing leaves out a job.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from deltaci.protocol.pattern_automaton import Automaton, Characters, Step, only

MAX_PATTERN_LENGTH: Final = 1_024
MAX_PATTERNS: Final = 1_000  # in one list

ANY: Final = Characters("", (), is_negated=True)
IN_A_NAME: Final = Characters("/", (), is_negated=True)
SLASH: Final = only("/")

# `(.*/)?`: any folders, or none. Nothing but a slash leads out of it, and it may be passed over as a whole.
FOLDERS: Final = (Step(ANY, may_skip=2), Step(SLASH, stays_on=ANY))
# `(/.*)?`: the thing itself, or everything below it.
BELOW_OR_ITSELF: Final = (Step(SLASH, may_skip=2), Step(None, stays_on=ANY, may_skip=1))
BELOW: Final = (Step(SLASH), Step(None, stays_on=ANY, may_skip=1))

SPECIAL: Final = frozenset("*?+[{}\\")


class BadPattern(Exception):
    """This text is no pattern: where (columns and items count from one), what was found, what was expected."""

    def __init__(self, column: int, found: str, expected: str, *, item: int = 1) -> None:
        super().__init__(f"column {column}: found {found}; expected {expected}")
        self.column = column
        self.found = found
        self.expected = expected
        self.item = item


@dataclass(frozen=True, slots=True)
class Pattern:
    """One pattern, read: whether it takes away, and its steps."""

    text: str
    is_negative: bool
    steps: tuple[Step, ...]
    folder: str  # the folders before the first wildcard: `web/src` of `web/src/**/*.ts`


class Filter:
    """A list of patterns in order. The last one that matches decides; one with `!` takes away."""

    def __init__(self, patterns: Sequence[Pattern]) -> None:
        self.patterns = tuple(patterns)
        self._automaton = Automaton([pattern.steps for pattern in self.patterns])

    def decided_by(self, path: str) -> Pattern | None:
        """The pattern that has the last word about this path, or nothing when none matches it."""
        hits = self._automaton.walk(path).hits
        return self.patterns[hits[-1]] if hits else None

    def matches(self, path: str) -> bool:
        """Whether this path is meant. Paths are from the root of the repository on, without a slash before."""
        decisive = self.decided_by(path)
        return decisive is not None and not decisive.is_negative


def path_filter(texts: Sequence[str]) -> Filter:
    """Patterns of paths, compiled; raises BadPattern, which says which of them."""
    return Filter(read_all(texts))


def branch_filter(texts: Sequence[str]) -> Filter:
    """Patterns of branches or tags, compiled; raises BadPattern, which says which of them."""
    return Filter(read_all(texts, is_branch=True))


def read_all(texts: Sequence[str], *, is_branch: bool = False) -> tuple[Pattern, ...]:
    """A list of patterns. One that only takes away is refused: there would be nothing to take it from."""
    if len(texts) > MAX_PATTERNS:
        raise BadPattern(1, f"{len(texts)} patterns", f"at most {MAX_PATTERNS}", item=MAX_PATTERNS + 1)
    found = []
    for item, text in enumerate(texts, 1):
        try:
            found.append(read_branch(text) if is_branch else read_path(text))
        except BadPattern as bad:
            raise BadPattern(bad.column, bad.found, bad.expected, item=item) from None
    if found and all(pattern.is_negative for pattern in found):
        raise BadPattern(1, "only patterns with '!'", "one without, before them, such as '**' for everything")
    return tuple(found)


def read_path(text: str) -> Pattern:
    """One pattern of paths. A name without wildcards at its end also means everything below it."""
    start = _start(text)
    is_negative = start == 1
    end = len(text)
    if text.startswith("./", start):
        start += 2
    elif text.startswith("/", start):
        start += 1
    if text[start:end] in ("", "."):
        return Pattern(text, is_negative, (Step(None, stays_on=ANY, may_skip=1),), "")
    is_folder = text.endswith("/")
    end -= is_folder
    _check_names(text, start, end)
    read = _Reading(text, start, end)
    steps = read.all()
    if read.ends_plainly:
        steps += BELOW_OR_ITSELF
    elif is_folder:
        steps += BELOW
    return Pattern(text, is_negative, tuple(steps), read.folder)


def read_branch(text: str) -> Pattern:
    """One pattern of branches or tags. It must match the whole name."""
    start = _start(text)
    if text.startswith("refs/", start):
        raise BadPattern(start + 1, "a name with 'refs/'", "the short name, such as 'main' or 'release/*'")
    for sign in (start, len(text) - 1):
        if text[sign] == "/":
            raise BadPattern(sign + 1, "'/' at the end of a name", "a name without it: no branch begins or ends so")
    _check_names(text, start, len(text))
    read = _Reading(text, start, len(text))
    return Pattern(text, start == 1, tuple(read.all()), read.folder)


def _start(text: str) -> int:
    """Where the pattern begins after a `!`. Refuses what no pattern can be."""
    start = 1 if text.startswith("!") else 0
    if len(text) > MAX_PATTERN_LENGTH:
        raise BadPattern(MAX_PATTERN_LENGTH + 1, f"{len(text)} characters", f"at most {MAX_PATTERN_LENGTH}")
    if not text[start:]:
        raise BadPattern(start + 1, "nothing", "a pattern, such as 'src/**'")
    if text[start] == "!":
        raise BadPattern(start + 1, "a second '!'", "one at most; write '\\!' for the character itself")
    for position in (start, len(text) - 1):
        if text[position].isspace() and text[position - 1 : position] != "\\":
            raise BadPattern(position + 1, "a space at the edge", "none; write '\\ ' for the character itself")
    if control := re.search(r"[\x00-\x1f\x7f]", text):
        raise BadPattern(control.start() + 1, "a control character", "a pattern on one line")
    return start


def _check_names(text: str, start: int, end: int) -> None:
    """Refuse names that no path in a repository has."""
    begin = start
    for name in text[start:end].split("/"):
        if not name:
            raise BadPattern(begin + 1, "a folder without a name", "one '/' between names")
        if name in (".", ".."):
            raise BadPattern(begin + 1, f"'{name}' as a name", "a path from the root of the repository on")
        begin += len(name) + 1


class _Last(NamedTuple):
    """What a quantifier would repeat, and why it may not when it may not."""

    characters: Characters | None
    problem: str = "with nothing before it"


class _Reading:
    """The way through one pattern, from left to right."""

    def __init__(self, text: str, start: int, end: int) -> None:
        self._text = text
        self._start = start
        self._end = end
        self._steps: list[Step] = []
        self._last = _Last(None)
        self._wild_at = end  # where the first wildcard stands
        self._plain: list[str] = []  # what stands before it, without escapes
        self.ends_plainly = True
        self.folder = ""

    def all(self) -> list[Step]:
        """All steps of the pattern."""
        position = self._start
        while position < self._end:
            position = self._one(position)
        plain = "".join(self._plain)
        self.folder = plain if self._wild_at == self._end else plain.rpartition("/")[0]
        return self._steps

    def _one(self, position: int) -> int:
        """Read what begins here; answers where the next begins."""
        sign = self._text[position]
        if sign not in SPECIAL:
            self._plainly(sign, position)
            return position + 1
        if sign == "\\":
            self._plainly(self._escaped(position), position)
            return position + 2
        if sign in "{}":
            raise BadPattern(
                position + 1, f"'{sign}'", f"one pattern for each choice; write '\\{sign}' for the character itself"
            )
        self._wild_at = min(self._wild_at, position)
        self.ends_plainly = False
        if sign == "*":
            return self._stars(position)
        if sign == "[":
            return self._brackets(position)
        return self._quantifier(position)

    def _plainly(self, sign: str, position: int) -> None:
        characters = only(sign)
        self._steps.append(Step(characters))
        if sign == "/":
            self._last = _Last(None, "after '/'")
            self.ends_plainly = True
        else:
            self._last = _Last(characters)
        if self._wild_at > position:
            self._plain.append(sign)

    def _escaped(self, position: int) -> str:
        sign = self._text[position + 1 : min(position + 2, self._end)]
        if not sign:
            raise BadPattern(position + 1, "'\\' at the end", "a character after it")
        if sign.isalnum() or sign == "/":
            raise BadPattern(position + 1, f"'\\{sign}'", "a sign after '\\'; folders are divided by '/'")
        return sign

    def _stars(self, position: int) -> int:
        end = position
        while end < self._end and self._text[end] == "*":
            end += 1
        is_deep = end - position > 1
        begins_name = position == self._start or self._text[position - 1] == "/"
        self._last = _Last(None, "after '*'")
        if is_deep and begins_name and self._text[end : end + 1] == "/" and end < self._end:
            if tuple(self._steps[-2:]) != FOLDERS:  # twice any folders are any folders
                self._steps += FOLDERS
            self._last = _Last(None, "after '/'")
            self.ends_plainly = True
            return end + 1
        self._steps.append(Step(None, stays_on=ANY if is_deep else IN_A_NAME, may_skip=1))
        return end

    def _quantifier(self, position: int) -> int:
        sign = self._text[position]
        characters, problem = self._last
        if characters is None:
            raise BadPattern(
                position + 1,
                f"'{sign}' {problem}",
                f"a character that it repeats; write '*' for any name, or '\\{sign}' for the character itself",
            )
        self._last = _Last(None, "after another quantifier")
        if sign == "?":
            self._steps[-1] = Step(characters, may_skip=1)
        else:
            self._steps.append(Step(None, stays_on=characters, may_skip=1))
        return position + 1

    def _brackets(self, position: int) -> int:
        """`[abc]`, `[a-z]`, `[!a]`: one character, never a slash."""
        at = position + 1
        is_negated = self._text[at : at + 1] in ("!", "^")
        at += is_negated
        signs: list[str] = []
        ranges: list[tuple[str, str]] = []
        while True:
            if at >= self._end:
                raise BadPattern(position + 1, "'[' without ']'", "a ']'; write '\\[' for the character itself")
            if self._text[at] == "]":
                break
            low, at = self._member(at)
            if self._text[at : at + 1] == "-" and at + 1 < self._end and self._text[at + 1] != "]":
                begin = at
                high, at = self._member(at + 1)
                if high < low:
                    raise BadPattern(begin, f"the range '{low}-{high}'", f"the lower end first: '{high}-{low}'")
                ranges.append((low, high))
            else:
                signs.append(low)
        if not signs and not ranges:
            raise BadPattern(position + 1, "empty brackets", "characters in them; write '\\[' for the character itself")
        if is_negated:
            signs.append("/")
        characters = Characters("".join(sorted(signs)), tuple(sorted(ranges)), is_negated)
        self._steps.append(Step(characters))
        self._last = _Last(characters)
        return at + 1

    def _member(self, at: int) -> tuple[str, int]:
        sign = self._text[at]
        if sign == "\\":
            return self._escaped(at), at + 2
        if sign in "[/":
            raise BadPattern(at + 1, f"'{sign}' in brackets", "']' before it; write '\\[' for the character itself")
        return sign, at + 1
