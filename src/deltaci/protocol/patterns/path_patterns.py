"""Glob patterns for paths and branches, as in the keys `paths` and `branches` of CI files.

A pattern is parsed to steps over single characters. `pattern_automaton` matches all patterns of a list at once, in time
linear in the length of the path. A pattern that can only be a mistake is refused with its column, because a pattern
that silently matches nothing would leave out a job.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from deltaci.protocol.patterns.pattern_automaton import Automaton, CharacterSet, Step, single_character

MAX_PATTERN_LENGTH: Final = 1_024
MAX_PATTERNS: Final = 1_000  # Per list.

ANY: Final = CharacterSet("", (), is_negated=True)
WITHIN_NAME: Final = CharacterSet("/", (), is_negated=True)
SLASH: Final = single_character("/")

# `(.*/)?`: any number of folders. Only a slash ends it, and it can be skipped as a whole.
FOLDERS: Final = (Step(ANY, skip_count=2), Step(SLASH, repeats_on=ANY))
# `(/.*)?`: the path itself, or everything below it.
BELOW_OR_ITSELF: Final = (Step(SLASH, skip_count=2), Step(None, repeats_on=ANY, skip_count=1))
BELOW: Final = (Step(SLASH), Step(None, repeats_on=ANY, skip_count=1))

SPECIAL: Final = frozenset("*?+[{}\\")


class BadPattern(Exception):
    """Raised for a malformed pattern. `column`, and the `item` of a list, count from 1."""

    def __init__(self, column: int, found: str, expected: str, *, item: int = 1) -> None:
        super().__init__(f"column {column}: found {found}; expected {expected}")
        self.column = column
        self.found = found
        self.expected = expected
        self.item = item


@dataclass(frozen=True, slots=True)
class Pattern:
    """A parsed pattern: whether `!` negates it, and its steps."""

    text: str
    is_negative: bool
    steps: tuple[Step, ...]
    folder: str  # The folders before the first wildcard: `web/src` for `web/src/**/*.ts`.


class Filter:
    """An ordered list of patterns. The last one that matches a path decides; `!` excludes the path."""

    def __init__(self, patterns: Sequence[Pattern]) -> None:
        self.patterns = tuple(patterns)
        self._automaton = Automaton([pattern.steps for pattern in self.patterns])

    def decided_by(self, path: str) -> Pattern | None:
        """Return the last pattern that matches this path, or None."""
        matches = self._automaton.walk(path).matches
        return self.patterns[matches[-1]] if matches else None

    def matches(self, path: str) -> bool:
        """Return whether the filter matches a path, relative to the root of the repository, without leading slash."""
        deciding_pattern = self.decided_by(path)
        return deciding_pattern is not None and not deciding_pattern.is_negative


def path_filter(texts: Sequence[str]) -> Filter:
    """Compile path patterns. Raise `BadPattern` with the item of the malformed one."""
    return Filter(parse_all(texts))


def branch_filter(texts: Sequence[str]) -> Filter:
    """Compile branch or tag patterns. Raise `BadPattern` with the item of the malformed one."""
    return Filter(parse_all(texts, is_branch=True))


def parse_all(texts: Sequence[str], *, is_branch: bool = False) -> tuple[Pattern, ...]:
    """Return the parsed patterns.

    Raise `BadPattern` if one is malformed, or if all are negated and so match nothing.
    """
    if len(texts) > MAX_PATTERNS:
        raise BadPattern(1, f"{len(texts)} patterns", f"at most {MAX_PATTERNS}", item=MAX_PATTERNS + 1)
    patterns = []
    for text_number, text in enumerate(texts, 1):
        try:
            patterns.append(parse_branch(text) if is_branch else parse_path(text))
        except BadPattern as error:
            raise BadPattern(error.column, error.found, error.expected, item=text_number) from None
    if patterns and all(pattern.is_negative for pattern in patterns):
        raise BadPattern(1, "only patterns with '!'", "one without, before them, such as '**' for everything")
    return tuple(patterns)


def parse_path(text: str) -> Pattern:
    """Parse a path pattern. A pattern whose last name has no wildcards also matches everything below that name."""
    start = _pattern_start(text)
    is_negative = start == 1
    text_end = len(text)
    if text.startswith("./", start):
        start += 2
    elif text.startswith("/", start):
        start += 1
    if text[start:text_end] in ("", "."):
        return Pattern(text, is_negative, (Step(None, repeats_on=ANY, skip_count=1),), "")
    is_folder = text.endswith("/")
    text_end -= is_folder
    _check_names(text, start, text_end)
    parser = _Parser(text, start, text_end)
    steps = parser.parse()
    if parser.ends_with_literal_name:
        steps += BELOW_OR_ITSELF
    elif is_folder:
        steps += BELOW
    return Pattern(text, is_negative, tuple(steps), parser.folder)


def parse_branch(text: str) -> Pattern:
    """Parse a branch or tag pattern, which must match the whole name."""
    start = _pattern_start(text)
    if text.startswith("refs/", start):
        raise BadPattern(start + 1, "a name with 'refs/'", "the short name, such as 'main' or 'release/*'")
    for position in (start, len(text) - 1):
        if text[position] == "/":
            raise BadPattern(position + 1, "'/' at the end of a name", "a name without it: no branch begins or ends so")
    _check_names(text, start, len(text))
    parser = _Parser(text, start, len(text))
    return Pattern(text, start == 1, tuple(parser.parse()), parser.folder)


def _pattern_start(text: str) -> int:
    """Return the position after a leading `!`. Raise `BadPattern` for a text that cannot be a pattern."""
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
    """Raise `BadPattern` for file names that cannot exist in a repository."""
    name_start = start
    for name in text[start:end].split("/"):
        if not name:
            raise BadPattern(name_start + 1, "a folder without a name", "one '/' between names")
        if name in (".", ".."):
            raise BadPattern(name_start + 1, f"'{name}' as a name", "a path from the root of the repository on")
        name_start += len(name) + 1


class _Operand(NamedTuple):
    """The characters that a following quantifier repeats; if None, `problem` is why no quantifier may follow."""

    characters: CharacterSet | None
    problem: str = "with nothing before it"


class _Parser:
    """Parser of one pattern, from left to right."""

    def __init__(self, text: str, start: int, end: int) -> None:
        self._text = text
        self._start = start
        self._end = end
        self._steps: list[Step] = []
        self._operand = _Operand(None)
        self._first_wildcard = end  # The position of the first wildcard.
        self._literal_prefix: list[str] = []  # The text before it, without escapes.
        self.ends_with_literal_name = True
        self.folder = ""

    def parse(self) -> list[Step]:
        """Parse the pattern and return its steps."""
        position = self._start
        while position < self._end:
            position = self._parse_element(position)
        prefix = "".join(self._literal_prefix)
        self.folder = prefix if self._first_wildcard == self._end else prefix.rpartition("/")[0]
        return self._steps

    def _parse_element(self, position: int) -> int:
        """Parse the element at this position. Return the position after it."""
        character = self._text[position]
        if character not in SPECIAL:
            self._add_literal(character, position)
            return position + 1
        if character == "\\":
            self._add_literal(self._escaped_character(position), position)
            return position + 2
        if character in "{}":
            raise BadPattern(
                position + 1,
                f"'{character}'",
                f"one pattern for each choice; write '\\{character}' for the character itself",
            )
        self._first_wildcard = min(self._first_wildcard, position)
        self.ends_with_literal_name = False
        if character == "*":
            return self._parse_stars(position)
        if character == "[":
            return self._parse_brackets(position)
        return self._parse_quantifier(position)

    def _add_literal(self, character: str, position: int) -> None:
        """Append a step that matches exactly this character, which stands at `position`."""
        characters = single_character(character)
        self._steps.append(Step(characters))
        if character == "/":
            self._operand = _Operand(None, "after '/'")
            self.ends_with_literal_name = True
        else:
            self._operand = _Operand(characters)
        if self._first_wildcard > position:
            self._literal_prefix.append(character)

    def _escaped_character(self, position: int) -> str:
        """Return the character after the backslash at this position. Raise `BadPattern` if it may not be escaped."""
        character = self._text[position + 1 : min(position + 2, self._end)]
        if not character:
            raise BadPattern(position + 1, "'\\' at the end", "a character after it")
        if character.isalnum() or character == "/":
            raise BadPattern(position + 1, f"'\\{character}'", "a sign after '\\'; folders are divided by '/'")
        return character

    def _parse_stars(self, position: int) -> int:
        """Parse `*` or `**` at this position; `**/` matches any number of folders. Return the position after it."""
        end = position
        while end < self._end and self._text[end] == "*":
            end += 1
        is_double = end - position > 1
        is_at_name_start = position == self._start or self._text[position - 1] == "/"
        self._operand = _Operand(None, "after '*'")
        if is_double and is_at_name_start and self._text[end : end + 1] == "/" and end < self._end:
            if tuple(self._steps[-2:]) != FOLDERS:  # `**/**/` is the same as `**/`.
                self._steps += FOLDERS
            self._operand = _Operand(None, "after '/'")
            self.ends_with_literal_name = True
            return end + 1
        self._steps.append(Step(None, repeats_on=ANY if is_double else WITHIN_NAME, skip_count=1))
        return end

    def _parse_quantifier(self, position: int) -> int:
        """Parse `?` or `+`, which repeats the character before it. Return the position after it."""
        character = self._text[position]
        characters, problem = self._operand
        if characters is None:
            raise BadPattern(
                position + 1,
                f"'{character}' {problem}",
                f"a character that it repeats; write '*' for any name, or '\\{character}' for the character itself",
            )
        self._operand = _Operand(None, "after another quantifier")
        if character == "?":
            self._steps[-1] = Step(characters, skip_count=1)
        else:
            self._steps.append(Step(None, repeats_on=characters, skip_count=1))
        return position + 1

    def _parse_brackets(self, position: int) -> int:
        """Parse `[abc]`, `[a-z]` or `[!a]`, which matches one character except a slash.

        Return the position after it.
        """
        cursor = position + 1
        is_negated = self._text[cursor : cursor + 1] in ("!", "^")
        cursor += is_negated
        single_characters: list[str] = []
        ranges: list[tuple[str, str]] = []
        while True:
            if cursor >= self._end:
                raise BadPattern(position + 1, "'[' without ']'", "a ']'; write '\\[' for the character itself")
            if self._text[cursor] == "]":
                break
            low, cursor = self._parse_member(cursor)
            if self._text[cursor : cursor + 1] == "-" and cursor + 1 < self._end and self._text[cursor + 1] != "]":
                range_column = cursor
                high, cursor = self._parse_member(cursor + 1)
                if high < low:
                    raise BadPattern(range_column, f"the range '{low}-{high}'", f"the lower end first: '{high}-{low}'")
                ranges.append((low, high))
            else:
                single_characters.append(low)
        if not single_characters and not ranges:
            raise BadPattern(position + 1, "empty brackets", "characters in them; write '\\[' for the character itself")
        if is_negated:
            single_characters.append("/")
        characters = CharacterSet("".join(sorted(single_characters)), tuple(sorted(ranges)), is_negated)
        self._steps.append(Step(characters))
        self._operand = _Operand(characters)
        return cursor + 1

    def _parse_member(self, position: int) -> tuple[str, int]:
        """Parse one character inside brackets. Return it, without its escape, and the position after it."""
        character = self._text[position]
        if character == "\\":
            return self._escaped_character(position), position + 2
        if character in "[/":
            raise BadPattern(
                position + 1, f"'{character}' in brackets", "']' before it; write '\\[' for the character itself"
            )
        return character, position + 1
