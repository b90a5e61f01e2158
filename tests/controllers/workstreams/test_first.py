"""One workstream at a time, as somebody with a file and the command line meets them; real processes, real git."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from deltaci.core import run
from tests.e2e.deployment import LONG_TTL_SECONDS, Deployment, deployed, on_loop
from tests.e2e.test_pushes import Person
from tests.support.plain_http import NO_TLS
from tests.support.upstream import Upstream, git

MAX_LOOKS: Final = 2000
FIRST: Final = """\
workstream: hello
title: Say hello to everybody
project: shop
base: main
tasks:
  - name: write
    run: echo 'hello everybody' > hello.txt
    post_execution:
      - files: [hello.txt]
        contains: everybody
  - name: check
    needs: [write]
    run: grep -q hello hello.txt
validation:
  - name: nobody is left out
    run: grep -q everybody hello.txt
"""


class Bench:
    """Somebody with a repository, a server and a runner."""

    def __init__(self, place: Deployment, person: Person, upstream: Upstream, folder: Path) -> None:
        self.place = place
        self.person = person
        self.upstream = upstream
        self.folder = folder

    async def create(self, text: str, name: str = "ws.yml") -> str:
        """The id of a workstream that is made from this file."""
        path = self.folder / name
        path.write_text(text, encoding="utf-8")
        return str(json.loads(await self.person.deltaci("ws", "create", str(path), "--json"))["id"])

    async def over(self, id: str) -> Any:
        """How it is once it is over and reported."""
        await self.place.until(id, lambda event: event.entity == "run" and event.to in run.TERMINAL)
        return await self.person.ask("GET", f"/workstreams/{id}")

    async def archived(self, id: str) -> Path:
        """Wait until it is in the archive; where."""
        place = self.place.folder / "archive" / id
        for _ in range(MAX_LOOKS):  # Each look waits for an answer of the server, which archives it beside.
            if place.exists():
                return place
            await self.person.ask("GET", f"/workstreams/{id}")
        raise AssertionError(f"{id} was not archived")

    def trees(self, id: str) -> list[str]:
        """What the runner has of it."""
        folder = self.place.folder / "r1" / "workstreams" / id
        return sorted(path.name for path in folder.iterdir()) if folder.exists() else []

    def show(self, path: str) -> str:
        """A file of the base."""
        return git(self.upstream.bare, "show", f"main:{path}")


@asynccontextmanager
async def bench(folder: Path) -> AsyncIterator[Bench]:
    """A deployment with one runner and one project."""
    upstream = Upstream(folder / "up")
    (folder / "site").mkdir()
    async with (
        deployed(folder / "site", "--allow-repositories", "file", ttl_seconds=LONG_TTL_SECONDS) as place,
        httpx.AsyncClient(verify=NO_TLS, base_url=place.url, trust_env=False, timeout=60) as http,
    ):
        place.start_runner("r1", "--slots", "4", DELTACI_GIT_PROTOCOLS="file")
        person = Person(place, http)
        await person.ask("PUT", "/projects/shop", {"url": upstream.url, "default_branch": "main"})
        yield Bench(place, person, upstream, folder)


@pytest.mark.proves("WST-WA5", "WST-WA3", "WST-WA2", "WST-WA1", "WST-WI4")
@on_loop
async def test_a_workstream_is_executed_validated_and_merged(tmp_path: Path) -> None:
    """From a file to the base: tasks in one tree, one merge commit of a tree that was tested, an archive."""
    async with bench(tmp_path) as here:
        id = await here.create(FIRST)
        told = await here.over(id)

        assert told["state"] == "completed"
        assert [(task["name"], task["state"]) for task in told["tasks"]] == [
            ("write", "completed"),
            ("check", "completed"),
        ]
        assert here.show("hello.txt") == "hello everybody"
        merged = git(here.upstream.bare, "rev-parse", "main")
        assert told["merge"]["commit"] == merged
        parents = git(here.upstream.bare, "rev-list", "--parents", "-1", "main").split()[1:]
        assert parents[0] == here.upstream.first
        assert len(parents) == 2
        archived = await here.archived(id)
        assert json.loads((archived / "merge-plan.json").read_text())["method"] == "merge"
        metrics = json.loads((archived / "metrics.json").read_text())
        assert metrics["started_at"]
        assert [task["state"] for task in metrics["tasks"]] == ["completed", "completed"]


@on_loop
async def test_a_failed_workstream_keeps_its_tree_and_says_why(tmp_path: Path) -> None:
    """The base is as it was; the rule names itself, what it found and what it wanted."""
    async with bench(tmp_path) as here:
        id = await here.create(FIRST.replace("contains: everybody", "contains: nobody"))
        told = await here.over(id)

        assert told["state"] == "failed"
        assert told["tasks"][0]["state"] == "failed"
        assert "hello.txt" in str(told["tasks"][0])
        assert "nobody" in str(told["tasks"][0])
        assert git(here.upstream.bare, "rev-parse", "main") == here.upstream.first
        assert "tree" in here.trees(id)


@on_loop
async def test_tasks_side_by_side_that_do_not_fit_together_say_where(tmp_path: Path) -> None:
    """Each has a tree of its own; the second one that is done fails."""
    text = """\
workstream: both
tasks:
  - {name: one, worktree: own, run: "echo one > same.txt"}
  - {name: two, worktree: own, run: "echo two > same.txt"}
"""
    async with bench(tmp_path) as here:
        told = await here.over(await here.create(text))

        assert told["state"] == "failed"
        states = sorted(task["state"] for task in told["tasks"])
        assert states == ["completed", "failed"]
        assert "same.txt" in str(told["tasks"])


@on_loop
async def test_one_that_is_not_merged_leaves_its_branch(tmp_path: Path) -> None:
    """The base is as it was, and people find the branch in the repository."""
    async with bench(tmp_path) as here:
        id = await here.create(f"{FIRST}merge: false\noptional-wait-minutes: 3\n")
        told = await here.over(id)
        assert (await here.person.ask("GET", f"/runs/{id}"))["optional_wait_seconds"] == 180

        assert told["state"] == "completed"
        refs = git(here.upstream.bare, "for-each-ref", "--format=%(refname)").split()
        assert refs == ["refs/heads/main", f"refs/heads/{told['branch']}"]
        assert git(here.upstream.bare, "rev-parse", "main") == here.upstream.first
        assert git(here.upstream.bare, "show", f"{told['branch']}:hello.txt") == "hello everybody"


@on_loop
async def test_one_whose_base_is_not_there_says_so(tmp_path: Path) -> None:
    """A typing mistake in the branch is the whole answer, not only a state."""
    async with bench(tmp_path) as here:
        told = await here.over(await here.create(FIRST.replace("base: main", "base: nowhere")))

        assert told["state"] == "failed"
        assert "nowhere" in told["merge"]["problem"]
