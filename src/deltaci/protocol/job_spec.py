"""The job specification: the part of the protocol that says what a runner executes.

Types here are re-exported by `messages.py` and are as strict as the messages: an unknown field is refused.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, ClassVar, Final, Literal

import msgspec
from msgspec import Meta, field

MAX_SECONDS: Final = 2**31 - 1


def doc(description: str) -> Meta:
    """Return the annotation that describes a field in docs/protocol.md and in the JSON schemas."""
    return Meta(description=description)


# `$` alone would accept a newline at the end, and with it a forged line in a log.
Name = Annotated[str, Meta(min_length=1, max_length=200, pattern=r"^[!-~][ -~]*$(?!\n)")]
Label = Annotated[str, Meta(min_length=1, max_length=200, pattern=r"^[!-+\--~][ -+\--~]*$(?!\n)")]  # No comma.
Id = Annotated[str, Meta(min_length=1, max_length=500)]
Secret = Annotated[str, Meta(min_length=1, max_length=2000)]
LongSecret = Annotated[str, Meta(min_length=1, max_length=16_000)]  # OIDC issuers put many claims into their tokens.
ShortText = Annotated[str, Meta(max_length=2000)]
Text = Annotated[str, Meta(max_length=100_000)]
Uri = Annotated[str, Meta(min_length=1, max_length=2000)]
Seconds = Annotated[int, Meta(ge=0, le=MAX_SECONDS)]
Count = Annotated[int, Meta(ge=0, le=2**53)]
ExitCode = Annotated[int, Meta(ge=-(2**31), le=2**32 - 1)]
SignalNumber = Annotated[int, Meta(ge=0, le=255)]
NonNegative = Annotated[float, Meta(ge=0, le=10**15)]  # Above 2**53 a float could not be checked against a limit.
Percent = Annotated[int, Meta(ge=0, le=100)] | Annotated[float, Meta(ge=0, le=100)]
Timestamp = Annotated[datetime, Meta(tz=True)]
Paths = Annotated[list[ShortText], Meta(max_length=100)]
Labels = Annotated[list[Label], Meta(max_length=32)]
Slots = Annotated[int, Meta(ge=1, le=1000)]


class Strict(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Base of types that refuse unknown fields and do not send fields that have their default."""


BuiltInAction = Literal["checkout", "cache", "upload-artifact", "download-artifact", "setup-python", "setup-node"]


class Step(Strict, frozen=True, kw_only=True):
    """One command with its settings. A plain string is the same as a step with only `run`."""

    run: Annotated[Text, doc("the shell command")] = ""
    name: Annotated[ShortText, doc("display name")] = ""
    env: Annotated[dict[Name, Text], doc("variables in addition to the job's")] = {}
    workdir: Annotated[ShortText, doc("working directory; empty: the job's")] = ""
    timeout_seconds: Annotated[Seconds, doc("time limit; 0: the job's")] = 0
    continue_on_error: Annotated[bool, doc("whether the job continues when this step fails")] = False
    # Extensions of document 001.
    uses: Annotated[
        BuiltInAction | None, doc("extension: an action that the runner performs itself, instead of a command")
    ] = None
    inputs: Annotated[dict[Name, Text], doc("extension: the inputs of a built-in action")] = {}
    id: Annotated[ShortText, doc("extension: the name of the step in expressions")] = ""
    condition: Annotated[
        ShortText, doc("extension: the expression that decides if it runs; empty: if all earlier steps succeeded")
    ] = ""
    shell: Annotated[ShortText, doc("extension: the shell, by its name or as a command with `{0}`; empty: bash")] = ""


class ArtifactRule(Strict, frozen=True, kw_only=True):
    """A pattern of files that the runner uploads as artifacts."""

    path_glob: Annotated[ShortText, doc("the files, relative to the root of the workspace")]
    type: Annotated[Name, doc("their type, e.g. `junit`")] = "file"


class CacheRule(Strict, frozen=True, kw_only=True):
    """Folders that the runner restores from a cache before the steps and saves after a success."""

    key: Annotated[ShortText, doc("the key; `{lock_hash}` in it is replaced by the hash of the lock files")]
    paths: Annotated[Paths, doc("the folders, relative to the root of the workspace; `~` is the workspace")]
    type: Annotated[Name, doc("the type of content, e.g. `deps`")] = "deps"
    lock_files: Annotated[Paths, doc("extension: the files that `{lock_hash}` is computed from")] = []


