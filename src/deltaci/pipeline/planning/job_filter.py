"""Select the jobs of a file that are part of a run, with a reason for each selected and each excluded job.

A job can be excluded by its `if`, by the changed paths, because a need is excluded, or because other jobs were
requested by name.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from deltaci.core import graph
from deltaci.core.errors import Refused
from deltaci.core.text import nearest
from deltaci.pipeline import model
from deltaci.pipeline.expressions import ExpressionError
from deltaci.pipeline.expressions.references import ANY_KEY, ContextReference, context_references
from deltaci.pipeline.parse.problems import quote
from deltaci.pipeline.parse.validation_rules import evaluated_texts
from deltaci.pipeline.planning import conditions
from deltaci.pipeline.planning.conditions import SKIPPED_NEED, ConditionResult
from deltaci.pipeline.planning.interpolate import Interpolator
from deltaci.pipeline.planning.plan import ExcludedJob
from deltaci.pipeline.planning.projects import Project
from deltaci.pipeline.planning.select import ALWAYS, Choice, JobSelection, SelectableJob

CONDITION: Final = "condition"
NEED_EXCLUDED: Final = "need_left_out"
NOT_REQUESTED: Final = "not_asked_for"
REQUESTED: Final = "asked_for"
UNTESTED: Final = "untested"
# The codes of a plan besides those of `select`, and their meanings. The codes are part of the API.
CODES: Final[Mapping[str, str]] = {
    REQUESTED: "kept: it was requested by name",
    UNTESTED: "kept: no changed file affects it, but it has not succeeded with equal inputs",
    CONDITION: "left out: its `if` is false",
    NEED_EXCLUDED: "left out: a job that it needs is left out by its `if`",
    NOT_REQUESTED: "left out: other jobs were requested by name",
}


class SelectedJob(Struct, frozen=True, kw_only=True):
    """A job of the file that is part of the run."""

    id: str
    choice: Choice
    condition: ConditionResult
    excluded_needs: frozenset[str] = frozenset()  # ids of its needs that are excluded from the run
    reads: tuple[str, ...] = ()  # ids of the jobs whose outputs or artifacts it uses
    file_digest: str = ""  # of the files of which a change affects it; empty: unknown


class JobFilter:
    """Selects the jobs of one file for a run. Decides on the needs of a job before the job itself."""

    def __init__(self, pipeline: model.Pipeline, context_values: Mapping[str, Any], interpolator: Interpolator) -> None:
        self._jobs = pipeline.jobs
        self._projects = pipeline.projects
        self._context_values = context_values
        self._interpolator = interpolator
        self._needs_by_job = {name: tuple(need.job for need in job.needs) for name, job in self._jobs.items()}
        self._optional_needs = {
            name: {need.job for need in job.needs if need.optional} for name, job in self._jobs.items()
        }
        self.order = topological_order(self._needs_by_job)
        self.excluded: dict[str, ExcludedJob] = {}
        self._condition_results: dict[str, ConditionResult] = {}
        self._read_jobs_by_job: dict[str, tuple[str, ...]] = {}
        self._file_digest_by_job: dict[str, str] = {}

    def select(
        self,
        changed_paths: Collection[str] | None,
        unknown_because: str,
        file: str,
        requested_jobs: Collection[str],
        content_id_by_path: Mapping[str, str] | None = None,
    ) -> list[SelectedJob]:
        """Return the selected jobs, needs first, and add all other jobs to `excluded`.

        `changed_paths` is None if they are unknown. If `requested_jobs` is not empty, the paths do not matter.
        With `content_id_by_path`, which has all files, also jobs that the paths do not affect are selected.
        """
        if requested_jobs and not self._exclude_unrequested(requested_jobs):
            return []
        # Conditions are decided before the changed paths, so that a job with a false condition does not keep its needs.
        for job_id in self.order:
            if job_id not in self.excluded:
                self._check_condition(job_id, is_final=False)
        candidates = [job_id for job_id in self.order if job_id not in self.excluded]
        choices = (
            self._choose_requested(candidates, requested_jobs)
            if requested_jobs
            else self._choose_by_paths(candidates, changed_paths, unknown_because, file, content_id_by_path)
        )
        for job_id in candidates:
            if job_id in choices and not choices[job_id].is_kept:
                self._exclude(job_id, choices[job_id].code, choices[job_id].reason)
        for job_id in candidates:
            if job_id not in self.excluded:
                self._check_condition(job_id, is_final=True)
        return [
            SelectedJob(
                id=job_id,
                choice=choices[job_id],
                condition=self._condition_results[job_id],
                excluded_needs=frozenset(need for need in self._needs_by_job[job_id] if need in self.excluded),
                reads=self._read_jobs_by_job.get(job_id, ()),
                file_digest=self._file_digest_by_job.get(job_id, ""),
            )
            for job_id in candidates
            if job_id not in self.excluded and job_id in choices
        ]

    def _exclude(self, job_id: str, code: str, reason: str) -> None:
        self.excluded[job_id] = ExcludedJob(name=job_id, job=job_id, code=code, reason=reason)

    # -- conditions

    def _check_condition(self, job_id: str, *, is_final: bool) -> None:
        """Exclude a job whose condition is false.

        If `is_final`, all exclusions are known: store the condition's result.
        """
        excluded_needs = [need for need in self._needs_by_job[job_id] if need in self.excluded]
        skipped_needs = [need for need in excluded_needs if self.excluded[need].code in (CONDITION, NEED_EXCLUDED)]
        skipped_needs = [need for need in skipped_needs if need not in self._optional_needs[job_id]]
        included_needs = [need for need in self._needs_by_job[job_id] if need not in self.excluded]
        context_values, status_results = dict(self._context_values), dict[str, bool]()
        if not included_needs:
            context_values["needs"] = dict.fromkeys(excluded_needs, SKIPPED_NEED)
            status_results = {"success": not skipped_needs, "failure": False, "cancelled": False}
        elif skipped_needs:
            status_results = {"success": False}
        condition_text = self._jobs[job_id].if_
        try:
            condition_result = conditions.decide_condition(
                self._interpolator.condition(condition_text),
                context_values,
                skipped=excluded_needs,
                status=status_results,
                shared_budget=self._interpolator.budget,
            )
        except ExpressionError as error:
            self._interpolator.report_expression(("jobs", job_id, "if"), condition_text or "", error.problem)
            condition_result = conditions.ALWAYS
        if skipped_needs and not condition_result.uses_status:
            need = skipped_needs[0]
            self._exclude(job_id, NEED_EXCLUDED, f"it needs {need}, which is left out")
        elif condition_result.holds is False:
            self._exclude(job_id, CONDITION, condition_result.reason)
        elif is_final:
            self._condition_results[job_id] = condition_result

    # -- changed paths

    def _choose_by_paths(
        self,
        candidates: list[str],
        changed_paths: Collection[str] | None,
        unknown_because: str,
        file: str,
        content_id_by_path: Mapping[str, str] | None,
    ) -> dict[str, Choice]:
        """Return by job id whether the changed paths affect a job. Report inconsistent projects.

        With `content_id_by_path`, keep all jobs, and compute the digests of their files.
        """
        projects = [
            Project(name=project_name, path=project.folder, needs=project.depends_on)
            for project_name, project in self._projects.items()
        ]
        jobs = [self._selectable_job(job_id, set(candidates)) for job_id in candidates]
        try:
            # A detected pipeline has no file that could change, and a name without a dot.
            selection = JobSelection(jobs, projects, (*ALWAYS, *([_escape_pattern(file)] if "." in file else [])))
            choices = {choice.job: choice for choice in selection.select(changed_paths, unknown_because)}
        except Refused as refused:
            self._interpolator.report(("jobs",), str(refused))
            return {}
        if content_id_by_path is None:
            return choices
        self._file_digest_by_job = selection.digest_files(content_id_by_path)
        self._read_jobs_by_job = {job.name: (*(job.consumes or ()), *job.downloads_from) for job in jobs}
        needs_by_job = {job.name: tuple(sorted(job.needs)) for job in jobs}
        return {
            job_id: replace(choice, needs=needs_by_job[job_id])
            if choice.is_kept
            else Choice(job=job_id, is_kept=True, code=UNTESTED, reason=choice.reason, needs=needs_by_job[job_id])
            for job_id, choice in choices.items()
        }

    def _selectable_job(self, job_id: str, candidates: set[str]) -> SelectableJob:
        """Return the properties of a job that the selection by changed paths depends on."""
        job = self._jobs[job_id]
        needs = tuple(need for need in self._needs_by_job[job_id] if need in candidates)
        consumed_needs, downloads_from = _needs_with_used_outputs(self._references(job_id, job), needs), set[str]()
        if downloads_artifacts(job):
            indirect_needs = transitive_needs(job_id, self._needs_by_job)
            downloads_from = {
                need for need in indirect_needs & candidates if uploads_artifacts(self._jobs[need])
            } - set(needs)
            consumed_needs |= {need for need in needs if uploads_artifacts(self._jobs[need])}
        return SelectableJob(
            name=job_id,
            paths=job.paths or (),
            projects=job.project or (() if job.paths and not self._projects else None),
            needs=needs,
            consumes=tuple(sorted(consumed_needs)),
            has_outputs=bool(job.outputs or job.output_path or uploads_artifacts(job)),
            downloads_from=tuple(sorted(downloads_from)),
        )

    def _references(self, job_id: str, job: model.Job) -> Iterable[ContextReference]:
        """Yield the context references of all texts and conditions of a job."""
        for template_text in _interpolated_texts(job):
            yield from self._interpolator.references(("jobs", job_id), template_text)
        for condition in (job.if_, *(step.if_ for step in job.steps or ())):
            try:
                expression = self._interpolator.condition(condition)
            except ExpressionError:  # Reported where the condition is decided.
                continue
            if expression is not None:
                yield from context_references(expression)

    # -- requested jobs

    def _exclude_unrequested(self, requested_jobs: Collection[str]) -> bool:
        """Exclude all jobs that are neither requested nor needed by a requested job.

        Report unknown names. Return whether all names are known.
        """
        requested_ids = {_job_id(job_id, self._jobs) for job_id in requested_jobs}
        for job_id in sorted(requested_ids - set(self._jobs)):
            suggestion = nearest(job_id, self._jobs)
            expected = f"expected one of: {', '.join([*self._jobs][:12])}"
            self._interpolator.report(
                ("jobs",), f"there is no job {quote(job_id)}", "" if suggestion else expected, suggestion
            )
        if not requested_ids <= set(self._jobs):
            return False
        included_jobs = requested_ids.union(*(transitive_needs(job_id, self._needs_by_job) for job_id in requested_ids))
        for job_id in self.order:
            if job_id not in included_jobs:
                self._exclude(job_id, NOT_REQUESTED, f"only {', '.join(sorted(requested_ids))} was requested")
        return True

    def _choose_requested(self, candidates: Iterable[str], requested_jobs: Collection[str]) -> dict[str, Choice]:
        """Return by job id the choice to keep it, because it is requested or needed by a requested job."""
        requested_ids = {_job_id(job_id, self._jobs) for job_id in requested_jobs}
        choices = {}
        for job_id in candidates:
            needs = tuple(sorted(need for need in self._needs_by_job[job_id] if need not in self.excluded))
            if job_id in requested_ids:
                choice_fields: dict[str, Any] = {"code": REQUESTED, "reason": "it was requested"}
            else:
                dependent = min(job for job in requested_ids if job_id in transitive_needs(job, self._needs_by_job))
                choice_fields = {
                    "code": "needed",
                    "reason": f"needed by {dependent}, which was requested",
                    "chain": (dependent,),
                }
            choices[job_id] = Choice(job=job_id, is_kept=True, needs=needs, **choice_fields)
        return choices


def topological_order(needs_by_name: Mapping[str, Collection[str]]) -> list[str]:
    """Return all names sorted by the length of their longest chain of needs, then by name, so that needs come first."""
    all_needs = {name: tuple(names) for name, names in needs_by_name.items()}
    dependents = graph.dependents(all_needs)
    graph.check_acyclic(all_needs)
    open_need_counts = {name: len(names) for name, names in all_needs.items()}
    levels = {name: 0 for name, count in open_need_counts.items() if not count}
    ready_names = list(levels)
    for name in ready_names:  # grows during the loop
        for dependent in dependents[name]:
            levels[dependent] = max(levels.get(dependent, 0), levels[name] + 1)
            open_need_counts[dependent] -= 1
            if not open_need_counts[dependent]:
                ready_names.append(dependent)
    return sorted(levels, key=lambda name: (levels[name], name))


def transitive_needs(name: str, needs_by_name: Mapping[str, Collection[str]]) -> set[str]:
    """Return the names of all jobs that a job needs, directly or indirectly."""
    visited: set[str] = set()
    unvisited_names = [name]
    while unvisited_names:
        for need in needs_by_name[unvisited_names.pop()]:
            if need not in visited:
                visited.add(need)
                unvisited_names.append(need)
    return visited


def uploads_artifacts(job: model.Job) -> bool:
    """Return whether a job stores artifacts, by `artifacts` or in a step."""
    return bool(job.artifacts) or any(step.uses == "upload-artifact" for step in job.steps or ())


def downloads_artifacts(job: model.Job) -> bool:
    """Return whether a step of the job downloads artifacts of other jobs."""
    return any(step.uses == "download-artifact" for step in job.steps or ())


def _needs_with_used_outputs(references: Iterable[ContextReference], needs: Collection[str]) -> set[str]:
    """Return the needs whose outputs are referenced. References to `needs.ID.result` do not count."""
    used_needs: set[str] = set()
    needs_by_folded_name = {need.lower(): need for need in needs}
    for reference in references:
        if reference.context != "needs":
            continue
        match reference.keys:
            case (_, "result", *_):
                continue
            case (need_id, *_) if need_id != ANY_KEY:
                used_needs |= (
                    {needs_by_folded_name[need_id.lower()]} if need_id.lower() in needs_by_folded_name else set()
                )
            case _:
                used_needs |= set(needs)
    return used_needs


def _interpolated_texts(job: model.Job) -> Iterable[str]:
    """Yield all texts of a job in which the runner evaluates expressions."""
    for step in job.steps or ():
        yield from (step.run or "", step.name, step.shell or "", step.working_directory or "")
        yield from (value for value in (*step.env.values(), *step.with_.values()) if isinstance(value, str))
    yield from job.outputs.values()
    yield from (value for value in job.env.values() if isinstance(value, str))
    for service in job.services.values():
        yield from (value for value in (service.image, *service.env.values()) if isinstance(value, str))
    yield from (artifact.path for artifact in job.artifacts)
    for cache in job.caches:
        yield from (cache.key, *cache.paths)
    for rule in job.validate:
        yield from evaluated_texts(rule)


def _job_id(requested_name: str, jobs: Mapping[str, model.Job]) -> str:
    """Return the job id for a requested name, which may be the name of a matrix job, such as `test (3.12)`."""
    return requested_name if requested_name in jobs else requested_name.partition(" (")[0]


def _escape_pattern(file_path: str) -> str:
    """Return a path pattern that matches only this path."""
    return "".join(f"\\{char}" if char in "*?+[]{}\\!" else char for char in file_path)
