"""Plans the pipelines of a local folder: which files there are, whether the change triggers them, and their jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import structs

from deltaci.core.errors import Refused
from deltaci.local.tree import Snapshot, WorkingTree
from deltaci.pipeline.change import Change, EventName
from deltaci.pipeline.github import ParsedWorkflow
from deltaci.pipeline.parse.parse_result import ParseResult
from deltaci.pipeline.parse.problems import Problem, select_errors
from deltaci.pipeline.planning.plan import Plan
from deltaci.pipeline.repository import (
    ChangedPaths,
    PipelineFile,
    check_file_triggers,
    parse_pipelines,
    paths_to_read,
    pipeline_files,
    plan_file,
)
from deltaci.protocol.messages import Source

NO_COMPARISON: Final = "no comparison was requested"


class PlanRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What to plan: the simulated event, its inputs, and which files and jobs."""

    event: EventName = "push"
    inputs: Mapping[str, Any] = {}
    base: str = ""
    is_all: bool = False
    files: Sequence[str] = ()
    jobs: Sequence[str] = ()
    matrix: Mapping[str, str] = {}


class PlannedPipeline(msgspec.Struct, frozen=True, kw_only=True):
    """One pipeline file: its plan, or why there is none."""

    file: str
    text: str = ""
    is_triggered: bool = False
    reason: str = ""
    plan: Plan | None = None
    problems: tuple[Problem, ...] = ()
    notes: tuple[Problem, ...] = ()
    is_foreign: bool = False  # Written for another system: a feature that we do not support is no mistake.


class LocalPlans(msgspec.Struct, frozen=True, kw_only=True):
    """All pipelines of the folder, planned for its current change.

    `comparison` says in words what the change was compared with.
    """

    change: Change
    snapshot: Snapshot
    comparison: str
    pipelines: list[PlannedPipeline]


def plan_folder(tree: WorkingTree, request: PlanRequest) -> LocalPlans:
    """Plan every pipeline of the folder. A file with problems has no plan, but its problems."""
    snapshot = tree.snapshot()
    base_commit, base_name = ("", NO_COMPARISON) if request.is_all else tree.find_base(request.base, snapshot)
    diff = ChangedPaths(tree.changed_paths(base_commit, snapshot.commit) if base_commit else None, why=base_name)
    change = local_change(tree, snapshot, request, base_commit)
    source = Source(url=str(tree.git_dir), commit=snapshot.commit, ref=tree.snapshot_ref())
    files = _with_jobs(_read_pipelines(tree, snapshot.commit, request.files), request.jobs)
    comparison_text = (
        f"{len(diff.changed)} changed since {base_name}"
        if diff.changed is not None
        else f"every path counts as changed: {base_name}"
    )
    pipelines = [_plan_pipeline(file, change, diff, source, request) for file in files]
    return LocalPlans(change=change, snapshot=snapshot, comparison=comparison_text, pipelines=pipelines)


def local_change(tree: WorkingTree, snapshot: Snapshot, request: PlanRequest, base_commit: str) -> Change:
    """Describe the state of the folder as a push or pull request."""
    branch = tree.current_branch()
    is_request = request.event == "pull_request"
    return Change(
        event=request.event,
        commit=snapshot.commit,
        repository=tree.repository_name(),
        ref=f"refs/heads/{branch}" if branch else "",
        branch=tree.default_branch() if is_request else branch,
        head=branch if is_request else "",
        before="" if is_request else base_commit,
        base=base_commit if is_request else "",
        action="synchronize" if is_request else "",
        title=tree.commit_subject(),
        message=tree.commit_subject(),
        actor=tree.user_name(),
        default_branch=tree.default_branch(),
        inputs=dict(request.inputs),
    )


def _read_pipelines(tree: WorkingTree, commit: str, selected_paths: Sequence[str]) -> list[PipelineFile]:
    """Read the pipeline files, or only `selected_paths`."""
    paths = tree.paths(commit)
    files = sorted(selected_paths) or pipeline_files(paths)
    content_by_path = tree.read_files(commit, paths_to_read(paths, files))
    for path in selected_paths:
        if path not in content_by_path:
            raise Refused(
                "not_found", f"there is no file {path!r} in {tree.root}; give its path relative to that folder"
            )
    return parse_pipelines(paths, files, content_by_path)


def _with_jobs(files: list[PipelineFile], job_names: Sequence[str]) -> list[PipelineFile]:
    """Keep the files that have one of these jobs; all of them if none has, so that each reports that."""
    names = set(job_names)
    return [file for file in files if not names or names & _job_names(file.result)] or files


def _job_names(result: ParseResult) -> set[str]:
    if isinstance(result, ParsedWorkflow):
        return set(result.job_ids)
    return set(result.pipeline.jobs) if result.pipeline is not None else set()


def _plan_pipeline(
    file: PipelineFile, change: Change, diff: ChangedPaths, source: Source, request: PlanRequest
) -> PlannedPipeline:
    """Plan one pipeline file. A file that the change does not trigger has no plan, unless the user named it."""
    result = file.result
    # A workflow with unsupported jobs runs only if the user names supported jobs alone.
    is_supported_part = (
        bool(request.jobs)
        and isinstance(result, ParsedWorkflow)
        and not set(request.jobs) & set(result.unsupported_jobs)
    )
    if is_supported_part and isinstance(result, ParsedWorkflow) and result.supported_pipeline is not None:
        result = structs.replace(result, pipeline=result.supported_pipeline, problems=result.notes)
        file = structs.replace(file, result=result)
    common: dict[str, Any] = {"file": result.file, "text": file.text, "is_foreign": file.kind == "github"}
    if result.pipeline is None:
        return PlannedPipeline(**common, problems=select_errors(result.problems))
    is_triggered, trigger_reason = check_file_triggers(file, change, diff.changed)
    if request.files and not is_triggered:  # A file that the user names always runs.
        is_triggered, trigger_reason = True, f"it was named, though {trigger_reason}"
    if not is_triggered:
        return PlannedPipeline(**common, reason=trigger_reason)
    matrix = {axis: (axis_value,) for axis, axis_value in request.matrix.items()}
    # The person who waits for the run sees each failure at once and decides.
    compiled = plan_file(
        file, change, diff, source, has_default_retry=False, requested_jobs=request.jobs, values_by_axis=matrix
    )
    notes = tuple(problem for problem in compiled.problems if problem.is_warning)
    return PlannedPipeline(
        **common,
        is_triggered=True,
        reason=trigger_reason,
        plan=compiled.plan,
        problems=select_errors(compiled.problems),
        notes=notes,
    )
