"""A plan: what a change makes of a pipeline, with the reason for every job. Same inputs, same plan."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec import structs

from deltaci.core import graph
from deltaci.core.job import JobSpec
from deltaci.core.plan import plan_hash, restrict


class PlannedJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job of the run, and why it is one."""

    spec: JobSpec
    job: str  # its id in the file; jobs of a matrix share it
    code: str
    reason: str
    path: str = ""
    matrix: dict[str, object] = {}


class ExcludedJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job that is not part of the run, and why not."""

    name: str
    job: str
    code: str
    reason: str


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What a run does. `hash` is what a person approves: see `deltaci.core.plan.plan_hash`."""

    file: str
    name: str
    jobs: tuple[PlannedJob, ...]
    excluded: tuple[ExcludedJob, ...] = ()
    hash: str = ""
    is_fail_fast: bool = False
    timeout_seconds: int = 6 * 3600
    group: str = ""  # of runs: of all with the same one, one goes on at a time
    cancels_in_progress: bool = False
    compared_with: str = ""  # the commit that the diff was taken against; empty: it is not known what changed


def exclude_jobs(plan: Plan, reasons: Mapping[str, tuple[str, str]], *, are_done: bool) -> Plan:
    """The same plan without these jobs, each with a code and a reason.

    What needs one of them goes on as if it were done, or is left out as well.
    """
    gone = dict(reasons)
    if not are_done:
        _take_along(plan, gone)
    kept = {each.spec.name: each for each in plan.jobs if each.spec.name not in gone}
    specs = restrict([each.spec for each in plan.jobs], kept)
    changed = tuple(structs.replace(kept[spec.name], spec=spec) for spec in specs)
    left = [
        ExcludedJob(name=each.spec.name, job=each.job, code=gone[each.spec.name][0], reason=gone[each.spec.name][1])
        for each in plan.jobs
        if each.spec.name in gone
    ]
    hash = plan_hash(specs, is_fail_fast=plan.is_fail_fast, timeout_seconds=plan.timeout_seconds)
    return structs.replace(plan, kept=changed, left_out=(*plan.excluded, *left), hash=hash)


def _take_along(plan: Plan, gone: dict[str, tuple[str, str]]) -> None:
    """Leave out whatever needs something that is left out, directly or not."""
    waiting = graph.dependents({each.spec.name: each.spec.needs for each in plan.jobs})
    front = [name for name in gone if name in waiting]
    for name in front:  # grows while it is read
        for other in waiting[name]:
            if other not in gone:
                gone[other] = ("need_left_out", f"it needs {name}, which is left out")
                front.append(other)
