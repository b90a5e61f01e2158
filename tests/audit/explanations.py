"""Explanations of what is in the lab, with what a server would know around it."""

from __future__ import annotations

from typing import Any

from deltaci.audit.explain import Explanation, TenantState, explain_attempt, explain_job, explain_run
from deltaci.core.attempt import Attempt
from deltaci.core.events import Event
from deltaci.core.job import Job
from deltaci.core.machine import Record
from deltaci.core.run import Run
from deltaci.core.worker import Worker
from tests.lab import Lab


class Archive:
    """The records and events of a lab, by the run that they belong to: as a store would find them."""

    def __init__(self, lab: Lab) -> None:
        self.now = lab.now
        self.records = {id: record for id, record in lab.world.records.items() if record is not None}
        self.workers = tuple(each for each in self.records.values() if isinstance(each, Worker))
        self.jobs: dict[str, list[Job]] = {}
        self.attempts: dict[str, list[Attempt]] = {}
        for each in self.records.values():
            if isinstance(each, Job):
                self.jobs.setdefault(each.run_id, []).append(each)
            elif isinstance(each, Attempt) and each.run_id:
                self.attempts.setdefault(each.run_id, []).append(each)
        self.events: dict[str, list[Event]] = {}
        for event in lab.log:
            self.events.setdefault(event.run_id or event.entity_id, []).append(event)

    def why(self, record: Record, **around: Any) -> Explanation:
        """The explanation of one record."""
        surroundings = TenantState(now=self.now, workers=self.workers, **around)
        events = self.events.get(record.run_id or record.id, [])
        owner = self.records.get(record.run_id)
        jobs, attempts = self.jobs.get(record.run_id, []), self.attempts.get(record.run_id, [])
        if isinstance(record, Run):
            return explain_run(record, jobs, attempts, events, surroundings)
        if isinstance(record, Job):
            assert isinstance(owner, Run)
            return explain_job(record, owner, jobs, attempts, events, surroundings)
        assert isinstance(record, Attempt)
        assert owner is None or isinstance(owner, Run)
        return explain_attempt(record, owner, jobs, attempts, events, surroundings)


def why(lab: Lab, record: Record, **around: Any) -> Explanation:
    """The explanation of one record of the lab, as it is now."""
    return Archive(lab).why(record, **around)
