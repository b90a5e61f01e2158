"""What a plan is: its order, its hash, and whether it makes sense."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import Final

import msgspec

from deltaci.core import failures, gates, graph, run
from deltaci.core.errors import Refused
from deltaci.core.job import APPROVAL, TASK, JobSpec

MAX_GROUP_CHARS: Final = 200


def ordered(steps: Sequence[tuple[str, Sequence[str] | None]]) -> tuple[tuple[str, ...], ...]:
    """What each of these named steps needs, at its position.

    When none says what it needs, each waits for the one before. As soon as one does, even that it needs nothing, they
    are a graph as written, and who says nothing needs nothing.
    """
    if all(needs is None for _, needs in steps):
        chain = graph.in_sequence([name for name, _ in steps])
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


def waits_for(spec: JobSpec) -> tuple[str, ...]:
    """Every job that must be over before this one: those that it needs, and those that it only comes after."""
    return (*spec.needs, *(name for name in spec.after if name not in spec.needs)) if spec.after else spec.needs


def followers(jobs: Sequence[JobSpec]) -> dict[str, tuple[str, ...]]:
    """For every job that others only come after, who does: its end is enough for them, however it ended."""
    found: dict[str, list[str]] = {}
    for spec in jobs:
        for name in waits_for(spec)[len(spec.needs) :]:
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
        _check(spec)
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
    graph.check_acyclic({spec.name: waits_for(spec) for spec in jobs} if after else needs)
    return waiting


def _check(spec: JobSpec) -> None:
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
    gates.check(spec.name, spec.gate)
