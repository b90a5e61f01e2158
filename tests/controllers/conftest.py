"""Fixtures of the repository tests: a real repository and a server."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from deltaci.storage.memory import wall_clock
from deltaci.storage.sqlite import SqliteStore
from tests.contract.conftest import contract_dsn, make_place
from tests.contract.places import Place
from tests.controllers.site import RepositorySite, opened
from tests.support.upstream import Upstream

__all__ = ["contract_dsn", "place", "postgres_place", "site", "upstream"]


@pytest.fixture
def upstream(tmp_path: Path) -> Upstream:
    """Provide a repository with a pipeline."""
    return Upstream(tmp_path / "upstream")


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """Provide a SQLite store on the wall clock."""
    return Place("sqlite", lambda place: SqliteStore(str(tmp_path / "ci.db"), clock=place.now), origin=wall_clock)


@pytest.fixture
def postgres_place(tmp_path: Path, request: pytest.FixtureRequest) -> Place:
    """Provide a PostgreSQL store, for several servers."""
    return make_place("postgres", tmp_path, request)


@pytest.fixture
def site(place: Place, tmp_path: Path) -> Callable[[], AbstractAsyncContextManager[RepositorySite]]:
    """Return a function that opens a server."""
    return lambda: opened(place, tmp_path / "data")
