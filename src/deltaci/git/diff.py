"""Parse the changed paths out of the output of `git diff --raw -z --find-renames BASE HEAD`.

A renamed or copied file counts with both of its names, a deleted one like any other. A submodule counts with
everything below it. Output that cannot be parsed makes the diff unknown, and then every job is selected.
"""

from __future__ import annotations

import re
from typing import Final

SUBMODULE: Final = "160000"

_HEADER: Final = re.compile(r":([0-7]{6}) ([0-7]{6}) [0-9a-f]+ [0-9a-f]+ ([ACDMRT])[0-9]{0,3}")


def parse_changed_paths(raw_diff: str) -> frozenset[str] | None:
    """Return every path in the raw diff, or None if the text is not a complete one.

    The path of a submodule is returned with and without a slash at its end.
    """
    if not raw_diff:
        return frozenset()
    if not raw_diff.endswith("\0"):
        return None  # The output was truncated; a missing path may be the one that matters.
    paths: set[str] = set()
    field_iterator = iter(raw_diff[:-1].split("\0"))
    for header_field in field_iterator:
        header_match = _HEADER.fullmatch(header_field)
        if header_match is None:
            return None
        old_mode, new_mode, status = header_match.groups()
        changed_names = [next(field_iterator, "") for _ in range(2 if status in "RC" else 1)]
        if not all(changed_names):
            return None
        paths.update(changed_names)
        if SUBMODULE in (old_mode, new_mode):
            paths.update(f"{changed_name}/" for changed_name in changed_names)
    return frozenset(paths)
