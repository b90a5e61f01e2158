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

from deltaci.pipeline.model_types import MAX_ITEMS, MAX_TEXT, Command, Line, Part, Path, Patterns, Text, Title, Value
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
    says,
    text,
)
from deltaci.pipeline.rule_model import NumberRule, Rule

__all__ = ["MAX_ITEMS", "MAX_TEXT", "Command", "Line", "NumberRule", "Part", "Path", "Rule", "Text", "Title", "Value"]

MAX_JOBS: Final = 1000
MAX_STEPS: Final = 1000
MAX_EXPRESSION: Final = 20_000  # A little less than one expression may have.
MAX_MINUTES: Final = 60 * 24 * 365
MAX_SECONDS: Final = 60 * MAX_MINUTES

EXPRESSION: Final = r"^\s*\$\{\{[\s\S]*\}\}\s*$(?!\n)"


Condition = Annotated[str, text("an expression", r"[\s\S]*\S[\s\S]*", longest=MAX_LINE * 4, condition=True)]
Expression = Annotated[
    str, Meta(pattern=EXPRESSION, max_length=MAX_EXPRESSION, extra={"what": "an expression ${{ … }}"})
]
Scalar = str | int | float | bool
Nested = Annotated[Any, Meta(extra={"what": "a list or an object"})]  # as it is written: nothing in it is evaluated
MatrixValue = Annotated[Scalar, Meta(extra={"expressions": True})] | Nested
Truth = bool | Expression
Minutes = Annotated[int, Meta(ge=1, le=MAX_MINUTES)] | Annotated[float, Meta(gt=0, le=MAX_MINUTES)] | Expression
Env = Annotated[dict[EnvName, Annotated[Scalar, Meta(extra={"expressions": True})]], Meta(max_length=MAX_ITEMS * 2)]
RefPatterns = Annotated[tuple[RefPattern, ...], Meta(min_length=1, max_length=MAX_ITEMS, extra={"one": True})]
Row = Annotated[dict[Word, MatrixValue], Meta(min_length=1, max_length=MAX_ITEMS)]

FailureClass = Literal["INFRA", "TOOLING", "FLAKY"]  # `USER` is the author's own, and never tried again.
With = Annotated[dict[Word, Annotated[Scalar, Meta(extra={"expressions": True})]], Meta(max_length=MAX_ITEMS)]
BuiltIn = Literal["checkout", "cache", "upload-artifact", "download-artifact", "setup-python", "setup-node"]
PullRequestType = Literal["opened", "synchronize", "reopened", "closed", "labeled", "unlabeled", "ready_for_review"]


# -- when it runs


class Push(Part, frozen=True, kw_only=True):
    """A push to the repository; without any key: every one."""

    may_be_empty: ClassVar[bool] = True

    branches: Annotated[RefPatterns | None, says("only pushes to these branches")] = None
    branches_ignore: Annotated[RefPatterns | None, says("no pushes to these branches")] = field(
        name="branches-ignore", default=None
    )
    tags: Annotated[RefPatterns | None, says("only pushes of these tags")] = None
    tags_ignore: Annotated[RefPatterns | None, says("no pushes of these tags")] = field(
        name="tags-ignore", default=None
    )
    paths: Annotated[Patterns | None, says("only pushes that change one of these paths")] = None
    paths_ignore: Annotated[Patterns | None, says("no pushes that change only these paths")] = field(
        name="paths-ignore", default=None
    )


class PullRequest(Part, frozen=True, kw_only=True):
    """A pull request; without any key: every one that is opened or changed."""

    may_be_empty: ClassVar[bool] = True

    types: Annotated[
        Annotated[tuple[PullRequestType, ...], Meta(min_length=1, max_length=MAX_ITEMS, extra={"one": True})],
        says("what must have happened to it"),
    ] = ("opened", "synchronize", "reopened")
    branches: Annotated[RefPatterns | None, says("only those into these branches")] = None
    branches_ignore: Annotated[RefPatterns | None, says("none into these branches")] = field(
        name="branches-ignore", default=None
    )
    paths: Annotated[Patterns | None, says("only those that change one of these paths")] = None
    paths_ignore: Annotated[Patterns | None, says("none that change only these paths")] = field(
        name="paths-ignore", default=None
    )


