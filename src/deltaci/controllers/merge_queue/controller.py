"""Run the merge queues: one queue per base branch, stored as one document with version checks.

Every step starts from the stored state and can be repeated after a crash or by another server. The base moves in one
push, from exactly the commit below the tested one. Outcomes are reported until they are acknowledged.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final

from msgspec.structs import replace

from deltaci.controllers.claims import Claims
from deltaci.controllers.merge_queue import candidate_runs
from deltaci.controllers.merge_queue import decisions as lines
from deltaci.controllers.merge_queue.candidate_commits import CandidateBuilder, Ensure
from deltaci.controllers.merge_queue.decisions import BatchLimits, MergeBatch, MergeQueueState, Step, queue_digest
from deltaci.controllers.merge_queue.records import NONE, MergeEntry, MergeOutcome, QueueView, Told
from deltaci.controllers.merge_queue.serializers import shown
from deltaci.controllers.projects import Project, Projects, of
from deltaci.controllers.work_queue import KeyedWorkQueue
from deltaci.core import run
from deltaci.core.errors import Refused
from deltaci.core.events import RUN, Event
from deltaci.core.ids import MERGE_RUN_PREFIX
from deltaci.core.instants import SECOND
from deltaci.core.job import Job
from deltaci.core.listing import ALL_TENANTS
from deltaci.core.run import Run
from deltaci.engine.engine import Engine
from deltaci.engine.requests import Overloaded
from deltaci.git.command import GitFailed
from deltaci.git.commit_builder import BranchMoved, CommitBuilder
from deltaci.git.mirrors import Mirrors
from deltaci.storage.documents import TypedDocuments
from deltaci.storage.port import Conflict, Store, Unavailable

KIND: Final = "merge-queue"
CLAIM: Final = "merge-claim"
CLAIM_SECONDS: Final = 120
RESYNC_SECONDS: Final = 20.0
RETRY_SECONDS: Final = 1.0  # While another server is at it, or somebody does not hear.
COUNT: Final = 4

LOGGER: Final = logging.getLogger(__name__)

IsWanted = Callable[[MergeEntry], Awaitable[bool]]
PushBranch = Callable[[CommitBuilder, str, str, str], Awaitable[None]]  # Like `CommitBuilder.push`.
_PASSING: Final = (Unavailable, Conflict, Overloaded)


class MergeQueueController:
    """The merge queues of all tenants. `ensure` fetches a head into the mirror; `is_wanted` tells whether an entry
    still is to be merged.
    """

    def __init__(
        self,
        store: Store,
        engine: Engine,
        projects: Projects,
        mirrors: Mirrors,
        ensure: Ensure,
        is_wanted: IsWanted,
        *,
        push: PushBranch = CommitBuilder.push,
        owner: str = "",
        limits: BatchLimits | None = None,
    ) -> None:
        self._store = store
        self._engine = engine
        self._projects = projects
        self._mirrors = mirrors
        self._ensure = ensure
        self._is_wanted = is_wanted
        self._push = push
        self._limits = limits or BatchLimits()
        self._lines = TypedDocuments(store, KIND, MergeQueueState)
        self._claims = Claims(store, CLAIM, owner or secrets.token_hex(8), CLAIM_SECONDS)
        self._told: list[Told] = []
        self._deaf: dict[str, frozenset[str]] = {}  # Whose outcomes nobody heard just now.
        self._later: dict[str, asyncio.TimerHandle] = {}
        self.work_queue = KeyedWorkQueue(
            "merge queue", self._work, COUNT, resync=self.resync, resync_seconds=RESYNC_SECONDS
        )

    def tell(self, told: Told) -> None:
        """Tell this one, too, how it went. It hears it until it does not raise; perhaps once more."""
        self._told.append(told)

    def start(self) -> None:
        """Begin with what was left over."""
        self.work_queue.start()

    async def stop(self) -> None:
        """Merge no more."""
        await self.work_queue.stop()
        for each in self._later.values():
            each.cancel()
        self._later.clear()

    # -- who comes and goes

    async def enter(self, entry: MergeEntry) -> None:
        """To be merged, after all who came before. Safe to repeat; raises `Overloaded` when too many wait.

        One that could not even be tested is refused.
        """
        candidate_runs.check(entry)
        if not entry.at:
            entry = replace(entry, at=await self._store.now())
        empty = MergeQueueState(tenant=entry.tenant, project=entry.project, base=entry.base)
        name = _name_of(entry.tenant, entry.project, entry.base)
        await self._lines.update(ALL_TENANTS, name, lambda line: lines.entered(line or empty, entry))
        self.work_queue.add(name)

    async def leave(self, tenant: str, project: str, base: str, id: str) -> bool:
        """Not to be merged any more. Whether that holds; False: it is too late, and the outcome will be told."""
        name = _name_of(tenant, project, base)
        line = await self._lines.update(ALL_TENANTS, name, lambda line: line and lines.without(line, [id]))
        self.work_queue.add(name)
        return line is None or id not in {*(each.entry.id for each in line.places), *(each.id for each in line.ended)}

    def on_events(self, events: Sequence[Event]) -> None:
        """What happened, from the follower of the log: a test run that ended is looked at."""
        for event in events:
            if event.entity == RUN and event.entity_id.startswith(MERGE_RUN_PREFIX) and run.is_over_state(event.to):
                self.work_queue.add(of(event.tenant, event.entity_id.split("-")[1]))

    async def queues(self, tenant: str) -> list[QueueView]:
        """The tenant's lines in which somebody waits."""
        found = [each async for _, each in self._lines.iterate(ALL_TENANTS, of(tenant, ""))]
        return [shown(each) for each in found if each.places]

    async def bring(self, tenant: str, stream: str, commit: str) -> bool:
        """Have a commit that is tested now in this server's mirror, for the runner that asks; False: it is not."""
        line = await self._lines.find(ALL_TENANTS, of(tenant, stream.removeprefix(candidate_runs.STREAM)))
        if line is None or (project := await self._projects.find(tenant, line.project)) is None:
            return False
        builder = CommitBuilder(self._mirrors.for_project(project))
        if await builder.mirror.has_commit(commit):
            return True
        for batch in line.batches:
            if not batch.commits or not await self._is_made(builder, line, batch):
                return False
            if commit in batch.commits:
                return True
        return False

    # -- one line

    async def resync(self) -> None:
        """Take up every line in which there is something to do."""
        async for name, line in self._lines.iterate(ALL_TENANTS):
            if not line.is_idle:
                self.work_queue.add(name)

    async def _work(self, name: str) -> None:
        if not await self._claims.take(name):
            self._give_later(name, RETRY_SECONDS)
            return
        self._deaf.pop(name, None)
        loop, taken = asyncio.get_running_loop(), asyncio.get_running_loop().time()
        try:
            while True:
                line = await self._lines.find(ALL_TENANTS, name)
                if line is None or (line.is_idle and await self._lines.delete_if(ALL_TENANTS, name, _is_idle)):
                    return
                if not await self._is_changed(name, line):
                    break
                if loop.time() > taken + CLAIM_SECONDS / 3:
                    taken = loop.time()
                    await self._claims.take(name)  # For as long again; whoever took it meanwhile is not in the way.
        finally:
            await self._claims.let_go(name)
        now = await self._store.now()
        if (at := lines.next_at(line, now)) is not None:
            self._give_later(name, (at - now) / SECOND)
        if line.ended or line.stopping:
            self._give_later(name, RETRY_SECONDS)

    async def _is_changed(self, name: str, line: MergeQueueState) -> bool:
        """Take the first step that changes something; whether there was one."""
        for step in lines.steps(line, await self._store.now(), self._limits):
            try:
                if await self._is_done(name, line, step):
                    return True
            except _PASSING:
                raise
            except (GitFailed, Refused) as error:
                problem = str(error)
            except Exception as error:
                LOGGER.exception("merge queue of %s: internal error", line.base)
                problem = f"internal error: {type(error).__name__}: {error}"
            else:
                continue
            await self._trouble(name, line, problem)
            if isinstance(step, lines.BuildBatch | lines.HandleFailedBatch | lines.MergeTestedBatch):
                return True  # None of these is done before the trouble is over.
        return False

    async def _is_done(self, name: str, line: MergeQueueState, step: Step) -> bool:
        match step:
            case lines.CancelTestRun(run_id):
                with suppress(Refused):  # It never began, or is over.
                    await self._engine.do(run.Cancel(id=run_id, reason="no longer needed by the merge queue"))
                return await self._edit(name, line, lambda line: lines.stopped(line, run_id))
            case lines.ReportOutcome(outcome):
                return await self._tell(name, line, outcome)
            case lines.FormBatches():
                now = await self._store.now()
                return await self._edit(name, line, lambda line: lines.formed(line, now, self._limits))
        project = await self._projects.find(line.tenant, line.project)
        if project is None:
            details = f"the project {line.project!r} no longer exists"
            return await self._edit(name, line, lambda line: lines.closed(line, details))
        batch = line.batch(step.number)
        assert batch is not None
        builder = CommitBuilder(self._mirrors.for_project(project))
        match step:
            case lines.BuildBatch():
                return await self._build(name, line, batch, builder)
            case lines.TestBatch():
                return await self._test(name, line, batch, project)
            case lines.HandleFailedBatch():
                return await self._judge(name, line, batch, builder)
            case lines.MergeTestedBatch():
                return await self._land(name, line, batch, builder)

    async def _tell(self, name: str, line: MergeQueueState, outcome: MergeOutcome) -> bool:
        if outcome.id in self._deaf.get(name, ()):
            return False
        for each in self._told:
            try:
                await each(outcome)
            except _PASSING:
                raise
            except Exception:
                LOGGER.exception("cannot report the result of workstream %s; retrying", outcome.id)
                self._deaf[name] = self._deaf.get(name, frozenset()) | {outcome.id}
                return False
        return await self._edit(name, line, lambda line: lines.told(line, outcome))

    # -- one batch

    async def _build(self, name: str, line: MergeQueueState, batch: MergeBatch, builder: CommitBuilder) -> bool:
        entries = line.entries(batch)
        if unwanted := [each.id for each in entries if not await self._is_wanted(each)]:
            return await self._edit(name, line, lambda line: lines.without(line, unwanted))
        base = await builder.fetch_branch(line.base)
        below = line.batches[: line.batches.index(batch)]
        if below and base != below[0].start:
            # Whoever conflicts with it must conflict with what the base is now.
            return await self._edit(name, line, lambda line: lines.moved(line, below[0].number))
        for each in below:
            if not await self._is_made(builder, line, each):
                return await self._edit(name, line, lambda line: lines.moved(line, below[0].number))
        start, before = (below[-1].top, below[-1].number) if below else (base, 0)
        made = await CandidateBuilder(builder, self._brought).build(batch, entries, base, start, before)
        now = await self._store.now()
        if made.members and not any(lines.rules_of([each]) for each in entries):
            LOGGER.info("batch %s for %s has no validation rules; a clean merge is sufficient", batch.number, line.base)
        return await self._edit(name, line, lambda line: lines.built(line, batch.number, made, now))

    async def _test(self, name: str, line: MergeQueueState, batch: MergeBatch, project: Project) -> bool:
        run_id = lines.run_of(line, batch)
        record = await self._store.find(run_id)
        if record is None:
            order = candidate_runs.order(line, batch, project)
            problem = ""
            try:
                await self._engine.do(order)
            except Refused as refused:
                problem = refused.message
            record = await self._store.find(run_id)
            if record is None and problem:  # It was not that another server was faster.
                return await self._lost(name, line, batch, f"its test run cannot be started: {problem}")
        if not isinstance(record, Run) or not run.is_over(record):
            return False
        jobs = await self._store.find_all(candidate_runs.job_ids(line, batch))
        found = candidate_runs.verdict(line, batch, [each for each in jobs if isinstance(each, Job)])
        if not isinstance(found, str):
            return await self._edit(name, line, lambda line: lines.tested(line, run_id, found))
        return await self._lost(name, line, batch, found)

    async def _lost(self, name: str, line: MergeQueueState, batch: MergeBatch, problem: str) -> bool:
        LOGGER.warning("batch %s for %s is tested again: %s", batch.number, line.base, problem)
        run_id, now = lines.run_of(line, batch), await self._store.now()
        return await self._edit(name, line, lambda line: lines.lost(line, run_id, problem, now))

    async def _judge(self, name: str, line: MergeQueueState, batch: MergeBatch, builder: CommitBuilder) -> bool:
        """A test that failed says something only as long as the base is where it was."""
        if batch.method != NONE and await builder.fetch_branch(line.base) != batch.start:
            return await self._edit(name, line, lambda line: lines.moved(line, batch.number))
        return await self._edit(name, line, lambda line: lines.judged(line, batch.number))

    async def _land(self, name: str, line: MergeQueueState, batch: MergeBatch, builder: CommitBuilder) -> bool:
        if not batch.is_landing:
            if unwanted := [each.id for each in line.entries(batch) if not await self._is_wanted(each)]:
                return await self._edit(name, line, lambda line: lines.without(line, unwanted))
            # From here on it is too late to go: who leaves meanwhile is told so.
            return await self._edit(name, line, lambda line: lines.landing(line, batch.number))
        if batch.top != batch.start:
            try:
                if not await self._is_made(builder, line, batch):
                    raise BranchMoved("")
                await self._push(builder, line.base, batch.top, batch.start)
            except BranchMoved as moved:
                # Perhaps it is there since before a crash, and somebody has built on it.
                if not await builder.branch_contains(line.base, batch.top):
                    LOGGER.info("the base %s moved: %s; rebuilding the tested batches", line.base, moved)
                    return await self._edit(name, line, lambda line: lines.moved(line, batch.number, is_landing=True))
        return await self._edit(name, line, lambda line: lines.landed(line, batch.number))

    async def _brought(self, entry: MergeEntry) -> None:
        """Have a head in the mirror. Whatever keeps it out is trouble with this one alone."""
        try:
            await self._ensure(entry)
        except (*_PASSING, GitFailed):
            raise
        except Exception as error:
            LOGGER.exception("cannot fetch the commits of workstream %s: internal error", entry.id)
            raise GitFailed(f"cannot fetch its commits: {type(error).__name__}: {error}") from error

    async def _is_made(self, builder: CommitBuilder, line: MergeQueueState, batch: MergeBatch) -> bool:
        """Whether the commits of a batch are in this server's mirror, made again where they were not."""
        candidates = CandidateBuilder(builder, self._brought)
        if await candidates.has(batch):
            return True
        if not await builder.mirror.has_commit(batch.start):
            await builder.fetch_branch(line.base)  # It may have landed since.
            if not await builder.mirror.has_commit(batch.start):
                return False
        return await candidates.remade(batch, line.entries(batch))

    # -- the document

    async def _edit(
        self, name: str, seen: MergeQueueState, change: Callable[[MergeQueueState], MergeQueueState]
    ) -> bool:
        """Change it as it is now; whether it is not what was seen before. Somebody else's change is as good."""
        after = await self._lines.update(ALL_TENANTS, name, lambda line: line and change(line))
        return after != seen

    async def _trouble(self, name: str, line: MergeQueueState, problem: str) -> None:
        LOGGER.warning("merge queue of %s for %s: %s; retrying", line.project, line.base, problem)
        now = await self._store.now()
        await self._edit(name, line, lambda line: lines.troubled(line, problem, now))

    def _give_later(self, name: str, seconds: float) -> None:
        if (known := self._later.pop(name, None)) is not None:
            known.cancel()
        self._later[name] = asyncio.get_running_loop().call_later(max(seconds, 0), self.work_queue.add, name)


def _name_of(tenant: str, project: str, base: str) -> str:
    return of(tenant, queue_digest(tenant, project, base))


def _is_idle(line: MergeQueueState) -> bool:
    return line.is_idle
