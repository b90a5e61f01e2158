"""A whole merge in a process that kills itself with SIGKILL at its k-th step, and is started again until it ends.

`python -m tests.controllers.merge_queue.driver FOLDER STORY FIRST EVERY` plays it for k = FIRST, FIRST + EVERY, … until
no step is left, and prints one line for each. A step leaves a trace outside of the process: a git command, the write of
a document, a command to the engine, a wake-up of a waiter. The kill follows it immediately, before the next step. Git
commands that only read are steps only with `--reads`: a kill after one leaves the same state as a kill before it.

Every life is a process of its own, forked before there is any thread.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sys
import traceback
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from deltaci.controllers.merge_queue.records import MergeEntry, MergeOutcome
from deltaci.core.decide import Decision
from deltaci.core.errors import Refused
from deltaci.core.instants import SECOND
from deltaci.core.machine import Command
from deltaci.engine.clock import MonotonicClock
from deltaci.engine.engine import Claim, ClaimedAttempt, Engine
from deltaci.git.command import Git
from deltaci.git.commit_builder import CommitBuilder
from deltaci.git.mirrors import Mirrors
from deltaci.process import ProcessResult
from deltaci.storage.port import Document, Store
from deltaci.storage.sqlite import SqliteStore
from tests.contract.backends import Wrapped
from tests.controllers.merge_queue.site import LOCAL, PROJECT, TENANT, Site, Streams
from tests.support.upstream import Upstream, git

START: Final = 1_800_000_000 * SECOND
LIFE_SECONDS: Final = 1000  # Between two lives: leases of the one before are over by then.
MAX_RETRIES: Final = 30
RETRY_SECONDS: Final = 30  # Longer than the queue waits after a push that failed.
READS: Final = frozenset({"cat-file", "fsck", "ls-remote", "merge-base", "rev-list", "rev-parse"})
has_reads = False  # Whether those are steps, too.


class Killer:
    """Counts steps, and ends the process at one of them."""

    def __init__(self, at: int) -> None:
        self.left = at
        self.steps: list[str] = []

    def step(self, what: str) -> None:
        """One more is done."""
        self.steps.append(what)
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


class KilledGit(Git):
    """Git whose every command is a step. Of a push, also that it has begun: it goes on without us."""

    def __init__(self, killer: Killer) -> None:
        super().__init__()
        self._killer = killer

    async def _execute(self, args: Sequence[str], *more: Any, **options: Any) -> ProcessResult:
        if args[0] == "push":
            doing = asyncio.ensure_future(super()._execute(args, *more, **options))
            await asyncio.wait([doing], timeout=0.002)
            self._killer.step("git push, begun")
            found = await doing
        else:
            found = await super()._execute(args, *more, **options)
        if has_reads or args[0] not in READS:
            self._killer.step(f"git {args[0]}")
        return found


class KilledStore(Wrapped):
    """A store whose every write of a document is a step."""

    def __init__(self, store: Store, killer: Killer) -> None:
        super().__init__(store)
        self._killer = killer

    async def put_documents(self, documents: Sequence[Document]) -> None:
        await super().put_documents(documents)
        self._killer.step(f"put {documents[0].kind}")

    async def delete_document(self, kind: str, tenant: str, name: str, version: int) -> bool:
        is_dropped = await super().delete_document(kind, tenant, name, version)
        self._killer.step(f"drop {kind}")
        return is_dropped


class KilledEngine(Engine):
    """An engine whose every command is a step."""

    def __init__(self, store: Store, killer: Killer) -> None:
        super().__init__(store, clock=MonotonicClock(jump_seconds=float("inf")))
        self._killer = killer

    async def do(self, command: Command) -> Decision:
        found = await super().do(command)
        self._killer.step(type(command).__name__)
        return found

    async def do_all(self, commands: Iterable[Command]) -> list[Decision | Refused]:
        found = await super().do_all(commands)
        self._killer.step("commands")
        return found

    async def claim(self, claim: Claim) -> list[ClaimedAttempt]:
        found = await super().claim(claim)
        if found:
            self._killer.step("claim")
        return found


class MovingBase:
    """Somebody pushes just before we do, once in all lives."""

    def __init__(self, folder: Path, upstream: Upstream) -> None:
        self._mark = folder / "moved"
        self._upstream = upstream

    async def push(self, builder: CommitBuilder, branch: str, commit: str, expected: str) -> None:
        if not self._mark.exists():
            bare = self._upstream.bare
            git(bare, "update-ref", "refs/heads/main", git(bare, "rev-parse", "refs/side/main"), expected)
            self._mark.touch()
        await builder.push(branch, commit, expected)


class Life(Site):
    """One server, until it is killed or done. Whoever was told is in a file."""

    def __init__(self, folder: Path, killer: Killer, store: Store, engine: Engine, streams: Streams) -> None:
        mirrors = Mirrors(folder, LOCAL, lambda *_: "", KilledGit(killer))
        push = MovingBase(folder, streams.upstream).push
        super().__init__(store, engine, mirrors, streams, owner="machine/1", push=push)
        self._killer = killer
        self._file = folder / "told.jsonl"

    def heard(self) -> dict[str, Any]:
        """What was told in this life and before."""
        found: dict[str, Any] = {}
        for line in self._file.read_text("utf-8").splitlines() if self._file.exists() else []:
            told = json.loads(line)
            assert found.setdefault(told["id"], told) == told, "told two different things"
        return found

    async def hear(self, outcome: MergeOutcome) -> None:
        """Write it down."""
        told = {"id": outcome.id, "is_merged": outcome.is_merged, "commit": outcome.commit, "details": outcome.details}
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(told) + "\n")
        self._killer.step("told")


def entries_of(streams: Streams, story: str) -> list[MergeEntry]:
    """Who is merged: two that conflict while somebody pushes to the base, or a good and a bad one."""
    if story == "moving":
        files = [("one", "merge"), ("two", "squash")]
        return [streams.made(id, {id: "good\n", "same": f"{id}\n"}, method=method) for id, method in files]
    return [streams.made("one", {"one": "good\n"}), streams.made("bad", {"bad": "BAD\n"})]


def prepare(folder: Path, story: str) -> list[MergeEntry]:
    """The repository as it is before all lives."""
    upstream = Upstream(folder / "upstream")
    entries = entries_of(Streams(upstream, folder / "bundles"), story)
    if story != "moving":
        (folder / "moved").touch()
    upstream.switch("main", upstream.first)
    upstream.commit({"side": "good\n"}, "from the side")
    git(upstream.tree, "push", "-q", "origin", "HEAD:refs/side/main")
    return entries


def opened(folder: Path) -> Streams:
    """The same, found again."""
    return Streams(Upstream.opened(folder / "upstream"), folder / "bundles")


async def live(folder: Path, entries: Sequence[MergeEntry], number: int, at: int) -> list[str]:
    """One life; its steps, if it comes to the end."""
    killer = Killer(at)
    clock = [START + number * LIFE_SECONDS * SECOND]
    streams = opened(folder)
    store: Store = KilledStore(SqliteStore(str(folder / "ci.db"), clock=lambda: clock[0]), killer)
    await store.open()
    engine = KilledEngine(store, killer)
    await engine.start()
    try:
        here = Life(folder, killer, store, engine, streams)
        if await here.projects.find(TENANT, PROJECT) is None:
            await here.projects.put(here.project, actor="user:ada")
        while await engine.tick():
            pass
        for entry in entries:  # Whoever was not told comes again.
            if entry.id not in here.heard():
                await here.queue.enter(entry)
        here.queue.start()
        try:
            for _ in range(MAX_RETRIES):
                await here.settle()
                if set(here.heard()) == {entry.id for entry in entries}:
                    break
                clock[0] += RETRY_SECONDS * SECOND  # A push of the life before was in the way.
        finally:
            await here.queue.stop()
        assert set(here.heard()) == {entry.id for entry in entries}, here.heard()
    finally:
        await engine.stop()
        await store.close()
    return killer.steps


def lived(folder: Path, entries: Sequence[MergeEntry], number: int, at: int) -> list[str] | None:
    """One life in a process of its own; None: it was killed."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            steps = asyncio.run(live(folder, entries, number, at))
            os.write(writing, json.dumps(steps).encode())
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        said = pipe.read()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
        return None
    assert status == 0, f"life {number}, killed at {at}: it failed"
    found: list[str] = json.loads(said)
    return found


