"""Request and response types of `/api/v1` for workstreams and merge queues."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Final, Literal

from msgspec import Meta, field

from deltaci.api.schemas.inputs import LineText, PageQuery, RequestSchema
from deltaci.api.schemas.records import Failure, ResponseSchema
from deltaci.protocol.messages import Timestamp, doc

MAX_FILE_CHARS: Final = 512 * 1024
WORKSTREAM_STATES: Final = ("planned", "ready", "executing", "validating", "completed", "failed", "cancelled")


class WorkstreamInput(RequestSchema, frozen=True, kw_only=True):
    """The request to start a workstream, from either the text of its file or its content as an object."""

    file: Annotated[
        Annotated[str, Meta(max_length=MAX_FILE_CHARS)] | None,
        doc("the text of the file, YAML; errors refer to its lines; see docs/workstreams.md"),
    ] = None
    spec: Annotated[
        dict[str, Any] | None, doc("the content of the file as an object; errors refer to the path of a value")
    ] = None
    name: Annotated[LineText, doc("the name of the file in error messages")] = ""
    project: Annotated[LineText, doc("overrides the project of the file")] = ""
    base: Annotated[LineText, doc("overrides the base branch of the file")] = ""


class WorkstreamQuery(PageQuery, frozen=True, kw_only=True):
    """The page of the workstreams to return, and filters for it. A workstream must match every filter that is set."""

    state: Annotated[Literal[WORKSTREAM_STATES] | None, doc("only in this state")] = None  # type: ignore[valid-type]
    project: Annotated[LineText | None, doc("only of this project")] = None
    person: Annotated[LineText | None, doc("only started by this person")] = None
    progress: Annotated[bool, doc("include the progress of each workstream")] = False


class MergeQuery(RequestSchema, frozen=True, kw_only=True):
    """A filter for the merge queues to return."""

    project: Annotated[LineText | None, doc("only of this project")] = None


class FailedRule(ResponseSchema, frozen=True, kw_only=True):
    """A validation rule that did not hold."""

    rule: Annotated[str, doc("its name, or its condition as text")]
    actual: str = field(name="found")
    expected: str = field(name="wanted")


class WorkstreamProgress(ResponseSchema, frozen=True, kw_only=True):
    """A summary of a workstream's progress."""

    tasks: Annotated[int, doc("number of tasks")]
    counts: Annotated[dict[str, int], doc("number of tasks in each state; empty: not planned yet")]
    under_way: Annotated[list[str], doc("the first tasks that are running or validating")]
    waiting: Annotated[list[str], doc("the first tasks that wait for a worker or a retry")]
    position: Annotated[int, doc("position in the merge queue, from 1; 0: not in it")]
    doing: Annotated[str, doc("the state of its batch: building, testing, waiting or landing; empty: none")]
    waits_for: Annotated[str, doc("what it waits for in the merge queue, other than earlier entries")]
    failed_task: Annotated[str, doc("a failed task, a critical one if any")]
    failed_rule: Annotated[
        FailedRule | None, doc("the first rule that did not hold, of that task or of the workstream")
    ]
    problem: Annotated[str, doc("why that task failed, or why the workstream was not merged")]


class WorkstreamSummary(ResponseSchema, frozen=True, kw_only=True):
    """A workstream as an entry of a list. Its id is also the id of its run."""

    schema_name: ClassVar[str] = "WorkstreamLine"

    id: str
    name: str
    title: str
    project: str
    base: Annotated[str, doc("the branch that it is merged to; empty: unknown yet")]
    state: Annotated[str, doc("planned, ready, executing, validating, completed, failed or cancelled")]
    run_state: Annotated[str, doc("the state of its run")]
    status: Annotated[str, doc("the coarse status of its run")]
    reason: Annotated[str, doc("why it failed or was cancelled")]
    created_by: str
    created_at: Timestamp
    started_at: Annotated[Timestamp | None, doc("the start of its first task")]
    ended_at: Annotated[Timestamp | None, doc("when its outcome was final, or was reported")]
    seconds: Annotated[float | None, doc("duration since its first task started")]
    progress: Annotated[WorkstreamProgress | None, doc("a summary of its progress; absent unless requested")]
    canceling: Annotated[bool, doc("whether a cancel was requested and is not finished: tasks may still run")] = False


class TaskCommits(ResponseSchema, frozen=True, kw_only=True):
    """The range of commits that a task added to the branch of its workstream, and the tip of the branch after them."""

    schema_name: ClassVar[str] = "Added"

    attempt_id: str
    is_changed: Annotated[bool, doc("whether there are any")]
    start: Annotated[str, doc("the commit that the task began with")]
    head: Annotated[str, doc("the commit that the task ended with")]
    tip: Annotated[str, doc("the tip of the branch after they were integrated")]


