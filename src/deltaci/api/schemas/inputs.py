"""Request bodies and queries of `/api/v1`.

Decoding is strict: an unknown field or a value out of range is refused with the path of the value.
The OpenAPI document is generated from these types.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from deltaci.protocol.messages import JobSpec, Labels, ShortText, Timestamp, doc

MAX_BODY_BYTES: Final = 8 * 1024 * 1024  # A plan with 1000 jobs has about 1 MiB.
MAX_PAGE: Final = 200
DEFAULT_PAGE: Final = 50
MAX_EVENTS: Final = 1000
MAX_FOLLOW_SECONDS: Final = 3600
MAX_SECONDS: Final = 10 * 365 * 24 * 3600

RUN_STATES: Final = (
    *("CREATED", "PLANNING", "PLAN_FAILED", "QUEUED", "RUNNING", "WAITING_APPROVAL", "VALIDATING", "SUCCESS"),
    *("FAILED", "TIMEOUT", "CANCEL_REQUESTED", "CANCELED", "REPORTED"),
)
STATUSES: Final = ("PENDING", "RUNNING", "WAITING_APPROVAL", "SUCCEEDED", "FAILED", "CANCELED")
Scope = Literal["read", "run", "approve", "admin", "runner"]
SCOPES: Final[tuple[Scope, ...]] = ("read", "run", "approve", "admin", "runner")

# One path segment, so without a slash; `$` alone would accept a newline at the end.
JobName = Annotated[str, Meta(min_length=1, max_length=100, pattern=r"^[A-Za-z0-9_(][A-Za-z0-9_.,:=@+() \-]*$(?!\n)")]
TemplateName = Annotated[str, Meta(min_length=1, max_length=100, pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.\-]*$(?!\n)")]
Person = Annotated[str, Meta(min_length=1, max_length=100, pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.@+\-]*$(?!\n)")]
LineText = Annotated[str, Meta(max_length=200, pattern=r"^[^\x00-\x1f\x7f]*$(?!\n)")]
Tag = Annotated[str, Meta(min_length=1, max_length=100, pattern=r"^[!-~]+$(?!\n)")]
Comment = Annotated[str, Meta(max_length=2000)]
InputName = Annotated[str, Meta(min_length=1, max_length=100, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$(?!\n)")]
SecretName = Annotated[str, Meta(min_length=1, max_length=100, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$(?!\n)")]
InputText = Annotated[str, Meta(max_length=10_000)]
Duration = Annotated[int, Meta(ge=0, le=MAX_SECONDS)]
Positive = Annotated[int, Meta(ge=1, le=MAX_SECONDS)]
Quantity = Annotated[int, Meta(ge=0, le=2**53)]
RunnerName = Annotated[str, Meta(min_length=1, max_length=100, pattern=r"^[ -.0-~]+$(?!\n)")]


class RequestSchema(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Base class of request bodies and queries. Unknown fields are refused."""


# -- request bodies


class GateInput(RequestSchema, frozen=True, kw_only=True):
    """The requirements of an approval job: who must approve before the jobs that need it start."""

    role: Annotated[LineText, doc("the role that an approver's key must have; empty: any")] = ""
    approvers: Annotated[Annotated[int, Meta(ge=1, le=100)], doc("how many different people")] = 1
    not_by_starter: Annotated[bool, doc("whether the person who started the run may not approve")] = False
    expires_seconds: Annotated[Duration, doc("how long it waits before it fails; 0: 30 days")] = 0


class RetryInput(RequestSchema, frozen=True, kw_only=True):
    """How often a job is retried after a retryable failure, and after which delays."""

    max_attempts: Annotated[Annotated[int, Meta(ge=1, le=100)], doc("total number of attempts")] = 1
    base_delay_seconds: Annotated[Duration, doc("the backoff is 2^attempts times this")] = 10
    max_delay_seconds: Annotated[Duration, doc("upper bound of the backoff")] = 600
    jitter: Annotated[Annotated[float, Meta(ge=0, le=1)], doc("a random fraction up to this is added")] = 0.0
    on: Annotated[
        Annotated[list[Literal["INFRA", "TOOLING", "FLAKY"]], Meta(max_length=3)],
        doc("the failure classes to retry; empty: all of them"),
    ] = []


