"""The databases find claimable attempts along an index, in its order, independent of the size of the backlog."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import pytest

from deltaci.core.attempt import STALE, Attempt
from deltaci.core.timers import ready_at
from deltaci.storage import sqlite
from deltaci.storage.port import Store
from deltaci.storage.sql import FIRST_READY, NEXT_QUEUE
from deltaci.storage.sqlite import SqliteStore
from tests.contract.backends import on_loop, put, write
from tests.contract.test_store_port import waiting
from tests.support.lab import START

WAITING = 2000


async def fill(store: Store) -> None:
    """Two tenants with a backlog."""
    for tenant in ("a", "b"):
        puts = [
            waiting(f"{tenant}{n}", n, priority=n % 3, tenant=tenant, labels=("", "arm")[n % 2]) for n in range(WAITING)
        ]
        puts += [put(Attempt(id=f"{tenant}g{n}", tenant=tenant, group=f"g{n % 7}"), ready_at=n) for n in range(100)]
        fenced = [Attempt(id=f"{tenant}s{n}", tenant=tenant, state=STALE, fence_until=n) for n in range(1, 100)]
        puts += [put(record, ready_at=ready_at(record)) for record in fenced]
        ended = [Attempt(id=f"{tenant}e{n}", tenant=tenant, group=f"g{n}", fence_until=START) for n in range(100)]
        puts += [put(record, is_terminal=True) for record in ended]
        await write(store, *puts)


@on_loop
async def test_sqlite_reads_along_the_index(tmp_path: Path) -> None:
    """A sort would cost as much as the whole backlog with every claim."""
    path = tmp_path / "plans.db"
    store = SqliteStore(str(path))
    await store.open()
    await fill(store)
    await store.close()
    connection = sqlite3.connect(path)

    for sql, values in (
        (sqlite._READY.format(""), ["a", "arm", START, 1]),
        (sqlite._READY.format(sqlite._EXCLUDE_GROUPS.format("?, ?")), ["a", "arm", START, "g1", "g2", 1]),
        (sqlite._KEYS, ["a", "a"]),
    ):
        plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {sql}", values)]
        on_records = [step for step in plan if "records" in step and "records_group" not in step]
        on_groups = [step for step in plan if "records_group" in step]

        assert on_records
        assert all("records_ready (tenant=?" in step and "SEARCH" in step for step in on_records), plan
        assert all("(tenant=? AND group_name=?" in step and "SEARCH" in step for step in on_groups), plan
        fences = [step for step in plan if "group_fences" in step]
        assert all("SEARCH group_fences USING PRIMARY KEY (tenant=? AND group_name=?)" in step for step in fences), plan
        assert bool(fences) == bool(on_groups)
        assert not [step for step in plan if "B-TREE" in step], plan
    for sql, values in ((NEXT_QUEUE, ["a", "arm"]), (FIRST_READY, ["a", "arm", START, 1])):
        marked = sql.format("?1", "?2", "?3", "?4")
        plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {marked}", values)]
        assert plan[0].startswith(("SEARCH records USING", "SEARCH r USING")), plan
        assert "records_ready" in plan[0], plan
        assert not [step for step in plan if "B-TREE" in step], plan
    [by_id] = connection.execute(f"EXPLAIN QUERY PLAN {sqlite._READY_BY_IDS.format('?, ?')}", ["a1", "a2", "a", START])
    assert "(id=?)" in by_id[3]
    connection.close()


@pytest.mark.parametrize("is_analyzed", [False, True], ids=["no statistics", "statistics"])
def test_postgresql_reads_along_the_index(postgres_dsn: str, is_analyzed: bool) -> None:
    """With statistics and without them, as directly after a restart."""
    import asyncpg

    from deltaci.storage import postgres

    async def plans() -> list[str]:
        store = postgres.PostgresStore(postgres_dsn)
        await store.open()
        await fill(store)
        await store.close()
        connection = await asyncpg.connect(postgres_dsn, server_settings=postgres.PLANNER_SETTINGS)
        if is_analyzed:
            await connection.execute("ANALYZE records")
        found = []
        for sql, values in (
            (postgres._READY, ["a", "arm", START, 1]),
            (postgres._READY_EXCLUDING, ["a", "arm", START, 1, ["g1"]]),
            (postgres._KEYS, ["a"]),
        ):
            found.append("\n".join(row[0] for row in await connection.fetch(f"EXPLAIN {sql}", *values)))
        for sql, values in ((NEXT_QUEUE, ["a", "arm"]), (FIRST_READY, ["a", "arm", START, 1])):
            shown = f"EXPLAIN {sql.format('$1', '$2', '$3', '$4')}"
            found.append("\n".join(row[0] for row in await connection.fetch(shown, *values)))
        only.append(
            "\n".join(row[0] for row in await connection.fetch(f"EXPLAIN {postgres._READY_BY_IDS}", ["a1"], "a", START))
        )
        await connection.close()
        return found

    only: list[str] = []
    for plan in asyncio.run(plans()):
        assert "using records_ready" in plan
        assert plan.count("(tenant = ") + plan.count("ROW(tenant, queue_key) > ") == plan.count("Index Cond"), plan
        assert "hashed" not in plan, plan
        assert "Seq Scan" not in plan, plan
        assert "Sort" not in plan, plan
    assert "using records_pkey" in only[0]
    assert "Index Cond: (id = ANY" in only[0]
