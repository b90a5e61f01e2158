"""A pipeline and a change become a plan: what runs, what does not, and why. Pure: same inputs, same plan, same hash.

    compile(found, change, changed=…, source=…, …) -> Compiled    the plan, or every problem with its place
    triggered(pipeline, change, changed) -> (bool, reason)        whether `on` wants this change at all

`found` is what `pipeline.reader.read` gave, or just a `model.Pipeline`. What can be decided now is: conditions over
`github`, `inputs` and `vars`, paths, matrices, groups, labels, limits. What depends on how things go is left to the
runner, as `wire.messages.JobSpec` says. For whoever reads a `work`:

- Job names are unique in the run and fit `wire.api_input.JobName`. `Kept.job` is the id in the file; where it is not
  the name, as in a matrix, it is the `family`: what expressions call `needs.test`.
- `work.needs` are names of jobs in the run, and of needs that are no part of it: to expressions those are skipped.
- `work.condition` has its `success()`, or another status function, and is over the results of `work.needs`.
- `work.contexts` is always there. It has what is mentioned, and of `github` what steps find as variables.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any, Final

import msgspec
from msgspec import Struct

from deltaci.core import job as core_job
from deltaci.core.approvals import Gate
from deltaci.core.errors import Refused
from deltaci.core.job import JobSpec
from deltaci.core.plan import dependents, plan_hash
from deltaci.core.worker import queue_key
from deltaci.pipeline import model
from deltaci.pipeline.change import Change
from deltaci.pipeline.expressions.values import is_list, to_text
from deltaci.pipeline.parse.parse_result import ParseResult, Path
from deltaci.pipeline.parse.problems import Problem, quote
from deltaci.pipeline.parse.reader import DEFAULT_FILE
from deltaci.pipeline.planning import conditions, contexts
from deltaci.pipeline.planning import job_specs as jobs
from deltaci.pipeline.planning.expansion import MatrixExpander, MatrixJob
from deltaci.pipeline.planning.interpolate import Interpolator
from deltaci.pipeline.planning.job_filter import NOT_REQUESTED, JobFilter, SelectedJob
from deltaci.pipeline.planning.job_specs import JobInstance, PlanSettings
from deltaci.pipeline.planning.plan import ExcludedJob, Plan, PlannedJob
from deltaci.pipeline.planning.triggers import check_triggers
from deltaci.protocol import messages as wire

__all__ = ["CompileResult", "check_triggers", "compile_pipeline"]

APPROVE_FORK: Final = "approve-fork"
UNTRUSTED: Final = "untrusted"  # code: kept, because nothing of an untrusted change runs before somebody said yes
MAX_JOBS: Final = 10_000  # of a run
MAX_STEPS: Final = 50_000  # of all jobs of a run
MAX_WORK_BYTES: Final = 1024 * 1024  # of what one job is told
MAX_PLAN_BYTES: Final = 64 * 1024 * 1024
SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}


class CompileResult(Struct, frozen=True, kw_only=True):
    """A plan, or problems; warnings alone do not stand in its way."""

    plan: Plan | None
    problems: tuple[Problem, ...] = ()


def compile_pipeline(
    found: ParseResult | model.Pipeline,
    change: Change,
    *,
    changed: Collection[str] | None,
    unknown_because: str = "",
    source: wire.Source | None = None,
    variables: Mapping[str, str] | None = None,
    file: str = "",
    run_id: str = "",
    run_number: int = 0,
    is_untrusted: bool = False,
    adds_secrets: bool = False,
    only: Collection[str] = (),
    matrix: Mapping[str, Collection[str]] | None = None,
) -> CompileResult:
    """The plan of a pipeline for a change.

    `changed` are the paths of the diff, None if they are not known (`unknown_because` says why). `variables` are the
    context `vars`. `is_untrusted` takes secrets and trusted caches away and lets everything wait for an approval;
    whoever trusts a fork must say so, because a change with `is_fork` is untrusted anyway. `adds_secrets` gives a job
    the secrets that it mentions, as on GitHub. `only` names jobs to keep with what they need, `matrix` the values of
    axes to keep.
    """
    if isinstance(found, model.Pipeline):
        found = ParseResult(file=file or DEFAULT_FILE, pipeline=found)
    if found.pipeline is None:
        return CompileResult(plan=None, problems=found.problems)
    is_untrusted = is_untrusted or change.is_fork
    setting = PlanSettings(
        pipeline=found.pipeline,
        source=source,
        cache_scope=_scope(change) if is_untrusted else "",
        adds_secrets=adds_secrets,
    )
    compiler = _Compiler(found, found.pipeline, change, setting)
    known = {"github": {}, "inputs": {}, "vars": dict(variables or {})}
    known["github"] = contexts.github_context(
        change,
        workflow=found.pipeline.name or found.file,
        file=found.file,
        server=_server(source),
        run_id=run_id,
        run_number=run_number,
    )
    return compiler.compiled(known, changed, unknown_because, only, matrix or {})


def _server(source: wire.Source | None) -> str:
    """Where the repository is, if that is an address of the web; never with the name of a user in it."""
    found = re.match(r"(https?://)(?:[^/@]*@)?([^/]+)", source.url) if source is not None else None
    return f"{found[1]}{found[2]}" if found else ""


def _scope(change: Change) -> str:
    return f"fork:{change.repository}:{change.number or change.ref or change.commit}"


class _Compiler:
    def __init__(self, found: ParseResult, pipeline: model.Pipeline, change: Change, setting: PlanSettings) -> None:
        self._found = found
        self._pipeline = pipeline
        self._change = change
        self._setting = setting
        self._filling = Interpolator(found)
        self._bytes = self._steps = 0
        self._names: dict[str, tuple[str, ...]] = {}  # of every job of the file, those of the run
        self._may_skip: dict[str, bool] = {}  # whether it may succeed without having done anything
        self._seen: dict[str, tuple[str, ...]] = {}  # what a job that needs it looks at, by id

    def compiled(
        self,
        known: dict[str, Any],
        changed: Collection[str] | None,
        unknown_because: str,
        only: Collection[str],
        matrix: Mapping[str, Collection[str]],
    ) -> CompileResult:
        """Everything in its order."""
        try:
            known["inputs"] = contexts.inputs_context(self._pipeline, self._change)
        except contexts.InputError as bad:
            self._filling.report(("on", "manual", "inputs", bad.name), bad.found, bad.expected)
            return self._refused()
        try:
            chooser = JobFilter(self._pipeline, known, self._filling)
        except Refused as refused:
            self._filling.report(("jobs",), str(refused))
            return self._refused()
        chosen = chooser.choose(changed, unknown_because, self._found.file, only)
        matrices = MatrixExpander(self._pipeline, known, self._filling, only, matrix)
        left_out = dict(chooser.left_out)
        kept: list[PlannedJob] = []
        for each in chosen:
            grown = matrices.grow(each.id)
            if not grown and not self._filling.problems.has_errors:
                reason = "none of its combinations was asked for"
                left_out[each.id] = ExcludedJob(name=each.id, job=each.id, code=NOT_REQUESTED, reason=reason)
            if self._filling.problems.is_full or not self._has_room(each.id, len(kept), len(grown)):
                break
            kept += self._kept(each, grown, known)
        if not self._filling.problems.has_errors:
            matrices.finish()
        if self._filling.problems.has_errors:
            return self._refused()
        if self._setting.cache_scope and kept:
            kept = self._behind_approval(kept)
        return self._planned(kept, [left_out[name] for name in chooser.order if name in left_out], known, changed)

    def _has_room(self, name: str, jobs: int, more: int) -> bool:
        """Whether a plan may become that large; it is looked at before anything is made."""
        self._steps += more * len(self._pipeline.jobs[name].steps or ())
        for found, most, what in ((jobs + more, MAX_JOBS, "jobs"), (self._steps, MAX_STEPS, "steps")):
            if found > most:
                wanted = f"expected at most {most:,}: split it into several files"
                self._filling.report(("jobs", name), f"more than {most:,} {what} with all matrices", wanted)
        return self._steps <= MAX_STEPS and jobs + more <= MAX_JOBS and self._bytes <= MAX_PLAN_BYTES

    def _refused(self) -> CompileResult:
        return CompileResult(plan=None, problems=self._filling.problems.in_order())

    def _planned(
        self,
        kept: list[PlannedJob],
        left_out: list[ExcludedJob],
        known: dict[str, Any],
        changed: Collection[str] | None,
    ) -> CompileResult:
        specs = [each.spec for each in kept]
        timeout = self._pipeline.timeout_minutes * 60
        group, cancels = self._group(self._pipeline.concurrency, ("concurrency",), known)
        try:
            dependents(specs)
        except Refused as refused:
            self._filling.report(("jobs",), str(refused))
        if self._filling.problems.has_errors:
            return self._refused()
        plan = Plan(
            file=self._found.file,
            name=self._pipeline.name or self._found.file,
            jobs=tuple(kept),
            excluded=tuple(left_out),
            hash=plan_hash(specs, is_fail_fast=self._pipeline.fail_fast, timeout_seconds=timeout),
            is_fail_fast=self._pipeline.fail_fast,
            timeout_seconds=timeout,
            group=group,
            cancels_in_progress=cancels,
            compared_with=(self._change.base or self._change.before) if changed is not None else "",
        )
        return CompileResult(
            plan=plan, problems=tuple(sorted({*self._found.problems, *self._filling.problems.in_order()}))
        )

    # -- jobs

    def _kept(self, chosen: SelectedJob, grown: list[MatrixJob], known: dict[str, Any]) -> list[PlannedJob]:
        """All jobs of the run that one job of the file becomes."""
        name, job = chosen.id, self._pipeline.jobs[chosen.id]
        self._names[name] = tuple(each.name for each in grown)
        needs = [need for need in chosen.choice.needs if self._names.get(need)]
        seen = tuple(dict.fromkeys([*needs, *(each for need in needs for each in self._seen[need])]))
        may_be_skipped = any(self._may_skip[need] for need in seen)
        condition = conditions.job_condition(chosen.verdict, has_needs=bool(needs), may_be_skipped=may_be_skipped)
        # People cannot be skipped: what needs their word looks behind it.
        self._seen[name] = seen if job.approval is not None else ()
        self._may_skip[name] = condition is not None and job.approval is None
        waits = self._all(needs)
        made = []
        for position, each in enumerate(grown):
            if self._bytes > MAX_PLAN_BYTES or self._filling.problems.is_full:
                break
            after = waits if chosen.verdict.asks_status else ()
            if each.max_parallel is not None and position >= each.max_parallel:
                after = (*after, grown[position - each.max_parallel].name)
            told: dict[str, Any] = {
                "name": each.name,
                "needs": () if chosen.verdict.asks_status else waits,
                "after": after,
                "family": name if each.name != name else "",
                "is_family_fail_fast": each.is_fail_fast and len(grown) > 1,
                "priority": min(job.priority, 0) if self._setting.cache_scope else job.priority,
            }
            if job.approval is not None:
                spec = self._gate(chosen, job.approval, told)
            else:
                member = self._member(chosen, job, each, known, condition, (*self._all(seen), *sorted(chosen.left_out)))
                spec = self._task(member, told)
            choice = chosen.choice
            made.append(
                PlannedJob(
                    spec=spec, job=name, code=choice.code, reason=choice.reason, path=choice.path, matrix=each.values
                )
            )
        return made

    def _all(self, ids: Collection[str]) -> tuple[str, ...]:
        return tuple(name for each in ids for name in self._names[each])

    def _member(
        self,
        chosen: SelectedJob,
        job: model.Job,
        grown: MatrixJob,
        known: dict[str, Any],
        condition: Any,
        needs: tuple[str, ...],
    ) -> JobInstance:
        path: Path = ("jobs", chosen.id)
        full = {**known, "github": {**known["github"], "job": chosen.id}, "strategy": grown.strategy}
        full["matrix"] = grown.values
        title = self._filling.text((*path, "name"), job.name or grown.name, full)
        if job.name == title:  # As on GitHub, values are added where the name does not mention any.
            title += grown.name.removeprefix(chosen.id)
        return JobInstance(path=path, job=job, known=full, condition=condition, needs=needs, title=title)

    def _task(self, member: JobInstance, told: dict[str, Any]) -> JobSpec:
        job, path, known, filling = member.job, member.path, member.known, self._filling
        work = jobs.build_job_spec(self._setting, member, filling)
        plain: dict[str, Any] = {}
        try:
            plain, size = jobs.validate_spec(work)
            self._bytes += size
            if max(size - MAX_WORK_BYTES, self._bytes - MAX_PLAN_BYTES) > 0:
                wanted = f"expected at most {MAX_WORK_BYTES:,} for a job and {MAX_PLAN_BYTES:,} for all: use scripts"
                filling.report(path, f"{size:,} bytes of steps in the job {quote(str(path[-1]))}", wanted)
        except msgspec.ValidationError as error:
            filling.report(path, f"the job {quote(str(path[-1]))}, which no runner would take", str(error))
        group, cancels = self._group(job.concurrency, (*path, "concurrency"), known)
        if cancels:
            told_twice = "expected it at the top of the file: it is runs that are cancelled"
            filling.report((*path, "concurrency"), "'cancel-in-progress' of a job", told_twice, is_warning=True)
        if job.retry is not None:
            told |= {
                "max_attempts": job.retry.max_attempts,
                "base_delay_seconds": job.retry.delay_seconds,
                "max_delay_seconds": job.retry.max_delay_seconds,
                "jitter": job.retry.jitter,
                "retry_on": tuple(job.retry.on),
            }
        minutes = filling.number((*path, "timeout-minutes"), job.timeout_minutes, known, most=model.MAX_MINUTES)
        return JobSpec(
            **told,
            is_required=not filling.boolean((*path, "allow_failure"), job.allow_failure, known),
            timeout_seconds=jobs.minutes_to_seconds(minutes),
            queue_key=queue_key(self._labels(job, path, known)),
            group=group,
            work=plain,
        )

    def _gate(self, chosen: SelectedJob, approval: model.Approval, told: dict[str, Any]) -> JobSpec:
        if chosen.verdict.remaining is not None:
            found = "a condition of an approval that cannot be known when planning"
            self._filling.report(("jobs", chosen.id, "if"), found, "expected one over github, inputs and vars")
        expires = approval.expires
        return JobSpec(
            **told,
            kind=core_job.APPROVAL,
            approval_seconds=int(expires[:-1]) * SECONDS[expires[-1]] if expires else 0,
            gate=Gate(role=approval.role or "", approvers=approval.approvers, not_by_starter=approval.not_by_starter),
        )

    def _labels(self, job: model.Job, path: Path, known: Mapping[str, Any]) -> list[str]:
        found: list[str] = []
        for position, label in enumerate(job.runs_on):
            at = (*path, "runs-on", position)
            filled = self._filling.resolve(at, label, known)
            values = [] if filled is None else filled.value if is_list(filled.value) else [filled.value]
            for text in map(to_text, values):
                if not text or "," in text or not text.isprintable():
                    self._filling.report(at, f"{quote(text)} as a label", "expected a label without commas")
                found.append(text)
        return found

    def _group(self, concurrency: model.Concurrency | None, path: Path, known: Mapping[str, Any]) -> tuple[str, bool]:
        """The name of a group, of this repository alone; nobody who is not trusted gets into one of others."""
        if concurrency is None:
            return "", False
        group = self._filling.text((*path, "group"), concurrency.group, known)
        cancels = self._filling.boolean((*path, "cancel-in-progress"), concurrency.cancel_in_progress, known)
        if not group:
            return "", False
        whose = self._setting.cache_scope or self._change.repository
        return (f"{whose}/{group}" if whose else group), cancels

    def _behind_approval(self, kept: list[PlannedJob]) -> list[PlannedJob]:
        """Everything after somebody's yes."""
        taken = {name for names in self._names.values() for name in names} | set(self._pipeline.jobs)
        name = APPROVE_FORK
        number = 1
        while name in taken:
            number += 1
            name = f"{APPROVE_FORK}-{number}"
        reason = "the change is from somebody who may not write to the repository: a person must look at it first"
        gate = PlannedJob(spec=JobSpec(name=name, kind=core_job.APPROVAL), job=name, code=UNTRUSTED, reason=reason)
        behind = [
            msgspec.structs.replace(each, spec=msgspec.structs.replace(each.spec, needs=(name, *each.spec.needs)))
            for each in kept
        ]
        return [gate, *behind]
