"""The execution of one job, between its lease and its result.

In this order: evaluate the job's condition, fetch its secrets, prepare its worktree, start its services, run its steps,
commit the worktree, check its validation rules, evaluate its outputs; then upload artifacts, reports and caches.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

from msgspec import structs

from deltaci.core.errors import Refused, Unreachable
from deltaci.protocol.messages import ArtifactRule, JobSpec
from deltaci.protocol.responses import NeededJob
from deltaci.runner.actions.context import JobContext, StepFailed
from deltaci.runner.log.job_log import JobLog
from deltaci.runner.log.sections import PREPARE_TREE, UPLOAD_ARTIFACTS
from deltaci.runner.result import JobResult, error_code_of
from deltaci.runner.sandbox import Cell, CellFailed, Exit
from deltaci.runner.sandbox.cell_pool import JobDir
from deltaci.runner.steps.expressions import EVENT_FILE, JobExpressions
from deltaci.runner.steps.sequence import MayStart, StepSequence
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
    """Executes one job in its cell, from its secrets to its uploads. Call `close` after the cell is closed."""

    def __init__(
        self,
        spec: JobSpec,
        job_dir: JobDir,
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
        self._job_dir = job_dir
        self._layout = layout_for(spec, job_dir.workspace, job_dir.slot.path if job_dir.slot is not None else None)
        self._caches = Caches(transfers, self._layout, job_dir.folder, log)
        self._collector = OutputCollector(transfers, self._layout.workspace, log)
        self._services = ServiceContainers(spec, cell, log)
        self._cell = cell
        self._mirrors = job_dir.folder.parent / "mirrors"
        self._expressions = JobExpressions(spec, self._layout, runner_name=runner_id)
        self._is_failed = False
        self._worktree_commits: CommittedTree | None = None

    async def run(
        self, may_start: MayStart, seconds_left: Callable[[], float], set_stop: Callable[[Any], None]
    ) -> JobResult:
        """Run the job up to its last validation rule, evaluate its outputs and return the result.

        `set_stop` is called with a function that stops what the runner itself currently does for the job, or with None.
        Raise `JobStopped` if the job must stop.
        """
        spec = self._spec
        try:
            needs = await self._fetch_needs()
            self._expressions = JobExpressions(spec, self._layout, runner_name=self._runner_id, needs=needs)
            if self._expressions.is_pipeline_job and not self._expressions.job_condition_holds(spec.condition):
                return self._skipped_result()
            secrets, optional_secrets = await self._fetch_secrets()
        except Refused as refused:
            code = "BAD_SPEC" if refused.code == "bad_spec" else "SECRETS"
            return self._failed_result(code, f"{'if' if code == 'BAD_SPEC' else 'secrets'}: {refused.message}")
        except Unreachable as error:
            return self._failed_result("RUNNER_STARTUP", f"the job cannot start: {error}")
        self._log.add_secrets([*secrets.values(), *optional_secrets.values()])
        if self._expressions.is_pipeline_job:
            await asyncio.to_thread(self._make_folders)
            self._expressions = JobExpressions(
                spec, self._layout, runner_name=self._runner_id, needs=needs, secrets={**optional_secrets, **secrets}
            )
        job_context = self._job_context()
        steps = StepSequence(job_context, secrets, may_start, seconds_left)
        set_stop(steps.stop)
        try:
            tip = await self._prepare_worktree(job_context, set_stop)
            if spec.services:
                await self._start_services(seconds_left(), set_stop)
            set_stop(steps.stop)
            result = await steps.run()
            if tip and result.is_success:
                result = await self._commit_worktree(job_context, result, tip, seconds_left())
            if spec.rules and result.is_success:
                result = await RuleChecker(job_context, steps, seconds_left).check(result)
            self._is_failed = not result.is_valid
        except Refused as refused:
            return self._failed_result(error_code_of(refused), refused.message)
        except (StepFailed, CellFailed, OSError) as failed:
            return self._failed_result(getattr(failed, "code", "") or "RUNNER_STARTUP", str(failed))
        finally:
            set_stop(None)
        return await self._with_outputs(result)

    async def _prepare_worktree(self, job: JobContext, set_stop: Callable[[Any], None]) -> str:
        """Prepare the job's worktree and return the commit that it starts with; empty if the job has no worktree."""
        worktree, job_dir = self._spec.tree, self._job_dir
        if worktree is None or job_dir.worktrees is None or job_dir.slot is None:
            return ""
        prepare_task = asyncio.create_task(prepare_tree(job, job_dir.worktrees, job_dir.slot, worktree))
        set_stop(prepare_task.cancel)
        try:
            with self._log.section(PREPARE_TREE, "prepare the tree"):
                await asyncio.wait({prepare_task})
            if prepare_task.cancelled():
                raise JobStopped
            await asyncio.to_thread(trust_any_owner, self._layout.root, self._layout.relative(self._layout.home))
            return prepare_task.result().tip
        finally:
            prepare_task.cancel()
            await asyncio.gather(prepare_task, return_exceptions=True)

    async def _commit_worktree(
        self, job: JobContext, result: JobResult, start_commit: str, seconds_left: float
    ) -> JobResult:
        """Commit and bundle what the steps changed. Return the result with the new head, or as failed if that fails."""
        worktree = self._spec.tree
        if worktree is None or not worktree.is_committed:
            return result
        try:
            self._worktree_commits = await commit_tree(job, worktree, start_commit, max(1.0, seconds_left))
        except NothingCommitted as error:
            self._log.write_line(f"tree: {error}")
            summary = self._log.masked_line(f"tree: {error}")
            return structs.replace(result, exit=Exit(None, None, 0.0), error_code=TREE, summary=summary)
        return structs.replace(result, head=self._worktree_commits.head)

    def _make_folders(self) -> None:
        """Create the folders of a pipeline job, and the file with the event that started its run."""
        self._layout.create()
        event_payload = self._expressions.github.get("event")
        if event_payload is not None:
            write_file(
                self._layout.root, f"{self._layout.relative(self._layout.temp)}/{EVENT_FILE}", json.dumps(event_payload)
            )

    async def _start_services(self, seconds_left: float, set_stop: Callable[[Any], None]) -> None:
        """Start the service containers and add them to the context `job`. Raise `JobStopped` if stopped meanwhile."""
        start_task = asyncio.create_task(self._services.start(self._expressions, seconds_left))
        set_stop(start_task.cancel)
        try:
            await asyncio.wait({start_task})
            if start_task.cancelled():
                raise JobStopped
            self._expressions.job["services"] = start_task.result()
        finally:
            start_task.cancel()
            await asyncio.gather(start_task, return_exceptions=True)

    def _job_context(self) -> JobContext:
        return JobContext(
            spec=self._spec,
            layout=self._layout,
            cell=self._cell,
            log=self._log,
            transfers=self._transfers,
            caches=self._caches,
            collector=self._collector,
            expressions=self._expressions,
            mirrors=self._mirrors,
            protocols=self._protocols,
        )

    async def _fetch_needs(self) -> dict[str, NeededJob]:
        """Return the results of the jobs in `needs`; empty, without a request, if there are none."""
        if not self._spec.needs:
            return {}
        return await self._transfers.call(lambda client, lease_id: client.needs(lease_id))

    async def _fetch_secrets(self) -> tuple[dict[str, str], dict[str, str]]:
        """Return the required and the optional secrets.

        A pipeline job of an untrusted run gets no required ones: the server refuses them.
        """
        spec = self._spec
        optional_secrets: dict[str, str] = {}
        if spec.optional_secrets:
            optional_secrets = await self._transfers.call(lambda client, lease_id: client.optional_secrets(lease_id))
        try:
            return (await self._transfers.secrets() if spec.secrets else {}), optional_secrets
        except Refused as refused:
            if refused.code != "untrusted" or not self._expressions.is_pipeline_job:
                raise
            self._log.write_line("this run is not trusted: the job continues without its secrets")
            return {}, optional_secrets

    def _skipped_result(self) -> JobResult:
        """Return the result of a job whose condition is false, and log the condition."""
        condition = self._spec.condition or "success()"
        self._log.write_line(f"the job is skipped: {condition}")
        summary = self._log.masked_line(f"skipped: {condition}")
        return JobResult(exit=Exit(0, None, 0.0), steps=[], summary=summary, is_skipped=True)

    def _failed_result(self, code: str, reason: str) -> JobResult:
        """Log the reason and return the result of a job that failed outside of its steps, with this error code."""
        self._log.write_line(reason)
        return JobResult(exit=Exit(None, None, 0.0), steps=[], error_code=code, summary=self._log.masked_line(reason))

    async def _with_outputs(self, result: JobResult) -> JobResult:
        """Return the result with the job's outputs, also for a failed job.

        A failed expression fails a job that had succeeded.
        """
        if not self._spec.outputs:
            return result
        try:
            outputs = await asyncio.to_thread(self._expressions.interpolate_all, self._spec.outputs)
        except Refused as refused:
            reason = f"outputs: {refused.message}"
            self._log.write_line(reason)
            if not result.is_success:
                return result
            return structs.replace(result, error_code="BAD_SPEC", summary=self._log.masked_line(reason))
        return structs.replace(result, outputs=outputs)

    async def collect(self, result: JobResult, report_upload: Callable[[], Awaitable[None]]) -> JobResult:
        """Upload new commits, artifacts and reports and return the result with them.

        Save caches only after a success. Await `report_upload` before the first upload, if there is anything to upload.
        """
        spec, collected = self._spec, self._collector.collected
        if result.is_skipped:
            return result
        has_uploads = bool(spec.artifacts or spec.output_path or spec.caches or self._caches.has_unsaved)
        is_committed = result.is_success and self._worktree_commits is not None
        try:
            if has_uploads or is_committed:
                await report_upload()
            if result.is_success and self._worktree_commits is not None:
                await upload_bundle(self._job_context(), self._worktree_commits, collected)
            if has_uploads:
                with self._log.section(UPLOAD_ARTIFACTS, "upload artifacts"):
                    await self._collector.collect(
                        structs.replace(spec, artifacts=self._interpolated_rules(spec.artifacts))
                    )
                    if result.is_valid and not collected.error_code:
                        await self._caches.save()
            if result.outputs and not collected.error_code:
                self._collector.add_outputs(result.outputs)
        except JobStopped:
            pass  # Report what has been uploaded so far.
        if result.is_success and collected.error_code:
            result = structs.replace(result, error_code=collected.error_code, summary=collected.summary)
        return structs.replace(result, collected=collected)

    def _interpolated_rules(self, rules: list[ArtifactRule]) -> list[ArtifactRule]:
        """Return the rules with the expressions in their paths evaluated.

        A rule whose expression fails is left out and fails the job.
        """
        interpolated_rules: list[ArtifactRule] = []
        for rule in rules:
            try:
                path_glob = self._expressions.interpolate(rule.path_glob)
                interpolated_rules.append(structs.replace(rule, path_glob=path_glob))
            except Refused as refused:
                self._collector.collected.fail("ARTIFACTS", self._log.masked_line(f"artifacts: {refused.message}"))
        return interpolated_rules

    async def close(self) -> None:
        """Remove the service containers; after a failure, log their last output first."""
        await self._services.close(is_failed=self._is_failed)
