"""Candidates on a real runner: what it looks at is the tree that the base would get, and its verdict counts."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from deltaci.app import HttpListener, Server, registration_token
from deltaci.controllers.merge_queue.controller import MergeQueueController
from deltaci.controllers.merge_queue.records import MergeEntry, MergeOutcome
from deltaci.controllers.projects import Project
from deltaci.engine import feed
from deltaci.storage.sqlite import SqliteStore
from tests.contract.backends import within
from tests.controllers.merge_queue.site import LOCAL, PROJECT, Streams
from tests.support.upstream import Upstream, git

TENANT: Final = "default"
END_SECONDS: Final = 20.0
RULES: Final = [{"name": "both", "run": "test ! -f one || test ! -f bad"}, {"files": ["README"], "contains": "hello"}]


@asynccontextmanager
async def served(folder: Path) -> AsyncIterator[Server]:
    """A server here, and a runner in a process of its own."""
    folder.mkdir()
    async with Server(SqliteStore(str(folder / "ci.db")), folder, url_policy=LOCAL) as service:
        listener = HttpListener(service, "127.0.0.1", 0)
        serving = asyncio.create_task(listener.serve())
        words = ("runner", "--server", listener.url, "--slots", "3", "--work", str(folder / "work"))
        token = registration_token(folder, "runner", TENANT)
        with (folder / "runner.log").open("wb") as log:
            runner = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "deltaci", *words),
                env={**os.environ, "DELTACI_TOKEN": token, "DELTACI_GIT_PROTOCOLS": "file"},
                stdout=log,
                stderr=log,
            )
        try:
            yield service
        finally:
            runner.terminate()
            try:
                async with asyncio.timeout(END_SECONDS):
                    await runner.wait()
            finally:
                if runner.returncode is None:
                    runner.kill()
                    await runner.wait()
            listener.stop()
            await serving


@within(120)
async def test_a_real_runner_looks_at_what_the_base_would_get(tmp_path: Path) -> None:
    """Heads that stand on an older base, too; of two that are good only alone, the first one lands."""
    streams = Streams(Upstream(tmp_path / "upstream"), tmp_path / "bundles")
    upstream = streams.upstream
    entries = [
        streams.made(name, {name: "1\n"}, tenant=TENANT, method=method, rules=RULES)
        for name, method in (("one", "merge"), ("bad", "merge"), ("two", "squash"), ("three", "none"))
    ]
    upstream.switch("main", upstream.first)
    upstream.push({"newer": "1\n"})
    async with served(tmp_path / "server") as service:
        told: dict[str, MergeOutcome] = {}
        is_over = asyncio.Event()

        async def hear(outcome: MergeOutcome) -> None:
            told[outcome.id] = outcome
            if len(told) == len(entries):
                is_over.set()

        async def ensure(entry: MergeEntry) -> None:
            await streams.ensure(mirror, entry)

        async def is_wanted(_entry: MergeEntry) -> bool:
            return True

        await service.control_plane.workstreams.stop()  # Its own queue would look after the same line.
        parts = service.control_plane.repositories
        project = Project(name=PROJECT, tenant=TENANT, url=upstream.url, default_branch="main")
        await parts.projects.put(project, actor="user:ada")
        mirror = parts.mirrors.for_project(project)
        queue = MergeQueueController(service.store, service.engine, parts.projects, parts.mirrors, ensure, is_wanted)
        queue.tell(hear)

        async def follow(after: int) -> None:
            async for event in feed.follow(service.store, after):
                queue.on_events([event])

        following = asyncio.create_task(follow(await service.store.last_seq()))
        for each in entries:
            await queue.enter(each)
        queue.start()
        await is_over.wait()
        following.cancel()
        await queue.stop()

    assert {id for id, each in told.items() if each.is_merged} == {"one", "two", "three"}
    assert "both" in told["bad"].details
    files = git(upstream.bare, "ls-tree", "--name-only", "main").split()
    assert files == [".deltaci.yml", "README", "newer", "one", "two"]
