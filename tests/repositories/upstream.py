"""A real bare repository, and somebody with a work tree who pushes to it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Final

PIPELINE: Final = """\
on: [push, pull_request, manual]
jobs:
  build:
    steps: [run: make]
  test:
    needs: build
    steps: [run: make test]
"""
ZEROS: Final = "0" * 40
_NOBODY: Final = {
    **{"GIT_AUTHOR_NAME": "Ada", "GIT_AUTHOR_EMAIL": "ada@example.org"},
    **{"GIT_COMMITTER_NAME": "Ada", "GIT_COMMITTER_EMAIL": "ada@example.org"},
    **{"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1", "LC_ALL": "C"},
}


def git(folder: Path, *words: str, **env: str) -> str:
    """What git prints."""
    done = subprocess.run(
        ["git", *words],
        cwd=folder,
        env={**os.environ, **_NOBODY, **env},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, (words, done.stderr.decode())
    return done.stdout.decode().strip()


class Upstream:
    """`bare` is what servers clone; commits are made beside it and pushed."""

    def __init__(self, folder: Path, files: dict[str, str] | None = None) -> None:
        self.bare = folder / "shop.git"
        self.tree = folder / "tree"
        folder.mkdir(parents=True, exist_ok=True)
        git(folder, "init", "-q", "--bare", "-b", "main", str(self.bare))
        git(folder, "init", "-q", "-b", "main", str(self.tree))
        git(self.tree, "remote", "add", "origin", str(self.bare))
        self.first = self.push({".deltaci.yml": PIPELINE, "README": "hello\n", **(files or {})})

    @property
    def url(self) -> str:
        """Where to clone it from."""
        return f"file://{self.bare}"

    def commit(self, files: dict[str, str | None], message: str = "a change") -> str:
        """A commit with these files in it; None removes one. Its name."""
        for name, text in files.items():
            path = self.tree / name
            if text is None:
                path.unlink()
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        git(self.tree, "add", "-A")
        git(self.tree, "commit", "-q", "--allow-empty", "-m", message)
        return git(self.tree, "rev-parse", "HEAD")

    def push(self, files: dict[str, str | None], message: str = "a change", branch: str = "main") -> str:
        """The same, pushed to a branch."""
        made = self.commit(files, message)
        git(self.tree, "push", "-q", "--force", "origin", f"HEAD:refs/heads/{branch}")
        return made

    def switch(self, branch: str, at: str = "HEAD") -> None:
        """Go on from there."""
        git(self.tree, "checkout", "-q", "-B", branch, at)
