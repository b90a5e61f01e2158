"""Workstreams and merge queues, as `/api/v1` takes and answers them."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Final, Literal

from msgspec import Meta

from deltaci.api.schemas.inputs import LineText, PageQuery, RequestSchema
from deltaci.api.schemas.records import Failure, ResponseSchema
from deltaci.protocol.messages import Timestamp, doc

MAX_FILE_CHARS: Final = 512 * 1024
WORKSTREAM_STATES: Final = ("planned", "ready", "executing", "validating", "completed", "failed", "cancelled")


class WorkstreamInput(RequestSchema, frozen=True, kw_only=True):
    """A workstream to be started: the text of its file, or the same as an object. Exactly one of them."""

    file: Annotated[
        Annotated[str, Meta(max_length=MAX_FILE_CHARS)] | None,
        doc("the file as it was written, YAML; problems name its lines; see docs/workstreams.md"),
    ] = None
    spec: Annotated[dict[str, Any] | None, doc("the same as an object; problems name the path to a value")] = None
    name: Annotated[LineText, doc("what the file is called, for problems")] = ""
    project: Annotated[LineText, doc("the project to work on, in place of what the file says")] = ""
    base: Annotated[LineText, doc("the branch to begin at and merge to, in place of what the file says")] = ""


class WorkstreamQuery(PageQuery, frozen=True, kw_only=True):
    """Which workstreams; all that is given must hold."""

    state: Annotated[Literal[WORKSTREAM_STATES] | None, doc("in this state")] = None  # type: ignore[valid-type]
    project: Annotated[LineText | None, doc("of this project")] = None
    person: Annotated[LineText | None, doc("started by this person")] = None
    progress: Annotated[bool, doc("say of each how far it is, too")] = False


class MergeQuery(RequestSchema, frozen=True, kw_only=True):
    """Which merge queues."""

    project: Annotated[LineText | None, doc("of this project; absent: of all")] = None


class FailedRule(ResponseSchema, frozen=True, kw_only=True):
    """A rule that did not hold."""

    rule: Annotated[str, doc("its name, or what it says")]
    found: str
    wanted: str


class WorkstreamProgress(ResponseSchema, frozen=True, kw_only=True):
    """How far a workstream is, in a few words."""

    tasks: Annotated[int, doc("how many it has")]
    counts: Annotated[dict[str, int], doc("how many of them are in each state; empty: it is not planned yet")]
    under_way: Annotated[list[str], doc("the first tasks that a worker has, or whose rules are looked at")]
    waiting: Annotated[list[str], doc("the first tasks that wait for a worker, or to be tried again")]
    position: Annotated[int, doc("in the merge queue, from 1 on; 0: it is not in it")]
    doing: Annotated[str, doc("what is done with its batch: building, testing, waiting or landing; empty: nothing")]
    waits_for: Annotated[str, doc("what keeps it waiting in the merge queue, if that is more than others")]
    failed_task: Annotated[str, doc("the task that failed, a critical one if there is one")]
    failed_rule: Annotated[FailedRule | None, doc("the first rule that did not hold, of that task or of the whole")]
    problem: Annotated[str, doc("why that task failed, or why it was not merged")]


class WorkstreamSummary(ResponseSchema, frozen=True, kw_only=True):
    """A workstream in a list. It is a run, too: all that is said of runs holds under its id."""

    schema_name: ClassVar[str] = "WorkstreamLine"

    id: str
    name: str
    title: str
    project: str
    base: Annotated[str, doc("the branch that it is merged to; empty: not known yet")]
    state: Annotated[str, doc("planned, ready, executing, validating, completed, failed or cancelled")]
    run_state: Annotated[str, doc("the state of its run")]
    status: Annotated[str, doc("the coarse status of its run")]
    reason: Annotated[str, doc("why it failed or was cancelled")]
    created_by: str
    created_at: Timestamp
    started_at: Annotated[Timestamp | None, doc("when its first task did")]
    ended_at: Annotated[Timestamp | None, doc("when its outcome stood, or was reported")]
    seconds: Annotated[float | None, doc("how long it took, or has taken so far, since its first task started")]
    progress: Annotated[WorkstreamProgress | None, doc("how far it is; absent in a list that was not asked for it")]


class TaskCommits(ResponseSchema, frozen=True, kw_only=True):
    """What a task added to the branch."""

    schema_name: ClassVar[str] = "Added"

    attempt_id: str
    is_changed: Annotated[bool, doc("whether it changed anything")]
    start: Annotated[str, doc("the commit that it began with")]
    head: Annotated[str, doc("the commit that it ended with")]
    tip: Annotated[str, doc("the commit of the branch, once it was joined")]


class WorkstreamTask(ResponseSchema, frozen=True, kw_only=True):
    """A task of a workstream; it is a job of its run, too."""

    name: str
    stage: Annotated[int, doc("from 1 on: what it needs is in earlier ones")]
    needs: list[str]
    waits_for: Annotated[list[str], doc("those of them that are not over")]
    is_critical: bool
    worktree: Annotated[str, doc("`shared` or `own`")]
    state: Annotated[
        str,
        doc("pending, queued, running, validating, retrying, completed, failed or cancelled; empty: not planned yet"),
    ]
    job_state: Annotated[str, doc("the state of its job; empty: there is none yet")]
    reason: Annotated[str, doc("why it failed or was cancelled")]
    attempts: Annotated[int, doc("how many were claimed")]
    max_attempts: int
    next_run_at: Annotated[Timestamp | None, doc("when it is tried again")]
    worker_id: Annotated[str, doc("who has it, or had it last")]
    started_at: Timestamp | None
    completed_at: Timestamp | None
    seconds: Annotated[float | None, doc("how long it took, or has taken so far")]
    last_error: Failure | None
    failed_rules: Annotated[list[FailedRule], doc("what did not hold after its last attempt")]
    place: Annotated[str, doc("where the tree is in which it ran last, as its runner said; empty: it is not there")]
    added: Annotated[TaskCommits | None, doc("what it added to the branch; absent: nothing yet")]


class WorkstreamMerge(ResponseSchema, frozen=True, kw_only=True):
    """How far its merge is."""

    method: Annotated[str, doc("merge, squash or fast-forward; `none`: it is not merged, and its branch is kept")]
    position: Annotated[int, doc("in the merge queue, from 1 on; 0: it is not in it")]
    ahead: Annotated[int, doc("how many are before it")]
    doing: Annotated[str, doc("what is done with its batch: building, testing, waiting or landing; empty: nothing")]
    run_id: Annotated[str, doc("the run that tests it now, alone or with others; empty: none")]
    waits_for: Annotated[str, doc("what keeps it waiting, if that is more than others")]
    tested_with: Annotated[list[str], doc("the workstreams that are tested together with it")]
    commit: Annotated[str, doc("the commit by which the base has it; empty: it has not")]
    problem: Annotated[str, doc("why it was not merged")]
    failed_rules: Annotated[list[FailedRule], doc("what did not hold of the whole")]


class Workstream(WorkstreamSummary, frozen=True, kw_only=True):
    """A workstream with its tasks."""

    derived_state: Annotated[str, doc("what follows from its tasks alone, as document 003 derives it")]
    base_commit: Annotated[str, doc("where its branch began")]
    branch: Annotated[str, doc("its own branch")]
    tip: Annotated[str, doc("where its branch is")]
    place: Annotated[str, doc("where its worktree is, as the last runner said; empty: it has none, or not any more")]
    stages: Annotated[list[list[str]], doc("the tasks by levels: what a task needs is in an earlier one")]
    tasks: Annotated[list[WorkstreamTask], doc("in the order of the file")]
    counts: Annotated[dict[str, int], doc("how many tasks are in each state")]
    merge: WorkstreamMerge


class WorkstreamPage(ResponseSchema, frozen=True, kw_only=True):
    """Workstreams, the newest first."""

    workstreams: list[WorkstreamSummary]
    next: Annotated[str | None, doc("the cursor of the next page; a page may be short, even empty, before the last")]


class QueuedMerge(ResponseSchema, frozen=True, kw_only=True):
    """A workstream in a merge queue."""

    id: str
    position: Annotated[int, doc("from 1 on")]
    title: str
    method: Annotated[str, doc("merge, squash or fast-forward; `none`: it is only tested")]
    head: Annotated[str, doc("the commit that is to be merged")]
    batch: Annotated[int, doc("the number of the batch that it is in; 0: none yet")]
    since: Timestamp
    problem: Annotated[str, doc("what keeps it waiting, if that is more than others")]
    not_before: Annotated[Timestamp | None, doc("when it is tried again")]


class MergeBatch(ResponseSchema, frozen=True, kw_only=True):
    """Workstreams that are tested together: the base gets exactly the tree that was tested, or nothing."""

    number: int
    method: str
    members: Annotated[list[str], doc("their ids, in the order in which they are merged")]
    doing: Annotated[str, doc("building, testing, waiting for those before it, or landing")]
    run_id: Annotated[str, doc("the run that tests it; empty: there is none, or not yet")]
    base_commit: Annotated[str, doc("what they are merged onto")]
    commit: Annotated[str, doc("what is tested, and what the base gets if it is good")]
    is_good: Annotated[bool | None, doc("what its test said; absent: nothing yet")]
    problem: Annotated[str, doc("what went wrong around it; that ejects nobody")]
    not_before: Annotated[Timestamp | None, doc("when it is tried again")]


class MergeSplit(ResponseSchema, frozen=True, kw_only=True):
    """A batch that was bad: it was split into two halves, which are never tested together again."""

    number: Annotated[int, doc("the number that the batch had")]
    first: Annotated[list[str], doc("the workstreams of its first half")]
    second: Annotated[list[str], doc("those of its second half")]
    problem: Annotated[str, doc("what its test said")]


class MergeQueue(ResponseSchema, frozen=True, kw_only=True):
    """What waits to be merged to one branch of one project."""

    project: str
    base: str
    entries: Annotated[list[QueuedMerge], doc("in the order in which they are merged")]
    batches: Annotated[list[MergeBatch], doc("what is under way")]
    splits: Annotated[list[MergeSplit], doc("how bad batches were split, the oldest first; until all of them are out")]
    problem: Annotated[str, doc("what keeps all of it waiting")]
    not_before: Annotated[Timestamp | None, doc("when that is tried again")]


class MergeQueues(ResponseSchema, frozen=True, kw_only=True):
    """All merge queues that something waits in, by project and branch."""

    queues: list[MergeQueue]
