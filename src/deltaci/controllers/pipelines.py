"""Read the pipeline files of a commit and plan them for a change."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import Final, TypeVar

from msgspec.structs import replace

from deltaci.controllers.comparison import ChangedPaths
from deltaci.core.approvals import Gate
from deltaci.core.errors import Refused
from deltaci.core.job import APPROVAL
from deltaci.core.plan import plan_hash
from deltaci.git.mirrors import MAX_FILE_BYTES, Mirror
from deltaci.pipeline.change import Change
from deltaci.pipeline.parse.parse_result import ParseResult
from deltaci.pipeline.parse.problems import Problem
from deltaci.pipeline.pipeline_files import DISCOVERED, PipelineFile, ReadFile, discover, pipeline_files, read_file
from deltaci.pipeline.planning.compile import UNTRUSTED, check_triggers, compile_pipeline
from deltaci.pipeline.planning.plan import Plan
from deltaci.protocol.messages import Source

MAX_ROUNDS: Final = 10  # Of files that name files that name files.
MAX_OTHERS: Final = 1000

T = TypeVar("T")


class PlanFailedError(Exception):
    """A pipeline file cannot be planned. `problems` are texts with file and position."""

    def __init__(self, problems: Collection[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


async def pipelines_at(mirror: Mirror, commit: str, only: str = "") -> list[PipelineFile]:
    """Every pipeline of a commit, by name: its own files, else GitHub's, else what is discovered. Or the one named."""
    paths = await mirror.list_files(commit)
    known = frozenset(paths)
    if only == DISCOVERED:
        return await _discovered(mirror, commit, paths)
    names = ((only,) if only in known else ()) if only else pipeline_files(known)
    if not names:
        return [] if only else await _discovered(mirror, commit, paths)
    contents = await mirror.read_files(commit, names)
    return [await _read(mirror, commit, paths, name, contents.get(name)) for name in names]


async def _read(mirror: Mirror, commit: str, paths: Sequence[str], name: str, content: bytes | None) -> PipelineFile:
    if content is None:
        expected = f"expected at most {MAX_FILE_BYTES:,} bytes"
        problem = Problem(file=name, line=1, column=1, found="it is too large", expected=expected)
        return PipelineFile(kind="own", result=ParseResult(file=name, pipeline=None, problems=(problem,)))
    return await _with_others(mirror, commit, lambda read: read_file(name, content, paths, read))


async def _discovered(mirror: Mirror, commit: str, paths: Sequence[str]) -> list[PipelineFile]:
    try:
        return [await _with_others(mirror, commit, lambda read: discover(paths, read))]
    except Refused:
        return []  # Nothing is sure enough.


async def _with_others(mirror: Mirror, commit: str, make: Callable[[ReadFile], T]) -> T:
    """Make it, with the texts of other files that it asks for: again, until it asks for nothing new."""
    texts: dict[str, bytes | None] = {}
    for _ in range(MAX_ROUNDS):
        missing: dict[str, None] = {}

        def read(path: str, missing: dict[str, None] = missing) -> bytes | None:
            if path not in texts:
                missing[path] = None
            return texts.get(path)

        try:
            made = await asyncio.to_thread(make, read)
        except Refused:
            if not missing:
                raise
        else:
            if not missing or len(texts) >= MAX_OTHERS:
                return made
        wanted = list(missing)[: MAX_OTHERS - len(texts)]
        found = await mirror.read_files(commit, wanted)
        texts.update((path, found.get(path)) for path in wanted)
    return await asyncio.to_thread(make, texts.get)


def problems_of(file: PipelineFile) -> tuple[Problem, ...]:
    """What keeps it from being used."""
    return tuple(each for each in file.result.problems if not each.is_warning)


def is_triggered(file: PipelineFile, change: Change, changed: Collection[str] | None) -> tuple[bool, str]:
    """Whether the file runs for this change, and why. One that cannot be read runs, and so shows what is wrong."""
    if file.result.pipeline is None:
        return True, f"it has {len(problems_of(file))} problems, so its triggers are unknown"
    return check_triggers(file.result.pipeline, change, changed)


async def planned(
    file: PipelineFile, change: Change, diff: ChangedPaths, source: Source, *, run_id: str = "", fork_role: str = ""
) -> Plan:
    """What the file makes of the change; `PlanFailedError` with all of its problems."""
    compiled = await asyncio.to_thread(
        compile_pipeline,
        file.result,
        change,
        changed=diff.changed,
        unknown_because=diff.why,
        source=source,
        run_id=run_id,
        is_untrusted=change.is_fork,
        grants_mentioned_secrets=file.grants_mentioned_secrets,
    )
    if compiled.plan is None:
        raise PlanFailedError([str(each) for each in compiled.problems if not each.is_warning])
    return _guarded(compiled.plan, fork_role) if change.is_fork else compiled.plan


def _guarded(plan: Plan, role: str) -> Plan:
    """Whoever sent a change from a fork does not approve it; who does needs the role that the project names."""
    gate = Gate(role=role, not_by_starter=True)
    jobs = tuple(
        replace(each, spec=replace(each.spec, gate=gate))
        if each.code == UNTRUSTED and each.spec.kind == APPROVAL
        else each
        for each in plan.jobs
    )
    specs = [each.spec for each in jobs]
    hash = plan_hash(specs, is_fail_fast=plan.is_fail_fast, timeout_seconds=plan.timeout_seconds)
    return replace(plan, jobs=jobs, hash=hash)
