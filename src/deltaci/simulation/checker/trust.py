"""Who is trusted with work, as the checker sees it: troubles in a row, workers that are held, jobs that they lost."""

from __future__ import annotations

from typing import Final

from deltaci.simulation.checker.facts import JobFacts, WorkerFacts
from deltaci.simulation.checker.law import Fact, Violation

MOST_TROUBLES: Final = 3
MOST_REMEMBERED: Final = 8
LOST: Final = frozenset({"LEASE_EXPIRED", "NOT_ACCEPTED", "WORKER_LOST"})
HOLDS: Final = {"drained": "DRAINED", "quarantined": "QUARANTINED", "resumed": ""}


def is_trouble(event: Fact) -> bool | None:
    """Whether this end of a lease is the fault of its worker's infrastructure; None: it says nothing about that."""
    if event.to == "STALE":
        return True if event.metadata.get("reason") in LOST else None
    if event.to == "SUCCEEDED":
        return False
    if event.to != "FAILED":
        return None
    error = event.metadata.get("error", {})
    if error.get("failure_class") != "INFRA":
        return False
    return None if error.get("code") == "TIMED_OUT" else True


def blame(worker: WorkerFacts, attempt_id: str, event: Fact) -> None:
    """A lease of a job ended: count what that says of its worker. What it held meanwhile is torn away with it."""
    trouble = is_trouble(event)
    if trouble is False:
        worker.troubles = 0
    elif trouble and attempt_id not in worker.excused:
        worker.troubles += 1
        worker.excused = worker.held - {attempt_id}
        worker.is_doubted = worker.troubles >= MOST_TROUBLES and not worker.hold and not worker.is_leaving
    worker.excused.discard(attempt_id)


def remember(job: JobFacts, worker_id: str, event: Fact) -> None:
    """A lease of the job ended: whose infrastructure lost it is known from now on."""
    error = event.metadata.get("error", {})
    if event.metadata.get("reason") in LOST or error.get("failure_class") == "INFRA":
        others = [each for each in job.lost_by if each != worker_id]
        job.lost_by = (*others, worker_id)[-MOST_REMEMBERED:]


def judge_worker(it: WorkerFacts, event: Fact) -> None:
    """One event of a worker: held and let go in turn, by the right word, and for three troubles at once."""
    name, told = f"worker {it.id} (seq {event.seq}, {event.trigger})", event.metadata
    if event.trigger in HOLDS or (event.trigger == "capabilities_registered" and "hold" in told):
        hold = HOLDS.get(event.trigger, "")
        is_new = it.hold != hold if hold != "QUARANTINED" else not it.hold
        if event.trigger == "capabilities_registered":
            is_new = it.hold == "QUARANTINED"
        if not is_new or told.get("hold") != hold:
            raise Violation("hold", f"{name}, but it is {it.hold or 'not held'}")
        if event.trigger == "quarantined" and (told.get("reason") == "REPEATED_TROUBLES") != it.is_doubted:
            raise Violation("troubles", f"{name} for {told.get('reason')} after {it.troubles} troubles in a row")
        it.hold, it.is_doubted = hold, False
        if not hold:
            it.troubles, it.told_troubles, it.excused = 0, 0, set()
            it.free_since = event.at
    it.told_troubles = int(told.get("troubles", it.told_troubles))


def settle_worker(it: WorkerFacts) -> None:
    """After every commit."""
    if it.is_doubted:
        raise Violation("troubles", f"worker {it.id} (rev {it.rev}) had {it.troubles} troubles, and is still trusted")
    if it.told_troubles != it.troubles and it.state != "SHUTDOWN":
        told = f"tells of {it.told_troubles} troubles; there were {it.troubles}"
        raise Violation("troubles", f"worker {it.id} (rev {it.rev}) {told}")
