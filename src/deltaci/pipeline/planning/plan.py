"""A plan: the jobs that a pipeline runs for a change, and the jobs that it excludes, each with a reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from msgspec import structs

from deltaci.core import graph
from deltaci.core.job import JobSpec
from deltaci.core.plan import plan_hash, restrict
from deltaci.core.run import OPTIONAL_WAIT_SECONDS


class PlannedJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job of the run, with the reason why it is included."""

    spec: JobSpec
    job: str  # its id in the file; the jobs of a matrix share it
    code: str
    reason: str
    path: str = ""  # the changed path because of which it is included, if any
    matrix: dict[str, object] = {}
    reads: tuple[str, ...] = ()  # ids of the jobs whose outputs or artifacts it uses
    not_reusable: str = ""  # why it runs although it may have succeeded with equal inputs


class ExcludedJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job of the file that is not part of the run, with the reason why it is excluded."""

    name: str
    job: str
    code: str
    reason: str
    run: str = ""  # the run in which it succeeded with equal inputs, if it is reused
    commit: str = ""  # the commit of that run


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The jobs of a run, its time limit and its concurrency group.

    People approve a plan by its `hash`: see `deltaci.core.plan.plan_hash`.
    """

    file: str
    name: str
    jobs: tuple[PlannedJob, ...]
    excluded: tuple[ExcludedJob, ...] = ()
    hash: str = ""
    is_fail_fast: bool = False
    timeout_seconds: int = 6 * 3600
    optional_wait_seconds: int = OPTIONAL_WAIT_SECONDS
    group: str = ""  # runs of the same group run one at a time
    cancels_in_progress: bool = False
    compared_with: str = ""  # the commit that the changed paths are relative to; empty: the changed paths are unknown


def hash_of(plan: Plan, specs: Sequence[JobSpec]) -> str:
    """Return the hash of a plan with the settings of `plan` and these jobs."""
    return plan_hash(
        specs,
        is_fail_fast=plan.is_fail_fast,
        timeout_seconds=plan.timeout_seconds,
        optional_wait_seconds=plan.optional_wait_seconds,
    )


def exclude_jobs(plan: Plan, reasons: Mapping[str, tuple[str, str]], *, are_done: bool) -> Plan:
    """Return a plan without some jobs. `reasons` has the code and the reason of each exclusion, by job name.

    If `are_done`, jobs that need an excluded job run as if it had succeeded; otherwise they are excluded as well.
    """
    exclusion_reasons = dict(reasons)
    if not are_done:
        _exclude_dependents(plan, exclusion_reasons)
    included_jobs = {job.spec.name: job for job in plan.jobs if job.spec.name not in exclusion_reasons}
    remaining_specs = restrict([job.spec for job in plan.jobs], included_jobs)
    planned_jobs = tuple(structs.replace(included_jobs[spec.name], spec=spec) for spec in remaining_specs)
    newly_excluded = [
        ExcludedJob(
            name=job.spec.name,
            job=job.job,
            code=exclusion_reasons[job.spec.name][0],
            reason=exclusion_reasons[job.spec.name][1],
        )
        for job in plan.jobs
        if job.spec.name in exclusion_reasons
    ]
    excluded = (*plan.excluded, *newly_excluded)
    return structs.replace(plan, jobs=planned_jobs, excluded=excluded, hash=hash_of(plan, remaining_specs))


def _exclude_dependents(plan: Plan, exclusion_reasons: dict[str, tuple[str, str]]) -> None:
    """Add to `exclusion_reasons` all jobs that need an excluded job, directly or indirectly."""
    dependents = graph.dependents({job.spec.name: job.spec.needs for job in plan.jobs})
    pending = [job_name for job_name in exclusion_reasons if job_name in dependents]
    for job_name in pending:  # grows during the loop
        for dependent in dependents[job_name]:
            if dependent not in exclusion_reasons:
                exclusion_reasons[dependent] = ("need_left_out", f"it needs {job_name}, which is left out")
                pending.append(dependent)
