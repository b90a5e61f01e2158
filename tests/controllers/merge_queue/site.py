"""A merge queue with all that it needs: a real repository, a real store, and somebody who plays the runners."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from deltaci.controllers.merge_queue.controller import MergeQueueController, PushBranch
from deltaci.controllers.merge_queue.decisions import BatchLimits
from deltaci.controllers.merge_queue.records import MergeEntry, MergeOutcome, QueueView
from deltaci.controllers.projects import Project, Projects
from deltaci.core import attempt
from deltaci.core.events import worker_actor
from deltaci.core.failures import Facts
from deltaci.core.ids import lease_ref
from deltaci.engine.engine import Claim, ClaimedAttempt, Engine
from deltaci.git.command import Git
from deltaci.git.commit_builder import CommitBuilder
from deltaci.git.mirrors import Mirror, Mirrors
from deltaci.git.url_policy import UrlPolicy
from deltaci.storage.port import Store
from tests.contract.backends import Backend
from tests.support.upstream import Upstream, git

LOCAL: Final = UrlPolicy(frozenset({"file"}))
TENANT: Final = "acme"
PROJECT: Final = "shop"
MAX_ROUNDS: Final = 200
GOOD: Final = {"run": "absent BAD"}


class Streams:
    """Workstreams that are done: a commit each, in a bundle that the repository knows nothing of."""

    def __init__(self, upstream: Upstream, folder: Path) -> None:
        self.upstream = upstream
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def made(self, id: str, *changes: dict[str, str | None], at: str = "", **fields: Any) -> MergeEntry:
        """One with these commits, on the base as it is now, or on this commit."""
        start = at or git(self.upstream.bare, "rev-parse", "main")
        git(self.upstream.tree, "fetch", "-q", "origin", "main")
        self.upstream.switch(f"ws-{id}", start)
        head = start
        for number, files in enumerate(changes):
            head = self.upstream.commit(files, f"{id}, part {number + 1}")
        if head != start:
            git(self.upstream.tree, "bundle", "create", "-q", str(self.file(id)), f"ws-{id}", f"^{start}")
        known = {"tenant": TENANT, "project": PROJECT, "base": "main", "method": "merge", "rules": [GOOD]}
        return MergeEntry(**{**known, "id": id, "head": head, "base_commit": start, "title": f"Work of {id}", **fields})

    def file(self, id: str) -> Path:
        """Its bundle."""
        return self.folder / f"{id}.bundle"

    async def ensure(self, mirror: Mirror, entry: MergeEntry) -> None:
        """Have its head in the mirror."""
        if await mirror.has_commit(entry.head):
            return
        await mirror.ensure_commit(entry.base_commit, "refs/heads/main")
        if entry.head != entry.base_commit:
            await CommitBuilder(mirror).import_bundle(self.file(entry.id), entry.head, entry.base_commit)


Bring = Callable[[str, str, str], Awaitable[bool]]


class Tester:
    """Does what runners would: takes what waits, looks at the commit, and says what it found."""

    def __init__(self, engine: Engine, folder: Path, bring: Bring, name: str = "runner") -> None:
        self.engine = engine
        self.folder = folder  # the mirror
        self.bring = bring
        self.name = name
        self.troubles: list[Facts] = []  # How the next ones end, whatever they test.
        self.good: set[str] = set()  # Commits whose rules hold.
        self.tested: list[str] = []

    async def claim(self, limit: int = 100, labels: tuple[str, ...] = ()) -> list[ClaimedAttempt]:
        """Take what waits."""
        asked = Claim(
            tenant=TENANT,
            worker_id=self.name,
            labels=labels,
            limit=limit,
            ttl_seconds=120,
            accept_seconds=30,
            start_immediately=True,
        )
        return await self.engine.claim(asked)

    async def work(self) -> int:
        """Test all that waits; how much that was."""
        taken = await self.claim()
        for each in taken:
            await self.end(each, self.troubles.pop(0) if self.troubles else await self.look(each))
        return len(taken)

    async def look(self, claimed: ClaimedAttempt) -> Facts | None:
        """What is wrong with the commit; None: nothing. One that only another server made is made here, too."""
        spec = claimed.attempt.spec
        tree, rules = spec["tree"], spec["rules"]
        commit = tree["commit"]
        is_here = await asyncio.to_thread(self._git, "cat-file", "-e", commit) == 0
        if not is_here and not await self.bring(TENANT, tree["stream"], commit):
            return Facts(exit_code=1, message=f"nobody tests the commit {commit} any more")
        return await asyncio.to_thread(self._judge, commit, rules)

    def _judge(self, commit: str, rules: list[dict[str, str]]) -> Facts | None:
        self.tested.append(commit)
        for rule in rules:
            kind, *words = rule["run"].split()
            found = [word for word in words if self.has(commit, word)]
            if found and (kind == "absent" or len(found) == len(words)):
                return Facts(exit_code=1, message=f"rule {rule['run']!r} failed: found {', '.join(found)}")
        self.good.add(commit)
        return None

    def has(self, commit: str, word: str) -> bool:
        """Whether the word is in a file of this commit."""
        done = self._git("grep", "-q", "-w", "-e", word, commit, "--")
        assert done in (0, 1), done
        return done == 0

    def _git(self, *words: str) -> int:
        return subprocess.run(
            ["git", "--git-dir", str(self.folder), *words], stdin=subprocess.DEVNULL, timeout=60, check=False
        ).returncode

    async def end(self, claimed: ClaimedAttempt, facts: Facts | None) -> None:
        """Say how it went."""
        await self.engine.do(
            attempt.Complete(
                id=claimed.attempt.id,
                actor=worker_actor(self.name),
                lease=lease_ref(claimed.lease_id),
                is_success=facts is None,
                exit_code=0 if facts is None else facts.exit_code,
                facts=facts or Facts(),
            )
        )


class Site:
    """One server."""

    def __init__(
        self,
        store: Store,
        engine: Engine,
        mirrors: Mirrors,
        streams: Streams,
        *,
        owner: str = "one",
        limits: BatchLimits | None = None,
        push: PushBranch = CommitBuilder.push,
    ) -> None:
        self.store = store
        self.engine = engine
        self.streams = streams
        self.upstream = streams.upstream
        self.projects = Projects(engine, store)
        self.project = Project(name=PROJECT, tenant=TENANT, url=self.upstream.url, default_branch="main")
        self.mirror = mirrors.for_project(self.project)
        self.builder = CommitBuilder(self.mirror)
        self.unwanted: set[str] = set()
        self.told: dict[str, MergeOutcome] = {}
        self.queue = MergeQueueController(
            store, engine, self.projects, mirrors, self.ensure, self.is_wanted, push=push, owner=owner, limits=limits
        )
        self.queue.tell(self.hear)
        self.tester = Tester(engine, self.mirror.folder, self.queue.bring)

    async def ensure(self, entry: MergeEntry) -> None:
        """Have a head in the mirror."""
        await self.streams.ensure(self.mirror, entry)

    async def is_wanted(self, entry: MergeEntry) -> bool:
        """Whether nobody changed their mind."""
        return entry.id not in self.unwanted

    async def hear(self, outcome: MergeOutcome) -> None:
        """How it went; told again, it must be the same."""
        assert self.told.setdefault(outcome.id, outcome) == outcome

    async def enter(self, *entries: MergeEntry) -> None:
        """All of them, in order."""
        for entry in entries:
            await self.queue.enter(entry)

    async def calm(self) -> None:
        """Until the queue can do nothing by itself."""
        await self.queue.resync()
        await self.queue.work_queue.join()

    async def settle(self) -> None:
        """Until nobody can do anything: neither the queue nor the runners."""
        for _ in range(MAX_ROUNDS):
            await self.calm()
            if not await self.tester.work():
                return
        raise AssertionError("it does not end")

    async def view(self) -> QueueView:
        """The only line."""
        [found] = await self.queue.queues(TENANT)
        return found

    # -- what came of it

    @property
    def tip(self) -> str:
        """Where the base is."""
        return git(self.upstream.bare, "rev-parse", "main")

    def files(self) -> set[str]:
        """What is in the base, beside what was there from the start."""
        return set(git(self.upstream.bare, "ls-tree", "-r", "--name-only", "main").split()) - {".deltaci.yml", "README"}

    def places(self) -> list[str]:
        """The commits that the base was at, the oldest first."""
        found = git(self.upstream.bare, "rev-list", "--reverse", "--first-parent", f"{self.upstream.first}..main")
        return found.split()

    def merged(self) -> set[str]:
        """Who was told that it was merged."""
        return {id for id, each in self.told.items() if each.is_merged}


@asynccontextmanager
async def opened(
    backend: Backend,
    streams: Streams,
    folder: Path,
    *,
    wrap: Callable[[Store], Store] = lambda store: store,
    git: Git | None = None,
    starts: bool = True,
    **options: Any,
) -> AsyncIterator[Site]:
    """A server at work."""
    async with backend.server(wrap) as server:
        mirrors = Mirrors(folder, LOCAL, lambda *_: "", git)
        site = Site(server.store, server.engine, mirrors, streams, **options)
        if await site.projects.find(TENANT, PROJECT) is None:
            await site.projects.put(site.project, actor="user:ada")
        if starts:
            site.queue.start()
        try:
            yield site
        finally:
            await site.queue.stop()
