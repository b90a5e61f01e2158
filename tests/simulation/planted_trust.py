"""Mistakes in who is trusted with work: workers that are held, their troubles, and jobs that they lost."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from deltaci.core import attempt, cascade, job, worker
from deltaci.core.events import ATTEMPT, Event
from deltaci.core.machine import Command
from deltaci.core.unit_of_work import UnitOfWork
from tests.simulation.planting import fault, instead, reaction, rule, set_field

HERE = ("IDLE", "BUSY", "UNRESPONSIVE")


def _releasing(**fields: Any) -> Any:
    """What follows from an ended lease, with something else in the release."""

    def follow(world: UnitOfWork, event: Event) -> Iterator[Command]:
        for order in cascade._release_worker(world, event):
            if not isinstance(order, worker.Release):
                continue
            release = set_field(order, **{name: value(order, event) for name, value in fields.items()})
            yield release
            holder = world.worker(release.id)
            if holder is not None and worker.should_quarantine(holder, release):
                yield worker.Quarantine(id=holder.id, reason=worker.REPEATED_INFRA_FAILURES)

    return follow


def _released(follow: Any) -> Any:
    return reaction(ATTEMPT, cascade._LEASE_ENDS, cascade._release_worker, follow)


# -- held


@fault
def a_drained_worker_gets_more() -> Iterator[None]:
    """Nobody looks whether a worker is drained."""

    def assign(record: worker.Worker, command: worker.Assign, at: int) -> Any:
        return worker._assign(set_field(record, hold="" if record.hold == "DRAINED" else record.hold), command, at)

    with rule(worker.MACHINE, ("IDLE", "BUSY"), worker.Assign, assign):
        yield


@fault
def a_quarantined_worker_gets_more() -> Iterator[None]:
    """Nobody looks whether a worker is trusted."""

    def assign(record: worker.Worker, command: worker.Assign, at: int) -> Any:
        return worker._assign(set_field(record, hold="" if record.hold == "QUARANTINED" else record.hold), command, at)

    with rule(worker.MACHINE, ("IDLE", "BUSY"), worker.Assign, assign):
        yield


@fault
def a_drain_that_does_not_stay() -> Iterator[None]:
    """A drain is told, and not written down."""

    def drain(record: worker.Worker, command: worker.Drain, at: int) -> Any:
        move = worker._drain(record, command, at)
        return move if move is None else (move[0], {}, move[2])

    with rule(worker.MACHINE, HERE, worker.Drain, drain):
        yield


@fault
def a_quarantine_over_a_drain() -> Iterator[None]:
    """What somebody decided is forgotten when the worker is found wanting."""

    def quarantine(record: worker.Worker, command: worker.Quarantine, at: int) -> Any:
        return worker._quarantine(set_field(record, hold=""), command, at)

    with rule(worker.MACHINE, HERE, worker.Quarantine, quarantine):
        yield


@fault
def nobody_is_let_go() -> Iterator[None]:
    """Who resumes a worker is told that it is, and it is not."""

    def resume(record: worker.Worker, command: worker.Resume, at: int) -> Any:
        move = worker._resume(record, command, at)
        return move if move is None else (move[0], {}, move[2])

    with rule(worker.MACHINE, HERE, worker.Resume, resume):
        yield


@fault
def a_runner_that_comes_in_again_ends_a_drain() -> Iterator[None]:
    """Registering anew ends whatever holds a worker."""

    def offer(record: worker.Worker, command: worker.UpdateCapabilities, at: int) -> Any:
        held = set_field(record, hold="QUARANTINED") if record.hold else record
        return worker._update_capabilities(held, command, at)

    with rule(worker.MACHINE, HERE, worker.UpdateCapabilities, offer):
        yield


# -- troubles


@fault
def no_quarantine_follows() -> Iterator[None]:
    """Troubles are counted, and nothing comes of it."""
    with instead((worker, "should_quarantine", lambda record, release: False)):
        yield


@fault
def a_quarantine_too_late() -> Iterator[None]:
    """Three troubles are not enough."""
    with instead((worker, "MAX_INFRA_FAILURES", 4)):
        yield


@fault
def a_quarantine_too_early() -> Iterator[None]:
    """Two troubles are enough."""
    with instead((worker, "MAX_INFRA_FAILURES", 2)):
        yield


@fault
def a_success_does_not_forgive() -> Iterator[None]:
    """What went well says nothing."""
    with _released(_releasing(is_infra_failure=lambda order, event: order.is_infra_failure or None)):
        yield


@fault
def a_lost_lease_is_no_trouble() -> Iterator[None]:
    """Only what a runner reports counts against it."""
    with _released(
        _releasing(is_infra_failure=lambda order, event: order.is_infra_failure if event.to != "STALE" else None)
    ):
        yield


@fault
def what_is_handed_back_is_a_trouble() -> Iterator[None]:
    """Whoever gives work back is blamed for it."""
    with _released(
        _releasing(is_infra_failure=lambda order, event: order.is_infra_failure if event.to != attempt.STALE else True)
    ):
        yield


@fault
def every_failure_is_a_trouble() -> Iterator[None]:
    """A worker is blamed for the mistakes of the jobs."""
    with _released(
        _releasing(is_infra_failure=lambda order, event: order.is_infra_failure if event.to != "FAILED" else True)
    ):
        yield


@fault
def one_pulled_cable_counts_for_each_job() -> Iterator[None]:
    """What is lost together is counted one by one."""

    def release(record: worker.Worker, command: worker.Release, at: int) -> Any:
        return worker._release(set_field(record, excused=()), command, at)

    with rule(worker.MACHINE, ("BUSY", "UNRESPONSIVE"), worker.Release, release):
        yield


# -- avoided


@fault
def who_lost_it_gets_it_again() -> Iterator[None]:
    """Nobody looks who lost a job before."""
    with instead((attempt, "should_yield", lambda *_: False)):
        yield


@fault
def who_lost_it_never_gets_it_again() -> Iterator[None]:
    """A worker waits for a rival, whether there is one or not."""
    with instead((attempt, "should_yield", lambda record, worker_id, *_: worker_id in record.avoid)):
        yield


@fault
def two_that_wait_for_each_other() -> Iterator[None]:
    """A rival counts although it lost the job as well."""
    real = attempt.should_yield

    def is_avoided(record: attempt.Attempt, id: str, rivals: Any, _: Any) -> bool:
        return id in record.avoid and real(set_field(record, avoid=(id,)), id, rivals)

    with instead((attempt, "should_yield", is_avoided)):
        yield


@fault
def the_next_attempt_knows_nothing() -> Iterator[None]:
    """A job does not hand on who lost it."""

    def failed(record: job.Job, command: job.AttemptFailed, at: int) -> Any:
        return job._attempt_failed(record, set_field(command, avoid=()), at)

    with rule(job.MACHINE, ("RUNNING",), job.AttemptFailed, failed):
        yield
