"""The fixtures of the contract: every case runs in all three places."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from deltaci.storage.memory import MemoryStore, wall_clock
from deltaci.storage.sqlite import SqliteStore
from tests.contract.places import Place
from tests.support.postgres_server import PostgresServer

PLACES = ("memory", "sqlite", "postgres")


async def execute(dsn: str, *statements: str) -> None:
    """Prepare a database for the next case."""
    import asyncpg

    connection = await asyncpg.connect(dsn)
    try:
        for statement in statements:
            await connection.execute(statement)
    finally:
        await connection.close()


@pytest.fixture(scope="session")
def contract_dsn(postgres_server: PostgresServer) -> str:
    """One database for all cases: emptying it takes a tenth of the time that a new one takes."""
    dsn = postgres_server.create_database()
    # What survives a crash is proved elsewhere; here only what others can see matters.
    name = dsn.partition("@/")[2].partition("?")[0]
    asyncio.run(execute(dsn, f'ALTER DATABASE "{name}" SET synchronous_commit = off'))
    return dsn


def make_place(name: str, folder: Path, request: pytest.FixtureRequest) -> Place:
    """A place with nothing in it."""
    if name == "memory":
        place = Place(name, lambda _: shared)
        shared = MemoryStore(clock=place.now)
        return place
    if name == "sqlite":
        return Place(name, lambda place: SqliteStore(str(folder / "contract.db"), clock=place.now))
    from deltaci.storage.postgres import PostgresStore

    request.getfixturevalue("postgres_server").start()  # An earlier test may have killed it.
    dsn: str = request.getfixturevalue("contract_dsn")
    asyncio.run(execute(dsn, "DROP SCHEMA public CASCADE", "CREATE SCHEMA public"))
    return Place(name, lambda place: PostgresStore(dsn, shift=lambda: place.shift), origin=wall_clock)


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """Memory, SQLite and PostgreSQL must not be told apart by anything but their speed."""
    return make_place(request.param, tmp_path, request)


@pytest.fixture(params=PLACES[1:])
def lasting_place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """The places whose data is still there when the last store over it was closed."""
    return make_place(request.param, tmp_path, request)