class JobInput(RequestSchema, frozen=True, kw_only=True):
    """One job of a plan: a task for a worker, or an approval by people."""

    name: Annotated[JobName, doc("its name in the run")]
    kind: Annotated[Literal["task", "approval"], doc("a worker executes a task; people decide an approval")] = "task"
    needs: Annotated[
        Annotated[list[JobName], Meta(max_length=1000)] | None,
        doc("jobs that must succeed first; if no job of the plan sets it, jobs run one by one in the given order"),
    ] = None
    after: Annotated[
        Annotated[list[JobName], Meta(max_length=1000)], doc("jobs that must only have ended first, with any result")
    ] = []
    work: Annotated[JobSpec | None, doc("what a worker executes; see docs/jobs.md")] = None
    runs_on: Annotated[Labels, doc("labels that the worker must have")] = []
    allow_failure: Annotated[bool, doc("whether the run can succeed if this job fails")] = False
    timeout_seconds: Annotated[Positive, doc("time limit of an attempt")] = 3600
    priority: Annotated[Annotated[int, Meta(ge=-1000, le=1000)], doc("a higher one is claimed earlier")] = 0
    group: Annotated[LineText, doc("of all jobs of the tenant with the same group, one runs at a time")] = ""
    retry: Annotated[RetryInput, doc("when to retry")] = RetryInput()
    approval: Annotated[GateInput | None, doc("for an approval: who must approve")] = None


class PlanInput(RequestSchema, frozen=True, kw_only=True):
    """The plan of a run: its jobs and its settings."""

    jobs: Annotated[Annotated[list[JobInput], Meta(min_length=1, max_length=10_000)], doc("its jobs")]
    fail_fast: Annotated[bool, doc("whether the first failure of a required job cancels the others")] = False
    timeout_seconds: Annotated[Positive, doc("time limit of the run")] = 6 * 3600
    optional_wait_seconds: Annotated[
        Duration,
        doc("once every required job has ended: how long jobs that may fail wait for a worker or an approval"),
    ] = 600


class InputRule(RequestSchema, frozen=True, kw_only=True):
    """The declaration of one input of a template."""

    description: Annotated[ShortText, doc("for people")] = ""
    required: Annotated[bool, doc("whether a run must set it")] = False
    default: Annotated[InputText, doc("the value if a run does not set it")] = ""
    choices: Annotated[Annotated[list[InputText], Meta(max_length=100)], doc("the allowed values; empty: any")] = []


class TemplateInput(RequestSchema, frozen=True, kw_only=True):
    """The next version of a template, which is a reusable plan with inputs.

    Tasks get each input as an environment variable: an input `env` as `INPUT_ENV`.
    """

    plan: Annotated[PlanInput, doc("the plan of its runs")]
    description: Annotated[ShortText, doc("for people")] = ""
    inputs: Annotated[Annotated[dict[InputName, InputRule], Meta(max_length=100)], doc("its inputs")] = {}
    expected_version: Annotated[
        Quantity | None, doc("refuse the request unless this is the current version; 0: none exists")
    ] = None


