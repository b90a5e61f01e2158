"""Fixtures of the contract tests: every test runs over all three backends."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from deltaci.storage.memory import MemoryStore
from deltaci.storage.port import wall_clock
from deltaci.storage.sqlite import SqliteStore
from tests.contract.backends import Backend
from tests.support.postgres_server import PostgresServer

BACKENDS = ("memory", "sqlite", "postgres")


async def execute(dsn: str, *statements: str) -> None:
    """Execute statements on a database."""
    import asyncpg

    connection = await asyncpg.connect(dsn)
    try:
        for statement in statements:
            await connection.execute(statement)
    finally:
        await connection.close()


@pytest.fixture(scope="session")
def contract_dsn(postgres_server: PostgresServer) -> str:
    """Provide one database for all tests: emptying it takes a tenth of the time that a new one takes."""
    dsn = postgres_server.create_database()
    # These tests prove visibility; others prove durability.
    name = dsn.partition("@/")[2].partition("?")[0]
    asyncio.run(execute(dsn, f'ALTER DATABASE "{name}" SET synchronous_commit = off'))
    return dsn


def make_backend(name: str, folder: Path, request: pytest.FixtureRequest) -> Backend:
    """Return an empty backend."""
    if name == "memory":
        backend = Backend(name, lambda _: shared)
        shared = MemoryStore(clock=backend.now)
        return backend
    if name == "sqlite":
        return Backend(name, lambda backend: SqliteStore(str(folder / "contract.db"), clock=backend.now))
    from deltaci.storage.postgres import PostgresStore

    request.getfixturevalue("postgres_server").start()  # An earlier test may have killed it.
    dsn: str = request.getfixturevalue("contract_dsn")
    asyncio.run(execute(dsn, "DROP SCHEMA public CASCADE", "CREATE SCHEMA public"))
    return Backend(name, lambda backend: PostgresStore(dsn, shift=lambda: backend.shift), origin=wall_clock)


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Backend:
    """Provide each backend: except for their speed, they must behave alike."""
    return make_backend(request.param, tmp_path, request)


@pytest.fixture(params=BACKENDS[1:])
def durable_backend(request: pytest.FixtureRequest, tmp_path: Path) -> Backend:
    """Provide the backends whose data outlives the last open store."""
    return make_backend(request.param, tmp_path, request)
