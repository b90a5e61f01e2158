"""The merge queue on a large repository: so many validated heads at once, a test of each candidate on a real runner.

The physical limit is git alone, one head after the other: `merge-tree`, `commit-tree` and `push`, and the same test
started as a child; beside it, `git merge` in a work tree, as people do it.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Final

from bench.bench_workstreams import merge
from bench.databases import log_progress
from bench.figures import Figure
from bench.sites import CORES, PROJECT
from deltaci.app import HttpListener, Server, registration_token
from deltaci.controllers.merge_queue.candidate_commits import CandidateBuilder
from deltaci.controllers.merge_queue.controller import MergeQueueController
from deltaci.controllers.merge_queue.decisions import BatchLimits, MergeBatch
from deltaci.controllers.merge_queue.records import MergeEntry, MergeOutcome
from deltaci.controllers.projects import Project
from deltaci.engine import event_loop, feed
from deltaci.git.commit_builder import CommitBuilder
from deltaci.git.mirrors import Mirror
from deltaci.storage.sqlite import SqliteStore
from tests.controllers.site import LOCAL
from tests.support.upstream import Upstream, git

FILES = 10_000
FOLDERS: Final = 100
MERGES: dict[int, int] = {8: 64, 1: 16}  # By the size of a batch: how many are merged.
BARE = 32
BUILT = 4  # So many candidates are built only to see how long that takes.
SLOTS: Final = 2 * CORES
TENANT: Final = "default"
PATIENCE_SECONDS: Final = 900.0
RULE: Final = {"run": "true"}


def run() -> list[Figure]:
    """Batches of each size, then git alone."""
    with tempfile.TemporaryDirectory() as folder:
        upstream = Large(Path(folder), sum(MERGES.values()) + sum(MERGES) * BUILT + 2 * BARE)
        found = [event_loop.run(_measure(Path(folder, f"of-{size}"), upstream, size)) for size in MERGES]
        log_progress("the same merges by git alone")
        loop, tree = _loop(Path(folder), upstream), _work_tree(Path(folder), upstream)
    return [figure for each in found for figure in each.figures(loop, tree)] + [
        Figure("git alone: merge-tree, commit-tree, push, and the test", 60 / loop, "merges/min"),
        Figure("git merge and push in a work tree, and the test", 60 / tree, "merges/min"),
    ]


class Large:
    """The repository, and heads on its first commit, each of which changes one file."""

    def __init__(self, folder: Path, heads: int) -> None:
        log_progress(f"a repository with {FILES:,} files and {heads} heads")
        names = [f"part-{number % FOLDERS:02}/file-{number:05}.txt" for number in range(FILES)]
        self.upstream = Upstream(folder / "upstream", {name: f"this is {name}\n" * 20 for name in names})
        self._numbers = count()
        first, text = self.upstream.first, []
        for number in range(heads):
            name, said = names[number * FILES // heads], f"changed by {number}\n"
            text.append(
                f"commit refs/heads/head/{number}\n"
                f"committer Ada <ada@example.org> {1_767_513_600 + number} +0000\n"
                f"data 6\nchange\nfrom {first}\nM 100644 inline {name}\ndata {len(said)}\n{said}\n"
            )
        subprocess.run(
            ["git", "fast-import", "--quiet"], cwd=self.upstream.bare, input="".join(text).encode(), check=True
        )
        listed = git(self.upstream.bare, "for-each-ref", "--format=%(refname) %(objectname)", "refs/heads/head/")
        self._heads = dict(line.split(" ") for line in listed.split("\n"))

    def next(self) -> tuple[str, str]:
        """A head that nobody had yet: its ref and its commit."""
        ref = f"refs/heads/head/{next(self._numbers)}"
        return ref, self._heads[ref]


class TimedPush:
    """Pushes a branch and measures how long that takes."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    async def push(self, builder: CommitBuilder, branch: str, commit: str, expected: str) -> None:
        """Push the branch."""
        began = time.perf_counter()
        await builder.push(branch, commit, expected)
        self.seconds.append(time.perf_counter() - began)


class Merged:
    """What merging in batches of one size took, in seconds."""

    def __init__(self, size: int, seconds: float, built: list[float], landed: list[float]) -> None:
        self.size = size
        self.rate = MERGES[size] / seconds * 60
        self.built = statistics.median(built)
        self.landed = statistics.median(landed)

    def figures(self, loop: float, tree: float) -> list[Figure]:
        """All of them, beside what git alone takes for one."""
        what = f"{FILES:,} files, batches of {self.size}"
        ratios = {"git alone": self.rate * loop / 60, "git merge in a work tree": self.rate * tree / 60}
        return [
            Figure(f"{what}: merges", self.rate, "merges/min", ratios),
            Figure(f"{what}: a candidate built", self.built * 1e3, "ms", {"git alone, a merge": self.built / loop}),
            Figure(f"{what}: a candidate landed", self.landed * 1e3, "ms", {"git alone, a merge": self.landed / loop}),
        ]


