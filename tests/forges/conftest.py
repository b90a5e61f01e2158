"""Fixtures of the forge tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.contract.backends import Backend
from tests.contract.conftest import contract_dsn, make_backend

__all__ = ["backend", "contract_dsn", "memory", "postgres_backend"]


@pytest.fixture(params=("memory", "sqlite", "postgres"))
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Backend:
    """Provide each kind of store."""
    return make_backend(request.param, tmp_path, request)


@pytest.fixture
def memory(tmp_path: Path, request: pytest.FixtureRequest) -> Backend:
    """Provide a store in memory, for tests that do not depend on the kind of store."""
    return make_backend("memory", tmp_path, request)


@pytest.fixture
def postgres_backend(tmp_path: Path, request: pytest.FixtureRequest) -> Backend:
    """Provide a PostgreSQL store, for several servers."""
    return make_backend("postgres", tmp_path, request)
