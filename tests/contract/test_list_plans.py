"""The databases read lists along a key or an index, independent of the number of records."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import pytest

from deltaci.core.attempt import Attempt
from deltaci.core.job import Job, JobSpec
from deltaci.core.resource import Resource
from deltaci.storage import document_backends, list_index, resources, sqlite
from deltaci.storage import sql as sql_statements
from deltaci.storage.port import Document, ListChange, Store, Write
from deltaci.storage.sqlite import SqliteStore
from tests.contract.backends import ask, on_loop, put
from tests.support.lab import START, TENANT

MANY = 1000
WALK = [TENANT, "some", START, "r1", 0, 50, "other", "third"]


async def fill(store: Store) -> None:
    """Enough that a walk through all of it is never the best way."""
    listed = frozenset({(TENANT, "some"), (TENANT, "other")})
    entries = [ListChange(f"r{n}", START + n, listed) for n in range(MANY)]
    jobs = [put(Job(id=f"r{n}/a", run_id=f"r{n}", spec=JobSpec(name="a")), is_terminal=n % 2 == 0) for n in range(MANY)]
    held = [put(Attempt(id=f"a{n}", tenant=TENANT), due_at=START) for n in range(MANY)]
    settings = [
        put(Resource(id=f"resource:{TENANT}/k:{n}", tenant=TENANT, kind="k", name=str(n), state="PRESENT"))
        for n in range(MANY)
    ]
    await ask(store, Write(jobs + held + settings, [], True, entries))
    await store.put_documents([Document("template", TENANT, f"t{n}", 0, 0, b"") for n in range(MANY)])


@on_loop
async def test_sqlite_uses_the_key_or_an_index(tmp_path: Path) -> None:
    """A page of a list with a million entries costs as much as one with a thousand."""
    path = tmp_path / "plans.db"
    store = SqliteStore(str(path))
    await store.open()
    await fill(store)
    await store.close()
    connection = sqlite3.connect(path)

    for sql, values, way in (
        (list_index.scan_sql("?", 2), WALK, "PRIMARY KEY (tenant=? AND list=? AND at>? AND (at,id)<(?,?))"),
        (list_index.COUNT.format(m="?"), [TENANT, "some", 5], "PRIMARY KEY (tenant=? AND list=?)"),
        (f"{sqlite._SELECT} {sqlite._OF_RUN}", ["r1", 1], "INDEX records_run (run_id=? AND kind=?)"),
        (f"{sqlite._SELECT_FINISHED} {sqlite._OF_RUN}", ["r1", 1], "INDEX history_run (run_id=? AND kind=?)"),
        (sqlite._select_by_ids(2), ["r1", "r2"], "SEARCH records USING PRIMARY KEY (id=?)"),
        (sqlite._select_by_ids(2), ["r1", "r2"], "SEARCH history USING PRIMARY KEY (id=?)"),
        (sqlite._COUNT_LIVE_LEASES, [TENANT, 5], "INDEX records_held (tenant=?"),
        (document_backends.FIND.format(m="?"), ["k", TENANT, "t1"], "PRIMARY KEY (kind=? AND tenant=? AND name=?)"),
        (document_backends.FIRST.format(m="?"), ["k", 5], "PRIMARY KEY (kind=?)"),
        (resources.FIND_KEY.format(m="?"), ["k1"], "INDEX resources_key (name=?"),
        (resources.select_by_ids(2), ["a", "b"], "INDEX sqlite_autoindex_resources_1 (id=?)"),
        (
            resources.LIST.format(m="?"),
            ["k", TENANT, "", "", 5],
            "INDEX resources_present (kind=? AND (tenant,name)>(?,?))",
        ),
        (sql_statements.LATEST_OF_SCOPE.format("?1", "?2", "?3"), ["s", 9, 5], "PRIMARY KEY (scope=? AND last_seq<?)"),
        (
            document_backends.LIST.format(m="?"),
            ["k", TENANT, "", "", 5],
            "PRIMARY KEY (kind=? AND tenant=? AND name>?)",
        ),
    ):
        plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {sql}", values)]

        assert any(way in step for step in plan), plan
        tables = ("listed", "records", "history", "documents", "resources", "chunk_scopes", "chunks")
        assert not [step for step in plan if step.startswith(tuple(f"SCAN {table}" for table in tables))], plan
    walked = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {list_index.scan_sql('?', 2)}", WALK)]
    assert sum("SEARCH o USING PRIMARY KEY (tenant=? AND list=? AND at=? AND id=?)" in step for step in walked) == 2
    assert not [step for step in walked if "B-TREE" in step], walked
    connection.close()


@pytest.mark.parametrize("state", ["empty", "no statistics", "statistics"])
def test_postgresql_uses_the_key_or_an_index(postgres_dsn: str, state: str) -> None:
    """With statistics and without, and with plans for unknown values.

    Plans that are made before there is any data are good, too: a connection keeps them.
    """
    import asyncpg

    from deltaci.storage import postgres

    async def plans() -> list[tuple[str, str]]:
        store = postgres.PostgresStore(postgres_dsn)
        await store.open()
        if state != "empty":
            await fill(store)
        await store.close()
        connection = await asyncpg.connect(postgres_dsn, server_settings=postgres.PLANNER_SETTINGS)
        if state == "statistics":
            await connection.execute("ANALYZE")
        found = []
        for sql, values, way in (
            (list_index.scan_sql("$", 2), "('acme', 'some', 1, 'r1', 0, 50, 'other', 'third')", "listed_pkey"),
            (list_index.COUNT.format(m="$"), "('acme', 'some', 5)", "listed_pkey"),
            (postgres._LOAD_JOBS, "('r1', 1)", "records_run"),
            (postgres._LOAD_JOBS, "('r1', 1)", "history_run"),
            (postgres._LOAD, "('{r1, r2}')", "records_pkey"),
            (postgres._LOAD, "('{r1, r2}')", "history_pkey"),
            (postgres._BEGIN, "('{r1, r2}')", "records_pkey"),
            (postgres._COUNT_LIVE_LEASES, "('acme', 5)", "records_held"),
            (document_backends.FIND.format(m="$"), "('template', 'acme', 't1')", "documents_pkey"),
            (document_backends.FIRST.format(m="$"), "('template', 5)", "documents_pkey"),
            (resources.FIND_KEY.format(m="$"), "('k1')", "resources_key"),
            (resources.LIST.format(m="$"), "('k', 'acme', '', '', 5)", "resources_present"),
            (postgres._LOAD_RESOURCES, "('{a, b}')", "resources_pkey"),
            (sql_statements.LATEST_OF_SCOPE.format("$1", "$2", "$3"), "('s', 9, 5)", "chunk_scopes_pkey"),
            (document_backends.LIST.format(m="$"), "('template', 'acme', '', '', 5)", "documents_pkey"),
        ):
            # Only a prepared statement is planned as ours are: for any values.
            await connection.execute(f"PREPARE asked AS {sql}")
            plan = "\n".join(row[0] for row in await connection.fetch(f"EXPLAIN EXECUTE asked {values}"))
            await connection.execute("DEALLOCATE asked")
            found.append((way, plan))
        await connection.close()
        return found

    for way, plan in asyncio.run(plans()):
        assert f"using {way}" in plan, plan
        assert "Seq Scan" not in plan, plan
        assert "Sort" not in plan, plan
