"""What must hold for a worker, line by line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from deltaci.audit.verify.attempts import Check
from deltaci.audit.verify.log_lines import Line, Worker, WorkerTold
from deltaci.core import worker

if TYPE_CHECKING:
    from deltaci.audit.verify.canonical import CanonicalVerifier


OFFERED: Final = "capabilities_registered"
HOLDS: Final = {"drained": worker.DRAINED, "quarantined": worker.QUARANTINED, "resumed": ""}
ASIDE: Final = frozenset({OFFERED, *HOLDS})  # What says nothing of its state and its tasks.


def registered(log: CanonicalVerifier, of: Worker, line: Line, told: WorkerTold) -> None:
    """A worker says what it can and how much of it at once, and never less than it holds already."""
    if line.from_ != worker.INITIALIZING and line.trigger != OFFERED:
        return
    if told.labels is None or not told.max_concurrent_tasks:
        log.bad("WST-KG1", f"worker {of.id} is idle without labels or places", "its capabilities")
        return
    of.labels, of.places = frozenset(told.labels), told.max_concurrent_tasks
    if len(of.tasks) > of.places:
        log.bad("WST-KI1", f"worker {of.id} offers {of.places} places", f"at least {len(of.tasks)}, as many as leases")


def assigned(log: CanonicalVerifier, of: Worker, line: Line, told: WorkerTold) -> None:
    """A worker is busy with leases that it really holds."""
    if line.trigger == "shutdown_requested":
        if of.is_leaving or not told.reason:
            log.bad("WST-KI3", f"worker {of.id} is asked to go again, or without a reason", "once, with a reason")
        of.is_leaving = True
    elif line.trigger == "task_completed":
        _ended(log, of, told)
    elif line.trigger not in ASIDE:
        if told.attempt_id not in of.tasks:
            log.bad("WST-K2", f"worker {of.id} is assigned {told.attempt_id}", "a lease that it was granted")
        _counted(log, of, told)


def released(log: CanonicalVerifier, of: Worker, line: Line, told: WorkerTold) -> None:
    """A worker is idle when its last lease ended, unless it was asked to go."""
    if line.from_ == worker.BUSY:
        _ended(log, of, told)
        if of.is_leaving != (line.to == worker.SHUTDOWN):
            log.bad("WST-K8", f"worker {of.id} goes to {line.to}", "SHUTDOWN" if of.is_leaving else "IDLE")
    if line.trigger != "health_check_recovered" and (of.tasks or of.ended):
        held = ", ".join(sorted({*of.tasks, *of.ended}))
        log.bad("WST-KG3", f"worker {of.id} is {line.to} while it holds {held}", "no lease left")


def _ended(log: CanonicalVerifier, of: Worker, told: WorkerTold) -> None:
    if told.attempt_id not in of.ended:
        log.bad("WST-K3", f"worker {of.id} is released from {told.attempt_id}", "a lease that ended")
    trouble = of.ended.pop(told.attempt_id or "", None)
    _counted(log, of, told)
    _blamed(log, of, told, trouble)


def _blamed(log: CanonicalVerifier, of: Worker, told: WorkerTold, trouble: bool | None) -> None:
    """Troubles in a row are counted, those of one moment once; one too many, and it must not go on."""
    id, before = told.attempt_id or "", of.troubles
    if trouble and id not in of.excused:
        of.troubles, of.excused = before + 1, {*of.tasks, *of.ended}
        of.is_doubted = of.troubles >= worker.MAX_TROUBLES and not of.hold and not of.is_leaving
    elif trouble is False:
        of.troubles = 0
    of.excused.discard(id)
    if told.troubles != (of.troubles if of.troubles != before else None):
        log.bad(
            "WST-KH4", f"worker {of.id} tells of {told.troubles} troubles in a row", f"{of.troubles}, and only then"
        )


def held(log: CanonicalVerifier, of: Worker, line: Line, told: WorkerTold) -> None:
    """A worker is drained, quarantined or resumed: never what it is already, never for nothing."""
    if line.trigger == OFFERED:
        if told.hold is None and told.was is None:
            return
        is_right = (told.hold, told.was) == ("", of.hold) and of.hold == worker.QUARANTINED
    elif line.trigger in HOLDS:
        is_right = told.hold == HOLDS[line.trigger] and _is_held_rightly(of, told)
    else:
        is_right = told.hold is None and told.was is None
    if not is_right:
        found = f"worker {of.id} is {of.hold or 'not held'} and now {line.trigger}: {told.hold!r}, {told.was!r}"
        rule = {"drained": "WST-KH1", "quarantined": "WST-KH3"}.get(line.trigger, "WST-KH2")
        log.bad(rule, found, "another hold than before, or the end of the one that it is under")
    if line.trigger in ASIDE and told.hold is not None:
        of.hold, of.is_doubted = told.hold, False
        if not of.hold:
            of.troubles, of.excused = 0, set()


def _is_held_rightly(of: Worker, told: WorkerTold) -> bool:
    if told.hold == "":
        return bool(of.hold) and told.was == of.hold
    if told.reason is None or told.was is not None:
        return False
    if told.hold == worker.DRAINED:
        return of.hold != worker.DRAINED
    is_found = told.reason == worker.REPEATED_TROUBLES
    return not of.hold and told.troubles == of.troubles and is_found == of.is_doubted


def _counted(log: CanonicalVerifier, of: Worker, told: WorkerTold) -> None:
    held = len(of.tasks) + len(of.ended)
    if told.tasks != held:
        log.bad("WST-KI1", f"worker {of.id} has {told.tasks} tasks", f"{held}, as many as leases")


def silent(log: CanonicalVerifier, of: Worker, line: Line, told: WorkerTold) -> None:
    """A silent worker loses its leases one by one, and the event names them."""
    if line.trigger in ASIDE:
        return
    if line.from_ == worker.UNRESPONSIVE:
        _ended(log, of, told)
    elif set(told.attempts or ()) != of.tasks:
        log.bad("WST-KA4", f"worker {of.id} gives up {told.attempts}", f"{sorted(of.tasks)}")


def gone(log: CanonicalVerifier, of: Worker, line: Line, told: WorkerTold) -> None:
    """A worker goes for a reason."""
    if not told.reason:
        log.bad("WST-K7", f"worker {of.id} goes without a reason", "a reason")


CHECKS: Final[dict[str, tuple[Check, ...]]] = {
    worker.IDLE: (registered, released, held),
    worker.BUSY: (registered, assigned, held),
    worker.UNRESPONSIVE: (registered, silent, held),
    worker.SHUTDOWN: (released, gone, held),
}


def settle(log: CanonicalVerifier, of: Worker) -> None:
    """After the transaction: busy means that it holds a lease, and no ended one was forgotten."""
    if of.ended:
        log.bad("WST-KI4", f"worker {of.id} keeps {', '.join(sorted(of.ended))}, whose leases ended", "released")
        of.ended.clear()
    if of.is_doubted:
        log.bad("WST-KH3", f"worker {of.id} goes on after {of.troubles} troubles in a row", "its quarantine at once")
        of.is_doubted = False
    if (of.state == worker.BUSY) != bool(of.tasks) and of.state != worker.UNRESPONSIVE:
        log.bad(
            "WST-KI1", f"worker {of.id} is {of.state} with {len(of.tasks)} leases", "BUSY exactly while it holds one"
        )
