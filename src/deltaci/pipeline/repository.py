"""Plan the pipelines of a repository: its Delta CI files, else its GitHub workflows, else a detected pipeline.

Callers read the files: the server from a mirror, the command line from a working tree. `pipeline_files` selects the
pipeline files by path, `paths_to_read` returns the files whose contents are needed, `parse_pipelines` parses these, and
`plan_file` compiles one pipeline for a change.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Final, Literal

from msgspec import Struct
from msgspec.structs import replace

from deltaci.core.approvals import Gate
from deltaci.core.job import APPROVAL
from deltaci.pipeline import github
from deltaci.pipeline.change import Change
from deltaci.pipeline.detect import detect_pipeline, files_to_read
from deltaci.pipeline.github.composite_actions import ACTION_FILES
from deltaci.pipeline.parse.parse_result import ParseResult
from deltaci.pipeline.parse.problems import Problem, select_errors
from deltaci.pipeline.parse.reader import parse_pipeline
from deltaci.pipeline.planning.compile import UNTRUSTED, CompileResult, check_triggers, compile_pipeline
from deltaci.pipeline.planning.plan import Plan, hash_of
from deltaci.pipeline.planning.triggers import TriggerCheck
from deltaci.protocol.messages import Source

MAX_FILES: Final = 200
MAX_ACTIONS: Final = 1000
MAX_FILE_BYTES: Final = 1024 * 1024
DISCOVERED: Final = "discovered"  # The file name of a detected pipeline.

Kind = Literal["own", "github", "discovered"]

# Only the files of the first kind that a repository has are used.
_KINDS: Final[tuple[tuple[Kind, re.Pattern[str]], ...]] = (
    ("own", re.compile(r"\.deltaci\.ya?ml|\.deltaci/[^/]+\.ya?ml")),
    ("github", re.compile(r"\.github/workflows/[^/]+\.ya?ml")),
)


class PipelineFile(Struct, frozen=True, kw_only=True):
    """A parsed pipeline file of a repository, or a detected pipeline. `text` is the content of the file."""

    kind: Kind
    result: ParseResult
    text: str = ""


class ChangedPaths(Struct, frozen=True):
    """The paths that a change modified, and the commit that it was compared with.

    `changed` is None if the paths are unknown; `why` is the reason.
    """

    changed: frozenset[str] | None
    base: str = ""
    why: str = ""


def pipeline_files(paths: Collection[str]) -> tuple[str, ...]:
    """Return the paths of the Delta CI files or, if there are none, of the GitHub workflows; sorted, at most 200."""
    for _, pattern in _KINDS:
        file_paths = sorted(path for path in paths if pattern.fullmatch(path))
        if file_paths:
            return tuple(file_paths[:MAX_FILES])
    return ()


def paths_to_read(paths: Collection[str], pipeline_paths: Collection[str]) -> tuple[str, ...]:
    """Return the paths of the files whose contents `parse_pipelines` needs.

    `paths` are all files of the repository, `pipeline_paths` its pipeline files.
    """
    if not pipeline_paths:
        return files_to_read(paths)
    actions: list[str] = []
    if any(_kind(file) == "github" for file in pipeline_paths):
        actions = [path for path in paths if path.rpartition("/")[2] in ACTION_FILES]
    return (*pipeline_paths, *actions[:MAX_ACTIONS])


def parse_pipelines(
    paths: Collection[str], pipeline_paths: Collection[str], content_by_path: Mapping[str, bytes]
) -> list[PipelineFile]:
    """Parse pipeline files or, if there are none, detect a pipeline.

    `paths` are all files of the repository, `pipeline_paths` its pipeline files. `content_by_path` has the files of
    `paths_to_read`, except files of more than `MAX_FILE_BYTES`. Raise `Refused` if no job can be detected with
    certainty.
    """
    text_by_path = {path: content.decode("utf-8", "replace") for path, content in content_by_path.items()}
    if not pipeline_paths:
        return [
            PipelineFile(
                kind="discovered", result=ParseResult(file=DISCOVERED, pipeline=detect_pipeline(paths, text_by_path))
            )
        ]
    return [_parse_file(file, content_by_path.get(file), text_by_path) for file in pipeline_paths]


def _parse_file(file_path: str, content: bytes | None, text_by_path: Mapping[str, str]) -> PipelineFile:
    if content is None:
        expected = f"expected at most {MAX_FILE_BYTES:,} bytes"
        size_problem = Problem(file=file_path, line=1, column=1, found="it is too large", expected=expected)
        return PipelineFile(kind="own", result=ParseResult(file=file_path, pipeline=None, problems=(size_problem,)))
    kind = _kind(file_path)
    result = (
        github.parse_workflow(content, file_path, text_by_path)
        if kind == "github"
        else parse_pipeline(content, file_path)
    )
    return PipelineFile(kind=kind, result=result, text=text_by_path[file_path])


def _kind(path: str) -> Kind:
    """Return the kind of a pipeline file by its path: "own" for any unusual path, because a user may name any file."""
    return next((kind for kind, pattern in _KINDS if pattern.fullmatch(path)), "own")


def check_file_triggers(file: PipelineFile, change: Change, changed_paths: Collection[str] | None) -> TriggerCheck:
    """Check whether a change starts the pipeline of a file.

    It starts an invalid pipeline, so that a run displays its problems.
    """
    if file.result.pipeline is None:
        return TriggerCheck(
            True, f"it has {len(select_errors(file.result.problems))} problems, so its triggers are unknown"
        )
    return check_triggers(file.result.pipeline, change, changed_paths)


def plan_file(
    file: PipelineFile,
    change: Change,
    diff: ChangedPaths,
    source: Source,
    *,
    run_id: str = "",
    fork_role: str = "",
    has_default_retry: bool = True,
    requested_jobs: Sequence[str] = (),
    values_by_axis: Mapping[str, Collection[str]] | None = None,
    contents: Mapping[str, str] | None = None,
) -> CompileResult:
    """Compile the plan of a pipeline file for a change.

    The plan for a change from a fork begins with an approval. Members of `fork_role` can approve, but never the person
    who started the run. `has_default_retry`, `requested_jobs`, `values_by_axis` (as `matrix`) and `contents` are those
    of `compile_pipeline`.
    """
    compiled = compile_pipeline(
        file.result,
        change,
        changed=diff.changed,
        unknown_because=diff.why,
        source=source,
        run_id=run_id,
        grants_mentioned_secrets=file.kind == "github",  # As on GitHub, where no job declares them.
        has_default_retry=has_default_retry,
        requested_jobs=requested_jobs,
        matrix=values_by_axis,
        contents=contents,
    )
    if compiled.plan is None or not change.is_fork:
        return compiled
    return replace(compiled, plan=_with_approver_role(compiled.plan, fork_role))


def _with_approver_role(plan: Plan, required_role: str) -> Plan:
    """Return a plan whose approval of an untrusted change requires this role, and another person than the starter."""
    gate_requirements = Gate(role=required_role, not_by_starter=True)
    jobs = tuple(
        replace(job, spec=replace(job.spec, gate=gate_requirements))
        if job.code == UNTRUSTED and job.spec.kind == APPROVAL
        else job
        for job in plan.jobs
    )
    return replace(plan, jobs=jobs, hash=hash_of(plan, [job.spec for job in jobs]))