class WorkstreamTask(ResponseSchema, frozen=True, kw_only=True):
    """A task of a workstream, which is also a job of its run."""

    name: str
    stage: Annotated[int, doc("from 1; the tasks that it needs are in earlier stages")]
    needs: list[str]
    waits_for: Annotated[list[str], doc("those of them that have not ended")]
    is_critical: bool
    worktree: Annotated[str, doc("`shared` or `own`")]
    state: Annotated[
        str,
        doc("pending, queued, running, validating, retrying, completed, failed or cancelled; empty: not planned yet"),
    ]
    job_state: Annotated[str, doc("the state of its job; empty: none yet")]
    reason: Annotated[str, doc("why it failed or was cancelled")]
    attempts: Annotated[int, doc("how many attempts were claimed")]
    max_attempts: int
    next_run_at: Annotated[Timestamp | None, doc("when it is retried")]
    worker_id: Annotated[str, doc("the worker of the last attempt")]
    started_at: Timestamp | None
    completed_at: Timestamp | None
    seconds: Annotated[float | None, doc("duration")]
    last_error: Failure | None
    failed_rules: Annotated[list[FailedRule], doc("rules that did not hold after its last attempt")]
    worktree_path: Annotated[str, doc("path of the worktree of its last attempt on the runner; empty: deleted")] = (
        field(name="place")
    )
    added: Annotated[TaskCommits | None, doc("the commits that it added to the branch; absent: none yet")]


class WorkstreamMerge(ResponseSchema, frozen=True, kw_only=True):
    """How far the merge of a workstream to its base has come."""

    method: Annotated[str, doc("merge, squash or fast-forward; `none`: not merged, its branch is kept")]
    position: Annotated[int, doc("position in the merge queue, from 1; 0: not in it")]
    ahead: Annotated[int, doc("number of entries ahead of it")]
    doing: Annotated[str, doc("the state of its batch: building, testing, waiting or landing; empty: none")]
    run_id: Annotated[str, doc("the run that tests it now, alone or in a batch; empty: none")]
    waits_for: Annotated[str, doc("what it waits for, other than earlier entries")]
    tested_with: Annotated[list[str], doc("the workstreams that are tested with it")]
    commit: Annotated[str, doc("the commit that merged it to the base; empty: not merged")]
    problem: Annotated[str, doc("why it was not merged")]
    failed_rules: Annotated[list[FailedRule], doc("rules of the workstream that did not hold")]


class Workstream(WorkstreamSummary, frozen=True, kw_only=True):
    """A workstream with its branch, commits, tasks, stages and merge."""

    derived_state: Annotated[str, doc("the state that document 003 derives from the tasks alone")]
    base_commit: Annotated[str, doc("the commit that its branch began with")]
    branch: Annotated[str, doc("its own branch")]
    tip: Annotated[str, doc("the tip of its branch")]
    worktree_path: Annotated[str, doc("path of its worktree on the last runner; empty: none, or deleted")] = field(
        name="place"
    )
    stages: Annotated[list[list[str]], doc("the tasks by stage: the tasks that a task needs are in earlier stages")]
    tasks: Annotated[list[WorkstreamTask], doc("in the order of the file")]
    counts: Annotated[dict[str, int], doc("number of tasks in each state")]
    merge: WorkstreamMerge


class WorkstreamPage(ResponseSchema, frozen=True, kw_only=True):
    """A page of workstreams, newest first."""

    workstreams: list[WorkstreamSummary]
    next: Annotated[str | None, doc("the cursor of the next page; any page may be short, even empty")]


class QueuedMerge(ResponseSchema, frozen=True, kw_only=True):
    """A workstream that waits in a merge queue or is being tested there."""

    id: str
    position: Annotated[int, doc("from 1")]
    title: str
    method: Annotated[str, doc("merge, squash or fast-forward; `none`: only tested")]
    head: Annotated[str, doc("the commit to merge")]
    batch: Annotated[int, doc("the number of its batch; 0: none yet")]
    since: Timestamp
    problem: Annotated[str, doc("what it waits for, other than earlier entries")]
    not_before: Annotated[Timestamp | None, doc("when it is retried")]


class MergeBatch(ResponseSchema, frozen=True, kw_only=True):
    """Workstreams of a merge queue that are tested and merged together.

    The base branch gets exactly the tested tree, or nothing.
    """

    number: int
    method: str
    members: Annotated[list[str], doc("their ids, in merge order")]
    doing: Annotated[str, doc("building, testing, waiting for earlier batches, or landing")]
    run_id: Annotated[str, doc("the run that tests it; empty: none, or none yet")]
    base_commit: Annotated[str, doc("the commit that they are merged onto")]
    commit: Annotated[str, doc("the tested commit, which becomes the tip of the base if the test passes")]
    is_good: Annotated[bool | None, doc("whether its test passed; absent: no result yet")]
    problem: Annotated[str, doc("an error that is not caused by its members and removes none of them")]
    not_before: Annotated[Timestamp | None, doc("when it is retried")]


class MergeSplit(ResponseSchema, frozen=True, kw_only=True):
    """A failed batch that was split into two halves, which are never tested together again."""

    number: Annotated[int, doc("the number of the batch")]
    first: Annotated[list[str], doc("the workstreams of its first half")]
    second: Annotated[list[str], doc("the workstreams of its second half")]
    problem: Annotated[str, doc("why its test failed")]


class MergeQueue(ResponseSchema, frozen=True, kw_only=True):
    """The workstreams that wait to be merged to one branch of one project."""

    project: str
    base: str
    entries: Annotated[list[QueuedMerge], doc("in merge order")]
    batches: Annotated[list[MergeBatch], doc("batches in progress")]
    splits: Annotated[
        list[MergeSplit], doc("splits of failed batches, oldest first, while any of their members is in the queue")
    ]
    problem: Annotated[str, doc("an error that blocks the whole queue")]
    not_before: Annotated[Timestamp | None, doc("when it is retried")]


class MergeQueues(ResponseSchema, frozen=True, kw_only=True):
    """All merge queues that are not empty, sorted by project and branch."""

    queues: list[MergeQueue]
