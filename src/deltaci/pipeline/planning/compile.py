"""Compile a pipeline and a change into a plan: which jobs run, which do not, and why.

    compile_pipeline(parsed, change, changed=…, …) -> CompileResult    the plan, or all problems with positions
    check_triggers(pipeline, change, changed) -> TriggerCheck          whether the change starts the pipeline (`on`)

`parsed` is the result of `parse.reader.parse_pipeline`, or just a `model.Pipeline`. Compilation is pure: equal inputs
give an equal plan with an equal hash. It decides everything that depends only on `github`, `inputs` and `vars`:
conditions, paths, matrices, groups, labels and limits. What depends on the results of jobs is left to the runner, in
the form that `protocol.messages.JobSpec` describes. In each planned job:

- The job name is unique in the run and is a valid `JobName`. `PlannedJob.job` is the id in the file; where it differs
  from the name, as in a matrix, it is also the `family`: expressions use it, as in `needs.test`.
- `work.needs` are names of jobs of the run, and of needs that are not part of it: expressions see those as skipped.
- `work.condition` contains its `success()` or another status function, and reads the results of `work.needs`.
- `work.contexts` is always present. It has the values that are referenced, and the keys of `github` that steps get as
  variables.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from deltaci.core import job as core_job
from deltaci.core.approvals import Gate
from deltaci.core.errors import Refused
from deltaci.core.job import JobSpec
from deltaci.core.plan import dependents
from deltaci.core.worker import queue_key
from deltaci.pipeline import model
from deltaci.pipeline.change import Change
from deltaci.pipeline.expressions.values import is_list, to_text
from deltaci.pipeline.parse.parse_result import ParseResult, Path
from deltaci.pipeline.parse.problems import Problem, quote
from deltaci.pipeline.parse.reader import DEFAULT_FILE
from deltaci.pipeline.planning import conditions, contexts, job_specs
from deltaci.pipeline.planning.expansion import MatrixExpander, MatrixJob
from deltaci.pipeline.planning.inputs import JobInputs, inputs_hash, reason_not_reusable
from deltaci.pipeline.planning.interpolate import Interpolator
from deltaci.pipeline.planning.job_filter import NOT_REQUESTED, JobFilter, SelectedJob
from deltaci.pipeline.planning.job_specs import JobInstance, SpecInputs
from deltaci.pipeline.planning.plan import ExcludedJob, Plan, PlannedJob, hash_of
from deltaci.pipeline.planning.triggers import check_triggers
from deltaci.protocol import messages as wire

__all__ = ["CompileResult", "check_triggers", "compile_pipeline"]

APPROVE_FORK: Final = "approve-fork"
UNTRUSTED: Final = "untrusted"  # code of the approval job that an untrusted change waits for
MAX_JOBS: Final = 10_000  # per run
MAX_STEPS: Final = 50_000  # of all jobs of a run
MAX_WORK_BYTES: Final = 1024 * 1024  # of the job specification that a runner gets
MAX_PLAN_BYTES: Final = 64 * 1024 * 1024
UNIT_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}


class CompileResult(Struct, frozen=True, kw_only=True):
    """The compiled plan, or None if there are errors. `problems` also has the warnings."""

    plan: Plan | None
    problems: tuple[Problem, ...] = ()


def compile_pipeline(
    parsed: ParseResult | model.Pipeline,
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
    grants_mentioned_secrets: bool = False,
    has_default_retry: bool = True,
    requested_jobs: Collection[str] = (),
    matrix: Mapping[str, Collection[str]] | None = None,
    contents: Mapping[str, str] | None = None,
) -> CompileResult:
    """Compile the plan of a pipeline for a change.

    `changed` are the changed paths, None if they are unknown (`unknown_because` is the reason). `variables` are the
    context `vars`. For an untrusted change (`is_untrusted`, or from a fork), jobs get no secrets and no trusted caches,
    and wait for an approval. `grants_mentioned_secrets` gives a job the secrets that its expressions reference, as on
    GitHub. Jobs without `retry` are retried once, if `has_default_retry`. If `requested_jobs` is not empty, only these
    jobs and their needs are planned. `matrix` has the requested values by axis.

    With `contents`, the content ids of all files of the commit by path, no job is left out because of the changed
    paths. Instead, the spec of each job that can be reused gets the hash of its inputs: see `reuse.py`.
    """
    if isinstance(parsed, model.Pipeline):
        parsed = ParseResult(file=file or DEFAULT_FILE, pipeline=parsed)
    if parsed.pipeline is None:
        return CompileResult(plan=None, problems=parsed.problems)
    is_untrusted = is_untrusted or change.is_fork
    spec_inputs = SpecInputs(
        pipeline=parsed.pipeline,
        source=source,
        cache_scope=_untrusted_scope(change) if is_untrusted else "",
        grants_mentioned_secrets=grants_mentioned_secrets,
        has_default_retry=has_default_retry,
    )
    compiler = _Compiler(parsed, parsed.pipeline, change, spec_inputs)
    context_values = {"github": {}, "inputs": {}, "vars": dict(variables or {})}
    context_values["github"] = contexts.github_context(
        change,
        workflow=parsed.pipeline.name or parsed.file,
        file=parsed.file,
        server=_server_url(source),
        run_id=run_id,
        run_number=run_number,
    )
    return compiler.compile(context_values, changed, unknown_because, requested_jobs, matrix or {}, contents)


def _server_url(source: wire.Source | None) -> str:
    """Return scheme and host of the repository's http(s) URL, without credentials; for other URLs an empty string."""
    url_match = re.match(r"(https?://)(?:[^/@]*@)?([^/]+)", source.url) if source is not None else None
    return f"{url_match[1]}{url_match[2]}" if url_match else ""


