"""Checks an event log against the documents: each event when it is committed, and each commit as a whole.

The checker keeps only what it needs for the next event. Rules about a whole commit are checked by `check_commit`. It
shares no code with the engine or the core, so that a mistake there cannot hide itself. A `Violation` names the
invariant, the event, and what was expected.
"""

from __future__ import annotations

from typing import Final

from deltaci.simulation.checker.job_order import ends_family
from deltaci.simulation.checker.leases import START_US, CheckerConfig
from deltaci.simulation.checker.optional_jobs import OptionalJobsChecker
from deltaci.simulation.checker.tracked import TrackedAttempt, TrackedEntity, TrackedJob, TrackedRun, TrackedWorker
from deltaci.simulation.checker.transitions import (
    ACTIVE_JOB_STATES,
    ACTIVE_RUN_STATES,
    ATTEMPT_TERMINAL_STATES,
    JOB_TERMINAL_STATES,
    LEGAL_CHANGES,
    LIVE_LEASE_STATES,
    RUN_OUTCOMES,
    SECOND,
    TERMINAL_STATES,
    TRANSITIONS,
    LogEvent,
    Violation,
)
from deltaci.simulation.checker.worker_failures import check_worker_commit, check_worker_event

__all__ = ["INVARIANTS", "CheckerConfig", "HistoryChecker", "Violation"]

INVARIANTS: Final = {
    "order": "seq grows by one, without a gap",
    "rev": "every event counts its entity's rev by one",
    "continuity": "an event starts from the state that the last one ended in",
    "time": "the time of an entity never goes back",
    "clock": "no event is later than the store's clock",
    "terminal": "a terminal record never changes",
    "legal": "only the documents' transitions happen, under their triggers",
    "actor": "only a permitted actor makes a transition",
    "identity": "tenant and run of an entity never change, and are those of its run",
    "repeated": "a request is carried out once",
    "held": "an attempt is in a leased state exactly while its lease is live",
    "one-lease": "an attempt has one live lease at most",
    "token": "the numbers of leases grow and are never used again",
    "term": "a lease ends a TTL after its grant or its last renewal",
    "expiry": "no lease expires early",
    "silence": "missed health checks end no lease, but mark it; a message under it recovers its worker, which is not"
    " given up before its leases end",
    "revived": "no message counts under a lease that has ended",
    "shortened": "no lease is shortened",
    "accept-window": "a lease is revoked as not accepted only after its accept window, and only if it was not accepted",
    "heartbeats": "under one lease, a heartbeat that was sent before an applied one changes nothing",
    "fence": "only the holder of the live lease changes an attempt",
    "fence-gap": "an attempt is not claimed before its last holder must have stopped",
    "labels": "a worker gets only what it has the labels for",
    "drained": "a worker that is leaving or gone gets no work",
    "hold": "a worker on hold gets no new work until it is resumed",
    "troubles": "a worker is quarantined exactly after three infrastructure failures in a row",
    "avoided": "a worker does not get a job again that it lost while another worker could take it",
    "slots": "a worker holds no more leases than it has slots",
    "worker": "a worker is busy exactly while it holds leases, and reports how many",
    "lost-leases": "an attempt fails exactly after too many lost leases",
    "requeue": "an attempt whose lease was lost fails, is queued at once, or stays stale until its runner has stopped",
    "timeout": "nothing times out early",
    "cancel-deadline": "a cancel is forced only after its deadline",
    "late": "what is due happens soon while no fault is active",
    "unclaimed": "no attempt waits long while a suitable worker is free",
    "after-end": "no job of a run starts once the run is cancelled or over",
    "orphan": "every attempt is the one that its job expects, and every job belongs to a run that is being planned",
    "attempts": "a job's attempts follow one another, at most as many as allowed",
    "retry": "a job is retried exactly if its failure and its attempts allow it",
    "backoff": "a retry waits as long as it must",
    "approval": "an approval is decided by enough people or expires; it has no attempt",
    "needs": "a job starts exactly when all its needs are met",
    "after": "a job starts exactly when the jobs that it comes after have ended, in whatever state",
    "family": "a failure ends its family at once if the job is declared so",
    "group": "no attempt of a group is leased while another one has a live lease, or its runner may still run it",
    "blocked": "a job is cancelled exactly when there is a reason",
    "validation": "a job or run without validation ends at once; one with validation waits for it",
    "verdict": "a failed validation rule fails its job at once; a passed one does not",
    "outcome": "a job ends as its attempts did, a run as its jobs did, and at once",
    "fail-fast": "a fail-fast run fails at once, any other when no job is open",
    "decided": "after the last required job, optional jobs wait as long as they must, and not longer",
    "waiting": "a run waits for approval exactly while no other job can progress",
    "cancel": "a cancel cannot be undone and reaches every job",
    "plan": "a plan is accepted only before its deadline",
    "conclusion": "the reported conclusion is the run's outcome",
    # Checked against the stored records, the acknowledgements and the processes that really ran.
    "log": "the log is never changed",
    "record": "the stored records agree with the log",
    "acknowledged": "what was acknowledged is in the log",
    "idempotent": "a repeated request is answered as before",
    "reused": "a request id is accepted for one command only",
    "stale-rev": "a command that expects an old rev is refused",
    "credential": "a registration token registers one worker once",
    "truth": "a job that succeeded did run and ended with exit code 0",
    "overlap": "an attempt never runs twice at the same time",
    "group-overlap": "two attempts of one group never run at the same time",
    "stopped": "nothing runs that was reported as stopped",
    "self-stop": "a runner has stopped its job before its lease runs out",
    "unowned": "no process starts without a live lease",
    "told": "every end of a job is in the log eventually",
    "log-bytes": "a log has the bytes that its job wrote",
    "error": "no part logs or raises an unexpected error",
    "liveness": "once no fault is active, every run ends",
}
VALIDATION_TRIGGERS: Final = frozenset({"validation_passed", "validation_failed", "all_required_succeeded"})
# Reasons for which a run cancels its jobs.
RUN_CANCEL_REASONS: Final = frozenset({"RUN_CANCELED", "RUN_TIMEOUT", "NOT_NEEDED"})


