"""The records that a decision reads and the changes that it makes, kept apart until the decision stands."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from deltaci.core.attempt import Attempt
from deltaci.core.errors import InvariantBroken, NotLoaded, Refused
from deltaci.core.events import Event
from deltaci.core.job import TERMINAL, Job
from deltaci.core.machine import Record
from deltaci.core.run import Run
from deltaci.core.worker import Worker

T = TypeVar("T", bound=Record)


class UnitOfWork:
    """Everything loaded so far. What is missing raises `NotLoaded`, unless the world is complete by itself."""

    def __init__(self, records: Mapping[str, Record] | None = None, *, is_complete: bool = False) -> None:
        self.records: dict[str, Record | None] = dict(records or {})
        self.job_ids: dict[str, tuple[str, ...]] = {}
        self.is_complete = is_complete
        self.latest_at = 0  # The newest time seen: what one world decides never goes back, whatever the clock does.
        self.draft: dict[str, Record] = {}
        self.draft_job_ids: dict[str, list[str]] = {}
        self.absent: set[str] = set()
        self.events: list[Event] = []

    def find(self, id: str) -> Record | None:
        """The record as the decision under way sees it; None when there is no such record."""
        record = self.draft.get(id)
        if record is not None:
            return record
        try:
            return self.records[id]
        except KeyError:
            if self.is_complete or id in self.absent:
                return None
            raise NotLoaded(ids=(id,)) from None

    def get(self, id: str, kind: type[T]) -> T:
        """The record, which must exist and be of this kind."""
        record = self.find(id)
        if record is None:
            raise Refused("not_found", f"there is no {kind.__name__.lower()} {id!r}; check the id")
        if not isinstance(record, kind):
            raise Refused(
                "not_found", f"{id!r} is a {type(record).__name__.lower()}, not a {kind.__name__.lower()}; check the id"
            )
        return record

    def run(self, id: str) -> Run:
        """The run."""
        return self.get(id, Run)

    def job(self, id: str) -> Job:
        """The job."""
        return self.get(id, Job)

    def attempt(self, id: str) -> Attempt:
        """The attempt."""
        return self.get(id, Attempt)

    def worker(self, id: str) -> Worker | None:
        """The worker, if it is registered: the plain queue also serves owners that are not."""
        record = self.find(id)
        return record if isinstance(record, Worker) else None

    def require(self, ids: Iterable[str]) -> None:
        """Ask for many records at once, so that a store can load them in one go."""
        if not self.is_complete:
            missing = tuple(
                id for id in ids if id not in self.draft and id not in self.records and id not in self.absent
            )
            if missing:
                raise NotLoaded(ids=missing)

    def assume_absent(self, ids: Iterable[str]) -> None:
        """There can be no such records, for the decision under way: nobody needs to look for them.

        Should there be one all the same, its birth conflicts with it when it is written.
        """
        self.absent.update(ids)

    def live_jobs(self, run_id: str) -> list[Job]:
        """The jobs of the run that are not over."""
        ids: Sequence[str] | None = self.draft_job_ids.get(run_id) or self.job_ids.get(run_id)
        if ids is None:
            if not self.is_complete:
                raise NotLoaded(jobs_of=run_id)
            ids = ()
        self.require(ids)
        return [found for found in map(self.job, ids) if found.state not in TERMINAL]

    def put(self, record: Record) -> None:
        """Change a record in the draft."""
        self.draft[record.id] = record

    def add(self, record: Record) -> None:
        """Add a record that did not exist."""
        if self.find(record.id) is not None:
            raise InvariantBroken(f"{record.id} is born twice")
        self.put(record)
        if isinstance(record, Job):
            if record.run_id not in self.draft_job_ids:
                self.draft_job_ids[record.run_id] = list(self.job_ids.get(record.run_id, ()))
            self.draft_job_ids[record.run_id].append(record.id)

    def commit(self) -> tuple[dict[str, Record], list[Event]]:
        """The decision stands: make the draft the truth, and hand it out."""
        draft, events = self.draft, self.events
        self.records.update(draft)
        if events:
            self.latest_at = max(self.latest_at, events[-1].at)
        self.job_ids.update((run_id, tuple(ids)) for run_id, ids in self.draft_job_ids.items())
        self.roll_back()
        return draft, events

    def roll_back(self) -> None:
        """The decision does not stand: forget the draft."""
        self.draft, self.draft_job_ids, self.absent, self.events = {}, {}, set(), []
