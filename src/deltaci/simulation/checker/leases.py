"""Checks the events of attempts and their leases: fencing, slots, groups, expiry and deadlines."""

from __future__ import annotations

import heapq
from typing import Any, Final

from deltaci.simulation.checker.tracked import (
    Lease,
    TrackedAttempt,
    TrackedEntity,
    TrackedJob,
    TrackedRun,
    TrackedWorker,
)
from deltaci.simulation.checker.transitions import (
    ACTIVE_RUN_STATES,
    ATTEMPT_TERMINAL_STATES,
    CLAIMABLE_ATTEMPT_STATES,
    LEASE_TRANSITIONS,
    LEASED_STATES,
    LIVE_LEASE_STATES,
    SECOND,
    STALE_REASONS,
    Edge,
    LogEvent,
    Violation,
)
from deltaci.simulation.checker.worker_failures import count_lease_end, record_lost_job

ACCEPT_SECONDS: Final = 30
START_US: Final = 24 * 3600 * SECOND  # A run of which no job starts for so long times out.
NEVER: Final = 2**63  # Later than any time in microseconds.
Group = tuple[str, str]  # Tenant and group name.


class CheckerConfig:
    """The lease TTL of the simulated deployment, and the longest delays that are allowed while no fault is active.

    With `has_clock_jumps`, delays are not checked: the store's clock may be moved.
    """

    def __init__(
        self,
        ttl_seconds: int = 0,
        poll_seconds: float = 0.0,
        wait_seconds: float = 0.0,
        *,
        has_clock_jumps: bool = False,
    ) -> None:
        self.ttl_us = ttl_seconds * SECOND
        self.max_delay_us = int((2.5 * poll_seconds + 20) * SECOND)
        # A runner whose claim request was lost sends the next one only after its wait time.
        self.max_unclaimed_us = int((2 * poll_seconds + wait_seconds + 150) * SECOND)
        self.has_clock_jumps = has_clock_jumps