class HistoryChecker(OptionalJobsChecker):
    """Checks every event once, in the order of the log."""

    def __init__(self, config: CheckerConfig | None = None) -> None:
        super().__init__(config)
        self.seq = 0
        self.event_count = 0
        self.runs: dict[str, TrackedRun] = {}
        # (request id, entity id): number of the commit, first rev.
        self.requests: dict[tuple[str, str], tuple[int, int]] = {}
        self._dependents: dict[str, list[str]] = {}
        self._touched_ids: dict[str, None] = {}
        self._ended_with_open_jobs: list[TrackedRun] = []

    def check_event(self, event: LogEvent, now: int = 0) -> None:
        """Check one event and update the tracked state. Raise `Violation` if the event breaks an invariant.

        `now` is the time of the store's clock.
        """
        self.event_count += 1
        if event.seq != self.seq + 1:
            raise Violation("order", f"seq {event.seq} comes after {self.seq}")
        self.seq = event.seq
        entity = self.entities.get(event.entity_id)
        if entity is None:
            entity = self._track(event)
        self._check_step(entity, event)
        if now and event.at > now and not self.config.has_clock_jumps:
            raise Violation(
                "clock", f"{entity.id} (seq {event.seq}) is {(event.at - now) / SECOND:.1f} s in the future"
            )
        if event.request_id:
            self._check_request(event)
        if isinstance(entity, TrackedAttempt):
            self.check_attempt_event(entity, event)
            if event.run_id and event.from_ != event.to:
                self.track_waiting_attempt(entity, self.runs[event.run_id], event)
        elif isinstance(entity, TrackedJob):
            self._check_job_event(entity, event)
        elif isinstance(entity, TrackedRun):
            self._check_run_event(entity, event)
        elif isinstance(entity, TrackedWorker):
            self._check_worker_event(entity, event)
        entity.state, entity.rev, entity.at = event.to, event.rev, event.at
        self._mark_touched(entity, event)

    def _track(self, event: LogEvent) -> TrackedEntity:
        """Start to track the entity that this first event creates, and return it.

        A job or attempt needs a run of its tenant.
        """
        entity_id = event.entity_id
        entity: TrackedEntity
        if event.entity == "attempt":
            entity = TrackedAttempt(entity_id)
        elif event.entity == "job":
            entity = job = TrackedJob(entity_id)
            job.dependents = self._dependents.setdefault(entity_id, [])
        elif event.entity == "run":
            entity = self.runs[entity_id] = TrackedRun(entity_id)
        else:
            entity = self.workers[entity_id] = TrackedWorker(entity_id)
        entity.tenant, entity.run_id = event.tenant, event.run_id
        run = self.runs.get(event.run_id)
        if event.entity in ("job", "attempt") and event.run_id and (run is None or run.tenant != event.tenant):
            raise Violation("identity", f"{entity_id} is of {event.tenant}, but its run is of {run and run.tenant}")
        self.entities[entity_id] = entity
        return entity

    def _check_step(self, entity: TrackedEntity, event: LogEvent) -> None:
        """Check the rules for all events, on transition, actor, previous state, rev, time, tenant and run."""
        subject = f"{event.entity} {event.entity_id} (seq {event.seq}, {event.trigger})"
        edge = (event.entity, event.from_, event.to, event.trigger)
        if entity.state in TERMINAL_STATES[event.entity]:
            raise Violation("terminal", f"{subject} changes after its end {entity.state}")
        if event.rev != entity.rev + 1:
            raise Violation("rev", f"{subject} has rev {event.rev} after {entity.rev}")
        if event.from_ != entity.state:
            raise Violation("continuity", f"{subject} goes from {event.from_}, but it is {entity.state}")
        if event.at < entity.at:
            raise Violation("time", f"{subject} happens at {event.at}, before {entity.at}")
        if event.tenant != entity.tenant or event.run_id != entity.run_id:
            raise Violation("identity", f"{subject} is of {event.tenant}, {event.run_id}; it was of {entity.tenant}")
        actors = TRANSITIONS.get(edge)
        if actors is None:
            problem = "is no transition" if edge[:3] not in LEGAL_CHANGES else f"is not called {event.trigger}"
            raise Violation("legal", f"{subject}: {event.from_} → {event.to} {problem} of a {event.entity}")
        if event.actor.partition(":")[0] not in actors:
            raise Violation("actor", f"{subject} was done by {event.actor}; expected {' or '.join(sorted(actors))}")
        self.edges.add(edge)

    def _check_request(self, event: LogEvent) -> None:
        """Check that a request changes an entity in one commit only."""
        request_key = event.request_id, event.entity_id
        first_change = self.requests.setdefault(request_key, (self.commit_count, event.rev))
        if first_change[0] != self.commit_count:
            raise Violation(
                "repeated",
                f"request {request_key[0]} changes {request_key[1]} again (seq {event.seq}, {event.trigger})",
            )

    def _mark_touched(self, entity: TrackedEntity, event: LogEvent) -> None:
        """Remember the entities that this event may affect, which `check_commit` then checks."""
        if event.from_ == event.to and event.entity == "attempt":
            return
        self._touched_ids[entity.id] = None
        if isinstance(entity, TrackedJob):
            self._touched_ids[entity.run_id] = None
            if event.to in JOB_TERMINAL_STATES:
                self._touched_ids.update(dict.fromkeys(entity.dependents))
        elif isinstance(entity, TrackedAttempt):
            if entity.job_id:
                self._touched_ids[entity.job_id] = self._touched_ids[entity.run_id] = None
            if entity.lease is not None:
                self._touched_ids[entity.lease.worker_id] = None

    # -- jobs

    def _check_job_event(self, job: TrackedJob, event: LogEvent) -> None:
        """Check an event of a job, and update the tracked state of the job and its run."""
        subject = f"job {job.id} (seq {event.seq}, {event.trigger})"
        run = self.runs[job.run_id]
        metadata = event.metadata
        if event.from_ is None:
            if run.state != "PLANNING":
                raise Violation("orphan", f"{subject} is created while its run is {run.state}")
            job.kind, job.needs, job.is_required = (
                metadata["kind"],
                tuple(metadata["needs"]),
                bool(metadata["is_required"]),
            )
            job.max_attempts, job.jitter = int(metadata.get("max_attempts", 1)), float(metadata.get("jitter", 0.0))
            job.backoff = int(metadata.get("base_delay_seconds", 0)), int(metadata.get("max_delay_seconds", 0))
            job.has_validation = bool(metadata.get("has_validation"))
            job.required_approver_count = int(metadata.get("approvers", 1))
            run.jobs.append(job.id)
            self.read_job_relations(job, metadata)
            for predecessor_id in (*job.needs, *job.after):
                self._dependents.setdefault(predecessor_id, []).append(job.id)
        if event.trigger in ("approval_given", "approved"):
            self._check_approval(subject, job, event)
        if event.from_ != event.to:
            self._update_job_counts(run, job, event)
            self.track_waiting_job(job, run, event)
            self._check_job_step(subject, job, run, event)

    @staticmethod
    def _update_job_counts(run: TrackedRun, job: TrackedJob, event: LogEvent) -> None:
        """Update the numbers of jobs by state that are tracked for the run."""
        opened = (event.from_ is None) - (event.to in JOB_TERMINAL_STATES)
        run.open_job_count += opened
        run.open_required_job_count += opened * job.is_required
        run.active_job_count += (event.to in ACTIVE_JOB_STATES) - (event.from_ in ACTIVE_JOB_STATES)
        run.waiting_job_count += (event.to == "WAITING_APPROVAL") - (event.from_ == "WAITING_APPROVAL")
        run.failed_required_job_count += job.is_required and event.to in ("FAILED", "CANCELED")
        run.has_started = run.has_started or event.to == "RUNNING"

    def _check_job_step(self, subject: str, job: TrackedJob, run: TrackedRun, event: LogEvent) -> None:
        """Check an event that changes the state of a job."""
        if event.from_ == "PENDING" and event.to != "CANCELED":
            self._check_job_start(subject, job, run, event)
        if event.to == "QUEUED":
            if event.metadata.get("attempt_index") != job.index + 1:
                raise Violation(
                    "attempts", f"{subject} is attempt {event.metadata.get('attempt_index')} after {job.index}"
                )
            job.index += 1
        if event.from_ == "RETRYING":
            if event.to == "QUEUED" and event.at < job.next_run_at:
                raise Violation(
                    "backoff", f"{subject} is retried {(job.next_run_at - event.at) / SECOND:.1f} s too early"
                )
            self.check_not_late(subject, event, job.next_run_at)
        if event.from_ == "RUNNING" and event.to in ("RETRYING", "FAILED"):
            self._check_retry(subject, job, event)
        if event.from_ == "WAITING_APPROVAL":
            self._check_decision(subject, job, event)
        last_attempt = self.entities.get(f"{job.id}.{job.index}")
        if event.to == "VALIDATING" and (last_attempt is None or last_attempt.state != "SUCCEEDED"):
            raise Violation(
                "outcome",
                f"{subject} was executed, but its attempt {job.index} is {last_attempt and last_attempt.state}",
            )
        self._check_validated(subject, job, event)
        if event.from_ == "VALIDATING":
            self.check_verdict(subject, job, event, is_at_once=job.validating_since_commit == self.commit_count)
        if (
            event.to in JOB_TERMINAL_STATES
            and last_attempt is not None
            and last_attempt.state not in ATTEMPT_TERMINAL_STATES
        ):
            raise Violation("outcome", f"{subject} is over, but its attempt {job.index} is {last_attempt.state}")
        if event.to == "CANCELED":
            self._check_canceled(subject, job, run, event)

    def _check_job_start(self, subject: str, job: TrackedJob, run: TrackedRun, event: LogEvent) -> None:
        """Check that a job may start: its needs are met, its run is active, and only an approval waits for approval."""
        self.check_order(subject, job)
        if (job.kind == "approval") != (event.to == "WAITING_APPROVAL"):
            raise Violation("approval", f"{subject} is {event.to}, but it is of kind {job.kind}")
        if run.state not in ACTIVE_RUN_STATES or run.is_cancel_requested:
            raise Violation("after-end", f"{subject} starts, but its run is {run.state}")
        if event.to == "WAITING_APPROVAL":
            job.approve_by = int(event.metadata.get("approve_by", 0))

    def _check_validated(self, subject: str, entity: TrackedJob | TrackedRun, event: LogEvent) -> None:
        """Check that a validation is not decided in the commit that starts it, unless a rule of the runner failed."""
        if event.to == "VALIDATING":
            entity.validating_since_commit = self.commit_count
        elif (
            event.trigger in VALIDATION_TRIGGERS
            and entity.has_validation
            and entity.validating_since_commit == self.commit_count
            and not self.has_failed_rule(entity)
        ):
            raise Violation("validation", f"{subject} must be validated, but was decided at once")

    def _check_retry(self, subject: str, job: TrackedJob, event: LogEvent) -> None:
        """Check that a failed job is retried exactly if its failure allows it, and after the right delay."""
        last_attempt = self.entities.get(f"{job.id}.{job.index}")
        if not isinstance(last_attempt, TrackedAttempt) or last_attempt.state not in ("FAILED", "TIMED_OUT"):
            raise Violation(
                "outcome", f"{subject} failed, but its attempt {job.index} is {last_attempt and last_attempt.state}"
            )
        failure_class = last_attempt.error.get("failure_class")
        may_retry = failure_class != "USER" and bool(last_attempt.error.get("is_retryable"))
        if last_attempt.state == "TIMED_OUT" or last_attempt.error.get("code") == "LEASE_LOST":
            may_retry = True
        may_retry = may_retry and job.index < job.max_attempts and (not job.retry_on or failure_class in job.retry_on)
        if may_retry != (event.to == "RETRYING"):
            failure_text = f"attempt {job.index} of {job.max_attempts} failed as {failure_class}"
            raise Violation("retry", f"{subject} is {event.to}, but {failure_text}")
        if not may_retry:
            return
        job.next_run_at = int(event.metadata["next_run_at"])
        delay_us = min(job.backoff[1], job.backoff[0] * 2 ** min(job.index, 30)) * SECOND
        earliest_run_at = max(event.at + delay_us, last_attempt.fence_until)
        latest_run_at = max(event.at + int(delay_us * (1 + job.jitter)), last_attempt.fence_until)
        if not earliest_run_at <= job.next_run_at <= latest_run_at:
            deviation_seconds = (job.next_run_at - earliest_run_at) / SECOND
            raise Violation("backoff", f"{subject} will be retried {deviation_seconds:+.1f} s from when it should")

    @staticmethod
    def _check_approval(subject: str, job: TrackedJob, event: LogEvent) -> None:
        """Check that each person approves once, and that the last required approval ends the job."""
        if event.actor in job.approved_by:
            raise Violation("approval", f"{subject} is approved by {event.actor} again")
        job.approved_by.append(event.actor)
        if (len(job.approved_by) == job.required_approver_count) != (event.to == "SUCCEEDED"):
            approval_text = f"{len(job.approved_by)} of {job.required_approver_count} people"
            raise Violation("approval", f"{subject} is {event.to}, approved by {approval_text}")

    def _check_decision(self, subject: str, job: TrackedJob, event: LogEvent) -> None:
        """Check that an approval expires only after its deadline and soon after it, and store who decided it."""
        if event.to == "FAILED" and event.actor == "orchestrator" and not 0 < job.approve_by <= event.at:
            raise Violation("approval", f"{subject} is rejected by the orchestrator before it expires")
        if job.approve_by:
            self.check_not_late(subject, event, job.approve_by)
        job.decided_by = event.actor

    def _check_canceled(self, subject: str, job: TrackedJob, run: TrackedRun, event: LogEvent) -> None:
        """Check that the reason for which a job is cancelled applies."""
        reason = event.metadata.get("reason")
        if reason == "BLOCKED":
            needed_jobs = [self.entities.get(job_id) for job_id in job.needs]
            does_reason_apply = any(
                needed_job is not None
                and needed_job.state in JOB_TERMINAL_STATES
                and not self.is_need_met(needed_job.id)
                for needed_job in needed_jobs
            )
        elif reason == "NOT_NEEDED" and (self.has_failed_family(job, run) or self.is_wait_over(job, run)):
            does_reason_apply = True
        elif reason in RUN_CANCEL_REASONS:
            does_reason_apply = run.state not in ACTIVE_RUN_STATES and run.state != "VALIDATING"
        else:
            does_reason_apply = bool(reason)
        if not does_reason_apply:
            raise Violation("blocked", f"{subject} is cancelled as {reason}, but that reason does not apply")

    # -- runs and workers

    def _check_run_event(self, run: TrackedRun, event: LogEvent) -> None:
        """Check an event of a run, and update the tracked state of the run."""
        subject = f"run {run.id} (seq {event.seq}, {event.trigger})"
        metadata = event.metadata
        if event.from_ is None:
            run.timeout_us = int(metadata["timeout_seconds"]) * SECOND
            run.optional_wait_us = int(metadata.get("optional_wait_seconds", 0)) * SECOND
            run.is_fail_fast, run.has_validation = bool(metadata["is_fail_fast"]), bool(metadata["has_validation"])
        elif event.trigger == "cancel_requested":
            run.is_cancel_requested = True
        if event.to == "PLANNING" and event.from_ == "CREATED":
            run.plan_by = int(metadata["plan_by"])
        elif event.trigger == "group_awaited":
            if event.at >= run.plan_by:
                raise Violation("plan", f"{subject} waits for its group after its planning deadline")
            run.plan_by = 0
        elif event.from_ == "PLANNING" and event.from_ != event.to:
            self._check_plan(subject, run, event)
            run.queued_at = event.at
        elif event.trigger in ("optional_wait_began", "optional_wait_ended"):
            self.check_wait_event(subject, run, event)
        elif event.to == "RUNNING" and event.from_ == "QUEUED":
            run.started_at = event.at if metadata.get("cause") != "timed_out" else 0
        elif event.to == "WAITING_APPROVAL":
            run.waiting_since = event.at
        elif event.to == "RUNNING":
            run.waited_us += event.at - run.waiting_since
        elif event.to == "TIMEOUT":
            due_at = run.queued_at + START_US
            if run.started_at:
                due_at = run.started_at + run.timeout_us + run.waited_us
            if event.at < due_at:
                raise Violation("timeout", f"{subject} is timed out {(due_at - event.at) / SECOND:.1f} s too early")
            self.check_not_late(subject, event, due_at)
        elif event.to == "REPORTED" and metadata.get("conclusion") != event.from_:
            raise Violation("conclusion", f"{subject} reports {metadata.get('conclusion')}, but it was {event.from_}")
        self._check_validated(subject, run, event)
        if event.to in RUN_OUTCOMES or event.to == "CANCEL_REQUESTED":
            self._check_outcome(subject, run, event)

    def _check_plan(self, subject: str, run: TrackedRun, event: LogEvent) -> None:
        """Check that a plan is accepted only in time and with all of its jobs.

        Planning may fail for want of a plan only after its deadline, and must fail soon after it.
        """
        is_late = 0 < run.plan_by <= event.at
        if event.to == "QUEUED" and (is_late or event.metadata.get("jobs") != run.open_job_count):
            raise Violation(
                "plan", f"{subject}: the plan came too late, or not all of its {run.open_job_count} jobs were created"
            )
        if event.to == "PLAN_FAILED" and str(event.metadata.get("error", "")).startswith("no plan within"):
            if not is_late:
                raise Violation("plan", f"{subject} fails for want of a plan before its planning deadline")
            self.check_not_late(subject, event, run.plan_by)

    def _check_outcome(self, subject: str, run: TrackedRun, event: LogEvent) -> None:
        """Check that the outcome of a run agrees with the states of its jobs."""
        if event.to == "SUCCESS" and (run.open_job_count or run.failed_required_job_count):
            raise Violation(
                "outcome",
                f"{subject} succeeds with {run.open_job_count} jobs open and {run.failed_required_job_count} failed",
            )
        if event.to == "CANCELED" and run.open_job_count:
            raise Violation("outcome", f"{subject} is cancelled with {run.open_job_count} jobs open")
        if event.trigger == "required_job_failed":
            if not run.failed_required_job_count:
                raise Violation("outcome", f"{subject} fails, but it can still succeed")
            if run.open_job_count and not run.is_fail_fast:
                raise Violation(
                    "fail-fast", f"{subject} fails with {run.open_job_count} jobs open, but it does not fail fast"
                )
        if run.open_job_count:
            self._ended_with_open_jobs.append(run)

    def _check_worker_event(self, worker: TrackedWorker, event: LogEvent) -> None:
        """Check an event of a worker, and update the tracked state of the worker."""
        metadata = event.metadata
        if "max_concurrent_tasks" in metadata:
            worker.labels, worker.slots = frozenset(metadata["labels"]), int(metadata["max_concurrent_tasks"])
            worker.free_since = event.at
        if event.trigger == "health_check_timeout":
            worker.silence = self.commit_count, event.request_id
        if event.trigger == "max_timeout_exceeded" and worker.leased_attempts:
            raise Violation("silence", f"worker {worker.id} is given up, but holds {sorted(worker.leased_attempts)}")
        if event.trigger == "health_check_recovered":
            worker.free_since = event.at
        if event.trigger == "shutdown_requested":
            worker.is_leaving = True
        if "tasks" in metadata:
            worker.reported_tasks = int(metadata["tasks"])
        check_worker_event(worker, event)

    # -- after a commit

    def check_commit(self, now: int = 0) -> None:
        """Check the invariants that must hold after a whole commit. Raise `Violation` if one is broken.

        `now` is the time of the store's clock.
        """
        self.commit_count += 1
        touched_ids, self._touched_ids = self._touched_ids, {}
        ended_runs, self._ended_with_open_jobs = self._ended_with_open_jobs, []
        for id in touched_ids:
            entity = self.entities.get(id)
            if isinstance(entity, TrackedAttempt):
                self.check_attempt_commit(entity)
            elif isinstance(entity, TrackedJob):
                self._check_job_commit(entity)
            elif isinstance(entity, TrackedRun):
                self._check_run_commit(entity)
            elif isinstance(entity, TrackedWorker):
                self._check_worker_commit(entity)
            if entity is not None:
                self.track_deadline(entity)
        self.check_overdue(now)
        for run in ended_runs:
            self._check_ended_run_commit(run)

    def _check_job_commit(self, job: TrackedJob) -> None:
        """Check that a job agrees, after a commit, with its last attempt, its validation and its relations."""
        subject = f"job {job.id} (rev {job.rev})"
        last_attempt = self.entities.get(f"{job.id}.{job.index}")
        if job.state in ("QUEUED", "RUNNING") and (
            last_attempt is None or last_attempt.state in ATTEMPT_TERMINAL_STATES
        ):
            raise Violation(
                "outcome",
                f"{subject} is {job.state}, but its attempt {job.index} is {last_attempt and last_attempt.state}",
            )
        if job.state == "VALIDATING" and not job.has_validation:
            raise Violation("validation", f"{subject} has no validation, but does not end at once")
        if job.state == "VALIDATING" and self.has_failed_rule(job):
            raise Violation("verdict", f"{subject} does not fail at once, but a rule failed")
        if ends_family(job):
            self.check_family_commit(job, self.runs[job.run_id])
        if job.state != "PENDING" or self.runs[job.run_id].state not in ACTIVE_RUN_STATES:
            return
        self.check_pending_commit(subject, job)

    def _check_run_commit(self, run: TrackedRun) -> None:
        """Check that the state of a run agrees, after a commit, with its jobs, its plan and a cancel request."""
        subject = f"run {run.id} (rev {run.rev})"
        if run.state in ACTIVE_RUN_STATES:
            if not run.open_job_count:
                raise Violation("outcome", f"{subject} is {run.state}, but all of its jobs are over")
            if run.failed_required_job_count and run.is_fail_fast:
                raise Violation(
                    "fail-fast", f"{subject} goes on although {run.failed_required_job_count} required jobs failed"
                )
            if run.is_cancel_requested:
                raise Violation("cancel", f"{subject} is cancelled, but goes on")
            if (run.state == "WAITING_APPROVAL") != (run.waiting_job_count > 0 and not run.active_job_count):
                raise Violation(
                    "waiting",
                    f"{subject} is {run.state} with {run.waiting_job_count} jobs waiting"
                    f" and {run.active_job_count} active",
                )
            if run.state == "QUEUED" and run.has_started:
                raise Violation("outcome", f"{subject} is QUEUED, but its first job has started")
            self.check_wait_commit(subject, run)
        elif run.state == "CANCEL_REQUESTED" and not run.open_job_count:
            raise Violation("cancel", f"{subject} has no open jobs, but is not CANCELED")
        elif run.state == "PLAN_FAILED":
            raise Violation("outcome", f"{subject} has no plan, but does not fail")
        elif run.state == "VALIDATING" and not run.has_validation:
            raise Violation("validation", f"{subject} has no final validation, but does not end at once")

    def _check_ended_run_commit(self, run: TrackedRun) -> None:
        """Check that every open job of an ended run was asked to cancel; it may end later than the run."""
        for job_id in run.jobs:
            job = self.entities[job_id]
            last_attempt = self.entities.get(f"{job_id}.{job.index}") if isinstance(job, TrackedJob) else None
            if job.state not in JOB_TERMINAL_STATES and (
                last_attempt is None or last_attempt.state != "CANCEL_REQUESTED"
            ):
                raise Violation("cancel", f"run {run.id} is {run.state}, but its job {job_id} is still {job.state}")

    def _check_worker_commit(self, worker: TrackedWorker) -> None:
        """Check that the state and task count of a worker agree, after a commit, with the leases that it holds."""
        subject = f"worker {worker.id} (rev {worker.rev})"
        if (worker.state == "BUSY") != bool(worker.leased_attempts) and worker.state != "UNRESPONSIVE":
            raise Violation("worker", f"{subject} is {worker.state}, but holds {sorted(worker.leased_attempts)}")
        if worker.reported_tasks != len(worker.leased_attempts) and worker.state != "UNRESPONSIVE":
            raise Violation(
                "worker", f"{subject} reports {worker.reported_tasks} tasks, but holds {sorted(worker.leased_attempts)}"
            )
        if worker.state == "UNRESPONSIVE":
            self.check_marks(subject, worker)
        check_worker_commit(worker)

    # -- the end

    def is_over(self, entity_id: str) -> bool:
        """Return whether a run, or an attempt without a job, has ended, so that nothing more can happen to it."""
        entity = self.entities.get(entity_id)
        if isinstance(entity, TrackedRun):
            return entity.state == "REPORTED" and not entity.open_job_count
        return entity is not None and entity.state in ATTEMPT_TERMINAL_STATES

    def check_end(self) -> None:
        """Check, once the simulation is idle, that every run and attempt has ended and no worker is busy."""
        for entity in self.entities.values():
            if isinstance(entity, TrackedRun) and not self.is_over(entity.id):
                raise Violation(
                    "liveness",
                    f"run {entity.id} is {entity.state} with {entity.open_job_count} jobs open, but nothing happens",
                )
            if isinstance(entity, TrackedAttempt):
                if entity.lease is not None and entity.lease.state in LIVE_LEASE_STATES:
                    raise Violation("liveness", f"{entity.id} still has a live lease of {entity.lease.worker_id}")
                if entity.state not in ATTEMPT_TERMINAL_STATES:
                    raise Violation("liveness", f"{entity.id} is still {entity.state}")
        for worker in self.workers.values():
            if worker.leased_attempts or worker.state == "BUSY":
                raise Violation(
                    "liveness", f"worker {worker.id} is {worker.state} with {sorted(worker.leased_attempts)}"
                )
