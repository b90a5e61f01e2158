"""Situations that several proofs start from, and what may be asked for in them."""

from __future__ import annotations

from typing import Any, Final

from deltaci.core import attempt, lease
from deltaci.core.attempt import Attempt, LeasedCommand
from deltaci.core.instants import SECOND
from deltaci.core.machine import Command
from deltaci.core.status.steps import run_status, step_status
from tests.lab import Lab, Lease, task

ID: Final = "r1/build.1"
MICROSECOND: Final = 1 / SECOND

# What a runner says, one message after another, until its attempt is in this state.
SAID: Final[dict[str, tuple[type[LeasedCommand], ...]]] = {
    attempt.LEASED: (),
    attempt.STARTING: (attempt.Ack,),
    attempt.RUNNING: (attempt.Ack, attempt.Start),
    attempt.UPLOADING: (attempt.Ack, attempt.Start, attempt.BeginUpload),
}

# Document 004's operations; the first group belongs to the owner alone.
OWNED: Final = ("start", "heartbeat", "complete", "fail")
OPERATIONS: Final = ("claimNext", *OWNED, "stall", "requeueStalled")


def held(state: str = attempt.RUNNING, **spec: Any) -> tuple[Lab, Lease]:
    """A run whose only job is held by worker w1, its attempt in this state."""
    lab = Lab()
    lab.register("w1")
    lab.plan(task("build", **spec))
    given = lab.claim(lab.attempt("build"))
    for message in SAID[state]:
        lab.say(message, given)
    assert lab.attempt("build").state == state
    return lab, given


def live(lab: Lab) -> lease.Lease:
    """The live lease of that attempt."""
    found = lab.attempt("build").lease
    assert found is not None
    return found


def busy(*names: str, places: int = 1) -> tuple[Lab, list[Lease]]:
    """w1 is busy with these tasks; `spare` still waits for somebody."""
    lab = Lab()
    lab.register("w1", places=places)
    lab.plan(*map(task, names), task("spare"))
    leases = [lab.claim(lab.attempt(name)) for name in names]
    for held in leases:
        lab.say(attempt.Heartbeat, held)
    return lab, leases


def grant(lab: Lab, name: str, by: str = "w1") -> attempt.Grant:
    """A worker asks for a job and offers the labels with which it was registered."""
    known = lab.world.worker(by)
    labels = known.labels if known else ()
    return attempt.Grant(id=lab.attempt(name).id, actor=f"worker:{by}", fingerprint="f", labels=labels)


def operation(lab: Lab, name: str, held: Lease, **fields: Any) -> Command:
    """One of document 004's operations on the attempt q1, not sent yet."""
    match name:
        case "claimNext":
            return attempt.Grant(id="q1", actor="worker:w2", fingerprint="f" * 32, **fields)
        case "start":
            return lab.message(attempt.Start, held, **fields)
        case "heartbeat":
            return lab.message(attempt.Extend, held, **fields)
        case "complete":
            return lab.message(attempt.Finish, held, is_success=True, exit_code=0, **fields)
        case "fail":
            return lab.message(attempt.Finish, held, is_success=False, exit_code=1, **fields)
        case "stall":
            return attempt.Stall(id="q1", **fields)
    return attempt.Requeue(id="q1", **fields)


def status(lab: Lab, name: str = "") -> str:
    """Document 002's status of the run, or of one of its steps."""
    return step_status(lab.job(name)) if name else run_status(lab.run())


def attempts_in(lab: Lab) -> set[str]:
    """The ids of everything that a worker could ever be handed."""
    return {id for id, record in lab.world.records.items() if isinstance(record, Attempt)}
