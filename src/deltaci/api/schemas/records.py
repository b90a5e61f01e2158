"""What `/api/v1` answers, as types.

Every record carries both `state`, for whoever looks for a mistake, and `status`, for whoever asks "is it done?".
`docs/openapi.json` is drawn from here.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Final

import msgspec

from deltaci.api.schemas.inputs import GateInput, InputRule, PlanInput, Quotas, RetryInput, Scope
from deltaci.protocol.messages import Timestamp, doc

MAX_EMBEDDED_JOBS: Final = 1000


class ResponseSchema(msgspec.Struct, frozen=True, kw_only=True):
    """What is answered. A later version may add fields; clients ignore those that they do not know."""


class ApiProblem(ResponseSchema, frozen=True, kw_only=True):
    """Why a request was refused, as RFC 9457 has it. Nothing was changed by it."""

    type: Annotated[str, doc("a name for the kind of problem")]
    title: Annotated[str, doc("what the code means")]
    status: Annotated[int, doc("the HTTP status")]
    code: Annotated[str, doc("a stable word")]
    message: Annotated[str, doc("what was found and what was expected")]
    hint: Annotated[str, doc("what to do")]
    request_id: Annotated[str, doc("names this request in the server's log")]
    detail: Annotated[str, doc("the message again, under the name that RFC 9457 has for it")]


class JobCounts(ResponseSchema, frozen=True, kw_only=True):
    """The run's jobs, counted."""

    schema_name: ClassVar[str] = "Tally"

    open: Annotated[int, doc("not over")]
    active: Annotated[int, doc("going on by themselves")]
    waiting: Annotated[int, doc("waiting for a person")]
    lost: Annotated[int, doc("that keep the run from succeeding")]


class Failure(ResponseSchema, frozen=True, kw_only=True):
    """Why an attempt failed, and by which rule it was or was not worth another one."""

    code: str
    failure_class: str
    is_retryable: bool
    rule: str
    line: str
    message: str


class Approval(ResponseSchema, frozen=True, kw_only=True):
    """One person's yes."""

    person: str
    at: Timestamp
    comment: str


class ApprovalGate(ResponseSchema, frozen=True, kw_only=True):
    """Who must say yes, and who did."""

    schema_name: ClassVar[str] = "Gate"

    role: str
    approvers: int
    not_by_starter: bool
    approve_by: Timestamp | None
    approvals: list[Approval]


class Attempt(ResponseSchema, frozen=True, kw_only=True):
    """One execution of a job. `status` is the queue's word for it."""

    id: str
    index: int
    state: str
    status: str
    rev: int
    claims: int
    lost_leases: int
    worker_id: str
    lease: Annotated[int, doc("the number of its last lease; 0: it never had one")]
    created_at: Timestamp
    started_at: Timestamp | None
    updated_at: Timestamp
    times_out_at: Timestamp | None
    run_at: Annotated[Timestamp | None, doc("not claimed before then")]
    cancel_by: Timestamp | None
    cancel_reason: str
    error: Failure | None
    progress: Annotated[Any, doc("what its runner said last of how far it is")]
    report: Annotated[Any, doc("steps, tests, timings, cost, artifacts, as its runner told them")]


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
    attempts: Annotated[int, doc("how many were claimed")]
    max_attempts: int
    next_run_at: Annotated[Timestamp | None, doc("when it is tried again")]
    worker_id: str
    created_at: Timestamp
    started_at: Timestamp | None
    completed_at: Timestamp | None
    is_reclaimed: Annotated[bool, doc("whether a worker lost it and another one has it since")]
    last_error: Failure | None
    approval: ApprovalGate | None
    tries: Annotated[list[Attempt], doc("its attempts, the first one first")]
    family: Annotated[str, doc("jobs of one matrix share it; empty: it is of none")] = ""