class Schedule(Part, frozen=True, kw_only=True):
    """A time, again and again."""

    short: ClassVar[str] = "cron"

    cron: Annotated[Cron, says("minute, hour, day, month and weekday")]
    timezone: Annotated[TimeZone, says("where these are meant, e.g. `Europe/Berlin`")] = "UTC"
    branches: Annotated[RefPatterns | None, says("on which branches; absent: the default branch")] = None


class Input(Part, frozen=True, kw_only=True):
    """What is asked of whoever starts it by hand."""

    may_be_empty: ClassVar[bool] = True

    description: Annotated[Line, says("for people")] = ""
    type: Annotated[Literal["string", "number", "boolean", "choice"], says("what it may be")] = "string"
    required: Annotated[bool, says("whether it must be given")] = False
    default: Annotated[Scalar | None, says("what it is when it is not given")] = None
    options: Annotated[
        Annotated[tuple[Scalar, ...], Meta(max_length=MAX_ITEMS)], says("for a `choice`: what it may be")
    ] = ()


class Manual(Part, frozen=True, kw_only=True):
    """Somebody who starts it by hand."""

    may_be_empty: ClassVar[bool] = True

    inputs: Annotated[Annotated[dict[Word, Input], Meta(max_length=MAX_ITEMS)], says("what is asked then")] = {}


class On(Part, frozen=True, kw_only=True):
    """When a pipeline runs. A text or a list of events stands for these events without conditions."""

    by_name: ClassVar[bool] = True

    push: Annotated[Push | None, says("on pushes")] = None
    pull_request: Annotated[PullRequest | None, says("on pull requests")] = None
    schedule: Annotated[
        Annotated[tuple[Schedule, ...], Meta(min_length=1, max_length=MAX_ITEMS, extra={"one": True})] | None,
        says("at certain times"),
    ] = None
    manual: Annotated[Manual | None, says("by hand")] = None


# -- what all jobs have


class RunDefaults(Part, frozen=True, kw_only=True):
    """What holds for every step that does not say otherwise."""

    shell: Annotated[Value | None, says("the shell of the steps, e.g. `bash`")] = None
    working_directory: Annotated[Path | None, says("where the steps run, from the root of the workspace")] = field(
        name="working-directory", default=None
    )


class Defaults(Part, frozen=True, kw_only=True):
    """What holds where nothing else is said."""

    run: Annotated[RunDefaults, says("for steps")] = RunDefaults()


class Concurrency(Part, frozen=True, kw_only=True):
    """Of all that name the same group, one at a time. A text stands for the group."""

    short: ClassVar[str] = "group"

    group: Annotated[Value, says("the group's name")]
    cancel_in_progress: Annotated[Truth, says("whether a new one cancels the one that runs")] = field(
        name="cancel-in-progress", default=False
    )


class Project(Part, frozen=True, kw_only=True):
    """A folder that others depend on, or that depends on others. A text stands for the folder."""

    short: ClassVar[str] = "folder"

    folder: Annotated[Folder, says("where it is, from the root of the repository on")]
    depends_on: Annotated[
        Annotated[tuple[Folder, ...], Meta(max_length=MAX_ITEMS * 2, extra={"one": True})],
        says("names of projects, or folders: a change there is one here"),
    ] = field(name="depends-on", default=())


# -- what a job has


class Need(Part, frozen=True, kw_only=True):
    """A job that must have succeeded before. A text stands for the job."""

    short: ClassVar[str] = "job"

    job: Annotated[JobId, says("the job")]
    optional: Annotated[bool, says("whether to go on without it, should it not be part of the run")] = False


