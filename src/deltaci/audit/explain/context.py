"""All that is known of a run, or of an attempt without one, indexed once: what every explanation reads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from deltaci.audit.explain.formatting import shown
from deltaci.audit.explain.reasons import Clause, TenantState
from deltaci.core import worker
from deltaci.core.attempt import Attempt
from deltaci.core.events import Event
from deltaci.core.ids import attempt_id
from deltaci.core.job import Job
from deltaci.core.run import Run


class ExplainContext:
    """Records by id and events by whom they are about, in the order of the log. What is missing is left unsaid."""

    def __init__(
        self,
        run: Run | None,
        jobs: Iterable[Job],
        attempts: Iterable[Attempt],
        events: Sequence[Event],
        around: TenantState,
        *,
        is_brief: bool = False,
    ) -> None:
        self.is_brief = is_brief  # Many things are told of at once: what busy workers do is left out.
        self.run = run
        self.jobs = {each.id: each for each in jobs}
        self.attempts = {each.id: each for each in attempts}
        # Most of a long log says only that somebody is alive. No reason rests on that.
        self.events = [event for event in events if event.trigger != "heartbeat"]
        self.around = around
        self.now = around.now
        self.of: dict[str, list[Event]] = {}
        for event in self.events:
            known = self.of.get(event.entity_id)
            if known is None:
                self.of[event.entity_id] = [event]
            else:
                known.append(event)
        # Why no worker takes what needs these labels: the same for all of them, those of the plain queue set apart.
        self.by_worker: dict[tuple[str, bool], Clause] = {}
        self.workers = [(each, set(each.labels)) for each in around.workers if each.state not in worker.TERMINAL]

    def last(self, id: str, *triggers: str) -> Event | None:
        """The newest event that changed its state, or the newest with one of these words."""
        for event in reversed(self.of.get(id, ())):
            if event.trigger in triggers if triggers else event.from_ != event.to:
                return event
        return None

    def job_name(self, id: str) -> str:
        """What people call the job."""
        known = self.jobs.get(id)
        return shown(known.spec.name if known is not None else id)

    def attempt_of(self, job: Job, index: int = 0) -> Attempt | None:
        """The job's newest attempt, or the one with this index."""
        return self.attempts.get(attempt_id(job.id, index or job.attempts))

    def attempt_name(self, attempt: Attempt) -> str:
        """What people call the attempt; on its own it is a job of the queue."""
        if not attempt.job_id:
            return f"job {shown(attempt.id)}"
        return f"attempt {attempt.index} of {self.job_name(attempt.job_id)}"