class LeaseChecker:
    """Checks the events of attempts and tracks which worker holds which lease."""

    def __init__(self, config: CheckerConfig | None = None) -> None:
        self.config = config or CheckerConfig()
        self.entities: dict[str, TrackedEntity] = {}
        self.edges: set[Edge] = set()
        self.workers: dict[str, TrackedWorker] = {}
        self.commit_count = 0
        self.polling_worker_ids: dict[str, None] = {}  # Workers that poll for work whenever they have a free slot.
        # The time by the store's clock since which no fault is active; None while one is.
        self.fault_free_since: int | None = None
        self._last_group_attempt: dict[Group, TrackedAttempt] = {}  # The attempt that took the group last.
        self._group_freed_at: dict[Group, int] = {}
        self._deadlines: list[tuple[int, str]] = []
        self._ids_with_deadline: set[str] = set()

    # -- time

    def set_fault_free_since(self, at: int | None) -> None:
        """Set the time since which no fault is active; None while one is."""
        self.fault_free_since = at

    def check_not_late(self, subject: str, event: LogEvent, due_at: int) -> None:
        """Raise `Violation` if this event comes much later than `due_at`, while no fault is active."""
        if self.fault_free_since is None or self.config.has_clock_jumps:
            return
        delay = event.at - max(due_at, self.fault_free_since)
        if delay > self.config.max_delay_us:
            raise Violation("late", f"{subject} happens {delay / SECOND:.0f} s late")

    def track_deadline(self, entity: TrackedEntity) -> None:
        """Remember the entity's deadline, so that `check_overdue` notices if nothing happens by then."""
        due_at = deadline_of(entity)
        # The deadline of a run may move forward, when only optional jobs are open.
        is_earlier = isinstance(entity, TrackedRun) and bool(entity.decided_at)
        if due_at and (is_earlier or entity.id not in self._ids_with_deadline):
            self._ids_with_deadline.add(entity.id)
            heapq.heappush(self._deadlines, (due_at, entity.id))

    def check_overdue(self, now: int) -> None:
        """Raise `Violation` if a deadline passed long ago without an event, while no fault is active."""
        max_delay = self.config.max_delay_us
        while self._deadlines and self._deadlines[0][0] + max_delay < now:
            _, attempt_id = heapq.heappop(self._deadlines)
            self._ids_with_deadline.discard(attempt_id)
            entity = self.entities[attempt_id]
            due_at = deadline_of(entity)
            if due_at and self.fault_free_since is not None and not self.config.has_clock_jumps:
                if max(due_at, self.fault_free_since) + max_delay < now:
                    overdue = (now - due_at) / SECOND
                    raise Violation("late", f"{attempt_id} is still {entity.state}, {overdue:.0f} s after its deadline")
                due_at = max(due_at, self.fault_free_since)
            if due_at:
                self._ids_with_deadline.add(attempt_id)
                heapq.heappush(self._deadlines, (max(due_at, now - max_delay), attempt_id))

    # -- attempts

    def check_attempt_event(self, attempt: TrackedAttempt, event: LogEvent) -> None:
        """Check one event of an attempt and update the tracked state."""
        subject = f"attempt {attempt.id} (seq {event.seq}, {event.trigger})"
        lease_before = attempt.lease
        lease_change = event.metadata.get("lease")
        if event.actor.startswith("worker:") and event.to != "LEASED":
            self._check_fence(subject, event, lease_before)
            self._check_responsive(subject, attempt, event)
            if attempt.state in ("RUNNING", "UPLOADING"):
                self.check_not_late(subject, event, attempt.started_at + attempt.timeout_us)
        elif event.to in ("LEASED", "CANCEL_REQUESTED"):
            self._check_claim_delay(subject, attempt, event)
        if lease_change is not None:
            attempt.lease = self._apply_lease_change(subject, attempt, event, lease_change)
            attempt.is_marked = False
        elif event.trigger == "marked_for_reassignment":
            self._check_mark(subject, attempt, event)
        if event.from_ != event.to:
            self._check_lease_matches_state(subject, attempt, event)
            self._ON_STATE.get(event.to, LeaseChecker._no_check)(self, subject, attempt, event, lease_before)
        claims = event.metadata.get("claims")
        if claims is not None:
            if claims != attempt.claims + 1:
                raise Violation("token", f"{subject} is claim {claims} after {attempt.claims}")
            attempt.claims = claims
        if event.to == "LEASED":
            attempt.heartbeat_no = -1
        sequence_number = event.metadata.get("sequence_no")
        if sequence_number is not None:
            if sequence_number <= attempt.heartbeat_no:
                raise Violation("heartbeats", f"{subject} is heartbeat {sequence_number} after {attempt.heartbeat_no}")
            attempt.heartbeat_no = sequence_number

    @staticmethod
    def _check_fence(subject: str, event: LogEvent, lease_before: Lease | None) -> None:
        """Check that an event of a worker was sent under the live lease and before it expired."""
        holder = event.actor.partition(":")[2]
        if lease_before is None or lease_before.worker_id != holder or lease_before.state not in LIVE_LEASE_STATES:
            raise Violation("fence", f"{subject} was sent by {holder}, but the lease is {lease_before}")
        if event.at >= lease_before.expires_at:
            seconds_late = (event.at - lease_before.expires_at) / SECOND
            raise Violation("revived", f"{subject} counts, but its lease ended {seconds_late:.1f} s before")

    def _check_responsive(self, subject: str, attempt: TrackedAttempt, event: LogEvent) -> None:
        """Check that the worker of a job's message is not unresponsive: the message recovers it first."""
        worker = self.workers.get(event.actor.partition(":")[2])
        if attempt.job_id and worker is not None and worker.state == "UNRESPONSIVE":
            raise Violation("silence", f"{subject} counts, but {worker.id} is still unresponsive")

    @staticmethod
    def _check_lease_matches_state(subject: str, attempt: TrackedAttempt, event: LogEvent) -> None:
        """Check that an attempt has a live lease in the states that require one, and in no other except
        CANCEL_REQUESTED.
        """
        is_live = attempt.lease is not None and attempt.lease.state in LIVE_LEASE_STATES
        if event.to in LEASED_STATES and not is_live:
            raise Violation("held", f"{subject} is {event.to}, but has no live lease")
        if event.to not in LEASED_STATES and event.to != "CANCEL_REQUESTED" and is_live:
            raise Violation(
                "held", f"{subject} is {event.to}, but its lease is still {attempt.lease and attempt.lease.state}"
            )

    def _no_check(self, subject: str, attempt: TrackedAttempt, event: LogEvent, lease_before: Lease | None) -> None:
        """Check nothing: there is no rule for entering this state."""
        pass

    def _on_queued(self, subject: str, attempt: TrackedAttempt, event: LogEvent, lease_before: Lease | None) -> None:
        """Check that a new attempt is expected by its job, or that a lost one may be claimed again, not too early."""
        metadata = event.metadata
        if event.from_ == "CREATED":
            attempt.job_id, attempt.index = metadata.get("job_id", ""), int(metadata.get("index", 1))
            attempt.labels = frozenset(filter(None, metadata.get("queue_key", "").split(",")))
            attempt.timeout_us, attempt.max_lost_leases = (
                int(metadata["timeout_seconds"]) * SECOND,
                int(metadata["max_lost_leases"]),
            )
            if attempt.job_id:
                self._check_new_attempt(subject, attempt, event)
        elif attempt.lost_leases > attempt.max_lost_leases:
            raise Violation(
                "lost-leases",
                f"{subject} is queued again after {attempt.lost_leases} lost leases of {attempt.max_lost_leases}",
            )
        attempt.run_at = int(metadata.get("run_at", attempt.run_at))
        if event.at < attempt.fence_until:
            raise Violation(
                "fence-gap",
                f"{subject} is queued again {(attempt.fence_until - event.at) / SECOND:.1f} s too early",
            )
        attempt.ready_at = max(event.at, attempt.run_at)
        attempt.stale_reason = ""

    def _check_new_attempt(self, subject: str, attempt: TrackedAttempt, event: LogEvent) -> None:
        """Check that a new attempt has the id and index that its job expects.

        The job is no approval and has attempts left, and the attempt before this one has failed or timed out.
        """
        job = self.entities.get(attempt.job_id)
        if (
            not isinstance(job, TrackedJob)
            or job.index != attempt.index
            or attempt.id != f"{attempt.job_id}.{attempt.index}"
        ):
            raise Violation("orphan", f"{subject} is not the attempt that its job expects")
        if job.kind == "approval":
            raise Violation("approval", f"{subject} is an attempt of an approval")
        if attempt.index > job.max_attempts:
            raise Violation("attempts", f"{subject} is attempt {attempt.index} of {job.max_attempts}")
        previous_attempt = self.entities.get(f"{attempt.job_id}.{attempt.index - 1}")
        if attempt.index > 1 and (previous_attempt is None or previous_attempt.state not in ("FAILED", "TIMED_OUT")):
            raise Violation(
                "attempts",
                f"{subject} begins while attempt {attempt.index - 1} is {previous_attempt and previous_attempt.state}",
            )

    def _on_leased(self, subject: str, attempt: TrackedAttempt, event: LogEvent, lease_before: Lease | None) -> None:
        """Check that an attempt may be claimed.

        Its run is active, it is not before its start time, its last worker cannot run it any more, and not too many of
        its leases were lost.
        """
        if attempt.lost_leases > attempt.max_lost_leases:
            raise Violation(
                "lost-leases",
                f"{subject} is claimed after {attempt.lost_leases} lost leases of {attempt.max_lost_leases}",
            )
        if event.at < max(attempt.run_at, attempt.fence_until):
            seconds_early = (max(attempt.run_at, attempt.fence_until) - event.at) / SECOND
            raise Violation(
                "fence-gap", f"{subject} is claimed {seconds_early:.1f} s too early: its last runner may still run it"
            )
        run = self.entities.get(attempt.run_id)
        if attempt.job_id and (
            not isinstance(run, TrackedRun) or run.state not in ACTIVE_RUN_STATES or run.is_cancel_requested
        ):
            raise Violation("after-end", f"{subject} is claimed, but its run is {run and run.state}")
        attempt.stale_reason = ""

    def _check_claim_delay(self, subject: str, attempt: TrackedAttempt, event: LogEvent) -> None:
        """Raise `Violation` if the attempt waited long while a polling worker with its labels was free."""
        if self.fault_free_since is None or self.config.has_clock_jumps or event.from_ not in CLAIMABLE_ATTEMPT_STATES:
            return
        claimable_since = max(attempt.ready_at, self.fault_free_since, self._group_free_since(attempt))
        if event.at - claimable_since <= self.config.max_unclaimed_us:
            return
        for id in self.polling_worker_ids:
            worker = self.workers.get(id)
            if (
                worker is not None
                and worker.is_free
                and attempt.labels <= worker.labels
                and (worker.free_since or 0) < claimable_since
            ):
                waited_seconds = (event.at - claimable_since) / SECOND
                raise Violation("unclaimed", f"{subject} waited for {waited_seconds:.0f} s, although {id} was free")

    def _on_running(self, subject: str, attempt: TrackedAttempt, event: LogEvent, lease_before: Lease | None) -> None:
        """Store when the attempt started."""
        attempt.started_at = event.at

    def _on_stale(self, subject: str, attempt: TrackedAttempt, event: LogEvent, lease_before: Lease | None) -> None:
        """Check the reason why a lease was lost, and compute until when its runner may still run the job."""
        reason = event.metadata.get("reason")
        if reason not in STALE_REASONS or lease_before is None or attempt.lease is None:
            raise Violation("requeue", f"{subject} is stale for an unknown reason: {reason}")
        attempt.stale_reason = reason
        attempt.lost_leases += reason != "HANDED_BACK"
        if event.metadata.get("lost_leases") != attempt.lost_leases:
            reported = event.metadata.get("lost_leases")
            raise Violation(
                "lost-leases", f"{subject} reports {reported} lost leases; there were {attempt.lost_leases}"
            )
        if attempt.lease.state == "REVOKED":
            self._check_silence(subject, event, lease_before)
        if reason == "NOT_ACCEPTED":
            self._check_unaccepted(subject, event, lease_before)
        # A runner that accepted the lease may run the job until the lease ends; otherwise nothing runs.
        attempt.fence_until = event.at if reason in ("NOT_ACCEPTED", "HANDED_BACK") else lease_before.expires_at
        attempt.ready_at = attempt.fence_until

    def _check_silence(self, subject: str, event: LogEvent, lease_before: Lease) -> None:
        """Check that the lease was not revoked by the command that made its worker unresponsive, for any reason."""
        worker = self.workers.get(lease_before.worker_id)
        if worker is not None and worker.silence == (self.commit_count, event.request_id):
            seconds = (lease_before.expires_at - event.at) / SECOND
            raise Violation("silence", f"{subject} ends a lease of {worker.id} {seconds:.1f} s early, as it is silent")

    def _check_mark(self, subject: str, attempt: TrackedAttempt, event: LogEvent) -> None:
        """Check that the mark names the time at which the lease ends if its worker sends nothing more."""
        lease = attempt.lease
        if lease is None or lease.state not in LIVE_LEASE_STATES:
            raise Violation("silence", f"{subject} marks a lease that has ended: {lease}")
        if event.metadata.get("reassign_at") != _lease_deadline(lease):
            raise Violation("silence", f"{subject} marks another time than the end of the lease: {event.metadata}")
        attempt.is_marked = True

    def check_marks(self, subject: str, worker: TrackedWorker) -> None:
        """Check, after a commit, that each lease of an unresponsive worker is marked or asked to cancel."""
        for attempt_id in worker.leased_attempts:
            attempt = self.entities[attempt_id]
            if attempt.state != "CANCEL_REQUESTED" and not (isinstance(attempt, TrackedAttempt) and attempt.is_marked):
                raise Violation(
                    "silence", f"{subject} is unresponsive, but {attempt_id} is not marked for reassignment"
                )

    def _check_unaccepted(self, subject: str, event: LogEvent, lease_before: Lease) -> None:
        """Check that a lease revoked as not accepted was not acknowledged, and that its accept window had ended."""
        if lease_before.state != "GRANTED":
            raise Violation("accept-window", f"{subject} revokes a lease that was acknowledged")
        if event.at < lease_before.accept_by:
            seconds_early = (lease_before.accept_by - event.at) / SECOND
            raise Violation("accept-window", f"{subject} revokes the lease {seconds_early:.1f} s early")
        self.check_not_late(subject, event, lease_before.accept_by)

    def _on_succeeded(self, subject: str, attempt: TrackedAttempt, event: LogEvent, lease_before: Lease | None) -> None:
        """Check that a success has exit code 0 and a completed lease, and without a job no failed validation rule."""
        if event.metadata.get("exit_code") != 0 or attempt.lease is None or attempt.lease.state != "COMPLETED":
            raise Violation(
                "outcome", f"{subject} succeeds with {event.metadata.get('exit_code')} under {attempt.lease}"
            )
        attempt.verdict = event.metadata.get("verdict") or {}
        if attempt.has_failed_rule and not attempt.job_id:
            raise Violation("verdict", f"{subject} succeeds although a rule failed, and it has no job to fail")

    def _on_failed(self, subject: str, attempt: TrackedAttempt, event: LogEvent, lease_before: Lease | None) -> None:
        """Check that an attempt fails for lost leases only after too many of them."""
        attempt.error = event.metadata.get("error") or {}
        if event.from_ == "STALE" and attempt.lost_leases <= attempt.max_lost_leases:
            raise Violation(
                "lost-leases", f"{subject} fails after {attempt.lost_leases} lost leases of {attempt.max_lost_leases}"
            )

    def _on_timed_out(self, subject: str, attempt: TrackedAttempt, event: LogEvent, lease_before: Lease | None) -> None:
        """Check that an attempt is timed out after its time limit, and soon after it."""
        attempt.error = event.metadata.get("error") or {}
        due_at = attempt.started_at + attempt.timeout_us
        if event.at < due_at:
            raise Violation("timeout", f"{subject} is timed out {(due_at - event.at) / SECOND:.1f} s too early")
        self.check_not_late(subject, event, due_at)
        attempt.fence_until = lease_before.expires_at if lease_before is not None else 0

    def _on_cancel_requested(
        self, subject: str, attempt: TrackedAttempt, event: LogEvent, lease_before: Lease | None
    ) -> None:
        """Store the deadline of the cancel."""
        attempt.cancel_by = int(event.metadata["cancel_by"])

    def _on_canceled(self, subject: str, attempt: TrackedAttempt, event: LogEvent, lease_before: Lease | None) -> None:
        """Check that a cancel that the worker did not confirm is forced only after its deadline, and soon after it."""
        if event.actor.startswith("worker:") or lease_before is None or lease_before.state not in LIVE_LEASE_STATES:
            return
        if lease_before.state == "ACTIVE":  # The runner may not have learned of the cancel.
            attempt.fence_until = lease_before.expires_at
        due_at = min(attempt.cancel_by, _lease_deadline(lease_before))
        if event.at < due_at:
            seconds_early = (due_at - event.at) / SECOND
            raise Violation("cancel-deadline", f"{subject} is forced {seconds_early:.1f} s before its deadline")
        self.check_not_late(subject, event, due_at)

    _ON_STATE: Final = {
        "QUEUED": _on_queued,
        "LEASED": _on_leased,
        "RUNNING": _on_running,
        "STALE": _on_stale,
        "SUCCEEDED": _on_succeeded,
        "FAILED": _on_failed,
        "TIMED_OUT": _on_timed_out,
        "CANCEL_REQUESTED": _on_cancel_requested,
        "CANCELED": _on_canceled,
    }

    # -- leases

    def _apply_lease_change(
        self, subject: str, attempt: TrackedAttempt, event: LogEvent, lease_change: dict[str, Any]
    ) -> Lease:
        """Check the change of a lease that an event records, and return the changed lease."""
        lease_number, lease_before = int(lease_change["number"]), attempt.lease
        from_state, to_state = lease_change["from"], str(lease_change["to"])
        self.edges.add(("lease", from_state, to_state, ""))
        if from_state is None:
            return self._apply_grant(subject, attempt, event, lease_change)
        if lease_before is None or lease_before.number != lease_number or lease_before.state != from_state:
            raise Violation(
                "one-lease", f"{subject} changes lease {lease_number} from {from_state}, but it is {lease_before}"
            )
        if to_state not in LEASE_TRANSITIONS.get(from_state, ()):
            raise Violation("legal", f"{subject}: lease {from_state} → {to_state} is no transition of a lease")
        if to_state == "EXPIRED":
            if event.at < lease_before.expires_at:
                seconds_early = (lease_before.expires_at - event.at) / SECOND
                raise Violation("expiry", f"{subject} lets the lease expire {seconds_early:.1f} s early")
            self.check_not_late(subject, event, _lease_deadline(lease_before))
        expires_at = int(lease_change.get("expires_at", lease_before.expires_at))
        if to_state in LIVE_LEASE_STATES:
            if expires_at < lease_before.expires_at:
                seconds_lost = (lease_before.expires_at - expires_at) / SECOND
                raise Violation("shortened", f"{subject} shortens the lease by {seconds_lost:.1f} s")
            self._check_term(subject, max(lease_before.expires_at, event.at + self.config.ttl_us), expires_at)
        else:
            self._count_lease_end(lease_before.worker_id, attempt, event)
            self._free_slot(lease_before.worker_id, attempt.id, event.at)
            if group := self.group_of(attempt):
                self._group_freed_at[group] = event.at
        return lease_before._replace(state=to_state, expires_at=expires_at)

    def _check_term(self, subject: str, expected_expiry: int, expires_at: int) -> None:
        """Raise `Violation` if a granted or renewed lease does not expire at the expected time."""
        if self.config.ttl_us and expires_at != expected_expiry:
            deviation_seconds = (expires_at - expected_expiry) / SECOND
            raise Violation("term", f"{subject} lets the lease end {deviation_seconds:+.1f} s from when it should")

    def _apply_grant(
        self, subject: str, attempt: TrackedAttempt, event: LogEvent, lease_change: dict[str, Any]
    ) -> Lease:
        """Check the grant of a lease, occupy a slot of its worker, and return the lease.

        No other lease of the attempt is live, its number is new, and its times follow from the configuration.
        """
        lease_number, worker_id, lease_before = (
            int(lease_change["number"]),
            str(lease_change["worker_id"]),
            attempt.lease,
        )
        if lease_before is not None and lease_before.state in LIVE_LEASE_STATES:
            raise Violation(
                "one-lease", f"{subject} grants lease {lease_number} while lease {lease_before.number} is live"
            )
        if lease_number != attempt.claims + 1 or event.metadata.get("claims") != lease_number:
            raise Violation(
                "token", f"{subject} grants lease {lease_number} after {attempt.claims} claims: a token is used again"
            )
        if event.actor != f"worker:{worker_id}" or lease_change["to"] != "GRANTED":
            raise Violation("one-lease", f"{subject} grants a lease to {worker_id}, but its actor is {event.actor}")
        expires_at, accept_by = int(lease_change["expires_at"]), int(lease_change["accept_by"])
        self._check_term(subject, event.at + self.config.ttl_us, expires_at)
        if self.config.ttl_us and accept_by != event.at + ACCEPT_SECONDS * SECOND:
            raise Violation(
                "accept-window", f"{subject} has an accept window of {(accept_by - event.at) / SECOND:.1f} s"
            )
        self._occupy_slot(subject, attempt, worker_id)
        job = self.entities.get(attempt.job_id)
        attempt.avoided_workers = job.lost_by_workers if isinstance(job, TrackedJob) else ()
        if group := self.group_of(attempt):
            self._take_group(subject, attempt, group, event.at)
        return Lease(lease_number, worker_id, "GRANTED", expires_at, accept_by)

    def group_of(self, attempt: TrackedAttempt) -> Group | None:
        """Return the concurrency group of the attempt's job; None if it has none."""
        job = self.entities.get(attempt.job_id)
        return (attempt.tenant, job.group) if isinstance(job, TrackedJob) and job.group else None

    def _take_group(self, subject: str, attempt: TrackedAttempt, group: Group, now: int) -> None:
        """Record that the attempt takes its group.

        Check that no other attempt of the group has a live lease, or may still be running under a lost one.
        """
        last_attempt = self._last_group_attempt.get(group)
        if last_attempt is not None and last_attempt is not attempt:
            is_live = last_attempt.lease is not None and last_attempt.lease.state in LIVE_LEASE_STATES
            if is_live:
                raise Violation("group", f"{subject} takes the group {group[1]}, which {last_attempt.id} has")
            # A lease that ended without a fence frees the group in the order of the log: servers' clocks may differ.
            if max(now, last_attempt.at) < last_attempt.fence_until:
                seconds_early = (last_attempt.fence_until - now) / SECOND
                raise Violation(
                    "group",
                    f"{subject} takes the group {group[1]} {seconds_early:.1f} s before the last lease of "
                    f"{last_attempt.id}, which is {last_attempt.state}, would have ended",
                )
        self._last_group_attempt[group] = attempt

    def _group_free_since(self, attempt: TrackedAttempt) -> int:
        """Return since when no attempt holds the group of this attempt: 0 without a group, NEVER while one holds it."""
        group = self.group_of(attempt)
        if group is None:
            return 0
        last_attempt = self._last_group_attempt.get(group)
        last_lease = last_attempt.lease if last_attempt is not None else None
        if last_lease is not None and last_lease.state in LIVE_LEASE_STATES:
            return NEVER
        return max(self._group_freed_at.get(group, 0), last_attempt.fence_until if last_attempt is not None else 0)

    def _occupy_slot(self, subject: str, attempt: TrackedAttempt, worker_id: str) -> None:
        """Check that the worker may take the attempt, and count it among the worker's leases."""
        worker = self.workers.get(worker_id)
        if worker is None:  # The queue also serves workers that never registered.
            return
        if not attempt.job_id:
            worker.standalone_attempts.add(attempt.id)
            return
        if worker.is_leaving or worker.state not in ("IDLE", "BUSY"):
            raise Violation("drained", f"{subject} goes to {worker_id}, which is {worker.state} and accepts no work")
        if worker.hold:
            raise Violation("hold", f"{subject} goes to {worker_id}, which is {worker.hold} and accepts no work")
        if not attempt.labels <= worker.labels:
            raise Violation(
                "labels", f"{subject} needs {sorted(attempt.labels)}; {worker_id} has {sorted(worker.labels)}"
            )
        worker.leased_attempts.add(attempt.id)
        if len(worker.leased_attempts) > worker.slots:
            lease_count = len(worker.leased_attempts)
            raise Violation(
                "slots", f"{subject} is the {lease_count}th lease of {worker_id}, which has {worker.slots} places"
            )

    def _count_lease_end(self, worker_id: str, attempt: TrackedAttempt, event: LogEvent) -> None:
        """Update the consecutive failures of the worker, and the workers that lost the job, when a lease ends."""
        worker, job = self.workers.get(worker_id), self.entities.get(attempt.job_id)
        if isinstance(job, TrackedJob):
            record_lost_job(job, worker_id, event)
            if worker is not None and attempt.id in worker.leased_attempts:
                count_lease_end(worker, attempt.id, event)

    def _free_slot(self, worker_id: str, attempt_id: str, now: int) -> None:
        """Remove the attempt from the leases that the worker holds."""
        worker = self.workers.get(worker_id)
        if worker is not None:
            if not worker.is_free:
                worker.free_since = now
            worker.leased_attempts.discard(attempt_id)
            worker.standalone_attempts.discard(attempt_id)

    # -- when a commit is whole

    def check_attempt_commit(self, attempt: TrackedAttempt) -> None:
        """Check, after a commit, that an attempt may stay in its state, and that its state agrees with its lease and
        its job.
        """
        subject = f"attempt {attempt.id} (rev {attempt.rev})"
        is_lost_too_often = attempt.lost_leases > attempt.max_lost_leases
        is_claimable = attempt.at >= attempt.fence_until and attempt.stale_reason != "STALLED"
        if attempt.state == "STALE" and (is_lost_too_often or is_claimable):
            expected_state = "failed" if is_lost_too_often else "queued again"
            raise Violation(
                "requeue", f"{subject} lost its lease ({attempt.stale_reason}), but has not {expected_state}"
            )
        if attempt.state == "CANCEL_REQUESTED" and (
            attempt.lease is None or attempt.lease.state not in LIVE_LEASE_STATES
        ):
            raise Violation("cancel", f"{subject} is asked to cancel, but has no live lease: it must end at once")
        job = self.entities.get(attempt.job_id)
        if not isinstance(job, TrackedJob) or job.index != attempt.index:
            return
        if attempt.state in ATTEMPT_TERMINAL_STATES and job.state in ("QUEUED", "RUNNING"):
            raise Violation("outcome", f"{subject} is {attempt.state}, but its job is still {job.state}")
        if attempt.state in LEASED_STATES and job.state != "RUNNING":
            raise Violation("outcome", f"{subject} is {attempt.state}, but its job is {job.state}")


