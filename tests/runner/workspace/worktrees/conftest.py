"""Fixtures of the worktree tests: those of repositories."""

from __future__ import annotations

from tests.controllers.conftest import backend, site, upstream

__all__ = ["backend", "site", "upstream"]
