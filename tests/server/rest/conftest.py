"""Fixtures of the API tests. Each test runs on SQLite, and also on PostgreSQL if it is marked `on_both_stores`.

The tests in tests/contract prove that both stores behave alike; tests/fuzz sends its requests to PostgreSQL.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from deltaci.storage.memory import wall_clock
from deltaci.storage.sqlite import SqliteStore
from tests.contract.conftest import contract_dsn, make_place
from tests.contract.places import Place
from tests.server.rest.site import ApiSite, opened

__all__ = ["contract_dsn", "place", "site"]


@pytest.fixture(params=("sqlite",))
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """Return the store under test."""
    if request.param == "sqlite":
        return Place("sqlite", lambda place: SqliteStore(str(tmp_path / "api.db"), clock=place.now), origin=wall_clock)
    return make_place(request.param, tmp_path, request)


@pytest.fixture
def site(place: Place, tmp_path: Path) -> Callable[[], AbstractAsyncContextManager[ApiSite]]:
    """Return a function that starts the server on this store."""
    return lambda: opened(place, tmp_path / "data")
