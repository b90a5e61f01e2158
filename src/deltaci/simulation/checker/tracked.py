"""What the checker remembers of each entity: no more than it needs to check the next event.

All times are in microseconds since the epoch, as in the event log.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Lease(NamedTuple):
    """The last lease of an attempt, as recorded in the log."""

    number: int
    worker_id: str
    state: str
    expires_at: int
    accept_by: int


class TrackedEntity:
    """The tracked state that runs, jobs, attempts and workers have in common."""

    __slots__ = ("at", "id", "rev", "run_id", "state", "tenant")

    def __init__(self, id: str) -> None:
        self.id = id
        self.state: str | None = None
        self.rev = 0
        self.at = 0
        self.tenant = ""
        self.run_id = ""


class TrackedRun(TrackedEntity):
    """The tracked state of a run, with the number of its jobs by state."""

    __slots__ = (
        "active_job_count",
        "decided_at",
        "failed_required_job_count",
        "has_started",
        "has_validation",
        "is_cancel_requested",
        "is_fail_fast",
        "jobs",
        "open_job_count",
        "open_required_job_count",
        "optional_wait_us",
        "plan_by",
        "queued_at",
        "started_at",
        "timeout_us",
        "validating_since_commit",
        "wait_ended_commit",
        "wait_since",
        "waited_us",
        "waiting_job_count",
        "waiting_optional",
        "waiting_since",
    )

    def __init__(self, id: str) -> None:
        super().__init__(id)
        self.jobs: list[str] = []
        self.open_job_count = self.active_job_count = self.waiting_job_count = self.failed_required_job_count = 0
        self.timeout_us = self.plan_by = self.started_at = self.waiting_since = self.waited_us = 0
        self.validating_since_commit = -1  # The number of the commit in which it entered VALIDATING.
        self.is_fail_fast = self.has_validation = self.is_cancel_requested = self.has_started = False
        self.queued_at = self.open_required_job_count = 0
        # Jobs that are not required and that no worker has leased, with the time since when, and the latest such time.
        self.waiting_optional: dict[str, int] = {}
        self.optional_wait_us = self.wait_since = self.decided_at = 0
        self.wait_ended_commit = -1

    @property
    def wait_since_decided(self) -> int:
        """When the wait for optional jobs began: after the last required job, or later with another waiting job."""
        return max(self.decided_at, self.wait_since)


class TrackedJob(TrackedEntity):
    """The tracked state of a job: its relations to other jobs, retries, approvals and the index of its last attempt."""

    __slots__ = (
        "after",
        "approve_by",
        "approved_by",
        "backoff",
        "decided_by",
        "dependents",
        "family",
        "group",
        "has_validation",
        "index",
        "is_family_fail_fast",
        "is_required",
        "jitter",
        "kind",
        "lost_by_workers",
        "max_attempts",
        "needs",
        "next_run_at",
        "required_approver_count",
        "retry_on",
        "validating_since_commit",
    )

    def __init__(self, id: str) -> None:
        super().__init__(id)
        self.kind = ""
        self.needs: tuple[str, ...] = ()
        self.after: tuple[str, ...] = ()
        self.family = self.group = ""
        self.is_family_fail_fast = False
        self.retry_on: tuple[str, ...] = ()
        self.dependents: list[str] = []
        self.is_required = True
        self.has_validation = False
        self.max_attempts = 1
        # Workers that lost it by an infrastructure failure, the latest last.
        self.lost_by_workers: tuple[str, ...] = ()
        self.backoff = (0, 0)  # The base delay and the longest delay, in seconds.
        self.jitter = 0.0
        self.index = 0
        self.next_run_at = 0
        self.approve_by = 0
        self.required_approver_count = 1
        self.approved_by: list[str] = []
        self.decided_by = ""
        self.validating_since_commit = -1


class TrackedAttempt(TrackedEntity):
    """The tracked state of an attempt and its last lease."""

    __slots__ = (
        "avoided_workers",
        "cancel_by",
        "claims",
        "error",
        "fence_until",
        "heartbeat_no",
        "index",
        "is_marked",
        "job_id",
        "labels",
        "lease",
        "lost_leases",
        "max_lost_leases",
        "ready_at",
        "run_at",
        "stale_reason",
        "started_at",
        "timeout_us",
        "verdict",
    )

    def __init__(self, id: str) -> None:
        super().__init__(id)
        self.state = "CREATED"  # It is created and queued in one step; the log has only the second.
        self.job_id = ""
        self.index = 1
        self.labels: frozenset[str] = frozenset()
        self.run_at = self.fence_until = self.ready_at = 0
        self.timeout_us = self.started_at = self.cancel_by = 0
        self.max_lost_leases = self.lost_leases = self.claims = 0
        self.lease: Lease | None = None
        self.heartbeat_no = -1  # The highest number of a heartbeat under that lease.
        self.is_marked = False  # For reassignment, since the last message under that lease.
        self.avoided_workers: tuple[str, ...] = ()  # The job's `lost_by_workers` when the lease was granted.
        self.stale_reason = ""
        self.error: dict[str, Any] = {}
        self.verdict: dict[str, Any] = {}

    @property
    def has_failed_rule(self) -> bool:
        """Whether the runner reported a failed validation rule."""
        return bool(self.verdict) and not self.verdict["is_passed"]


class TrackedWorker(TrackedEntity):
    """The tracked state of a worker. `leased_attempts` has the ids of attempts of jobs that it holds live leases of.

    `standalone_attempts` has those of attempts without a job. Their number is not limited by `slots`, but a worker that
    holds as many attempts of both kinds as it has slots is not free.
    """

    __slots__ = (
        "already_counted_attempts",
        "free_since",
        "hold",
        "infra_failures",
        "is_leaving",
        "labels",
        "leased_attempts",
        "must_be_quarantined",
        "reported_infra_failures",
        "reported_tasks",
        "silence",
        "slots",
        "standalone_attempts",
    )

    def __init__(self, id: str) -> None:
        super().__init__(id)
        self.labels: frozenset[str] = frozenset()
        self.slots = 0
        self.leased_attempts: set[str] = set()
        self.standalone_attempts: set[str] = set()
        self.reported_tasks = 0
        self.is_leaving = self.must_be_quarantined = False
        self.free_since: int | None = None
        self.silence = (-1, "")  # The commit and the request in which it became unresponsive last.
        self.hold = ""
        self.infra_failures = self.reported_infra_failures = 0
        # Attempts that it held at its last infrastructure failure: they count only once.
        self.already_counted_attempts: set[str] = set()

    @property
    def is_free(self) -> bool:
        """Whether the worker can take one more attempt."""
        accepts_work = self.state in ("IDLE", "BUSY") and not self.is_leaving and not self.hold
        return accepts_work and len(self.leased_attempts) + len(self.standalone_attempts) < self.slots
