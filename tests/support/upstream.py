"""A real bare repository, and a work tree from which tests push to it."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
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


@functools.cache
def _template(files: tuple[tuple[str, str], ...]) -> tempfile.TemporaryDirectory[str]:
    """Create the first state of a repository with these files. To copy it takes a sixth of the CPU."""
    template = tempfile.TemporaryDirectory(prefix="deltaci-upstream-")
    folder = Path(template.name)
    git(folder, "init", "-q", "--template=", "--bare", "-b", "main", "shop.git")
    git(folder, "init", "-q", "--template=", "-b", "main", "tree")
    (folder / "shop.git" / "hooks").mkdir()
    git(folder / "tree", "remote", "add", "origin", "../shop.git")
    _commit(folder / "tree", dict(files), "a change")
    git(folder / "tree", "push", "-q", "origin", "HEAD:refs/heads/main")
    return template


def _commit(tree: Path, files: Mapping[str, str | None], message: str) -> str:
    """Commit these files; None removes a file. Return the commit's hash."""
    for name, text in files.items():
        path = tree / name
        if text is None:
            path.unlink()
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    git(tree, "add", "-A")
    git(tree, "commit", "-q", "--allow-empty", "-m", message)
    return git(tree, "rev-parse", "HEAD")


class Upstream:
    """`bare` is the repository that servers clone; `tree` is the work tree in which commits are made.

    The folder may be copied and moved: the remote of the work tree is a relative path.
    """

    def __init__(self, folder: Path, files: dict[str, str] | None = None) -> None:
        all_files = {".deltaci.yml": PIPELINE, "README": "hello\n", **(files or {})}
        shutil.copytree(_template(tuple(all_files.items())).name, folder, dirs_exist_ok=True)
        self.bare = folder / "shop.git"
        self.tree = folder / "tree"
        self.first = git(self.bare, "rev-parse", "main")

    @classmethod
    def opened(cls, folder: Path) -> Upstream:
        """Return the repository that was created in this folder, or copied to it."""
        upstream = cls.__new__(cls)
        upstream.bare, upstream.tree = folder / "shop.git", folder / "tree"
        upstream.first = git(upstream.bare, "rev-list", "--max-parents=0", "main")
        return upstream

    @property
    def url(self) -> str:
        """The clone URL."""
        return f"file://{self.bare}"

    def commit(self, files: dict[str, str | None], message: str = "a change") -> str:
        """Commit these files; None removes a file. Return the commit's hash."""
        return _commit(self.tree, files, message)

    def push(self, files: dict[str, str | None], message: str = "a change", branch: str = "main") -> str:
        """Commit these files and push to a branch. Return the commit's hash."""
        commit = self.commit(files, message)
        git(self.tree, "push", "-q", "--force", "origin", f"HEAD:refs/heads/{branch}")
        return commit

    def switch(self, branch: str, at: str = "HEAD") -> None:
        """Check out a new branch at a commit."""
        git(self.tree, "checkout", "-q", "-B", branch, at)