def end_of(folder: Path) -> dict[str, Any]:
    """All that can be seen in the end, without the times: the history of the base with its trees, and the outcomes."""
    bare = folder / "upstream" / "shop.git"
    log = git(bare, "log", "--topo-order", "--format=%T %s|%an|%P", "main").split("\n")
    trees = {each: git(bare, "rev-parse", f"{each}^{{tree}}") for each in git(bare, "rev-list", "main").split()}
    history = [
        f"{line.rpartition('|')[0]}|{' '.join(trees[each] for each in line.rpartition('|')[2].split())}" for line in log
    ]
    told = {}
    for line in (folder / "told.jsonl").read_text("utf-8").splitlines():
        each = json.loads(line)
        details = each["details"].partition(";")[0].replace(str(folder), "")
        told[each["id"]] = [each["is_merged"], trees.get(each["commit"], ""), details.split(" at ")[0]]
    refs = git(bare, "for-each-ref", "--format=%(refname)").split()
    return {"history": history, "told": told, "refs": refs, "fsck": git(bare, "fsck", "--no-dangling")}


def seen(folder: Path) -> str:
    """The tree of the base now."""
    return git(folder / "upstream" / "shop.git", "rev-parse", "main^{tree}")


def play(template: Path, folder: Path, entries: Sequence[MergeEntry], at: int) -> dict[str, Any]:
    """Killed once, at this step, and started again; what came of it."""
    shutil.copytree(template, folder, symlinks=True)
    steps = lived(folder, entries, 0, at)
    between = seen(folder)
    if is_killed := steps is None:
        steps = lived(folder, entries, 1, 0)
    found = {"at": at, "is_killed": is_killed, "between": between, "steps": steps, **end_of(folder)}
    shutil.rmtree(folder)
    return found


def main(folder: Path, story: str, first: int, every: int) -> None:
    """Every k of these, one after the other."""
    template = folder / "template"
    entries = prepare(template, story)
    at = first
    while True:
        found = play(template, folder / str(at), entries, at)
        print(json.dumps(found), flush=True)
        if not found["is_killed"]:
            return
        at += every


if __name__ == "__main__":
    has_reads = "--reads" in sys.argv
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
