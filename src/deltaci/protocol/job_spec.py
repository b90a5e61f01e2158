"""What a runner is asked to do: the specification of a job, and what it is made of.

A part of the protocol: everything that holds for `messages.py` holds here.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, ClassVar, Final, Literal

import msgspec
from msgspec import Meta

MAX_SECONDS: Final = 2**31 - 1


def doc(meaning: str) -> Meta:
    """What a field means: for its line in docs/protocol.md and in the schema."""
    return Meta(description=meaning)


# `$` alone would let a newline through at the end, and with it a forged line into a log.
Name = Annotated[str, Meta(min_length=1, max_length=200, pattern=r"^[!-~][ -~]*$(?!\n)")]
Label = Annotated[str, Meta(min_length=1, max_length=200, pattern=r"^[!-+\--~][ -+\--~]*$(?!\n)")]  # No comma.
Id = Annotated[str, Meta(min_length=1, max_length=500)]
Secret = Annotated[str, Meta(min_length=1, max_length=2000)]
LongSecret = Annotated[str, Meta(min_length=1, max_length=16_000)]  # Issuers put much into their tokens.
ShortText = Annotated[str, Meta(max_length=2000)]
Text = Annotated[str, Meta(max_length=100_000)]
Uri = Annotated[str, Meta(min_length=1, max_length=2000)]
Seconds = Annotated[int, Meta(ge=0, le=MAX_SECONDS)]
Count = Annotated[int, Meta(ge=0, le=2**53)]
ExitCode = Annotated[int, Meta(ge=-(2**31), le=2**32 - 1)]
SignalNumber = Annotated[int, Meta(ge=0, le=255)]
NonNegative = Annotated[float, Meta(ge=0, le=10**15)]  # Beyond 2**53 a float could not tell what is too much.
Percent = Annotated[int, Meta(ge=0, le=100)] | Annotated[float, Meta(ge=0, le=100)]
Timestamp = Annotated[datetime, Meta(tz=True)]
Paths = Annotated[list[ShortText], Meta(max_length=100)]
Labels = Annotated[list[Label], Meta(max_length=32)]
Slots = Annotated[int, Meta(ge=1, le=1000)]


class Strict(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Nothing but the fields that are named."""


BuiltInAction = Literal["checkout", "cache", "upload-artifact", "download-artifact", "setup-python", "setup-node"]


class Step(Strict, frozen=True, kw_only=True):
    """One command, with what it needs. A bare text is the same as a step that only runs it."""

    run: Annotated[Text, doc("the command, for a shell")] = ""
    name: Annotated[ShortText, doc("what people call it")] = ""
    env: Annotated[dict[Name, Text], doc("variables beside the job's")] = {}
    workdir: Annotated[ShortText, doc("where it runs; empty: where the job does")] = ""
    timeout_seconds: Annotated[Seconds, doc("how long it may take; 0: as long as the job")] = 0
    continue_on_error: Annotated[bool, doc("whether the job goes on when it fails")] = False
    # Ours, beside document 001's.
    uses: Annotated[BuiltInAction | None, doc("ours: something that the runner does itself, instead of a command")] = (
        None
    )
    inputs: Annotated[dict[Name, Text], doc("ours: what a built-in step is told")] = {}
    id: Annotated[ShortText, doc("ours: what expressions call it")] = ""
    condition: Annotated[ShortText, doc("ours: whether it runs, an expression; empty: if all before it succeeded")] = ""
    shell: Annotated[ShortText, doc("ours: the shell, by its name or as a command with `{0}`; empty: bash")] = ""


class ArtifactRule(Strict, frozen=True, kw_only=True):
    """Which files to keep."""

    path_glob: Annotated[ShortText, doc("the files, from the root of the workspace on")]
    type: Annotated[Name, doc("what they are, e.g. `junit`")] = "file"


