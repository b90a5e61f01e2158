"""Explain the records of a lab, with the tenant state that a server would pass."""

from __future__ import annotations

from typing import Any

from deltaci.audit.explain import Explanation, TenantState, explain_attempt, explain_job, explain_run
from deltaci.core.attempt import Attempt
from deltaci.core.events import Event
from deltaci.core.job import Job
from deltaci.core.machine import Record
from deltaci.core.run import Run
from deltaci.core.worker import Worker
from tests.support.lab import Lab


class Archive:
    """The records and events of a lab, grouped by run as a store returns them."""

    def __init__(self, lab: Lab) -> None:
        self.now = lab.now
        self.records = {id: record for id, record in lab.unit.records.items() if record is not None}
        self.workers = tuple(record for record in self.records.values() if isinstance(record, Worker))
        self.jobs: dict[str, list[Job]] = {}
        self.attempts: dict[str, list[Attempt]] = {}
        for record in self.records.values():
            if isinstance(record, Job):
                self.jobs.setdefault(record.run_id, []).append(record)
            elif isinstance(record, Attempt) and record.run_id:
                self.attempts.setdefault(record.run_id, []).append(record)
        self.events: dict[str, list[Event]] = {}
        for event in lab.log:
            self.events.setdefault(event.run_id or event.entity_id, []).append(event)

    def why(self, record: Record, **tenant: Any) -> Explanation:
        """Return the explanation of one record. `tenant` has fields of the tenant state."""
        tenant_state = TenantState(now=self.now, workers=self.workers, **tenant)
        events = self.events.get(record.run_id or record.id, [])
        run = self.records.get(record.run_id)
        jobs, attempts = self.jobs.get(record.run_id, []), self.attempts.get(record.run_id, [])
        if isinstance(record, Run):
            return explain_run(record, jobs, attempts, events, tenant_state)
        if isinstance(record, Job):
            assert isinstance(run, Run)
            return explain_job(record, run, jobs, attempts, events, tenant_state)
        assert isinstance(record, Attempt)
        assert run is None or isinstance(run, Run)
        return explain_attempt(record, run, jobs, attempts, events, tenant_state)


def why(lab: Lab, record: Record, **tenant: Any) -> Explanation:
    """Return the explanation of one record of the lab in its current state."""
    return Archive(lab).why(record, **tenant)