class Matrix(Part, frozen=True, kw_only=True):
    """A job for every combination. Every key but `include` and `exclude` is an axis with its values."""

    rest: ClassVar[str] = "axes"

    axes: Annotated[
        dict[
            Word,
            Annotated[
                tuple[MatrixValue, ...],
                Meta(min_length=1, max_length=MAX_ITEMS * 2),
            ]
            | Expression,
        ],
        says("the values of an axis, or an expression that gives them"),
    ] = {}
    include: Annotated[
        Annotated[tuple[Row, ...], Meta(max_length=MAX_ITEMS * 2)] | Expression, says("what is added to combinations")
    ] = ()
    exclude: Annotated[
        Annotated[tuple[Row, ...], Meta(max_length=MAX_ITEMS * 2)] | Expression, says("combinations that are left out")
    ] = ()


class Strategy(Part, frozen=True, kw_only=True):
    """One job as many."""

    matrix: Annotated[Matrix | Expression, says("the combinations")]
    fail_fast: Annotated[Truth, says("whether the first failure cancels the others of the matrix")] = field(
        name="fail-fast", default=True
    )
    max_parallel: Annotated[
        Annotated[int, Meta(ge=1, le=MAX_JOBS)] | Expression | None, says("how many run at the same time; absent: all")
    ] = field(name="max-parallel", default=None)


class Step(Part, frozen=True, kw_only=True):
    """One command, or something that the runner does itself. A text stands for a step that only runs it."""

    short: ClassVar[str] = "run"
    one_of: ClassVar[tuple[str, ...]] = ("run", "uses")

    run: Annotated[Command | None, says("the command, for the shell")] = None
    uses: Annotated[BuiltIn | None, says("something that the runner does itself, instead of a command")] = None
    with_: Annotated[With, says("with `uses`: what it is told")] = field(name="with", default={})
    name: Annotated[Title, says("what people call it")] = ""
    id: Annotated[Word | None, says("what expressions call it: `steps.<id>`")] = None
    if_: Annotated[Condition | None, says("whether it runs; absent: if all before it succeeded")] = field(
        name="if", default=None
    )
    env: Annotated[Env, says("variables beside the job's")] = {}
    shell: Annotated[Value | None, says("the shell that runs it; absent: the job's")] = None
    working_directory: Annotated[Path | None, says("where it runs; absent: where the job does")] = field(
        name="working-directory", default=None
    )
    timeout_minutes: Annotated[Minutes | None, says("how long it may take; absent: as long as the job")] = field(
        name="timeout-minutes", default=None
    )
    continue_on_error: Annotated[Truth, says("whether the job goes on when it fails")] = field(
        name="continue-on-error", default=False
    )


class Service(Part, frozen=True, kw_only=True):
    """A container that runs beside the job. A text stands for the image."""

    short: ClassVar[str] = "image"

    image: Annotated[Value, says("the container image")]
    env: Annotated[Env, says("variables for it")] = {}
    ports: Annotated[
        Annotated[
            tuple[
                Annotated[int, Meta(ge=1, le=65535)]
                | Annotated[str, text("a port, e.g. 5432 or '5432:5432'", "[0-9]{1,5}(:[0-9]{1,5})?")],
                ...,
            ],
            Meta(max_length=MAX_ITEMS),
        ],
        says("ports that the job uses"),
    ] = ()
    command: Annotated[Command | None, says("what it runs instead of the image's own")] = None
    health: Annotated[Command | None, says("a command in it that succeeds as soon as it is ready")] = None


