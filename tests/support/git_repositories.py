"""Real git repositories for tests."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

ENV = {
    "PATH": os.environ["PATH"],
    "HOME": "/nonexistent",
    "GIT_CONFIG_NOSYSTEM": "1",
    **{
        f"GIT_{who}_{what}": f"{what.lower()}@example.org"
        for who in ("AUTHOR", "COMMITTER")
        for what in ("NAME", "EMAIL")
    },
    "GIT_AUTHOR_DATE": "2026-01-04T08:00:00Z",
    "GIT_COMMITTER_DATE": "2026-01-04T08:00:00Z",
    "GIT_ALLOW_PROTOCOL": "file",
}


class Repository:
    """One, with a work tree."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(parents=True)
        self.git("init", "--quiet", "--initial-branch=main")

    def git(self, *words: str) -> str:
        """Return the output of a git command."""
        done = subprocess.run(("git", *words), cwd=self.path, env=ENV, capture_output=True, check=False, timeout=60)
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout.decode().strip()

    def commit(self, **files: str) -> str:
        """Write these files, `_` for a dot in their names, and commit all; the commit's name."""
        for name, content in files.items():
            path = self.path / name.replace("__", "/").replace("_", ".")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "--message", "a change")
        return self.git("rev-parse", "HEAD")
