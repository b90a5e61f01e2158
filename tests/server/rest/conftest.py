"""Fixtures of the API tests. Each test runs on SQLite, and also on PostgreSQL if it is marked `on_both_stores`.

The tests in tests/contract prove that both stores behave alike; tests/fuzz sends its requests to PostgreSQL.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from deltaci.storage.port import wall_clock
from deltaci.storage.sqlite import SqliteStore
from tests.contract.backends import Backend
from tests.contract.conftest import contract_dsn, make_backend
from tests.server.rest.site import ApiSite, opened

__all__ = ["backend", "contract_dsn", "site"]


@pytest.fixture(params=("sqlite",))
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Backend:
    """Return the store under test."""
    if request.param == "sqlite":
        return Backend(
            "sqlite", lambda backend: SqliteStore(str(tmp_path / "api.db"), clock=backend.now), origin=wall_clock
        )
    return make_backend(request.param, tmp_path, request)


@pytest.fixture
def site(backend: Backend, tmp_path: Path) -> Callable[[], AbstractAsyncContextManager[ApiSite]]:
    """Return a function that starts the server on this store."""
    return lambda: opened(backend, tmp_path / "data")