def deadline_of(entity: TrackedEntity) -> int:
    """Return the time by which the entity must change even if no message arrives; 0 if it has no such deadline."""
    if isinstance(entity, TrackedAttempt) and entity.lease is not None and entity.lease.state in LIVE_LEASE_STATES:
        due_at = _lease_deadline(entity.lease)
        if entity.state in ("RUNNING", "UPLOADING"):
            due_at = min(due_at, entity.started_at + entity.timeout_us)
        return min(due_at, entity.cancel_by) if entity.state == "CANCEL_REQUESTED" else due_at
    if isinstance(entity, TrackedJob):
        return {"RETRYING": entity.next_run_at, "WAITING_APPROVAL": entity.approve_by}.get(entity.state or "", 0)
    if isinstance(entity, TrackedRun):
        return _run_deadline(entity)
    return 0


def _run_deadline(run: TrackedRun) -> int:
    """Return the end of the planning, of the time to start, of the run timeout or of the wait for optional jobs."""
    due_at = {"PLANNING": run.plan_by, "QUEUED": run.queued_at + START_US}.get(run.state or "", 0)
    if run.state in ("RUNNING", "VALIDATING"):
        due_at = run.started_at + run.timeout_us + run.waited_us
    if run.state in ACTIVE_RUN_STATES and run.decided_at and run.waiting_optional:
        wait_ends_at = run.wait_since_decided + run.optional_wait_us
        due_at = min(due_at, wait_ends_at) if due_at else wait_ends_at
    return due_at


def _lease_deadline(lease: Lease) -> int:
    """Return when the lease ends if its runner sends nothing more."""
    return min(lease.accept_by, lease.expires_at) if lease.state == "GRANTED" else lease.expires_at
