"""A pipeline file as types: the only place that says which keys there are, what they may be and what they mean.

The reader, the schema for editors and the tables of docs/pipelines.md are all made from here. Values are as they were
written: expressions stay texts, and `Found.place` of the reader says where each stands. Beside msgspec's own limits,
`extra` of a `Meta` says what a key may be: `one` (one item may stand for a list), `expressions` (`${{ … }}` is
evaluated there), `condition` (all of it is an expression), `what` (what is expected, in words). Names and other words
are in `words.py`, the rules of `validate` in `rule_keys.py`.
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
MAX_EXPRESSION: Final = 20_000  # A little less than one expression may have.
MAX_MINUTES: Final = 60 * 24 * 365
MAX_SECONDS: Final = 60 * MAX_MINUTES

EXPRESSION: Final = r"^\s*\$\{\{[\s\S]*\}\}\s*$(?!\n)"


Condition = Annotated[str, text_format("an expression", r"[\s\S]*\S[\s\S]*", max_length=MAX_LINE * 4, condition=True)]
Expression = Annotated[
    str, Meta(pattern=EXPRESSION, max_length=MAX_EXPRESSION, extra={"what": "an expression ${{ … }}"})
]
Scalar = str | int | float | bool
Nested = Annotated[Any, Meta(extra={"what": "a list or an object"})]  # as it is written: nothing in it is evaluated
MatrixValue = Annotated[Scalar, Meta(extra={"expressions": True})] | Nested
Boolean = bool | Expression
Minutes = Annotated[int, Meta(ge=1, le=MAX_MINUTES)] | Annotated[float, Meta(gt=0, le=MAX_MINUTES)] | Expression
Env = Annotated[dict[EnvName, Annotated[Scalar, Meta(extra={"expressions": True})]], Meta(max_length=MAX_ITEMS * 2)]
RefPatterns = Annotated[tuple[RefPattern, ...], Meta(min_length=1, max_length=MAX_ITEMS, extra={"one": True})]
MatrixRow = Annotated[dict[Word, MatrixValue], Meta(min_length=1, max_length=MAX_ITEMS)]

FailureClass = Literal["INFRA", "TOOLING", "FLAKY"]  # `USER` is the author's own, and never tried again.
ActionInputs = Annotated[dict[Word, Annotated[Scalar, Meta(extra={"expressions": True})]], Meta(max_length=MAX_ITEMS)]
BuiltIn = Literal["checkout", "cache", "upload-artifact", "download-artifact", "setup-python", "setup-node"]
PullRequestType = Literal["opened", "synchronize", "reopened", "closed", "labeled", "unlabeled", "ready_for_review"]


# -- when it runs


class Push(FileStruct, frozen=True, kw_only=True):
    """A push to the repository; without any key: every one."""

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
    """A pull request; without any key: every one that is opened or changed."""

    accepts_null: ClassVar[bool] = True

    types: Annotated[
        Annotated[tuple[PullRequestType, ...], Meta(min_length=1, max_length=MAX_ITEMS, extra={"one": True})],
        doc("what must have happened to it"),
    ] = ("opened", "synchronize", "reopened")
    branches: Annotated[RefPatterns | None, doc("only those into these branches")] = None
    branches_ignore: Annotated[RefPatterns | None, doc("none into these branches")] = field(
        name="branches-ignore", default=None
    )
    paths: Annotated[Patterns | None, doc("only those that change one of these paths")] = None
    paths_ignore: Annotated[Patterns | None, doc("none that change only these paths")] = field(
        name="paths-ignore", default=None
    )


class Schedule(FileStruct, frozen=True, kw_only=True):
    """A time, again and again."""

    shorthand: ClassVar[str] = "cron"

    cron: Annotated[Cron, doc("minute, hour, day, month and weekday")]
    timezone: Annotated[TimeZone, doc("where these are meant, e.g. `Europe/Berlin`")] = "UTC"
    branches: Annotated[RefPatterns | None, doc("on which branches; absent: the default branch")] = None


class Input(FileStruct, frozen=True, kw_only=True):
    """What is asked of whoever starts it by hand."""

    accepts_null: ClassVar[bool] = True

    description: Annotated[Line, doc("for people")] = ""
    type: Annotated[Literal["string", "number", "boolean", "choice"], doc("what it may be")] = "string"
    required: Annotated[bool, doc("whether it must be given")] = False
    default: Annotated[Scalar | None, doc("what it is when it is not given")] = None
    options: Annotated[
        Annotated[tuple[Scalar, ...], Meta(max_length=MAX_ITEMS)], doc("for a `choice`: what it may be")
    ] = ()


class Manual(FileStruct, frozen=True, kw_only=True):
    """Somebody who starts it by hand."""

    accepts_null: ClassVar[bool] = True

    inputs: Annotated[Annotated[dict[Word, Input], Meta(max_length=MAX_ITEMS)], doc("what is asked then")] = {}


class On(FileStruct, frozen=True, kw_only=True):
    """When a pipeline runs. A text or a list of events stands for these events without conditions."""

    accepts_key_names: ClassVar[bool] = True

    push: Annotated[Push | None, doc("on pushes")] = None
    pull_request: Annotated[PullRequest | None, doc("on pull requests")] = None
    schedule: Annotated[
        Annotated[tuple[Schedule, ...], Meta(min_length=1, max_length=MAX_ITEMS, extra={"one": True})] | None,
        doc("at certain times"),
    ] = None
    manual: Annotated[Manual | None, doc("by hand")] = None


# -- what all jobs have


class RunDefaults(FileStruct, frozen=True, kw_only=True):
    """What holds for every step that does not say otherwise."""

    shell: Annotated[Value | None, doc("the shell of the steps, e.g. `bash`")] = None
    working_directory: Annotated[Path | None, doc("where the steps run, from the root of the workspace")] = field(
        name="working-directory", default=None
    )


class Defaults(FileStruct, frozen=True, kw_only=True):
    """What holds where nothing else is said."""

    run: Annotated[RunDefaults, doc("for steps")] = RunDefaults()


class Concurrency(FileStruct, frozen=True, kw_only=True):
    """Of all that name the same group, one at a time. A text stands for the group."""

    shorthand: ClassVar[str] = "group"

    group: Annotated[Value, doc("the group's name")]
    cancel_in_progress: Annotated[Boolean, doc("whether a new one cancels the one that runs")] = field(
        name="cancel-in-progress", default=False
    )


class Project(FileStruct, frozen=True, kw_only=True):
    """A folder that others depend on, or that depends on others. A text stands for the folder."""

    shorthand: ClassVar[str] = "folder"

    folder: Annotated[Folder, doc("where it is, from the root of the repository on")]
    depends_on: Annotated[
        Annotated[tuple[Folder, ...], Meta(max_length=MAX_ITEMS * 2, extra={"one": True})],
        doc("names of projects, or folders: a change there is one here"),
    ] = field(name="depends-on", default=())


# -- what a job has


class Need(FileStruct, frozen=True, kw_only=True):
    """A job that must have succeeded before. A text stands for the job."""

    shorthand: ClassVar[str] = "job"

    job: Annotated[JobId, doc("the job")]
    optional: Annotated[bool, doc("whether to go on without it, should it not be part of the run")] = False


class Matrix(FileStruct, frozen=True, kw_only=True):
    """A job for every combination. Every key but `include` and `exclude` is an axis with its values."""

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
        doc("the values of an axis, or an expression that gives them"),
    ] = {}
    include: Annotated[
        Annotated[tuple[MatrixRow, ...], Meta(max_length=MAX_ITEMS * 2)] | Expression,
        doc("what is added to combinations"),
    ] = ()
    exclude: Annotated[
        Annotated[tuple[MatrixRow, ...], Meta(max_length=MAX_ITEMS * 2)] | Expression,
        doc("combinations that are left out"),
    ] = ()


class Strategy(FileStruct, frozen=True, kw_only=True):
    """One job as many."""

    matrix: Annotated[Matrix | Expression, doc("the combinations")]
    fail_fast: Annotated[Boolean, doc("whether the first failure cancels the others of the matrix")] = field(
        name="fail-fast", default=True
    )
    max_parallel: Annotated[
        Annotated[int, Meta(ge=1, le=MAX_JOBS)] | Expression | None, doc("how many run at the same time; absent: all")
    ] = field(name="max-parallel", default=None)


class Step(FileStruct, frozen=True, kw_only=True):
    """One command, or something that the runner does itself. A text stands for a step that only runs it."""

    shorthand: ClassVar[str] = "run"
    exactly_one_of: ClassVar[tuple[str, ...]] = ("run", "uses")

    run: Annotated[Command | None, doc("the command, for the shell")] = None
    uses: Annotated[BuiltIn | None, doc("something that the runner does itself, instead of a command")] = None
    with_: Annotated[ActionInputs, doc("with `uses`: what it is told")] = field(name="with", default={})
    name: Annotated[Title, doc("what people call it")] = ""
    id: Annotated[Word | None, doc("what expressions call it: `steps.<id>`")] = None
    if_: Annotated[Condition | None, doc("whether it runs; absent: if all before it succeeded")] = field(
        name="if", default=None
    )
    env: Annotated[Env, doc("variables beside the job's")] = {}
    shell: Annotated[Value | None, doc("the shell that runs it; absent: the job's")] = None
    working_directory: Annotated[Path | None, doc("where it runs; absent: where the job does")] = field(
        name="working-directory", default=None
    )
    timeout_minutes: Annotated[Minutes | None, doc("how long it may take; absent: as long as the job")] = field(
        name="timeout-minutes", default=None
    )
    continue_on_error: Annotated[Boolean, doc("whether the job goes on when it fails")] = field(
        name="continue-on-error", default=False
    )


class Service(FileStruct, frozen=True, kw_only=True):
    """A container that runs beside the job. A text stands for the image."""

    shorthand: ClassVar[str] = "image"

    image: Annotated[Value, doc("the container image")]
    env: Annotated[Env, doc("variables for it")] = {}
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
    command: Annotated[Command | None, doc("what it runs instead of the image's own")] = None
    health: Annotated[Command | None, doc("a command in it that succeeds as soon as it is ready")] = None


class Retry(FileStruct, frozen=True, kw_only=True):
    """How often and when a job is tried again. A number stands for the attempts."""

    shorthand: ClassVar[str] = "max_attempts"

    max_attempts: Annotated[Annotated[int, Meta(ge=1, le=100)], doc("attempts in all")]
    on: Annotated[
        Annotated[tuple[FailureClass, ...], Meta(min_length=1, max_length=3, extra={"one": True})],
        doc("which failures are worth another attempt"),
    ] = ("INFRA", "TOOLING", "FLAKY")
    delay_seconds: Annotated[
        Annotated[int, Meta(ge=0, le=MAX_SECONDS)], doc("the first wait; every further one is twice as long")
    ] = field(name="delay-seconds", default=10)
    max_delay_seconds: Annotated[Annotated[int, Meta(ge=0, le=MAX_SECONDS)], doc("and never more than this")] = field(
        name="max-delay-seconds", default=600
    )
    jitter: Annotated[
        Annotated[float, Meta(ge=0, le=1)], doc("up to this fraction is added, so that not all come at once")
    ] = 0.0


class Artifact(FileStruct, frozen=True, kw_only=True):
    """Files to keep. A text stands for the path."""

    shorthand: ClassVar[str] = "path"

    path: Annotated[Path, doc("the files, as a pattern from the root of the workspace on")]
    type: Annotated[Word, doc("what they are; `junit` is read as a test report")] = "file"


class Cache(FileStruct, frozen=True, kw_only=True):
    """Folders to bring along from earlier runs."""

    key: Annotated[Value, doc("its name; `{lock_hash}` in it is the hash of the lock files")]
    paths: Annotated[
        Annotated[tuple[Path, ...], Meta(min_length=1, max_length=MAX_ITEMS, extra={"one": True})], doc("the folders")
    ]
    type: Annotated[Word, doc("what is in it")] = "deps"
    lock_files: Annotated[
        Annotated[tuple[Path, ...], Meta(min_length=1, max_length=MAX_ITEMS, extra={"one": True})] | None,
        doc("the files that `{lock_hash}` is made of"),
    ] = field(name="lock-files", default=None)


class Approval(FileStruct, frozen=True, kw_only=True):
    """Who must say yes before what needs this job goes on. Nothing at all: anybody."""

    accepts_null: ClassVar[bool] = True

    role: Annotated[Role | None, doc("the role that approvers must have; absent: any")] = None
    approvers: Annotated[Annotated[int, Meta(ge=1, le=100)], doc("how many different people")] = 1
    not_by_starter: Annotated[bool, doc("whether who started the run may not be one of them")] = False
    expires: Annotated[
        Annotated[str, text_format("a duration, e.g. '30m', '12h' or '7d'", "[1-9][0-9]{0,4}[smhd]")] | None,
        doc("how long it waits until it fails; absent: for ever"),
    ] = None


class Limits(FileStruct, frozen=True, kw_only=True):
    """What a job may use at most; absent: as much as there is."""

    memory: Annotated[
        Annotated[int, Meta(ge=1, le=2**53)]
        | Annotated[str, text_format("bytes, e.g. '512M' or '4G'", "[1-9][0-9]{0,8}[KMGT]?")]
        | None,
        doc("memory"),
    ] = None
    processes: Annotated[Annotated[int, Meta(ge=1, le=10_000_000)] | None, doc("processes at a time")] = None
    cpus: Annotated[Annotated[float, Meta(gt=0, le=100_000)] | None, doc("processors")] = None


class Job(FileStruct, frozen=True, kw_only=True):
    """One job: steps for a runner, or an approval for people."""

    name: Annotated[Title, doc("what people call it; absent: its id")] = ""
    needs: Annotated[
        Annotated[tuple[Need, ...], Meta(max_length=MAX_JOBS, extra={"one": True})],
        doc("what must have succeeded before"),
    ] = ()
    if_: Annotated[Condition | None, doc("whether it runs; absent: if all that it needs succeeded")] = field(
        name="if", default=None
    )
    strategy: Annotated[Strategy | None, doc("one job as many")] = None
    runs_on: Annotated[
        Annotated[tuple[Label, ...], Meta(max_length=32, extra={"one": True})], doc("labels that its runner must have")
    ] = field(name="runs-on", default=())
    image: Annotated[Value | None, doc("the container image that it runs in")] = None
    services: Annotated[
        Annotated[dict[Word, Service], Meta(max_length=MAX_ITEMS)], doc("containers that run beside it")
    ] = {}
    env: Annotated[Env, doc("variables for every step")] = {}
    secrets: Annotated[
        Annotated[tuple[SecretName, ...], Meta(max_length=MAX_ITEMS)], doc("the secrets that it gets, by name")
    ] = ()
    defaults: Annotated[Defaults, doc("what holds for its steps")] = Defaults()
    checkout: Annotated[
        bool | Annotated[int, Meta(ge=0, le=1_000_000)],
        doc("whether the commit is in its workspace, or how much of its history as well; 0: all of it"),
    ] = True
    steps: Annotated[
        Annotated[tuple[Step, ...], Meta(min_length=1, max_length=MAX_STEPS)] | None, doc("what it does")
    ] = None
    outputs: Annotated[
        Annotated[dict[Word, Value], Meta(max_length=MAX_ITEMS)], doc("what jobs that need it can read")
    ] = {}
    output_path: Annotated[Path | None, doc("a JSON file in the workspace that becomes its output as well")] = field(
        name="output-path", default=None
    )
    timeout_minutes: Annotated[Minutes, doc("how long an attempt may take")] = field(name="timeout-minutes", default=60)
    allow_failure: Annotated[Boolean, doc("whether the run succeeds without it")] = False
    retry: Annotated[Retry | None, doc("when to try again; absent: never")] = None
    artifacts: Annotated[
        Annotated[tuple[Artifact, ...], Meta(max_length=MAX_ITEMS, extra={"one": True})], doc("files to keep")
    ] = ()
    caches: Annotated[
        Annotated[tuple[Cache, ...], Meta(max_length=MAX_ITEMS, extra={"one": True})], doc("folders to bring along")
    ] = ()
    validate: Annotated[
        Annotated[tuple[Rule, ...], Meta(max_length=MAX_ITEMS, extra={"one": True})], doc("what must hold afterwards")
    ] = ()
    approval: Annotated[Approval | None, doc("it is for people, not for a runner: who must say yes")] = None
    concurrency: Annotated[Concurrency | None, doc("one at a time")] = None
    paths: Annotated[Patterns | None, doc("it runs only if one of these paths changed; absent: always")] = None
    project: Annotated[
        Annotated[tuple[Word, ...], Meta(max_length=MAX_ITEMS, extra={"one": True})],
        doc("it runs if one of these projects changed, or what they depend on"),
    ] = ()
    priority: Annotated[Annotated[int, Meta(ge=-1000, le=1000)], doc("the higher, the sooner")] = 0
    executor: Annotated[
        Literal["process", "sandbox", "container"] | None, doc("how to isolate it; absent: as the runner does")
    ] = None
    network: Annotated[bool, doc("whether an isolated job may use the network")] = False
    limits: Annotated[Limits, doc("what it may use at most")] = Limits()


class Pipeline(FileStruct, frozen=True, kw_only=True):
    """A whole file."""

    name: Annotated[Line, doc("what people call it")] = ""
    on: Annotated[On, doc("when it runs; absent: on every push and pull request, and by hand")] = On(
        push=Push(), pull_request=PullRequest(), manual=Manual()
    )
    env: Annotated[Env, doc("variables for every job")] = {}
    defaults: Annotated[Defaults, doc("what holds for all steps")] = Defaults()
    concurrency: Annotated[Concurrency | None, doc("one run at a time")] = None
    fail_fast: Annotated[bool, doc("whether the first failure of a required job ends the others")] = field(
        name="fail-fast", default=False
    )
    timeout_minutes: Annotated[Annotated[int, Meta(ge=1, le=MAX_MINUTES)], doc("how long a run may take")] = field(
        name="timeout-minutes", default=360
    )
    projects: Annotated[
        Annotated[dict[Word, Project], Meta(max_length=MAX_JOBS)], doc("folders, and what each depends on")
    ] = {}
    jobs: Annotated[Annotated[dict[JobId, Job], Meta(min_length=1, max_length=MAX_JOBS)], doc("the jobs, by id")]
