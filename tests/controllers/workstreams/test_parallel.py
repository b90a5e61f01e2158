"""Workstreams of each kind in parallel over one base, through real processes and real git."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from deltaci.audit.projections.canonical import canonical_lines
from deltaci.audit.verify import verify
from deltaci.core import job, run
from deltaci.core.job import Job
from deltaci.engine import feed
from tests.contract.backends import within
from tests.controllers.workstreams.planted import FILES, Planted, planted
from tests.e2e.deployment import LONG_TTL_SECONDS, Deployment, deployed
from tests.e2e.test_pushes import Person
from tests.support.plain_http import NO_TLS
from tests.support.upstream import Upstream, git

PATIENCE_SECONDS: Final = 400.0
MOVES: Final = 3
PAIRS: Final = (("rival-a", "rival-b"), ("only-a", "only-b"))  # Of each exactly one can be merged.
SCRIPT: Final = Path(__file__).parents[3] / "scripts" / "validate" / "validate_state_transitions.py"


class Scene:
    """The workstreams, on a server with two runners."""

    def __init__(self, place: Deployment, person: Person, upstream: Upstream) -> None:
        self.place = place
        self.person = person
        self.upstream = upstream
        self.ids: dict[str, str] = {}

    async def create(self, each: Planted) -> None:
        made = await self.person.ask("POST", "/workstreams", {"spec": each.spec})
        self.ids[each.name] = made["id"]

    async def over(self, name: str) -> None:
        """Wait until it is over, and reported."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            async for event in feed.follow(self.place.store, 0, entity_id=self.ids[name]):
                if event.to in run.TERMINAL:
                    return

    async def first_over(self, count: int) -> None:
        """Wait until so many are over, whichever they are."""
        wanted = {asyncio.create_task(self.over(name)) for name in self.ids}
        try:
            most = len(wanted) - count
            while len(wanted) > most:
                _, wanted = await asyncio.wait(wanted, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in wanted:
                task.cancel()

    async def told(self, name: str) -> Any:
        return await self.person.ask("GET", f"/workstreams/{self.ids[name]}")

    def move(self, number: int) -> None:
        """Somebody else pushes to the base, as people do: on top of what is there, again until it works."""
        tree = self.upstream.tree
        for _ in range(50):
            git(tree, "fetch", "-q", "origin", "main")
            git(tree, "reset", "-q", "--hard", "FETCH_HEAD")
            (tree / f"moved-{number}.txt").write_text(f"{number}\n")
            git(tree, "add", "-A")
            git(tree, "commit", "-q", "-m", f"Move {number}")
            words = ["git", "push", "-q", "origin", "HEAD:refs/heads/main"]
            if subprocess.run(words, cwd=tree, capture_output=True, check=False).returncode == 0:
                return
        raise AssertionError("the base never stood still")

    def show(self, *words: str) -> str:
        """What the repository says."""
        return git(self.upstream.bare, *words)

    def paths(self, commit: str) -> set[str]:
        return set(self.show("ls-tree", "-r", "--name-only", commit).splitlines())

    async def tested(self) -> set[str]:
        """All commits whose tests in the merge queue passed."""
        found: set[str] = set()
        for event in await feed.read(self.place.store, 0, 1_000_000):
            if event.entity == "job" and event.to == job.SUCCEEDED:
                record = await self.place.store.find(event.entity_id)
                assert isinstance(record, Job)
                tree = record.spec.work.get("tree") or {}
                if tree and tree.get("keeps") is False:
                    found.add(tree["commit"])
        return found


def _merged(told: dict[str, Any]) -> bool:
    return bool(told["merge"]["commit"]) and told["state"] == "completed"


async def _check_outcomes(scene: Scene, streams: list[Planted]) -> set[str]:
    """The good ones are merged and no other; whoever failed says why. Which were merged."""
    told = {each.name: await scene.told(each.name) for each in streams}
    merged = {name for name, each in told.items() if _merged(each)}
    paired = {name for pair in PAIRS for name in pair}
    for each in streams:
        if each.name in paired:
            continue
        assert (each.name in merged) == each.is_good, (each.name, told[each.name])
    for pair in PAIRS:
        assert len(merged & set(pair)) == 1, (pair, [told[name] for name in pair])
    for each in streams:
        if each.name not in merged:
            says = each.says or "the whole is sound"
            assert told[each.name]["state"] == "failed"
            assert says in str(told[each.name]), (each.name, says, told[each.name])
    for name, end in (("alpha", "completed"), ("bad", "failed")):
        page = await scene.person.ask("GET", f"/runs/{told[name]['id']}/transitions?view=workstreams&kind=workstream")
        assert [step["to"] for step in page["transitions"]][-2:] == ["validating", end]
    return merged


async def _check_history(scene: Scene, streams: list[Planted], merged: set[str]) -> None:
    """The base has exactly the good ones and what others pushed, and every step of it was tested as it is."""
    upstream = scene.upstream
    expected = scene.paths(upstream.first) | {f"moved-{n}.txt" for n in range(MOVES)}
    for each in streams:
        if each.name in merged:
            expected |= set(each.adds)
    assert scene.paths("main") == expected
    tested = await scene.tested()
    fast = "iota"
    for commit in scene.show("rev-list", "--first-parent", f"{upstream.first}..main").split():
        title = scene.show("log", "-1", "--format=%s", commit)
        if title.startswith("Move "):
            continue
        is_step = len(scene.show("rev-list", "--parents", "-1", commit).split()) > 2
        if is_step or not any(word in title for word in (fast, "write", "look")):
            assert commit in tested, title
    assert (await scene.told(fast))["merge"]["commit"] in tested
    refs = scene.show("for-each-ref", "--format=%(refname)").split()
    assert refs == ["refs/heads/main"]


@pytest.mark.proves("WST-WA5", "WST-WI4", "WST-WG5", "WST-W5", "WST-W6", "WST-E4")
@within(PATIENCE_SECONDS)
async def test_parallel_workstreams_over_one_base_that_moves(tmp_path: Path) -> None:
    """The final base has exactly the good ones, each merge is of a tree that was tested, and nothing else changed."""
    (tmp_path / "marks").mkdir()
    (tmp_path / "site").mkdir()
    upstream = Upstream(tmp_path / "up", {name: text or "" for name, text in FILES.items()})
    streams = planted(tmp_path / "marks")
    async with (
        deployed(tmp_path / "site", "--allow-repositories", "file", ttl_seconds=LONG_TTL_SECONDS) as place,
        httpx.AsyncClient(verify=NO_TLS, base_url=place.url, trust_env=False, timeout=60) as http,
    ):
        for name in ("r1", "r2"):
            place.start_runner(name, "--slots", "3", DELTACI_GIT_PROTOCOLS="file")
        person = Person(place, http)
        await person.ask("PUT", "/projects/shop", {"url": upstream.url, "default_branch": "main"})
        scene = Scene(place, person, upstream)
        await asyncio.gather(*(scene.create(each) for each in streams))

        for number in range(MOVES):
            await scene.first_over(2 + 3 * number)
            await asyncio.to_thread(scene.move, number)
            if number == 1:
                place.kill_server()
                place.start_server()
        for each in streams:
            await scene.over(each.name)

        merged = await _check_outcomes(scene, streams)
        await _check_history(scene, streams, merged)
        log = await feed.read(place.store, 0, 1_000_000)
        assert verify(canonical_lines(log)).is_legal
        await _check_written(tmp_path / "site", scene)


async def _check_written(site: Path, scene: Scene) -> None:
    """The server wrote every transition down, and every workstream is in the archive."""
    written = site / "transitions.jsonl"
    checked = await asyncio.to_thread(
        subprocess.run, [sys.executable, str(SCRIPT), str(written)], capture_output=True, check=False
    )
    assert checked.returncode == 0, checked.stdout.decode()[-2000:] + checked.stderr.decode()[-2000:]
    for id in scene.ids.values():
        kept = site / "archive" / id
        assert {"dag.json", "plan.json", "events.jsonl", "transitions.jsonl"} <= {path.name for path in kept.iterdir()}
