"""Groups: of all runs with the same one, one goes on at a time; after restarts and with servers side by side, too."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from deltaci.controllers.repositories.poller import push
from tests.contract.backends import Backend, on_loop
from tests.controllers.site import PROJECT, RepositorySite, opened
from tests.server.rest.site import TENANT, TIME, Caller, ScriptedRunner
from tests.support.upstream import Upstream

Opened = Callable[[], AbstractAsyncContextManager[RepositorySite]]


def pipeline(cancels: str = "false") -> str:
    """One job, one run at a time."""
    return (
        f"on: [push, manual]\nconcurrency:\n  group: deploy\n  cancel-in-progress: {cancels}\n"
        "jobs:\n  a:\n    steps: [run: x]\n"
    )


async def pushed(here: RepositorySite, commit: str, branch: str) -> str:
    """A push to a branch of its own; the run."""
    change = await here.change((await here.pushed(commit, "", branch)).id)
    return str(change["files"][0]["run"])


async def states(caller: Caller, runs: list[str]) -> list[Any]:
    """How they are."""
    return [(await caller.run(id))["state"] for id in runs]


async def ended(here: RepositorySite, runner: ScriptedRunner, caller: Caller, run: str) -> None:
    """Do the one job of a run."""
    lease = await runner.take()
    assert lease["job_id"].startswith(run), lease
    await runner.finish(lease)
    await here.until(caller, run, "REPORTED")
    await here.settled()


@on_loop
async def test_one_goes_on_at_a_time_in_the_order_of_their_creation(site: Opened, upstream: Upstream) -> None:
    """The others wait without a plan, also for a server that was started anew."""
    commit = upstream.push({".deltaci.yml": pipeline()})
    async with site() as here:
        people = await here.project(upstream.url)
        runs = [await pushed(here, commit, branch) for branch in ("a", "b", "c")]
        assert await states(people, runs) == ["QUEUED", "PLANNING", "PLANNING"]
        assert (await people.get(f"/runs/{runs[0]}/plan")).body["group"].endswith("deploy")
        runner = await here.register_runner()
        await ended(here, runner, people, runs[0])
        assert await states(people, runs) == ["REPORTED", "QUEUED", "PLANNING"]

    async with site() as again:
        again._names = 10
        people, runner = again.operator(), await again.register_runner()
        await again.settled()
        assert await states(people, runs) == ["REPORTED", "QUEUED", "PLANNING"]
        await ended(again, runner, people, runs[1])
        assert await states(people, runs) == ["REPORTED", "REPORTED", "QUEUED"]
        await ended(again, runner, people, runs[2])
        await again.service.control_plane.repositories.planner.groups.prune()
        assert await again.store.list_documents("run-group", "") == []


@on_loop
async def test_one_that_waits_can_be_cancelled(site: Opened, upstream: Upstream) -> None:
    """And those behind it do not wait for it."""
    commit = upstream.push({".deltaci.yml": pipeline()})
    async with site() as here:
        people = await here.project(upstream.url)
        runs = [await pushed(here, commit, branch) for branch in ("a", "b", "c")]

        await people.post(f"/runs/{runs[1]}/cancel", {"reason": "enough"})
        await here.until(people, runs[1], "REPORTED")
        await ended(here, await here.register_runner(), people, runs[0])

        assert await states(people, runs) == ["REPORTED", "REPORTED", "QUEUED"]


@on_loop
async def test_the_newest_takes_the_place_of_the_others(site: Opened, upstream: Upstream) -> None:
    """With `cancel-in-progress`: what runs and what waits is cancelled, and the newest goes on as soon as it can."""
    commit = upstream.push({".deltaci.yml": pipeline("true")})
    async with site() as here:
        people = await here.project(upstream.url)
        first = await pushed(here, commit, "a")
        runner = await here.register_runner()
        lease = await runner.take()

        runs = [first, *[await pushed(here, commit, branch) for branch in ("b", "c")]]
        assert await states(people, runs[::2]) == ["CANCEL_REQUESTED", "PLANNING"]
        assert (await runner.send(lease, "CancelAck", final_status="CANCELED", ts=TIME))["accepted"]
        await here.until(people, first, "REPORTED")
        await here.settled()

        assert await states(people, runs) == ["REPORTED", "REPORTED", "QUEUED"]
        assert (await people.run(first))["reason"].startswith("superseded: run ")


@pytest.mark.proves("MOD-5")
@on_loop
async def test_the_newest_waits_for_a_runner_that_did_not_confirm_that_it_stopped(
    site: Opened, upstream: Upstream, backend: Backend
) -> None:
    """It may work until its lease would have ended: two deployments never overlap."""
    commit = upstream.push({".deltaci.yml": pipeline("true")})
    async with site() as here:
        people = await here.project(upstream.url)
        first = await pushed(here, commit, "a")
        await (await here.register_runner()).take()
        runs = [first, await pushed(here, commit, "b")]
        backend.after(31)
        await here.until(people, first, "REPORTED")
        planner = here.service.control_plane.repositories.planner

        for seconds in (0, 85):
            backend.after(seconds)
            await planner.groups.prune()
            await planner.resync()
            await here.settled()
            assert await states(people, runs) == ["REPORTED", "PLANNING"]

        backend.after(10)
        await planner.resync()
        await here.settled()
        assert await states(people, runs) == ["REPORTED", "QUEUED"]


@on_loop
async def test_servers_side_by_side_let_one_in(postgres_backend: Backend, tmp_path: Path, upstream: Upstream) -> None:
    """However many come at once, to whichever server."""
    commit = upstream.push({".deltaci.yml": pipeline()})
    async with AsyncExitStack() as stack:
        sites = [
            await stack.enter_async_context(opened(postgres_backend, tmp_path / f"server{number}"))
            for number in range(2)
        ]
        here = sites[0]
        people = await here.project(upstream.url)
        await asyncio.gather(
            *(
                site.service.control_plane.repositories.changes.accept(
                    TENANT, PROJECT, push(f"refs/heads/{n}{name}", "", commit), f"{n}{name}", source="push"
                )
                for n, site in enumerate(sites)
                for name in "abc"
            )
        )
        for site in sites * 2:
            await site.settled()
        runs = sorted(await here.runs(), key=lambda run: run["created_at"])
        runner = await here.register_runner()
        seen = []
        for _ in runs:
            [live] = [each["id"] for each in await here.runs() if each["state"] == "QUEUED"]
            seen.append(live)
            await ended(here, runner, people, live)
            for site in sites:
                await site.settled()

        assert len(seen) == len(set(seen)) == 6
