"""Response types of `/api/v1` for runs, jobs, attempts, templates, workers, keys, secrets and the tenant.

Every record has both a fine-grained `state`, for debugging, and a coarse `status`, which answers "is it done?".
The OpenAPI document is generated from these types.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Final

import msgspec
from msgspec import field

from deltaci.api.schemas.inputs import GateInput, InputRule, PlanInput, Quotas, RetryInput, Scope
from deltaci.protocol.messages import Timestamp, doc

MAX_EMBEDDED_JOBS: Final = 1000


class ResponseSchema(msgspec.Struct, frozen=True, kw_only=True):
    """Base class of responses. A later version may add fields; clients ignore unknown fields."""


class ApiProblem(ResponseSchema, frozen=True, kw_only=True):
    """Why a request was refused, in the format of RFC 9457. The request changed nothing."""

    type: Annotated[str, doc("a URI that identifies the kind of problem")]
    title: Annotated[str, doc("the meaning of the code")]
    status: Annotated[int, doc("the HTTP status")]
    code: Annotated[str, doc("a stable error code")]
    message: Annotated[str, doc("what was found and what was expected")]
    hint: Annotated[str, doc("what to do")]
    request_id: Annotated[str, doc("the id of this request in the server's log")]
    detail: Annotated[str, doc("the same as `message`, under the name that RFC 9457 gives it")]


class JobCounts(ResponseSchema, frozen=True, kw_only=True):
    """Counts of a run's jobs. A job that is active or waits for an approval also counts as open."""

    schema_name: ClassVar[str] = "Tally"

    open: Annotated[int, doc("not finished")]
    active: Annotated[int, doc("in progress without a person")]
    waiting: Annotated[int, doc("waiting for an approval")]
    lost: Annotated[int, doc("ended in a way that prevents the run from succeeding")]


class Failure(ResponseSchema, frozen=True, kw_only=True):
    """Why an attempt failed, and which failure rule classified that."""

    code: str
    failure_class: str
    is_retryable: bool
    rule: str
    line: str
    message: str


class Approval(ResponseSchema, frozen=True, kw_only=True):
    """The approval of an approval job by one person."""

    person: str
    at: Timestamp
    comment: str


class ApprovalGate(ResponseSchema, frozen=True, kw_only=True):
    """The requirements of an approval job, and the approvals so far."""

    schema_name: ClassVar[str] = "Gate"

    role: str
    approvers: int
    not_by_starter: bool
    approve_by: Timestamp | None
    approvals: list[Approval]


class Attempt(ResponseSchema, frozen=True, kw_only=True):
    """One execution of a job. `status` is its state in the terms of the queue contract (docs/spec/queue.md)."""

    id: str
    index: int
    state: str
    status: str
    rev: int
    claims: int
    lost_leases: int
    worker_id: str
    lease: Annotated[int, doc("the number of its last lease; 0: none yet")]
    created_at: Timestamp
    started_at: Timestamp | None
    updated_at: Timestamp
    times_out_at: Timestamp | None
    run_at: Annotated[Timestamp | None, doc("not claimed before this time")]
    cancel_by: Timestamp | None
    cancel_reason: str
    error: Failure | None
    progress: Annotated[Any, doc("the progress that its runner reported last")]
    report: Annotated[Any, doc("steps, tests, timings, cost and artifacts, as its runner reported them")]
    reassign_at: Annotated[
        Timestamp | None,
        doc("its worker is silent: when its lease ends without a heartbeat, and another worker gets it"),
    ] = None
    stop_unconfirmed_until: Annotated[
        Timestamp | None,
        doc("the attempt was ended, but its runner did not confirm the stop: its process may run until then"),
    ] = None
    claimable_at: Annotated[
        Timestamp | None, doc("from when on a worker can claim it; null unless it is queued or stale")
    ] = None


