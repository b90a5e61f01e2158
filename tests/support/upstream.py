"""A real bare repository, and a work tree from which tests push to it."""

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
_GIT_ENVIRONMENT: Final = {
    **{"GIT_AUTHOR_NAME": "Ada", "GIT_AUTHOR_EMAIL": "ada@example.org"},
    **{"GIT_COMMITTER_NAME": "Ada", "GIT_COMMITTER_EMAIL": "ada@example.org"},
    **{"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1", "LC_ALL": "C"},
}


def git(folder: Path, *words: str, **env: str) -> str:
    """Run git and return its output."""
    result = subprocess.run(
        ["git", *words],
        cwd=folder,
        env={**os.environ, **_GIT_ENVIRONMENT, **env},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 0, (words, result.stderr.decode())
    return result.stdout.decode().strip()


class Upstream:
    """`bare` is the repository that servers clone; `tree` is the work tree in which commits are made."""

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
        """The clone URL."""
        return f"file://{self.bare}"

    def commit(self, files: dict[str, str | None], message: str = "a change") -> str:
        """Commit these files; None removes a file. Return the commit's hash."""
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
        """Commit these files and push to a branch. Return the commit's hash."""
        commit = self.commit(files, message)
        git(self.tree, "push", "-q", "--force", "origin", f"HEAD:refs/heads/{branch}")
        return commit

    def switch(self, branch: str, at: str = "HEAD") -> None:
        """Check out a new branch at a commit."""
        git(self.tree, "checkout", "-q", "-B", branch, at)
