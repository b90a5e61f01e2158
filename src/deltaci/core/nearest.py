"""The word that was probably meant: for whoever wrote one that nobody knows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

MAX_CHARS: Final = 40  # A longer word is nobody's slip of the pen.
MAX_WORDS: Final = 100


def nearest(word: str, words: Iterable[str]) -> str:
    """The known word that is near this one, or nothing. Of equally near ones the first in the alphabet."""
    written = _folded(word)
    if not written or len(written) > MAX_CHARS:
        return ""
    allowed = max(1, len(written) // 3)
    similar = sorted(each for each in set(words) if abs(len(each) - len(written)) <= allowed)[:MAX_WORDS]
    best = min(((distance(written, _folded(each)), each) for each in similar), default=(allowed + 1, ""))
    return best[1] if best[0] <= allowed else ""


def _folded(word: str) -> str:
    return word.strip().lower().replace("_", "-")


def distance(one: str, other: str) -> int:
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