class Limits(Strict, frozen=True, kw_only=True):
    """Resource limits of a job; 0: no limit."""

    memory_bytes: Annotated[Count, doc("memory")] = 0
    processes: Annotated[Count, doc("concurrent processes")] = 0
    cpus: Annotated[NonNegative, doc("processors")] = 0.0


Executor = Literal["process", "sandbox", "container"]


class Source(Strict, frozen=True, kw_only=True):
    """The commit that a checkout fetches into the workspace."""

    url: Annotated[Uri, doc("the repository")]
    commit: Annotated[Name, doc("the full hash of the commit")]
    ref: Annotated[ShortText, doc("a ref that contains it, e.g. `refs/heads/main`; empty: fetch it by its hash")] = ""
    depth: Annotated[Count, doc("how many commits of history to fetch; 0: all, with tags")] = 1
    credential: Annotated[
        ShortText, doc("the secret that the runner, never the job, reads the repository with; empty: none")
    ] = ""


class Service(Strict, frozen=True, kw_only=True):
    """A container that runs beside the job."""

    name: Annotated[Name, doc("the host name that the job reaches it by")]
    image: Annotated[ShortText, doc("the container image")]
    env: Annotated[dict[Name, Text], doc("variables of the container")] = {}
    ports: Annotated[list[ShortText], Meta(max_length=100), doc("`5432` or `5432:5432`")] = []
    command: Annotated[Text, doc("the command to run; empty: the image's")] = ""
    health: Annotated[
        Text, doc("a command that succeeds inside the container once it is ready; empty: it is ready at once")
    ] = ""


class NumberRule(Strict, frozen=True, kw_only=True):
    """A range in which a number in a report must lie."""

    report: Annotated[ShortText, doc("the file, JSON or XML")]
    at: Annotated[
        ShortText, doc("path of the number: `totals.percent_covered` in JSON, `./@line-rate` or `a/b/@c` in XML")
    ]
    min: Annotated[float | None, doc("lower bound")] = None
    max: Annotated[float | None, doc("upper bound")] = None


class ValidationRule(Strict, frozen=True, kw_only=True):
    """A condition that must hold after the steps, or the job fails. Sets exactly one kind of condition.

    `within` and `mergeable` need a `tree`; the server checks these two.
    """

    schema_name: ClassVar[str] = "Rule"

    name: Annotated[ShortText, doc("display name")] = ""
    run: Annotated[Text, doc("a command that must exit with 0")] = ""
    files: Annotated[Paths, doc("patterns of files that must exist")] = []
    contains: Annotated[
        ShortText, doc("with `files`: a regular expression that the content of each file must match")
    ] = ""
    junit: Annotated[ShortText, doc("a pattern of test reports in which no test may have failed")] = ""
    min_tests: Annotated[Count, doc("with `junit`: the smallest allowed number of tests")] = 0
    number: Annotated[NumberRule | None, doc("the range of a number of a report, e.g. the coverage")] = None
    result: Annotated[
        Text, doc("a command that prints a JSON object with `passed`, and as strings what it `found` and `wanted`")
    ] = ""
    within: Annotated[Paths, doc("path patterns; no other path may differ from the base")] = []
    mergeable: Annotated[bool, doc("the current base must merge without a conflict")] = False

    @property
    def is_checked_by_server(self) -> bool:
        """Whether the server checks this rule, so that the runner skips it."""
        return bool(self.within) or self.mergeable


class RuleResult(Strict, frozen=True, kw_only=True):
    """Whether one validation rule holds, with the actual and the expected value."""

    schema_name: ClassVar[str] = "Verdict"

    rule: Annotated[ShortText, doc("the name of the rule, or its condition as text")]
    is_passed: Annotated[bool, doc("whether the rule holds")]
    actual: Annotated[ShortText, doc("the actual value")] = field(default="", name="found")
    expected: Annotated[ShortText, doc("the expected value")] = field(default="", name="wanted")


