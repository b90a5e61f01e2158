"""Read transactions: several requests, the later ones depending on earlier results, concurrent with writers."""

from __future__ import annotations

import asyncio

import pytest

from deltaci.core import run
from deltaci.core.errors import Refused
from deltaci.core.machine import Record
from deltaci.core.run import Run
from deltaci.storage.port import Load, LoadJobs, ReadTransaction, StoredRecord, Unavailable
from tests.contract.backends import Backend, on_loop
from tests.contract.test_runs import finish, planned
from tests.support.lab import task

MORE_THAN_READ_AT_ONCE = 20


def family(id: str) -> ReadTransaction[list[Record]]:
    """A run, its jobs, and their first attempts."""
    stored = yield Load((id,))
    if not stored:
        raise Refused("not_found", id)
    jobs = yield LoadJobs(id)
    tries = yield Load(tuple(f"{held.record.id}.1" for held in jobs))
    return [*(held.record for held in stored), *in_order(jobs), *in_order(tries)]


def in_order(found: list[StoredRecord]) -> list[Record]:
    """By their ids: stores answer as they like."""
    return sorted((held.record for held in found), key=lambda record: record.id)


@on_loop
async def test_a_read_finds_live_and_finished_records(backend: Backend) -> None:
    """It leaves out records that do not exist."""
    async with backend.server() as server:
        await planned(server, task("a"), task("b", "a"))
        await planned(server, task("other"), id="r2")
        await finish(server, await server.take())

        found = await server.store.read(lambda: family("r1"))

        assert [record.id for record in found] == ["r1", "r1/a", "r1/b", "r1/a.1", "r1/b.1"]
        assert found == await server.store.find_all([record.id for record in found])


@on_loop
async def test_an_abandoned_read_holds_no_lock(backend: Backend) -> None:
    """Later readers and writers are not delayed."""
    async with backend.server() as server:
        for _ in range(MORE_THAN_READ_AT_ONCE):
            with pytest.raises(Refused):
                await server.store.read(lambda: family("r1"))

        await planned(server, task("a"))

        assert len(await server.store.read(lambda: family("r1"))) == 3


@on_loop
async def test_a_read_from_a_file_is_a_snapshot(backend: Backend) -> None:
    """A run and its jobs are consistent. Several requests to a database on the network may not be."""
    if backend.name != "sqlite":
        pytest.skip("only a file is read without a word to anybody")
    loop = asyncio.get_running_loop()
    async with backend.server() as server:
        await planned(server, task("a"))

        def interrupted() -> ReadTransaction[list[str]]:
            before = yield Load(("r1",))
            asyncio.run_coroutine_threadsafe(server.do(run.Cancel(id="r1", actor="user:ada")), loop).result(60)
            after = yield Load(("r1",))
            return [held.record.state for held in (*before, *after)]

        assert await server.store.read(interrupted) == [run.QUEUED, run.QUEUED]
        assert (await server.find("r1", Run)).state != run.QUEUED


@on_loop
async def test_a_read_from_a_store_that_is_not_open_is_refused(backend: Backend) -> None:
    """It says so."""
    if backend.name == "memory":
        pytest.skip("memory is always there")
    with pytest.raises(Unavailable):
        await backend.store().read(lambda: family("r1"))
