"""Plans the pipelines of a local folder: which files there are, whether the change triggers them, and their jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import structs

from deltaci.core.errors import Refused
from deltaci.local.tree import Snapshot, WorkingTree
from deltaci.pipeline.change import Change, EventName
from deltaci.pipeline.github import ParsedWorkflow
from deltaci.pipeline.parse.parse_result import ParseResult
from deltaci.pipeline.parse.problems import Problem
from deltaci.pipeline.pipeline_files import PipelineFile, discover, pipeline_files, read_file
from deltaci.pipeline.planning.compile import check_triggers, compile_pipeline
from deltaci.pipeline.planning.plan import Plan
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
    base, base_name = ("", NO_COMPARISON) if request.is_all else tree.find_base(request.base, snapshot)
    changed = tree.changed_paths(base, snapshot.commit) if base else None
    change = local_change(tree, snapshot, request, base)
    source = Source(url=str(tree.git_dir), commit=snapshot.commit, ref=tree.snapshot_ref())
    files = read_pipelines(tree, snapshot.commit, request.files)
    pipelines = [
        _plan_pipeline(file, _Context(change, changed, base_name, source), request)
        for file in _with_jobs(files, request.jobs)
    ]
    comparison = (
        f"{len(changed)} changed since {base_name}"
        if changed is not None
        else f"every path counts as changed: {base_name}"
    )
    return LocalPlans(change=change, snapshot=snapshot, comparison=comparison, pipelines=pipelines)


def local_change(tree: WorkingTree, snapshot: Snapshot, request: PlanRequest, base: str) -> Change:
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
        before="" if is_request else base,
        base=base if is_request else "",
        action="synchronize" if is_request else "",
        title=tree.commit_subject(),
        message=tree.commit_subject(),
        actor=tree.user_name(),
        default_branch=tree.default_branch(),
        inputs=dict(request.inputs),
    )


def read_pipelines(tree: WorkingTree, commit: str, selected_paths: Sequence[str]) -> list[PipelineFile]:
    """Read the pipeline files, or only `selected_paths`; without any file, detect a pipeline from the repository."""
    paths = tree.paths(commit)

    def read(path: str) -> bytes | None:
        return tree.read_file(commit, path)

    chosen = sorted(selected_paths) if selected_paths else pipeline_files(paths)
    if not chosen:
        return [discover(paths, read)]
    files = []
    for path in chosen:
        content = read(path)
        if content is None:
            raise Refused(
                "not_found", f"there is no file {path!r} in {tree.root}; give its path relative to that folder"
            )
        files.append(read_file(path, content, paths, read))
    return files


def _with_jobs(files: list[PipelineFile], jobs: Sequence[str]) -> list[PipelineFile]:
    """Keep the files that have one of these jobs; all of them if none has, so that each reports that."""
    names = set(jobs)
    return [file for file in files if not names or names & _job_names(file.result)] or files


def _job_names(result: ParseResult) -> set[str]:
    if isinstance(result, ParsedWorkflow):
        return set(result.job_ids)
    return set(result.pipeline.jobs) if result.pipeline is not None else set()


class _Context(NamedTuple):
    """What all pipelines are planned with."""

    change: Change
    changed: frozenset[str] | None
    base_name: str
    source: Source


def _plan_pipeline(file: PipelineFile, context: _Context, request: PlanRequest) -> PlannedPipeline:
    result = file.result
    # A workflow with unsupported jobs runs only if the user names supported jobs alone.
    is_supported_part = (
        bool(request.jobs)
        and isinstance(result, ParsedWorkflow)
        and not set(request.jobs) & set(result.unsupported_jobs)
    )
    if is_supported_part and isinstance(result, ParsedWorkflow) and result.supported_pipeline is not None:
        result = structs.replace(result, pipeline=result.supported_pipeline, problems=result.notes)
    common: dict[str, Any] = {"file": result.file, "text": file.text, "is_foreign": file.kind == "github"}
    if result.pipeline is None:
        return PlannedPipeline(**common, problems=_errors(result.problems))
    is_triggered, reason = check_triggers(result.pipeline, context.change, context.changed)
    if request.files and not is_triggered:  # A file that the user names always runs.
        is_triggered, reason = True, f"it was named, though {reason}"
    if not is_triggered:
        return PlannedPipeline(**common, reason=reason)
    compiled = compile_pipeline(
        result,
        context.change,
        changed=context.changed,
        unknown_because=context.base_name,
        source=context.source,
        only=request.jobs,
        matrix={name: (value,) for name, value in request.matrix.items()},
        grants_mentioned_secrets=file.grants_mentioned_secrets,
    )
    notes = tuple(problem for problem in compiled.problems if problem.is_warning)
    return PlannedPipeline(
        **common, is_triggered=True, reason=reason, plan=compiled.plan, problems=_errors(compiled.problems), notes=notes
    )


def _errors(problems: Sequence[Problem]) -> tuple[Problem, ...]:
    return tuple(problem for problem in problems if not problem.is_warning)
