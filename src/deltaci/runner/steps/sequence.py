"""Runs the steps of one job in order: conditions, environment, shells or actions, and reports to the runner.

After a failed step, later steps run only if their conditions say so. The result of the job is that of the first step
that failed without `continue-on-error`. A cancel, a lost lease and the job's timeout end all steps at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

from msgspec import structs

from deltaci.core.errors import Refused, Unreachable
from deltaci.protocol.messages import CacheRule, Step, StepResult
from deltaci.runner.actions.context import Action, JobContext, StepFailed
from deltaci.runner.actions.registry import ACTIONS
from deltaci.runner.log.sections import RESTORE_CACHES
from deltaci.runner.result import STARTUP_CODES, JobResult, error_code_of
from deltaci.runner.sandbox import CellFailed, Exit
from deltaci.runner.steps.command_files import CommandFiles, StepReport
from deltaci.runner.steps.expressions import FAILURE, SKIPPED, SUCCESS
from deltaci.runner.steps.shells import shell_command
from deltaci.runner.steps.workflow_commands import WorkflowCommandInterpreter
from deltaci.runner.transfers import JobStopped
from deltaci.runner.workspace.layout import resolve_workdir

FAILED: Final = 1  # The exit code of a failed action.
PATH_SECONDS: Final = 30.0

T = TypeVar("T")
MayStart = Callable[[int, str], Awaitable[bool]]
"""Returns whether the step with this index and name may start: the lease is valid and the job is not stopped."""


class StepSequence:
    """Runs the steps of one job."""

    def __init__(
        self, job: JobContext, secrets: dict[str, str], may_start: MayStart, seconds_left: Callable[[], float]
    ) -> None:
        self._job = job
        self._spec, self._expressions, self._log = job.spec, job.expressions, job.log
        self._secrets = secrets
        self._may_start = may_start
        self._seconds_left = seconds_left
        self._steps = [step if isinstance(step, Step) else Step(run=step) for step in self._spec.steps]
        self._results: list[StepResult] = []
        self._last_exit = Exit(0, None, 0.0)
        self._failure: JobResult | None = None
        self._pipeline_variables: dict[str, str] = {}
        self._cell_path = ""
        self._has_restored_caches = False
        self._action_task: asyncio.Task[dict[str, str]] | None = None

    async def run(self) -> JobResult:
        """Run all steps in order and return the result of the job."""
        expressions = self._expressions
        if expressions.is_pipeline_job:
            self._pipeline_variables = expressions.variables()
            try:
                expressions.env = await self._evaluate(expressions.interpolate_all, self._spec.env, {})
            except Refused as refused:
                return self._refused_result(f"env: {refused.message}", refused)
        else:
            expressions.env = dict(self._spec.env)
        for index, step in enumerate(self._steps):
            if self._failure is not None and not self._may_run_after_failure(index):
                break
            if not await self._run_step(index, step):
                break
        if self._failure is not None:
            return structs.replace(self._failure, steps=self._results)
        run_count = sum(not result.is_skipped for result in self._results)
        successful_exit = structs.replace(self._last_exit, exit_code=0, signal=None, is_timed_out=False)
        return JobResult(exit=successful_exit, steps=self._results, summary=f"{run_count} steps succeeded")

    def _may_run_after_failure(self, index: int) -> bool:
        """Return whether any step from this index on could run although a step has failed."""
        if self._seconds_left() <= 0 or (self._failure is not None and self._failure.error_code in STARTUP_CODES):
            return False
        return self._expressions.is_pipeline_job or any(step.condition for step in self._steps[index:])

    async def _run_step(self, step_index: int, step: Step) -> bool:
        """Run or skip one step and record its result. Return False if no further step may start."""
        step_name = step.name or step.run.strip().partition("\n")[0] or f"{step.uses}"
        try:
            env = {**self._expressions.env, **self._job.set_env}
            step_name = await self._evaluate(self._expressions.interpolate, step_name, env)
            may_run = not self._is_conditional(step) or await self._evaluate(
                self._expressions.step_condition_holds, step.condition, env
            )
        except Refused as refused:
            step_name = self._log.masked_line(step_name)
            self._log.write_line(f"{step_name}: {refused.message}")
            return self._fail(step_index, step, step_name, Exit(None, None, 0.0), refused.message, "BAD_SPEC")
        step_name = self._log.masked_line(step_name)
        if not may_run:
            self._skip(step_index, step, step_name)
            return True
        if not await self._may_start(step_index, step_name):
            return False
        await self._restore_caches(step)
        self._log.begin_section(step_index, step_name)
        value_by_output: dict[str, str] = {}
        error_code = reason = ""
        try:
            step_exit, value_by_output, reason = await self._execute(step_index, step)
        except Refused as refused:
            step_exit, reason, error_code = Exit(None, None, 0.0), refused.message, error_code_of(refused)
        except StepFailed as failed:
            step_exit, reason, error_code = Exit(FAILED, None, 0.0), str(failed), failed.code
        except (CellFailed, OSError) as error:
            step_exit, reason = Exit(None, None, 0.0), str(error)
            error_code = error.code if isinstance(error, CellFailed) else "RUNNER_STARTUP"
        if reason:
            self._log.write_line(reason)
        self._log.end_section(step_index, step_exit.exit_code, step_exit.seconds)
        self._last_exit = step_exit
        if step_exit.exit_code == 0 and not step_exit.is_timed_out and not error_code:
            self._results.append(self._step_result(step_index, step_name, step_exit))
            self._expressions.record_step(step.id, SUCCESS, SUCCESS, value_by_output)
            return True
        return self._fail(
            step_index,
            step,
            step_name,
            step_exit,
            reason,
            "TIMED_OUT" if step_exit.is_timed_out else error_code,
            value_by_output,
        )

    def _is_conditional(self, step: Step) -> bool:
        """Return whether the step's condition must be evaluated: in a pipeline job always, else only if it has one."""
        return self._expressions.is_pipeline_job or bool(step.condition)

    async def _evaluate(self, function: Callable[..., T], *args: Any) -> T:
        """Call a function that evaluates expressions in a thread, as `hashFiles` reads files, and return its result."""
        if not self._expressions.is_pipeline_job:
            return function(*args)
        return await asyncio.to_thread(function, *args)

    def _skip(self, step_index: int, step: Step, step_name: str) -> None:
        """Record that the condition of a step was false."""
        condition = step.condition or "success()"
        self._log.write_line(f"skipped: {step_name} (if: {condition})")
        step_result = StepResult(
            index=step_index, name=step_name, exit_code=None, seconds=0.0, is_skipped=True, why=condition[:2000]
        )
        self._results.append(step_result)
        self._expressions.record_step(step.id, SKIPPED, SKIPPED, {})

    def _step_result(self, step_index: int, step_name: str, step_exit: Exit, reason: str = "") -> StepResult:
        """Return the result of a step that ended."""
        return StepResult(
            index=step_index,
            name=step_name,
            exit_code=step_exit.exit_code,
            seconds=round(step_exit.seconds, 3),
            is_timed_out=step_exit.is_timed_out,
            why=self._log.masked_line(reason),
        )

    def _fail(
        self,
        step_index: int,
        step: Step,
        step_name: str,
        step_exit: Exit,
        reason: str,
        error_code: str,
        value_by_output: dict[str, str] | None = None,
    ) -> bool:
        """Record a failed step. Always return True, as the conditions of the later steps decide whether they run."""
        step_result = self._step_result(step_index, step_name, step_exit, reason)
        # `continue-on-error` does not cover a failure of the runner itself.
        is_step_failure = (
            error_code not in STARTUP_CODES if self._expressions.is_pipeline_job else error_code in ("", "TIMED_OUT")
        )
        is_tolerated = step.continue_on_error and is_step_failure
        self._results.append(structs.replace(step_result, is_tolerated=is_tolerated))
        self._expressions.record_step(step.id, FAILURE, SUCCESS if is_tolerated else FAILURE, value_by_output or {})
        if not is_tolerated:
            self._expressions.status = FAILURE
            if self._failure is None:
                summary = (
                    self._log.masked_line(f"{step_name}: {reason}") if reason else describe_exit(step_name, step_exit)
                )
                # Later steps, which clean up or report, print nothing about the cause.
                self._failure = JobResult(
                    exit=step_exit, steps=[], error_code=error_code, summary=summary, log_tail=self._log.tail()
                )
        return True

    def _refused_result(self, summary: str, refused: Refused) -> JobResult:
        """Return the result of a job whose variables cannot be evaluated, and log the reason."""
        self._log.write_line(summary)
        error_code = error_code_of(refused)
        return JobResult(
            exit=Exit(None, None, 0.0),
            steps=self._results,
            error_code=error_code,
            summary=self._log.masked_line(summary),
        )

    async def _restore_caches(self, step: Step) -> None:
        """Restore the caches once, before the first step other than a checkout, as keys may depend on the sources."""
        if self._has_restored_caches or step.uses == "checkout" or not self._spec.caches:
            return
        self._has_restored_caches = True
        with self._log.section(RESTORE_CACHES, "restore caches"):
            await self._job.caches.restore(await self._evaluate(self._interpolated_rules, self._spec.caches))

    def _interpolated_rules(self, rules: list[CacheRule]) -> list[CacheRule]:
        """Return the cache rules with the expressions in keys and paths evaluated, without rules that fail."""
        interpolated_rules: list[CacheRule] = []
        interpolate = self._expressions.interpolate
        for rule in rules:
            try:
                cache_key, cached_paths = interpolate(rule.key), [interpolate(path) for path in rule.paths]
                interpolated_rules.append(structs.replace(rule, key=cache_key, paths=cached_paths))
            except Refused as refused:
                self._log.write_line(f"cache {rule.key!r}: {refused.message}; continuing without it")
        return interpolated_rules

    # -- one step

    async def _execute(self, step_index: int, step: Step) -> tuple[Exit, dict[str, str], str]:
        """Execute a step. Return its exit, its outputs, and the error in its command files; empty if there is none."""
        expressions, job = self._expressions, self._job
        job_env = {**expressions.env, **job.set_env}
        step_env = step.env
        if expressions.is_pipeline_job:
            step_env = await self._evaluate(expressions.interpolate_all, step.env, job_env)
        env = {**self._pipeline_variables, **job_env, **step_env, **self._secrets}
        seconds_left = max(0.1, self._seconds_left())
        timeout_seconds = min(seconds_left, step.timeout_seconds or seconds_left)
        if step.uses is not None:
            job.env, job.timeout_seconds = env, timeout_seconds
            value_by_input = await self._evaluate(expressions.interpolate_inputs, step.inputs, {**job_env, **step_env})
            return await self._run_action(ACTIONS[step.uses], value_by_input, timeout_seconds)
        step_folder = await self._evaluate(expressions.interpolate, step.workdir or self._spec.workdir)
        workdir = resolve_workdir(job.layout.workspace, step_folder)
        script = await self._evaluate(expressions.interpolate, step.run, {**job_env, **step_env})
        shell = await self._evaluate(expressions.interpolate, step.shell, {**job_env, **step_env})
        command = shell_command(shell, script, job.layout, step_index)
        if not expressions.is_pipeline_job:
            step_exit = await job.cell.run(
                command.script,
                env=env,
                workdir=workdir,
                timeout_seconds=timeout_seconds,
                on_output=self._log.write_output,
                shell=command.shell,
            )
            return step_exit, {}, ""
        files = CommandFiles(job.layout, step_index)
        env |= files.create()
        if job.paths:
            env["PATH"] = ":".join([*job.paths, env.get("PATH") or await self._default_path()])
        interpreter = WorkflowCommandInterpreter(self._log.write_output, self._log.add_secrets)
        step_exit = await job.cell.run(
            command.script,
            env=env,
            workdir=workdir,
            timeout_seconds=timeout_seconds,
            on_output=interpreter.feed,
            shell=command.shell,
        )
        interpreter.finish()
        try:
            report = await asyncio.to_thread(files.read)
        except Refused as refused:
            error_code = step_exit.exit_code or FAILED
            return structs.replace(step_exit, exit_code=error_code), interpreter.outputs, refused.message
        self._apply_report(report)
        return step_exit, {**interpreter.outputs, **report.outputs}, ""

    async def run_rule(
        self, command: str, rule_name: str, on_rule_output: Callable[[bytes], None] | None = None
    ) -> Exit:
        """Run the command of a validation rule with the variables that the steps have set. Return its exit.

        Raise `JobStopped` if the job must stop.
        """
        if not await self._may_start(len(self._steps), rule_name):
            raise JobStopped

        def on_output(chunk: bytes) -> None:
            self._log.write_output(chunk)
            if on_rule_output is not None:
                on_rule_output(chunk)

        env = {**self._pipeline_variables, **self._expressions.env, **self._job.set_env, **self._secrets}
        if self._job.paths:
            env["PATH"] = ":".join([*self._job.paths, env.get("PATH") or await self._default_path()])
        layout = self._job.layout
        return await self._job.cell.run(
            command,
            env=env,
            workdir=resolve_workdir(
                layout.workspace, await self._evaluate(self._expressions.interpolate, self._spec.workdir)
            ),
            timeout_seconds=max(0.1, self._seconds_left()),
            on_output=on_output,
        )

    def _apply_report(self, report: StepReport) -> None:
        """Set a step's variables and PATH entries for later steps, and write its summary to the log."""
        job = self._job
        job.set_env = {**job.set_env, **report.env}
        job.paths = [*reversed(report.paths), *job.paths]
        if report.summary:
            for line in report.summary.splitlines():
                self._log.write_line(f"summary: {line}")

    async def _default_path(self) -> str:
        """Return the PATH inside the cell, which a container image may set."""
        if not self._cell_path:
            printed_bytes = bytearray()
            await self._job.cell.run(
                'printf %s "$PATH"',
                env={},
                workdir=self._job.layout.workspace,
                timeout_seconds=PATH_SECONDS,
                on_output=printed_bytes.extend,
                shell=("sh", "-c"),
            )
            self._cell_path = printed_bytes.decode("utf-8", "replace")
        return self._cell_path

    async def _run_action(
        self, action: Action, value_by_input: dict[str, str], timeout_seconds: float
    ) -> tuple[Exit, dict[str, str], str]:
        """Run an action. Return its exit, which may say that it timed out, its outputs and an empty error.

        Raise `StepFailed` if it fails, `JobStopped` if it was cancelled.
        """
        monotonic_time = asyncio.get_running_loop().time
        started_at = monotonic_time()
        action_task = self._action_task = asyncio.create_task(_awaited(action(self._job, value_by_input)))
        try:
            await asyncio.wait({action_task}, timeout=timeout_seconds)
            if not action_task.done():
                return Exit(None, None, monotonic_time() - started_at, is_timed_out=True), {}, ""
            if action_task.cancelled():
                raise JobStopped
            return Exit(0, None, monotonic_time() - started_at), action_task.result(), ""
        except Unreachable as error:
            raise StepFailed(str(error), "RUNNER_STARTUP") from error
        finally:
            self._action_task = None
            action_task.cancel()
            await asyncio.gather(action_task, return_exceptions=True)

    def stop(self) -> None:
        """Cancel the running action, if any. A running command is stopped by stopping the cell."""
        if self._action_task is not None:
            self._action_task.cancel()


async def _awaited(awaitable: Awaitable[T]) -> T:
    return await awaitable


def describe_exit(step_name: str, step_exit: Exit) -> str:
    """Return one line that says how a step failed: by timeout, signal or exit code."""
    if step_exit.is_timed_out:
        return f"{step_name}: took too long and was stopped after {step_exit.seconds:.1f} s"
    if step_exit.signal is not None:
        return f"{step_name}: killed by signal {step_exit.signal}"
    return f"{step_name}: exit code {step_exit.exit_code}"
