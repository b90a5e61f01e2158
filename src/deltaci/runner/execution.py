"""What is done for one job between its lease and its result: conditions, secrets, services, steps, rules, harvest."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from msgspec import structs

from deltaci.core.errors import Refused
from deltaci.protocol.messages import ArtifactRule, JobSpec
from deltaci.protocol.responses import NeededJob
from deltaci.runner.actions.context import JobContext, StepFailed
from deltaci.runner.client import Unreachable
from deltaci.runner.log.job_log import JobLog
from deltaci.runner.log.sections import PREPARE_TREE, UPLOAD_ARTIFACTS
from deltaci.runner.result import JobResult
from deltaci.runner.sandbox import Cell, CellFailed, Exit
from deltaci.runner.sandbox.cell_pool import JobDir
from deltaci.runner.steps.expressions import EVENT_FILE, JobExpressions
from deltaci.runner.steps.sequence import GoOn, StepSequence, code_of
from deltaci.runner.steps.service_containers import ServiceContainers
from deltaci.runner.steps.validation import RuleChecker
from deltaci.runner.transfers import JobStopped, Transfers
from deltaci.runner.workspace.caches import Caches
from deltaci.runner.workspace.checkout import trust_any_owner
from deltaci.runner.workspace.collect_outputs import OutputCollector
from deltaci.runner.workspace.layout import layout_for
from deltaci.runner.workspace.safe_fs import write_file
from deltaci.runner.workspace.worktrees.bundle_commits import ERROR_CODE as TREE
from deltaci.runner.workspace.worktrees.bundle_commits import (
    CommittedTree,
    NothingCommitted,
    commit_tree,
    upload_bundle,
)
from deltaci.runner.workspace.worktrees.prepare import prepare_tree


class JobExecution:
    """One job's work. Close it when its cell is closed."""

    def __init__(
        self,
        spec: JobSpec,
        place: JobDir,
        cell: Cell,
        log: JobLog,
        transfers: Transfers,
        runner_id: str,
        protocols: tuple[str, ...],
    ) -> None:
        self._spec = spec
        self._log = log
        self._transfers = transfers
        self._runner_id = runner_id
        self._protocols = protocols
        self._place = place
        self._layout = layout_for(spec, place.workspace, place.slot.path if place.slot is not None else None)
        self._caches = Caches(transfers, self._layout, place.folder, log)
        self._harvester = OutputCollector(transfers, self._layout.workspace, log)
        self._services = ServiceContainers(spec, cell, log)
        self._cell = cell
        self._mirrors = place.folder.parent / "mirrors"
        self._expressions = JobExpressions(spec, self._layout, runner=runner_id)
        self._is_failed = False
        self._left: CommittedTree | None = None

    async def run(self, go_on: GoOn, left: Callable[[], float], working: Callable[[Any], None]) -> JobResult:
        """All up to the end of the last step and rule. `working` is told how to stop what the runner itself does."""
        spec = self._spec
        try:
            needs = await self._needs()
            self._expressions = JobExpressions(spec, self._layout, runner=self._runner_id, needs=needs)
            if self._expressions.is_pipeline_job and not self._expressions.job_holds(spec.condition):
                return self._skipped()
            secrets, optional = await self._secrets()
        except Refused as refused:
            code = "BAD_SPEC" if refused.code == "bad_spec" else "SECRETS"
            return self._failed(code, f"{'if' if code == 'BAD_SPEC' else 'secrets'}: {refused.message}")
        except Unreachable as error:
            return self._failed("RUNNER_STARTUP", f"the job cannot begin: {error}")
        self._log.add_secrets([*secrets.values(), *optional.values()])
        if self._expressions.is_pipeline_job:
            await asyncio.to_thread(self._make_folders)
            self._expressions = JobExpressions(
                spec, self._layout, runner=self._runner_id, needs=needs, secrets={**optional, **secrets}
            )
        stage = self._stage()
        steps = StepSequence(stage, secrets, go_on, left)
        working(steps.stop)
        try:
            tip = await self._begin_tree(stage, working)
            if spec.services:
                await self._start_services(left(), working)
            working(steps.stop)
            ended = await steps.run()
            if tip and ended.is_success:
                ended = await self._commit_tree(stage, ended, tip, left())
            if spec.rules and ended.is_success:
                ended = await RuleChecker(stage, steps, left).check(ended)
            self._is_failed = not ended.is_valid
        except Refused as refused:
            return self._failed(code_of(refused), refused.message)
        except (StepFailed, CellFailed, OSError) as failed:
            return self._failed(getattr(failed, "code", "") or "RUNNER_STARTUP", str(failed))
        finally:
            working(None)
        return await self._with_outputs(ended)

    async def _begin_tree(self, stage: JobContext, working: Callable[[Any], None]) -> str:
        """Have the job's tree, if it has one; the commit that it begins with."""
        tree, place = self._spec.tree, self._place
        if tree is None or place.worktrees is None or place.slot is None:
            return ""
        beginning = asyncio.create_task(prepare_tree(stage, place.worktrees, place.slot, tree))
        working(beginning.cancel)
        try:
            with self._log.section(PREPARE_TREE, "prepare the tree"):
                await asyncio.wait({beginning})
            if beginning.cancelled():
                raise JobStopped
            await asyncio.to_thread(trust_any_owner, self._layout.root, self._layout.relative(self._layout.home))
            return beginning.result().tip
        finally:
            beginning.cancel()
            await asyncio.gather(beginning, return_exceptions=True)

    async def _commit_tree(self, stage: JobContext, ended: JobResult, tip: str, left: float) -> JobResult:
        tree = self._spec.tree
        if tree is None or not tree.is_committed:
            return ended
        try:
            self._left = await commit_tree(stage, tree, tip, max(1.0, left))
        except NothingCommitted as error:
            self._log.write_line(f"tree: {error}")
            summary = self._log.masked_line(f"tree: {error}")
            return structs.replace(ended, exit=Exit(None, None, 0.0), error_code=TREE, summary=summary)
        return structs.replace(ended, head=self._left.head)

    def _make_folders(self) -> None:
        self._layout.create()
        event = self._expressions.github.get("event")
        if event is not None:
            write_file(self._layout.root, f"{self._layout.relative(self._layout.temp)}/{EVENT_FILE}", json.dumps(event))

    async def _start_services(self, left: float, working: Callable[[Any], None]) -> None:
        starting = asyncio.create_task(self._services.start(self._expressions, left))
        working(starting.cancel)
        try:
            await asyncio.wait({starting})
            if starting.cancelled():
                raise JobStopped
            self._expressions.job["services"] = starting.result()
        finally:
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)

    def _stage(self) -> JobContext:
        return JobContext(
            spec=self._spec,
            layout=self._layout,
            cell=self._cell,
            log=self._log,
            transfers=self._transfers,
            caches=self._caches,
            harvester=self._harvester,
            expressions=self._expressions,
            mirrors=self._mirrors,
            protocols=self._protocols,
        )

    async def _needs(self) -> dict[str, NeededJob]:
        """How the jobs ended that this one needs; asked only where an expression can."""
        if not self._spec.needs:
            return {}
        return await self._transfers.call(lambda client, lease_id: client.needs(lease_id))

    async def _secrets(self) -> tuple[dict[str, str], dict[str, str]]:
        """Those that the job must have, and those that it may."""
        spec = self._spec
        optional: dict[str, str] = {}
        if spec.optional_secrets:
            optional = await self._transfers.call(lambda client, lease_id: client.optional_secrets(lease_id))
        try:
            return (await self._transfers.secrets() if spec.secrets else {}), optional
        except Refused as refused:
            if refused.code != "untrusted" or not self._expressions.is_pipeline_job:
                raise
            self._log.write_line("this run is not trusted: the job goes on without its secrets")
            return {}, optional

    def _skipped(self) -> JobResult:
        why = self._spec.condition or "success()"
        self._log.write_line(f"the job is skipped: {why}")
        summary = self._log.masked_line(f"skipped: {why}")
        return JobResult(exit=Exit(0, None, 0.0), steps=[], summary=summary, is_skipped=True)

    def _failed(self, code: str, why: str) -> JobResult:
        self._log.write_line(why)
        return JobResult(exit=Exit(None, None, 0.0), steps=[], error_code=code, summary=self._log.masked_line(why))

    async def _with_outputs(self, ended: JobResult) -> JobResult:
        """The job's outputs, also of one that failed: they say what was known by then."""
        if not self._spec.outputs:
            return ended
        try:
            outputs = await asyncio.to_thread(self._expressions.texts, self._spec.outputs)
        except Refused as refused:
            why = f"outputs: {refused.message}"
            self._log.write_line(why)
            if not ended.is_success:
                return ended
            return structs.replace(ended, error_code="BAD_SPEC", summary=self._log.masked_line(why))
        return structs.replace(ended, outputs=outputs)

    async def bring_back(self, ended: JobResult) -> JobResult:
        """What the job left behind, also of one that failed; its caches only if nothing went wrong at all."""
        spec, brought = self._spec, self._harvester.collected
        if ended.is_skipped:
            return ended
        has_more = bool(spec.artifacts or spec.output_path or spec.caches or self._caches.has_unsaved)
        try:
            if ended.is_success and self._left is not None:
                await upload_bundle(self._stage(), self._left, brought)
            if has_more:
                with self._log.section(UPLOAD_ARTIFACTS, "upload artifacts"):
                    await self._harvester.collect(structs.replace(spec, artifacts=self._filled(spec.artifacts)))
                    if ended.is_valid and not brought.error_code:
                        await self._caches.save()
            if ended.outputs and not brought.error_code:
                self._harvester.add_outputs(ended.outputs)
        except JobStopped:
            pass  # What is kept by now is kept.
        if ended.is_success and brought.error_code:
            ended = structs.replace(ended, error_code=brought.error_code, summary=brought.summary)
        return structs.replace(ended, brought=brought)

    def _filled(self, rules: list[ArtifactRule]) -> list[ArtifactRule]:
        """Rules with the values of their expressions."""
        found: list[ArtifactRule] = []
        for rule in rules:
            try:
                found.append(structs.replace(rule, path_glob=self._expressions.text(rule.path_glob)))
            except Refused as refused:
                self._harvester.collected.fail("ARTIFACTS", self._log.masked_line(f"artifacts: {refused.message}"))
        return found

    async def close(self) -> None:
        """Take the services away."""
        await self._services.close(is_failed=self._is_failed)
