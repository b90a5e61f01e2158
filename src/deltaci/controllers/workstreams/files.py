"""The files of a workstream that goes on, in `workstreams/ID/` of the server's data.

    ready        dag.json dag.dot      the tasks and what they need, for programs and for people
                 plan.json             stage by stage, what each task runs and under which conditions
    executing    metrics.json          since when, how long each task took, how many are in which state
    validating   merge-plan.json       what is merged where, by which method, and what must hold before

They follow from what is stored: any server can write them again, and whoever reads them sees one of them whole.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from deltaci.controllers.merge_queue.records import MergeEntry
from deltaci.controllers.workstreams.metrics import WorkstreamTimes, metrics
from deltaci.controllers.workstreams.records import Workstream
from deltaci.core.job import Job, JobSpec
from deltaci.core.run import Run
from deltaci.core.worker import required_labels
from deltaci.pipeline.workstream.compile import dependency_levels
from deltaci.storage.blobs.keys import safe_name

FOLDER: Final = "workstreams"
DAG, DOT, PLAN, METRICS, MERGE_PLAN = "dag.json", "dag.dot", "plan.json", "metrics.json", "merge-plan.json"
MAX_PATHS: Final = 500  # So many changed files are named; more are only counted.


# -- what they say


def dag(stream: Workstream, jobs: Sequence[JobSpec]) -> dict[str, Any]:
    """The tasks as a graph, and by stages: what a task needs is in an earlier one."""
    stages = _stages(jobs)
    return {
        "workstream": stream.id,
        "name": stream.name,
        "nodes": [
            {"name": each.name, "stage": stage, "critical": each.is_required, "tree": _tree(each)}
            for stage, each in _staged(jobs)
        ],
        "edges": [{"from": need, "to": each.name} for each in jobs for need in each.needs],
        "stages": [list(stage) for stage in stages],
    }


def dot(stream: Workstream, jobs: Sequence[JobSpec]) -> str:
    """The graph as Graphviz reads it: a column for each stage, a dashed frame for what may fail."""
    lines = [f"digraph {_quoted(stream.name)} {{", "  rankdir=LR;", "  node [shape=box];"]
    for stage in _stages(jobs):
        lines.append("  { rank=same; " + " ".join(f"{_quoted(name)};" for name in stage) + " }")
    lines += [f"  {_quoted(each.name)} [style=dashed];" for each in jobs if not each.is_required]
    lines += [f"  {_quoted(need)} -> {_quoted(each.name)};" for each in jobs for need in each.needs]
    return "\n".join((*lines, "}", ""))


def plan(stream: Workstream, jobs: Sequence[JobSpec]) -> dict[str, Any]:
    """The execution plan."""
    return {
        "workstream": stream.id,
        "name": stream.name,
        "project": stream.project,
        "base": stream.base,
        "base_commit": stream.base_commit,
        "branch": stream.branch,
        "stages": [{"stage": number, "tasks": list(names)} for number, names in enumerate(_stages(jobs), 1)],
        "tasks": [_planned(stage, each) for stage, each in _staged(jobs)],
    }


def merge_plan(stream: Workstream, entry: MergeEntry, changed: Collection[str] | None) -> dict[str, Any]:
    """What the merge will do; `changed` are the paths that differ from where it began, None when that is not known."""
    return {
        "workstream": stream.id,
        "name": stream.name,
        "project": entry.project,
        "base": entry.base,
        "base_commit": entry.base_commit,
        "head": entry.head,
        "method": entry.method,
        "title": entry.title,
        "message": entry.message,
        "author": entry.author,
        "rules": entry.rules,
        "labels": list(entry.labels),
        "changed_files": len(changed) if changed is not None else None,
        "paths": sorted(changed) if changed is not None and len(changed) <= MAX_PATHS else None,
    }


def _planned(stage: int, spec: JobSpec) -> dict[str, Any]:
    work: Mapping[str, Any] = msgspec.to_builtins(spec.work) if spec.work is not None else {}
    steps = work.get("steps", ())
    return {
        "name": spec.name,
        "stage": stage,
        "run": [each if isinstance(each, str) else each.get("run", "") for each in steps],
        "needs": list(spec.needs),
        "critical": spec.is_required,
        "labels": sorted(required_labels(spec.queue_key)),
        "timeout_seconds": spec.timeout_seconds,
        "max_retries": spec.max_attempts - 1,
        "retry_delay_seconds": spec.base_delay_seconds,
        "max_retry_delay_seconds": spec.max_delay_seconds,
        "retry_on": list(spec.retry_on),
        "env": dict(work.get("env", {})),
        "secrets": list(work.get("secrets", ())),
        "rules": list(work.get("rules", ())),
        "tree": _tree(spec),
    }


def _tree(spec: JobSpec) -> str:
    """`shared`, or `own` for a task with a tree beside the others'."""
    work = msgspec.to_builtins(spec.work) if spec.work is not None else {}
    tree = work.get("tree") if isinstance(work, dict) else None
    return "own" if tree and tree.get("own") else "shared"


def _stages(jobs: Sequence[JobSpec]) -> tuple[tuple[str, ...], ...]:
    return dependency_levels([(each.name, each.needs) for each in jobs])


def _staged(jobs: Sequence[JobSpec]) -> list[tuple[int, JobSpec]]:
    """Every task with its stage, from 1 on, in the order in which they can run."""
    known = {each.name: each for each in jobs}
    return [(number, known[name]) for number, names in enumerate(_stages(jobs), 1) for name in names]


def _quoted(text: str) -> str:
    """As Graphviz wants a text."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


# -- writing them


def place(folder: Path, id: str) -> Path:
    """Where the files of this workstream are, in the server's data."""
    return folder / FOLDER / safe_name(id)


def ready(folder: Path, stream: Workstream, jobs: Sequence[JobSpec]) -> None:
    """All of its tasks are known."""
    at = place(folder, stream.id)
    write(at / DAG, dag(stream, jobs))
    write(at / DOT, dot(stream, jobs))
    write(at / PLAN, plan(stream, jobs))


def executing(
    folder: Path, stream: Workstream, record: Run, jobs: Sequence[Job], gauge: WorkstreamTimes | None = None
) -> None:
    """Something goes on; call it as often as you like: the same figures are not written again."""
    write(place(folder, stream.id) / METRICS, metrics(stream, record, jobs, gauge))


def validating(folder: Path, stream: Workstream, entry: MergeEntry, changed: Collection[str] | None) -> None:
    """All of its tasks are completed."""
    write(place(folder, stream.id) / MERGE_PLAN, merge_plan(stream, entry, changed))


def write(path: Path, value: Any) -> None:
    """A file with this value, whole or as it was. What is there already is not touched."""
    text = value.encode() if isinstance(value, str) else written(value)
    with suppress(FileNotFoundError):
        if path.read_bytes() == text:
            return
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}-{secrets.token_hex(4)}")
    try:
        draft.write_bytes(text)
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)


def written(value: Any) -> bytes:
    """A value as a file that people can read, too."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"
