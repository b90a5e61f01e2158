"""The input of an explanation: records indexed by id, and events by the record that they belong to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from deltaci.audit.explain.formatting import one_line
from deltaci.audit.explain.reasons import Clause, TenantState
from deltaci.core import worker as core_worker
from deltaci.core.attempt import ACKNOWLEDGED, UPLOAD_BEGAN, Attempt
from deltaci.core.events import Event
from deltaci.core.ids import attempt_id
from deltaci.core.job import Job
from deltaci.core.run import Run

_ROUTINE_TRIGGERS: Final = frozenset({"heartbeat", ACKNOWLEDGED, UPLOAD_BEGAN})


class ExplainContext:
    """The records and events on which an explanation is based, indexed for lookup. Any of them may be missing.

    With `is_brief`, the tasks of busy workers are not named; use it when many records are explained at once.
    """

    def __init__(
        self,
        run: Run | None,
        jobs: Iterable[Job],
        attempts: Iterable[Attempt],
        events: Sequence[Event],
        tenant: TenantState,
        *,
        is_brief: bool = False,
    ) -> None:
        self.is_brief = is_brief
        self.run = run
        self.jobs = {job.id: job for job in jobs}
        self.attempts = {attempt.id: attempt for attempt in attempts}
        # Most events of a long log are heartbeats and the like, and no reason is based on one.
        self.events = [event for event in events if event.trigger not in _ROUTINE_TRIGGERS]
        self.tenant = tenant
        self.now = tenant.now
        self.events_by_id: dict[str, list[Event]] = {}
        for event in self.events:
            record_events = self.events_by_id.get(event.entity_id)
            if record_events is None:
                self.events_by_id[event.entity_id] = [event]
            else:
                record_events.append(event)
        # (queue_key, is_plain) -> why no worker takes such an attempt. It is the same for all attempts with that key.
        self.worker_clauses: dict[tuple[str, bool], Clause] = {}
        self.workers = [
            (worker, set(worker.labels)) for worker in tenant.workers if worker.state not in core_worker.TERMINAL
        ]

    def last_event(self, record_id: str, *triggers: str) -> Event | None:
        """Return the record's last event with one of the triggers or, if none is given, its last change of state.

        None if it has no such event.
        """
        for event in reversed(self.events_by_id.get(record_id, ())):
            if event.trigger in triggers if triggers else event.from_ != event.to:
                return event
        return None

    def job_name(self, job_id: str) -> str:
        """Return the job's name, or its id if the job is missing."""
        job = self.jobs.get(job_id)
        return one_line(job.spec.name if job is not None else job_id)

    def attempt_of(self, job: Job, index: int = 0) -> Attempt | None:
        """Return the job's attempt with this index, or its latest attempt if `index` is 0; None if it is missing."""
        return self.attempts.get(attempt_id(job.id, index or job.attempts))

    def attempt_name(self, attempt: Attempt) -> str:
        """Return the text `attempt N of JOB`, or `job ID` for an attempt of the plain queue, which has no job."""
        if not attempt.job_id:
            return f"job {one_line(attempt.id)}"
        return f"attempt {attempt.index} of {self.job_name(attempt.job_id)}"
