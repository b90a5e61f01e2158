"""Schedules: each instant once, across servers and restarts; clocks that are changed; what was missed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from deltaci.controllers.projects import Project
from deltaci.controllers.repositories.schedules import ScheduleEntry, last_before, next_after
from deltaci.core.instants import SECOND
from tests.contract.backends import Backend, on_loop
from tests.controllers.site import PROJECT, RepositorySite, opened
from tests.server.rest.site import TENANT
from tests.support.upstream import Upstream

Opened = Callable[[], AbstractAsyncContextManager[RepositorySite]]

HOUR = 3600 * SECOND
HOURLY = "on:\n  schedule: '0 * * * *'\njobs:\n  a:\n    steps: [run: x]\n"


def instant(text: str) -> int:
    """Microseconds."""
    return round(datetime.fromisoformat(text).timestamp() * SECOND)


def shown(at: int) -> str:
    """And back."""
    return datetime.fromtimestamp(at / SECOND, UTC).strftime("%m-%d %H:%M")


@pytest.mark.parametrize(
    ("cron", "zone", "now", "last", "following"),
    [
        ("0 3 * * *", "UTC", "2026-06-01T12:00:00Z", "06-01 03:00", "06-02 03:00"),
        ("0 3 * * *", "Europe/Berlin", "2026-06-01T12:00:00Z", "06-01 01:00", "06-02 01:00"),
        ("0 3 * * *", "Europe/Berlin", "2026-01-01T12:00:00Z", "01-01 02:00", "01-02 02:00"),
        ("0 3 * * *", "America/New_York", "2026-06-01T12:00:00Z", "06-01 07:00", "06-02 07:00"),
        # The hour that does not exist: at once when it is over. The one that comes twice: once.
        ("30 2 * * *", "Europe/Berlin", "2026-03-29T00:30:00Z", "03-28 01:30", "03-29 01:00"),
        ("30 2 * * *", "Europe/Berlin", "2026-03-29T12:00:00Z", "03-29 01:00", "03-30 00:30"),
        ("30 2 * * *", "Europe/Berlin", "2026-10-25T00:45:00Z", "10-25 00:30", "10-26 01:30"),
        ("30 2 * * *", "Europe/Berlin", "2026-10-25T12:00:00Z", "10-25 00:30", "10-26 01:30"),
        # What runs every hour runs in every hour, also in those.
        ("0 * * * *", "Europe/Berlin", "2026-10-25T00:30:00Z", "10-25 00:00", "10-25 01:00"),
        ("0 * * * *", "Europe/Berlin", "2026-03-29T00:30:00Z", "03-29 00:00", "03-29 01:00"),
        ("0 12 29 2 *", "UTC", "2027-06-01T00:00:00Z", "02-29 12:00", "02-29 12:00"),
        ("0 9 * * 1-5", "UTC", "2026-06-06T12:00:00Z", "06-05 09:00", "06-08 09:00"),
        ("0 3 * * *", "UTC", "2026-06-01T03:00:00Z", "06-01 03:00", "06-02 03:00"),
    ],
)
def test_instants(cron: str, zone: str, now: str, last: str, following: str) -> None:
    """As clocks on the wall show them there."""
    entry = ScheduleEntry("f", cron, zone, "main")

    assert shown(last_before(entry, instant(now))) == last
    assert shown(next_after(entry, instant(now))) == following


@pytest.mark.parametrize(("cron", "zone"), [("99 * * * *", "UTC"), ("0 0 30 2 *", "UTC"), ("0 * * * *", "Mars/Base")])
def test_times_that_make_no_sense_never_come(cron: str, zone: str) -> None:
    """And disturb nobody."""
    entry = ScheduleEntry("f", cron, zone, "main")

    assert last_before(entry, instant("2026-06-01T12:00:00Z")) == 0
    assert next_after(entry, instant("2026-06-01T12:00:00Z")) == 0


async def project(here: RepositorySite) -> Project:
    """The project as the server has it."""
    found = await here.service.control_plane.repositories.projects.find(TENANT, PROJECT)
    assert found is not None
    return found


async def scheduled(here: RepositorySite) -> list[Any]:
    """The runs of schedules, the oldest first."""
    await here.settled()
    return [run for run in reversed(await here.runs()) if run["event"] == "schedule"]


@on_loop
async def test_each_instant_starts_one_run(site: Opened, upstream: Upstream, backend: Backend) -> None:
    """At the head of the default branch then; nothing of the past, and one for all that was missed."""
    head = upstream.push({".deltaci.yml": HOURLY, ".deltaci/other.yml": HOURLY.replace("0 *", "0 5")})
    async with site() as here:
        await here.project(upstream.url)
        schedules, shop = here.service.control_plane.repositories.schedules, await project(here)

        wait = await schedules.look(shop)
        assert await scheduled(here) == []
        assert 0 < wait <= 3600
        backend.after(wait + 1)
        await asyncio.gather(*(schedules.look(shop) for _ in range(5)))
        [first] = [each for each in await scheduled(here) if each["file"] == ".deltaci.yml"]
        assert (first["commit"], first["state"], first["branch"]) == (head, "QUEUED", "main")
        newer = upstream.push({"a": "1"})
        backend.after(10 * 3600)

    async with site() as again:
        await again.service.control_plane.repositories.schedules.look(await project(again))
        await again.service.control_plane.repositories.schedules.look(await project(again))
        caught_up = [each["commit"] for each in await scheduled(again) if each["file"] == ".deltaci.yml"]
        assert caught_up == [head, newer]
        backend.after(3600)
        await again.service.control_plane.repositories.schedules.look(await project(again))
        assert len([each for each in await scheduled(again) if each["file"] == ".deltaci.yml"]) == 3


@on_loop
async def test_a_push_to_the_default_branch_changes_the_timetable(
    site: Opened, upstream: Upstream, backend: Backend
) -> None:
    """What is new in it begins then; what is gone comes no more; and it can be switched off."""
    async with site() as here:
        people = await here.project(upstream.url)
        schedules = here.service.control_plane.repositories.schedules
        await schedules.look(await project(here))
        head = upstream.push({".deltaci.yml": HOURLY})
        await here.pushed(head, upstream.first)

        backend.after(3600)
        await schedules.look(await project(here))
        assert len(await scheduled(here)) == 1
        await here.project(upstream.url, people, policies={"schedules": False})
        backend.after(3600)
        await schedules.look(await project(here))
        assert len(await scheduled(here)) == 1
        await here.project(upstream.url, people)
        # Half a day away, whatever time it is now.
        later = (await here.service.store.now() // HOUR + 12) % 24
        await here.pushed(upstream.push({".deltaci.yml": HOURLY.replace("0 *", f"0 {later}")}), head)
        backend.after(3600)
        await schedules.look(await project(here))
        assert {each["commit"] for each in await scheduled(here)} == {head}


@on_loop
async def test_branches_that_a_schedule_names(site: Opened, upstream: Upstream, backend: Backend) -> None:
    """Each of them that is there, at its own head."""
    on = "on:\n  schedule:\n    - cron: '0 * * * *'\n      branches: [main, 'release/*']\n"
    named = on + "jobs:\n  a:\n    steps: [run: x]\n"
    head = upstream.push({".deltaci.yml": named})
    release = upstream.push({"a": "1"}, branch="release/1")
    upstream.push({"a": "2"}, branch="topic")
    async with site() as here:
        await here.project(upstream.url)
        schedules = here.service.control_plane.repositories.schedules
        await schedules.look(await project(here))
        backend.after(3600)
        await schedules.look(await project(here))

        assert {(each["branch"], each["commit"]) for each in await scheduled(here)} == {
            *(("main", head), ("release/1", release)),
        }


@on_loop
async def test_two_servers_start_it_once(postgres_backend: Backend, tmp_path: Path, upstream: Upstream) -> None:
    """Whoever looks first."""
    upstream.push({".deltaci.yml": HOURLY})
    async with AsyncExitStack() as stack:
        sites = [
            await stack.enter_async_context(opened(postgres_backend, tmp_path / f"server{number}"))
            for number in range(2)
        ]
        await sites[0].project(upstream.url)
        shop = await project(sites[0])
        # Two servers look one after the other: far from the full hour, none of them sees it pass between.
        postgres_backend.after(3900 - await sites[0].service.store.now() // SECOND % 3600)
        for _ in range(3):
            await asyncio.gather(*(site.service.control_plane.repositories.schedules.look(shop) for site in sites * 2))
            postgres_backend.after(3600)
        await asyncio.gather(*(site.service.control_plane.repositories.schedules.look(shop) for site in sites * 2))
        for site in sites:
            await site.settled()

        assert len(await scheduled(sites[0])) == 3
