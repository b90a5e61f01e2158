"""PLANNING begins when planning begins: its time counts while the repository is asked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from deltaci.core.run import PLANNING_SECONDS
from deltaci.git.url_policy import UrlPolicy
from tests.contract.backends import Backend, on_loop
from tests.controllers.site import RepositorySite, opened
from tests.server.rest.site import Caller
from tests.support.upstream import Upstream

Opened = Callable[[], AbstractAsyncContextManager[RepositorySite]]
COMMIT = "a" * 40
LOOPBACK = UrlPolicy(frozenset({"http", "private"}))


@asynccontextmanager
async def silent_remote() -> AsyncIterator[str]:
    """Yield the URL of a git server that accepts connections and never answers."""
    connections: list[asyncio.StreamWriter] = []

    async def accept(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/shop.git"
    finally:
        server.close()
        for writer in connections:
            writer.close()


async def started_by_hand(here: RepositorySite, url: str) -> tuple[Caller, str]:
    """Start a run of a commit that must be fetched from the repository. Return its id once planning has begun."""
    people = await here.project(url)
    run = (await people.post("/runs", {"repository": "shop", "commit": COMMIT})).body["id"]
    await here.until(people, run, "PLANNING")
    return people, run


@pytest.mark.proves("ORC-R1", "ORC-R3", "MOD-L6")
@on_loop
async def test_a_manual_run_whose_repository_never_answers_fails_when_its_planning_time_is_over(
    backend: Backend, tmp_path: Path
) -> None:
    """Planning began with the question to the repository, and `explain` says so."""
    async with silent_remote() as url, opened(backend, tmp_path / "data", LOOPBACK) as here:
        people, run = await started_by_hand(here, url)
        waiting = await people.run(run)
        explained = (await people.get(f"/runs/{run}/explain")).body["summary"]

        here.backend.after(PLANNING_SECONDS + 1)
        failed = await here.until(people, run, "FAILED")

        assert (waiting["state"], waiting["status"]) == ("PLANNING", "PENDING")
        assert "is being planned until" in explained
        assert (failed["conclusion"], failed["reason"]) == ("FAILED", "PLAN_TIMEOUT")
        assert [event.to for event in await here.log() if event.entity == "run"][:4] == [
            *("CREATED", "PLANNING", "PLAN_FAILED", "FAILED")
        ]


@pytest.mark.proves("MOD-3")
@on_loop
async def test_a_manual_run_whose_repository_never_answers_can_be_canceled(backend: Backend, tmp_path: Path) -> None:
    """A remembered cancel need not wait for the repository: what it would plan is not executed anyway."""
    async with silent_remote() as url, opened(backend, tmp_path / "data", LOOPBACK) as here:
        people, run = await started_by_hand(here, url)

        await people.post(f"/runs/{run}/cancel", {"reason": "wrong commit"})
        ended = await here.until(people, run, "CANCELED")

        assert (ended["conclusion"], ended["reason"]) == ("CANCELED", "wrong commit")


@pytest.mark.proves("ORC-R3")
@on_loop
async def test_the_planning_time_does_not_count_while_a_plan_waits_for_its_concurrency_group(
    site: Opened, upstream: Upstream
) -> None:
    """An earlier run of the group may take longer than any planning."""
    async with site() as here:
        upstream.push({".deltaci.yml": "on: [manual]\nconcurrency: deploy\njobs:\n  a:\n    steps: [run: x]\n"})
        people = await here.project(upstream.url)
        runner = await here.register_runner()
        runs = []
        for _ in range(2):
            runs.append((await people.post("/runs", {"repository": "shop"})).body["id"])
            await here.settled()
        first, second = runs
        explained = (await people.get(f"/runs/{second}/explain")).body["summary"]

        here.backend.after(PLANNING_SECONDS + 1)
        await runner.finish(await runner.take())
        await here.until(people, first, "SUCCESS")
        await here.settled()

        assert "waits until no earlier run of its concurrency group" in explained
        assert (await people.run(second))["state"] == "QUEUED"
