"""The records that a decision reads, and the changes that it makes, which are discarded unless it is committed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from deltaci.core.attempt import Attempt
from deltaci.core.errors import InvariantBroken, NotLoaded, Refused
from deltaci.core.events import Event
from deltaci.core.job import TERMINAL, Job
from deltaci.core.machine import Record
from deltaci.core.run import Run
from deltaci.core.worker import Worker, is_over

T = TypeVar("T", bound=Record)


class UnitOfWork:
    """The loaded records, and the uncommitted changes (the draft) of the decision in progress.

    Reading a record that is not loaded raises `NotLoaded`, so that the caller loads it and decides again. With
    `is_complete`, all records are loaded and a missing one does not exist.
    """

    def __init__(self, records: Mapping[str, Record] | None = None, *, is_complete: bool = False) -> None:
        self.records: dict[str, Record | None] = dict(records or {})
        self.job_ids: dict[str, tuple[str, ...]] = {}  # The ids of a run's jobs, by run id.
        self.tenants_with_workers: set[str] = set()  # Tenants all of whose registered workers are loaded.
        self.is_complete = is_complete
        self.latest_at = 0  # The latest decision's time; no later decision is made at an earlier one.
        self.draft: dict[str, Record] = {}
        self.draft_job_ids: dict[str, list[str]] = {}
        self.absent: set[str] = set()
        self.events: list[Event] = []

    def find(self, id: str) -> Record | None:
        """Return the record with the changes of the decision in progress, or None if it does not exist.

        Raises `NotLoaded` if the record is not loaded.
        """
        record = self.draft.get(id)
        if record is not None:
            return record
        try:
            return self.records[id]
        except KeyError:
            if self.is_complete or id in self.absent:
                return None
            raise NotLoaded(ids=(id,)) from None

    def get(self, id: str, record_type: type[T]) -> T:
        """Return the record. Refuse with `not_found` if it does not exist or is not of this type."""
        record = self.find(id)
        if record is None:
            raise Refused("not_found", f"there is no {record_type.__name__.lower()} {id!r}; check the id")
        if not isinstance(record, record_type):
            raise Refused(
                "not_found",
                f"{id!r} is a {type(record).__name__.lower()}, not a {record_type.__name__.lower()}; check the id",
            )
        return record

    def run(self, id: str) -> Run:
        return self.get(id, Run)

    def job(self, id: str) -> Job:
        return self.get(id, Job)

    def attempt(self, id: str) -> Attempt:
        return self.get(id, Attempt)

    def worker(self, id: str) -> Worker | None:
        """Return the worker, or None if it is not registered: workers of the plain queue need not register."""
        record = self.find(id)
        return record if isinstance(record, Worker) else None

    def registered_workers(self, tenant: str) -> list[Worker]:
        """Return the tenant's workers that are not shut down."""
        if not self.is_complete and tenant not in self.tenants_with_workers:
            raise NotLoaded(workers_of=tenant)
        workers = {record.id: record for record in self.records.values() if type(record) is Worker}
        workers |= {record.id: record for record in self.draft.values() if type(record) is Worker}
        return [worker for worker in workers.values() if worker.tenant == tenant and not is_over(worker)]

    def require(self, ids: Iterable[str]) -> None:
        """Raise one `NotLoaded` with all ids that are not loaded, so that the caller loads them with one query."""
        if not self.is_complete:
            missing_ids = tuple(
                id for id in ids if id not in self.draft and id not in self.records and id not in self.absent
            )
            if missing_ids:
                raise NotLoaded(ids=missing_ids)

    def assume_absent(self, ids: Iterable[str]) -> None:
        """Treat these records as not existing during the decision in progress, without loading them.

        If one exists nevertheless, writing the new record conflicts with it.
        """
        self.absent.update(ids)

    def live_jobs(self, run_id: str) -> list[Job]:
        """Return the jobs of the run that are not in a terminal state."""
        ids: Sequence[str] | None = self.draft_job_ids.get(run_id) or self.job_ids.get(run_id)
        if ids is None:
            if not self.is_complete:
                raise NotLoaded(jobs_of=run_id)
            ids = ()
        self.require(ids)
        return [job for job in map(self.job, ids) if job.state not in TERMINAL]

    def put(self, record: Record) -> None:
        """Add a changed record to the draft."""
        self.draft[record.id] = record

    def add(self, record: Record) -> None:
        """Add a new record to the draft; raise `InvariantBroken` if its id exists."""
        if self.find(record.id) is not None:
            raise InvariantBroken(f"{record.id} is created twice")
        self.put(record)
        if isinstance(record, Job):
            if record.run_id not in self.draft_job_ids:
                self.draft_job_ids[record.run_id] = list(self.job_ids.get(record.run_id, ()))
            self.draft_job_ids[record.run_id].append(record.id)

    def commit(self) -> tuple[dict[str, Record], list[Event]]:
        """Make the draft part of the loaded records; return the records that it changed, by id, and its events."""
        draft, events = self.draft, self.events
        self.records.update(draft)
        if events:
            self.latest_at = max(self.latest_at, events[-1].at)
        self.job_ids.update((run_id, tuple(ids)) for run_id, ids in self.draft_job_ids.items())
        self.roll_back()
        return draft, events

    def roll_back(self) -> None:
        """Discard the draft and its events."""
        self.draft, self.draft_job_ids, self.absent, self.events = {}, {}, set(), []
