"""The plans of what is here: which pipelines there are, whether the change starts them, and what they make of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import structs

from deltaci.core.errors import Refused
from deltaci.local.tree import Snapshot, Tree
from deltaci.pipeline.change import Change, EventName
from deltaci.pipeline.github import ParsedWorkflow
from deltaci.pipeline.parse.parse_result import ParseResult
from deltaci.pipeline.parse.problems import Problem
from deltaci.pipeline.pipeline_files import PipelineFile, discover, pipeline_files, read_file
from deltaci.pipeline.planning.compile import check_triggers, compile_pipeline
from deltaci.pipeline.planning.plan import Plan
from deltaci.protocol.messages import Source

EVERYTHING: Final = "all of it was asked for"


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """What somebody wants to see planned."""

    event: EventName = "push"
    inputs: Mapping[str, Any] = {}
    base: str = ""
    is_all: bool = False
    files: Sequence[str] = ()
    jobs: Sequence[str] = ()
    matrix: Mapping[str, str] = {}


class Planned(msgspec.Struct, frozen=True, kw_only=True):
    """One pipeline: its plan, or why there is none."""

    file: str
    text: str = ""
    is_triggered: bool = False
    why: str = ""
    plan: Plan | None = None
    problems: tuple[Problem, ...] = ()
    notes: tuple[Problem, ...] = ()
    is_foreign: bool = False  # Written for another system: what is outside of our subset is no mistake of its writer.


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """All pipelines that are here, for the change that is here."""

    change: Change
    snapshot: Snapshot
    compared: str
    planned: list[Planned]


def seen(tree: Tree, wish: Wish) -> Seen:
    """Look at everything. A file with problems has no plan, and says which."""
    snapshot = tree.snapshot()
    base, called = ("", EVERYTHING) if wish.is_all else tree.base(wish.base, snapshot)
    changed = tree.changed(base, snapshot.commit) if base else None
    change = change_here(tree, snapshot, wish, base)
    source = Source(url=str(tree.store), commit=snapshot.commit, ref=tree.ref())
    files = pipelines(tree, snapshot.commit, wish.files)
    planned = [_planned(file, _Here(change, changed, called, source), wish) for file in _with_jobs(files, wish.jobs)]
    compared = f"{len(changed)} changed since {called}" if changed is not None else f"every path counts: {called}"
    return Seen(change=change, snapshot=snapshot, compared=compared, planned=planned)


def change_here(tree: Tree, snapshot: Snapshot, wish: Wish, base: str) -> Change:
    """What is here, as what somebody would push."""
    branch = tree.branch()
    is_request = wish.event == "pull_request"
    return Change(
        event=wish.event,
        commit=snapshot.commit,
        repository=tree.repository(),
        ref=f"refs/heads/{branch}" if branch else "",
        branch=tree.default_branch() if is_request else branch,
        head=branch if is_request else "",
        before="" if is_request else base,
        base=base if is_request else "",
        action="synchronize" if is_request else "",
        title=tree.subject(),
        message=tree.subject(),
        actor=tree.person(),
        default_branch=tree.default_branch(),
        inputs=dict(wish.inputs),
    )


def pipelines(tree: Tree, commit: str, named: Sequence[str]) -> list[PipelineFile]:
    """The pipelines that are here, or those that were named; without any, what is discovered."""
    paths = tree.paths(commit)

    def read(path: str) -> bytes | None:
        return tree.read(commit, path)

    chosen = sorted(named) if named else pipeline_files(paths)
    if not chosen:
        return [discover(paths, read)]
    found = []
    for path in chosen:
        content = read(path)
        if content is None:
            raise Refused("not_found", f"there is no file {path!r} in {tree.root}; name it from there on")
        found.append(read_file(path, content, paths, read))
    return found


def _with_jobs(files: list[PipelineFile], jobs: Sequence[str]) -> list[PipelineFile]:
    """Only the files that have one of these jobs; all of them, when none has, so that each says so."""
    wanted = set(jobs)
    return [file for file in files if not wanted or wanted & _names(file.result)] or files


def _names(found: ParseResult) -> set[str]:
    if isinstance(found, ParsedWorkflow):
        return set(found.job_ids)
    return set(found.pipeline.jobs) if found.pipeline is not None else set()


class _Here(NamedTuple):
    """What every pipeline is planned with."""

    change: Change
    changed: frozenset[str] | None
    called: str
    source: Source


def _planned(file: PipelineFile, here: _Here, wish: Wish) -> Planned:
    found = file.result
    # No half-run by itself; but who names only jobs that are inside gets them.
    is_enough = (
        bool(wish.jobs) and isinstance(found, ParsedWorkflow) and not set(wish.jobs) & set(found.unsupported_jobs)
    )
    if is_enough and isinstance(found, ParsedWorkflow) and found.supported_pipeline is not None:
        found = structs.replace(found, pipeline=found.supported_pipeline, problems=found.notes)
    common: dict[str, Any] = {"file": found.file, "text": file.text, "is_foreign": file.kind == "github"}
    if found.pipeline is None:
        return Planned(**common, problems=_bad(found.problems))
    is_triggered, why = check_triggers(found.pipeline, here.change, here.changed)
    if wish.files and not is_triggered:  # Who names a file wants it.
        is_triggered, why = True, f"it was named, though {why}"
    if not is_triggered:
        return Planned(**common, why=why)
    compiled = compile_pipeline(
        found,
        here.change,
        changed=here.changed,
        unknown_because=here.called,
        source=here.source,
        only=wish.jobs,
        matrix={name: (value,) for name, value in wish.matrix.items()},
        grants_mentioned_secrets=file.grants_mentioned_secrets,
    )
    notes = tuple(problem for problem in compiled.problems if problem.is_warning)
    return Planned(
        **common, is_triggered=True, why=why, plan=compiled.plan, problems=_bad(compiled.problems), notes=notes
    )


def _bad(problems: Sequence[Problem]) -> tuple[Problem, ...]:
    return tuple(problem for problem in problems if not problem.is_warning)
