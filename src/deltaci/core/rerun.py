"""The plan of a run that repeats another one, all of it or only what did not succeed. No approval is ever inherited."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from deltaci.core import graph, job, plan, run
from deltaci.core.errors import Refused
from deltaci.core.job import Job, JobSpec
from deltaci.core.run import Run

_UNPLANNED: Final = ("PLAN_FAILED", "PLAN_TIMEOUT")


def rerun(of: Run, jobs: Iterable[Job], *, failed_only: bool) -> tuple[JobSpec, ...]:
    """What the new run has to do, in the order of the old plan; `jobs` are all of the old run's.

    Of what did not succeed, each job still waits for whatever of it is repeated, also where jobs between them are not.
    Who came after one of them saw how it ended, and is repeated as well.
    """
    if not run.is_over(of):
        raise Refused("wrong_state", f"run {of.id} is {of.state}; wait for its end, or cancel it, to repeat it")
    if not can_repeat(of.state, of.reason):
        raise Refused("wrong_state", f"run {of.id} never had a plan ({of.reason}); start a new run")
    known = {each.spec.name: each for each in sorted(jobs, key=lambda each: each.position)}
    specs = [each.spec for each in known.values()]
    if not failed_only:
        return tuple(specs)
    again = repeated(known)
    if not again:
        raise Refused("wrong_state", f"nothing failed in run {of.id}; repeat all of it instead")
    return narrowed(specs, again)


def can_repeat(state: str, reason: str) -> bool:
    """Whether a run that is like this is over, and had a plan."""
    return run.is_outcome(state) and reason not in _UNPLANNED


def repeated(known: Mapping[str, Job]) -> set[str]:
    """The names of what has to be done again: what did not succeed, who came after that, and approvals on the way."""
    all_ = {name: [need for need in plan.waits_for(each.spec) if need in known] for name, each in known.items()}
    lost = [name for name, each in known.items() if not job.satisfies(each)]
    again = {*lost, *_before(lost, graph.dependents(all_))}
    return again | {name for name in _before(again, all_) if known[name].spec.kind == job.APPROVAL}


def narrowed(specs: Sequence[JobSpec], kept: Collection[str]) -> tuple[JobSpec, ...]:
    """A plan without those that are not kept, as if they were done: in their place stands what they waited for."""
    needs = {spec.name: spec.needs for spec in specs}
    all_ = {spec.name: plan.waits_for(spec) for spec in specs}
    needed, waits = _contracted(needs, kept), _contracted(all_, kept)
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


def _before(names: Iterable[str], needs: Mapping[str, Sequence[str]]) -> set[str]:
    """Everything that can be reached from these, directly or not."""
    found, stack = set[str](), list(names)
    while stack:
        new = [need for need in needs[stack.pop()] if need not in found]
        found.update(new)
        stack += new
    return found


def _contracted(needs: Mapping[str, Sequence[str]], kept: Collection[str]) -> dict[str, tuple[str, ...]]:
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
