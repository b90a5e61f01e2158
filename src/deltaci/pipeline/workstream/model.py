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
    FileStruct,
    Limits,
    Line,
    Path,
    Retry,
    Rule,
    Text,
)
from deltaci.pipeline.parse.field_types import JobId, Label, SecretName, doc, text_format
from deltaci.protocol.job_spec import Executor

MAX_TASKS: Final = 1000

WorkstreamName = Annotated[
    str, text_format("a name of lower-case letters, digits and '-' that begins with a letter", "[a-z][a-z0-9-]*", 60)
]
Branch = Annotated[str, text_format("the name of a branch", r"[^\x00-\x20\x7f~^:?*\[\\]+", 200)]
ShellCommand = Annotated[str, text_format("a command for the shell", r"[\s\S]*\S[\s\S]*", max_length=100_000)]
Rules = Annotated[tuple[Rule, ...], Meta(max_length=MAX_ITEMS, extra={"one": True})]
Labels = Annotated[tuple[Label, ...], Meta(max_length=32, extra={"one": True})]
MergeMethod = Literal["merge", "squash", "fast-forward"]


class Task(FileStruct, frozen=True, kw_only=True):
    """A task: commands that run in the workstream's worktree. Their changes are committed to its branch."""

    noun: ClassVar[str] = "a task"

    name: Annotated[JobId, doc("its name")]
    run: Annotated[
        Annotated[tuple[ShellCommand, ...], Meta(min_length=1, max_length=MAX_STEPS, extra={"one": True})],
        doc("a command, or several that run one after the other"),
    ]
    needs: Annotated[
        Annotated[tuple[JobId, ...], Meta(max_length=MAX_TASKS, extra={"one": True})],
        doc("tasks that must complete first"),
    ] = ()
    critical: Annotated[bool, doc("whether its failure fails the workstream")] = True
    worktree: Annotated[
        Literal["shared", "own"],
        doc("`own`: a worktree of its own, beside the others; its changes are integrated when it is done"),
    ] = "shared"
    env: Annotated[Env, doc("environment variables for its commands")] = {}
    secrets: Annotated[
        Annotated[tuple[SecretName, ...], Meta(max_length=MAX_ITEMS)], doc("names of the secrets that it gets")
    ] = ()
    runs_on: Annotated[Labels, doc("labels that its worker must have, in addition to the workstream's")] = field(
        name="runs-on", default=()
    )
    timeout_minutes: Annotated[Annotated[int, Meta(ge=1, le=MAX_MINUTES)], doc("how long an attempt may take")] = field(
        name="timeout-minutes", default=60
    )
    retry: Annotated[Retry | None, doc("when to retry; absent: never")] = None
    executor: Annotated[Executor | None, doc("how to isolate it; absent: the worker's default")] = None
    image: Annotated[Line, doc("its container image")] = ""
    network: Annotated[bool, doc("whether an isolated task may use the network")] = False
    limits: Annotated[Limits, doc("resource limits")] = Limits()
    message: Annotated[
        Text, doc("message of the commit of changes that it did not commit itself; absent: its name")
    ] = ""
    artifacts: Annotated[
        Annotated[tuple[Artifact, ...], Meta(max_length=MAX_ITEMS, extra={"one": True})],
        doc("files to keep in addition to its commits, e.g. reports"),
    ] = ()
    output_path: Annotated[Path | None, doc("a JSON file that becomes its output")] = field(
        name="output-path", default=None
    )
    post_execution: Annotated[Rules, doc("rules that must hold after it ran")] = ()


class Merge(FileStruct, frozen=True, kw_only=True):
    """How the workstream is merged to its base. A text is short for the method."""

    noun: ClassVar[str] = "'merge'"
    shorthand: ClassVar[str] = "method"

    method: Annotated[
        MergeMethod,
        doc("one merge commit, one commit with all changes, or its own commits on top of the base"),
    ] = "merge"
    message: Annotated[Text, doc("message of the commit; absent: the title of the workstream")] = ""


class Workstream(FileStruct, frozen=True, kw_only=True):
    """A workstream file."""

    noun: ClassVar[str] = "a workstream"

    workstream: Annotated[WorkstreamName, doc("its name")]
    title: Annotated[Line, doc("a title for people")] = ""
    project: Annotated[Line, doc("the project whose repository it works on; absent: the only project")] = ""
    base: Annotated[
        Branch | None, doc("the branch that it starts from and is merged to; absent: the default branch")
    ] = None
    author: Annotated[
        Annotated[
            str,
            text_format("a name and an address, e.g. 'Ada <ada@example.org>'", r"[^<>\x00-\x1f]+ <[^<>\x00-\x20]+>"),
        ]
        | None,
        doc("author of the commits that the server makes for it"),
    ] = None
    env: Annotated[Env, doc("environment variables for every task and for the validation before the merge")] = {}
    executor: Annotated[
        Executor | None,
        doc("how to isolate its tasks, unless a task says otherwise; absent: the worker's default"),
    ] = None
    image: Annotated[Line, doc("the container image of its tasks, unless a task has another")] = ""
    network: Annotated[bool, doc("whether all tasks may use the network, isolated or not")] = False
    runs_on: Annotated[
        Labels, doc("labels that the worker of every task and of the validation before the merge must have")
    ] = field(name="runs-on", default=())
    fail_fast: Annotated[bool, doc("whether the failure of a critical task ends the others at once")] = field(
        name="fail-fast", default=True
    )
    timeout_minutes: Annotated[
        Annotated[int, Meta(ge=1, le=MAX_MINUTES)], doc("how long the whole workstream may take")
    ] = field(name="timeout-minutes", default=24 * 60)
    optional_wait_minutes: Annotated[
        Annotated[int, Meta(ge=0, le=MAX_MINUTES)],
        doc("once every critical task has ended: how long the others wait for a worker"),
    ] = field(name="optional-wait-minutes", default=10)
    tasks: Annotated[Annotated[tuple[Task, ...], Meta(min_length=1, max_length=MAX_TASKS)], doc("the tasks")]
    validation: Annotated[
        Rules, doc("rules that must hold for exactly the tree that would be merged, before it is merged")
    ] = ()
    merge: Annotated[Literal[False] | Merge, doc("how it is merged; `false`: not at all, its branch is kept")] = Merge()
