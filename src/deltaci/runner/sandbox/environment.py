"""The environment variables of a job's steps, and the Python interpreter of its supervisor."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

from deltaci.core.errors import Refused
from deltaci.runner.sandbox.process_tree import MARKER_VARIABLE

SYSTEM_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def interpreter() -> Path:
    """Return the Python that runs supervisors: the real one, as a sandbox may not see the virtual environment."""
    return Path(os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable))


def search_path() -> str:
    """Return the runner's PATH without its virtual environment, so that a job cannot install into it."""
    venv_bin = str(Path(sys.prefix, "bin"))
    folders = [folder for folder in os.environ.get("PATH", "").split(":") if folder.startswith("/")]
    if sys.prefix != sys.base_prefix:
        folders = [folder for folder in folders if folder.rstrip("/") != venv_bin]
    return ":".join(folders) or SYSTEM_PATH


def environment(workspace: Path, marker: str, env: dict[str, str]) -> dict[str, str]:
    """Return the whole environment of a step. The job's variables override the defaults, but not the marker."""
    for variable in env:
        if not variable or "=" in variable:
            raise Refused("bad_spec", f"{variable[:80]!r} is not a valid variable name; use a name without '='")
    defaults = {"PATH": search_path(), "HOME": str(workspace), "LANG": "C.UTF-8", "CI": "true"}
    return defaults | env | {MARKER_VARIABLE: marker}
