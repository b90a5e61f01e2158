"""The pipeline files of a commit, read, and what they make of a change: the one place that knows all readers."""

from __future__ import annotations

from collections.abc import Collection

import msgspec
from msgspec.structs import replace

from deltaci.control.comparing import Compared
from deltaci.control.git import GitFailed
from deltaci.control.mirrors import MAX_FILE_BYTES, Mirror
from deltaci.core.job import APPROVAL, Gate
from deltaci.core.plan import plan_hash
from deltaci.pipeline.change import Change
from deltaci.pipeline.compile import UNTRUSTED, compile, triggered
from deltaci.pipeline.files import Kind, pipeline_files, read_pipeline
from deltaci.pipeline.plan import Plan
from deltaci.pipeline.problems import Problem
from deltaci.pipeline.reader import Found
from deltaci.wire.messages import Source


class PipelineFile(msgspec.Struct, frozen=True, kw_only=True):
    """One pipeline of a commit: what was read, or all that is wrong with it."""

    name: str
    kind: Kind
    found: Found

    @property
    def problems(self) -> tuple[Problem, ...]:
        """What keeps it from being used."""
        return tuple(each for each in self.found.problems if not each.is_warning)


class NoPlan(Exception):
    """A file has problems: here they are, each with its place."""

    def __init__(self, problems: Collection[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


async def pipelines_at(mirror: Mirror, commit: str, only: str = "") -> list[PipelineFile]:
    """Every pipeline of a commit, by name: its own files, else GitHub's, else what is discovered."""
    files = pipeline_files(await mirror.files(commit))
    found: list[PipelineFile] = []
    for path in files.paths:
        if not only or path == only:
            found.append(await _read(mirror, commit, path, files.kind))
    return found


async def _read(mirror: Mirror, commit: str, path: str, kind: Kind) -> PipelineFile:
    try:
        content = await mirror.read(commit, path)
    except GitFailed as error:
        problem = Problem(
            file=path,
            line=1,
            column=1,
            found=f"it cannot be read: {error}",
            expected=f"at most {MAX_FILE_BYTES:,} bytes",
        )
        return PipelineFile(name=path, kind=kind, found=Found(file=path, pipeline=None, problems=(problem,)))
    return PipelineFile(name=path, kind=kind, found=read_pipeline(kind, path, content))


def is_triggered(file: PipelineFile, change: Change, changed: Collection[str] | None) -> tuple[bool, str]:
    """Whether the file runs for this change, and why. One that cannot be read runs, and so shows what is wrong."""
    if file.found.pipeline is None:
        return True, f"it has {len(file.problems)} problems, and cannot say when it runs"
    return triggered(file.found.pipeline, change, changed)


def planned(
    file: PipelineFile, change: Change, diff: Compared, source: Source, *, run_id: str = "", fork_role: str = ""
) -> Plan:
    """What the file makes of the change; `NoPlan` with all of its problems."""
    compiled = compile(
        file.found,
        change,
        changed=diff.changed,
        unknown_because=diff.why,
        source=source,
        run_id=run_id,
        is_untrusted=change.is_fork,
        adds_secrets=file.kind == "github",
    )
    if compiled.plan is None:
        raise NoPlan([str(each) for each in compiled.problems if not each.is_warning])
    return _guarded(compiled.plan, fork_role) if change.is_fork else compiled.plan


def _guarded(plan: Plan, role: str) -> Plan:
    """Whoever sent a change from a fork does not approve it; who does needs the role that the project names."""
    gate = Gate(role=role, not_by_starter=True)
    kept = tuple(
        replace(each, spec=replace(each.spec, gate=gate))
        if each.code == UNTRUSTED and each.job == each.spec.name and each.spec.kind == APPROVAL
        else each
        for each in plan.kept
    )
    specs = [each.spec for each in kept]
    hash = plan_hash(specs, is_fail_fast=plan.is_fail_fast, timeout_seconds=plan.timeout_seconds)
    return replace(plan, kept=kept, hash=hash)
