"""Fixtures of the git tests: a repository."""

from __future__ import annotations

from tests.controllers.conftest import upstream

__all__ = ["upstream"]
