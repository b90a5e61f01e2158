"""What the checker remembers of each entity: no more than it needs to judge the next event."""

from __future__ import annotations

from typing import Any, NamedTuple


class Lease(NamedTuple):
    """The last lease of an attempt, as the log tells it."""

    number: int
    worker_id: str
    state: str
    expires_at: int
    accept_by: int


class Known:
    """What is known of any entity."""

    __slots__ = ("at", "id", "rev", "run_id", "state", "tenant")

    def __init__(self, id: str) -> None:
        self.id = id
        self.state: str | None = None
        self.rev = 0
        self.at = 0
        self.tenant = ""
        self.run_id = ""


class RunFacts(Known):
    """A run, with its jobs counted."""

    __slots__ = (
        "active",
        "doomed",
        "has_validation",
        "is_begun",
        "is_canceled",
        "is_fail_fast",
        "jobs",
        "open",
        "plan_by",
        "started_at",
        "timeout",
        "validating",
        "waiting",
    )

    def __init__(self, id: str) -> None:
        super().__init__(id)
        self.jobs: list[str] = []
        self.open = self.active = self.waiting = self.doomed = 0
        self.timeout = self.plan_by = self.started_at = 0
        self.validating = -1  # The commit in which it came to that.
        self.is_fail_fast = self.has_validation = self.is_canceled = self.is_begun = False


class JobFacts(Known):
    """A job, with its place in the graph and its last attempt."""

    __slots__ = (
        "after",
        "approve_by",
        "approved_by",
        "approvers",
        "backoff",
        "decided_by",
        "dependents",
        "ends_family",
        "family",
        "group",
        "has_validation",
        "index",
        "is_required",
        "jitter",
        "kind",
        "lost_by",
        "max_attempts",
        "needs",
        "next_run_at",
        "retry_on",
        "validating",
    )

    def __init__(self, id: str) -> None:
        super().__init__(id)
        self.kind = ""
        self.needs: tuple[str, ...] = ()
        self.after: tuple[str, ...] = ()
        self.family = self.group = ""
        self.ends_family = False
        self.retry_on: tuple[str, ...] = ()
        self.dependents: list[str] = []
        self.is_required = True
        self.has_validation = False
        self.max_attempts = 1
        self.lost_by: tuple[str, ...] = ()  # Workers whose infrastructure lost it, the last one behind.
        self.backoff = (0, 0)  # The first wait and the longest one, in seconds.
        self.jitter = 0.0
        self.index = 0
        self.next_run_at = 0
        self.approve_by = 0
        self.approvers = 1
        self.approved_by: list[str] = []
        self.decided_by = ""
        self.validating = -1


class AttemptFacts(Known):
    """An attempt, with its lease."""

    __slots__ = (
        "cancel_by",
        "claims",
        "error",
        "fence",
        "index",
        "job_id",
        "labels",
        "lease",
        "lost",
        "max_lost",
        "ready_at",
        "run_at",
        "shunned",
        "stale_reason",
        "started_at",
        "timeout",
        "verdict",
    )

    def __init__(self, id: str) -> None:
        super().__init__(id)
        self.state = "CREATED"  # It is born and published in one step; the log shows the second.
        self.job_id = ""
        self.index = 1
        self.labels: frozenset[str] = frozenset()
        self.run_at = self.fence = self.ready_at = 0
        self.timeout = self.started_at = self.cancel_by = 0
        self.max_lost = self.lost = self.claims = 0
        self.lease: Lease | None = None
        self.shunned: tuple[str, ...] = ()  # Who had lost the job when its lease was granted.
        self.stale_reason = ""
        self.error: dict[str, Any] = {}
        self.verdict: dict[str, Any] = {}

    @property
    def is_invalid(self) -> bool:
        """Whether its runner found a rule that does not hold."""
        return bool(self.verdict) and not self.verdict["is_passed"]


class WorkerFacts(Known):
    """A worker. `held` are its live leases of jobs; `lone` those of attempts without one, which take no place."""

    __slots__ = (
        "excused",
        "free_since",
        "held",
        "hold",
        "is_doubted",
        "is_leaving",
        "labels",
        "lone",
        "places",
        "told_tasks",
        "told_troubles",
        "troubles",
    )

    def __init__(self, id: str) -> None:
        super().__init__(id)
        self.labels: frozenset[str] = frozenset()
        self.places = 0
        self.held: set[str] = set()
        self.lone: set[str] = set()
        self.told_tasks = 0
        self.is_leaving = self.is_doubted = False
        self.free_since: int | None = None
        self.hold = ""
        self.troubles = self.told_troubles = 0
        self.excused: set[str] = set()  # What it held at its last trouble.

    @property
    def is_free(self) -> bool:
        """Whether it could take one more."""
        takes_work = self.state in ("IDLE", "BUSY") and not self.is_leaving and not self.hold
        return takes_work and len(self.held) + len(self.lone) < self.places
