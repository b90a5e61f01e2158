"""Checks the relations between jobs: `needs`, `after`, families, and the verdicts of validation rules."""

from __future__ import annotations

from typing import Any

from deltaci.simulation.checker.leases import LeaseChecker
from deltaci.simulation.checker.tracked import TrackedAttempt, TrackedJob, TrackedRun
from deltaci.simulation.checker.transitions import JOB_TERMINAL_STATES, LogEvent, Violation


class JobOrderChecker(LeaseChecker):
    """Check that jobs start, fail and are cancelled in the order that their relations demand."""

    def read_job_relations(self, job: TrackedJob, metadata: dict[str, Any]) -> None:
        """Store the relations that the job's first event declares."""
        job.after = tuple(metadata.get("after", ()))
        job.family, job.is_family_fail_fast = str(metadata.get("family", "")), bool(metadata.get("is_family_fail_fast"))
        job.group, job.retry_on = str(metadata.get("group", "")), tuple(metadata.get("retry_on", ()))

    def is_need_met(self, id: str) -> bool:
        """Return whether a job that needs this one may start: it succeeded, or failed but is not required."""
        need = self.entities.get(id)
        return isinstance(need, TrackedJob) and (
            need.state == "SUCCEEDED" or (need.state == "FAILED" and not need.is_required)
        )

    def is_finished(self, id: str) -> bool:
        """Return whether a job that only comes after this one may start: it has ended."""
        earlier = self.entities.get(id)
        return earlier is not None and earlier.state in JOB_TERMINAL_STATES

    def has_failed_rule(self, entity: TrackedJob | TrackedRun) -> bool:
        """Return whether the runner of the job's last attempt reported a failed rule; False for a run."""
        last = self.entities.get(f"{entity.id}.{entity.index}") if isinstance(entity, TrackedJob) else None
        return isinstance(last, TrackedAttempt) and last.has_failed_rule

    def check_verdict(self, subject: str, job: TrackedJob, event: LogEvent, *, is_at_once: bool) -> None:
        """Check that a failed rule fails the job, in the same commit and with the runner's details.

        Without a further validation, nothing else may fail it.
        """
        last = self.entities.get(f"{job.id}.{job.index}")
        if isinstance(last, TrackedAttempt) and last.has_failed_rule:
            details = str(last.verdict.get("details", ""))
            is_right_event = event.trigger == "validation_failed" and event.metadata.get("details", "") == details
            if not is_right_event or not is_at_once:
                raise Violation("verdict", f"{subject} is {event.to}, but its runner reported: {details}")
        elif event.trigger == "validation_failed" and not job.has_validation:
            raise Violation("verdict", f"{subject} fails its validation, but no rule failed")

    def check_order(self, subject: str, job: TrackedJob) -> None:
        """Check that everything the job waits for has ended as required when it starts."""
        for need in job.needs:
            if not self.is_need_met(need):
                other = self.entities.get(need)
                raise Violation("needs", f"{subject} starts, but {need} is {other and other.state}")
        for earlier in job.after:
            if not self.is_finished(earlier):
                raise Violation("after", f"{subject} starts, but it comes after {earlier}, which has not ended")

    def check_pending_commit(self, subject: str, job: TrackedJob) -> None:
        """Check that no job stays pending that could start, or that can never start."""
        if any(self.is_finished(need) and not self.is_need_met(need) for need in job.needs):
            raise Violation("blocked", f"{subject} waits for a need that can never be met")
        if all(map(self.is_need_met, job.needs)) and all(map(self.is_finished, job.after)):
            rule = "after" if job.after else "needs"
            raise Violation(rule, f"{subject} has everything that it waits for, but does not start")

    def has_failed_family(self, job: TrackedJob, run: TrackedRun) -> bool:
        """Return whether another job of the family failed and ends the whole family."""
        return bool(job.family) and any(self._ends_family(id, job.family) for id in run.jobs)

    def _ends_family(self, id: str, family: str) -> bool:
        other = self.entities.get(id)
        return isinstance(other, TrackedJob) and other.family == family and ends_family(other)

    def check_family_commit(self, job: TrackedJob, run: TrackedRun) -> None:
        """Check that all other jobs of the family have ended or were asked to cancel."""
        for id in run.jobs:
            other = self.entities[id]
            if not isinstance(other, TrackedJob) or other.family != job.family or other.state in JOB_TERMINAL_STATES:
                continue
            last = self.entities.get(f"{id}.{other.index}")
            if last is None or last.state != "CANCEL_REQUESTED":
                raise Violation("family", f"{job.id} failed, but {id} of its family is still {other.state}")


def ends_family(job: TrackedJob) -> bool:
    """Return whether the failure of this job ends its family."""
    return job.is_family_fail_fast and job.is_required and job.state == "FAILED"
