"""The end of every scenario: was anything lost, doubled, stuck, or left behind? Asked from the outside.

What the store says is compared with what the client was promised and what jobs told of themselves; and the log is
exported and put before the real `deltaci verify`.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import msgspec

from chaos.parts import carrying
from chaos.rows import Row, measured
from chaos.stage import TooLate, until
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
GRACE_SECONDS: Final = 5.0  # From a job's end until the last of its processes is gone.
INVARIANT: Final = (
    "never lost, never doubled, never stuck: acknowledged work ends once, alone, legally, and leaves nobody"
)


class Verdict(msgspec.Struct, kw_only=True):
    """What was found. Everything that is wrong is a line in `wrong`."""

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
        """All of it in one row: how much is wrong."""
        told = (
            f"{self.acknowledged} acknowledged, {self.succeeded} succeeded in {self.executions} executions, "
            f"{self.lost} lost, {self.doubled} doubled, {self.stuck} stuck, overlap {self.overlap_seconds:.2f} s, "
            f"{self.events} events legal"
        )
        parts = [*([note] if note else []), *(self.wrong[:5] or [told])]
        return measured(fault, injected, INVARIANT, len(self.wrong), "violations", 0, "; ".join(parts))


async def verdict(
    place: Deployment, seconds: float = 60.0, overlap_limit: float = 0.0, *, all_succeed: bool = False
) -> Verdict:
    """Wait until everything that was acknowledged is over, but not longer than this; then look at everything.

    With `all_succeed`, a job that ended in any other way is a violation too: nothing that was broken was its own.
    """
    work, found = place.work, Verdict()
    found.acknowledged = len(work.acknowledged)
    left = await unfinished(work, seconds)
    found.stuck = len(left)
    found.wrong += [f"{id} is not over after {seconds:.0f} s" for id in left]
    await _left(place, found)
    found.log = await work.insist(lambda: feed.read(work.store, 0, MAX_EVENTS))
    found.events = len(found.log)
    tries = await _records(work, found)
    _executions(work, found, tries, overlap_limit)
    if all_succeed:
        found.wrong += [f"{id} ended, and not well" for id in sorted(found.failed)]
    _ends(found)
    await _busy(work, found)
    await asyncio.to_thread(_verify, place, found)
    return found


async def unfinished(work: Workload, seconds: float, ids: Iterable[str] | None = None) -> list[str]:
    """What is acknowledged and not over in time. The log is read as it grows; a store that is away is asked again."""
    open_ids = set(work.acknowledged if ids is None else ids)
    open_runs, seen = set(work.runs if ids is None else ()), 0
    deadline = time.monotonic() + seconds
    while (open_ids or open_runs) and time.monotonic() < deadline:
        try:
            async with asyncio.timeout(max(0.1, deadline - time.monotonic())):
                async for event in feed.follow(work.store, seen):
                    seen = event.seq
                    if event.entity == ATTEMPT and event.to in attempt.TERMINAL:
                        open_ids.discard(event.entity_id)
                    elif event.entity == RUN and (event.to in run.OVER or event.to in run.TERMINAL):
                        open_runs.discard(event.entity_id)
                        # What the run's end made needless was never to be executed.
                        open_ids -= {id for id in open_ids if id.startswith(f"{event.entity_id}/")}
                    if not open_ids and not open_runs:
                        break
        except TimeoutError:
            break
        except (Unavailable, OSError):
            continue
    return sorted([*open_ids, *open_runs])


async def _left(place: Deployment, found: Verdict) -> None:
    """Processes of jobs that are over."""
    marks = place.work.witness.marks()
    try:
        await until(lambda: not carrying(MARKER_VARIABLE, marks), "every process of every job is gone", GRACE_SECONDS)
    except TooLate:
        left = carrying(MARKER_VARIABLE, marks)
        found.wrong.append(f"{len(left)} processes of jobs that are over are left: {left[:5]}")


async def _records(work: Workload, found: Verdict) -> dict[str, list[Attempt]]:
    """Look up all that was acknowledged. Every attempt of each job: a run tries again what failed."""
    retries: dict[str, set[str]] = {}
    for event in found.log:
        if event.entity == ATTEMPT and event.run_id:
            retries.setdefault(event.entity_id.rpartition(".")[0], set()).add(event.entity_id)
    tries: dict[str, list[Attempt]] = {}
    for id in work.acknowledged:
        ids = sorted({id, *retries.get(id.rpartition(".")[0], ())})
        tries[id] = [record for each in ids if (record := await work.attempt(each)) is not None]
        if not tries[id] and id.partition("/")[0] not in work.runs:
            found.lost += 1
            found.wrong.append(f"{id} was acknowledged and is not there")
        for record in tries[id]:
            found.records[record.id] = record
            _limits(record, found)
        is_success = any(record.state == attempt.SUCCEEDED for record in tries[id])
        found.succeeded += is_success
        found.failed += [] if is_success else [id]
    return tries


def _limits(record: Attempt, found: Verdict) -> None:
    """No attempt outlives its limits, or keeps a lease."""
    found.lost_leases += record.lost_leases
    if record.lost_leases > record.max_lost_leases and record.state == attempt.SUCCEEDED:
        found.wrong.append(f"{record.id} lost {record.lost_leases} leases, {record.max_lost_leases} are allowed")
    if record.lease is not None:
        found.wrong.append(f"{record.id} still has a lease ({record.lease.state})")


def _executions(work: Workload, found: Verdict, tries: dict[str, list[Attempt]], overlap_limit: float) -> None:
    """What the records say against what the jobs told."""
    told = work.witness.executions()
    for id, records in tries.items():
        mine: list[Execution] = told.get(work.acknowledged[id], [])
        if not any(map(is_witnessed, records)):
            continue
        found.executions += len(mine)
        overlap = overlap_seconds(mine)
        found.overlap_seconds += overlap
        clashes = sum(each.clashes for each in mine)
        ends = sum(each.ends for each in mine)
        # A job that is frozen holds its lock, and does nothing: then only the time counts.
        if overlap > overlap_limit or (clashes and not overlap_limit):
            found.wrong.append(f"{id} ran twice at once: {overlap:.2f} s, {clashes} locks were taken")
        if id not in found.failed and not ends:
            found.wrong.append(f"{id} succeeded, and no execution of it came to its end")
        # Only a lease that was lost, or an attempt that failed, lets it be executed again.
        leases = sum(record.claims for record in records)
        if len(mine) > leases or ends > len(records) + sum(record.lost_leases for record in records):
            found.doubled += 1
            found.wrong.append(f"{id} was executed {len(mine)} times ({ends} to the end) under {leases} leases")


def is_witnessed(record: Attempt) -> bool:
    """Whether its steps tell what they do; those of a runner that only speaks do not."""
    return "tell begin" in str(record.spec)


def _ends(found: Verdict) -> None:
    """Nothing ends twice, and no lease's number is given twice."""
    ended: set[str] = set()
    granted: set[str] = set()
    for event in found.log:
        if event.entity != ATTEMPT:
            continue
        if event.to in attempt.TERMINAL and event.from_ != event.to:
            if event.entity_id in ended:
                found.doubled += 1
                found.wrong.append(f"{event.entity_id} ended twice in the log")
            ended.add(event.entity_id)
        lease = event.metadata.get("lease")
        if lease and lease.get("from") in (None, ""):
            name = f"{event.entity_id}#{lease['number']}"
            if name in granted:
                found.wrong.append(f"lease {name} was granted twice")
            granted.add(name)


async def _busy(work: Workload, found: Verdict) -> None:
    """A worker that has a task when there is none is stuck with it."""
    if found.stuck:
        return
    for id in {event.entity_id for event in found.log if event.entity == WORKER}:
        record = await work.insist(lambda id=id: work.store.find(id))  # type: ignore[misc]
        if isinstance(record, Worker) and record.tasks:
            found.stuck += 1
            found.wrong.append(f"worker {id} holds {len(record.tasks)} tasks, and all are over")


def _verify(place: Deployment, found: Verdict) -> None:
    """The real command over the real log."""
    path = place.folder / "events.jsonl"
    path.write_bytes(b"".join(line + b"\n" for line in canonical_lines(found.log)))
    command = [sys.executable, "-m", "deltaci", "verify", "--json", str(path)]
    told = subprocess.run(command, capture_output=True, env=place.environment, timeout=120, check=False)
    if told.returncode != 0:
        report = msgspec.json.decode(told.stdout) if told.stdout else {"violations": told.stderr.decode()}
        found.wrong.append(f"deltaci verify: {report['violations']} violations: {report.get('found', [])[:1]}")
