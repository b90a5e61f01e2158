"""Plan runs of repositories: compile the pipeline file of the commit for the changed paths.

Events announce runs; the stored list of runs without a plan is authoritative. A run is PLANNING from before its commit
is fetched. Its planning deadline does not count while its plan waits for its concurrency group. If a server stops in
between, another one plans the run with the same result.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final

from deltaci.controllers.claims import Claims
from deltaci.controllers.projects import Projects
from deltaci.controllers.repositories.change_records import ChangeRecord, ChangeRecords
from deltaci.controllers.repositories.comparison import HEADS, compared
from deltaci.controllers.repositories.concurrency_groups import ConcurrencyGroups
from deltaci.controllers.repositories.pipelines import pipelines_at
from deltaci.controllers.work_queue import KeyedWorkQueue
from deltaci.core import decide, run
from deltaci.core.backoff import backoff_seconds
from deltaci.core.errors import Refused
from deltaci.core.events import RUN, Event
from deltaci.core.instants import SECOND
from deltaci.core.listing import ALL_TENANTS, UNPLANNED
from deltaci.core.machine import Command
from deltaci.core.plan import plan_hash
from deltaci.core.results import MAX_AGE_SECONDS
from deltaci.core.run import Run
from deltaci.engine.engine import Engine
from deltaci.engine.event_loop import cancel_and_wait
from deltaci.engine.requests import Overloaded
from deltaci.git.command import GitFailed
from deltaci.git.mirrors import Mirror, Mirrors
from deltaci.pipeline.parse.problems import select_errors
from deltaci.pipeline.planning.inputs import REUSABLE_EVENTS
from deltaci.pipeline.planning.plan import Plan
from deltaci.pipeline.planning.plan_report import (
    KIND,
    PlanReport,
    decode_report,
    encode_report,
    report_name,
    report_of,
)
from deltaci.pipeline.planning.reuse import leave_out_reused, result_keys
from deltaci.pipeline.repository import ChangedPaths, PipelineFile, check_file_triggers, plan_file
from deltaci.protocol.messages import Source
from deltaci.storage.port import Conflict, Document, ListPosition, ListQuery, Store, Unavailable

CLAIM: Final = "plan-claim"
RESYNC_SECONDS: Final = 30.0
RETRY_SECONDS: Final = 10.0
MAX_RETRY_SECONDS: Final = 120.0
MAX_TRIES: Final = 6  # Of reaching a repository; about five minutes.
PAGE: Final = 200
MAX_ERROR: Final = 10_000
PRUNED_RESULTS: Final = 1000  # deleted by one statement

NOTHING: Final = Plan(file="", name="", jobs=(), hash=plan_hash(()))

LOGGER: Final = logging.getLogger(__name__)


class PlanFailedError(Exception):
    """A pipeline file cannot be planned. `problems` are texts with file and position."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(self.problems))


async def reasons_of(store: Store, record: Run) -> PlanReport | None:
    """Return the stored explanation of a run's plan, or None if the run was not planned from a repository."""
    if not record.origin.event:
        return None
    document = await store.find_document(KIND, report_name(record.id, record.plan_hash), record.tenant)
    return decode_report(document.body) if document is not None else None


async def begin_planning(engine: Engine, store: Store, record: Run) -> Run:
    """Start the run's planning deadline if it has not been started. Return the changed run."""
    if run.MACHINE.rule(record.state, run.BeginPlanning) is None:
        return record
    [answer] = await engine.do_all([run.BeginPlanning(id=record.id)])
    begun = await store.find(record.id) if isinstance(answer, Refused) else answer.record
    return begun if isinstance(begun, Run) else record


async def say_plan(engine: Engine, record: Run, order: decide.Plan | run.PlanFailed) -> Refused | None:
    """Submit a plan, or the failure to make one, for a run. Return the refusal of an invalid plan, else None."""
    orders: list[Command] = [order]
    if run.MACHINE.rule(record.state, run.BeginPlanning) is not None:
        orders.insert(0, run.BeginPlanning(id=record.id))
    *_, answer = await engine.do_all(orders)
    if not isinstance(answer, Refused) or answer.code == "wrong_state":
        return None
    if isinstance(order, run.PlanFailed):
        LOGGER.warning("cannot mark run %s as failed: %s", record.id, answer.message)
        return None
    return answer


