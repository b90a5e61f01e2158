"""Situations that several tests start from, and the commands that they send."""

from __future__ import annotations

from typing import Any, Final

from deltaci.core import attempt, lease
from deltaci.core.attempt import Attempt, LeasedCommand
from deltaci.core.instants import SECOND
from deltaci.core.machine import Command
from deltaci.core.status.steps import run_status, step_status
from tests.support.lab import Lab, Lease, task

ID: Final = "r1/build.1"
MICROSECOND: Final = 1 / SECOND

# The messages of a runner that bring its attempt to this state.
MESSAGES: Final[dict[str, tuple[type[LeasedCommand], ...]]] = {
    attempt.LEASED: (),
    attempt.STARTING: (attempt.Ack,),
    attempt.RUNNING: (attempt.Ack, attempt.Start),
    attempt.UPLOADING: (attempt.Ack, attempt.Start, attempt.BeginUpload),
}

# Document 004's operations; the first group belongs to the owner alone.
OWNED: Final = ("start", "heartbeat", "complete", "fail")
OPERATIONS: Final = ("claimNext", *OWNED, "stall", "requeueStalled")


def leased_job(state: str = attempt.RUNNING, **spec: Any) -> tuple[Lab, Lease]:
    """Return a lab with a run whose only job is leased to w1, with its attempt in this state, and the lease."""
    lab = Lab()
    lab.register("w1")
    lab.plan(task("build", **spec))
    leased = lab.claim(lab.attempt("build"))
    for message in MESSAGES[state]:
        lab.send(message, leased)
    assert lab.attempt("build").state == state
    return lab, leased


def revoke(lab: Lab, id: str = ID) -> None:
    """Take the attempt from its worker, as an operator does."""
    lab.do(attempt.Stall(id=id, actor="user:ada"))


def live(lab: Lab) -> lease.Lease:
    """Return the live lease of the attempt of `build`."""
    record = lab.attempt("build").lease
    assert record is not None
    return record


def busy(*names: str, slots: int = 1) -> tuple[Lab, list[Lease]]:
    """Return a lab in which w1 runs these tasks while `spare` is queued, and the leases."""
    lab = Lab()
    lab.register("w1", slots=slots)
    lab.plan(*map(task, names), task("spare"))
    leases = [lab.claim(lab.attempt(name)) for name in names]
    for leased in leases:
        lab.send(attempt.Heartbeat, leased)
    return lab, leases


def grant(lab: Lab, name: str, by: str = "w1") -> attempt.Grant:
    """Return the claim of a job by a worker, with the labels of its registration."""
    registered = lab.unit.worker(by)
    labels = registered.labels if registered else ()
    return attempt.Grant(id=lab.attempt(name).id, actor=f"worker:{by}", fingerprint="f", labels=labels)


def operation(lab: Lab, name: str, leased: Lease, **fields: Any) -> Command:
    """Return the command for one of document 004's operations on the attempt q1."""
    match name:
        case "claimNext":
            return attempt.Grant(id="q1", actor="worker:w2", fingerprint="f" * 32, **fields)
        case "start":
            return lab.message(attempt.Start, leased, **fields)
        case "heartbeat":
            return lab.message(attempt.Extend, leased, **fields)
        case "complete":
            return lab.message(attempt.Finish, leased, is_success=True, exit_code=0, **fields)
        case "fail":
            return lab.message(attempt.Finish, leased, is_success=False, exit_code=1, **fields)
        case "stall":
            return attempt.Stall(id="q1", **fields)
    return attempt.Requeue(id="q1", **fields)


def status(lab: Lab, name: str = "") -> str:
    """Return document 002's status of the run, or of one of its steps."""
    return step_status(lab.job(name)) if name else run_status(lab.run())


def attempts_in(lab: Lab) -> set[str]:
    """Return the ids of all attempts, which is all that a worker can claim."""
    return {id for id, record in lab.unit.records.items() if isinstance(record, Attempt)}
