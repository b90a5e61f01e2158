"""What the verifier reads from a canonical line, and what it remembers of everything that is not over.

Kept apart from the records of the core on purpose: the verifier believes only what the log says.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Annotated, ClassVar, Final, Literal

import msgspec

EPOCH: Final = datetime.fromisoformat("1970-01-01T00:00:00+00:00")
Moment = Annotated[datetime, msgspec.Meta(tz=True)]
Count = Annotated[int, msgspec.Meta(ge=0)]
Name = Annotated[str, msgspec.Meta(min_length=1)]


class Line(msgspec.Struct, forbid_unknown_fields=True, tag_field="entity", gc=False, rename={"from_": "from"}):
    """One line of the canonical log. Which entity it is about decides what its metadata may say."""

    entity: ClassVar[str] = ""

    seq: Annotated[int, msgspec.Meta(ge=1)]
    at: Moment
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


class _Told(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, gc=False):
    """What metadata may say. What an event does not tell is None."""


class RunTold(_Told, forbid_unknown_fields=True, kw_only=True, gc=False):
    """The metadata of a run's event."""

    is_fail_fast: bool | None = None
    has_validation: bool | None = None
    timeout_seconds: Count | None = None
    plan_by: Moment | None = None
    jobs: Count | None = None
    plan_hash: str | None = None
    error: str | None = None
    reason: str | None = None
    cause: Literal["job_started", "approval_opened", "nothing_to_run"] | None = None
    job_id: str | None = None
    details: str | None = None
    is_remembered: bool | None = None
    conclusion: str | None = None
    told: str | None = None


class JobTold(_Told, forbid_unknown_fields=True, kw_only=True, gc=False):
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
    approve_by: Moment | None = None
    worker_id: str | None = None
    is_reclaim: bool | None = None
    retry_count: Count | None = None
    max_retries: Count | None = None
    failure_class: Literal["INFRA", "TOOLING", "FLAKY", "USER"] | None = None
    rule: str | None = None
    line: str | None = None
    code: str | None = None
    next_run_at: Moment | None = None
    details: str | None = None
    comment: str | None = None
    reason: str | None = None
    role: Name | None = None
    approvers: Count | list[str] | None = None  # How many at the birth of a gate, who in a decision about it.
    not_by_starter: bool | None = None
    started_by: str | None = None
    plan_hash: Name | None = None
    approvals: Count | None = None
    needed: Count | None = None


class LeaseTold(_Told, forbid_unknown_fields=True, kw_only=True, gc=False, rename={"from_": "from"}):
    """What an attempt's event says about its lease."""

    number: Count
    worker_id: Name
    from_: str | None
    to: str
    accept_by: Moment | None = None
    expires_at: Moment | None = None


class ErrorTold(_Told, forbid_unknown_fields=True, kw_only=True, gc=False):
    """Why an attempt failed."""

    code: str
    failure_class: Literal["INFRA", "TOOLING", "FLAKY", "USER"]
    is_retryable: bool
    rule: str
    line: str = ""
    message: str = ""


class VerdictTold(_Told, forbid_unknown_fields=True, kw_only=True, gc=False):
    """What the rules that its runner looked at say together."""

    is_passed: bool
    details: str = ""


class AttemptTold(_Told, forbid_unknown_fields=True, kw_only=True, gc=False):
    """The metadata of an attempt's event."""

    index: Count | None = None
    job_id: str | None = None
    queue_key: str | None = None
    run_at: Moment | None = None
    timeout_seconds: Count | None = None
    max_lost_leases: Count | None = None
    claims: Count | None = None
    lease: LeaseTold | None = None
    exit_code: int | None = None
    error: ErrorTold | None = None
    reason: str | None = None
    lost_leases: Count | None = None
    cancel_by: Moment | None = None
    verdict: VerdictTold | None = None
    is_forced: bool | None = None


class WorkerTold(_Told, forbid_unknown_fields=True, kw_only=True, gc=False):
    """The metadata of a worker's event."""

    labels: list[str] | None = None
    max_concurrent_tasks: Count | None = None
    attempt_id: str | None = None
    tasks: Count | None = None
    reason: str | None = None
    attempts: list[str] | None = None
    hold: Literal["", "DRAINED", "QUARANTINED"] | None = None
    was: Literal["DRAINED", "QUARANTINED"] | None = None
    troubles: Count | None = None


class LeaseLineTold(_Told, forbid_unknown_fields=True, kw_only=True, gc=False):
    """The metadata of a lease's own line."""

    worker_id: Name


