"""What `/api/v1` answers, as types.

Every record carries both `state`, for whoever looks for a mistake, and `status`, for whoever asks "is it done?".
`docs/openapi.json` is drawn from here.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec

from deltaci.api.schemas.inputs import GateInput, InputRule, PlanInput, Quotas, RetryInput, Scope
from deltaci.protocol.messages import Moment, says

MAX_JOBS_SHOWN: Final = 1000


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    """What is answered. A later version may add fields; clients ignore those that they do not know."""


class ApiProblem(Shown, frozen=True, kw_only=True):
    """Why a request was refused, as RFC 9457 has it. Nothing was changed by it."""

    type: Annotated[str, says("a name for the kind of problem")]
    title: Annotated[str, says("what the code means")]
    status: Annotated[int, says("the HTTP status")]
    code: Annotated[str, says("a stable word")]
    message: Annotated[str, says("what was found and what was expected")]
    hint: Annotated[str, says("what to do")]
    request_id: Annotated[str, says("names this request in the server's log")]
    detail: Annotated[str, says("the message again, under the name that RFC 9457 has for it")]


class Tally(Shown, frozen=True, kw_only=True):
    """The run's jobs, counted."""

    open: Annotated[int, says("not over")]
    active: Annotated[int, says("going on by themselves")]
    waiting: Annotated[int, says("waiting for a person")]
    lost: Annotated[int, says("that keep the run from succeeding")]


class Failure(Shown, frozen=True, kw_only=True):
    """Why an attempt failed, and by which rule it was or was not worth another one."""

    code: str
    failure_class: str
    is_retryable: bool
    rule: str
    line: str
    message: str


class Approval(Shown, frozen=True, kw_only=True):
    """One person's yes."""

    person: str
    at: Moment
    comment: str


class Gate(Shown, frozen=True, kw_only=True):
    """Who must say yes, and who did."""

    role: str
    approvers: int
    not_by_starter: bool
    approve_by: Moment | None
    approvals: list[Approval]


class Attempt(Shown, frozen=True, kw_only=True):
    """One execution of a job. `status` is the queue's word for it."""

    id: str
    index: int
    state: str
    status: str
    rev: int
    claims: int
    lost_leases: int
    worker_id: str
    lease: Annotated[int, says("the number of its last lease; 0: it never had one")]
    created_at: Moment
    started_at: Moment | None
    updated_at: Moment
    times_out_at: Moment | None
    run_at: Annotated[Moment | None, says("not claimed before then")]
    cancel_by: Moment | None
    cancel_reason: str
    error: Failure | None
    progress: Annotated[Any, says("what its runner said last of how far it is")]
    report: Annotated[Any, says("steps, tests, timings, cost, artifacts, as its runner told them")]


class Job(Shown, frozen=True, kw_only=True):
    """A job of a run."""

    id: str
    run_id: str
    name: str
    kind: str
    state: str
    status: str
    rev: int
    reason: Annotated[str, says("why it failed or was cancelled")]
    needs: list[str]
    after: list[str]
    group: str
    runs_on: list[str]
    allow_failure: bool
    attempts: Annotated[int, says("how many were claimed")]
    max_attempts: int
    next_run_at: Annotated[Moment | None, says("when it is tried again")]
    worker_id: str
    created_at: Moment
    started_at: Moment | None
    completed_at: Moment | None
    is_reclaimed: Annotated[bool, says("whether a worker lost it and another one has it since")]
    last_error: Failure | None
    approval: Gate | None
    tries: Annotated[list[Attempt], says("its attempts, the first one first")]
    family: Annotated[str, says("jobs of one matrix share it; empty: it is of none")] = ""


class Run(Shown, frozen=True, kw_only=True):
    """A run, without its jobs."""

    id: str
    tenant: str
    state: str
    status: str
    rev: int
    conclusion: Annotated[str, says("SUCCESS, FAILED, CANCELED or TIMEOUT, once it is over")]
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
    event: Annotated[str, says("what happened in the repository; empty: it was not planned from one")]
    file: Annotated[str, says("the pipeline file")]
    ref: str
    number: Annotated[int, says("of the pull request; 0: it is none")]
    change: Annotated[str, says("the change that it was made for")]
    is_fork: bool
    workstream: Annotated[str, says("its name, of a run that is one; the id is the run's")] = ""
    plan_hash: str
    started_by: str
    rerun_of: str
    fail_fast: bool
    timeout_seconds: int
    tally: Tally
    created_at: Moment
    started_at: Moment | None
    updated_at: Moment


