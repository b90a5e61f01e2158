"""Texts that come from a job, made safe to be shown and analysed: a job may write whatever it likes.

Terminals obey escape sequences, and some characters turn a line around or hide it. None of that gets further than here.
Markup stays what it is, a text: whoever puts it on a page must escape it there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

# ESC [ … letter; ESC ] … BEL or ESC \\; ESC and one more. Also their one-byte forms, and those that are cut off.
ESCAPES: Final = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?"
    r"|(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?"
    r"|\x1b.?"
)
_UNSHOWN: Final = "\N{REPLACEMENT CHARACTER}"
MAX_CHARS: Final = 40  # A longer word is nobody's slip of the pen.
MAX_WORDS: Final = 100


def plain_line(text: str, most: int) -> str:
    """One line that a terminal or a page shows as it is: no escapes, nothing that cannot be printed, not too long."""
    text = text[: 4 * most]  # What is escaped does not count, but has an end too.
    text = ESCAPES.sub("", text).replace("\t", " ").strip("\r\n")
    text = " ".join(text.splitlines()) if not text.isprintable() else text
    if not text.isprintable():
        text = "".join(c if c.isprintable() else " " if c.isspace() else _UNSHOWN for c in text)
    return text[:most]


def format_size(count: int) -> str:
    """Bytes as people say them: `512 B`, `1.5 KiB`, `3.2 MiB`."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def nearest(word: str, words: Iterable[str]) -> str:
    """The known word that is near this one, or nothing. Of equally near ones the first in the alphabet."""
    written = _normalized(word)
    if not written or len(written) > MAX_CHARS:
        return ""
    allowed = max(1, len(written) // 3)
    similar = sorted(each for each in set(words) if abs(len(each) - len(written)) <= allowed)[:MAX_WORDS]
    best = min(((edit_distance(written, _normalized(each)), each) for each in similar), default=(allowed + 1, ""))
    return best[1] if best[0] <= allowed else ""


def _normalized(word: str) -> str:
    return word.strip().lower().replace("_", "-")


def edit_distance(one: str, other: str) -> int:
    """How many letters must be added, removed, changed or swapped with their neighbour."""
    rows = [list(range(len(other) + 1))]
    for i, left in enumerate(one, 1):
        row = [i]
        for j, right in enumerate(other, 1):
            cost = min(rows[-1][j] + 1, row[j - 1] + 1, rows[-1][j - 1] + (left != right))
            if i > 1 and j > 1 and left == other[j - 2] and one[i - 2] == right:
                cost = min(cost, rows[-2][j - 2] + 1)
            row.append(cost)
        rows.append(row)
    return rows[-1][-1]