class Run(ResponseSchema, frozen=True, kw_only=True):
    """A run, without its jobs."""

    id: str
    tenant: str
    state: str
    status: str
    rev: int
    conclusion: Annotated[str, doc("SUCCESS, FAILED, CANCELED or TIMEOUT, once it is over")]
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
    event: Annotated[str, doc("what happened in the repository; empty: it was not planned from one")]
    file: Annotated[str, doc("the pipeline file")]
    ref: str
    number: Annotated[int, doc("of the pull request; 0: it is none")]
    change: Annotated[str, doc("the change that it was made for")]
    is_fork: bool
    workstream: Annotated[str, doc("its name, of a run that is one; the id is the run's")] = ""
    plan_hash: str
    started_by: str
    rerun_of: str
    fail_fast: bool
    timeout_seconds: int
    tally: JobCounts
    created_at: Timestamp
    started_at: Timestamp | None
    updated_at: Timestamp


class RunWithJobs(Run, frozen=True, kw_only=True):
    """A run with its jobs and their attempts."""

    jobs: Annotated[list[Job], doc(f"in the order of the plan; at most {MAX_EMBEDDED_JOBS}, the others page by page")]
    job_count: int


class RunPage(ResponseSchema, frozen=True, kw_only=True):
    """Runs, the newest first."""

    runs: list[Run]
    next: Annotated[str | None, doc("the cursor of the next page; a page may be short, even empty, before the last")]


class JobPage(ResponseSchema, frozen=True, kw_only=True):
    """Jobs in the order of the plan."""

    jobs: list[Job]
    next: Annotated[str | None, doc("the cursor of the next page")]


class Attempts(ResponseSchema, frozen=True, kw_only=True):
    """The attempts of a job, the first one first."""

    attempts: list[Attempt]


class PlannedJob(ResponseSchema, frozen=True, kw_only=True):
    """A job as it was planned."""

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
    """Why a job of a pipeline file is part of a run, or is not."""

    schema_name: ClassVar[str] = "Choice"

    name: str
    job: Annotated[str, doc("its id in the file; jobs of a matrix share it")]
    is_kept: bool
    code: str
    reason: str
    path: Annotated[str, doc("the changed file that decided, if one did")]


class Plan(ResponseSchema, frozen=True, kw_only=True):
    """What the run does; it does not change once the run exists."""

    plan_hash: str
    jobs: list[PlannedJob]
    fail_fast: bool
    timeout_seconds: int
    file: Annotated[str, doc("the pipeline file that it was made from; empty: it was not made from one")] = ""
    compared_with: Annotated[str, doc("the commit that changed paths are taken against; empty: not known")] = ""
    unknown_because: Annotated[str, doc("why it is not known what changed, so that everything runs")] = ""
    group: Annotated[str, doc("of all runs with the same one, one goes on at a time")] = ""
    choices: Annotated[list[JobChoice], doc("every job of the file, kept or left out, with the reason")] = []
    problems: Annotated[list[str], doc("why there is no plan: each with file, line and column")] = []


class DecisionResult(ResponseSchema, frozen=True, kw_only=True):
    """What an approval or a rejection came to."""

    schema_name: ClassVar[str] = "Decided"

    run: Run
    jobs: Annotated[list[str], doc("the approvals that this request decided, or had decided before")]
    still_waiting: Annotated[list[str], doc("those of them that wait for more people")]


class Event(ResponseSchema, frozen=True, kw_only=True, rename={"from_": "from"}):
    """One accepted transition."""

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
    """Events in the order of the log."""

    events: list[Event]
    last: Annotated[int, doc("ask for what comes after this")]


class RunArtifact(ResponseSchema, frozen=True, kw_only=True):
    """A file that an attempt left behind."""

    job: str
    attempt: int
    path: str
    bytes: int


class Artifacts(ResponseSchema, frozen=True, kw_only=True):
    """Files that were left behind."""

    artifacts: list[RunArtifact]


class Outputs(ResponseSchema, frozen=True, kw_only=True):
    """What the jobs gave as their results, by name."""

    outputs: dict[str, Any]


class JobCost(ResponseSchema, frozen=True, kw_only=True):
    """What one attempt used."""

    job: str
    attempt: int
    cost: dict[str, Any]


class Costs(ResponseSchema, frozen=True, kw_only=True):
    """What a run used: of each attempt, and the sum of every number."""

    attempts: list[JobCost]
    total: dict[str, float]


