"""Servers that stop in the middle, and servers side by side: everything is done once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path

import pytest

from deltaci.controllers.repositories import changes as handling
from deltaci.controllers.repositories import planner
from deltaci.controllers.repositories.poller import push
from deltaci.core.machine import Command
from deltaci.core.run import BeginPlanning
from deltaci.git.url_policy import UrlPolicy
from deltaci.storage.port import Unavailable
from tests.contract.backends import Backend, on_loop
from tests.controllers.site import PROJECT, RepositorySite, opened
from tests.server.rest.site import TENANT
from tests.support.upstream import Upstream

Opened = Callable[[], AbstractAsyncContextManager[RepositorySite]]


@pytest.mark.parametrize("after", ["claim", "birth", "handled"])
@on_loop
async def test_a_server_that_dies_while_it_handles_a_change(
    site: Opened, upstream: Upstream, after: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one makes of it what this one would have made, and nothing twice."""
    async with site() as here:
        await here.project(upstream.url)
        older = await here.change((await here.pushed(upstream.first)).id)
        second = upstream.push({"a": "1"})
        repositories = here.service.control_plane.repositories
        with monkeypatch.context() as broken:
            reached = asyncio.Event()

            async def die(*_args: object, **_kwargs: object) -> None:
                reached.set()
                await asyncio.Event().wait()

            if after == "claim":
                broken.setattr(handling, "pipelines_at", die)
            elif after == "birth":
                born = here.service.engine.do

                async def bear_and_die(command: Command) -> None:
                    await born(command)
                    await die()

                broken.setattr(here.service.engine, "do", bear_and_die)
            else:
                broken.setattr(repositories.handling._superseding, "settled", die)
            told = push("refs/heads/main", upstream.first, second)
            accepted = await repositories.changes.accept(TENANT, PROJECT, told, "d", source="push")
            await reached.wait()
            await repositories.stop()

    async with site() as again:
        await again.settled()
        change = await again.change(accepted.id)

        assert change["status"] == "handled"
        runs = await again.runs()
        assert len(runs) == 2
        people = again.operator()
        assert [job["name"] for job in (await people.run(change["files"][0]["run"]))["jobs"]] == ["build", "test"]
        assert (await people.run(older["files"][0]["run"]))["status"] == "CANCELED"


