"""The one fixture of the contract: every case runs in all three places."""

from __future__ import annotations

from pathlib import Path

import pytest

from deltaci.store.memory import MemoryStore, wall_clock
from deltaci.store.sqlite import SqliteStore
from tests.contract.places import Place

PLACES = ("memory", "sqlite", "postgres")


def make_place(name: str, folder: Path, request: pytest.FixtureRequest) -> Place:
    """A place with nothing in it."""
    if name == "memory":
        place = Place(name, lambda _: shared)
        shared = MemoryStore(clock=place.now)
        return place
    if name == "sqlite":
        return Place(name, lambda place: SqliteStore(str(folder / "contract.db"), clock=place.now))
    from deltaci.store.postgres import PostgresStore

    dsn: str = request.getfixturevalue("postgres_dsn")
    return Place(name, lambda place: PostgresStore(dsn, shift=lambda: place.shift), origin=wall_clock)


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """Memory, SQLite and PostgreSQL must not be told apart by anything but their speed."""
    return make_place(request.param, tmp_path, request)


@pytest.fixture(params=PLACES[1:])
def lasting_place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """The places whose data is still there when the last store over it was closed."""
    return make_place(request.param, tmp_path, request)
