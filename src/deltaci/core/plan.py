"""The plan of a run: the order of its jobs, its hash and its checks, and the plan of a rerun."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Final

import msgspec

from deltaci.core import approvals, failures, graph, job, run
from deltaci.core.errors import Refused
from deltaci.core.job import APPROVAL, TASK, Job, JobSpec
from deltaci.core.run import Run

MAX_GROUP_CHARS: Final = 200
_UNPLANNED: Final = ("PLAN_FAILED", "PLAN_TIMEOUT")


def resolve_needs(steps: Sequence[tuple[str, Sequence[str] | None]]) -> tuple[tuple[str, ...], ...]:
    """Return, for each step, the names of the steps that it needs. A step is its name and its declared needs, or None.

    If no step declares its needs, each needs the one before. If any does, even an empty list, the steps are a graph,
    and a step without declared needs has none.
    """
    if all(needs is None for _, needs in steps):
        needs_by_name = graph.chain([name for name, _ in steps])
        return tuple(needs_by_name[name] for name, _ in steps)
    return tuple(tuple(needs or ()) for _, needs in steps)


def plan_hash(
    specs: Sequence[JobSpec],
    *,
    is_fail_fast: bool = False,
    has_validation: bool = False,
    timeout_seconds: int = run.TIMEOUT_SECONDS,
    optional_wait_seconds: int = run.OPTIONAL_WAIT_SECONDS,
) -> str:
    """Return the SHA-256 of these fields of a plan, in hex. The order of dict keys does not matter."""
    hashed_fields = {
        "jobs": specs,
        "is_fail_fast": is_fail_fast,
        "has_validation": has_validation,
        "timeout_seconds": timeout_seconds,
    }
    if optional_wait_seconds != run.OPTIONAL_WAIT_SECONDS:  # Plans of older versions keep their hash.
        hashed_fields["optional_wait_seconds"] = optional_wait_seconds
    return sha256(msgspec.json.encode(hashed_fields, order="sorted")).hexdigest()


def prerequisites(spec: JobSpec) -> tuple[str, ...]:
    """Return the names of all jobs that must end before this one: its needs, then the other names in its `after`."""
    return (*spec.needs, *(name for name in spec.after if name not in spec.needs)) if spec.after else spec.needs


def followers(jobs: Sequence[JobSpec]) -> dict[str, tuple[str, ...]]:
    """Return, for each job, the names of the jobs that wait only for its end. Jobs without such are omitted."""
    followers_by_name: dict[str, list[str]] = {}
    for spec in jobs:
        for name in prerequisites(spec)[len(spec.needs) :]:
            followers_by_name.setdefault(name, []).append(spec.name)
    return {name: tuple(follower_names) for name, follower_names in followers_by_name.items()}


def dependents(jobs: Sequence[JobSpec]) -> dict[str, tuple[str, ...]]:
    """Return, for each job, the names of the jobs that need its success. Refuse an invalid plan."""
    if len(jobs) > run.MAX_JOBS:
        raise Refused("bad_request", f"the plan has {len(jobs)} jobs; a run takes at most {run.MAX_JOBS}")
    needs_by_name = {spec.name: spec.needs for spec in jobs}
    if len(needs_by_name) != len(jobs):
        raise Refused("bad_request", "two jobs of the plan have the same name; give each its own name")
    for spec in jobs:
        _check_spec(spec)
        # The id of an attempt is derived from its job's: `build.1` is the first attempt of `build`.
        job_name, _, number_text = spec.name.rpartition(".")
        if job_name in needs_by_name and number_text.isdecimal():
            raise Refused(
                "bad_request", f"job {spec.name!r} has the name of an attempt of job {job_name!r}; give it another name"
            )
    dependents_by_name = graph.dependents(needs_by_name)
    after_by_name = {spec.name: spec.after for spec in jobs if spec.after}
    if after_by_name:
        graph.dependents({name: after_by_name.get(name, ()) for name in needs_by_name}, "is after")
    graph.check_acyclic({spec.name: prerequisites(spec) for spec in jobs} if after_by_name else needs_by_name)
    return dependents_by_name


def _check_spec(spec: JobSpec) -> None:
    """Refuse a job spec without a name, or with a kind, group, gate or `retry_on` that is not allowed."""
    if not spec.name:
        raise Refused("bad_request", "a job of the plan has no name; give each a name")
    if spec.kind not in (TASK, APPROVAL):
        raise Refused("bad_request", f"job {spec.name!r} is of kind {spec.kind!r}; a job is a {TASK} or an {APPROVAL}")
    if spec.kind == TASK and not spec.gate.is_plain:
        raise Refused("bad_request", f"job {spec.name!r} is a {TASK} and has a gate; only an {APPROVAL} has one")
    if not set(spec.retry_on) <= set(failures.RETRYABLE):
        retryable = ", ".join(failures.RETRYABLE)
        raise Refused(
            "bad_request",
            f"job {spec.name!r} is to be retried on {', '.join(spec.retry_on)}; only {retryable} can be retried: "
            "a failure of the job itself would happen again",
        )
    if len(spec.group) > MAX_GROUP_CHARS or not spec.group.isprintable():
        raise Refused(
            "bad_request",
            f"job {spec.name!r} has the group {spec.group[:40]!r}; a group is at most {MAX_GROUP_CHARS} "
            "printable characters",
        )
    if spec.kind == APPROVAL and spec.group:
        raise Refused("bad_request", f"job {spec.name!r} is an {APPROVAL} with a group; only a {TASK} may have one")
    approvals.check_gate(spec.name, spec.gate)


def rerun_jobs(original_run: Run, jobs: Iterable[Job], *, failed_only: bool) -> tuple[JobSpec, ...]:
    """Return the jobs of a run that repeats `original_run`, in the order of its plan. `jobs` are all of its jobs.

    With `failed_only`, these are the jobs that did not succeed, the jobs after them, because they saw the old result,
    and the approvals before these; no approval is inherited. Dependencies through omitted jobs are kept.
    """
    if not run.is_over(original_run):
        raise Refused(
            "wrong_state",
            f"run {original_run.id} is {original_run.state}; wait for its end, or cancel it, to repeat it",
        )
    if not can_rerun(original_run.state, original_run.reason):
        raise Refused("wrong_state", f"run {original_run.id} never had a plan ({original_run.reason}); start a new run")
    jobs_by_name = {job.spec.name: job for job in sorted(jobs, key=lambda job: job.position)}
    specs = [job.spec for job in jobs_by_name.values()]
    if not failed_only:
        return tuple(specs)
    names_to_rerun = job_names_to_rerun(jobs_by_name)
    if not names_to_rerun:
        raise Refused("wrong_state", f"nothing failed in run {original_run.id}; repeat all of it instead")
    return restrict(specs, names_to_rerun)


def can_rerun(state: str, reason: str) -> bool:
    """Return whether a run in this state has ended and, going by its reason, had a plan."""
    return run.is_over_state(state) and reason not in _UNPLANNED


def job_names_to_rerun(job_by_name: Mapping[str, Job]) -> set[str]:
    """Return the names of unsuccessful jobs, of the jobs after them, and of the approvals before any of these jobs."""
    predecessors_by_name = {
        name: [earlier_name for earlier_name in prerequisites(job_record.spec) if earlier_name in job_by_name]
        for name, job_record in job_by_name.items()
    }
    unsuccessful_names = [name for name, job_record in job_by_name.items() if not job.satisfies(job_record)]
    names_to_rerun = {*unsuccessful_names, *_reachable(unsuccessful_names, graph.dependents(predecessors_by_name))}
    return names_to_rerun | {
        name for name in _reachable(names_to_rerun, predecessors_by_name) if job_by_name[name].spec.kind == job.APPROVAL
    }


def restrict(specs: Sequence[JobSpec], names: Collection[str]) -> tuple[JobSpec, ...]:
    """Return the jobs with these names. A dependency on an omitted job is replaced by the dependencies of that job."""
    needs_by_name = {spec.name: spec.needs for spec in specs}
    predecessors_by_name = {spec.name: prerequisites(spec) for spec in specs}
    needs_by_remaining_name, predecessors_by_remaining_name = (
        _contract(needs_by_name, names),
        _contract(predecessors_by_name, names),
    )
    return tuple(
        msgspec.structs.replace(
            spec,
            needs=needs_by_remaining_name[spec.name],
            # A job that is reached only through `after` of an omitted job need not succeed.
            after=tuple(
                name
                for name in predecessors_by_remaining_name[spec.name]
                if name not in needs_by_remaining_name[spec.name]
            ),
        )
        for spec in specs
        if spec.name in names
    )


def _reachable(names: Iterable[str], targets_by_name: Mapping[str, Sequence[str]]) -> set[str]:
    """Return the names that can be reached from `names` by following one or more edges."""
    reached_names, stack = set[str](), list(names)
    while stack:
        unvisited = [name for name in targets_by_name[stack.pop()] if name not in reached_names]
        reached_names.update(unvisited)
        stack += unvisited
    return reached_names


def _contract(
    targets_by_name: Mapping[str, Sequence[str]], remaining_names: Collection[str]
) -> dict[str, tuple[str, ...]]:
    """Return the edges between the remaining names.

    An edge to an omitted name is replaced by the edges from that name.
    """
    contracted_by_name: dict[str, tuple[str, ...]] = {}
    stack = [*targets_by_name]
    while stack:
        name = stack[-1]
        uncontracted_names = (
            [next_name for next_name in targets_by_name[name] if next_name not in contracted_by_name]
            if name not in contracted_by_name
            else []
        )
        if uncontracted_names:
            stack += uncontracted_names
            continue
        stack.pop()
        if name not in contracted_by_name:
            targets = (
                target
                for next_name in targets_by_name[name]
                for target in ((next_name,) if next_name in remaining_names else contracted_by_name[next_name])
            )
            contracted_by_name[name] = tuple(dict.fromkeys(targets))
    return contracted_by_name