class Retry(Part, frozen=True, kw_only=True):
    """How often and when a job is tried again. A number stands for the attempts."""

    short: ClassVar[str] = "max_attempts"

    max_attempts: Annotated[Annotated[int, Meta(ge=1, le=100)], says("attempts in all")]
    on: Annotated[
        Annotated[tuple[FailureClass, ...], Meta(min_length=1, max_length=3, extra={"one": True})],
        says("which failures are worth another attempt"),
    ] = ("INFRA", "TOOLING", "FLAKY")
    delay_seconds: Annotated[
        Annotated[int, Meta(ge=0, le=MAX_SECONDS)], says("the first wait; every further one is twice as long")
    ] = field(name="delay-seconds", default=10)
    max_delay_seconds: Annotated[Annotated[int, Meta(ge=0, le=MAX_SECONDS)], says("and never more than this")] = field(
        name="max-delay-seconds", default=600
    )
    jitter: Annotated[
        Annotated[float, Meta(ge=0, le=1)], says("up to this fraction is added, so that not all come at once")
    ] = 0.0


class Artifact(Part, frozen=True, kw_only=True):
    """Files to keep. A text stands for the path."""

    short: ClassVar[str] = "path"

    path: Annotated[Path, says("the files, as a pattern from the root of the workspace on")]
    type: Annotated[Word, says("what they are; `junit` is read as a test report")] = "file"


class Cache(Part, frozen=True, kw_only=True):
    """Folders to bring along from earlier runs."""

    key: Annotated[Value, says("its name; `{lock_hash}` in it is the hash of the lock files")]
    paths: Annotated[
        Annotated[tuple[Path, ...], Meta(min_length=1, max_length=MAX_ITEMS, extra={"one": True})], says("the folders")
    ]
    type: Annotated[Word, says("what is in it")] = "deps"
    lock_files: Annotated[
        Annotated[tuple[Path, ...], Meta(min_length=1, max_length=MAX_ITEMS, extra={"one": True})] | None,
        says("the files that `{lock_hash}` is made of"),
    ] = field(name="lock-files", default=None)


class Approval(Part, frozen=True, kw_only=True):
    """Who must say yes before what needs this job goes on. Nothing at all: anybody."""

    may_be_empty: ClassVar[bool] = True

    role: Annotated[Role | None, says("the role that approvers must have; absent: any")] = None
    approvers: Annotated[Annotated[int, Meta(ge=1, le=100)], says("how many different people")] = 1
    not_by_starter: Annotated[bool, says("whether who started the run may not be one of them")] = False
    expires: Annotated[
        Annotated[str, text("a duration, e.g. '30m', '12h' or '7d'", "[1-9][0-9]{0,4}[smhd]")] | None,
        says("how long it waits until it fails; absent: for ever"),
    ] = None


class Limits(Part, frozen=True, kw_only=True):
    """What a job may use at most; absent: as much as there is."""

    memory: Annotated[
        Annotated[int, Meta(ge=1, le=2**53)]
        | Annotated[str, text("bytes, e.g. '512M' or '4G'", "[1-9][0-9]{0,8}[KMGT]?")]
        | None,
        says("memory"),
    ] = None
    processes: Annotated[Annotated[int, Meta(ge=1, le=10_000_000)] | None, says("processes at a time")] = None
    cpus: Annotated[Annotated[float, Meta(gt=0, le=100_000)] | None, says("processors")] = None