@asynccontextmanager
async def _served(folder: Path) -> AsyncIterator[Server]:
    """A server here, and a runner in a process of its own."""
    folder.mkdir()
    async with Server(SqliteStore(str(folder / "bench.db")), folder, url_policy=LOCAL) as service:
        await service.control_plane.workstreams.stop()  # Its own queue would look after the same line.
        listener = HttpListener(service, "127.0.0.1", 0)
        serving = asyncio.create_task(listener.serve())
        words = ("runner", "--server", listener.url, "--slots", str(SLOTS), "--work", str(folder / "work"))
        token = registration_token(folder, "bench", TENANT)
        with (folder / "runner.log").open("wb") as log:
            runner = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "deltaci", *words),
                env={**os.environ, "DELTACI_TOKEN": token, "DELTACI_GIT_PROTOCOLS": "file"},
                stderr=log,
            )
        try:
            yield service
        finally:
            runner.terminate()
            await runner.wait()
            listener.stop()
            await serving


async def _measure(folder: Path, large: Large, size: int) -> Merged:
    async with _served(folder) as service:
        await service.control_plane.workstreams.stop()  # The heads belong to no workstream.
        project = Project(name=PROJECT, tenant=TENANT, url=large.upstream.url, default_branch="main")
        await service.control_plane.repositories.projects.put(project, actor="user:bench")
        mirror = service.control_plane.repositories.mirrors.for_project(project)
        base = (await mirror.fetch_refs(["refs/heads/main"]))["refs/heads/main"]
        log_progress(f"{MERGES[size]} heads, merged in batches of {size}")
        warm = await _entries(mirror, large, size, base)
        waiting = await _entries(mirror, large, MERGES[size] - len(warm), base)
        spare = await _entries(mirror, large, size * BUILT, base)
        timed_push = TimedPush()
        await _merged(service, timed_push, size, warm)
        timed_push.seconds.clear()
        seconds = await _merged(service, timed_push, size, waiting)
        built = [await _built(mirror, spare[start : start + size]) for start in range(0, len(spare), size)]
    return Merged(size, seconds * MERGES[size] / len(waiting), built, timed_push.seconds)


async def _entries(mirror: Mirror, large: Large, count: int, base: str) -> list[MergeEntry]:
    """So many that are validated, their commits already here."""
    heads = [large.next() for _ in range(count)]
    await mirror.fetch_refs([ref for ref, _ in heads])
    return [
        MergeEntry(
            id=f"stream-{commit[:12]}",
            tenant=TENANT,
            project=PROJECT,
            base="main",
            head=commit,
            base_commit=base,
            method="merge",
            title="a change",
            rules=[RULE],
        )
        for _, commit in heads
    ]


async def _merged(service: Server, timed_push: TimedPush, size: int, entries: Sequence[MergeEntry]) -> float:
    """Seconds until all of them are on the base."""
    left, is_over = {each.id for each in entries}, asyncio.Event()

    async def told(outcome: MergeOutcome) -> None:
        assert outcome.is_merged, outcome
        left.discard(outcome.id)
        if not left:
            is_over.set()

    parts = service.control_plane.repositories
    queue = MergeQueueController(
        service.store,
        service.engine,
        parts.projects,
        parts.mirrors,
        ensure=_nothing,
        is_wanted=_yes,
        push=timed_push.push,
        limits=BatchLimits(batch=size),
    )
    queue.tell(told)
    for entry in entries:
        await queue.enter(entry)
    hearing = asyncio.create_task(_hear(service, queue, await service.store.last_seq()))
    began = time.perf_counter()
    queue.start()
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await is_over.wait()
        return time.perf_counter() - began
    finally:
        hearing.cancel()
        await queue.stop()


async def _hear(service: Server, queue: MergeQueueController, after: int) -> None:
    async for event in feed.follow(service.store, after):
        queue.on_events([event])


async def _nothing(_entry: MergeEntry) -> None:
    """Its head is here already."""


async def _yes(_entry: MergeEntry) -> bool:
    return True


async def _built(mirror: Mirror, entries: Sequence[MergeEntry]) -> float:
    """Seconds for one candidate of all of them."""
    builder = CommitBuilder(mirror)
    base = await builder.fetch_branch("main")
    batch = MergeBatch(number=1, method="merge", members=tuple(entry.id for entry in entries), at=0)
    began = time.perf_counter()
    made = await CandidateBuilder(builder, _nothing).build(batch, entries, base, base, 0)
    seconds = time.perf_counter() - began
    assert len(made.members) == len(entries), made
    return seconds


def _loop(folder: Path, large: Large) -> float:
    """Seconds for one of them, by git alone."""
    mirror = folder / "mirror.git"
    git(folder, "clone", "-q", "--bare", str(large.upstream.bare), str(mirror))
    heads = [large.next()[1] for _ in range(BARE)]
    began = time.perf_counter()
    for head in heads:
        subprocess.run(["sh", "-c", "true"], check=True)
        merge(mirror, large.upstream.bare, head, "a change")
    return (time.perf_counter() - began) / len(heads)


def _work_tree(folder: Path, large: Large) -> float:
    """Seconds for one of them, in a work tree with all files."""
    tree = folder / "clone"
    git(folder, "clone", "-q", str(large.upstream.bare), str(tree))
    heads = [large.next()[1] for _ in range(BARE)]
    began = time.perf_counter()
    for head in heads:
        git(tree, "merge", "-q", "--no-ff", "-m", "a change", head)
        subprocess.run(["sh", "-c", "true"], cwd=tree, check=True)
        git(tree, "push", "-q", "origin", "HEAD:main")
    return (time.perf_counter() - began) / len(heads)