class CacheRule(Strict, frozen=True, kw_only=True):
    """Which folders to bring along from earlier runs."""

    key: Annotated[ShortText, doc("its name; `{lock_hash}` in it is the hash of the lock files")]
    paths: Annotated[Paths, doc("the folders, from the root of the workspace on; `~` is the workspace")]
    type: Annotated[Name, doc("what is in it, e.g. `deps`")] = "deps"
    lock_files: Annotated[Paths, doc("ours: the files that `{lock_hash}` is made of")] = []


class Limits(Strict, frozen=True, kw_only=True):
    """What a job may use at most; 0: as much as there is."""

    memory_bytes: Annotated[Count, doc("memory")] = 0
    processes: Annotated[Count, doc("processes at a time")] = 0
    cpus: Annotated[NonNegative, doc("processors")] = 0.0


Executor = Literal["process", "sandbox", "container"]


class Source(Strict, frozen=True, kw_only=True):
    """What a checkout brings into the workspace."""

    url: Annotated[Uri, doc("the repository")]
    commit: Annotated[Name, doc("the full name of the commit")]
    ref: Annotated[ShortText, doc("where to find it, e.g. `refs/heads/main`; empty: by its name alone")] = ""
    depth: Annotated[Count, doc("how many commits of its history; 0: all, with tags")] = 1
    credential: Annotated[ShortText, doc("the secret with which the runner, never the job, reads it; empty: none")] = ""


class Service(Strict, frozen=True, kw_only=True):
    """A container that runs beside the job."""

    name: Annotated[Name, doc("under which the job reaches it")]
    image: Annotated[ShortText, doc("the container image")]
    env: Annotated[dict[Name, Text], doc("variables for it")] = {}
    ports: Annotated[list[ShortText], Meta(max_length=100), doc("`5432` or `5432:5432`")] = []
    command: Annotated[Text, doc("what it runs; empty: what the image does")] = ""
    health: Annotated[Text, doc("a command in it that succeeds as soon as it is ready; empty: at once")] = ""


class NumberRule(Strict, frozen=True, kw_only=True):
    """A number of a report, and what it may be."""

    report: Annotated[ShortText, doc("the file, JSON or XML")]
    at: Annotated[ShortText, doc("where in it: `totals.percent_covered` in JSON, `./@line-rate` or `a/b/@c` in XML")]
    min: Annotated[float | None, doc("not less than this")] = None
    max: Annotated[float | None, doc("not more than this")] = None


class ValidationRule(Strict, frozen=True, kw_only=True):
    """Something that must hold after the steps, or the job fails. Exactly one of them, beside its name.

    `within` and `mergeable` need a `tree`; the server looks at those itself.
    """

    schema_name: ClassVar[str] = "Rule"

    name: Annotated[ShortText, doc("what people call it")] = ""
    run: Annotated[Text, doc("a command that must exit with 0")] = ""
    files: Annotated[Paths, doc("files that must exist, as patterns")] = []
    contains: Annotated[ShortText, doc("with `files`: what each of them must have in it, a regular expression")] = ""
    junit: Annotated[ShortText, doc("test reports in which no test may have failed, as a pattern")] = ""
    min_tests: Annotated[Count, doc("with `junit`: how many tests there must be at least")] = 0
    number: Annotated[NumberRule | None, doc("a number of a report, e.g. the coverage")] = None
    result: Annotated[
        Text, doc("a command that prints a JSON object: `passed`, and what it `found` and `wanted`, as texts")
    ] = ""
    within: Annotated[Paths, doc("patterns of paths: nothing else may be changed since the base")] = []
    mergeable: Annotated[bool, doc("the base, as it is then, can be merged without a conflict")] = False

    @property
    def is_servers(self) -> bool:
        """Whether the server looks at it, and the runner leaves it out."""
        return bool(self.within) or self.mergeable


class RuleResult(Strict, frozen=True, kw_only=True):
    """Whether one rule holds; if not, what was found and what was wanted."""

    schema_name: ClassVar[str] = "Verdict"

    rule: Annotated[ShortText, doc("its name, or what it says")]
    is_passed: Annotated[bool, doc("whether it holds")]
    found: Annotated[ShortText, doc("what was found")] = ""
    wanted: Annotated[ShortText, doc("what was wanted")] = ""


