"""Fixtures of the repository tests: a real repository and a server."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from deltaci.storage.port import wall_clock
from deltaci.storage.sqlite import SqliteStore
from tests.contract.backends import Backend
from tests.contract.conftest import contract_dsn, make_backend
from tests.controllers.site import RepositorySite, opened
from tests.support.upstream import Upstream

__all__ = ["backend", "contract_dsn", "postgres_backend", "site", "upstream"]


@pytest.fixture
def upstream(tmp_path: Path) -> Upstream:
    """Provide a repository with a pipeline."""
    return Upstream(tmp_path / "upstream")


@pytest.fixture
def backend(tmp_path: Path) -> Backend:
    """Provide a SQLite store on the wall clock."""
    return Backend("sqlite", lambda backend: SqliteStore(str(tmp_path / "ci.db"), clock=backend.now), origin=wall_clock)


@pytest.fixture
def postgres_backend(tmp_path: Path, request: pytest.FixtureRequest) -> Backend:
    """Provide a PostgreSQL store, for several servers."""
    return make_backend("postgres", tmp_path, request)


@pytest.fixture
def site(backend: Backend, tmp_path: Path) -> Callable[[], AbstractAsyncContextManager[RepositorySite]]:
    """Return a function that opens a server."""
    return lambda: opened(backend, tmp_path / "data")
