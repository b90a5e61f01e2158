"""Run workstreams from creation to archive: plan, integrate tasks, validate, merge, archive.

Every step starts from the stored state and can be repeated, so that a server can continue after a crash.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from deltaci.controllers.claims import Claims
from deltaci.controllers.merge_queue.controller import MergeQueueController
from deltaci.controllers.merge_queue.records import NONE, MergeEntry, MergeOutcome, QueueView
from deltaci.controllers.projects import BETWEEN, Project, of
from deltaci.controllers.work_queue import KeyedWorkQueue
from deltaci.controllers.workstreams import commits, files
from deltaci.controllers.workstreams.archive import archive
from deltaci.controllers.workstreams.context import WorkstreamContext, plain, spec_of
from deltaci.controllers.workstreams.integrate import RuleViolationError, TaskIntegrator
from deltaci.controllers.workstreams.metrics import WorkstreamTimesCache
from deltaci.controllers.workstreams.planning import WorkstreamPlanner
from deltaci.controllers.workstreams.records import OpenWorkstream, Workstream
from deltaci.core import job, run
from deltaci.core.backoff import backoff_seconds
from deltaci.core.cascade import NewRecord
from deltaci.core.errors import Refused
from deltaci.core.events import JOB, RUN, USER, Event
from deltaci.core.instants import SECOND
from deltaci.core.listing import ALL_TENANTS
from deltaci.core.run import Origin, Run
from deltaci.core.timers import is_over
from deltaci.engine.requests import Overloaded
from deltaci.git.command import GitFailed
from deltaci.git.commit_builder import CommitBuilder
from deltaci.pipeline.parse.validation_rules import protocol_rules
from deltaci.pipeline.workstream import model
from deltaci.pipeline.workstream.compile import required_labels, validation_job_spec
from deltaci.storage.port import Conflict, Unavailable

CLAIM: Final = "workstream-claim"
RESYNC_SECONDS: Final = 30.0
RETRY_SECONDS: Final = 2.0
MAX_RETRY_SECONDS: Final = 300.0
MAX_TRIES: Final = 6  # Of planning: a repository that cannot be reached for some minutes fails the workstream.
ABANDONED_SECONDS: Final = 120  # A document without a run: its server was killed before anybody was answered.
PLANNING_SECONDS: Final = 1800

LOGGER: Final = logging.getLogger(__name__)


class WorkstreamController:
    """All workstreams of a server. Start it after the engine and stop it before."""

    def __init__(self, context: WorkstreamContext, owner: str) -> None:
        self.context = context
        self.merging = MergeQueueController(
            context.store,
            context.engine,
            context.projects,
            context.mirrors,
            ensure=self.ensure,
            is_wanted=self.is_wanted,
            owner=owner,
        )
        self.merging.tell(self.outcome)
        self._claims = Claims(context.store, CLAIM, owner)
        self._planning = WorkstreamPlanner(context)
        self._joining = TaskIntegrator(context)
        self._meters = WorkstreamTimesCache(context.store)
        self.work_queue = KeyedWorkQueue("workstreams", self._work, resync=self.resync, resync_seconds=RESYNC_SECONDS)
        self._known: dict[str, str] = {}  # The tenants of those that are not archived yet, by id.
        self._tries: dict[str, int] = {}

    # -- for people

    async def create(
        self, tenant: str, stream: model.Workstream, *, id: str, by: str, request_id: str = "", fingerprint: str = ""
    ) -> Workstream:
        """Begin it under this id, with the fingerprint of the request, if it has one. Refused if it cannot be."""
        project = await self._project(tenant, stream.project)
        kept = Workstream(
            id=id,
            tenant=tenant,
            name=stream.workstream,
            project=project.name,
            base=stream.base or "",
            spec=plain(stream),
            created_by=by,
            created_at=await self.context.store.now(),
        )
        # Before the run: whoever sees the run finds what it is about.
        await self.context.records.kept.add(tenant, id, kept)
        await self.context.records.opened.add(ALL_TENANTS, of(tenant, id), OpenWorkstream(tenant, id))
        record = _born(kept, stream, project, fingerprint)
        await self.context.engine.do(NewRecord(id=id, record=record, actor=f"{USER}:{by}", request_id=request_id))
        self._give(tenant, id)
        return kept

    async def _project(self, tenant: str, name: str) -> Project:
        if name:
            found = await self.context.projects.find(tenant, name)
            if found is None:
                raise Refused("not_found", f"there is no project {name!r}; list them with 'deltaci project list'")
            return found
        all = [each async for each in self.context.projects.each(tenant)]
        if not all:
            raise Refused("bad_request", "there is no project to work on; add one with 'deltaci project add NAME URL'")
        if len(all) != 1:
            listed_names = ", ".join(each.name for each in all[:10])
            raise Refused(
                "bad_request",
                f"the workstream names no project, and there are {len(all)} ({listed_names}); add 'project: NAME'",
            )
        return all[0]

    async def queues(self, tenant: str) -> list[QueueView]:
        """All merge queues of the tenant that something waits in."""
        return await self.merging.queues(tenant)

    # -- going on

    def on_events(self, events: Sequence[Event]) -> None:
        """What happened, from the follower of the log."""
        self.merging.on_events(events)
        for event in events:
            if event.entity == RUN and event.from_ is None and event.metadata.get("has_validation"):
                self._known.setdefault(event.run_id, event.tenant)
            if event.run_id in self._known and _is_news(event):
                self._give(self._known[event.run_id], event.run_id)

    def start(self) -> None:
        """Begin with what was left over."""
        self.merging.start()
        self.work_queue.start()

    async def stop(self) -> None:
        """Do no more."""
        await self.work_queue.stop()
        await self.merging.stop()

    async def resync(self) -> None:
        """Take up everything that is not archived."""
        async for _, each in self.context.records.opened.iterate(ALL_TENANTS):
            self._give(each.tenant, each.id)

    def _give(self, tenant: str, id: str) -> None:
        self._known[id] = tenant
        self.work_queue.add(of(tenant, id))

    async def _work(self, name: str) -> None:
        tenant, id = name.split(BETWEEN)
        stream = await self.context.records.find(tenant, id)
        record = await self.context.store.find(id)
        if stream is None:
            self._forget(id)
            return
        if not isinstance(record, Run):
            await self._abandon(stream)
            return
        if not await self._claims.take(name):
            return
        try:
            await self._step(stream, record)
            self._tries.pop(id, None)
        except (Unavailable, Conflict, Overloaded):
            raise
        except (GitFailed, Refused) as error:
            await self._again(record, error)
        finally:
            await self._claims.let_go(name)

    async def _step(self, stream: Workstream, record: Run) -> None:
        """Whatever is next."""
        if run.is_unplanned(record):
            await self._planning.plan(stream, record)
            return
        jobs = await self.context.jobs(record.id)
        if run.is_over(record):
            # All of its events are in the archive: those of tasks that are being stopped, and that it was reported.
            if is_over(record) and all(map(is_over, jobs)):
                await self._end(stream, record)
            return
        files.executing(self.context.folder, stream, record, jobs, await self._meters.read(record.id))
        for each in jobs:
            if job.MACHINE.rule(each.state, job.Validate) is not None:
                stream = await self._joining.join(stream, each)
        if run.MACHINE.rule(record.state, run.Validate) is not None:
            await self._finish(stream, record)

    async def _again(self, record: Run, error: GitFailed | Refused) -> None:
        """Later, if that may help; planning is given up in the end."""
        tried = self._tries[record.id] = self._tries.get(record.id, 0) + 1
        is_transient = isinstance(error, GitFailed) and error.is_transient
        if run.is_unplanned(record) and (not is_transient or tried >= MAX_TRIES):
            why = error.message if isinstance(error, Refused) else str(error)
            await self._planning.fail(record, why)
            return
        LOGGER.warning("cannot advance workstream %s: %s; retrying", record.id, error)
        pause = backoff_seconds(tried - 1, RETRY_SECONDS, MAX_RETRY_SECONDS)
        asyncio.get_running_loop().call_later(pause, self._give, record.tenant, record.id)

    async def _abandon(self, stream: Workstream) -> None:
        """One without a run: it is being made, or never was."""
        if await self.context.store.now() - stream.created_at > ABANDONED_SECONDS * SECOND:
            await self._drop(stream)
            await self.context.records.kept.delete(stream.tenant, stream.id)

    # -- the end

    async def _finish(self, stream: Workstream, record: Run) -> None:
        """All tasks are completed: what must hold of the whole, and its place in the merge queue."""
        spec, builder = spec_of(stream), await self.context.builder(stream)
        await commits.restored(builder, stream, self.context.blobs)
        try:
            await self._joining.check(builder, stream, spec.validation, stream.base_commit, stream.tip, stream.tip)
        except RuleViolationError as broken:
            await self._joining.note(stream, "", broken)
            await self._validate(record.id, str(broken), is_passed=False)
            return
        changed = await builder.mirror.changed_paths(stream.base_commit, stream.tip)
        entry = self._entry(stream, spec)
        files.validating(self.context.folder, stream, entry, changed)
        if stream.tip == stream.base_commit and not entry.rules:
            await self._validate(record.id, "no changes to merge", is_passed=True)
            return
        await self.merging.enter(entry)

    def _entry(self, stream: Workstream, spec: model.Workstream) -> MergeEntry:
        merge = spec.merge
        return MergeEntry(
            id=stream.id,
            tenant=stream.tenant,
            project=stream.project,
            base=stream.base,
            head=stream.tip,
            base_commit=stream.base_commit,
            method=merge.method if isinstance(merge, model.Merge) else NONE,
            title=spec.title or spec.workstream,
            message=merge.message if isinstance(merge, model.Merge) else "",
            author=spec.author or "",
            rules=[msgspec.to_builtins(each) for each in protocol_rules(spec.validation)],
            labels=tuple(required_labels(spec)),
            work=validation_job_spec(spec),
        )

    async def ensure(self, entry: MergeEntry) -> None:
        """Have the commits of an entry here."""
        stream = await self.context.records.find(entry.tenant, entry.id)
        if stream is None:
            raise GitFailed(f"workstream {entry.id} is not known")
        await commits.restored(await self.context.builder(stream), stream, self.context.blobs)

    async def is_wanted(self, entry: MergeEntry) -> bool:
        """Whether it still waits to be merged."""
        record = await self.context.store.find(entry.id)
        return isinstance(record, Run) and run.MACHINE.rule(record.state, run.Validate) is not None

    async def outcome(self, outcome: MergeOutcome) -> None:
        """What came of it in the merge queue. May be told more than once."""

        def told(known: Workstream | None) -> Workstream | None:
            if known is None:
                return None
            return replace(known, merged_as=outcome.commit, problem="" if outcome.is_merged else outcome.details)

        stream = await self.context.records.kept.update(outcome.tenant, outcome.id, told)
        if stream is not None and outcome.is_merged and not outcome.commit:
            await self._publish(stream)
        await self._validate(outcome.id, outcome.details, is_passed=outcome.is_merged)
        self._give(outcome.tenant, outcome.id)

    async def _publish(self, stream: Workstream) -> None:
        """One that is not to be merged is good: its branch is there for people from now on."""
        builder = await self.context.builder(stream)
        await commits.restored(builder, stream, self.context.blobs)
        await builder.push(stream.branch, stream.tip, "")

    async def _validate(self, id: str, details: str, *, is_passed: bool) -> None:
        try:
            await self.context.engine.do(run.Validate(id=id, is_passed=is_passed, details=details))
        except Refused as refused:
            if refused.code != "wrong_state":  # Said before, or cancelled meanwhile.
                raise

    async def _end(self, stream: Workstream, record: Run) -> None:
        """It is over: nothing of it waits any more, and all of it is in the archive."""
        if stream.base:
            await self.merging.leave(stream.tenant, stream.project, stream.base, stream.id)
        await archive(self.context.store, self.context.logs, stream, self.context.folder)
        try:
            builder: CommitBuilder | None = await self.context.builder(stream)
        except GitFailed:
            builder = None  # The project is gone, and its mirror with it.
        if builder is not None and stream.joined and await builder.mirror.has_commit(stream.tip):
            await builder.delete_ref(f"streams/{stream.id}/tip")
        await self._drop(stream)

    async def _drop(self, stream: Workstream) -> None:
        await self.context.records.opened.delete(ALL_TENANTS, of(stream.tenant, stream.id))
        self._forget(stream.id)

    def _forget(self, id: str) -> None:
        self._known.pop(id, None)
        self._meters.forget(id)
        self._tries.pop(id, None)


def _born(kept: Workstream, stream: model.Workstream, project: Project, fingerprint: str) -> Run:
    """Its run, without a plan."""
    return Run(
        id=kept.id,
        run_id=kept.id,
        tenant=kept.tenant,
        is_fail_fast=stream.fail_fast,
        has_validation=True,
        timeout_seconds=stream.timeout_minutes * 60,
        optional_wait_seconds=stream.optional_wait_minutes * 60,
        planning_seconds=PLANNING_SECONDS,
        started_by=kept.created_by,
        origin=Origin(
            project=project.name,
            branch=kept.base or project.default_branch,
            repository=project.url,
            title=stream.title or stream.workstream,
            workstream=stream.workstream,
        ),
        request_fingerprint=fingerprint,
    )


def _is_news(event: Event) -> bool:
    """Whether there may be something to do: a task was executed or is over, or its workstream went on."""
    if event.entity == JOB:
        return job.MACHINE.rule(event.to, job.Validate) is not None or event.to in job.TERMINAL
    return event.entity == RUN
