"""Repositories without anybody who tells of them, and hooks of bare ones."""

from __future__ import annotations

import asyncio
import os
import stat
import subprocess
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from deltaci.cli import git_hooks
from deltaci.controllers.projects import Project
from tests.contract.backends import Backend, on_loop
from tests.controllers.site import PROJECT, RepositorySite
from tests.server.rest.site import TENANT
from tests.support.upstream import Upstream, git

Opened = Callable[[], AbstractAsyncContextManager[RepositorySite]]


async def project(here: RepositorySite) -> Project:
    """The project as the server has it."""
    found = await here.service.control_plane.repositories.projects.find(TENANT, PROJECT)
    assert found is not None
    return found


async def changes(here: RepositorySite) -> list[tuple[str, str]]:
    """What is known, the oldest first."""
    await here.settled()
    found = (await here.operator().get("/changes")).body["changes"]
    return [(each["ref"], each["commit"]) for each in reversed(found)]


@on_loop
async def test_what_moved_between_two_looks_becomes_a_change(
    site: Opened, upstream: Upstream, backend: Backend
) -> None:
    """The first look only remembers; one interval, one look; a hook that was faster makes it no second one."""
    async with site() as here:
        await here.project(upstream.url, policies={"poll_seconds": 60, "schedules": False})
        look, shop = here.service.control_plane.repositories.polling.look, await project(here)

        assert await look(shop) == 60
        second = upstream.push({"a": "1"})
        git(upstream.tree, "push", "-q", "origin", "HEAD:refs/tags/v1", "HEAD:refs/heads/topic")
        assert 0 < await look(shop) <= 60
        assert await changes(here) == []
        backend.after(61)
        await asyncio.gather(*(look(shop) for _ in range(3)))
        assert await changes(here) == [
            *(("refs/heads/main", second), ("refs/heads/topic", second), ("refs/tags/v1", second)),
        ]
        third = upstream.push({"a": "2"})
        await here.pushed(third, second)
        git(upstream.bare, "update-ref", "-d", "refs/heads/topic")
        backend.after(61)
        await look(shop)
        assert await changes(here) == [
            *(("refs/heads/main", second), ("refs/heads/topic", second), ("refs/tags/v1", second)),
            ("refs/heads/main", third),
        ]
        git(upstream.tree, "push", "-q", "origin", "HEAD:refs/heads/topic")
        backend.after(61)
        await look(shop)
        assert (await changes(here))[-1] == ("refs/heads/topic", third)


@on_loop
async def test_a_project_is_looked_at_by_itself(
    site: Opened, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the server runs."""
    monkeypatch.setattr("deltaci.controllers.repositories.controller.WATCH_SECONDS", 0.05)
    async with site() as here:
        looked = asyncio.Event()
        polling = here.service.control_plane.repositories.polling
        look = polling.look

        async def seen(shop: Project) -> float:
            found = await look(shop)
            looked.set()
            return found

        monkeypatch.setattr(polling, "look", seen)
        await here.project(upstream.url, policies={"poll_seconds": 60})
        await looked.wait()
        assert (await here.store.find_document("poll", f"{TENANT}\n{PROJECT}", "")) is not None


async def pushed_by_people(upstream: Upstream, *refs: str) -> str:
    """A push like anybody's; what git says to whoever pushes."""
    done = await asyncio.to_thread(
        subprocess.run,
        ["git", "push", "origin", *refs],
        cwd=upstream.tree,
        env={**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "REMOTE_USER": "ada"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=60,
        check=True,
    )
    return done.stderr.decode()


@on_loop
async def test_a_push_reaches_the_server_by_its_hook(site: Opened, upstream: Upstream) -> None:
    """From `git push` to planned jobs, each ref a change; a hook that was there is called, too."""
    async with site() as here:
        people = await here.project(upstream.url)
        key = await here.key("hook-shop", "run")
        old = upstream.bare / "hooks" / "post-receive"
        old.parent.mkdir(exist_ok=True)
        old.write_text(f"#!/bin/sh\ncat > {upstream.bare}/seen\n")
        old.chmod(0o755)
        installer = git_hooks.HookInstaller(upstream.bare)
        with pytest.raises(ValueError, match="--force to keep it"):
            installer.install("", "", is_forced=False)
        installer.install(f"{here.url}/api/v1/projects/shop/pushes", key.token, is_forced=True)
        installer.install(f"{here.url}/api/v1/projects/shop/pushes", key.token, is_forced=False)
        hook = installer.hook.read_text()
        installer.hook.write_text(hook.replace("if ! tell 3;", "if ! tell 60;"))  # A busy machine may take longer.
        commit = upstream.commit({"a": "1"})

        said = await pushed_by_people(upstream, "HEAD:main", 'HEAD:refs/heads/a"quote', ":refs/heads/none")

        assert "deltaci" not in said
        assert sorted(await changes(here)) == [('refs/heads/a"quote', commit), ("refs/heads/main", commit)]
        runs = await here.runs()
        assert {(run["state"], run["commit"], run["started_by"]) for run in runs} == {("QUEUED", commit, "ada")}
        assert len((await people.run(runs[0]["id"]))["jobs"]) == 2
        assert len((upstream.bare / "seen").read_text().splitlines()) == 2
        assert stat.S_IMODE((upstream.bare / "hooks" / git_hooks.CONFIG).stat().st_mode) == 0o600


@on_loop
async def test_a_push_does_not_wait_for_a_server_that_is_away(upstream: Upstream, tmp_path: Path) -> None:
    """It goes through, and says so."""
    installer = git_hooks.HookInstaller(upstream.bare)
    installer.install("http://127.0.0.1:9/api/v1/projects/shop/pushes", "dck_x", is_forced=False)
    script = installer.hook.read_text().replace("for pause in 5 30 120 600", "for pause in")
    installer.hook.write_text(script)  # Nothing is left behind that waits.
    commit = upstream.commit({"a": "1"})

    said = await pushed_by_people(upstream, "HEAD:main")

    assert "the server does not answer" in said
    assert git(upstream.bare, "rev-parse", "main") == commit


def test_a_folder_without_a_repository(tmp_path: Path) -> None:
    """Is told."""
    with pytest.raises(ValueError, match="is not a Git repository"):
        git_hooks.HookInstaller(tmp_path)


@on_loop
async def test_pushes_that_are_told_in_the_wrong_way(site: Opened, upstream: Upstream) -> None:
    """Are refused as a whole."""
    good: dict[str, Any] = {"ref": "refs/heads/main", "before": "0" * 40, "after": "a" * 40}
    async with site() as here:
        await here.project(upstream.url)
        reader, hook = await here.key("eve", "read"), await here.key("hook", "run")

        async def told(*refs: Any, **more: Any) -> int:
            body = {"delivery": "delivery-1", "refs": list(refs), **more}
            return (await hook.post("/projects/shop/pushes", body)).status

        assert (await reader.post("/projects/shop/pushes", {"delivery": "delivery-1", "refs": [good]})).status == 403
        assert await told() == 422
        assert await told({**good, "ref": "main"}) == 422
        assert await told({**good, "after": "A" * 40}) == 422
        assert await told({**good, "more": 1}) == 422
        assert await told(good, delivery="short") == 422
        assert (await hook.post("/projects/none/pushes", {"delivery": "delivery-1", "refs": [good]})).status == 404
        assert await changes(here) == []
        assert await told(good) == await told(good) == 200
        assert len(await changes(here)) == 1