class RunInput(RequestSchema, frozen=True, kw_only=True):
    """The request to start a run from exactly one of a template, a plan, or a pipeline file of a repository."""

    template: Annotated[TemplateName | None, doc("the template's name")] = None
    version: Annotated[Positive | None, doc("the version of the template; absent: the newest")] = None
    inputs: Annotated[
        Annotated[dict[InputName, InputText], Meta(max_length=100)],
        doc("values for the inputs of the template or the file"),
    ] = {}
    plan: Annotated[PlanInput | None, doc("the plan itself")] = None
    project: Annotated[LineText, doc("the project of the run")] = ""
    branch: Annotated[LineText, doc("the branch of the run")] = ""
    repository: Annotated[
        ShortText,
        doc("the repository; without a template and a plan, the project to plan, or its URL"),
    ] = ""
    commit: Annotated[LineText, doc("the commit of the run, or to plan; absent: the tip of the branch")] = ""
    file: Annotated[LineText, doc("the pipeline file to plan; absent: the only one of the repository")] = ""
    title: Annotated[LineText, doc("one line for people")] = ""
    labels: Annotated[Annotated[list[Tag], Meta(max_length=32)], doc("labels to filter runs by")] = []


class CancelInput(RequestSchema, frozen=True, kw_only=True):
    """The request to cancel a run, a job or a workstream."""

    reason: Annotated[Comment, doc("the reason, for people; recorded in the event")] = ""


class DecisionInput(RequestSchema, frozen=True, kw_only=True):
    """The request to approve or to reject one or all waiting approval jobs of a run."""

    job: Annotated[JobName | None, doc("the approval job; absent: every waiting one")] = None
    comment: Annotated[Comment, doc("the reason; recorded in the event")] = ""
    plan_hash: Annotated[LineText, doc("refuse the request unless the run has this plan")] = ""


class RerunInput(RequestSchema, frozen=True, kw_only=True):
    """The request to start a run that repeats all jobs of another run, or only the failed ones."""

    failed_only: Annotated[bool, doc("only failed and cancelled jobs, and the approvals that they depend on")] = False


class KeyInput(RequestSchema, frozen=True, kw_only=True):
    """The request to create an API key."""

    person: Annotated[Person, doc("who uses it; approvals and events record this name")]
    scopes: Annotated[
        Annotated[list[Scope], Meta(min_length=1, max_length=len(SCOPES))],
        doc("its permissions: `run` and `approve` include `read`, `admin` includes all"),
    ]
    roles: Annotated[Annotated[list[Tag], Meta(max_length=32)], doc("the roles of this person, for approvals")] = []
    description: Annotated[ShortText, doc("for people")] = ""
    expires_seconds: Annotated[Duration, doc("how long it is valid; 0: until it is revoked")] = 0


class WorkerTokenInput(RequestSchema, frozen=True, kw_only=True):
    """The request to create a registration token for a runner."""

    name: Annotated[RunnerName, doc("the runner's name")]
    again: Annotated[bool, doc("for a registered runner that has lost its credential")] = False
    expires_seconds: Annotated[Annotated[int, Meta(ge=1, le=30 * 86400)], doc("how long the token is valid")] = 86400


class DrainInput(RequestSchema, frozen=True, kw_only=True):
    """The request to drain a worker, which then gets no new jobs."""

    reason: Annotated[Comment, doc("the reason, for people; recorded in the event")] = ""


class SecretInput(RequestSchema, frozen=True, kw_only=True):
    """The request to set a secret. It is stored encrypted; the API never returns its value."""

    value: Annotated[
        Annotated[str, Meta(min_length=4, max_length=65_536)], doc("the value: at most 65,536 bytes, without NUL")
    ]
    project: Annotated[LineText, doc("restrict it to jobs of this project; empty: all of the tenant")] = ""
    branch: Annotated[LineText, doc("restrict it to matching branches, e.g. `release/*`; needs a project")] = ""


class FailureRulesInput(RequestSchema, frozen=True, kw_only=True):
    """The request to replace the tenant's failure rules."""

    text: Annotated[Annotated[str, Meta(max_length=65_536)], doc("YAML; `rules: []` for none; see docs/failures.md")]
    expected_version: Annotated[
        Quantity | None, doc("refuse the request unless this is the current version; 0: none exists")
    ] = None


