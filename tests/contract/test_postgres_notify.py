"""Servers on one PostgreSQL wake each other, so that none has to poll often."""

from __future__ import annotations

import asyncio
from pathlib import Path

import asyncpg
import pytest

from deltaci.storage import commit_hints, postgres_notify
from tests.contract.backends import Backend, on_loop
from tests.contract.conftest import make_backend

LONG = 3600.0


@pytest.fixture
def shared_backend(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Backend:
    """Provide a database for servers whose poll is too slow for any test."""
    monkeypatch.setattr(commit_hints, "POLL_SECONDS", LONG)
    return make_backend("postgres", tmp_path, request)


async def until(asked: asyncpg.Connection[asyncpg.Record], sql: str, wanted: int) -> None:
    """Wait until a query of the server returns true."""
    async with asyncio.timeout(60):
        while await asked.fetchval(sql) != wanted:
            await asked.execute("SELECT pg_sleep(0.01)")


LISTENERS = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN%'"
OTHERS = (
    "SELECT pid FROM pg_stat_activity "
    "WHERE datname = current_database() AND (query LIKE 'LISTEN%' OR query LIKE '%pg_notify%') "
    "AND pid <> pg_backend_pid()"
)


@on_loop
async def test_a_job_enqueued_at_one_server_wakes_a_claim_at_another(shared_backend: Backend) -> None:
    """With several servers, a claim must not wait for a poll."""
    async with shared_backend.queue() as here, shared_backend.queue() as there:
        waiting = asyncio.create_task(there.claim_next("w1", wait_seconds=LONG))
        job = await here.enqueue("work")

        [claimed] = await waiting

        assert claimed.id == job.id


@on_loop
async def test_a_connection_that_is_cut_is_made_again(
    shared_backend: Backend, contract_dsn: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A hint may be lost, the wire for hints may not: after a cut they go on."""
    monkeypatch.setattr(postgres_notify, "RETRY_SECONDS", 0.0)
    asking = await asyncpg.connect(contract_dsn)
    async with shared_backend.queue() as here, shared_backend.queue() as there:
        await until(asking, LISTENERS, 2)
        cut = [row["pid"] for row in await asking.fetch(OTHERS)]
        for pid in cut:
            await asking.fetchval("SELECT pg_terminate_backend($1)", pid)
        await until(asking, f"{LISTENERS} AND pid NOT IN ({','.join(map(str, cut))})", 2)
        waiting = asyncio.create_task(there.claim_next("w1", wait_seconds=LONG))

        job = await here.enqueue("work")

        assert [each.id for each in await waiting] == [job.id]
    await asking.close()
