"""Mistakes about what ties jobs together: orders, families, groups, and what is worth another attempt."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import Any

from deltaci.core import cascade, failures, job, plan, run
from deltaci.core.events import JOB, Event
from deltaci.core.job import JobSpec
from deltaci.core.machine import Command
from deltaci.core.unit_of_work import UnitOfWork
from deltaci.engine.concurrency_groups import ConcurrencyGroups
from deltaci.simulation.database import SharedDatabase
from tests.simulation.planting import fault, instead, reaction, set_field


@fault
def who_comes_after_is_never_told() -> Iterator[None]:
    """Whoever only comes after a job never hears of its end."""
    real = cascade._release_dependents

    def tell(world: UnitOfWork, event: Event) -> Iterable[Command]:
        ended = world.job(event.entity_id)
        world.put(set_field(ended, followers=()))
        yield from real(world, event)

    with reaction(JOB, ("SUCCEEDED", "FAILED", "CANCELED"), real, tell):
        yield


@fault
def an_order_is_a_need() -> Iterator[None]:
    """Whoever only comes after a job that failed is blocked by it."""
    real = cascade._release_dependents

    def tell(world: UnitOfWork, event: Event) -> Iterable[Command]:
        ended = world.job(event.entity_id)
        world.put(set_field(ended, dependents=(*ended.dependents, *ended.followers), followers=()))
        yield from real(world, event)

    with reaction(JOB, ("SUCCEEDED", "FAILED", "CANCELED"), real, tell):
        yield


@fault
def an_order_is_forgotten() -> Iterator[None]:
    """A job does not wait for those that it only comes after."""
    with instead((plan, "prerequisites", lambda spec: spec.needs)):
        yield


@fault
def a_need_counts_as_an_order_too() -> Iterator[None]:
    """A job that is named in both lists counts down twice when it ends, and is waited for once."""

    def followers(jobs: Sequence[JobSpec]) -> dict[str, tuple[str, ...]]:
        names = {name for spec in jobs for name in spec.after}
        return {name: tuple(spec.name for spec in jobs if name in spec.after) for name in names}

    with instead((plan, "followers", followers)):
        yield


@fault
def a_canceled_run_begins_what_comes_after() -> Iterator[None]:
    """A run that is being cancelled sets going whatever only came after what was cancelled."""
    begins = ("QUEUED", "RUNNING", "WAITING_APPROVAL", "CANCEL_REQUESTED")
    with instead((run, "may_start_jobs", lambda record: record.state in begins)):
        yield


@fault
def a_family_outlives_its_failure() -> Iterator[None]:
    """A failure does not end its family."""
    with instead((job, "fails_family", lambda record: False)):
        yield


@fault
def an_allowed_failure_ends_its_family() -> Iterator[None]:
    """A job that may fail ends its family all the same."""

    def ends(record: job.Job) -> bool:
        return bool(record.spec.family) and record.spec.is_family_fail_fast and record.state == "FAILED"

    with instead((job, "fails_family", ends)):
        yield


@fault
def a_failure_ends_everybody() -> Iterator[None]:
    """A failure that ends its family ends all of its run."""

    def rest(world: UnitOfWork, ended: job.Job) -> list[job.Job]:
        return world.live_jobs(ended.run_id) if job.fails_family(ended) else []

    with instead((cascade, "_unfinished_family", rest)):
        yield


@fault
def what_is_retried_is_not_looked_up() -> Iterator[None]:
    """A job is retried on classes that it does not name."""
    real = failures.may_retry
    with instead((failures, "may_retry", lambda failure, attempts, most, retry_on=(): real(failure, attempts, most))):
        yield


@fault
def a_group_is_not_looked_after() -> Iterator[None]:
    """Of a group as many are handed out as there are workers."""

    def try_lock(self: ConcurrencyGroups, what: Any, now: int) -> Generator[Any, Any, bool]:
        yield from ()
        return True

    with instead((ConcurrencyGroups, "try_lock", try_lock)):
        yield


@fault
def a_group_is_free_when_its_lease_is_lost() -> Iterator[None]:
    """The next one of a group begins while the last one, whose worker is silent, may still be at work."""
    real = SharedDatabase._holder

    def holder(self: SharedDatabase, tenant: str, group: str, now: int) -> str:
        id = real(self, tenant, group, now)
        return id if id and self._rows[id].due_at is not None else ""

    with instead((SharedDatabase, "_holder", holder)):
        yield


@fault
def a_group_is_given_twice_in_one_batch() -> Iterator[None]:
    """Two claims that are decided together do not know of each other."""
    with instead((ConcurrencyGroups, "mark_held", lambda self, what: None)):
        yield
