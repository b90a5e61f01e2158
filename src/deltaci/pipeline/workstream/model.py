"""The model of a workstream file: its keys, their types and their documentation.

The parser, the JSON schema for editors and the tables in docs/workstreams.md are derived from it, as they are from
`pipeline.model` for pipeline files. Workstream files have no expressions.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Final, Literal

from msgspec import Meta, field

from deltaci.pipeline.model import (
    MAX_ITEMS,
    MAX_MINUTES,
    MAX_STEPS,
    Artifact,
    Env,
    Limits,
    Line,
    Part,
    Path,
    Retry,
    Rule,
    Text,
)
from deltaci.pipeline.parse.field_types import JobId, Label, SecretName, says, text

MAX_TASKS: Final = 1000

WorkstreamName = Annotated[
    str, text("a name of lower-case letters, digits and '-' that begins with a letter", "[a-z][a-z0-9-]*", 60)
]
Branch = Annotated[str, text("the name of a branch", r"[^\x00-\x20\x7f~^:?*\[\\]+", 200)]
ShellCommand = Annotated[str, text("a command for the shell", r"[\s\S]*\S[\s\S]*", longest=100_000)]
Rules = Annotated[tuple[Rule, ...], Meta(max_length=MAX_ITEMS, extra={"one": True})]
Labels = Annotated[tuple[Label, ...], Meta(max_length=32, extra={"one": True})]
MergeMethod = Literal["merge", "squash", "fast-forward"]


class Task(Part, frozen=True, kw_only=True):
    """A task: commands that run in the workstream's worktree. Their changes are committed to its branch."""

    noun: ClassVar[str] = "a task"

    name: Annotated[JobId, says("its name")]
    run: Annotated[
        Annotated[tuple[ShellCommand, ...], Meta(min_length=1, max_length=MAX_STEPS, extra={"one": True})],
        says("a command, or several that run one after the other"),
    ]
    needs: Annotated[
        Annotated[tuple[JobId, ...], Meta(max_length=MAX_TASKS, extra={"one": True})],
        says("tasks that must complete first"),
    ] = ()
    critical: Annotated[bool, says("whether its failure fails the workstream")] = True
    worktree: Annotated[
        Literal["shared", "own"],
        says("`own`: a worktree of its own, beside the others; its changes are integrated when it is done"),
    ] = "shared"
    env: Annotated[Env, says("environment variables for its commands")] = {}
    secrets: Annotated[
        Annotated[tuple[SecretName, ...], Meta(max_length=MAX_ITEMS)], says("names of the secrets that it gets")
    ] = ()
    runs_on: Annotated[Labels, says("labels that its worker must have, in addition to the workstream's")] = field(
        name="runs-on", default=()
    )
    timeout_minutes: Annotated[Annotated[int, Meta(ge=1, le=MAX_MINUTES)], says("how long an attempt may take")] = (
        field(name="timeout-minutes", default=60)
    )
    retry: Annotated[Retry | None, says("when to retry; absent: never")] = None
    executor: Annotated[
        Literal["process", "sandbox", "container"] | None, says("how to isolate it; absent: the worker's default")
    ] = None
    image: Annotated[Line, says("its container image")] = ""
    network: Annotated[bool, says("whether an isolated task may use the network")] = False
    limits: Annotated[Limits, says("resource limits")] = Limits()
    message: Annotated[
        Text, says("message of the commit of changes that it did not commit itself; absent: its name")
    ] = ""
    artifacts: Annotated[
        Annotated[tuple[Artifact, ...], Meta(max_length=MAX_ITEMS, extra={"one": True})],
        says("files to keep in addition to its commits, e.g. reports"),
    ] = ()
    output_path: Annotated[Path | None, says("a JSON file that becomes its output")] = field(
        name="output-path", default=None
    )
    post_execution: Annotated[Rules, says("rules that must hold after it ran")] = ()


class Merge(Part, frozen=True, kw_only=True):
    """How the workstream is merged to its base. A text is short for the method."""

    noun: ClassVar[str] = "'merge'"
    short: ClassVar[str] = "method"

    method: Annotated[
        MergeMethod,
        says("one merge commit, one commit with all changes, or its own commits on top of the base"),
    ] = "merge"
    message: Annotated[Text, says("message of the commit; absent: the title of the workstream")] = ""


class Workstream(Part, frozen=True, kw_only=True):
    """A workstream file."""

    noun: ClassVar[str] = "a workstream"

    workstream: Annotated[WorkstreamName, says("its name")]
    title: Annotated[Line, says("a title for people")] = ""
    project: Annotated[Line, says("the project whose repository it works on; absent: the only project")] = ""
    base: Annotated[
        Branch | None, says("the branch that it starts from and is merged to; absent: the default branch")
    ] = None
    author: Annotated[
        Annotated[
            str, text("a name and an address, e.g. 'Ada <ada@example.org>'", r"[^<>\x00-\x1f]+ <[^<>\x00-\x20]+>")
        ]
        | None,
        says("author of the commits that the server makes for it"),
    ] = None
    env: Annotated[Env, says("environment variables for every task and for the validation before the merge")] = {}
    executor: Annotated[
        Literal["process", "sandbox", "container"] | None,
        says("how to isolate its tasks, unless a task says otherwise; absent: the worker's default"),
    ] = None
    image: Annotated[Line, says("the container image of its tasks, unless a task has another")] = ""
    network: Annotated[bool, says("whether all tasks may use the network, isolated or not")] = False
    runs_on: Annotated[
        Labels, says("labels that the worker of every task and of the validation before the merge must have")
    ] = field(name="runs-on", default=())
    fail_fast: Annotated[bool, says("whether the failure of a critical task ends the others at once")] = field(
        name="fail-fast", default=True
    )
    timeout_minutes: Annotated[
        Annotated[int, Meta(ge=1, le=MAX_MINUTES)], says("how long the whole workstream may take")
    ] = field(name="timeout-minutes", default=24 * 60)
    tasks: Annotated[Annotated[tuple[Task, ...], Meta(min_length=1, max_length=MAX_TASKS)], says("the tasks")]
    validation: Annotated[
        Rules, says("rules that must hold for exactly the tree that would be merged, before it is merged")
    ] = ()
    merge: Annotated[Literal[False] | Merge, says("how it is merged; `false`: not at all, its branch is kept")] = (
        Merge()
    )
