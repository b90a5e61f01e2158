"""The state that the verifier keeps for every entity that has not ended.

It is computed from the log alone and shares no code with the records in `core`: a bug there must not hide itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, ClassVar

from deltaci.audit.verify.log_lines import EPOCH, EventLine, FailureMetadata, VerdictMetadata


@dataclass(slots=True, eq=False)
class TransactionScope:
    """The entities that one transaction may change together: a run with its jobs and attempts, or one other entity.

    `at` and `line_number` are those of the latest event; `touched` has the entities that changed at that time, by id.
    """

    at: datetime = EPOCH
    line_number: int = 0
    touched: dict[str, TrackedEntity] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class TrackedEntity:
    """What the verifier knows of an entity of any kind.

    `state_per_view` is its state in each view, in the order of `views_of`.
    """

    kind: ClassVar[str] = ""

    id: str
    tenant: str
    run_id: str
    scope: TransactionScope
    state: str | None = None
    rev: int = 0
    at: datetime = EPOCH
    state_per_view: tuple[str | None, ...] = ()


@dataclass(slots=True, eq=False)
class TrackedRun(TrackedEntity):
    """What the verifier knows of a run: its jobs, and how many are in which state.

    `dependents` maps the id of a job to the jobs that need it, `followers` to the jobs that have it only in `after`.
    """

    kind: ClassVar[str] = "run"

    jobs: dict[str, TrackedJob] = field(default_factory=dict)
    dependents: dict[str, list[TrackedJob]] = field(default_factory=dict)
    followers: dict[str, list[TrackedJob]] = field(default_factory=dict)
    families: dict[str, list[TrackedJob]] = field(default_factory=dict)
    open_job_count: int = 0
    open_optional_job_count: int = 0
    active_job_count: int = 0
    waiting_job_count: int = 0
    lost_required_job_count: int = 0
    is_fail_fast: bool = False
    has_validation: bool = False
    has_started_job: bool = False
    is_ending: bool = False
    timeout: timedelta = timedelta()
    plan_by: datetime = EPOCH
    queued_at: datetime = EPOCH
    optional_wait: timedelta | None = None  # None in older logs.
    is_decided: bool = False
    optional_until: datetime | None = None
    wait_ended_at: datetime | None = None
    unserved_at: datetime | None = None
    unserved_keys: frozenset[str] = frozenset()
    started_at: datetime = EPOCH
    waiting_since: datetime | None = None
    waited: timedelta = timedelta()
    cancel_reason: str = ""
    plan_hash: str = ""


@dataclass(slots=True, eq=False, kw_only=True)
class TrackedJob(TrackedEntity):
    """What the verifier knows of a job and its latest attempt and, for an approval, who approved it and who may not."""

    kind: ClassVar[str] = "job"

    run: TrackedRun
    needs: list[str] = field(default_factory=list)
    after: list[str] = field(default_factory=list)
    unmet_count: int = 0
    family: str = ""
    is_family_fail_fast: bool = False
    group: str = ""
    retry_on: list[str] = field(default_factory=list)
    is_task: bool = True
    is_required: bool = True
    has_validation: bool = False
    max_attempts: int = 1
    base_delay_seconds: int = 0
    max_delay_seconds: int = 0
    jitter: float = 0.0
    attempt_count: int = 0
    latest_attempt: TrackedAttempt | None = None
    worker_id: str = ""
    next_run_at: datetime = EPOCH
    is_plain_gate: bool = True
    required_approver_count: int = 1
    excluded_approver: str | None = None
    approved_by: list[str] = field(default_factory=list)


@dataclass(slots=True, eq=False, kw_only=True)
class TrackedAttempt(TrackedEntity):
    """What the verifier knows of an attempt and its latest lease.

    `lease_state` is None if that lease is not live. `is_marked` says whether it was marked for reassignment since its
    latest message. `group_fence_until` is the end of the fence that its events name; those of older versions name none.
    """

    kind: ClassVar[str] = "attempt"

    job: TrackedJob | None
    state: str | None = "CREATED"
    lease_state: str | None = None
    lease_number: int = 0
    claims: int = 0
    lost_leases: int = 0
    max_lost_leases: int = 0
    worker_id: str = ""
    queue_key: str = ""
    stale_reason: str = ""
    cancel_reason: str = ""
    canceled_by: str = ""
    expires_at: datetime = EPOCH
    accept_by: datetime = EPOCH
    fence_until: datetime = EPOCH
    group_fence_until: datetime = EPOCH
    run_at: datetime = EPOCH
    started_at: datetime = EPOCH
    cancel_by: datetime = EPOCH
    timeout: timedelta = timedelta()
    ttl: timedelta = timedelta()
    error: FailureMetadata | None = None
    verdict: VerdictMetadata | None = None
    request_triggers: dict[str, set[str]] = field(default_factory=dict)
    claim_requests: set[tuple[str, str]] = field(default_factory=set)  # Worker and request id of each claim.
    request_steps: list[EventLine] = field(default_factory=list)  # Of the latest decision with a request id.
    heartbeat_no: int = -1  # The highest number of a heartbeat under the latest lease.
    is_marked: bool = False

    @property
    def has_failed_verdict(self) -> bool:
        """Whether the runner reported that a validation rule failed."""
        return self.verdict is not None and not self.verdict.is_passed


@dataclass(slots=True, eq=False)
class TrackedResource(TrackedEntity):
    """What the verifier knows of a resource: its body after the last change, None if it is deleted."""

    kind: ClassVar[str] = "resource"

    body: dict[str, Any] | None = None


@dataclass(slots=True, eq=False)
class TrackedWorker(TrackedEntity):
    """What the verifier knows of a worker and the attempts whose leases it holds (`attempt_ids`).

    `ended_attempts` has the attempts whose leases ended in the current transaction, with True if the worker's
    infrastructure caused that, False if not, None if unknown. `infra_failures` counts such failures in a row; the
    attempts in `already_counted_attempts` were held at the time of a counted failure and do not count again.
    """

    kind: ClassVar[str] = "worker"

    labels: frozenset[str] = frozenset()
    registered_at: datetime | None = None  # When it got these labels.
    slots: int = 1
    attempt_ids: set[str] = field(default_factory=set)
    ended_attempts: dict[str, bool | None] = field(default_factory=dict)
    is_leaving: bool = False
    hold: str = ""
    infra_failures: int = 0
    formerly_counted_attempt: str = ""  # The latest attempt whose failure an older version may have counted.
    already_counted_attempts: set[str] = field(default_factory=set)
    is_quarantine_due: bool = False
