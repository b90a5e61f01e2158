"""The schema of the canonical log: one class per kind of entity, and its metadata.

It does not use the record classes of `core`, so that a mistake there cannot hide in the log.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, ClassVar, Final, Literal

import msgspec

EPOCH: Final = datetime.fromisoformat("1970-01-01T00:00:00+00:00")
Timestamp = Annotated[datetime, msgspec.Meta(tz=True)]
Count = Annotated[int, msgspec.Meta(ge=0)]
Name = Annotated[str, msgspec.Meta(min_length=1)]


class EventLine(msgspec.Struct, forbid_unknown_fields=True, tag_field="entity", gc=False, rename={"from_": "from"}):
    """One line of the canonical log. The field `entity` selects the subclass, which defines the allowed metadata."""

    entity: ClassVar[str] = ""

    seq: Annotated[int, msgspec.Meta(ge=1)]
    at: Timestamp
    tenant: str
    entity_id: Name
    run_id: str
    from_: str | None
    to: Name
    trigger: Name
    actor: Name
    severity: Literal["info", "warning", "error", "critical"]
    request_id: str
    rev: Annotated[int, msgspec.Meta(ge=1)]


class _Metadata(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, gc=False):
    """The base of all metadata. A field that the event does not have is None."""


class RunMetadata(_Metadata, forbid_unknown_fields=True, kw_only=True, gc=False):
    """The metadata of a run's event."""

    is_fail_fast: bool | None = None
    has_validation: bool | None = None
    timeout_seconds: Count | None = None
    optional_wait_seconds: Count | None = None
    optional_until: Timestamp | None = None
    queue_keys: Annotated[list[str], msgspec.Meta(min_length=1)] | None = None
    plan_by: Timestamp | None = None
    concurrency_group: Name | None = None
    jobs: Count | None = None
    plan_hash: str | None = None
    error: str | None = None
    reason: str | None = None
    cause: Literal["job_started", "approval_opened", "nothing_to_run", "timed_out", "wait_over", "no_worker"] | None = (
        None
    )
    job_id: str | None = None
    details: str | None = None
    is_remembered: bool | None = None
    stops_clock: bool | None = None
    implied_by: Name | None = None
    conclusion: str | None = None
    forge_result: str | None = msgspec.field(default=None, name="told")


class JobMetadata(_Metadata, forbid_unknown_fields=True, kw_only=True, gc=False):
    """The metadata of a job's event."""

    name: str | None = None
    kind: Literal["task", "approval"] | None = None
    needs: list[str] | None = None
    after: Annotated[list[str], msgspec.Meta(min_length=1)] | None = None
    family: Name | None = None
    is_family_fail_fast: bool | None = None
    group: Name | None = None
    retry_on: Annotated[list[Literal["INFRA", "TOOLING", "FLAKY"]], msgspec.Meta(min_length=1)] | None = None
    is_required: bool | None = None
    max_attempts: Count | None = None
    base_delay_seconds: Count | None = None
    max_delay_seconds: Count | None = None
    jitter: float | None = None
    has_validation: bool | None = None
    attempt_index: Count | None = None
    approve_by: Timestamp | None = None
    worker_id: str | None = None
    is_reclaim: bool | None = None
    lost_worker_id: Name | None = None
    retry_count: Count | None = None
    max_retries: Count | None = None
    failure_class: Literal["INFRA", "TOOLING", "FLAKY", "USER"] | None = None
    rule: str | None = None
    log_line: str | None = msgspec.field(default=None, name="line")
    code: str | None = None
    next_run_at: Timestamp | None = None
    details: str | None = None
    comment: str | None = None
    reason: str | None = None
    role: Name | None = None
    approvers: Count | list[str] | None = None  # A number when the gate is created, names in a decision.
    not_by_starter: bool | None = None
    started_by: str | None = None
    plan_hash: Name | None = None
    approvals: Count | None = None
    needed: Count | None = None


class LeaseChange(_Metadata, forbid_unknown_fields=True, kw_only=True, gc=False, rename={"from_": "from"}):
    """The change of a lease, as part of the event of its attempt."""

    number: Count
    worker_id: Name
    from_: str | None
    to: str
    accept_by: Timestamp | None = None
    expires_at: Timestamp | None = None


