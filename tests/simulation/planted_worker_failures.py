"""Mistakes in holds, infrastructure failures, and the jobs that a worker lost."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from deltaci.core import attempt, cascade, failures, job, worker
from deltaci.core.events import ATTEMPT, Event
from deltaci.core.machine import Command
from deltaci.core.unit_of_work import UnitOfWork
from tests.simulation.planting import fault, patched, replaced_follow_up, replaced_handler, set_field

LIVE_STATES = ("IDLE", "BUSY", "UNRESPONSIVE")


def _changed_release(**fields: Any) -> Any:
    """Return a follow-up of an ended lease whose `Release` has these fields computed otherwise."""

    def follow(unit: UnitOfWork, event: Event) -> Iterator[Command]:
        for command in cascade._release_worker(unit, event):
            if not isinstance(command, worker.Release):
                continue
            release = set_field(command, **{name: value(command, event) for name, value in fields.items()})
            yield release
            holder = unit.worker(release.id)
            if holder is not None and worker.should_quarantine(holder, release):
                yield worker.Quarantine(id=holder.id, reason=worker.REPEATED_INFRA_FAILURES)

    return follow


def _replaced_release(follow: Any) -> Any:
    return replaced_follow_up(ATTEMPT, cascade._LEASE_ENDS, cascade._release_worker, follow)


# -- holds


@fault
def drained_worker_gets_work() -> Iterator[None]:
    """A drained worker gets new work."""

    def assign(record: worker.Worker, command: worker.Assign, at: int) -> Any:
        return worker._assign(set_field(record, hold="" if record.hold == "DRAINED" else record.hold), command, at)

    with replaced_handler(worker.MACHINE, ("IDLE", "BUSY"), worker.Assign, assign):
        yield


@fault
def quarantined_worker_gets_work() -> Iterator[None]:
    """A quarantined worker gets new work."""

    def assign(record: worker.Worker, command: worker.Assign, at: int) -> Any:
        return worker._assign(set_field(record, hold="" if record.hold == "QUARANTINED" else record.hold), command, at)

    with replaced_handler(worker.MACHINE, ("IDLE", "BUSY"), worker.Assign, assign):
        yield


@fault
def drain_is_not_stored() -> Iterator[None]:
    """A drain is logged, but not stored."""

    def drain(record: worker.Worker, command: worker.Drain, at: int) -> Any:
        move = worker._drain(record, command, at)
        return move if move is None else (move[0], {}, move[2])

    with replaced_handler(worker.MACHINE, LIVE_STATES, worker.Drain, drain):
        yield


@fault
def quarantine_replaces_a_drain() -> Iterator[None]:
    """A quarantine replaces the drain of an operator."""

    def quarantine(record: worker.Worker, command: worker.Quarantine, at: int) -> Any:
        return worker._quarantine(set_field(record, hold=""), command, at)

    with replaced_handler(worker.MACHINE, LIVE_STATES, worker.Quarantine, quarantine):
        yield


@fault
def resume_is_not_stored() -> Iterator[None]:
    """A resume is acknowledged, but not stored."""

    def resume(record: worker.Worker, command: worker.Resume, at: int) -> Any:
        move = worker._resume(record, command, at)
        return move if move is None else (move[0], {}, move[2])

    with replaced_handler(worker.MACHINE, LIVE_STATES, worker.Resume, resume):
        yield


@fault
def registering_again_ends_a_drain() -> Iterator[None]:
    """Registering again clears every hold."""

    def offer(record: worker.Worker, command: worker.UpdateCapabilities, at: int) -> Any:
        held = set_field(record, hold="QUARANTINED") if record.hold else record
        return worker._update_capabilities(held, command, at)

    with replaced_handler(worker.MACHINE, LIVE_STATES, worker.UpdateCapabilities, offer):
        yield


# -- infrastructure failures


@fault
def quarantine_never_follows() -> Iterator[None]:
    """Infrastructure failures are counted, but lead to no quarantine."""
    with patched((worker, "should_quarantine", lambda record, release: False)):
        yield


@fault
def quarantine_is_late() -> Iterator[None]:
    """Three infrastructure failures are not enough for a quarantine."""
    with patched((worker, "MAX_INFRA_FAILURES", 4)):
        yield


@fault
def quarantine_is_early() -> Iterator[None]:
    """Two infrastructure failures are enough for a quarantine."""
    with patched((worker, "MAX_INFRA_FAILURES", 2)):
        yield


@fault
def success_does_not_reset_the_count() -> Iterator[None]:
    """A success does not reset the count of failures."""
    with _replaced_release(_changed_release(is_infra_failure=lambda command, event: command.is_infra_failure or None)):
        yield


@fault
def lost_lease_is_not_counted_as_a_failure() -> Iterator[None]:
    """Only failures that a runner reports count against its worker."""
    with _replaced_release(
        _changed_release(
            is_infra_failure=lambda command, event: command.is_infra_failure if event.to != "STALE" else None
        )
    ):
        yield


@fault
def hand_back_counts_as_a_failure() -> Iterator[None]:
    """Handing work back counts as an infrastructure failure."""
    with _replaced_release(
        _changed_release(
            is_infra_failure=lambda command, event: command.is_infra_failure if event.to != attempt.STALE else True
        )
    ):
        yield


@fault
def every_failure_counts_against_the_worker() -> Iterator[None]:
    """Failures of every class count against the worker."""
    with _replaced_release(
        _changed_release(
            is_infra_failure=lambda command, event: command.is_infra_failure if event.to != "FAILED" else True
        )
    ):
        yield


@fault
def simultaneous_losses_count_separately() -> Iterator[None]:
    """Leases that are lost together are counted one by one."""

    def release(record: worker.Worker, command: worker.Release, at: int) -> Any:
        return worker._release(set_field(record, excused=()), command, at)

    with replaced_handler(worker.MACHINE, ("BUSY", "UNRESPONSIVE"), worker.Release, release):
        yield


# -- jobs that a worker lost


@fault
def loser_gets_the_job_again() -> Iterator[None]:
    """A worker that lost a job gets it again."""
    with patched((attempt, "should_yield", lambda *_: False)):
        yield


@fault
def printed_text_counts_against_the_worker() -> Iterator[None]:
    """What a job printed counts as an infrastructure failure of its worker."""

    def is_worker_fault(failure_class: str, code: str) -> bool | None:
        return failures.is_worker_fault(failure_class, "UPLOAD" if code == "EXIT" else code)

    with patched((cascade, "failures", SimpleNamespace(is_worker_fault=is_worker_fault))):
        yield


@fault
def loser_never_gets_the_job_again() -> Iterator[None]:
    """A worker that lost a job waits for another worker, even if there is none."""
    with patched((attempt, "should_yield", lambda record, worker_id, *_: worker_id in record.avoid)):
        yield


@fault
def losers_wait_for_each_other() -> Iterator[None]:
    """A worker that lost the job counts as an alternative for another one that lost it."""
    real = attempt.should_yield

    def is_avoided(record: attempt.Attempt, id: str, other_workers: Any, _: Any) -> bool:
        return id in record.avoid and real(set_field(record, avoid=(id,)), id, other_workers)

    with patched((attempt, "should_yield", is_avoided)):
        yield


@fault
def next_attempt_forgets_the_losers() -> Iterator[None]:
    """A job does not tell its next attempt which workers lost it."""

    def failed(record: job.Job, command: job.AttemptFailed, at: int) -> Any:
        return job._attempt_failed(record, set_field(command, avoid=()), at)

    with replaced_handler(job.MACHINE, ("RUNNING",), job.AttemptFailed, failed):
        yield
