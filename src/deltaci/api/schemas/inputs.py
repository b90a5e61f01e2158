"""What programs and people send to `/api/v1`, as types.

All of it is strict: a field that is not known or a value out of its range is refused with the place where it was found.
`docs/openapi.json` is drawn from here.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from deltaci.protocol.messages import JobSpec, Labels, ShortText, Timestamp, doc

MAX_BODY_BYTES: Final = 8 * 1024 * 1024  # Of a plan; a thousand jobs are about one.
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

# One segment of an address, so without a slash; `$` alone would let a newline through at the end.
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
    """Nothing but the fields that are named."""


# -- what a run should do


class GateInput(RequestSchema, frozen=True, kw_only=True):
    """Who must say yes before what depends on this job goes on."""

    role: Annotated[LineText, doc("the role that an approver's key must have; empty: any")] = ""
    approvers: Annotated[Annotated[int, Meta(ge=1, le=100)], doc("how many different people")] = 1
    not_by_starter: Annotated[bool, doc("whether who started the run may not be one of them")] = False
    expires_seconds: Annotated[Duration, doc("how long it waits until it fails; 0: for ever")] = 0


class RetryInput(RequestSchema, frozen=True, kw_only=True):
    """How often and when a job is tried again, should its failure be worth it."""

    max_attempts: Annotated[Annotated[int, Meta(ge=1, le=100)], doc("attempts in all")] = 1
    base_delay_seconds: Annotated[Duration, doc("the wait is 2^attempts times this")] = 10
    max_delay_seconds: Annotated[Duration, doc("and never more than this")] = 600
    jitter: Annotated[Annotated[float, Meta(ge=0, le=1)], doc("up to this fraction is added")] = 0.0
    on: Annotated[
        Annotated[list[Literal["INFRA", "TOOLING", "FLAKY"]], Meta(max_length=3)],
        doc("the classes of failures that are worth it; empty: all of them"),
    ] = []


class JobInput(RequestSchema, frozen=True, kw_only=True):
    """One job of a plan."""

    name: Annotated[JobName, doc("its name in the run")]
    kind: Annotated[Literal["task", "approval"], doc("a task is for a worker, an approval for people")] = "task"
    needs: Annotated[
        Annotated[list[JobName], Meta(max_length=1000)] | None,
        doc("what must succeed before; if no job of the plan has it, they run in the order given, one by one"),
    ] = None
    after: Annotated[
        Annotated[list[JobName], Meta(max_length=1000)], doc("what must only be over before, however it ended")
    ] = []
    work: Annotated[JobSpec | None, doc("what a worker does; see docs/jobs.md")] = None
    runs_on: Annotated[Labels, doc("labels that its worker must have")] = []
    allow_failure: Annotated[bool, doc("whether the run succeeds without it")] = False
    timeout_seconds: Annotated[Positive, doc("how long an attempt may take")] = 3600
    priority: Annotated[Annotated[int, Meta(ge=-1000, le=1000)], doc("the higher, the sooner")] = 0
    group: Annotated[LineText, doc("of all the tenant's jobs with the same one, one is under way at a time")] = ""
    retry: Annotated[RetryInput, doc("when to try again")] = RetryInput()
    approval: Annotated[GateInput | None, doc("for an approval: who must say yes")] = None


class PlanInput(RequestSchema, frozen=True, kw_only=True):
    """What a run does."""

    jobs: Annotated[Annotated[list[JobInput], Meta(min_length=1, max_length=10_000)], doc("its jobs")]
    fail_fast: Annotated[bool, doc("whether the first failure of a required job ends the others")] = False
    timeout_seconds: Annotated[Positive, doc("how long the run may take")] = 6 * 3600


class InputRule(RequestSchema, frozen=True, kw_only=True):
    """What a template asks whoever starts it."""

    description: Annotated[ShortText, doc("for people")] = ""
    required: Annotated[bool, doc("whether it must be given")] = False
    default: Annotated[InputText, doc("what it is when it is not given")] = ""
    choices: Annotated[Annotated[list[InputText], Meta(max_length=100)], doc("what it may be; empty: any")] = []


class TemplateInput(RequestSchema, frozen=True, kw_only=True):
    """A plan to be used again. An input `env` reaches every task as the variable `INPUT_ENV`."""

    plan: Annotated[PlanInput, doc("what its runs do")]
    description: Annotated[ShortText, doc("for people")] = ""
    inputs: Annotated[
        Annotated[dict[InputName, InputRule], Meta(max_length=100)], doc("what it asks whoever starts it")
    ] = {}
    expected_version: Annotated[
        Quantity | None, doc("the version that this one replaces, 0 for none; another one is refused")
    ] = None


class RunInput(RequestSchema, frozen=True, kw_only=True):
    """A run to be started: from a template, from a plan, or from a file of a repository. Exactly one of them."""

    template: Annotated[TemplateName | None, doc("the template's name")] = None
    version: Annotated[Positive | None, doc("which version of it; absent: the newest")] = None
    inputs: Annotated[
        Annotated[dict[InputName, InputText], Meta(max_length=100)], doc("what the template or the file asks")
    ] = {}
    plan: Annotated[PlanInput | None, doc("the plan itself")] = None
    project: Annotated[LineText, doc("what it belongs to")] = ""
    branch: Annotated[LineText, doc("the branch that it is about")] = ""
    repository: Annotated[
        ShortText,
        doc("the repository that it is about; without a template and a plan, the project to plan, or its url"),
    ] = ""
    commit: Annotated[LineText, doc("the commit that it is about, or to plan; absent: the head of the branch")] = ""
    file: Annotated[LineText, doc("of a repository: the pipeline file; absent: the only one that can be meant")] = ""
    title: Annotated[LineText, doc("one line for people")] = ""
    labels: Annotated[Annotated[list[Tag], Meta(max_length=32)], doc("to find it by")] = []


class CancelInput(RequestSchema, frozen=True, kw_only=True):
    """Why it should stop."""

    reason: Annotated[Comment, doc("for people; it becomes part of the event")] = ""


class DecisionInput(RequestSchema, frozen=True, kw_only=True):
    """A person's yes or no."""

    job: Annotated[JobName | None, doc("which approval; absent: every one that waits")] = None
    comment: Annotated[Comment, doc("why; it becomes part of the event")] = ""
    plan_hash: Annotated[LineText, doc("the plan that was looked at; if the run has another one, it is refused")] = ""


