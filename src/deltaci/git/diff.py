"""The changed paths of a diff, from what `git diff --raw -z --find-renames BASE HEAD` prints.

A renamed or copied file counts with both of its names, a deleted one like any other. A submodule counts with
everything below it. What cannot be read makes the diff unknown: unsure means that everything runs.
"""

from __future__ import annotations

import re
from typing import Final

SUBMODULE: Final = "160000"

_HEADER: Final = re.compile(r":([0-7]{6}) ([0-7]{6}) [0-9a-f]+ [0-9a-f]+ ([ACDMRT])[0-9]{0,3}")


def changed_paths(raw: str) -> frozenset[str] | None:
    """Every path that the diff names, or None when it is not what git prints."""
    if not raw:
        return frozenset()
    if not raw.endswith("\0"):
        return None  # cut off: what is missing may be what matters
    found: set[str] = set()
    parts = iter(raw[:-1].split("\0"))
    for header in parts:
        read = _HEADER.fullmatch(header)
        if read is None:
            return None
        before, after, status = read.groups()
        names = [next(parts, "") for _ in range(2 if status in "RC" else 1)]
        if not all(names):
            return None
        found.update(names)
        if SUBMODULE in (before, after):
            found.update(f"{name}/" for name in names)
    return frozenset(found)
