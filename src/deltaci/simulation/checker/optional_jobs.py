"""Checks the bounded wait for jobs that are not required, in runs whose required jobs have ended."""

from __future__ import annotations

from deltaci.simulation.checker.job_order import JobOrderChecker
from deltaci.simulation.checker.tracked import TrackedAttempt, TrackedJob, TrackedRun
from deltaci.simulation.checker.transitions import ACTIVE_RUN_STATES, LogEvent, Violation


class OptionalJobsChecker(JobOrderChecker):
    """Checks that a run waits as long as it must for jobs that are not required and not leased, and not longer.

    The wait begins when the required jobs have ended.
    """

    commit_count: int

    def track_waiting_job(self, job: TrackedJob, run: TrackedRun, event: LogEvent) -> None:
        """Update the waiting optional jobs after an event that changes the state of one."""
        if job.is_required:
            return
        if event.to in ("QUEUED", "RETRYING", "WAITING_APPROVAL") or (
            event.to == "VALIDATING" and job.has_validation and not self.has_failed_rule(job)
        ):
            run.waiting_optional[job.id] = run.wait_since = event.at
        else:
            run.waiting_optional.pop(job.id, None)

    def track_waiting_attempt(self, attempt: TrackedAttempt, run: TrackedRun, event: LogEvent) -> None:
        """Update the waiting optional jobs after an attempt was leased or lost its lease."""
        job = self.entities.get(attempt.job_id)
        if not isinstance(job, TrackedJob) or job.is_required:
            return
        if attempt.lost_leases > attempt.max_lost_leases:
            return  # It fails in the same decision.
        if event.to in ("QUEUED", "STALE"):
            run.waiting_optional[job.id] = run.wait_since = event.at
        elif event.to == "LEASED":
            run.waiting_optional.pop(job.id, None)

    def check_wait_event(self, subject: str, run: TrackedRun, event: LogEvent) -> None:
        """Check that the wait begins after the last required job, and ends in time or for want of a worker."""
        if run.open_required_job_count or not run.open_job_count:
            raise Violation("decided", f"{subject} with {run.open_required_job_count} required jobs open")
        if event.trigger == "optional_wait_began":
            run.decided_at = run.decided_at or event.at
        elif event.metadata.get("cause") == "wait_over":
            due_at = run.wait_since_decided + run.optional_wait_us
            if event.at < due_at:
                raise Violation("decided", f"{subject} comes too early: the wait is over at {due_at}")
            run.wait_ended_commit = self.commit_count

    def is_wait_over(self, job: TrackedJob, run: TrackedRun) -> bool:
        """Return whether the wait for this optional job is over, or there is none because no worker has its labels."""
        if job.is_required or job.state == "PENDING" or run.open_required_job_count:
            return False
        return run.wait_ended_commit == self.commit_count or self._is_unserved(job, run)

    def _is_unserved(self, job: TrackedJob, run: TrackedRun) -> bool:
        last_attempt = self.entities.get(f"{job.id}.{job.index}")
        return isinstance(last_attempt, TrackedAttempt) and not any(
            worker.tenant == run.tenant and worker.state != "SHUTDOWN" and last_attempt.labels <= worker.labels
            for worker in self.workers.values()
        )

    def check_wait_commit(self, subject: str, run: TrackedRun) -> None:
        """Check after a commit that a wait has begun if it must, and that no job outlasted its end."""
        if run.state not in ACTIVE_RUN_STATES or run.open_required_job_count:
            return
        if not run.decided_at:
            raise Violation("decided", f"{subject} has no open required job, but does not begin to wait for the rest")
        if run.wait_ended_commit == self.commit_count - 1:
            for job_id, waiting_since in run.waiting_optional.items():
                if waiting_since < run.at:
                    raise Violation("decided", f"{subject} has ended its wait, but {job_id} still waits")
