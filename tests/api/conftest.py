"""The fixtures of the API's cases: each runs over SQLite and over PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from deltaci.store.memory import wall_clock
from deltaci.store.sqlite import SqliteStore
from tests.api.site import ApiSite, opened
from tests.contract.conftest import contract_dsn, make_place
from tests.contract.places import Place

__all__ = ["contract_dsn", "place", "site"]


@pytest.fixture(params=("sqlite", "postgres"))
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """The two that people use."""
    if request.param == "sqlite":
        return Place("sqlite", lambda place: SqliteStore(str(tmp_path / "api.db"), clock=place.now), origin=wall_clock)
    return make_place(request.param, tmp_path, request)


@pytest.fixture
def site(place: Place, tmp_path: Path) -> Callable[[], AbstractAsyncContextManager[ApiSite]]:
    """Opens the server over this place."""
    return lambda: opened(place, tmp_path / "data")
