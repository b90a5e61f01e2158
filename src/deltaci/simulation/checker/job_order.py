"""Checks the relations between jobs: `needs`, `after`, families, and the verdicts of validation rules."""

from __future__ import annotations

from typing import Any

from deltaci.simulation.checker.leases import LeaseChecker
from deltaci.simulation.checker.tracked import TrackedAttempt, TrackedJob, TrackedRun
from deltaci.simulation.checker.transitions import JOB_TERMINAL_STATES, LogEvent, Violation


class JobOrderChecker(LeaseChecker):
    """Checks that jobs start, fail and are cancelled in the order that their relations demand."""

    def read_job_relations(self, job: TrackedJob, metadata: dict[str, Any]) -> None:
        """Store the job's relations, which its first event declares."""
        job.after = tuple(metadata.get("after", ()))
        job.family, job.is_family_fail_fast = str(metadata.get("family", "")), bool(metadata.get("is_family_fail_fast"))
        job.group, job.retry_on = str(metadata.get("group", "")), tuple(metadata.get("retry_on", ()))

    def is_need_met(self, job_id: str) -> bool:
        """Return whether jobs that need this job may start: it succeeded, or it failed and is not required."""
        need = self.entities.get(job_id)
        return isinstance(need, TrackedJob) and (
            need.state == "SUCCEEDED" or (need.state == "FAILED" and not need.is_required)
        )

    def is_finished(self, job_id: str) -> bool:
        """Return whether jobs that only come after this job may start: it has ended."""
        predecessor = self.entities.get(job_id)
        return predecessor is not None and predecessor.state in JOB_TERMINAL_STATES

    def has_failed_rule(self, entity: TrackedJob | TrackedRun) -> bool:
        """Return whether the runner of the job's last attempt reported a failed rule; False for a run."""
        last_attempt = self.entities.get(f"{entity.id}.{entity.index}") if isinstance(entity, TrackedJob) else None
        return isinstance(last_attempt, TrackedAttempt) and last_attempt.has_failed_rule

    def check_verdict(self, subject: str, job: TrackedJob, event: LogEvent, *, is_at_once: bool) -> None:
        """Check the end of a validation: a failed rule fails the job in the same commit, with the runner's details.

        Without a further validation, nothing else may fail it.
        """
        last_attempt = self.entities.get(f"{job.id}.{job.index}")
        if isinstance(last_attempt, TrackedAttempt) and last_attempt.has_failed_rule:
            details = str(last_attempt.verdict.get("details", ""))
            is_right_event = event.trigger == "validation_failed" and event.metadata.get("details", "") == details
            if not is_right_event or not is_at_once:
                raise Violation("verdict", f"{subject} is {event.to}, but its runner reported: {details}")
        elif event.trigger == "validation_failed" and not job.has_validation:
            raise Violation("verdict", f"{subject} fails its validation, but no rule failed")

    def check_order(self, subject: str, job: TrackedJob) -> None:
        """Check that a job which starts has all of its `needs` met and all of its `after` jobs ended."""
        for need in job.needs:
            if not self.is_need_met(need):
                needed_job = self.entities.get(need)
                raise Violation("needs", f"{subject} starts, but {need} is {needed_job and needed_job.state}")
        for predecessor in job.after:
            if not self.is_finished(predecessor):
                raise Violation("after", f"{subject} starts, but it comes after {predecessor}, which has not ended")

    def check_pending_commit(self, subject: str, job: TrackedJob) -> None:
        """Raise `Violation` if a job that is still pending after a commit could start now, or can never start."""
        if any(self.is_finished(need) and not self.is_need_met(need) for need in job.needs):
            raise Violation("blocked", f"{subject} waits for a need that can never be met")
        if all(map(self.is_need_met, job.needs)) and all(map(self.is_finished, job.after)):
            rule = "after" if job.after else "needs"
            raise Violation(rule, f"{subject} has everything that it waits for, but does not start")

    def has_failed_family(self, job: TrackedJob, run: TrackedRun) -> bool:
        """Return whether a job of the same family has failed in a way that ends the whole family."""
        return bool(job.family) and any(self._ends_family(member_id, job.family) for member_id in run.jobs)

    def _ends_family(self, job_id: str, family: str) -> bool:
        """Return whether the job with this id belongs to the family and its failure ends it."""
        job = self.entities.get(job_id)
        return isinstance(job, TrackedJob) and job.family == family and ends_family(job)

    def check_family_commit(self, job: TrackedJob, run: TrackedRun) -> None:
        """Check that all other jobs of a failed job's family have ended or were asked to cancel."""
        for member_id in run.jobs:
            member = self.entities[member_id]
            if not isinstance(member, TrackedJob) or member.family != job.family or member.state in JOB_TERMINAL_STATES:
                continue
            last_attempt = self.entities.get(f"{member_id}.{member.index}")
            if last_attempt is None or last_attempt.state != "CANCEL_REQUESTED":
                raise Violation("family", f"{job.id} failed, but {member_id} of its family is still {member.state}")


def ends_family(job: TrackedJob) -> bool:
    """Return whether the failure of this job ends its family."""
    return job.is_family_fail_fast and job.is_required and job.state == "FAILED"
