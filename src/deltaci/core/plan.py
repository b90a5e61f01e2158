"""What a plan is: its order, its hash, and whether it makes sense."""

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
    """What each of these named steps needs, at its position.

    When none says what it needs, each waits for the one before. As soon as one does, even that it needs nothing, they
    are a graph as written, and who says nothing needs nothing.
    """
    if all(needs is None for _, needs in steps):
        chain = graph.chain([name for name, _ in steps])
        return tuple(chain[name] for name, _ in steps)
    return tuple(tuple(needs or ()) for _, needs in steps)


def plan_hash(
    jobs: Sequence[JobSpec],
    *,
    is_fail_fast: bool = False,
    has_validation: bool = False,
    timeout_seconds: int = run.TIMEOUT_SECONDS,
) -> str:
    """What a person approves, as one name: the same plan has the same hash, whatever order its dicts are written in."""
    whole = {
        "jobs": jobs,
        "is_fail_fast": is_fail_fast,
        "has_validation": has_validation,
        "timeout_seconds": timeout_seconds,
    }
    return sha256(msgspec.json.encode(whole, order="sorted")).hexdigest()


def prerequisites(spec: JobSpec) -> tuple[str, ...]:
    """Every job that must be over before this one: those that it needs, and those that it only comes after."""
    return (*spec.needs, *(name for name in spec.after if name not in spec.needs)) if spec.after else spec.needs


def followers(jobs: Sequence[JobSpec]) -> dict[str, tuple[str, ...]]:
    """For every job that others only come after, who does: its end is enough for them, however it ended."""
    found: dict[str, list[str]] = {}
    for spec in jobs:
        for name in prerequisites(spec)[len(spec.needs) :]:
            found.setdefault(name, []).append(spec.name)
    return {name: tuple(waiting) for name, waiting in found.items()}


def dependents(jobs: Sequence[JobSpec]) -> dict[str, tuple[str, ...]]:
    """For every job of the plan, who needs its success. Refuses a plan that makes no sense, as a whole."""
    if len(jobs) > run.MAX_JOBS:
        raise Refused("bad_request", f"the plan has {len(jobs)} jobs; a run takes at most {run.MAX_JOBS}")
    needs = {spec.name: spec.needs for spec in jobs}
    if len(needs) != len(jobs):
        raise Refused("bad_request", "two jobs of the plan have the same name; name each once")
    for spec in jobs:
        _check_spec(spec)
        # Attempts are named after their jobs: `build.1` is the first one of `build`.
        head, _, number = spec.name.rpartition(".")
        if head in needs and number.isdecimal():
            raise Refused(
                "bad_request", f"job {spec.name!r} has the name of an attempt of job {head!r}; give it another name"
            )
    waiting = graph.dependents(needs)
    after = {spec.name: spec.after for spec in jobs if spec.after}
    if after:
        graph.dependents({name: after.get(name, ()) for name in needs}, "is after")
    graph.check_acyclic({spec.name: prerequisites(spec) for spec in jobs} if after else needs)
    return waiting


def _check_spec(spec: JobSpec) -> None:
    if not spec.name:
        raise Refused("bad_request", "a job of the plan has no name; name each")
    if spec.kind not in (TASK, APPROVAL):
        raise Refused("bad_request", f"job {spec.name!r} is of kind {spec.kind!r}; a job is a {TASK} or an {APPROVAL}")
    if spec.kind == TASK and not spec.gate.is_plain:
        raise Refused("bad_request", f"job {spec.name!r} is a {TASK} and has a gate; only an {APPROVAL} has one")
    if not set(spec.retry_on) <= set(failures.RETRYABLE):
        known = ", ".join(failures.RETRYABLE)
        raise Refused(
            "bad_request",
            f"job {spec.name!r} is to be retried on {', '.join(spec.retry_on)}; only {known} are ever worth it: "
            "what is the job's own fault would end in the same way",
        )
    if len(spec.group) > MAX_GROUP_CHARS or not spec.group.isprintable():
        raise Refused(
            "bad_request",
            f"job {spec.name!r} has the group {spec.group[:40]!r}; a group is at most {MAX_GROUP_CHARS} "
            "characters that can be printed",
        )
    if spec.kind == APPROVAL and spec.group:
        raise Refused(
            "bad_request", f"job {spec.name!r} is an {APPROVAL} with a group; only a {TASK} has one, no worker gets it"
        )
    approvals.check_gate(spec.name, spec.gate)


