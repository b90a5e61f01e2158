"""The paths under which runners upload named artifacts, which other jobs of the run can request by name."""

from __future__ import annotations

from typing import Final
from urllib.parse import quote, unquote

SHARED: Final = "@"  # Prefix of the path of a named artifact.
PACKED: Final = ".tar.gz"


def shared_path(name: str) -> str:
    """Return the path under which a named artifact is stored. No file of a workspace is stored under such a path."""
    return f"{SHARED}{quote(name, safe=' ')}{PACKED}"


def shared_name(path: str) -> str:
    """Return the name of the named artifact that is stored under a path; empty if it is the path of a plain file."""
    is_named = path.startswith(SHARED) and path.endswith(PACKED) and "/" not in path
    return unquote(path[len(SHARED) : -len(PACKED)]) if is_named else ""