class Quotas(RequestSchema, frozen=True, kw_only=True, omit_defaults=False):
    """The limits of a tenant; 0 means no limit."""

    running_jobs: Annotated[Quantity, doc("jobs that workers execute concurrently")] = 0
    queued_runs: Annotated[Quantity, doc("runs that have not started")] = 0
    storage_bytes: Annotated[Quantity, doc("bytes of artifacts and caches")] = 0
    requests_per_second: Annotated[
        Quantity, doc("requests to each server; bursts of ten times as many are allowed")
    ] = 0


# -- queries

Limit = Annotated[int, Meta(ge=1, le=MAX_PAGE)]
Cursor = Annotated[str, Meta(max_length=400)]


class RunQuery(RequestSchema, frozen=True, kw_only=True):
    """Filters for a list of runs. A run must match every filter that is set."""

    state: Annotated[Literal[RUN_STATES] | None, doc("only runs in this state")] = None  # type: ignore[valid-type]
    status: Annotated[Literal[STATUSES] | None, doc("only runs with this status")] = None  # type: ignore[valid-type]
    project: Annotated[LineText | None, doc("only of this project")] = None
    branch: Annotated[LineText | None, doc("only of this branch")] = None
    label: Annotated[Annotated[list[Tag], Meta(max_length=8)], doc("only with this label; may be repeated")] = []
    person: Annotated[LineText | None, doc("only started by this person")] = None
    template: Annotated[TemplateName | None, doc("only of this template")] = None
    since: Annotated[Timestamp | None, doc("only created at this time or later")] = None
    until: Annotated[Timestamp | None, doc("only created before this time")] = None
    limit: Annotated[Limit, doc("page size")] = DEFAULT_PAGE
    cursor: Annotated[Cursor, doc("`next` of the previous page")] = ""


class PageQuery(RequestSchema, frozen=True, kw_only=True):
    """The page of a list to return."""

    limit: Annotated[Limit, doc("page size")] = DEFAULT_PAGE
    cursor: Annotated[Cursor, doc("`next` of the previous page")] = ""


class FlakyQuery(PageQuery, frozen=True, kw_only=True):
    """The page of the flaky jobs to return, and a filter for them."""

    project: Annotated[LineText | None, doc("only of this project")] = None


class WorkerQuery(PageQuery, frozen=True, kw_only=True):
    """The page of the workers to return, and a filter for them."""

    gone: Annotated[bool, doc("workers that are shut down, instead of the others")] = False


class SecretQuery(RequestSchema, frozen=True, kw_only=True):
    """The scope of the secret to delete."""

    project: Annotated[LineText, doc("its project; empty: the whole tenant")] = ""
    branch: Annotated[LineText, doc("its branch pattern, exactly")] = ""


class EventQuery(RequestSchema, frozen=True, kw_only=True):
    """The parameters of a list of events."""

    after: Annotated[Quantity, doc("only events after this seq")] = 0
    limit: Annotated[Annotated[int, Meta(ge=1, le=MAX_EVENTS)], doc("page size, for JSON")] = 100


class LogQuery(RequestSchema, frozen=True, kw_only=True):
    """The parameters of the log of an attempt: the lease, how many seconds to follow it, and whether to download it."""

    lease: Annotated[Quantity, doc("the number of the lease of the attempt; 0: the last one")] = 0
    follow: Annotated[
        Annotated[int, Meta(ge=0, le=MAX_FOLLOW_SECONDS)],
        doc("for how many seconds to send what is appended; ends with the lease"),
    ] = 0
    download: Annotated[bool, doc("whether a browser saves it as a file")] = False


class LogIndexQuery(RequestSchema, frozen=True, kw_only=True):
    """The parameters of the index of a log: the lease, and the first block to return."""

    lease: Annotated[Quantity, doc("the number of the lease of the attempt; 0: the last one")] = 0
    block: Annotated[Annotated[int, Meta(ge=0, le=2**31 - 1)], doc("the first block to return")] = 0