class Reason(ResponseSchema, frozen=True, kw_only=True):
    """One sentence, with what it rests on."""

    schema_name: ClassVar[str] = "Because"

    code: str
    text: str
    about: Annotated[str, doc("the run, job, attempt or worker that it is about")]
    at: Timestamp | None
    seq: Annotated[int | None, doc("the event that it rests on")]


class Explanation(ResponseSchema, frozen=True, kw_only=True):
    """Why something is as it is."""

    id: str
    entity: str
    state: str
    status: str
    summary: Annotated[str, doc("the answer in one sentence")]
    waiting: Annotated[list[Reason], doc("why it does not go on now; empty when it does, or is over")]
    history: Annotated[list[Reason], doc("what led here, in order of time")]


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
    """A template in a list."""

    schema_name: ClassVar[str] = "TemplateLine"

    name: str
    version: Annotated[int, doc("the newest")]
    description: str
    created_at: Timestamp
    created_by: str


class TemplatePage(ResponseSchema, frozen=True, kw_only=True):
    """Templates by name, or the versions of one, the oldest first."""

    templates: list[TemplateSummary]
    next: str | None


class Worker(ResponseSchema, frozen=True, kw_only=True):
    """A runner, as the fleet sees it."""

    id: Annotated[str, doc("of this life of it: its name, in a later life `NAME/2` and so on")]
    name: Annotated[str, doc("what it is called in all of its lives")]
    state: str
    status: Annotated[str, doc("the same in the words of document 003")]
    condition: Annotated[
        str, doc("how it is, in one word: ready, busy, drained, quarantined, silent, leaving, starting or gone")
    ]
    rev: int
    labels: list[str]
    slots: int
    tasks: Annotated[list[str], doc("the attempts that it holds")]
    hold: Annotated[str, doc("why it takes nothing new: `DRAINED` or `QUARANTINED`; empty: it does")]
    hold_reason: str
    held_at: Timestamp | None
    troubles: Annotated[int, doc("jobs in a row that it lost by its infrastructure")]
    shutdown_reason: Annotated[str, doc("why it goes, or went; empty also for one that was silent for too long")]
    seen_at: Annotated[Timestamp, doc("when it was heard last, give or take a health check; at least when it came in")]
    created_at: Timestamp
    updated_at: Timestamp


class WorkerPage(ResponseSchema, frozen=True, kw_only=True):
    """Workers, the newest first."""

    workers: list[Worker]
    next: str | None


class WorkerToken(ResponseSchema, frozen=True, kw_only=True):
    """A token with which a runner comes in, once."""

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
    """A key that was just made."""

    token: Annotated[str, doc("what to send as `Authorization: Bearer …`: a secret; shown once, kept only as a hash")]


class KeyPage(ResponseSchema, frozen=True, kw_only=True):
    """API keys."""

    keys: list[Key]
    next: str | None


class Secret(ResponseSchema, frozen=True, kw_only=True):
    """A secret, without its value. The narrowest one that fits a job's run is the one that the job gets."""

    name: str
    project: Annotated[str, doc("empty: for all jobs of the tenant")]
    branch: Annotated[str, doc("the pattern of branches that it is for; empty: for all of the project")]
    version: Annotated[int, doc("how often it was set")]
    set_at: Annotated[Timestamp | None, doc("when it was set last")]
    set_by: Annotated[str, doc("who did")]


class SecretPage(ResponseSchema, frozen=True, kw_only=True):
    """Secrets by name, the widest scope first."""

    secrets: list[Secret]
    next: str | None


class Me(ResponseSchema, frozen=True, kw_only=True):
    """Who asks, as the server sees it."""

    tenant: str
    person: str
    scopes: list[Scope]
    roles: list[str]
    key_id: Annotated[str, doc("empty for a token that the operator of the server signed")]
    expires_at: Timestamp | None
    is_operator: bool


class Usage(ResponseSchema, frozen=True, kw_only=True):
    """What a tenant uses now."""

    running_jobs: int
    queued_runs: int
    storage_bytes: int


class Tenant(ResponseSchema, frozen=True, kw_only=True):
    """A tenant: what it may use and what it uses."""

    name: str
    quotas: Quotas
    usage: Usage