class Job(ResponseSchema, frozen=True, kw_only=True):
    """A job of a run."""

    id: str
    run_id: str
    name: str
    kind: str
    state: str
    status: str
    rev: int
    reason: Annotated[str, doc("why it failed or was cancelled")]
    needs: list[str]
    after: list[str]
    group: str
    runs_on: list[str]
    allow_failure: bool
    attempts: Annotated[int, doc("how many attempts were claimed")]
    max_attempts: int
    next_run_at: Annotated[Timestamp | None, doc("when the next attempt is due")]
    worker_id: str
    created_at: Timestamp
    started_at: Timestamp | None
    completed_at: Timestamp | None
    is_reclaimed: Annotated[bool, doc("whether a worker lost its lease and another one claimed it since")]
    last_error: Failure | None
    approval: ApprovalGate | None
    tries: Annotated[list[Attempt], doc("its attempts, oldest first")]
    family: Annotated[str, doc("the name that all jobs of a matrix share; empty: no matrix")] = ""
    canceling: Annotated[bool, doc("whether a cancel was requested and its runner has not stopped yet")] = False
    stop_unconfirmed_until: Annotated[Timestamp | None, doc("that of its latest attempt")] = None


class Run(ResponseSchema, frozen=True, kw_only=True):
    """A run, without its jobs."""

    id: str
    tenant: str
    state: str
    status: str
    rev: int
    conclusion: Annotated[str, doc("SUCCESS, FAILED, CANCELED or TIMEOUT, once the run has ended")]
    reason: str
    project: str
    branch: str
    repository: str
    commit: str
    title: str
    labels: list[str]
    template: str
    template_version: int
    inputs: dict[str, str]
    event: Annotated[str, doc("the event in the repository that triggered it; empty: none")]
    file: Annotated[str, doc("the pipeline file")]
    ref: str
    number: Annotated[int, doc("the number of the pull request; 0: none")]
    change: Annotated[str, doc("the id of the change that triggered it")]
    is_fork: bool
    workstream: Annotated[str, doc("the name of the workstream, if the run is one; its id is the run's id")] = ""
    plan_hash: str
    started_by: str
    rerun_of: str
    fail_fast: bool
    timeout_seconds: int
    tally: JobCounts
    created_at: Timestamp
    started_at: Timestamp | None
    updated_at: Timestamp
    optional_wait_seconds: int = 600
    optional_until: Annotated[
        Timestamp | None, doc("every required job has ended: when the jobs end that wait for a worker or an approval")
    ] = None
    start_by: Annotated[Timestamp | None, doc("while it is QUEUED: when it times out if none of its jobs starts")] = (
        None
    )
    canceling: Annotated[bool, doc("whether a cancel was requested and is not finished: jobs may still run")] = False
    stop_unconfirmed_until: Annotated[
        Timestamp | None,
        doc("the run was cancelled, but a runner did not confirm the stop: its process may run until then"),
    ] = None


class RunWithJobs(Run, frozen=True, kw_only=True):
    """A run with its jobs and their attempts."""

    jobs: Annotated[list[Job], doc(f"in the order of the plan; at most {MAX_EMBEDDED_JOBS}, use `listJobs` for more")]
    job_count: int


class RunPage(ResponseSchema, frozen=True, kw_only=True):
    """A page of runs, newest first."""

    runs: list[Run]
    next: Annotated[str | None, doc("the cursor of the next page; any page may be short, even empty")]


class JobPage(ResponseSchema, frozen=True, kw_only=True):
    """A page of jobs, in the order of the plan."""

    jobs: list[Job]
    next: Annotated[str | None, doc("the cursor of the next page")]


class Attempts(ResponseSchema, frozen=True, kw_only=True):
    """All attempts of a job, oldest first."""

    attempts: list[Attempt]


class PlannedJob(ResponseSchema, frozen=True, kw_only=True):
    """A job as the plan of its run defines it."""

    name: str
    kind: str
    needs: list[str]
    after: list[str]
    group: str
    runs_on: list[str]
    allow_failure: bool
    timeout_seconds: int
    priority: int
    retry: RetryInput
    approval: GateInput | None
    work: Any


class JobChoice(ResponseSchema, frozen=True, kw_only=True):
    """Why a job of a pipeline file is or is not part of a run."""

    schema_name: ClassVar[str] = "Choice"

    name: str
    job: Annotated[str, doc("its id in the file; jobs of a matrix share it")]
    is_kept: bool
    code: str
    reason: str
    path: Annotated[str, doc("the changed file that decided, if any")]
    run: Annotated[str, doc("of a reused job: the run in which it succeeded with equal inputs")] = ""
    commit: Annotated[str, doc("of a reused job: the commit of that run")] = ""


