"""The paths under which runners upload named artifacts, which other jobs of the run can request by name."""

from __future__ import annotations

from typing import Final
from urllib.parse import quote, unquote

SHARED: Final = "@"  # Prefix of the path of a named artifact.
PACKED: Final = ".tar.gz"


def shared_path(name: str) -> str:
    """Return the path of a named artifact. No file of a workspace is stored under this path."""
    return f"{SHARED}{quote(name, safe=' ')}{PACKED}"


def shared_name(path: str) -> str:
    """Return the name of a named artifact, empty for all others."""
    is_named = path.startswith(SHARED) and path.endswith(PACKED) and "/" not in path
    return unquote(path[len(SHARED) : -len(PACKED)]) if is_named else ""
