"""The fixtures of the API's cases: each runs over SQLite, and over PostgreSQL too where it is marked `on_both_stores`.

That the stores cannot be told apart is proved in tests/contract; tests/fuzz sends its requests to PostgreSQL.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from deltaci.storage.memory import wall_clock
from deltaci.storage.sqlite import SqliteStore
from tests.api.site import ApiSite, opened
from tests.contract.conftest import contract_dsn, make_place
from tests.contract.places import Place

__all__ = ["contract_dsn", "place", "site"]


@pytest.fixture(params=("sqlite",))
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """The store that is tested."""
    if request.param == "sqlite":
        return Place("sqlite", lambda place: SqliteStore(str(tmp_path / "api.db"), clock=place.now), origin=wall_clock)
    return make_place(request.param, tmp_path, request)


@pytest.fixture
def site(place: Place, tmp_path: Path) -> Callable[[], AbstractAsyncContextManager[ApiSite]]:
    """Opens the server over this place."""
    return lambda: opened(place, tmp_path / "data")