class Worktree(Strict, frozen=True, kw_only=True):
    """A git worktree that is kept between jobs, with commits that only the server has.

    Under the lease the runner downloads the first commit from the server, and uploads the commits of the steps.
    """

    schema_name: ClassVar[str] = "Tree"

    stream: Annotated[Name, doc("the owner of the worktree: the run of a workstream, or a merge queue")]
    source: Annotated[Source, doc("where to fetch the base from; its commit is the base")]
    branch: Annotated[ShortText, doc("the branch that is checked out")]
    commit: Annotated[ShortText, doc("the commit to begin with; empty: the current tip of the branch")] = ""
    private_name: Annotated[
        ShortText, doc("the name of a worktree for this job alone; empty: the one that the stream's jobs share")
    ] = field(default="", name="own")
    is_committed: Annotated[bool, doc("whether changes that the steps leave are committed and uploaded")] = field(
        default=True, name="keeps"
    )
    message: Annotated[Text, doc("commit message for changes that the steps did not commit themselves")] = ""
    author: Annotated[ShortText, doc("author of that commit, as `Name <address>`")] = ""


class JobSpec(Strict, frozen=True, kw_only=True):
    """The job itself: what the runner executes. Steps run in order; the first failure ends the job."""

    name: Annotated[ShortText, doc("display name; the server always sends it")] = ""
    workdir: Annotated[
        ShortText, doc("where the steps run, relative to the root of the workspace; the server always sends it")
    ] = "."
    image: Annotated[ShortText, doc("the container image, for a runner that uses one")] = ""
    steps: Annotated[
        list[Text | Step], Meta(max_length=1000), doc("commands, as strings or as steps with settings")
    ] = []
    env: Annotated[dict[Name, Text], doc("variables of every step")] = {}
    artifacts: Annotated[list[ArtifactRule], Meta(max_length=100), doc("which files to upload")] = []
    caches: Annotated[list[CacheRule], Meta(max_length=100), doc("which folders to restore and save")] = []
    # Extensions of document 001.
    executor: Annotated[Executor | None, doc("extension: how to isolate the job; absent: the runner's default")] = None
    network: Annotated[bool, doc("extension: whether an isolated job may use the network")] = False
    limits: Annotated[Limits, doc("extension: resource limits")] = Limits()
    output_path: Annotated[ShortText, doc("extension: the JSON file in the workspace that becomes `output`")] = ""
    secrets: Annotated[list[Name], Meta(max_length=100), doc("extension: the names of required secrets")] = []
    optional_secrets: Annotated[
        list[Name],
        Meta(max_length=100),
        doc("extension: secrets that only expressions read; a missing or denied one is the empty string"),
    ] = []
    cache_scope: Annotated[
        ShortText,
        doc(
            "extension: the cache scope; empty: the scope of trusted runs; otherwise the job reads and writes this "
            "scope, may read but not write the trusted one, and gets no secrets"
        ),
    ] = ""
    source: Annotated[Source | None, doc("extension: what the built-in action `checkout` fetches")] = None
    services: Annotated[list[Service], Meta(max_length=100), doc("extension: containers that run beside the job")] = []
    rules: Annotated[
        list[ValidationRule], Meta(max_length=100), doc("extension: conditions that must hold after the steps")
    ] = []
    needs: Annotated[
        list[Name], Meta(max_length=1000), doc("extension: jobs of the run whose results and artifacts it may read")
    ] = []
    contexts: Annotated[
        dict[Name, Any] | None,
        doc(
            "extension: if present, the runner evaluates `${{ … }}` in steps, outputs and conditions with these "
            "contexts, the results of `needs` and its own contexts; absent: texts are used literally"
        ),
    ] = None
    condition: Annotated[
        ShortText, doc("extension: the expression that decides if the job runs; if not, it succeeds as skipped")
    ] = ""
    outputs: Annotated[
        dict[Name, Text], doc("extension: expressions, evaluated after the steps, that become keys of `output`")
    ] = {}
    tree: Annotated[
        Worktree | None, doc("extension: the worktree in which the steps run, instead of an empty workspace")
    ] = None


class SentJobSpec(JobSpec, frozen=True, kw_only=True):
    """The form in which the server sends a job specification: `name` and `workdir` are not omitted."""

    # A default factory other than `list`, `dict` and `set` keeps msgspec from omitting the default.
    name: ShortText = field(default_factory=lambda: "")
    workdir: ShortText = field(default_factory=lambda: ".")