class Job(Part, frozen=True, kw_only=True):
    """One job: steps for a runner, or an approval for people."""

    name: Annotated[Title, says("what people call it; absent: its id")] = ""
    needs: Annotated[
        Annotated[tuple[Need, ...], Meta(max_length=MAX_JOBS, extra={"one": True})],
        says("what must have succeeded before"),
    ] = ()
    if_: Annotated[Condition | None, says("whether it runs; absent: if all that it needs succeeded")] = field(
        name="if", default=None
    )
    strategy: Annotated[Strategy | None, says("one job as many")] = None
    runs_on: Annotated[
        Annotated[tuple[Label, ...], Meta(max_length=32, extra={"one": True})], says("labels that its runner must have")
    ] = field(name="runs-on", default=())
    image: Annotated[Value | None, says("the container image that it runs in")] = None
    services: Annotated[
        Annotated[dict[Word, Service], Meta(max_length=MAX_ITEMS)], says("containers that run beside it")
    ] = {}
    env: Annotated[Env, says("variables for every step")] = {}
    secrets: Annotated[
        Annotated[tuple[SecretName, ...], Meta(max_length=MAX_ITEMS)], says("the secrets that it gets, by name")
    ] = ()
    defaults: Annotated[Defaults, says("what holds for its steps")] = Defaults()
    checkout: Annotated[
        bool | Annotated[int, Meta(ge=0, le=1_000_000)],
        says("whether the commit is in its workspace, or how much of its history as well; 0: all of it"),
    ] = True
    steps: Annotated[
        Annotated[tuple[Step, ...], Meta(min_length=1, max_length=MAX_STEPS)] | None, says("what it does")
    ] = None
    outputs: Annotated[
        Annotated[dict[Word, Value], Meta(max_length=MAX_ITEMS)], says("what jobs that need it can read")
    ] = {}
    output_path: Annotated[Path | None, says("a JSON file in the workspace that becomes its output as well")] = field(
        name="output-path", default=None
    )
    timeout_minutes: Annotated[Minutes, says("how long an attempt may take")] = field(
        name="timeout-minutes", default=60
    )
    allow_failure: Annotated[Truth, says("whether the run succeeds without it")] = False
    retry: Annotated[Retry | None, says("when to try again; absent: never")] = None
    artifacts: Annotated[
        Annotated[tuple[Artifact, ...], Meta(max_length=MAX_ITEMS, extra={"one": True})], says("files to keep")
    ] = ()
    caches: Annotated[
        Annotated[tuple[Cache, ...], Meta(max_length=MAX_ITEMS, extra={"one": True})], says("folders to bring along")
    ] = ()
    validate: Annotated[
        Annotated[tuple[Rule, ...], Meta(max_length=MAX_ITEMS, extra={"one": True})], says("what must hold afterwards")
    ] = ()
    approval: Annotated[Approval | None, says("it is for people, not for a runner: who must say yes")] = None
    concurrency: Annotated[Concurrency | None, says("one at a time")] = None
    paths: Annotated[Patterns | None, says("it runs only if one of these paths changed; absent: always")] = None
    project: Annotated[
        Annotated[tuple[Word, ...], Meta(max_length=MAX_ITEMS, extra={"one": True})],
        says("it runs if one of these projects changed, or what they depend on"),
    ] = ()
    priority: Annotated[Annotated[int, Meta(ge=-1000, le=1000)], says("the higher, the sooner")] = 0
    executor: Annotated[
        Literal["process", "sandbox", "container"] | None, says("how to isolate it; absent: as the runner does")
    ] = None
    network: Annotated[bool, says("whether an isolated job may use the network")] = False
    limits: Annotated[Limits, says("what it may use at most")] = Limits()


class Pipeline(Part, frozen=True, kw_only=True):
    """A whole file."""

    name: Annotated[Line, says("what people call it")] = ""
    on: Annotated[On, says("when it runs; absent: on every push and pull request, and by hand")] = On(
        push=Push(), pull_request=PullRequest(), manual=Manual()
    )
    env: Annotated[Env, says("variables for every job")] = {}
    defaults: Annotated[Defaults, says("what holds for all steps")] = Defaults()
    concurrency: Annotated[Concurrency | None, says("one run at a time")] = None
    fail_fast: Annotated[bool, says("whether the first failure of a required job ends the others")] = field(
        name="fail-fast", default=False
    )
    timeout_minutes: Annotated[Annotated[int, Meta(ge=1, le=MAX_MINUTES)], says("how long a run may take")] = field(
        name="timeout-minutes", default=360
    )
    projects: Annotated[
        Annotated[dict[Word, Project], Meta(max_length=MAX_JOBS)], says("folders, and what each depends on")
    ] = {}
    jobs: Annotated[Annotated[dict[JobId, Job], Meta(min_length=1, max_length=MAX_JOBS)], says("the jobs, by id")]
