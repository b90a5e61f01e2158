"""A plan: what a change makes of a pipeline, with the reason for every job. Same inputs, same plan."""

from __future__ import annotations

import msgspec

from deltaci.core.job import JobSpec


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """A job of the run, and why it is one."""

    spec: JobSpec
    job: str  # its id in the file; jobs of a matrix share it
    code: str
    reason: str
    path: str = ""
    matrix: dict[str, object] = {}


class LeftOut(msgspec.Struct, frozen=True, kw_only=True):
    """A job that is not part of the run, and why not."""

    name: str
    job: str
    code: str
    reason: str


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What a run does. `hash` is what a person approves: see `deltaci.core.plan.plan_hash`."""

    file: str
    name: str
    kept: tuple[Kept, ...]
    left_out: tuple[LeftOut, ...] = ()
    hash: str = ""
    is_fail_fast: bool = False
    timeout_seconds: int = 6 * 3600
    group: str = ""  # of runs: of all with the same one, one goes on at a time
    cancels_in_progress: bool = False
    compared_with: str = ""  # the commit that the diff was taken against; empty: it is not known what changed