class Plan(ResponseSchema, frozen=True, kw_only=True):
    """The plan of a run. It never changes."""

    plan_hash: str
    jobs: list[PlannedJob]
    fail_fast: bool
    timeout_seconds: int
    optional_wait_seconds: int = 600
    file: Annotated[str, doc("the pipeline file that it was compiled from; empty: none")] = ""
    compared_with: Annotated[str, doc("the commit that changed paths are compared with; empty: unknown")] = ""
    unknown_because: Annotated[str, doc("why the changed paths are unknown, so that every job runs")] = ""
    group: Annotated[str, doc("of all runs with the same group, one executes at a time")] = ""
    choices: Annotated[list[JobChoice], doc("every job of the file, selected or not, with the reason")] = []
    problems: Annotated[list[str], doc("why there is no plan: errors with file, line and column")] = []


class DecisionResult(ResponseSchema, frozen=True, kw_only=True):
    """The result of a request to approve or reject."""

    schema_name: ClassVar[str] = "Decided"

    run: Run
    jobs: Annotated[list[str], doc("the approval jobs that this request, or an earlier one, decided")]
    still_waiting: Annotated[list[str], doc("those of them that need more approvals")]


class Event(ResponseSchema, frozen=True, kw_only=True, rename={"from_": "from"}):
    """An event of the log: one transition of a record."""

    seq: int
    at: str
    tenant: str
    entity: str
    entity_id: str
    run_id: str
    from_: str | None
    to: str
    trigger: str
    actor: str
    severity: str
    request_id: str
    rev: int
    metadata: dict[str, Any]


class EventPage(ResponseSchema, frozen=True, kw_only=True):
    """A page of events, in the order of the log."""

    events: list[Event]
    last: Annotated[int, doc("the value of `after` for the next page")]


class RunArtifact(ResponseSchema, frozen=True, kw_only=True):
    """A file that an attempt uploaded."""

    job: str
    attempt: int
    path: str
    bytes: int


class Artifacts(ResponseSchema, frozen=True, kw_only=True):
    """All artifacts of a run or of an attempt."""

    artifacts: list[RunArtifact]


class Outputs(ResponseSchema, frozen=True, kw_only=True):
    """The outputs of a run's jobs, by the name of the job."""

    outputs: dict[str, Any]


class JobCost(ResponseSchema, frozen=True, kw_only=True):
    """The resources that one attempt used."""

    job: str
    attempt: int
    cost: dict[str, Any]


class Costs(ResponseSchema, frozen=True, kw_only=True):
    """The resources that a run used: those of each attempt, and for each number the sum over all attempts."""

    attempts: list[JobCost]
    total: dict[str, float]


class Reason(ResponseSchema, frozen=True, kw_only=True):
    """One sentence of an explanation, with the record and event that it is based on."""

    schema_name: ClassVar[str] = "Because"

    code: str
    text: str
    about: Annotated[str, doc("the id of the run, job, attempt or worker that it is about")]
    at: Timestamp | None
    seq: Annotated[int | None, doc("the event that it is based on")]


class Explanation(ResponseSchema, frozen=True, kw_only=True):
    """An explanation of why a run, job or attempt is in its state."""

    id: str
    entity: str
    state: str
    status: str
    summary: Annotated[str, doc("the explanation in one sentence")]
    waiting: Annotated[list[Reason], doc("why it makes no progress now; empty when it does, or has ended")]
    history: Annotated[list[Reason], doc("what led to this state, in order of time")]


class Template(ResponseSchema, frozen=True, kw_only=True):
    """One version of a template."""

    name: str
    version: int
    description: str
    inputs: dict[str, InputRule]
    plan: PlanInput
    created_at: Timestamp
    created_by: str


class TemplateSummary(ResponseSchema, frozen=True, kw_only=True):
    """A template without its plan and inputs, as an entry of a list."""

    schema_name: ClassVar[str] = "TemplateLine"

    name: str
    version: Annotated[int, doc("the newest version")]
    description: str
    created_at: Timestamp
    created_by: str


