"""The steps of one job, one after the other: whether each runs, what it is told, and what it said.

A failure does not end them at once: those that ask for it run nevertheless. The job's result is that of the first step
that failed and was not allowed to. A cancel, a lost lease and the end of the job's time do end everything at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

from msgspec import structs

from deltaci.core.errors import Refused
from deltaci.protocol.messages import CacheRule, Step, StepResult
from deltaci.runner.actions.context import BuiltInStep, JobContext, StepFailed
from deltaci.runner.actions.registry import BUILT_INS
from deltaci.runner.client import Unreachable
from deltaci.runner.log.sections import RESTORE_CACHES
from deltaci.runner.result import JobResult
from deltaci.runner.sandbox import CellFailed, Exit
from deltaci.runner.steps.command_files import CommandFiles, StepReport
from deltaci.runner.steps.expressions import FAILURE, SKIPPED, SUCCESS
from deltaci.runner.steps.shells import start
from deltaci.runner.steps.workflow_commands import WorkflowCommandFilter
from deltaci.runner.transfers import JobStopped
from deltaci.runner.workspace.layout import resolve_workdir

FAILED: Final = 1  # What a step of the runner's own ends with when it fails.
PATH_SECONDS: Final = 30.0

T = TypeVar("T")
GoOn = Callable[[int, str], Awaitable[bool]]
"""Whether the step of this place and name may begin: the lease stands, and nobody wants it to stop."""


class StepSequence:
    """All of them."""

    def __init__(self, stage: JobContext, secrets: dict[str, str], go_on: GoOn, left: Callable[[], float]) -> None:
        self._stage = stage
        self._spec, self._expressions, self._log = stage.spec, stage.expressions, stage.log
        self._secrets = secrets
        self._go_on = go_on
        self._left = left
        self._steps = [each if isinstance(each, Step) else Step(run=each) for each in self._spec.steps]
        self._results: list[StepResult] = []
        self._last = Exit(0, None, 0.0)
        self._failure: JobResult | None = None
        self._base: dict[str, str] = {}
        self._path = ""
        self._has_caches = False
        self._working: asyncio.Task[dict[str, str]] | None = None

    async def run(self) -> JobResult:
        """Do them all."""
        expressions = self._expressions
        if expressions.is_pipeline_job:
            self._base = expressions.variables()
            try:
                expressions.env = await self._think(expressions.texts, self._spec.env, {})
            except Refused as refused:
                return self._refused(f"env: {refused.message}", refused)
        else:
            expressions.env = dict(self._spec.env)
        for index, step in enumerate(self._steps):
            if self._failure is not None and not self._goes_on(index):
                break
            if not await self._one(index, step):
                break
        if self._failure is not None:
            return structs.replace(self._failure, steps=self._results)
        ran = sum(not each.is_skipped for each in self._results)
        well = structs.replace(self._last, exit_code=0, signal=None, is_timed_out=False)
        return JobResult(exit=well, steps=self._results, summary=f"{ran} steps succeeded")

    def _goes_on(self, index: int) -> bool:
        """Whether one of the steps from here on may run after a failure."""
        if self._left() <= 0 or (self._failure is not None and self._failure.error_code == "RUNNER_STARTUP"):
            return False
        return self._expressions.is_pipeline_job or any(step.condition for step in self._steps[index:])

    async def _one(self, index: int, step: Step) -> bool:
        """One step; whether there may be another."""
        name = step.name or step.run.strip().partition("\n")[0] or f"{step.uses}"
        try:
            env = {**self._expressions.env, **self._stage.set_env}
            name = await self._think(self._expressions.text, name, env)
            is_wanted = not self._is_conditional(step) or await self._think(
                self._expressions.holds, step.condition, env
            )
        except Refused as refused:
            name = self._log.masked_line(name)
            self._log.write_line(f"{name}: {refused.message}")
            return self._fail(index, step, name, Exit(None, None, 0.0), refused.message, "BAD_SPEC")
        name = self._log.masked_line(name)
        if not is_wanted:
            self._skip(index, step, name)
            return True
        if not await self._go_on(index, name):
            return False
        await self._restore_caches(step)
        self._log.begin_section(index, name)
        outputs: dict[str, str] = {}
        code = why = ""
        try:
            ended, outputs, why = await self._do(index, step)
        except Refused as refused:
            ended, why, code = Exit(None, None, 0.0), refused.message, code_of(refused)
        except StepFailed as failed:
            ended, why, code = Exit(FAILED, None, 0.0), str(failed), failed.code
        except (CellFailed, OSError) as error:
            ended, why, code = Exit(None, None, 0.0), str(error), "RUNNER_STARTUP"
        if why:
            self._log.write_line(why)
        self._log.end_section(index, ended.exit_code, ended.seconds)
        self._last = ended
        if ended.exit_code == 0 and not ended.is_timed_out and not code:
            self._results.append(self._result(index, name, ended))
            self._expressions.told(step.id, SUCCESS, SUCCESS, outputs)
            return True
        return self._fail(index, step, name, ended, why, "TIMED_OUT" if ended.is_timed_out else code, outputs)

    def _is_conditional(self, step: Step) -> bool:
        return self._expressions.is_pipeline_job or bool(step.condition)

    async def _think(self, work: Callable[..., T], *words: Any) -> T:
        """Evaluate something; files may have to be read for that, so not on the loop."""
        if not self._expressions.is_pipeline_job:
            return work(*words)
        return await asyncio.to_thread(work, *words)

    def _skip(self, index: int, step: Step, name: str) -> None:
        why = step.condition or "success()"
        self._log.write_line(f"skipped: {name} (if: {why})")
        result = StepResult(index=index, name=name, exit_code=None, seconds=0.0, is_skipped=True, why=why[:2000])
        self._results.append(result)
        self._expressions.told(step.id, SKIPPED, SKIPPED, {})

    def _result(self, index: int, name: str, ended: Exit, why: str = "") -> StepResult:
        return StepResult(
            index=index,
            name=name,
            exit_code=ended.exit_code,
            seconds=round(ended.seconds, 3),
            is_timed_out=ended.is_timed_out,
            why=self._log.masked_line(why),
        )

    def _fail(
        self,
        index: int,
        step: Step,
        name: str,
        ended: Exit,
        why: str,
        code: str,
        outputs: dict[str, str] | None = None,
    ) -> bool:
        """It failed; whether that is the end of the job shows when the next one is looked at."""
        result = self._result(index, name, ended, why)
        # What this runner cannot do is no failure of the step.
        is_its_own = code != "RUNNER_STARTUP" if self._expressions.is_pipeline_job else code in ("", "TIMED_OUT")
        is_tolerated = step.continue_on_error and is_its_own
        self._results.append(structs.replace(result, is_tolerated=is_tolerated))
        self._expressions.told(step.id, FAILURE, SUCCESS if is_tolerated else FAILURE, outputs or {})
        if not is_tolerated:
            self._expressions.status = FAILURE
            if self._failure is None:
                summary = self._log.masked_line(f"{name}: {why}") if why else told(name, ended)
                self._failure = JobResult(exit=ended, steps=[], error_code=code, summary=summary)
        return True

    def _refused(self, why: str, refused: Refused) -> JobResult:
        self._log.write_line(why)
        code = code_of(refused)
        return JobResult(
            exit=Exit(None, None, 0.0), steps=self._results, error_code=code, summary=self._log.masked_line(why)
        )

    async def _restore_caches(self, step: Step) -> None:
        """Once, before the first step that is no checkout: keys may depend on the sources."""
        if self._has_caches or step.uses == "checkout" or not self._spec.caches:
            return
        self._has_caches = True
        with self._log.section(RESTORE_CACHES, "restore caches"):
            await self._stage.caches.restore(await self._think(self._filled, self._spec.caches))

    def _filled(self, rules: list[CacheRule]) -> list[CacheRule]:
        """Rules with the values of their expressions; one that has none is left out."""
        found: list[CacheRule] = []
        text = self._expressions.text
        for rule in rules:
            try:
                found.append(structs.replace(rule, key=text(rule.key), paths=[text(path) for path in rule.paths]))
            except Refused as refused:
                self._log.write_line(f"cache {rule.key!r}: {refused.message}; going on without it")
        return found

    # -- one step

    async def _do(self, index: int, step: Step) -> tuple[Exit, dict[str, str], str]:
        """How it ended, its outputs, and what is wrong beside its exit code."""
        expressions, stage = self._expressions, self._stage
        outer = {**expressions.env, **stage.set_env}
        own = await self._think(expressions.texts, step.env, outer) if expressions.is_pipeline_job else step.env
        env = {**self._base, **outer, **own, **self._secrets}
        left = max(0.1, self._left())
        timeout = min(left, step.timeout_seconds or left)
        if step.uses is not None:
            stage.env, stage.timeout_seconds = env, timeout
            inputs = await self._think(expressions.inputs, step.inputs, {**outer, **own})
            return await self._built_in(BUILT_INS[step.uses], inputs, timeout)
        workdir = resolve_workdir(
            stage.layout.workspace, await self._think(expressions.text, step.workdir or self._spec.workdir)
        )
        script = await self._think(expressions.text, step.run, {**outer, **own})
        shell = await self._think(expressions.text, step.shell, {**outer, **own})
        begun = start(shell, script, stage.layout, index)
        if not expressions.is_pipeline_job:
            ended = await stage.cell.run(
                begun.script,
                env=env,
                workdir=workdir,
                timeout_seconds=timeout,
                on_output=self._log.write_output,
                shell=begun.shell,
            )
            return ended, {}, ""
        files = CommandFiles(stage.layout, index)
        env |= files.make()
        if stage.paths:
            env["PATH"] = ":".join([*stage.paths, env.get("PATH") or await self._cells_path()])
        spoken = WorkflowCommandFilter(self._log.write_output, self._log.add_secrets)
        ended = await stage.cell.run(
            begun.script,
            env=env,
            workdir=workdir,
            timeout_seconds=timeout,
            on_output=spoken.hear,
            shell=begun.shell,
        )
        spoken.end()
        try:
            said = await asyncio.to_thread(files.read)
        except Refused as refused:
            code = ended.exit_code or FAILED
            return structs.replace(ended, exit_code=code), spoken.outputs, refused.message
        self._heed(said)
        return ended, {**spoken.outputs, **said.outputs}, ""

    async def run_rule(self, script: str, name: str, hear: Callable[[bytes], None] | None = None) -> Exit:
        """A command that is no step, in the environment that the last one left; `hear` is told what it prints, too."""
        if not await self._go_on(len(self._steps), name):
            raise JobStopped

        def on_output(data: bytes) -> None:
            self._log.write_output(data)
            if hear is not None:
                hear(data)

        env = {**self._base, **self._expressions.env, **self._stage.set_env, **self._secrets}
        if self._stage.paths:
            env["PATH"] = ":".join([*self._stage.paths, env.get("PATH") or await self._cells_path()])
        layout = self._stage.layout
        return await self._stage.cell.run(
            script,
            env=env,
            workdir=resolve_workdir(layout.workspace, await self._think(self._expressions.text, self._spec.workdir)),
            timeout_seconds=max(0.1, self._left()),
            on_output=on_output,
        )

    def _heed(self, said: StepReport) -> None:
        """What a step wants for those after it."""
        stage = self._stage
        stage.set_env = {**stage.set_env, **said.env}
        stage.paths = [*reversed(said.paths), *stage.paths]
        if said.summary:
            for line in said.summary.splitlines():
                self._log.write_line(f"summary: {line}")

    async def _cells_path(self) -> str:
        """Where the cell looks for programs; an image may have its own idea of it."""
        if not self._path:
            heard = bytearray()
            await self._stage.cell.run(
                'printf %s "$PATH"',
                env={},
                workdir=self._stage.layout.workspace,
                timeout_seconds=PATH_SECONDS,
                on_output=heard.extend,
                shell=("sh", "-c"),
            )
            self._path = heard.decode("utf-8", "replace")
        return self._path

    async def _built_in(
        self, work: BuiltInStep, inputs: dict[str, str], timeout: float
    ) -> tuple[Exit, dict[str, str], str]:
        clock = asyncio.get_running_loop().time
        began = clock()
        working = self._working = asyncio.create_task(_awaited(work(self._stage, inputs)))
        try:
            await asyncio.wait({working}, timeout=timeout)
            if not working.done():
                return Exit(None, None, clock() - began, is_timed_out=True), {}, ""
            if working.cancelled():
                raise JobStopped
            return Exit(0, None, clock() - began), working.result(), ""
        except Unreachable as error:
            raise StepFailed(str(error), "RUNNER_STARTUP") from error
        finally:
            self._working = None
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)

    def stop(self) -> None:
        """Nobody wants them any more: what the runner itself does ends here; what the job does, its cell ends."""
        if self._working is not None:
            self._working.cancel()


async def _awaited(work: Awaitable[T]) -> T:
    return await work


def told(name: str, last: Exit) -> str:
    """How a step ended, in one line."""
    if last.is_timed_out:
        return f"{name}: took too long and was stopped after {last.seconds:.1f} s"
    if last.signal is not None:
        return f"{name}: killed by signal {last.signal}"
    return f"{name}: exit code {last.exit_code}"


def code_of(refused: Refused) -> str:
    """Whose fault it is that it did not run: the job's, or this runner's, so that another may try."""
    return "BAD_SPEC" if refused.code == "bad_spec" else "RUNNER_STARTUP"
