"""Fixtures of the server's tests: each runs over memory and SQLite, and ends with the checks of `Site`."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from tests.contract.backends import Backend
from tests.contract.conftest import make_backend
from tests.server.site import Site, open_site

__all__ = ["backend", "site"]


@pytest.fixture(params=("memory", "sqlite"))
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Backend:
    """The stores of the contract that cost little; tests/contract, tests/fuzz and tests/e2e use PostgreSQL too."""
    return make_backend(request.param, tmp_path, request)


@pytest.fixture
def site(
    backend: Backend, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> Callable[[], AbstractAsyncContextManager[Site]]:
    """Opens the server over this place."""
    caplog.set_level(logging.DEBUG)
    return lambda: open_site(backend, tmp_path / "logs", caplog)