class TemplatePage(ResponseSchema, frozen=True, kw_only=True):
    """A page of templates, sorted by name, or of the versions of one template, oldest first."""

    templates: list[TemplateSummary]
    next: str | None


class Worker(ResponseSchema, frozen=True, kw_only=True):
    """A registered runner."""

    id: Annotated[str, doc("the id of this incarnation: its name, or `NAME/2` and so on for later ones")]
    name: Annotated[str, doc("the name of all its incarnations")]
    state: str
    status: Annotated[str, doc("the status of document 003")]
    condition: Annotated[str, doc("ready, busy, drained, quarantined, silent, leaving, starting or gone")]
    rev: int
    labels: list[str]
    slots: int
    tasks: Annotated[list[str], doc("the attempts that it executes")]
    hold: Annotated[str, doc("why it gets no new jobs: `DRAINED` or `QUARANTINED`; empty: it does")]
    hold_reason: str
    hold_started_at: Timestamp | None = field(name="held_at")
    infra_failures: Annotated[int, doc("consecutive jobs that failed because of its infrastructure")] = field(
        name="troubles"
    )
    shutdown_reason: Annotated[str, doc("why it shuts down; empty also for one that stopped sending heartbeats")]
    last_seen_at: Annotated[
        Timestamp, doc("when it was last heard, to the precision of a health check, or when it registered")
    ] = field(name="seen_at")
    created_at: Timestamp
    updated_at: Timestamp
    reassign_at: Annotated[
        Timestamp | None,
        doc("if it is unresponsive: when the last of its leases ends, so that all of its jobs go to other workers"),
    ] = None


class WorkerPage(ResponseSchema, frozen=True, kw_only=True):
    """A page of workers, newest first."""

    workers: list[Worker]
    next: str | None


class WorkerToken(ResponseSchema, frozen=True, kw_only=True):
    """A token with which a runner can register once."""

    name: str
    token: Annotated[str, doc("a secret; shown once")]
    expires_at: Timestamp


class Key(ResponseSchema, frozen=True, kw_only=True):
    """An API key, without its secret."""

    id: str
    person: str
    scopes: list[Scope]
    roles: list[str]
    description: str
    created_at: Timestamp
    created_by: str
    expires_at: Timestamp | None
    revoked_at: Timestamp | None
    revoked_by: str


class NewKey(Key, frozen=True, kw_only=True):
    """A newly created API key with its secret."""

    token: Annotated[str, doc("for `Authorization: Bearer …`: a secret; shown once, stored only as a hash")]


class KeyPage(ResponseSchema, frozen=True, kw_only=True):
    """A page of API keys."""

    keys: list[Key]
    next: str | None


class Secret(ResponseSchema, frozen=True, kw_only=True):
    """A secret without its value. Of several with one name, a job gets the one with the narrowest matching scope."""

    name: str
    project: Annotated[str, doc("the project that it is restricted to; empty: none")]
    branch: Annotated[str, doc("the branch pattern that it is restricted to; empty: all branches of the project")]
    version: Annotated[int, doc("how many times it was set")]
    set_at: Annotated[Timestamp | None, doc("when it was last set")]
    set_by: Annotated[str, doc("who set it last")]


class SecretPage(ResponseSchema, frozen=True, kw_only=True):
    """A page of secrets without their values, sorted by name, project and branch.

    An empty project or branch comes first.
    """

    secrets: list[Secret]
    next: str | None


class Me(ResponseSchema, frozen=True, kw_only=True):
    """The identity and the permissions of the caller."""

    tenant: str
    person: str
    scopes: list[Scope]
    roles: list[str]
    key_id: Annotated[str, doc("empty for a token that the operator of the server signed")]
    expires_at: Timestamp | None
    is_operator: bool


class Usage(ResponseSchema, frozen=True, kw_only=True):
    """The current usage of a tenant."""

    running_jobs: int
    queued_runs: int
    storage_bytes: int


class Tenant(ResponseSchema, frozen=True, kw_only=True):
    """A tenant with its quotas and its usage."""

    name: str
    quotas: Quotas
    usage: Usage
