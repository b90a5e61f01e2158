"""The types of a pipeline file: the only definition of its keys, their values and their meanings.

The reader, the JSON schema for editors and the tables of docs/pipelines.md are generated from these types. Values are
as in the file: expressions stay texts, and `ParseResult.position` returns the position of each value. Besides msgspec's
limits, `extra` of a `Meta` has: `one` (a single item may stand for a list), `expressions` (`${{ … }}` is evaluated),
`condition` (the whole text is an expression), `what` (a description for messages). Types of single values are in
`parse/field_types.py` and `model_types.py`, the rules of `validate` in `rule_model.py`.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Final, Literal

from msgspec import Meta, field

from deltaci.pipeline.model_types import (
    MAX_ITEMS,
    MAX_TEXT,
    Command,
    FileStruct,
    Line,
    Path,
    Patterns,
    Text,
    Title,
    Value,
)
from deltaci.pipeline.parse.field_types import (
    MAX_LINE,
    Cron,
    EnvName,
    Folder,
    JobId,
    Label,
    RefPattern,
    Role,
    SecretName,
    TimeZone,
    Word,
    doc,
    text_format,
)
from deltaci.pipeline.rule_model import NumberRule, Rule
from deltaci.protocol.job_spec import Executor

__all__ = [
    "MAX_ITEMS",
    "MAX_TEXT",
    "Command",
    "FileStruct",
    "Line",
    "NumberRule",
    "Path",
    "Rule",
    "Text",
    "Title",
    "Value",
]

MAX_JOBS: Final = 1000
MAX_STEPS: Final = 1000
MAX_EXPRESSION: Final = 20_000  # characters; a little less than the limit of one expression
MAX_MINUTES: Final = 60 * 24 * 365
MAX_SECONDS: Final = 60 * MAX_MINUTES

EXPRESSION: Final = r"^\s*\$\{\{[\s\S]*\}\}\s*$(?!\n)"


Condition = Annotated[str, text_format("an expression", r"[\s\S]*\S[\s\S]*", max_length=MAX_LINE * 4, condition=True)]
Expression = Annotated[
    str, Meta(pattern=EXPRESSION, max_length=MAX_EXPRESSION, extra={"what": "an expression ${{ … }}"})
]
Scalar = str | int | float | bool
Nested = Annotated[Any, Meta(extra={"what": "a list or an object"})]  # expressions inside it are not evaluated
MatrixValue = Annotated[Scalar, Meta(extra={"expressions": True})] | Nested
Boolean = bool | Expression
Minutes = Annotated[int, Meta(ge=1, le=MAX_MINUTES)] | Annotated[float, Meta(gt=0, le=MAX_MINUTES)] | Expression
Env = Annotated[dict[EnvName, Annotated[Scalar, Meta(extra={"expressions": True})]], Meta(max_length=MAX_ITEMS * 2)]
RefPatterns = Annotated[tuple[RefPattern, ...], Meta(min_length=1, max_length=MAX_ITEMS, extra={"one": True})]
MatrixRow = Annotated[dict[Word, MatrixValue], Meta(min_length=1, max_length=MAX_ITEMS)]

FailureClass = Literal["INFRA", "TOOLING", "FLAKY"]  # Not `USER`: the author's mistake, which is never retried.
ActionInputs = Annotated[dict[Word, Annotated[Scalar, Meta(extra={"expressions": True})]], Meta(max_length=MAX_ITEMS)]
BuiltIn = Literal["checkout", "cache", "upload-artifact", "download-artifact", "setup-python", "setup-node"]
PullRequestType = Literal["opened", "synchronize", "reopened", "closed", "labeled", "unlabeled", "ready_for_review"]


# -- events


class Push(FileStruct, frozen=True, kw_only=True):
    """A push to the repository. Without keys: every push."""

    accepts_null: ClassVar[bool] = True

    branches: Annotated[RefPatterns | None, doc("only pushes to these branches")] = None
    branches_ignore: Annotated[RefPatterns | None, doc("no pushes to these branches")] = field(
        name="branches-ignore", default=None
    )
    tags: Annotated[RefPatterns | None, doc("only pushes of these tags")] = None
    tags_ignore: Annotated[RefPatterns | None, doc("no pushes of these tags")] = field(name="tags-ignore", default=None)
    paths: Annotated[Patterns | None, doc("only pushes that change one of these paths")] = None
    paths_ignore: Annotated[Patterns | None, doc("no pushes that change only these paths")] = field(
        name="paths-ignore", default=None
    )


class PullRequest(FileStruct, frozen=True, kw_only=True):
    """A pull request. Without keys: when it is opened, reopened or updated."""

    accepts_null: ClassVar[bool] = True

    types: Annotated[
        Annotated[tuple[PullRequestType, ...], Meta(min_length=1, max_length=MAX_ITEMS, extra={"one": True})],
        doc("the events of a pull request that start a run"),
    ] = ("opened", "synchronize", "reopened")
    branches: Annotated[RefPatterns | None, doc("only pull requests into these branches")] = None
    branches_ignore: Annotated[RefPatterns | None, doc("no pull requests into these branches")] = field(
        name="branches-ignore", default=None
    )
    paths: Annotated[Patterns | None, doc("only pull requests that change one of these paths")] = None
    paths_ignore: Annotated[Patterns | None, doc("no pull requests that change only these paths")] = field(
        name="paths-ignore", default=None
    )


class Schedule(FileStruct, frozen=True, kw_only=True):
    """A schedule. A text stands for `cron`."""

    shorthand: ClassVar[str] = "cron"

    cron: Annotated[Cron, doc("minute, hour, day, month and weekday")]
    timezone: Annotated[TimeZone, doc("the time zone of the schedule, e.g. `Europe/Berlin`")] = "UTC"
    branches: Annotated[RefPatterns | None, doc("the branches; absent: the default branch")] = None


class Input(FileStruct, frozen=True, kw_only=True):
    """An input of a manual start."""

    accepts_null: ClassVar[bool] = True

    description: Annotated[Line, doc("a description for people")] = ""
    type: Annotated[Literal["string", "number", "boolean", "choice"], doc("the type")] = "string"
    required: Annotated[bool, doc("whether a value is required")] = False
    default: Annotated[Scalar | None, doc("the value if none is given")] = None
    options: Annotated[
        Annotated[tuple[Scalar, ...], Meta(max_length=MAX_ITEMS)], doc("for a `choice`: the possible values")
    ] = ()


class Manual(FileStruct, frozen=True, kw_only=True):
    """A manual start."""

    accepts_null: ClassVar[bool] = True

    inputs: Annotated[Annotated[dict[Word, Input], Meta(max_length=MAX_ITEMS)], doc("the inputs, by name")] = {}


class On(FileStruct, frozen=True, kw_only=True):
    """The events that start a pipeline. A text or a list of events stands for these events without conditions."""

    accepts_key_names: ClassVar[bool] = True

    push: Annotated[Push | None, doc("on pushes")] = None
    pull_request: Annotated[PullRequest | None, doc("on pull requests")] = None
    schedule: Annotated[
        Annotated[tuple[Schedule, ...], Meta(min_length=1, max_length=MAX_ITEMS, extra={"one": True})] | None,
        doc("on a schedule"),
    ] = None
    manual: Annotated[Manual | None, doc("on a manual start")] = None


# -- shared by all jobs


class RunDefaults(FileStruct, frozen=True, kw_only=True):
    """Defaults of steps."""

    shell: Annotated[Value | None, doc("the shell of the steps, e.g. `bash`")] = None
    working_directory: Annotated[Path | None, doc("the folder in which the steps run, relative to the workspace")] = (
        field(name="working-directory", default=None)
    )


class Defaults(FileStruct, frozen=True, kw_only=True):
    """Defaults for values that are absent elsewhere."""

    run: Annotated[RunDefaults, doc("for steps")] = RunDefaults()


class Concurrency(FileStruct, frozen=True, kw_only=True):
    """Runs or jobs of the same group run one at a time. A text stands for the group."""

    shorthand: ClassVar[str] = "group"

    group: Annotated[Value, doc("the name of the group")]
    cancel_in_progress: Annotated[Boolean, doc("whether a new run cancels the one in progress")] = field(
        name="cancel-in-progress", default=False
    )


class Project(FileStruct, frozen=True, kw_only=True):
    """A folder with dependencies, on which other projects may depend. A text stands for the folder."""

    shorthand: ClassVar[str] = "folder"

    folder: Annotated[Folder, doc("the path of the folder, relative to the repository")]
    depends_on: Annotated[
        Annotated[tuple[Folder, ...], Meta(max_length=MAX_ITEMS * 2, extra={"one": True})],
        doc("names of projects, or folders: a change there counts as a change of this project"),
    ] = field(name="depends-on", default=())


# -- parts of a job


class Need(FileStruct, frozen=True, kw_only=True):
    """A job that must succeed first. A text stands for the job."""

    shorthand: ClassVar[str] = "job"

    job: Annotated[JobId, doc("the id of the job")]
    optional: Annotated[bool, doc("whether this job runs even if that one is not part of the run")] = False


class Matrix(FileStruct, frozen=True, kw_only=True):
    """One job for each combination of values. Each key except `include` and `exclude` is an axis."""

    extra_keys: ClassVar[str] = "axes"

    axes: Annotated[
        dict[
            Word,
            Annotated[
                tuple[MatrixValue, ...],
                Meta(min_length=1, max_length=MAX_ITEMS * 2),
            ]
            | Expression,
        ],
        doc("the values of an axis, or an expression that returns them"),
    ] = {}
    include: Annotated[
        Annotated[tuple[MatrixRow, ...], Meta(max_length=MAX_ITEMS * 2)] | Expression,
        doc("values added to combinations, or further combinations"),
    ] = ()
    exclude: Annotated[
        Annotated[tuple[MatrixRow, ...], Meta(max_length=MAX_ITEMS * 2)] | Expression,
        doc("combinations to leave out"),
    ] = ()


class Strategy(FileStruct, frozen=True, kw_only=True):
    """Runs a job several times, with different values."""

    matrix: Annotated[Matrix | Expression, doc("the combinations")]
    fail_fast: Annotated[Boolean, doc("whether the first failure cancels the others of the matrix")] = field(
        name="fail-fast", default=True
    )
    max_parallel: Annotated[
        Annotated[int, Meta(ge=1, le=MAX_JOBS)] | Expression | None,
        doc("the maximum number of jobs at the same time; absent: all"),
    ] = field(name="max-parallel", default=None)


class Step(FileStruct, frozen=True, kw_only=True):
    """A command or a built-in step. A text stands for a step that runs this command."""

    shorthand: ClassVar[str] = "run"
    exactly_one_of: ClassVar[tuple[str, ...]] = ("run", "uses")

    run: Annotated[Command | None, doc("the command, for the shell")] = None
    uses: Annotated[BuiltIn | None, doc("a built-in step, instead of a command")] = None
    with_: Annotated[ActionInputs, doc("the inputs of a built-in step")] = field(name="with", default={})
    name: Annotated[Title, doc("the name to display")] = ""
    id: Annotated[Word | None, doc("the name in expressions: `steps.<id>`")] = None
    if_: Annotated[Condition | None, doc("whether it runs; absent: if all steps before it succeeded")] = field(
        name="if", default=None
    )
    env: Annotated[Env, doc("environment variables, in addition to those of the job")] = {}
    shell: Annotated[Value | None, doc("the shell; absent: that of the job")] = None
    working_directory: Annotated[Path | None, doc("the folder in which it runs; absent: that of the job")] = field(
        name="working-directory", default=None
    )
    timeout_minutes: Annotated[Minutes | None, doc("the timeout; absent: that of the job")] = field(
        name="timeout-minutes", default=None
    )
    continue_on_error: Annotated[Boolean, doc("whether the job continues if the step fails")] = field(
        name="continue-on-error", default=False
    )


class Service(FileStruct, frozen=True, kw_only=True):
    """A container that runs next to the job. A text stands for the image."""

    shorthand: ClassVar[str] = "image"

    image: Annotated[Value, doc("the container image")]
    env: Annotated[Env, doc("environment variables of the container")] = {}
    ports: Annotated[
        Annotated[
            tuple[
                Annotated[int, Meta(ge=1, le=65535)]
                | Annotated[str, text_format("a port, e.g. 5432 or '5432:5432'", "[0-9]{1,5}(:[0-9]{1,5})?")],
                ...,
            ],
            Meta(max_length=MAX_ITEMS),
        ],
        doc("ports that the job uses"),
    ] = ()
    command: Annotated[Command | None, doc("the command; absent: that of the image")] = None
    health: Annotated[
        Command | None, doc("a command in the container that succeeds as soon as the service is ready")
    ] = None


class Retry(FileStruct, frozen=True, kw_only=True):
    """How often and when a job is retried. A number stands for the number of attempts."""

    shorthand: ClassVar[str] = "max_attempts"

    max_attempts: Annotated[Annotated[int, Meta(ge=1, le=100)], doc("the number of attempts, with the first one")]
    on: Annotated[
        Annotated[tuple[FailureClass, ...], Meta(min_length=1, max_length=3, extra={"one": True})],
        doc("the failure classes that are retried"),
    ] = ("INFRA", "TOOLING", "FLAKY")
    delay_seconds: Annotated[
        Annotated[int, Meta(ge=0, le=MAX_SECONDS)],
        doc("the delay before the first retry; each further delay is twice as long"),
    ] = field(name="delay-seconds", default=10)
    max_delay_seconds: Annotated[Annotated[int, Meta(ge=0, le=MAX_SECONDS)], doc("the maximum delay")] = field(
        name="max-delay-seconds", default=600
    )
    jitter: Annotated[
        Annotated[float, Meta(ge=0, le=1)],
        doc("up to this fraction of the delay is added at random, so that retries are spread"),
    ] = 0.0


DEFAULT_RETRY: Final = Retry(max_attempts=2, on=("INFRA", "TOOLING"))


class Artifact(FileStruct, frozen=True, kw_only=True):
    """Files to store. A text stands for the path."""

    shorthand: ClassVar[str] = "path"

    path: Annotated[Path, doc("the files, as a pattern relative to the workspace")]
    type: Annotated[Word, doc("the type of the files; `junit` is read as a test report")] = "file"


class Cache(FileStruct, frozen=True, kw_only=True):
    """Folders to restore from earlier runs."""

    key: Annotated[Value, doc("the key of the entry; `{lock_hash}` in it is the hash of the lock files")]
    paths: Annotated[
        Annotated[tuple[Path, ...], Meta(min_length=1, max_length=MAX_ITEMS, extra={"one": True})], doc("the folders")
    ]
    type: Annotated[Word, doc("the type of the content")] = "deps"
    lock_files: Annotated[
        Annotated[tuple[Path, ...], Meta(min_length=1, max_length=MAX_ITEMS, extra={"one": True})] | None,
        doc("the files whose content `{lock_hash}` depends on"),
    ] = field(name="lock-files", default=None)


class Approval(FileStruct, frozen=True, kw_only=True):
    """The people who must approve before the jobs that need this one continue. Without keys: anybody."""

    accepts_null: ClassVar[bool] = True

    role: Annotated[Role | None, doc("the role that approvers must have; absent: any")] = None
    approvers: Annotated[Annotated[int, Meta(ge=1, le=100)], doc("the number of different people")] = 1
    not_by_starter: Annotated[bool, doc("whether the person who started the run cannot approve")] = False
    expires: Annotated[
        Annotated[str, text_format("a duration, e.g. '30m', '12h' or '7d'", "[1-9][0-9]{0,4}[smhd]")] | None,
        doc("the time until the approval fails; absent: 30 days"),
    ] = None


class Limits(FileStruct, frozen=True, kw_only=True):
    """The limits of a job; absent: unlimited."""

    memory: Annotated[
        Annotated[int, Meta(ge=1, le=2**53)]
        | Annotated[str, text_format("bytes, e.g. '512M' or '4G'", "[1-9][0-9]{0,8}[KMGT]?")]
        | None,
        doc("memory"),
    ] = None
    processes: Annotated[
        Annotated[int, Meta(ge=1, le=10_000_000)] | None, doc("number of processes at the same time")
    ] = None
    cpus: Annotated[Annotated[float, Meta(gt=0, le=100_000)] | None, doc("processors")] = None


class Job(FileStruct, frozen=True, kw_only=True):
    """One job: steps for a runner, or an approval for people."""

    name: Annotated[Title, doc("the name to display; absent: its id")] = ""
    needs: Annotated[
        Annotated[tuple[Need, ...], Meta(max_length=MAX_JOBS, extra={"one": True})],
        doc("the jobs that must succeed first"),
    ] = ()
    if_: Annotated[Condition | None, doc("whether it runs; absent: if all jobs that it needs succeeded")] = field(
        name="if", default=None
    )
    strategy: Annotated[Strategy | None, doc("runs the job several times, with different values")] = None
    runs_on: Annotated[
        Annotated[tuple[Label, ...], Meta(max_length=32, extra={"one": True})], doc("labels that the runner must have")
    ] = field(name="runs-on", default=())
    image: Annotated[Value | None, doc("the container image in which it runs")] = None
    services: Annotated[
        Annotated[dict[Word, Service], Meta(max_length=MAX_ITEMS)], doc("containers that run next to it")
    ] = {}
    env: Annotated[Env, doc("environment variables for every step")] = {}
    secrets: Annotated[
        Annotated[tuple[SecretName, ...], Meta(max_length=MAX_ITEMS)], doc("the names of the secrets that it gets")
    ] = ()
    defaults: Annotated[Defaults, doc("defaults of its steps")] = Defaults()
    checkout: Annotated[
        bool | Annotated[int, Meta(ge=0, le=1_000_000)],
        doc("whether the commit is checked out, or the depth of its history; 0: all of it"),
    ] = True
    steps: Annotated[Annotated[tuple[Step, ...], Meta(min_length=1, max_length=MAX_STEPS)] | None, doc("the steps")] = (
        None
    )
    outputs: Annotated[
        Annotated[dict[Word, Value], Meta(max_length=MAX_ITEMS)], doc("values that jobs that need it can read")
    ] = {}
    output_path: Annotated[Path | None, doc("a JSON file in the workspace with further outputs")] = field(
        name="output-path", default=None
    )
    timeout_minutes: Annotated[Minutes, doc("the timeout of an attempt")] = field(name="timeout-minutes", default=60)
    allow_failure: Annotated[Boolean, doc("whether the run can succeed although the job fails")] = False
    retry: Annotated[
        Retry | None,
        doc(
            "when to retry; absent: once after INFRA or TOOLING, but never with 'concurrency', and not on your machine"
        ),
    ] = None
    artifacts: Annotated[
        Annotated[tuple[Artifact, ...], Meta(max_length=MAX_ITEMS, extra={"one": True})], doc("files to store")
    ] = ()
    caches: Annotated[
        Annotated[tuple[Cache, ...], Meta(max_length=MAX_ITEMS, extra={"one": True})],
        doc("folders to restore from earlier runs"),
    ] = ()
    validate: Annotated[
        Annotated[tuple[Rule, ...], Meta(max_length=MAX_ITEMS, extra={"one": True})],
        doc("rules that must hold after the steps"),
    ] = ()
    approval: Annotated[Approval | None, doc("makes the job an approval by people, instead of work for a runner")] = (
        None
    )
    concurrency: Annotated[Concurrency | None, doc("jobs of the same group run one at a time")] = None
    paths: Annotated[
        Patterns | None,
        doc("the files that it depends on: it runs unless it has succeeded with equal ones; absent: it always runs"),
    ] = None
    project: Annotated[
        Annotated[tuple[Word, ...], Meta(max_length=MAX_ITEMS, extra={"one": True})],
        doc("the projects that it depends on, with their dependencies: like `paths`"),
    ] = ()
    reuse: Annotated[
        bool | None,
        doc("whether it is left out if it has succeeded with equal inputs; absent: only with `paths` or a `project`"),
    ] = None
    priority: Annotated[Annotated[int, Meta(ge=-1000, le=1000)], doc("jobs with a higher priority start first")] = 0
    executor: Annotated[Executor | None, doc("the isolation; absent: the runner's default")] = None
    network: Annotated[bool, doc("whether an isolated job may use the network")] = False
    limits: Annotated[Limits, doc("limits of resources")] = Limits()


class Pipeline(FileStruct, frozen=True, kw_only=True):
    """A pipeline file."""

    name: Annotated[Line, doc("the name to display")] = ""
    on: Annotated[On, doc("the events that start it; absent: every push and pull request, and manual starts")] = On(
        push=Push(), pull_request=PullRequest(), manual=Manual()
    )
    env: Annotated[Env, doc("environment variables for every job")] = {}
    defaults: Annotated[Defaults, doc("defaults of all steps")] = Defaults()
    concurrency: Annotated[Concurrency | None, doc("runs of the same group run one at a time")] = None
    fail_fast: Annotated[bool, doc("whether the first failure of a required job cancels the others")] = field(
        name="fail-fast", default=False
    )
    timeout_minutes: Annotated[Annotated[int, Meta(ge=1, le=MAX_MINUTES)], doc("the timeout of a run")] = field(
        name="timeout-minutes", default=360
    )
    optional_wait_minutes: Annotated[
        Annotated[int, Meta(ge=0, le=MAX_MINUTES)],
        doc("once every required job has ended: how long jobs that may fail wait for a worker or an approval"),
    ] = field(name="optional-wait-minutes", default=10)
    projects: Annotated[
        Annotated[dict[Word, Project], Meta(max_length=MAX_JOBS)], doc("folders with their dependencies, by name")
    ] = {}
    jobs: Annotated[Annotated[dict[JobId, Job], Meta(min_length=1, max_length=MAX_JOBS)], doc("the jobs, by id")]