class RunLine(Line, tag="run", gc=False):
    """A line about a run."""

    entity: ClassVar[str] = "run"

    metadata: RunTold


class JobLine(Line, tag="job", gc=False):
    """A line about a job."""

    entity: ClassVar[str] = "job"

    metadata: JobTold


class AttemptLine(Line, tag="attempt", gc=False):
    """A line about an attempt."""

    entity: ClassVar[str] = "attempt"

    metadata: AttemptTold


class WorkerLine(Line, tag="worker", gc=False):
    """A line about a worker."""

    entity: ClassVar[str] = "worker"

    metadata: WorkerTold


class LeaseLine(Line, tag="lease", gc=False):
    """A line about a lease."""

    entity: ClassVar[str] = "lease"

    metadata: LeaseLineTold


AnyLine = RunLine | JobLine | AttemptLine | WorkerLine | LeaseLine


@dataclass(slots=True, eq=False)
class Scope:
    """Things that change together in one transaction: a run, a worker, or an attempt on its own."""

    moment: datetime = EPOCH
    line: int = 0
    touched: dict[str, Entity] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Entity:
    """What is known of every entity."""

    kind: ClassVar[str] = ""

    id: str
    tenant: str
    run_id: str
    scope: Scope
    state: str | None = None
    rev: int = 0
    at: datetime = EPOCH
    shown: tuple[str | None, ...] = ()


@dataclass(slots=True, eq=False)
class Run(Entity):
    """A run: its jobs, counted as they move."""

    kind: ClassVar[str] = "run"

    jobs: dict[str, Job] = field(default_factory=dict)
    dependents: dict[str, list[Job]] = field(default_factory=dict)
    followers: dict[str, list[Job]] = field(default_factory=dict)
    families: dict[str, list[Job]] = field(default_factory=dict)
    open: int = 0
    active: int = 0
    waiting: int = 0
    doomed: int = 0
    is_fail_fast: bool = False
    has_validation: bool = False
    has_run: bool = False
    is_ending: bool = False
    timeout: timedelta = timedelta()
    plan_by: datetime = EPOCH
    started_at: datetime = EPOCH
    cancel_reason: str = ""
    plan_hash: str = ""


@dataclass(slots=True, eq=False, kw_only=True)
class Job(Entity):
    """A job, with its newest attempt."""

    kind: ClassVar[str] = "job"

    run: Run
    needs: list[str] = field(default_factory=list)
    after: list[str] = field(default_factory=list)
    unmet: int = 0
    family: str = ""
    is_family_fail_fast: bool = False
    group: str = ""
    retry_on: list[str] = field(default_factory=list)
    is_task: bool = True
    is_required: bool = True
    has_validation: bool = False
    max_attempts: int = 1
    base: int = 0
    cap: int = 0
    jitter: float = 0.0
    attempts: int = 0
    attempt: Attempt | None = None
    next_run_at: datetime = EPOCH
    is_plain: bool = True
    approvers: int = 1
    barred: str | None = None
    approved_by: list[str] = field(default_factory=list)


@dataclass(slots=True, eq=False, kw_only=True)
class Attempt(Entity):
    """An attempt, with its live lease."""

    kind: ClassVar[str] = "attempt"

    job: Job | None
    state: str | None = "CREATED"
    lease: str | None = None
    number: int = 0
    claims: int = 0
    lost: int = 0
    max_lost: int = 0
    worker_id: str = ""
    queue_key: str = ""
    stale_reason: str = ""
    cancel_reason: str = ""
    expires_at: datetime = EPOCH
    accept_by: datetime = EPOCH
    fence: datetime = EPOCH
    run_at: datetime = EPOCH
    started_at: datetime = EPOCH
    cancel_by: datetime = EPOCH
    timeout: timedelta = timedelta()
    ttl: timedelta = timedelta()
    error: ErrorTold | None = None
    verdict: VerdictTold | None = None
    requests: tuple[tuple[str, str, datetime], ...] = ()

    @property
    def is_invalid(self) -> bool:
        """Whether its runner found a rule that does not hold."""
        return self.verdict is not None and not self.verdict.is_passed


@dataclass(slots=True, eq=False)
class Worker(Entity):
    """A worker, with the attempts whose leases it holds; and those that ended, each with whose fault that was."""

    kind: ClassVar[str] = "worker"

    labels: frozenset[str] = frozenset()
    places: int = 1
    tasks: set[str] = field(default_factory=set)
    ended: dict[str, bool | None] = field(default_factory=dict)
    is_leaving: bool = False
    hold: str = ""
    troubles: int = 0
    excused: set[str] = field(default_factory=set)
    is_doubted: bool = False