class RerunInput(RequestSchema, frozen=True, kw_only=True):
    """How much of a run to do again."""

    failed_only: Annotated[bool, doc("only what failed or was cancelled, and the approvals on the way to it")] = False


class KeyInput(RequestSchema, frozen=True, kw_only=True):
    """An API key to be made."""

    person: Annotated[Person, doc("who uses it; approvals and events carry this name")]
    scopes: Annotated[
        Annotated[list[Scope], Meta(min_length=1, max_length=len(SCOPES))],
        doc("what it may do: `run` and `approve` include `read`, `admin` includes all"),
    ]
    roles: Annotated[Annotated[list[Tag], Meta(max_length=32)], doc("the roles of this person, for approvals")] = []
    description: Annotated[ShortText, doc("for people")] = ""
    expires_seconds: Annotated[Duration, doc("how long it is good; 0: until it is revoked")] = 0


class WorkerTokenInput(RequestSchema, frozen=True, kw_only=True):
    """A runner to be let in."""

    name: Annotated[RunnerName, doc("the runner's name")]
    again: Annotated[bool, doc("for a runner that is registered and has lost its credential")] = False
    expires_seconds: Annotated[Annotated[int, Meta(ge=1, le=30 * 86400)], doc("how long the token is good")] = 86400


class DrainInput(RequestSchema, frozen=True, kw_only=True):
    """Why a worker shall have nothing new."""

    reason: Annotated[Comment, doc("for people; it becomes part of the event")] = ""


class SecretInput(RequestSchema, frozen=True, kw_only=True):
    """A secret to be kept, sealed; nobody is ever shown its value."""

    value: Annotated[
        Annotated[str, Meta(min_length=4, max_length=65_536)], doc("the value: at most 65,536 bytes, without NUL")
    ]
    project: Annotated[LineText, doc("only for jobs of this project; empty: for all of the tenant")] = ""
    branch: Annotated[LineText, doc("only on branches that fit, e.g. `release/*`; needs a project")] = ""