@on_loop
async def test_a_server_that_dies_while_it_plans(
    site: Opened, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it left PLANNING is planned by the next one."""
    async with site() as here:
        await here.project(upstream.url)
        with monkeypatch.context() as broken:
            reached = asyncio.Event()
            do_all = here.service.engine.do_all

            async def begin_and_die(commands: list[Command]) -> object:
                if not any(isinstance(command, BeginPlanning) for command in commands):
                    return await do_all(commands)  # Others write, too.
                await do_all(commands[:1])
                reached.set()
                return await asyncio.Event().wait()

            broken.setattr(here.service.control_plane.repositories.planner._engine, "do_all", begin_and_die)
            told = push("refs/heads/main", "", upstream.first)
            await here.service.control_plane.repositories.changes.accept(TENANT, PROJECT, told, "d", source="push")
            await reached.wait()
            [left] = await here.runs()
            await here.service.control_plane.repositories.stop()

    async with site() as again:
        await again.settled()
        assert left["state"] == "PLANNING"
        assert (await again.operator().run(left["id"]))["state"] == "QUEUED"


@on_loop
async def test_an_internal_error_fails_the_run_and_says_so(
    site: Opened, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan that makes the planner fall over is tried again, and not for ever."""

    def fall(*_args: object, **_kwargs: object) -> None:
        raise RuntimeError("poison")

    monkeypatch.setattr(planner, "plan_file", fall)
    monkeypatch.setattr(planner, "RETRY_SECONDS", 0.01)
    async with site() as here:
        people = await here.project(upstream.url)
        change = await here.change((await here.pushed(upstream.first)).id)
        id = change["files"][0]["run"]

        run = await here.until(people, id, "FAILED")

        assert run["reason"] == "PLAN_FAILED"
        assert "internal error: RuntimeError: poison" in (await people.get(f"/runs/{id}/plan")).body["problems"][0]


@on_loop
async def test_a_store_that_is_away_for_a_moment_costs_no_try(
    site: Opened, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only what is wrong with the change itself counts."""
    monkeypatch.setattr("deltaci.controllers.work_queue.RETRY_SECONDS", 0.01)
    async with site() as here:
        await here.project(upstream.url)
        born, left = here.service.engine.do, [20]

        async def away(command: Command) -> object:
            left[0] -= 1
            if left[0] > 0:
                raise Unavailable("the store is away")
            return await born(command)

        monkeypatch.setattr(here.service.engine, "do", away)
        change = await here.change((await here.pushed(upstream.first)).id)

        assert (change["status"], change["tries"]) == ("handled", 1)


@on_loop
async def test_two_servers_handle_a_change_once(postgres_backend: Backend, tmp_path: Path, upstream: Upstream) -> None:
    """Told of it at the same moment, by every hook there is."""
    async with AsyncExitStack() as stack:
        sites = [
            await stack.enter_async_context(opened(postgres_backend, tmp_path / f"server{number}"))
            for number in range(2)
        ]
        await sites[0].project(upstream.url, policies={"supersede_pushes": "none"})
        commits = [upstream.push({"a": str(number)}) for number in range(6)]
        pushes = [push("refs/heads/main", *pair) for pair in zip([upstream.first, *commits], commits, strict=False)]

        told = await asyncio.gather(
            *(
                site.service.control_plane.repositories.changes.accept(
                    TENANT, PROJECT, push_request, push_request.commit, source="push"
                )
                for push_request in pushes
                for site in sites * 3
            )
        )
        for site in sites * 2:
            await site.settled()

        assert len({each.id for each in told}) == len(commits)
        assert sum(each.is_new for each in told) == len(commits)
        runs = await sites[0].runs()
        assert sorted(run["commit"] for run in runs) == sorted(commits)
        assert {run["state"] for run in runs} == {"QUEUED"}
        created = [event for event in await sites[0].log() if event.entity == "run" and event.from_ is None]
        assert len(created) == len(commits)


@on_loop
async def test_two_servers_agree_who_is_newest(postgres_backend: Backend, tmp_path: Path, upstream: Upstream) -> None:
    """Of many pushes at once the last one is left, whoever handles which."""
    async with AsyncExitStack() as stack:
        sites = [
            await stack.enter_async_context(opened(postgres_backend, tmp_path / f"server{number}"))
            for number in range(2)
        ]
        await sites[0].project(upstream.url, policies={"supersede_pushes": "all"})
        commits = [upstream.push({"a": str(number)}) for number in range(8)]
        for before, commit in zip([upstream.first, *commits], commits, strict=False):
            changes = sites[int(commit, 16) % 2].service.control_plane.repositories.changes
            pushed = push("refs/heads/main", before, commit)
            await changes.accept(TENANT, PROJECT, pushed, commit, source="push")
        for site in sites * 2:
            await site.settled()

        live = [run["commit"] for run in await sites[0].runs() if run["status"] == "PENDING"]
        assert live == commits[-1:]


@on_loop
async def test_a_server_that_stops_takes_its_git_along(backend: Backend, tmp_path: Path) -> None:
    """Also while a forge keeps it waiting."""
    heard, gone = asyncio.Event(), asyncio.Event()

    async def wait(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.set()
        while await reader.read(1000):
            pass
        gone.set()
        writer.close()

    async with await asyncio.start_server(wait, "127.0.0.1", 0) as forge:
        port = forge.sockets[0].getsockname()[1]
        async with opened(backend, tmp_path / "data", UrlPolicy(frozenset({"http", "private"}))) as here:
            await here.project(f"http://127.0.0.1:{port}/acme/shop.git")
            told = push("refs/heads/main", "", "a" * 40)
            await here.service.control_plane.repositories.changes.accept(TENANT, PROJECT, told, "d", source="push")
            await heard.wait()
        await gone.wait()
