"""Migrations:

a database is prepared once, in order, by any of several servers, and never if another program uses it.
"""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import pytest

from deltaci.core.attempt import QUEUED, Attempt
from deltaci.storage import migrate, open_store
from deltaci.storage.codec import KIND_OF, encode
from deltaci.storage.memory import MemoryStore
from deltaci.storage.migrate import Migration, SchemaError, migrations, pending_migrations
from deltaci.storage.port import Unavailable
from deltaci.storage.sqlite import SqliteStore
from tests.contract.backends import Backend, on_loop, put, write
from tests.contract.conftest import execute

TOO_MANY = 8


def altered(monkeypatch: pytest.MonkeyPatch, durable_backend: Backend, steps: list[Migration]) -> None:
    """From now on this program has these steps."""
    monkeypatch.setattr(f"deltaci.storage.{durable_backend.name}.migrations", lambda _: steps)


# -- refusals


@on_loop
async def test_a_database_with_other_migrations_is_refused(
    durable_backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an edited migration, the tables of existing databases are unknown."""
    async with durable_backend.opened() as store:
        await write(store, put(Attempt(id="a")))
    first, *rest = migrations(durable_backend.name)
    edited = Migration(first.number, first.name, first.text + "-- a harmless remark\n")
    altered(monkeypatch, durable_backend, [edited, *rest])

    store = durable_backend.store()
    with pytest.raises(SchemaError, match=f"{first.name} was applied with other content.*use the matching version"):
        await store.open()
    await store.close()

    monkeypatch.undo()
    async with durable_backend.opened() as store:
        assert await store.find("a") == Attempt(id="a")


@on_loop
async def test_a_failed_migration_leaves_no_changes(durable_backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next start must find the state before the failed migration."""
    all_migrations = migrations(durable_backend.name)
    broken = Migration(
        len(all_migrations) + 1, "0002_broken.sql", "CREATE TABLE half (id integer); CREATE TABLE half (id text)"
    )
    altered(monkeypatch, durable_backend, [*all_migrations, broken])
    store = durable_backend.store()
    with pytest.raises(Exception, match="half"):
        await store.open()
    await store.close()

    whole = Migration(broken.number, broken.name, "CREATE TABLE half (id integer)")
    altered(monkeypatch, durable_backend, [*all_migrations, whole])
    async with durable_backend.opened() as again:
        await write(again, put(Attempt(id="a")))


def test_a_gap_in_the_numbers_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that is missing from a build must be noticed before any database is touched."""
    (tmp_path / "sqlite").mkdir()
    for name in ("0001_first.sql", "0003_third.sql", "notes.txt"):
        (tmp_path / "sqlite" / name).write_text("")
    monkeypatch.setattr(migrate, "files", lambda _: tmp_path)

    with pytest.raises(SchemaError, match="not numbered"):
        migrations("sqlite")


@pytest.mark.parametrize("url", ["", "memory", "sqlite", "sqlite:", "sqlite://", "mysql://x", "postgresql"])
def test_a_url_that_names_no_store_is_refused(url: str) -> None:
    """A typing error must not open an empty database somewhere."""
    with pytest.raises(ValueError, match="names no store; expected memory:"):
        open_store(url)


@on_loop
async def test_a_locked_file_is_unavailable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another program uses the file: the caller may repeat."""
    monkeypatch.setattr("deltaci.storage.sqlite.BUSY_SECONDS", 0.05)
    path = tmp_path / "busy.db"
    store = SqliteStore(str(path))
    await store.open()
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")

    with pytest.raises(Unavailable, match="locked"):
        await write(store, put(Attempt(id="a")))

    other.execute("ROLLBACK")
    other.close()
    await write(store, put(Attempt(id="a")))
    await store.close()


# -- what is fine


def test_only_missing_migrations_are_applied() -> None:
    """Each migration is applied once, in order."""
    steps = [Migration(n, f"000{n}_step.sql", f"-- {n}") for n in (1, 2, 3)]

    assert pending_migrations(steps, []) == steps
    assert pending_migrations(steps, [(1, steps[0].checksum), (2, steps[1].checksum)]) == steps[2:]
    assert pending_migrations(steps[:1], [(step.number, step.checksum) for step in steps]) == []


@pytest.mark.parametrize("dialect", ["sqlite", "postgres"])
def test_every_dialect_has_the_same_migrations(dialect: str) -> None:
    """All databases have the same features."""
    assert [step.name for step in migrations(dialect)] == [step.name for step in migrations("sqlite")]


@on_loop
async def test_opening_again_changes_nothing(durable_backend: Backend) -> None:
    """A restart is nothing special."""
    async with durable_backend.opened() as store:
        await write(store, put(Attempt(id="a")))

    for _ in range(2):
        async with durable_backend.opened() as store:
            assert await store.find("a") == Attempt(id="a")


@on_loop
async def test_records_older_than_tenants_belong_to_the_default_tenant(
    durable_backend: Backend, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """A queue without a tenant finds its earlier jobs."""
    altered(monkeypatch, durable_backend, migrations(durable_backend.name)[:1])
    async with durable_backend.opened():
        pass
    monkeypatch.undo()
    body = encode(Attempt(id="a", tenant="default", state=QUEUED))
    row = f"INSERT INTO records VALUES ('a', {KIND_OF[Attempt]}, 1, '', '', 0, 0, NULL, %s)"
    if durable_backend.name == "sqlite":
        connection = sqlite3.connect(tmp_path / "contract.db", isolation_level=None)
        connection.execute(row % f"x'{body.hex()}'")
        connection.close()
    else:
        await execute(request.getfixturevalue("contract_dsn"), row % f"'\\x{body.hex()}'")

    async with durable_backend.queue() as queue:
        assert [job.id for job in await queue.claim_next("w1")] == ["a"]


@on_loop
async def test_a_database_that_is_ahead_is_tolerated(durable_backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """While servers are replaced one by one, an old one meets tables that a new one has extended."""
    all_migrations = migrations(durable_backend.name)
    newer = Migration(len(all_migrations) + 1, "0099_newer.sql", "CREATE TABLE newer (id integer)")
    altered(monkeypatch, durable_backend, [*all_migrations, newer])
    async with durable_backend.opened() as store:
        await write(store, put(Attempt(id="a")))
    monkeypatch.undo()

    async with durable_backend.opened() as old:
        await write(old, put(Attempt(id="a", priority=1), 1))
        assert await old.find("a") == Attempt(id="a", priority=1)


@on_loop
async def test_many_that_open_a_fresh_database_at_once_all_succeed(durable_backend: Backend) -> None:
    """A deployment starts all of its servers together."""
    stores = [durable_backend.store() for _ in range(TOO_MANY)]

    await asyncio.gather(*(store.open() for store in stores))

    for n, store in enumerate(stores):
        await write(store, put(Attempt(id=f"a{n}")))
    assert [await stores[0].find(f"a{n}") is not None for n in range(TOO_MANY)] == [True] * TOO_MANY
    await asyncio.gather(*(store.close() for store in stores))


def test_a_url_names_its_store(tmp_path: Path) -> None:
    """The URL is the only thing that a program must change to move from one store to another."""
    store = open_store(f"sqlite:{tmp_path / 'a.db'}")

    assert isinstance(open_store("memory:"), MemoryStore)
    assert isinstance(store, SqliteStore)
    asyncio.run(store.close())
