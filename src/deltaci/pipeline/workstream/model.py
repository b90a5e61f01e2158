"""A workstream file as types: the only place that says which keys there are, what they may be and what they mean.

The reader, the schema for editors and the tables of docs/workstreams.md are made from here, as they are from
`pipeline.model` for pipelines. Nothing is evaluated in these files: texts are as they are written.
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
from deltaci.pipeline.words import JobId, Label, SecretName, says, text

MAX_TASKS: Final = 1000

StreamName = Annotated[
    str, text("a name of small letters, digits and '-', that begins with a letter", "[a-z][a-z0-9-]*", 60)
]
Branch = Annotated[str, text("the name of a branch", r"[^\x00-\x20\x7f~^:?*\[\\]+", 200)]
Program = Annotated[str, text("a command for the shell", r"[\s\S]*\S[\s\S]*", longest=100_000)]
Rules = Annotated[tuple[Rule, ...], Meta(max_length=MAX_ITEMS, extra={"one": True})]
Labels = Annotated[tuple[Label, ...], Meta(max_length=32, extra={"one": True})]
Method = Literal["merge", "squash", "fast-forward"]


class Task(Part, frozen=True, kw_only=True):
    """One task: commands in the workstream's tree. What they change is committed and joins its branch."""

    noun: ClassVar[str] = "a task"

    name: Annotated[JobId, says("what it is called")]
    run: Annotated[
        Annotated[tuple[Program, ...], Meta(min_length=1, max_length=MAX_STEPS, extra={"one": True})],
        says("what it does: a command, or several, one after the other"),
    ]
    needs: Annotated[
        Annotated[tuple[JobId, ...], Meta(max_length=MAX_TASKS, extra={"one": True})],
        says("tasks that must be completed before"),
    ] = ()
    critical: Annotated[bool, says("whether its failure is the workstream's")] = True
    worktree: Annotated[
        Literal["shared", "own"],
        says("`own`: a tree of its own, beside the others; what it changes is joined with theirs when it is done"),
    ] = "shared"
    env: Annotated[Env, says("variables for its commands")] = {}
    secrets: Annotated[
        Annotated[tuple[SecretName, ...], Meta(max_length=MAX_ITEMS)], says("the secrets that it gets, by name")
    ] = ()
    runs_on: Annotated[Labels, says("labels that its worker must have, beside the workstream's")] = field(
        name="runs-on", default=()
    )
    timeout_minutes: Annotated[Annotated[int, Meta(ge=1, le=MAX_MINUTES)], says("how long an attempt may take")] = (
        field(name="timeout-minutes", default=60)
    )
    retry: Annotated[Retry | None, says("when to try again; absent: never")] = None
    executor: Annotated[
        Literal["process", "sandbox", "container"] | None, says("how to isolate it; absent: as the worker does")
    ] = None
    image: Annotated[Line, says("the container image that it runs in")] = ""
    network: Annotated[bool, says("whether an isolated task may use the network")] = False
    limits: Annotated[Limits, says("what it may use at most")] = Limits()
    message: Annotated[Text, says("of the commit of what it did not commit itself; absent: its name")] = ""
    artifacts: Annotated[
        Annotated[tuple[Artifact, ...], Meta(max_length=MAX_ITEMS, extra={"one": True})],
        says("files to keep beside what is committed, e.g. reports"),
    ] = ()
    output_path: Annotated[Path | None, says("a JSON file that becomes its output")] = field(
        name="output-path", default=None
    )
    post_execution: Annotated[Rules, says("what must hold afterwards")] = ()


class Merge(Part, frozen=True, kw_only=True):
    """How the workstream gets to its base. A text stands for the method."""

    noun: ClassVar[str] = "'merge'"
    short: ClassVar[str] = "method"

    method: Annotated[
        Method,
        says("one merge commit, one commit with all changes, or its own commits on top of the base"),
    ] = "merge"
    message: Annotated[Text, says("of the commit; absent: the title of the workstream")] = ""


class Workstream(Part, frozen=True, kw_only=True):
    """A whole file."""

    noun: ClassVar[str] = "a workstream"

    workstream: Annotated[StreamName, says("what it is called")]
    title: Annotated[Line, says("for people: what it is about")] = ""
    project: Annotated[Line, says("the project whose repository it works on; absent: the only one there is")] = ""
    base: Annotated[Branch | None, says("the branch that it begins at and is merged to; absent: the default one")] = (
        None
    )
    author: Annotated[
        Annotated[
            str, text("a name and an address, e.g. 'Ada <ada@example.org>'", r"[^<>\x00-\x1f]+ <[^<>\x00-\x20]+>")
        ]
        | None,
        says("of the commits that are made for it"),
    ] = None
    env: Annotated[Env, says("variables for every task, and for what is tested before the merge")] = {}
    executor: Annotated[
        Literal["process", "sandbox", "container"] | None,
        says("how to isolate them, where a task says nothing else; absent: as the worker does"),
    ] = None
    image: Annotated[Line, says("the container image that they run in, where a task has no other")] = ""
    network: Annotated[bool, says("whether all of them may use the network, isolated or not")] = False
    runs_on: Annotated[
        Labels, says("labels that the worker of every task must have, and of what is tested before the merge")
    ] = field(name="runs-on", default=())
    fail_fast: Annotated[bool, says("whether the failure of a critical task ends the others at once")] = field(
        name="fail-fast", default=True
    )
    timeout_minutes: Annotated[Annotated[int, Meta(ge=1, le=MAX_MINUTES)], says("how long all of it may take")] = field(
        name="timeout-minutes", default=24 * 60
    )
    tasks: Annotated[Annotated[tuple[Task, ...], Meta(min_length=1, max_length=MAX_TASKS)], says("the tasks")]
    validation: Annotated[Rules, says("what must hold of exactly the tree that the base gets, before it gets it")] = ()
    merge: Annotated[Literal[False] | Merge, says("how it is merged; `false`: not at all, its branch is kept")] = (
        Merge()
    )
