"""The pipeline files of a commit, read, and what they make of a change: the one place that knows all readers."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from deltaci.control.comparing import Compared
from deltaci.control.git import GitFailed
from deltaci.control.mirrors import MAX_FILE_BYTES, Mirror
from deltaci.core.job import JobSpec
from deltaci.core.plan import plan_hash
from deltaci.pipeline.change import Change
from deltaci.pipeline.files import Kind, pipeline_files
from deltaci.pipeline.plan import Kept, Plan
from deltaci.pipeline.problems import Problem
from deltaci.pipeline.reader import Found, read
from deltaci.wire.messages import Source


class PipelineFile(msgspec.Struct, frozen=True, kw_only=True):
    """One pipeline of a commit: what was read, or all that is wrong with it."""

    name: str
    kind: Kind
    found: Found
    text: str = ""

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
    text = content.decode("utf-8", "replace")
    return PipelineFile(name=path, kind=kind, found=read(content, path), text=text)


def is_triggered(file: PipelineFile, change: Change, changed: Collection[str] | None) -> tuple[bool, str]:
    """Whether the file runs for this change, and why. One that cannot be read runs, and so shows what is wrong."""
    return True, "pushed"


def planned(
    file: PipelineFile, change: Change, diff: Compared, source: Source, *, run_id: str = "", fork_role: str = ""
) -> Plan:
    """What the file makes of the change; `NoPlan` with all of its problems."""
    pipeline = file.found.pipeline
    if pipeline is None or file.problems:
        raise NoPlan([str(each) for each in file.problems])
    kept = tuple(
        Kept(
            spec=JobSpec(name=name, work={"steps": [each.run for each in job.steps or () if each.run]}),
            job=name,
            code="no_paths",
            reason="x",
        )
        for name, job in pipeline.jobs.items()
    )
    group = pipeline.concurrency
    return Plan(
        file=file.name,
        name=pipeline.name or file.name,
        kept=kept,
        hash=plan_hash([each.spec for each in kept]),
        group=group.group if group else "",
        cancels_in_progress=bool(group and group.cancel_in_progress is True),
    )