class FailureRulesInput(RequestSchema, frozen=True, kw_only=True):
    """A file of rules by which failures are classed, in place of the one before."""

    text: Annotated[Annotated[str, Meta(max_length=65_536)], doc("YAML; `rules: []` for none; see docs/failures.md")]
    expected_version: Annotated[
        Quantity | None, doc("the version that this one replaces, 0 for none; another one is refused")
    ] = None


class Quotas(RequestSchema, frozen=True, kw_only=True, omit_defaults=False):
    """What a tenant may use at most; 0: as much as it likes."""

    running_jobs: Annotated[Quantity, doc("jobs that workers hold at the same time")] = 0
    queued_runs: Annotated[Quantity, doc("runs that have not begun")] = 0
    storage_bytes: Annotated[Quantity, doc("bytes of artifacts and caches")] = 0
    requests_per_second: Annotated[Quantity, doc("requests to each server; ten seconds' worth may come at once")] = 0


# -- what to look for

Limit = Annotated[int, Meta(ge=1, le=MAX_PAGE)]
Cursor = Annotated[str, Meta(max_length=400)]


class RunQuery(RequestSchema, frozen=True, kw_only=True):
    """Which runs; all that is given must hold."""

    state: Annotated[Literal[RUN_STATES] | None, doc("the exact state")] = None  # type: ignore[valid-type]
    status: Annotated[Literal[STATUSES] | None, doc("the coarse status")] = None  # type: ignore[valid-type]
    project: Annotated[LineText | None, doc("of this project")] = None
    branch: Annotated[LineText | None, doc("of this branch")] = None
    label: Annotated[Annotated[list[Tag], Meta(max_length=8)], doc("with this label; may be given again")] = []
    person: Annotated[LineText | None, doc("started by this person")] = None
    template: Annotated[TemplateName | None, doc("made from this template")] = None
    since: Annotated[Timestamp | None, doc("created then or later")] = None
    until: Annotated[Timestamp | None, doc("created before then")] = None
    limit: Annotated[Limit, doc("how many at most")] = DEFAULT_PAGE
    cursor: Annotated[Cursor, doc("`next` of the page before")] = ""


class PageQuery(RequestSchema, frozen=True, kw_only=True):
    """Which page of a list."""

    limit: Annotated[Limit, doc("how many at most")] = DEFAULT_PAGE
    cursor: Annotated[Cursor, doc("`next` of the page before")] = ""


class FlakyQuery(PageQuery, frozen=True, kw_only=True):
    """Of which project."""

    project: Annotated[LineText | None, doc("of this project; absent: of all")] = None


class WorkerQuery(PageQuery, frozen=True, kw_only=True):
    """Which workers."""

    gone: Annotated[bool, doc("those that were shut down, instead of those that are there")] = False


class SecretQuery(RequestSchema, frozen=True, kw_only=True):
    """Which of the secrets of one name."""

    project: Annotated[LineText, doc("the one of this project; empty: the one of the whole tenant")] = ""
    branch: Annotated[LineText, doc("the one with exactly this pattern of branches")] = ""


class EventQuery(RequestSchema, frozen=True, kw_only=True):
    """Which events."""

    after: Annotated[Quantity, doc("only what comes after this seq")] = 0
    limit: Annotated[Annotated[int, Meta(ge=1, le=MAX_EVENTS)], doc("how many at most, as JSON")] = 100


class LogQuery(RequestSchema, frozen=True, kw_only=True):
    """Which log, and whether to wait for more of it."""

    lease: Annotated[Quantity, doc("of which lease of the attempt; 0: the last one")] = 0
    follow: Annotated[
        Annotated[int, Meta(ge=0, le=MAX_FOLLOW_SECONDS)],
        doc("for so many seconds what is added is sent too, until that lease ends"),
    ] = 0
    download: Annotated[bool, doc("whether a browser is to save it as a file")] = False


class LogIndexQuery(RequestSchema, frozen=True, kw_only=True):
    """Which log, and which part of its index."""

    lease: Annotated[Quantity, doc("of which lease of the attempt; 0: the last one")] = 0
    block: Annotated[Annotated[int, Meta(ge=0, le=2**31 - 1)], doc("the first block to tell of")] = 0
