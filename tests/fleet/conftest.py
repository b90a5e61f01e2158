"""Fixtures of the fleet tests: servers over memory and SQLite."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from tests.contract.backends import Backend
from tests.contract.conftest import contract_dsn, make_backend
from tests.fleet.site import OpenFleet, opened

__all__ = ["backend", "contract_dsn", "fleet"]


@pytest.fixture(params=("memory", "sqlite"))
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Backend:
    """Provide the cheap stores; tests/contract, tests/fuzz and tests/e2e use PostgreSQL too."""
    return make_backend(request.param, tmp_path, request)


@pytest.fixture
def fleet(backend: Backend, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> OpenFleet:
    """Return a function that opens one more server over the same store with each call."""
    caplog.set_level(logging.DEBUG)
    return lambda **options: opened(backend, tmp_path / "logs", caplog, **options)
