"""Text functions: output of jobs made safe to show, sizes, and the nearest known word to a misspelled one.

Jobs may write terminal escape sequences and characters that reverse or hide text; `plain_line` removes them. It does
not escape markup: code that writes HTML must do that.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

# ESC [ … letter; ESC ] … BEL or ESC \\; ESC and one character. Also their one-byte forms and incomplete ones.
ESCAPES: Final = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?"
    r"|(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?"
    r"|\x1b.?"
)
_UNPRINTABLE: Final = "\N{REPLACEMENT CHARACTER}"
MAX_CHARS: Final = 40  # A longer word is not taken for a misspelling.
MAX_WORDS: Final = 100


def plain_line(text: str, max_chars: int) -> str:
    """Return the text as one printable line of at most `max_chars`, without escape sequences.

    Characters that are not printable become spaces or replacement characters.
    """
    text = text[: 4 * max_chars]  # Escape sequences do not count as characters, but their total length is bounded.
    text = ESCAPES.sub("", text).replace("\t", " ").strip("\r\n")
    text = " ".join(text.splitlines()) if not text.isprintable() else text
    if not text.isprintable():
        text = "".join(char if char.isprintable() else " " if char.isspace() else _UNPRINTABLE for char in text)
    return text[:max_chars]


def format_size(byte_count: int) -> str:
    """Return a number of bytes as text for people, such as `512 B`, `1.5 KiB` or `3.2 MiB`."""
    scaled_size = float(byte_count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if scaled_size < 1024:
            return f"{scaled_size:.0f} {unit}" if unit == "B" else f"{scaled_size:.1f} {unit}"
        scaled_size /= 1024
    return f"{scaled_size:.1f} TiB"


def nearest(word: str, words: Iterable[str]) -> str:
    """Return the word of `words` that is nearest to the misspelled `word`, or an empty string if none is near.

    Of equally near words, return the first in alphabetical order.
    """
    misspelled = _normalized(word)
    if not misspelled or len(misspelled) > MAX_CHARS:
        return ""
    max_distance = max(1, len(misspelled) // 3)
    similar_words = sorted(
        candidate for candidate in set(words) if abs(len(candidate) - len(misspelled)) <= max_distance
    )[:MAX_WORDS]
    nearest_match = min(
        ((edit_distance(misspelled, _normalized(candidate)), candidate) for candidate in similar_words),
        default=(max_distance + 1, ""),
    )
    return nearest_match[1] if nearest_match[0] <= max_distance else ""


def _normalized(word: str) -> str:
    return word.strip().lower().replace("_", "-")


def edit_distance(first: str, second: str) -> int:
    """Return how many characters to add, remove, replace or swap with a neighbour to turn `first` into `second`."""
    distance_rows = [list(range(len(second) + 1))]
    for first_index, first_char in enumerate(first, 1):
        row = [first_index]
        for second_index, second_char in enumerate(second, 1):
            cost = min(
                distance_rows[-1][second_index] + 1,
                row[second_index - 1] + 1,
                distance_rows[-1][second_index - 1] + (first_char != second_char),
            )
            if (
                first_index > 1
                and second_index > 1
                and first_char == second[second_index - 2]
                and first[first_index - 2] == second_char
            ):
                cost = min(cost, distance_rows[-2][second_index - 2] + 1)
            row.append(cost)
        distance_rows.append(row)
    return distance_rows[-1][-1]
