"""`archive/ID/` of the server's data: all that is known of a workstream that is over, whether it was merged or failed.

    workstream.json     what was asked for, how it ended, in both vocabularies, its commits, where its worktree is kept
    dag.json dag.dot plan.json metrics.json merge-plan.json      as they were while it went on
    events.jsonl        its events, as `deltaci verify` reads them
    transitions.jsonl   the same in document 003's schema
    outputs.json        what each task gave
    logs.json           where the log and the artifacts of each attempt are

It is made of what is stored, in a folder that gets its name at the end: it is there whole, or not at all. Any server
can make it, at any time, and again.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from deltaci.audit.projections.canonical import canonical_lines
from deltaci.audit.projections.transitions import TransitionsExporter
from deltaci.controllers.workstreams import files
from deltaci.controllers.workstreams.metrics import WorkstreamTimes, metrics, moment
from deltaci.controllers.workstreams.records import Workstream
from deltaci.core.attempt import Attempt
from deltaci.core.ids import attempt_id
from deltaci.core.job import Job
from deltaci.core.run import Run
from deltaci.core.status.workstreams import WORKSTREAM_VIEW, task_state, workstream_state
from deltaci.engine.feed import PAGE
from deltaci.storage.blobs import keys
from deltaci.storage.blobs.logs import LogStore
from deltaci.storage.port import Store, load_jobs

FOLDER: Final = "archive"
STREAM, EVENTS, TRANSITIONS = "workstream.json", "events.jsonl", "transitions.jsonl"
OUTPUTS, LOGS = "outputs.json", "logs.json"
DRAFT: Final = ".draft-"
MAX_FOUND: Final = 500  # Attempts that are read at a time.


class NotEndedError(Exception):
    """The workstream has not ended or does not exist, so it cannot be archived."""


def place(folder: Path, id: str) -> Path:
    """Where the archive of this workstream is, in the server's data."""
    return folder / FOLDER / keys.safe_name(id)


async def archive(store: Store, logs: LogStore, stream: Workstream, folder: Path) -> Path:
    """Put all of it aside, and remove the files that it had while it went on. Safe to repeat. Where it is."""
    target = place(folder, stream.id)
    if not await asyncio.to_thread(target.is_dir):
        record = await store.find(stream.id)
        if not isinstance(record, Run) or workstream_state(record) not in WORKSTREAM_VIEW.terminal:
            raise NotEndedError(f"workstream {stream.id} has not ended; archive it afterwards")
        draft = await asyncio.to_thread(_draft, target)
        try:
            await _fill(store, logs, stream, record, folder, draft)
            await asyncio.to_thread(_settle, draft, target)
        finally:
            await asyncio.to_thread(shutil.rmtree, draft, ignore_errors=True)
    await asyncio.to_thread(shutil.rmtree, files.place(folder, stream.id), ignore_errors=True)
    return target


async def _fill(store: Store, logs: LogStore, stream: Workstream, record: Run, folder: Path, draft: Path) -> None:
    jobs = await store.read(lambda: load_jobs(stream.id))
    attempts = await _attempts(store, jobs)
    gauge, first = await _log(store, stream.id, draft)
    specs = [each.spec for each in jobs]
    await asyncio.to_thread(_merge_plan, files.place(folder, stream.id), draft)
    values = {
        STREAM: told(stream, record, jobs, gauge.stream.since or record.updated_at, first),
        files.DAG: files.dag(stream, specs),
        files.DOT: files.dot(stream, specs),
        files.PLAN: files.plan(stream, specs),
        files.METRICS: metrics(stream, record, jobs, gauge),
        OUTPUTS: outputs(jobs, attempts),
        LOGS: await asyncio.to_thread(lambda: places(logs, jobs, attempts, folder)),
    }
    for name, value in values.items():
        await asyncio.to_thread(files.write, draft / name, value)


# -- what it says


def told(stream: Workstream, record: Run, jobs: Sequence[Job], ended_at: int, first_seq: int) -> dict[str, Any]:
    """The workstream itself."""
    return {
        "id": stream.id,
        "name": stream.name,
        "tenant": stream.tenant,
        "project": stream.project,
        "state": workstream_state(record),
        "run_state": record.conclusion or record.state,
        "reason": record.reason,
        "created_by": stream.created_by,
        "created_at": moment(stream.created_at or record.created_at),
        "started_at": moment(record.started_at),
        "ended_at": moment(ended_at),
        "base": stream.base,
        "base_commit": stream.base_commit,
        "branch": stream.branch,
        "head": stream.tip,
        "joined": msgspec.to_builtins(stream.joined),
        "merged_as": stream.merged_as,
        "problem": stream.problem,
        "worktree": stream.place,
        "tasks": [_task(each) for each in jobs if task_state(each)],
        "first_seq": first_seq,
        "spec": stream.spec,
    }