class RunPlanner:
    """Plans runs that were created without a plan. Several servers may plan the same run; the first result counts."""

    def __init__(
        self, store: Store, engine: Engine, projects: Projects, changes: ChangeRecords, mirrors: Mirrors, owner: str
    ) -> None:
        self._store = store
        self._engine = engine
        self._projects = projects
        self._changes = changes
        self._mirrors = mirrors
        self._claims = Claims(store, CLAIM, owner)
        self.groups = ConcurrencyGroups(store, engine)
        self.work_queue = KeyedWorkQueue("planner", self._work, resync=self._look, resync_seconds=RESYNC_SECONDS)
        self._tries: dict[str, int] = {}
        self._in_line: set[str] = set()  # Runs whose group is taken.
        self._plannings: dict[str, asyncio.Task[None]] = {}  # By the id of the run.

    def on_events(self, events: Sequence[Event]) -> None:
        """Queue runs that can be planned now. The follower of the event log calls this."""
        # Of each run only how it is by now: one that is started with its plan is none of our business.
        states = {event.entity_id: event.to for event in events if event.entity == RUN}
        canceled_ids = {event.entity_id for event in events if event.trigger == "cancel_requested"}
        for id, state in states.items():
            if run.MACHINE.changes(state, run.BeginPlanning) or (id in canceled_ids and state == run.PLANNING):
                self.work_queue.add(id)
            if id in self._plannings and (id in canceled_ids or run.is_over_state(state)):
                self._plannings[id].cancel()
        if self._in_line and any(map(run.is_over_state, states.values())):
            for id in self._in_line:
                self.work_queue.add(id)

    async def _look(self) -> None:
        await self.resync()
        await self.groups.prune()
        await self.prune_results()

    async def prune_results(self) -> int:
        """Delete the results of jobs that are too old to be reused. Return how many."""
        oldest_at = await self._store.now() - MAX_AGE_SECONDS * SECOND
        pruned = deleted = await self._store.delete_job_results(oldest_at, PRUNED_RESULTS)
        while deleted == PRUNED_RESULTS:
            deleted = await self._store.delete_job_results(oldest_at, PRUNED_RESULTS)
            pruned += deleted
        return pruned

    async def resync(self) -> None:
        """Add all runs without a plan to the work queue."""
        before: ListPosition | None = None
        while True:
            page = await self._store.page(ListQuery(tenant=ALL_TENANTS, lists=[UNPLANNED], before=before, limit=PAGE))
            for each in page.records:
                self.work_queue.add(each.id)
            before = page.next
            if before is None:
                return

    # -- one run

    async def _work(self, id: str) -> None:
        record = await self._store.find(id)
        if not isinstance(record, Run) or not run.is_unplanned(record) or not record.origin.event:
            self._in_line.discard(id)
            self._tries.pop(id, None)
            return
        if record.cancel_reason:  # Whatever it would do: it ends as soon as it has a plan.
            await self._write(record, NOTHING, PlanReport(file=record.origin.file))
            return
        if not await self._claims.take(id):
            return
        try:
            record = await begin_planning(self._engine, self._store, record)
            await self._plan_until_over(record)
        except (Unavailable, Conflict, Overloaded):
            raise
        except PlanFailedError as problem:
            await self._fail(record, problem.problems)
        except Refused as refused:
            await self._fail(record, [refused.message])
        except GitFailed as error:
            await (self._try_again(record, str(error)) if error.is_transient else self._fail(record, [str(error)]))
        except Exception as error:
            LOGGER.exception("run %s: internal error", id)
            await self._try_again(record, f"internal error: {type(error).__name__}: {error}; see the server log")
        finally:
            await self._claims.let_go(id)

    async def _plan_until_over(self, record: Run) -> None:
        """Plan the run, but stop when it is cancelled or its deadline has passed: its repository may never answer."""
        planning = self._plannings[record.id] = asyncio.create_task(self._plan(record))
        try:
            await asyncio.wait({planning})
        finally:
            del self._plannings[record.id]
            await cancel_and_wait(planning)
        if not planning.cancelled():
            planning.result()

    async def _plan(self, record: Run) -> None:
        current = await self._store.find(record.id)
        if not isinstance(current, Run) or current.cancel_reason:  # Cancelled before `_plannings` had this task.
            self.work_queue.add(record.id)
            return
        project = await self._projects.find(record.tenant, record.origin.project)
        kept = await self._changes.find(record.tenant, record.origin.change)
        if project is None or kept is None:
            missing = "project" if project is None else "change"
            raise PlanFailedError([f"its {missing} no longer exists"])
        mirror = self._mirrors.for_project(project)
        change = kept.change
        await mirror.ensure_commit(change.commit, change.ref, f"{HEADS}{change.head or change.branch}")
        if record.rerun_of:
            diff = ChangedPaths(None, why=f"all jobs of run {record.rerun_of} are repeated")
        else:
            diff = await compared(mirror, change, change.default_branch)
        contents = await mirror.list_contents(change.commit)
        file = await self._file(mirror, record, kept, diff, contents)
        source = Source(url=project.url, commit=change.commit, ref=change.ref, credential=project.credential)
        compiled = await asyncio.to_thread(
            plan_file,
            file,
            change,
            diff,
            source,
            run_id=record.id,
            fork_role=project.policies.fork_role,
            contents=contents if change.event in REUSABLE_EVENTS and not change.tag else None,
        )
        plan = compiled.plan
        if plan is None:
            raise PlanFailedError(map(str, select_errors(compiled.problems)))
        if not record.rerun_of:
            results = await self._store.find_job_results(result_keys(plan, record.tenant, record.origin))
            plan = leave_out_reused(plan, results, await self._store.now())
        if plan.group:
            self._in_line.add(record.id)  # Before it asks: whoever ends meanwhile must not be missed.
            if not await self.groups.enter(record, plan):
                await self._engine.do_all([run.AwaitGroup(id=record.id, group=plan.group)])
                return
        self._in_line.discard(record.id)
        report = report_of(plan, compared_with=diff.base, unknown_because=diff.why)
        await self._write(record, plan, report)

    async def _file(
        self, mirror: Mirror, record: Run, kept: ChangeRecord, diff: ChangedPaths, contents: Mapping[str, str]
    ) -> PipelineFile:
        """Return the pipeline file of the run.

        For a manual run that names none, return the only one that is triggered.
        """
        commit, wanted = kept.change.commit, record.origin.file
        found = await pipelines_at(mirror, commit, wanted, contents)
        if wanted:
            if not found:
                raise PlanFailedError([f"the commit {commit} has no pipeline file {wanted!r}"])
        else:
            meant = [each for each in found if check_file_triggers(each, kept.change, diff.changed).is_triggered]
            if len(meant) != 1:
                listed_files = ", ".join(each.result.file for each in meant or found) or "none"
                raise PlanFailedError([f"{len(meant)} pipeline files match; name one of: {listed_files}"])
            found = meant
        if kept.change.event == "manual":
            is_on, why = check_file_triggers(found[0], kept.change, diff.changed)
            if not is_on:
                raise PlanFailedError(
                    [f"{found[0].result.file} cannot be started by hand: {why}; add `manual` to its `on`"]
                )
        return found[0]

    async def _write(self, record: Run, plan: Plan, reasons: PlanReport) -> None:
        """Store the explanation of the plan, then submit the plan, so that readers of the plan find the explanation."""
        await self._keep(record, plan.hash, reasons)
        jobs = tuple(each.spec for each in plan.jobs)
        order = decide.Plan(
            id=record.id,
            jobs=jobs,
            plan_hash=plan.hash,
            is_fail_fast=plan.is_fail_fast,
            timeout_seconds=plan.timeout_seconds,
            optional_wait_seconds=plan.optional_wait_seconds,
        )
        await self._say(record, order)

    async def _fail(self, record: Run, problems: Sequence[str]) -> None:
        """Store the problems and fail the planning of the run."""
        await self._keep(record, "", PlanReport(file=record.origin.file, problems=tuple(problems)))
        error = "\n".join(problems)
        if len(error) > MAX_ERROR:
            error = f"{error[:MAX_ERROR]}…"
        await self._say(record, run.PlanFailed(id=record.id, error=error))

    async def _keep(self, record: Run, hash: str, reasons: PlanReport) -> None:
        name = report_name(record.id, hash)
        if await self._store.find_document(KIND, name, record.tenant) is None:
            with suppress(Conflict):  # Another server planned the same.
                await self._store.put_documents([Document(KIND, record.tenant, name, 0, 0, encode_report(reasons))])

    async def _say(self, record: Run, order: decide.Plan | run.PlanFailed) -> None:
        refused = await say_plan(self._engine, record, order)
        self._tries.pop(record.id, None)
        if refused is not None:
            raise refused

    async def _try_again(self, record: Run, why: str) -> None:
        """Schedule another try after a delay, or fail the planning after MAX_TRIES or before its deadline.

        A planning that fails says why; one whose deadline passes cannot.
        """
        tried = self._tries[record.id] = self._tries.get(record.id, 0) + 1
        delay = backoff_seconds(tried - 1, RETRY_SECONDS, MAX_RETRY_SECONDS)
        if record.plan_by:
            delay = min(delay, (record.plan_by - await self._store.now()) / SECOND - RETRY_SECONDS)
        if tried >= MAX_TRIES or delay <= 0:
            await self._fail(record, [why])
            return
        LOGGER.warning("cannot plan run %s: %s; retrying", record.id, why)
        asyncio.get_running_loop().call_later(delay, self.work_queue.add, record.id)
