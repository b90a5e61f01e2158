"""The servers that tests start are real: they answer, keep databases apart and survive a crash."""

from __future__ import annotations

import asyncio
from pathlib import Path

import asyncpg
import pytest

from tests.support.postgres_server import PostgresServer, ServerFailed


def query(dsn: str, *statements: str) -> object:
    """Run statements over one connection; the answer to the last of them."""

    async def run() -> object:
        connection = await asyncpg.connect(dsn)
        try:
            answers: list[object] = [await connection.fetchval(statement) for statement in statements]
        finally:
            await connection.close()
        return answers[-1]

    return asyncio.run(run())


def test_a_server_that_cannot_start_says_why() -> None:
    """Without the server's own words one would have to look for its log, which is gone with its directory."""
    server = PostgresServer({"max_connections": "none"})

    with pytest.raises(ServerFailed, match="max_connections"):
        server.start()
    assert not server.is_running
    server.close()


def test_the_server_answers(postgres_dsn: str) -> None:
    assert query(postgres_dsn, "SELECT 1") == 1


@pytest.mark.parametrize(
    ("setting", "value"), [("fsync", "on"), ("synchronous_commit", "on"), ("max_connections", "200")]
)
def test_the_server_is_as_durable_as_one_in_use(postgres_dsn: str, setting: str, value: str) -> None:
    """A test on a server that may lose data proves nothing about data."""
    assert query(postgres_dsn, f"SHOW {setting}") == value


def test_databases_are_independent(postgres_server: PostgresServer, postgres_dsn: str) -> None:
    other = postgres_server.create_database()
    query(postgres_dsn, "CREATE TABLE mine (x int)")

    assert query(postgres_dsn, "SELECT to_regclass('mine')::text") == "mine"
    assert query(other, "SELECT to_regclass('mine')::text") is None
    postgres_server.drop_database(other)


def test_a_database_can_be_copied_from_a_template(postgres_server: PostgresServer, postgres_dsn: str) -> None:
    query(postgres_dsn, "CREATE TABLE kept AS SELECT 7 AS x")
    copy = postgres_server.create_database(template=str(query(postgres_dsn, "SELECT current_database()")))

    assert query(copy, "SELECT x FROM kept") == 7
    postgres_server.drop_database(copy)


def test_what_was_committed_survives_a_kill(postgres_server: PostgresServer, postgres_dsn: str) -> None:
    query(postgres_dsn, "CREATE TABLE kept (x int)", "INSERT INTO kept VALUES (1), (2)")

    postgres_server.kill()
    assert not postgres_server.is_running
    with pytest.raises(ConnectionRefusedError):
        query(postgres_dsn, "SELECT 1")

    postgres_server.start()
    assert "was not properly shut down" in postgres_server.log
    assert query(postgres_dsn, "SELECT sum(x) FROM kept") == 3


def test_a_restart_ends_open_connections_and_keeps_data(postgres_server: PostgresServer, postgres_dsn: str) -> None:
    async def restart_below_a_connection() -> bool:
        connection = await asyncpg.connect(postgres_dsn)
        await connection.execute("CREATE TABLE kept (x int)")
        postgres_server.restart()
        with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError, OSError)):
            await connection.execute("SELECT 1")
        return bool(connection.is_closed())

    assert asyncio.run(restart_below_a_connection())
    assert query(postgres_dsn, "SELECT count(*) FROM kept") == 0


def test_a_closed_server_leaves_nothing() -> None:
    with PostgresServer() as server:
        directory: Path = server.directory
        assert directory.exists()

    assert not directory.exists()
    assert not server.is_running
