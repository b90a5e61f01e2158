"""The check at the end of every scenario: was any work lost, executed twice, stuck, or left running?

The store is compared with what was acknowledged to the client and with what the jobs recorded; the exported log is
checked by `deltaci verify`.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import msgspec

from chaos.parts import processes_with
from chaos.rows import Row, measured
from chaos.stage import TimedOut, wait_until
from chaos.witness import Execution, overlap_seconds
from chaos.workload import Workload
from deltaci.audit.projections.canonical import canonical_lines
from deltaci.core import attempt, run
from deltaci.core.attempt import Attempt
from deltaci.core.events import ATTEMPT, RUN, WORKER, Event
from deltaci.core.worker import Worker
from deltaci.engine import feed
from deltaci.runner.sandbox.process_tree import MARKER_VARIABLE
from deltaci.storage.port import Unavailable

if TYPE_CHECKING:
    from chaos.deployment import Deployment

MAX_EVENTS: Final = 10_000_000
GRACE_SECONDS: Final = 5.0  # After a job's end, its processes may exist for so long.
INVARIANT: Final = (
    "never lost, never doubled, never stuck: acknowledged work ends once, alone, legally, and leaves nobody"
)


class Verdict(msgspec.Struct, kw_only=True):
    """The result of the check. Every violation is a text in `wrong`."""

    acknowledged: int = 0
    succeeded: int = 0
    executions: int = 0
    lost_leases: int = 0
    overlap_seconds: float = 0.0
    events: int = 0
    lost: int = 0
    doubled: int = 0
    stuck: int = 0
    failed: list[str] = []
    wrong: list[str] = []
    log: list[Event] = []
    records: dict[str, Attempt] = {}

    def row(self, fault: str, injected: str, note: str = "") -> Row:
        """Return the number of violations as one row."""
        summary = (
            f"{self.acknowledged} acknowledged, {self.succeeded} succeeded in {self.executions} executions, "
            f"{self.lost} lost, {self.doubled} doubled, {self.stuck} stuck, overlap {self.overlap_seconds:.2f} s, "
            f"{self.events} events legal"
        )
        parts = [*([note] if note else []), *(self.wrong[:5] or [summary])]
        return measured(fault, injected, INVARIANT, len(self.wrong), "violations", 0, "; ".join(parts))


async def verdict(
    deployment: Deployment, seconds: float = 60.0, overlap_limit: float = 0.0, *, all_succeed: bool = False
) -> Verdict:
    """Wait until all acknowledged work has ended, but no longer than `seconds`; then check everything.

    With `all_succeed`, any job that did not succeed is a violation too: no job of the scenario may fail by itself.
    """
    work, result = deployment.work, Verdict()
    result.acknowledged = len(work.acknowledged)
    unfinished_ids = await unfinished(work, seconds)
    result.stuck = len(unfinished_ids)
    result.wrong += [f"{id} is not over after {seconds:.0f} s" for id in unfinished_ids]
    await _check_processes(deployment, result)
    result.log = await work.retry_until_answered(lambda: feed.read(work.store, 0, MAX_EVENTS))
    result.events = len(result.log)
    attempts = await _check_records(work, result)
    _check_executions(work, result, attempts, overlap_limit)
    if all_succeed:
        result.wrong += [f"{id} ended, and not well" for id in sorted(result.failed)]
    _check_ends(result)
    await _check_workers(work, result)
    await asyncio.to_thread(_verify, deployment, result)
    return result


async def unfinished(work: Workload, seconds: float, ids: Iterable[str] | None = None) -> list[str]:
    """Return what was acknowledged but did not end in time. Follows the log; retries while the store is unavailable."""
    open_ids = set(work.acknowledged if ids is None else ids)
    open_runs, last_seq = set(work.runs if ids is None else ()), 0
    deadline = time.monotonic() + seconds
    while (open_ids or open_runs) and time.monotonic() < deadline:
        try:
            async with asyncio.timeout(max(0.1, deadline - time.monotonic())):
                async for event in feed.follow(work.store, last_seq):
                    last_seq = event.seq
                    if event.entity == ATTEMPT and event.to in attempt.TERMINAL:
                        open_ids.discard(event.entity_id)
                    elif event.entity == RUN and (event.to in run.OVER or event.to in run.TERMINAL):
                        open_runs.discard(event.entity_id)
                        # Jobs that the end of their run made unnecessary need not end.
                        open_ids -= {id for id in open_ids if id.startswith(f"{event.entity_id}/")}
                    if not open_ids and not open_runs:
                        break
        except TimeoutError:
            break
        except (Unavailable, OSError):
            continue
    return sorted([*open_ids, *open_runs])


async def _check_processes(deployment: Deployment, result: Verdict) -> None:
    """Check that no process of an ended job is left."""
    marks = deployment.work.witness.marks()
    try:
        await wait_until(
            lambda: not processes_with(MARKER_VARIABLE, marks), "every process of every job is gone", GRACE_SECONDS
        )
    except TimedOut:
        pids = processes_with(MARKER_VARIABLE, marks)
        result.wrong.append(f"{len(pids)} processes of jobs that are over are left: {pids[:5]}")


async def _check_records(work: Workload, result: Verdict) -> dict[str, list[Attempt]]:
    """Load every attempt of each acknowledged job, and check it."""
    retries: dict[str, set[str]] = {}
    for event in result.log:
        if event.entity == ATTEMPT and event.run_id:
            retries.setdefault(event.entity_id.rpartition(".")[0], set()).add(event.entity_id)
    attempts: dict[str, list[Attempt]] = {}
    for id in work.acknowledged:
        ids = sorted({id, *retries.get(id.rpartition(".")[0], ())})
        attempts[id] = [record for attempt_id in ids if (record := await work.attempt(attempt_id)) is not None]
        if not attempts[id] and id.partition("/")[0] not in work.runs:
            result.lost += 1
            result.wrong.append(f"{id} was acknowledged and is not there")
        for record in attempts[id]:
            result.records[record.id] = record
            _check_limits(record, result)
        is_success = any(record.state == attempt.SUCCEEDED for record in attempts[id])
        result.succeeded += is_success
        result.failed += [] if is_success else [id]
    return attempts


def _check_limits(record: Attempt, result: Verdict) -> None:
    """Check the attempt's limit of lost leases, and that it has no live lease."""
    result.lost_leases += record.lost_leases
    if record.lost_leases > record.max_lost_leases and record.state == attempt.SUCCEEDED:
        result.wrong.append(f"{record.id} lost {record.lost_leases} leases, {record.max_lost_leases} are allowed")
    if record.lease is not None:
        result.wrong.append(f"{record.id} still has a lease ({record.lease.state})")


