"""What a job sees of the runner's environment: a search path, and nothing else; and what runs its supervisor."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

from deltaci.core.errors import Refused
from deltaci.runner.sandbox.process_tree import MARKER_VARIABLE

SYSTEM_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def interpreter() -> Path:
    """The Python that runs supervisors: the real one, as a virtual environment may be out of a sandbox's sight."""
    return Path(os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable))


def search_path() -> str:
    """The runner's own, without its virtual environment: a job must not install into the runner."""
    own = str(Path(sys.prefix, "bin"))
    parts = [part for part in os.environ.get("PATH", "").split(":") if part.startswith("/")]
    if sys.prefix != sys.base_prefix:
        parts = [part for part in parts if part.rstrip("/") != own]
    return ":".join(parts) or SYSTEM_PATH


def environment(workspace: Path, marker: str, env: dict[str, str]) -> dict[str, str]:
    """All that a step's environment holds. What the job asks for wins, except over the mark."""
    for name in env:
        if not name or "=" in name:
            raise Refused("bad_spec", f"{name[:80]!r} is no name for a variable; give one without '='")
    always = {"PATH": search_path(), "HOME": str(workspace), "LANG": "C.UTF-8", "CI": "true"}
    return always | env | {MARKER_VARIABLE: marker}
