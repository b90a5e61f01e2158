"""Fixtures of the worktree tests: those of repositories."""

from __future__ import annotations

from tests.controllers.conftest import place, site, upstream

__all__ = ["place", "site", "upstream"]