def _check_executions(
    work: Workload, result: Verdict, attempts: dict[str, list[Attempt]], overlap_limit: float
) -> None:
    """Compare the records with the recorded executions."""
    recorded = work.witness.executions()
    for id, records in attempts.items():
        executions: list[Execution] = recorded.get(work.acknowledged[id], [])
        if not any(map(records_execution, records)):
            continue
        result.executions += len(executions)
        overlap = overlap_seconds(executions)
        result.overlap_seconds += overlap
        clashes = sum(execution.clashes for execution in executions)
        ends = sum(execution.ends for execution in executions)
        # A frozen job holds its lock but does nothing: then only the time counts.
        if overlap > overlap_limit or (clashes and not overlap_limit):
            result.wrong.append(f"{id} ran twice at once: {overlap:.2f} s, {clashes} locks were taken")
        if id not in result.failed and not ends:
            result.wrong.append(f"{id} succeeded, and no execution of it came to its end")
        # It may be executed again only after a lost lease or a failed attempt.
        leases = sum(record.claims for record in records)
        if len(executions) > leases or ends > len(records) + sum(record.lost_leases for record in records):
            result.doubled += 1
            result.wrong.append(f"{id} was executed {len(executions)} times ({ends} to the end) under {leases} leases")


def records_execution(record: Attempt) -> bool:
    """Return whether the job's steps record their execution; those of a scripted runner do not."""
    return "tell begin" in str(record.spec)


def _check_ends(result: Verdict) -> None:
    """Check that no attempt ends twice, and no lease number is granted twice."""
    ended: set[str] = set()
    granted: set[str] = set()
    for event in result.log:
        if event.entity != ATTEMPT:
            continue
        if event.to in attempt.TERMINAL and event.from_ != event.to:
            if event.entity_id in ended:
                result.doubled += 1
                result.wrong.append(f"{event.entity_id} ended twice in the log")
            ended.add(event.entity_id)
        lease = event.metadata.get("lease")
        if lease and lease.get("from") in (None, ""):
            name = f"{event.entity_id}#{lease['number']}"
            if name in granted:
                result.wrong.append(f"lease {name} was granted twice")
            granted.add(name)


async def _check_workers(work: Workload, result: Verdict) -> None:
    """Check that no worker has a task left."""
    if result.stuck:
        return
    for id in {event.entity_id for event in result.log if event.entity == WORKER}:
        record = await work.retry_until_answered(lambda id=id: work.store.find(id))  # type: ignore[misc]
        if isinstance(record, Worker) and record.tasks:
            result.stuck += 1
            result.wrong.append(f"worker {id} holds {len(record.tasks)} tasks, and all are over")


def _verify(deployment: Deployment, result: Verdict) -> None:
    """Run `deltaci verify` on the exported log."""
    path = deployment.folder / "events.jsonl"
    path.write_bytes(b"".join(line + b"\n" for line in canonical_lines(result.log)))
    command = [sys.executable, "-m", "deltaci", "verify", "--json", str(path)]
    completed = subprocess.run(command, capture_output=True, env=deployment.environment, timeout=120, check=False)
    if completed.returncode != 0:
        report = (
            msgspec.json.decode(completed.stdout) if completed.stdout else {"violations": completed.stderr.decode()}
        )
        result.wrong.append(f"deltaci verify: {report['violations']} violations: {report.get('found', [])[:1]}")
