"""Mistakes in the relations between jobs: `after`, families, groups, and retry classes."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import Any

from deltaci.core import attempt, cascade, failures, job, plan, run
from deltaci.core.events import JOB, Event
from deltaci.core.job import JobSpec
from deltaci.core.machine import Command
from deltaci.core.unit_of_work import UnitOfWork
from deltaci.engine.concurrency_groups import ConcurrencyGroups
from deltaci.simulation.database import SharedDatabase
from tests.simulation.planting import fault, patched, replaced_follow_up, set_field


@fault
def followers_are_not_released() -> Iterator[None]:
    """The end of a job does not release the jobs that come after it."""
    real = cascade._release_dependents

    def release(unit: UnitOfWork, event: Event) -> Iterable[Command]:
        ended = unit.job(event.entity_id)
        unit.put(set_field(ended, followers=()))
        yield from real(unit, event)

    with replaced_follow_up(JOB, ("SUCCEEDED", "FAILED", "CANCELED"), real, release):
        yield


@fault
def after_counts_as_a_need() -> Iterator[None]:
    """A job is blocked by the failure of a job that it only comes after."""
    real = cascade._release_dependents

    def release(unit: UnitOfWork, event: Event) -> Iterable[Command]:
        ended = unit.job(event.entity_id)
        unit.put(set_field(ended, dependents=(*ended.dependents, *ended.followers), followers=()))
        yield from real(unit, event)

    with replaced_follow_up(JOB, ("SUCCEEDED", "FAILED", "CANCELED"), real, release):
        yield


@fault
def after_is_ignored() -> Iterator[None]:
    """A job does not wait for the jobs that it comes after."""
    with patched((plan, "prerequisites", lambda spec: spec.needs)):
        yield


@fault
def need_and_after_count_twice() -> Iterator[None]:
    """A job that is named in both lists is counted twice when it ends, although it is waited for once."""

    def followers(jobs: Sequence[JobSpec]) -> dict[str, tuple[str, ...]]:
        names = {name for spec in jobs for name in spec.after}
        return {name: tuple(spec.name for spec in jobs if name in spec.after) for name in names}

    with patched((plan, "followers", followers)):
        yield


@fault
def canceled_run_starts_followers() -> Iterator[None]:
    """A run that is being cancelled starts the jobs that come after the cancelled ones."""
    states = ("QUEUED", "RUNNING", "WAITING_APPROVAL", "CANCEL_REQUESTED")
    with patched((run, "may_start_jobs", lambda record: record.state in states)):
        yield


@fault
def family_continues_after_a_failure() -> Iterator[None]:
    """A failure does not end its family."""
    with patched((job, "fails_family", lambda record: False)):
        yield


@fault
def optional_failure_ends_its_family() -> Iterator[None]:
    """The failure of a job that is not required ends its family."""

    def ends(record: job.Job) -> bool:
        return bool(record.spec.family) and record.spec.is_family_fail_fast and record.state == "FAILED"

    with patched((job, "fails_family", ends)):
        yield


@fault
def family_failure_ends_the_run() -> Iterator[None]:
    """A failure that ends its family ends all jobs of its run."""

    def unfinished(unit: UnitOfWork, ended: job.Job) -> list[job.Job]:
        return unit.live_jobs(ended.run_id) if job.fails_family(ended) else []

    with patched((cascade, "_unfinished_family", unfinished)):
        yield


@fault
def retry_on_is_ignored() -> Iterator[None]:
    """A job is retried on failure classes that it does not name."""
    real = failures.may_retry
    with patched((failures, "may_retry", lambda failure, attempts, most, retry_on=(): real(failure, attempts, most))):
        yield


@fault
def group_is_not_locked() -> Iterator[None]:
    """Any number of attempts of a group are leased at once."""

    def try_lock(self: ConcurrencyGroups, candidate: Any, now: int) -> Generator[Any, Any, bool]:
        yield from ()
        return True

    with patched((ConcurrencyGroups, "try_lock", try_lock)):
        yield


@fault
def lost_lease_frees_its_group() -> Iterator[None]:
    """The next attempt of a group starts while the last one, which lost its lease, may still run."""
    real = SharedDatabase._holder

    def holder(self: SharedDatabase, tenant: str, group: str, now: int) -> str:
        id = real(self, tenant, group, now)
        return id if id not in self._rows or self._rows[id].due_at is not None else ""

    with patched((SharedDatabase, "_holder", holder)):
        yield


@fault
def end_by_force_frees_the_group() -> Iterator[None]:
    """The next attempt of a group starts while the runner of one that was ended by force may still run it."""
    real = SharedDatabase._holder

    def holder(self: SharedDatabase, tenant: str, group: str, now: int) -> str:
        id = real(self, tenant, group, now)
        return id if id in self._rows else ""

    with patched((SharedDatabase, "_holder", holder)):
        yield


@fault
def forced_cancel_has_no_fence() -> Iterator[None]:
    """A forced cancel takes the word of a runner that never answered: its group is free at once."""
    real = attempt._take_over

    def take_over(record: attempt.Attempt, command_type: type[Command], at: int) -> Any:
        changes, metadata = real(record, command_type, at)
        return ({**changes, "fence_until": at} if record.state == "CANCEL_REQUESTED" else changes), metadata

    with patched((attempt, "_take_over", take_over)):
        yield


@fault
def group_is_leased_twice_in_one_batch() -> Iterator[None]:
    """Two claims in the same batch do not see each other's groups."""
    with patched((ConcurrencyGroups, "mark_held", lambda self, candidate: None)):
        yield