class FailureMetadata(_Metadata, forbid_unknown_fields=True, kw_only=True, gc=False):
    """The classified failure of an attempt, as part of its event."""

    code: str
    failure_class: Literal["INFRA", "TOOLING", "FLAKY", "USER"]
    is_retryable: bool
    rule: str
    log_line: str = msgspec.field(default="", name="line")
    message: str = ""


class VerdictMetadata(_Metadata, forbid_unknown_fields=True, kw_only=True, gc=False):
    """The combined result of the validation rules that the runner checked."""

    is_passed: bool
    details: str = ""


class AttemptMetadata(_Metadata, forbid_unknown_fields=True, kw_only=True, gc=False):
    """The metadata of an attempt's event."""

    index: Count | None = None
    job_id: str | None = None
    queue_key: str | None = None
    run_at: Timestamp | None = None
    timeout_seconds: Count | None = None
    max_lost_leases: Count | None = None
    claims: Count | None = None
    lease: LeaseChange | None = None
    exit_code: int | None = None
    error: FailureMetadata | None = None
    reason: str | None = None
    lost_leases: Count | None = None
    cancel_by: Timestamp | None = None
    verdict: VerdictMetadata | None = None
    is_forced: bool | None = None
    sequence_no: Count | None = None
    implied_by: Name | None = None
    message: Literal["AckLease", "BeginUpload", "CancelAck", "Complete", "Finish"] | None = None
    canceled_by: Name | None = None
    reassign_at: Timestamp | None = None
    worker_id: Name | None = None
    fence_until: Timestamp | None = None


class WorkerMetadata(_Metadata, forbid_unknown_fields=True, kw_only=True, gc=False):
    """The metadata of a worker's event."""

    labels: list[str] | None = None
    max_concurrent_tasks: Count | None = None
    attempt_id: str | None = None
    tasks: Count | None = None
    reason: str | None = None
    attempts: list[str] | None = None
    hold: Literal["", "DRAINED", "QUARANTINED"] | None = None
    was: Literal["DRAINED", "QUARANTINED"] | None = None
    infra_failures: Count | None = msgspec.field(default=None, name="troubles")


class ResourceMetadata(_Metadata, forbid_unknown_fields=True, kw_only=True, gc=False):
    """The metadata of a resource's event. `before` and `after` are None if the resource does not exist then."""

    kind: Name
    name: str
    number: Annotated[int, msgspec.Meta(ge=1)]
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    is_sealed_changed: Literal[True] | None = None


class LeaseEventMetadata(_Metadata, forbid_unknown_fields=True, kw_only=True, gc=False):
    """The metadata of a line about a lease."""

    worker_id: Name
    implied_by: Name | None = None


class RunEventLine(EventLine, tag="run", gc=False):
    """A line of the canonical log about a run."""

    entity: ClassVar[str] = "run"

    metadata: RunMetadata


class JobEventLine(EventLine, tag="job", gc=False):
    """A line of the canonical log about a job."""

    entity: ClassVar[str] = "job"

    metadata: JobMetadata


class AttemptEventLine(EventLine, tag="attempt", gc=False):
    """A line of the canonical log about an attempt."""

    entity: ClassVar[str] = "attempt"

    metadata: AttemptMetadata


class WorkerEventLine(EventLine, tag="worker", gc=False):
    """A line of the canonical log about a worker."""

    entity: ClassVar[str] = "worker"

    metadata: WorkerMetadata


class LeaseEventLine(EventLine, tag="lease", gc=False):
    """A line of the canonical log about a lease."""

    entity: ClassVar[str] = "lease"

    metadata: LeaseEventMetadata


class ResourceEventLine(EventLine, tag="resource", gc=False):
    """A line of the canonical log about a resource."""

    entity: ClassVar[str] = "resource"

    metadata: ResourceMetadata


AnyEventLine = RunEventLine | JobEventLine | AttemptEventLine | WorkerEventLine | LeaseEventLine | ResourceEventLine