class RunWithJobs(Run, frozen=True, kw_only=True):
    """A run with its jobs and their attempts."""

    jobs: Annotated[list[Job], says(f"in the order of the plan; at most {MAX_JOBS_SHOWN}, the others page by page")]
    job_count: int


class RunPage(Shown, frozen=True, kw_only=True):
    """Runs, the newest first."""

    runs: list[Run]
    next: Annotated[str | None, says("the cursor of the next page; a page may be short, even empty, before the last")]


class JobPage(Shown, frozen=True, kw_only=True):
    """Jobs in the order of the plan."""

    jobs: list[Job]
    next: Annotated[str | None, says("the cursor of the next page")]


class Attempts(Shown, frozen=True, kw_only=True):
    """The attempts of a job, the first one first."""

    attempts: list[Attempt]


class PlannedJob(Shown, frozen=True, kw_only=True):
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


class Choice(Shown, frozen=True, kw_only=True):
    """Why a job of a pipeline file is part of a run, or is not."""

    name: str
    job: Annotated[str, says("its id in the file; jobs of a matrix share it")]
    is_kept: bool
    code: str
    reason: str
    path: Annotated[str, says("the changed file that decided, if one did")]


class Plan(Shown, frozen=True, kw_only=True):
    """What the run does; it does not change once the run exists."""

    plan_hash: str
    jobs: list[PlannedJob]
    fail_fast: bool
    timeout_seconds: int
    file: Annotated[str, says("the pipeline file that it was made from; empty: it was not made from one")] = ""
    compared_with: Annotated[str, says("the commit that changed paths are taken against; empty: not known")] = ""
    unknown_because: Annotated[str, says("why it is not known what changed, so that everything runs")] = ""
    group: Annotated[str, says("of all runs with the same one, one goes on at a time")] = ""
    choices: Annotated[list[Choice], says("every job of the file, kept or left out, with the reason")] = []
    problems: Annotated[list[str], says("why there is no plan: each with file, line and column")] = []


class Decided(Shown, frozen=True, kw_only=True):
    """What an approval or a rejection came to."""

    run: Run
    jobs: Annotated[list[str], says("the approvals that this request decided, or had decided before")]
    still_waiting: Annotated[list[str], says("those of them that wait for more people")]


class Event(Shown, frozen=True, kw_only=True, rename={"from_": "from"}):
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


class EventPage(Shown, frozen=True, kw_only=True):
    """Events in the order of the log."""

    events: list[Event]
    last: Annotated[int, says("ask for what comes after this")]


class RunArtifact(Shown, frozen=True, kw_only=True):
    """A file that an attempt left behind."""

    job: str
    attempt: int
    path: str
    bytes: int


class Artifacts(Shown, frozen=True, kw_only=True):
    """Files that were left behind."""

    artifacts: list[RunArtifact]


class Outputs(Shown, frozen=True, kw_only=True):
    """What the jobs gave as their results, by name."""

    outputs: dict[str, Any]


class JobCost(Shown, frozen=True, kw_only=True):
    """What one attempt used."""

    job: str
    attempt: int
    cost: dict[str, Any]


class Costs(Shown, frozen=True, kw_only=True):
    """What a run used: of each attempt, and the sum of every number."""

    attempts: list[JobCost]
    total: dict[str, float]


class Because(Shown, frozen=True, kw_only=True):
    """One sentence, with what it rests on."""

    code: str
    text: str
    about: Annotated[str, says("the run, job, attempt or worker that it is about")]
    at: Moment | None
    seq: Annotated[int | None, says("the event that it rests on")]