def _task(record: Job) -> dict[str, Any]:
    return {
        "id": record.id,
        "name": record.spec.name,
        "critical": record.spec.is_required,
        "state": task_state(record),
        "job_state": record.state,
        "reason": record.reason,
        "attempts": record.attempts,
        "started_at": moment(record.started_at),
        "completed_at": moment(record.completed_at),
        "last_error": msgspec.to_builtins(record.last_error),
    }


def outputs(jobs: Sequence[Job], attempts: Sequence[Attempt]) -> dict[str, Any]:
    """What the last attempt of each task gave, by the task's name."""
    last = {each.job_id: each for each in attempts}
    return {
        each.spec.name: {"attempt": last[each.id].id, "result": last[each.id].result}
        for each in jobs
        if each.id in last and last[each.id].result not in (None, {})
    }


def places(logs: LogStore, jobs: Sequence[Job], attempts: Sequence[Attempt], folder: Path) -> list[dict[str, Any]]:
    """Where what each attempt left behind is: its logs on this server's disk, its artifacts among the blobs."""
    names = {each.id: each.spec.name for each in jobs}
    found = []
    for each in attempts:
        held = each.lease or each.ended_lease
        found.append(
            {
                "task": names[each.job_id],
                "attempt": each.id,
                "index": each.index,
                "state": each.state,
                "worker": held.worker_id if held is not None else "",
                "logs": list(_logs(logs, each, folder)),
                "artifacts": [_artifact(each.tenant, told) for told in (each.report or {}).get("artifacts", ())],
            }
        )
    return found


def _logs(logs: LogStore, attempt: Attempt, folder: Path) -> Iterator[dict[str, Any]]:
    """One for each lease that wrote something here; a lease that was lost has its own."""
    for number in range(1, attempt.claims + 1):
        size = logs.size(attempt.id, number)
        if size:
            file = logs.path(attempt.id, number)
            shown = file.relative_to(folder) if file.is_relative_to(folder) else file
            yield {"lease": number, "file": str(shown), "bytes": size}


def _artifact(tenant: str, told: dict[str, Any]) -> dict[str, Any]:
    uri = str(told.get("uri", ""))
    is_ours = uri.startswith("artifact:")
    return {**told, "blob": keys.key_of_uri(tenant, uri) if is_ours else ""}


# -- reading and writing


async def _attempts(store: Store, jobs: Sequence[Job]) -> list[Attempt]:
    """All of them, task by task."""
    ids = [attempt_id(each.id, index) for each in jobs for index in range(1, each.attempts + 1)]
    found: list[Attempt] = []
    for at in range(0, len(ids), MAX_FOUND):
        records = await store.find_all(ids[at : at + MAX_FOUND])
        found += [each for each in records if isinstance(each, Attempt)]
    return found


async def _log(store: Store, id: str, draft: Path) -> tuple[WorkstreamTimes, int]:
    """Both logs, page by page; what they count, and their first seq: 0 if nothing of them is kept any more."""
    gauge, exporter, seen, first = WorkstreamTimes(), TransitionsExporter(), 0, 0
    for name in (EVENTS, TRANSITIONS):
        await asyncio.to_thread(_append, draft / name, b"")
    while page := await store.events(seen, PAGE, run_id=id):
        gauge.count(page)
        first, seen = first or page[0].seq, page[-1].seq
        told = b"".join(msgspec.json.encode(line) + b"\n" for line in exporter.export(page))
        await asyncio.to_thread(_append, draft / EVENTS, b"".join(line + b"\n" for line in canonical_lines(page)))
        await asyncio.to_thread(_append, draft / TRANSITIONS, told)
    return gauge, first


def _append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


def _draft(target: Path) -> Path:
    """An empty folder beside it. What others left half-made is removed: nobody needs it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    for left in target.parent.glob(f"{DRAFT}{target.name}-*"):
        shutil.rmtree(left, ignore_errors=True)
    draft = target.with_name(f"{DRAFT}{target.name}-{secrets.token_hex(4)}")
    draft.mkdir()
    return draft


def _merge_plan(live: Path, draft: Path) -> None:
    """The merge plan as it was; one that never got so far has none."""
    with suppress(FileNotFoundError):
        (draft / files.MERGE_PLAN).write_bytes((live / files.MERGE_PLAN).read_bytes())


def _settle(draft: Path, target: Path) -> None:
    """Everything is on the disk before the folder gets its name. Somebody else's is as good as ours."""
    for file in draft.iterdir():
        _sync(file, os.O_RDONLY)
    _sync(draft, os.O_RDONLY | os.O_DIRECTORY)
    try:
        draft.rename(target)
    except OSError:
        if not target.is_dir():
            raise
    _sync(target.parent, os.O_RDONLY | os.O_DIRECTORY)


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
