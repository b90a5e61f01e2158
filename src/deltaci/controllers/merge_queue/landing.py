"""How a base gets a commit: the one moment at which something that others see changes."""

from __future__ import annotations

from typing import Protocol

from deltaci.controllers.projects import Project
from deltaci.git.commit_builder import CommitBuilder


class Landing(Protocol):
    """Moves a branch of a repository, or does nothing at all."""

    async def land(self, project: Project, builder: CommitBuilder, branch: str, commit: str, expected: str) -> None:
        """Move the branch from exactly `expected` to the commit, which stands on it.

        Raises `Moved` when the branch is elsewhere, and `GitFailed` when it cannot be done now; both change nothing. A
        repeat is no error.
        """
        ...


class Pushing:
    """With a push, which the repository refuses when its branch is not where we think that it is."""

    async def land(self, project: Project, builder: CommitBuilder, branch: str, commit: str, expected: str) -> None:
        """Push it."""
        await builder.push(branch, commit, expected)