class Worktree(Strict, frozen=True, kw_only=True):
    """A git worktree that stays between jobs, with commits that only the server has.

    Its runner asks the server under the lease what to begin with, and sends back what the steps left.
    """

    schema_name: ClassVar[str] = "Tree"

    stream: Annotated[Name, doc("whose it is: the run of a workstream, or a line of merges")]
    source: Annotated[Source, doc("where the rest is; its commit is the base, which the repository has")]
    branch: Annotated[ShortText, doc("the branch that is checked out in it")]
    commit: Annotated[ShortText, doc("exactly this commit; empty: the branch, as far as it is by then")] = ""
    own: Annotated[ShortText, doc("not the tree of all, but one of its own, of this name")] = ""
    keeps: Annotated[bool, doc("whether what the steps leave behind is committed and sent back")] = True
    message: Annotated[Text, doc("of the commit of what the steps did not commit themselves")] = ""
    author: Annotated[ShortText, doc("of that commit, as `Name <address>`")] = ""


class JobSpec(Strict, frozen=True, kw_only=True):
    """The job itself. Every step runs in order; the first that fails ends it."""

    name: Annotated[ShortText, doc("what people call it")] = ""
    workdir: Annotated[ShortText, doc("where the steps run, from the root of the workspace")] = "."
    image: Annotated[ShortText, doc("the container image, for a runner that uses one")] = ""
    steps: Annotated[list[Text | Step], Meta(max_length=1000), doc("commands, as texts or with what they need")] = []
    env: Annotated[dict[Name, Text], doc("variables for every step")] = {}
    artifacts: Annotated[list[ArtifactRule], Meta(max_length=100), doc("which files to keep")] = []
    caches: Annotated[list[CacheRule], Meta(max_length=100), doc("which folders to bring along")] = []
    # Ours, beside document 001's.
    executor: Annotated[Executor | None, doc("ours: how to isolate it; absent: as the runner does")] = None
    network: Annotated[bool, doc("ours: whether an isolated job may use the network")] = False
    limits: Annotated[Limits, doc("ours: what it may use at most")] = Limits()
    output_path: Annotated[ShortText, doc("ours: the JSON file in the workspace that becomes `output`")] = ""
    secrets: Annotated[list[Name], Meta(max_length=100), doc("ours: the names of the secrets that it needs")] = []
    optional_secrets: Annotated[
        list[Name],
        Meta(max_length=100),
        doc("ours: secrets that only expressions see; one that is not there, or not for this job, is empty"),
    ] = []
    cache_scope: Annotated[
        ShortText,
        doc(
            "ours: whose caches these are; empty: those of trusted runs; otherwise it reads and writes its own scope, "
            "may read, never write, the trusted ones, and gets no secrets"
        ),
    ] = ""
    source: Annotated[Source | None, doc("ours: what the built-in step `checkout` brings")] = None
    services: Annotated[list[Service], Meta(max_length=100), doc("ours: containers that run beside it")] = []
    rules: Annotated[list[ValidationRule], Meta(max_length=100), doc("ours: what must hold after the steps")] = []
    needs: Annotated[
        list[Name], Meta(max_length=1000), doc("ours: jobs of the run whose results and artifacts it may read")
    ] = []
    contexts: Annotated[
        dict[Name, Any] | None,
        doc(
            "ours: if present, `${{ … }}` in steps, outputs and conditions is evaluated by the runner, over these, the "
            "results of `needs`, and what it knows itself; absent: texts are as they are"
        ),
    ] = None
    condition: Annotated[
        ShortText, doc("ours: whether it does anything at all, an expression; if not, it succeeds as skipped")
    ] = ""
    outputs: Annotated[dict[Name, Text], doc("ours: evaluated after the steps, they become keys of `output`")] = {}
    tree: Annotated[
        Worktree | None, doc("ours: the worktree in which the steps run, instead of an empty workspace")
    ] = None
