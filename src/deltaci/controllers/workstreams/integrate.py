"""Integrate the commits of a task into the branch of its workstream, and validate the task."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from deltaci.controllers.workstreams import commits
from deltaci.controllers.workstreams.checks import mergeable, within
from deltaci.controllers.workstreams.context import WorkstreamContext, spec_of
from deltaci.controllers.workstreams.records import IntegratedTask, Workstream
from deltaci.core import job
from deltaci.core.attempt import Attempt
from deltaci.core.errors import Refused
from deltaci.core.job import Job
from deltaci.git.command import GitFailed
from deltaci.git.commit_builder import CommitBuilder, MergeConflict
from deltaci.pipeline.model import Rule
from deltaci.pipeline.parse.validation_rules import protocol_rules
from deltaci.protocol.job_spec import RuleResult
from deltaci.protocol.reports.rule_results import describe_result


class RuleViolationError(Exception):
    """A validation rule of a task or workstream failed; has the rule with its actual and expected result."""

    def __init__(self, result: RuleResult) -> None:
        super().__init__(describe_result(result))
        self.result = result


class TaskIntegrator:
    """Integrates the tasks of workstreams one after the other."""

    def __init__(self, context: WorkstreamContext) -> None:
        self._context = context

    async def join(self, stream: Workstream, task: Job) -> Workstream:
        """Validate a task that was executed. Asked again after a crash it says the same."""
        attempt = await self._context.store.find(task.attempt_id)
        if not isinstance(attempt, Attempt):
            raise GitFailed(f"attempt {task.attempt_id} cannot be read")
        place = str((attempt.report or {}).get("place") or "")
        details = ""
        try:
            stream = await self._joined(stream, task, attempt, place)
        except RuleViolationError as broken:
            await self.note(stream, task.spec.name, broken, place)
            details = str(broken)
        except GitFailed as error:
            if error.is_transient:
                raise
            details = f"its commits cannot be used: {error}"
        order = job.Validate(id=task.id, is_passed=not details, details=details)
        try:
            await self._context.engine.do(order)
        except Refused as refused:
            if refused.code != "wrong_state":  # Another server was faster, or it was cancelled.
                raise
        return stream

    async def note(self, stream: Workstream, task: str, broken: RuleViolationError, place: str = "") -> None:
        """Keep what did not hold of a task, or of the whole; and where its tree is, for people."""

        def noted(known: Workstream | None) -> Workstream | None:
            if known is None:
                return None
            return replace(known, verdicts={**known.verdicts, task: (broken.result,)}, place=place or known.place)

        await self._context.records.kept.update(stream.tenant, stream.id, noted)

    async def _joined(self, stream: Workstream, task: Job, attempt: Attempt, place: str) -> Workstream:
        if any(each.attempt_id == attempt.id for each in stream.joined):
            return stream
        head, bundle = commits.sent(attempt)
        builder = await self._context.builder(stream)
        added: IntegratedTask | None = None
        if head and head != stream.tip:
            added = await self._added(builder, stream, attempt, task.spec.name, head, bundle)
        await self._check(builder, stream, task, added)

        def grown(known: Workstream | None) -> Workstream | None:
            if known is None or any(each.attempt_id == attempt.id for each in known.joined):
                return known
            if added is None:
                return replace(known, place=place or known.place)
            if known.tip != stream.tip:
                raise GitFailed("another server integrated a task at the same time", is_transient=True)
            return replace(known, joined=(*known.joined, added), place=place or known.place)

        return await self._context.records.kept.update(stream.tenant, stream.id, grown) or stream

    async def _added(
        self, builder: CommitBuilder, stream: Workstream, attempt: Attempt, task: str, head: str, bundle: str
    ) -> IntegratedTask | None:
        start = await commits.taken(builder, stream, self._context.blobs, bundle, head)
        if start == head:
            return None  # It brought what is there already.
        try:
            tip = await commits.join(builder, stream.tip, task, head)
        except MergeConflict as conflict:
            found = f"conflicts with concurrent changes of other tasks in {', '.join(conflict.paths)}"
            wanted = "changes that merge cleanly; let one task need the other"
            raise RuleViolationError(RuleResult(rule="join", is_passed=False, actual=found, expected=wanted)) from None
        await builder.set_ref(f"streams/{stream.id}/tip", tip)
        return IntegratedTask(task=task, attempt_id=attempt.id, bundle=bundle, start=start, head=head, tip=tip)

    async def _check(self, builder: CommitBuilder, stream: Workstream, task: Job, added: IntegratedTask | None) -> None:
        """The rules that only the server can look at."""
        rules = next(each for each in spec_of(stream).tasks if each.name == task.spec.name).post_execution
        if added is not None:
            await self.check(builder, stream, rules, added.start, added.head, added.tip)

    async def check(
        self, builder: CommitBuilder, stream: Workstream, rules: Sequence[Rule], start: str, head: str, tip: str
    ) -> None:
        """Raise `RuleViolationError` if undeclared files changed or the base cannot be merged."""
        for rule in protocol_rules(rules):
            if rule.within:
                changed = await builder.mirror.changed_paths(start, head)
                _require_passed(within(rule, changed if changed is not None else ["a path that is not valid text"]))
            if rule.mergeable:
                paths: Sequence[str] = ()
                try:
                    await builder.merge_trees(await builder.fetch_branch(stream.base), tip)
                except MergeConflict as conflict:
                    paths = conflict.paths
                _require_passed(mergeable(rule, stream.base, paths))


def _require_passed(result: RuleResult) -> None:
    if not result.is_passed:
        raise RuleViolationError(result)
