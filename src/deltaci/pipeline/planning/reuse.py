"""Leave out the jobs of a plan that have succeeded with equal inputs.

A job is reused only if its latest result with equal inputs, of any commit, is a success. The changed paths do not
matter. A job whose outputs or artifacts another job uses is reused only together with that job, and only if both have
their results from the same run: equal inputs do not mean equal outputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec.structs import replace

from deltaci.core.results import (
    JobResult,
    ResultKey,
    is_recent_success,
    job_key,
    latest_results,
    sufficient_trusts,
)
from deltaci.core.run import Origin
from deltaci.pipeline.planning.compile import UNTRUSTED
from deltaci.pipeline.planning.job_filter import UNTESTED
from deltaci.pipeline.planning.plan import Plan, PlannedJob, exclude_jobs, hash_of

REUSED: Final = "reused"
NOT_REUSABLE: Final = "not_reusable"
# The codes of a plan from which jobs were left out here, and their meanings. The codes are part of the API.
CODES: Final[Mapping[str, str]] = {
    REUSED: "left out: it has succeeded with equal inputs; `run` and `commit` say where",
    NOT_REUSABLE: "kept: no changed file affects it, but a job like this one always runs; the reason says why",
}
SHORT_COMMIT: Final = 7
REUSED_NEED: Final[Mapping[str, Any]] = {"result": "success", "outputs": {}}


def result_keys(plan: Plan, tenant: str, origin: Origin) -> list[ResultKey]:
    """Return the keys of all results that the jobs of the plan could be left out for."""
    return [
        ResultKey(tenant, origin.project, trust, job_key(plan.file, job.spec.name), job.spec.inputs)
        for job in plan.jobs
        if job.spec.inputs
        for trust in sufficient_trusts(origin)
    ]


def leave_out_reused(plan: Plan, results: Sequence[JobResult], now: int) -> Plan:
    """Return the plan without the jobs that have succeeded with equal inputs. `results` are those of `result_keys`."""
    latest = latest_results(results)
    result_by_name = {
        job.spec.name: result
        for job in plan.jobs
        if job.spec.inputs and (result := latest.get((job_key(plan.file, job.spec.name), job.spec.inputs)))
    }
    reused = _reused_results(plan, result_by_name, now)
    explained = replace(plan, jobs=tuple(_explained(job, result_by_name.get(job.spec.name), now) for job in plan.jobs))
    if not reused:
        return explained
    reasons = {
        name: (REUSED, f"unchanged since {result.commit[:SHORT_COMMIT]}, where it succeeded with equal inputs")
        for name, result in reused.items()
    }
    remaining = exclude_jobs(explained, reasons, are_done=True)
    excluded = tuple(
        replace(job, run=reused[job.name].run_id, commit=reused[job.name].commit) if job.code == REUSED else job
        for job in remaining.excluded
    )
    jobs = _with_reused_needs(plan, remaining.jobs, set(reused))
    if all(job.code == UNTRUSTED for job in jobs):
        jobs = ()  # Nothing is left to approve.
    return replace(remaining, jobs=jobs, excluded=excluded, hash=hash_of(plan, [job.spec for job in jobs]))


def _reused_results(plan: Plan, result_by_name: Mapping[str, JobResult], now: int) -> dict[str, JobResult]:
    """Return the result of each job that can be left out, by name."""
    reused = {name: result for name, result in result_by_name.items() if is_recent_success(result, now)}
    names_by_id: dict[str, list[str]] = {}
    for job in plan.jobs:
        names_by_id.setdefault(job.job, []).append(job.spec.name)
    links = {(job.job, need) for job in plan.jobs for need in job.reads if need in names_by_id}
    # The run of all results of a job, of all its combinations; empty if not all are reused from one run.
    run_by_id: dict[str, str] = {}
    for id in {id for link in links for id in link}:
        runs = {reused[name].run_id if name in reused else "" for name in names_by_id[id]}
        run_by_id[id] = runs.pop() if len(runs) == 1 else ""
    is_changed = True
    while is_changed:
        is_changed = False
        for reader, need in links:
            if run_by_id[reader] != run_by_id[need]:
                run_by_id[reader] = run_by_id[need] = ""
                is_changed = True
    for id, run_id in run_by_id.items():
        for name in names_by_id[id] if not run_id else ():
            reused.pop(name, None)
    return reused


def _explained(job: PlannedJob, result: JobResult | None, now: int) -> PlannedJob:
    """Return a job that no changed file affects with the reason why it runs nevertheless; other jobs unchanged."""
    if job.code != UNTESTED:
        return job
    if job.not_reusable:
        return replace(job, code=NOT_REUSABLE, reason=f"{job.reason}, but {job.not_reusable}")
    if result is None:
        why = "it has not succeeded with equal inputs"
    elif is_recent_success(result, now):
        why = "a job that uses its outputs or artifacts, or whose outputs or artifacts it uses, runs"
    else:
        why = f"its latest result with equal inputs, {result.state} in run {result.run_id}, does not count"
    return replace(job, reason=f"{job.reason}, but {why}")


def _with_reused_needs(plan: Plan, jobs: Sequence[PlannedJob], reused_names: set[str]) -> tuple[PlannedJob, ...]:
    """Return the jobs with the results of left-out jobs in their context `needs`, as if these had just succeeded."""
    id_by_name = {job.spec.name: job.job for job in plan.jobs}
    remaining_ids = {job.job for job in jobs}

    def with_needs(job: PlannedJob) -> PlannedJob:
        work = job.spec.work if isinstance(job.spec.work, dict) else {}
        reused_needs = [name for name in work.get("needs", ()) if name in reused_names]
        if not reused_needs:
            return job
        reused_ids = sorted({id_by_name[name] for name in reused_needs} - remaining_ids)
        contexts = {**work["contexts"], "needs": dict.fromkeys(reused_ids, REUSED_NEED)}
        needs = [name for name in work["needs"] if name not in reused_names]
        return replace(job, spec=replace(job.spec, work={**work, "needs": needs, "contexts": contexts}))

    return tuple(map(with_needs, jobs))