class Explanation(Shown, frozen=True, kw_only=True):
    """Why something is as it is."""

    id: str
    entity: str
    state: str
    status: str
    summary: Annotated[str, says("the answer in one sentence")]
    waiting: Annotated[list[Because], says("why it does not go on now; empty when it does, or is over")]
    history: Annotated[list[Because], says("what led here, in order of time")]


class Template(Shown, frozen=True, kw_only=True):
    """One version of a template."""

    name: str
    version: int
    description: str
    inputs: dict[str, InputRule]
    plan: PlanInput
    created_at: Moment
    created_by: str


class TemplateLine(Shown, frozen=True, kw_only=True):
    """A template in a list."""

    name: str
    version: Annotated[int, says("the newest")]
    description: str
    created_at: Moment
    created_by: str


class TemplatePage(Shown, frozen=True, kw_only=True):
    """Templates by name, or the versions of one, the oldest first."""

    templates: list[TemplateLine]
    next: str | None


class Worker(Shown, frozen=True, kw_only=True):
    """A runner, as the fleet sees it."""

    id: Annotated[str, says("of this life of it: its name, in a later life `NAME/2` and so on")]
    name: Annotated[str, says("what it is called in all of its lives")]
    state: str
    status: Annotated[str, says("the same in the words of document 003")]
    condition: Annotated[
        str, says("how it is, in one word: ready, busy, drained, quarantined, silent, leaving, starting or gone")
    ]
    rev: int
    labels: list[str]
    slots: int
    tasks: Annotated[list[str], says("the attempts that it holds")]
    hold: Annotated[str, says("why it takes nothing new: `DRAINED` or `QUARANTINED`; empty: it does")]
    hold_reason: str
    held_at: Moment | None
    troubles: Annotated[int, says("jobs in a row that it lost by its infrastructure")]
    shutdown_reason: Annotated[str, says("why it goes, or went; empty also for one that was silent for too long")]
    seen_at: Annotated[Moment, says("when it was heard last, give or take a health check; at least when it came in")]
    created_at: Moment
    updated_at: Moment


class WorkerPage(Shown, frozen=True, kw_only=True):
    """Workers, the newest first."""

    workers: list[Worker]
    next: str | None


class WorkerToken(Shown, frozen=True, kw_only=True):
    """A token with which a runner comes in, once."""

    name: str
    token: Annotated[str, says("a secret; shown once")]
    expires_at: Moment


class Key(Shown, frozen=True, kw_only=True):
    """An API key, without its secret."""

    id: str
    person: str
    scopes: list[Scope]
    roles: list[str]
    description: str
    created_at: Moment
    created_by: str
    expires_at: Moment | None
    revoked_at: Moment | None
    revoked_by: str


class NewKey(Key, frozen=True, kw_only=True):
    """A key that was just made."""

    token: Annotated[str, says("what to send as `Authorization: Bearer …`: a secret; shown once, kept only as a hash")]


class KeyPage(Shown, frozen=True, kw_only=True):
    """API keys."""

    keys: list[Key]
    next: str | None


class Secret(Shown, frozen=True, kw_only=True):
    """A secret, without its value. The narrowest one that fits a job's run is the one that the job gets."""

    name: str
    project: Annotated[str, says("empty: for all jobs of the tenant")]
    branch: Annotated[str, says("the pattern of branches that it is for; empty: for all of the project")]
    version: Annotated[int, says("how often it was set")]
    set_at: Annotated[Moment | None, says("when it was set last")]
    set_by: Annotated[str, says("who did")]


class SecretPage(Shown, frozen=True, kw_only=True):
    """Secrets by name, the widest scope first."""

    secrets: list[Secret]
    next: str | None


class Me(Shown, frozen=True, kw_only=True):
    """Who asks, as the server sees it."""

    tenant: str
    person: str
    scopes: list[Scope]
    roles: list[str]
    key_id: Annotated[str, says("empty for a token that the operator of the server signed")]
    expires_at: Moment | None
    is_operator: bool


class Usage(Shown, frozen=True, kw_only=True):
    """What a tenant uses now."""

    running_jobs: int
    queued_runs: int
    storage_bytes: int


class Tenant(Shown, frozen=True, kw_only=True):
    """A tenant: what it may use and what it uses."""

    name: str
    quotas: Quotas
    usage: Usage