def _untrusted_scope(change: Change) -> str:
    """Return the cache scope and group prefix of an untrusted change. Trusted runs do not read its caches."""
    return f"fork:{change.repository}:{change.number or change.ref or change.commit}"


class _Compiler:
    """Compiles one pipeline for one change. Used once."""

    def __init__(self, parsed: ParseResult, pipeline: model.Pipeline, change: Change, spec_inputs: SpecInputs) -> None:
        self._parsed = parsed
        self._pipeline = pipeline
        self._change = change
        self._spec_inputs = spec_inputs
        self._interpolator = Interpolator(parsed)
        self._byte_count = self._step_count = 0
        self._planned_names_by_id: dict[str, tuple[str, ...]] = {}  # job id -> names of its jobs in the run
        self._may_be_skipped: dict[str, bool] = {}  # job id -> whether the runner may skip it, which counts as success
        self._visible_needs_by_id: dict[str, tuple[str, ...]] = {}  # job id -> needs that its dependents check, too
        self._has_gate: dict[str, bool] = {}  # job id -> whether it is an approval or comes after one
        self._inputs_by_name: dict[str, str] = {}  # name of a planned job -> hash of its inputs
        self._hashes_inputs = False

    def compile(
        self,
        context_values: dict[str, Any],
        changed: Collection[str] | None,
        unknown_because: str,
        requested_jobs: Collection[str],
        matrix: Mapping[str, Collection[str]],
        contents: Mapping[str, str] | None,
    ) -> CompileResult:
        """Check the inputs, select the jobs, expand their matrices, and build the plan."""
        self._hashes_inputs = contents is not None
        try:
            context_values["inputs"] = contexts.inputs_context(self._pipeline, self._change)
        except contexts.InputError as error:
            self._interpolator.report(("on", "manual", "inputs", error.name), error.found, error.expected)
            return self._build_failure()
        try:
            job_filter = JobFilter(self._pipeline, context_values, self._interpolator)
        except Refused as refused:
            self._interpolator.report(("jobs",), str(refused))
            return self._build_failure()
        selected_jobs = job_filter.select(changed, unknown_because, self._parsed.file, requested_jobs, contents)
        expander = MatrixExpander(self._pipeline, context_values, self._interpolator, requested_jobs, matrix)
        excluded_by_name = dict(job_filter.excluded)
        planned_jobs: list[PlannedJob] = []
        for selected in selected_jobs:
            matrix_jobs = expander.expand(selected.id)
            if not matrix_jobs and not self._interpolator.problems.has_errors:
                reason = "none of its matrix combinations was requested"
                excluded_by_name[selected.id] = ExcludedJob(
                    name=selected.id, job=selected.id, code=NOT_REQUESTED, reason=reason
                )
            if self._interpolator.problems.is_full or not self._add_steps_and_check_limits(
                selected.id, len(planned_jobs), len(matrix_jobs)
            ):
                break
            planned_jobs += self._plan_jobs(selected, matrix_jobs, context_values)
        if not self._interpolator.problems.has_errors:
            expander.check_requested_values()
        if self._interpolator.problems.has_errors:
            return self._build_failure()
        if self._spec_inputs.cache_scope and planned_jobs:
            planned_jobs = self._add_approval(planned_jobs)
        return self._build_success(
            planned_jobs,
            [excluded_by_name[name] for name in job_filter.order if name in excluded_by_name],
            context_values,
            changed,
        )

    def _add_steps_and_check_limits(self, job_id: str, planned_count: int, new_count: int) -> bool:
        """Add the steps of `new_count` further jobs to the total.

        Return whether the plan stays within its limits. Report a violated limit.
        """
        self._step_count += new_count * len(self._pipeline.jobs[job_id].steps or ())
        for count, limit, noun in (
            (planned_count + new_count, MAX_JOBS, "jobs"),
            (self._step_count, MAX_STEPS, "steps"),
        ):
            if count > limit:
                expected_text = f"expected at most {limit:,}: split it into several files"
                self._interpolator.report(
                    ("jobs", job_id), f"more than {limit:,} {noun} with all matrices", expected_text
                )
        return (
            self._step_count <= MAX_STEPS
            and planned_count + new_count <= MAX_JOBS
            and self._byte_count <= MAX_PLAN_BYTES
        )

    def _build_failure(self) -> CompileResult:
        return CompileResult(plan=None, problems=self._interpolator.problems.in_order())

    def _build_success(
        self,
        planned_jobs: list[PlannedJob],
        excluded_jobs: list[ExcludedJob],
        context_values: dict[str, Any],
        changed: Collection[str] | None,
    ) -> CompileResult:
        specs = [job.spec for job in planned_jobs]
        concurrency_group, cancels_in_progress = self._evaluate_group(
            self._pipeline.concurrency, ("concurrency",), context_values
        )
        try:
            dependents(specs)
        except Refused as refused:
            self._interpolator.report(("jobs",), str(refused))
        if self._interpolator.problems.has_errors:
            return self._build_failure()
        plan = Plan(
            file=self._parsed.file,
            name=self._pipeline.name or self._parsed.file,
            jobs=tuple(planned_jobs),
            excluded=tuple(excluded_jobs),
            is_fail_fast=self._pipeline.fail_fast,
            timeout_seconds=self._pipeline.timeout_minutes * 60,
            optional_wait_seconds=self._pipeline.optional_wait_minutes * 60,
            group=concurrency_group,
            cancels_in_progress=cancels_in_progress,
            compared_with=(self._change.base or self._change.before) if changed is not None else "",
        )
        problems = tuple(sorted({*self._parsed.problems, *self._interpolator.problems.in_order()}))
        return CompileResult(plan=replace(plan, hash=hash_of(plan, specs)), problems=problems)

    # -- jobs

    def _plan_jobs(
        self, selected: SelectedJob, matrix_jobs: list[MatrixJob], context_values: dict[str, Any]
    ) -> list[PlannedJob]:
        """Return the planned jobs for one job of the file: one for each of `matrix_jobs`."""
        job_id, job = selected.id, self._pipeline.jobs[selected.id]
        self._planned_names_by_id[job_id] = tuple(matrix_job.name for matrix_job in matrix_jobs)
        needs = [need for need in selected.choice.needs if self._planned_names_by_id.get(need)]
        visible_needs = tuple(
            dict.fromkeys(
                [*needs, *(indirect_need for need in needs for indirect_need in self._visible_needs_by_id[need])]
            )
        )
        may_be_skipped = any(self._may_be_skipped[need] for need in visible_needs)
        condition = conditions.job_condition(selected.condition, has_needs=bool(needs), may_be_skipped=may_be_skipped)
        # An approval has no condition at run time, so a skipped need does not make it skipped. Therefore its dependents
        # check its needs as well as the approval itself.
        self._visible_needs_by_id[job_id] = visible_needs if job.approval is not None else ()
        self._may_be_skipped[job_id] = condition is not None and job.approval is None
        need_names = self._planned_names(needs)
        self._has_gate[job_id] = job.approval is not None or any(self._has_gate[need] for need in needs)
        planned_jobs = []
        for index, matrix_job in enumerate(matrix_jobs):
            if self._byte_count > MAX_PLAN_BYTES or self._interpolator.problems.is_full:
                break
            preceding_names = need_names if selected.condition.uses_status else ()
            if matrix_job.max_parallel is not None and index >= matrix_job.max_parallel:
                preceding_names = (*preceding_names, matrix_jobs[index - matrix_job.max_parallel].name)
            shared_fields: dict[str, Any] = {
                "name": matrix_job.name,
                "needs": () if selected.condition.uses_status else need_names,
                "after": preceding_names,
                "family": job_id if matrix_job.name != job_id else "",
                "is_family_fail_fast": matrix_job.is_fail_fast and len(matrix_jobs) > 1,
                "priority": min(job.priority, 0) if self._spec_inputs.cache_scope else job.priority,
            }
            not_reusable = ""
            if job.approval is not None:
                spec = self._build_approval_spec(selected, job.approval, shared_fields)
            else:
                result_names = (*self._planned_names(visible_needs), *sorted(selected.excluded_needs))
                instance = self._create_instance(selected, job, matrix_job, context_values, condition, result_names)
                spec, read_contexts = self._build_runner_spec(instance, shared_fields)
                if self._hashes_inputs and not self._interpolator.problems.has_errors:
                    spec, not_reusable = self._with_inputs(selected, spec, matrix_job, read_contexts, need_names)
            choice = selected.choice
            planned_jobs.append(
                PlannedJob(
                    spec=spec,
                    job=job_id,
                    code=choice.code,
                    reason=choice.reason,
                    path=choice.path,
                    matrix=matrix_job.values,
                    reads=selected.reads,
                    not_reusable=not_reusable,
                )
            )
        return planned_jobs

    def _with_inputs(
        self,
        selected: SelectedJob,
        spec: JobSpec,
        matrix_job: MatrixJob,
        read_contexts: dict[str, Any],
        need_names: tuple[str, ...],
    ) -> tuple[JobSpec, str]:
        """Return the spec with the hash of its inputs, and an empty string; or without, and why it cannot be reused."""
        job = self._pipeline.jobs[selected.id]
        reason = reason_not_reusable(job, spec, has_gate=self._has_gate[selected.id])
        if not reason and not selected.file_digest:
            reason = "there are too many files to compare"
        if not reason and not all(self._inputs_by_name.get(name) for name in self._planned_names(selected.reads)):
            reason = "it uses outputs or artifacts of a job that is never reused"
        if reason:
            return spec, reason
        inputs = JobInputs(
            file=self._parsed.file,
            event=self._change.event,
            matrix=matrix_job.values,
            contexts=read_contexts,
            file_digest=selected.file_digest,
            needs={name: self._inputs_by_name.get(name, "") for name in need_names},
        )
        self._inputs_by_name[spec.name] = inputs_hash(spec, inputs)
        return replace(spec, inputs=self._inputs_by_name[spec.name]), ""

    def _planned_names(self, ids: Collection[str]) -> tuple[str, ...]:
        """Return the names of the planned jobs for these job ids."""
        return tuple(name for id in ids for name in self._planned_names_by_id[id])

    def _create_instance(
        self,
        selected: SelectedJob,
        job: model.Job,
        matrix_job: MatrixJob,
        context_values: dict[str, Any],
        condition: Any,
        result_names: tuple[str, ...],
    ) -> JobInstance:
        """Return the job of the file with its contexts for one matrix combination.

        `result_names` are the jobs whose results it can read.
        """
        path: Path = ("jobs", selected.id)
        job_contexts = {
            **context_values,
            "github": {**context_values["github"], "job": selected.id},
            "strategy": matrix_job.strategy,
        }
        job_contexts["matrix"] = matrix_job.values
        title = self._interpolator.text((*path, "name"), job.name or matrix_job.name, job_contexts)
        if job.name == title:  # As on GitHub, matrix values are appended to a name that references none.
            title += matrix_job.name.removeprefix(selected.id)
        return JobInstance(
            path=path, job=job, contexts=job_contexts, condition=condition, needs=result_names, title=title
        )

    def _build_runner_spec(
        self, instance: JobInstance, shared_fields: dict[str, Any]
    ) -> tuple[JobSpec, dict[str, Any]]:
        """Return the spec of a job for a runner, and the contexts that it reads.

        `shared_fields` are the fields that approvals have, too.
        """
        job, path, job_contexts, interpolator = instance.job, instance.path, instance.contexts, self._interpolator
        built = job_specs.build_job_spec(self._spec_inputs, instance, interpolator)
        encoded_work: dict[str, Any] = {}
        try:
            encoded_work, work_size = job_specs.validate_spec(built.work)
            self._byte_count += work_size
            if max(work_size - MAX_WORK_BYTES, self._byte_count - MAX_PLAN_BYTES) > 0:
                expected_text = (
                    f"expected at most {MAX_WORK_BYTES:,} for a job and {MAX_PLAN_BYTES:,} for all: use scripts"
                )
                interpolator.report(
                    path, f"{work_size:,} bytes of steps in the job {quote(str(path[-1]))}", expected_text
                )
        except msgspec.ValidationError as error:
            interpolator.report(path, f"the job {quote(str(path[-1]))}, which violates the runner protocol", str(error))
        concurrency_group, cancels_in_progress = self._evaluate_group(
            job.concurrency, (*path, "concurrency"), job_contexts
        )
        if cancels_in_progress:
            expected_text = "expected it at the top of the file: only whole runs are cancelled"
            interpolator.report((*path, "concurrency"), "'cancel-in-progress' of a job", expected_text, is_warning=True)
        # A job of a group changes something that others share: only its author knows whether it can be repeated.
        may_repeat = self._spec_inputs.has_default_retry and not concurrency_group
        retry = job.retry or (model.DEFAULT_RETRY if may_repeat else None)
        if retry is not None:
            shared_fields |= {
                "max_attempts": retry.max_attempts,
                "base_delay_seconds": retry.delay_seconds,
                "max_delay_seconds": retry.max_delay_seconds,
                "jitter": retry.jitter,
                "retry_on": tuple(retry.on),
            }
        timeout_minutes = interpolator.number(
            (*path, "timeout-minutes"), job.timeout_minutes, job_contexts, maximum=model.MAX_MINUTES
        )
        spec = JobSpec(
            **shared_fields,
            is_required=not interpolator.boolean((*path, "allow_failure"), job.allow_failure, job_contexts),
            timeout_seconds=job_specs.minutes_to_seconds(timeout_minutes),
            queue_key=queue_key(self._evaluate_labels(job, path, job_contexts)),
            group=concurrency_group,
            work=encoded_work,
        )
        return spec, built.read_contexts

    def _build_approval_spec(
        self, selected: SelectedJob, approval: model.Approval, shared_fields: dict[str, Any]
    ) -> JobSpec:
        """Return the spec of an approval. `shared_fields` are the fields that jobs for runners have, too."""
        if selected.condition.remaining is not None:
            message = "a condition of an approval that is not known when planning"
            self._interpolator.report(
                ("jobs", selected.id, "if"), message, "expected a condition over github, inputs and vars"
            )
        expiry = approval.expires
        return JobSpec(
            **shared_fields,
            kind=core_job.APPROVAL,
            approval_seconds=int(expiry[:-1]) * UNIT_SECONDS[expiry[-1]] if expiry else 0,
            gate=Gate(role=approval.role or "", approvers=approval.approvers, not_by_starter=approval.not_by_starter),
        )

    def _evaluate_labels(self, job: model.Job, path: Path, job_contexts: Mapping[str, Any]) -> list[str]:
        """Return the evaluated labels of `runs-on`. Report invalid ones."""
        labels: list[str] = []
        for index, label in enumerate(job.runs_on):
            label_path = (*path, "runs-on", index)
            resolved = self._interpolator.resolve(label_path, label, job_contexts)
            label_values = [] if resolved is None else resolved.value if is_list(resolved.value) else [resolved.value]
            for label_text in map(to_text, label_values):
                if not label_text or "," in label_text or not label_text.isprintable():
                    self._interpolator.report(
                        label_path, f"{quote(label_text)} as a label", "expected a label without commas"
                    )
                labels.append(label_text)
        return labels

    def _evaluate_group(
        self, concurrency: model.Concurrency | None, path: Path, context_values: Mapping[str, Any]
    ) -> tuple[str, bool]:
        """Return the name of a concurrency group, or "", and whether a new run cancels the one in progress.

        The name has the repository as prefix. For an untrusted change the prefix is another one, so that the change can
        neither block nor cancel trusted runs.
        """
        if concurrency is None:
            return "", False
        group = self._interpolator.text((*path, "group"), concurrency.group, context_values)
        cancels_in_progress = self._interpolator.boolean(
            (*path, "cancel-in-progress"), concurrency.cancel_in_progress, context_values
        )
        if not group:
            return "", False
        prefix = self._spec_inputs.cache_scope or self._change.repository
        return (f"{prefix}/{group}" if prefix else group), cancels_in_progress

    def _add_approval(self, planned_jobs: list[PlannedJob]) -> list[PlannedJob]:
        """Return the planned jobs after a new approval job that each of them needs."""
        used_names = {name for names in self._planned_names_by_id.values() for name in names} | set(self._pipeline.jobs)
        name = APPROVE_FORK
        suffix_number = 1
        while name in used_names:
            suffix_number += 1
            name = f"{APPROVE_FORK}-{suffix_number}"
        reason = "the author of the change cannot write to the repository: a person must review the change first"
        approval_job = PlannedJob(
            spec=JobSpec(name=name, kind=core_job.APPROVAL), job=name, code=UNTRUSTED, reason=reason
        )
        waiting_jobs = [
            msgspec.structs.replace(job, spec=msgspec.structs.replace(job.spec, needs=(name, *job.spec.needs)))
            for job in planned_jobs
        ]
        return [approval_job, *waiting_jobs]