def rerun_jobs(of: Run, jobs: Iterable[Job], *, failed_only: bool) -> tuple[JobSpec, ...]:
    """What the new run has to do, in the order of the old plan; `jobs` are all of the old run's.

    Of what did not succeed, each job still waits for whatever of it is repeated, also where jobs between them are not.
    Who came after one of them saw how it ended, and is repeated as well.
    """
    if not run.is_over(of):
        raise Refused("wrong_state", f"run {of.id} is {of.state}; wait for its end, or cancel it, to repeat it")
    if not can_rerun(of.state, of.reason):
        raise Refused("wrong_state", f"run {of.id} never had a plan ({of.reason}); start a new run")
    known = {each.spec.name: each for each in sorted(jobs, key=lambda each: each.position)}
    specs = [each.spec for each in known.values()]
    if not failed_only:
        return tuple(specs)
    again = job_names_to_rerun(known)
    if not again:
        raise Refused("wrong_state", f"nothing failed in run {of.id}; repeat all of it instead")
    return without_jobs(specs, again)


def can_rerun(state: str, reason: str) -> bool:
    """Whether a run that is like this is over, and had a plan."""
    return run.is_over_state(state) and reason not in _UNPLANNED


def job_names_to_rerun(known: Mapping[str, Job]) -> set[str]:
    """The names of what has to be done again: what did not succeed, who came after that, and approvals on the way."""
    all_ = {name: [need for need in prerequisites(each.spec) if need in known] for name, each in known.items()}
    lost = [name for name, each in known.items() if not job.satisfies(each)]
    again = {*lost, *_reachable(lost, graph.dependents(all_))}
    return again | {name for name in _reachable(again, all_) if known[name].spec.kind == job.APPROVAL}


def without_jobs(specs: Sequence[JobSpec], kept: Collection[str]) -> tuple[JobSpec, ...]:
    """A plan without those that are not kept, as if they were done: in their place stands what they waited for."""
    needs = {spec.name: spec.needs for spec in specs}
    all_ = {spec.name: prerequisites(spec) for spec in specs}
    needed, waits = _contract(needs, kept), _contract(all_, kept)
    return tuple(
        msgspec.structs.replace(
            spec,
            needs=needed[spec.name],
            # What was between them may have failed and let it go on all the same: then it waits for no success.
            after=tuple(name for name in waits[spec.name] if name not in needed[spec.name]),
        )
        for spec in specs
        if spec.name in kept
    )


def _reachable(names: Iterable[str], needs: Mapping[str, Sequence[str]]) -> set[str]:
    """Everything that can be reached from these, directly or not."""
    found, stack = set[str](), list(names)
    while stack:
        new = [need for need in needs[stack.pop()] if need not in found]
        found.update(new)
        stack += new
    return found


def _contract(needs: Mapping[str, Sequence[str]], kept: Collection[str]) -> dict[str, tuple[str, ...]]:
    """What each job needs of those that are kept; in place of one that is not stands what that one needs."""
    waits: dict[str, tuple[str, ...]] = {}
    stack = [*needs]
    while stack:
        name = stack[-1]
        open_ = [need for need in needs[name] if need not in waits] if name not in waits else []
        if open_:
            stack += open_
            continue
        stack.pop()
        if name not in waits:
            through = (each for need in needs[name] for each in ((need,) if need in kept else waits[need]))
            waits[name] = tuple(dict.fromkeys(through))
    return waits
