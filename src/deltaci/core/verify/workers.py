"""What must hold for a worker, line by line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from deltaci.core import worker
from deltaci.core.verify.attempts import Check
from deltaci.core.verify.records import Line, Worker, WorkerTold

if TYPE_CHECKING:
    from deltaci.core.verify.canonical import Canonical


def registered(log: Canonical, of: Worker, line: Line, told: WorkerTold) -> None:
    """A worker says what it can and how much of it at once."""
    if line.from_ != worker.INITIALIZING:
        return
    if told.labels is None or not told.max_concurrent_tasks:
        log.bad("WST-KG1", f"worker {of.id} is idle without labels or places", "its capabilities")
        return
    of.labels, of.places = frozenset(told.labels), told.max_concurrent_tasks


def assigned(log: Canonical, of: Worker, line: Line, told: WorkerTold) -> None:
    """A worker is busy with leases that it really holds."""
    if line.trigger == "shutdown_requested":
        if of.is_leaving or not told.reason:
            log.bad("WST-KI3", f"worker {of.id} is asked to go again, or without a reason", "once, with a reason")
        of.is_leaving = True
        return
    if told.tasks != len(of.tasks):
        log.bad("WST-KI1", f"worker {of.id} has {told.tasks} tasks", f"{len(of.tasks)}, as many as leases")
    if (told.attempt_id in of.tasks) != (line.trigger == "task_assigned"):
        log.bad(
            "WST-K2",
            f"worker {of.id}: {line.trigger} for {told.attempt_id}",
            "a lease that it was granted, or that ended",
        )


def released(log: Canonical, of: Worker, line: Line, told: WorkerTold) -> None:
    """A worker is idle when its last lease ended, unless it was asked to go."""
    if line.from_ != worker.BUSY:
        return
    if of.tasks:
        log.bad("WST-KG3", f"worker {of.id} is {line.to} while it holds {', '.join(sorted(of.tasks))}", "no lease left")
    if of.is_leaving != (line.to == worker.SHUTDOWN):
        log.bad("WST-K8", f"worker {of.id} goes to {line.to}", "SHUTDOWN" if of.is_leaving else "IDLE")


def silent(log: Canonical, of: Worker, line: Line, told: WorkerTold) -> None:
    """A silent worker loses every lease, and the event names them."""
    if set(told.attempts or ()) != of.tasks:
        log.bad("WST-KA4", f"worker {of.id} gives up {told.attempts}", f"{sorted(of.tasks)}")
    of.tasks.clear()
    of.is_leaving = False


def gone(log: Canonical, of: Worker, line: Line, told: WorkerTold) -> None:
    """A worker goes for a reason."""
    if not told.reason:
        log.bad("WST-K7", f"worker {of.id} goes without a reason", "a reason")


CHECKS: Final[dict[str, tuple[Check, ...]]] = {
    worker.IDLE: (registered, released),
    worker.BUSY: (assigned,),
    worker.UNRESPONSIVE: (silent,),
    worker.SHUTDOWN: (released, gone),
}


def settle(log: Canonical, of: Worker) -> None:
    """After the transaction: busy means that it holds a lease."""
    if (of.state == worker.BUSY) != bool(of.tasks):
        log.bad(
            "WST-KI1", f"worker {of.id} is {of.state} with {len(of.tasks)} leases", "BUSY exactly while it holds one"
        )
