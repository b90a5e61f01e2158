"""The messages between a runner and the server, exactly as document 001 spells them. Version 1.

The version is part of the address under which they are exchanged, not of the messages. Everything is strict: a
field that is not known, a word that is not in its list or a number out of its range is refused where it comes in, with
the place where it was found. Times that a runner sends are kept for people; nothing is ever decided by them.
`docs/protocol.md` is drawn from here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Final, Literal

import msgspec
from msgspec import Meta

from deltaci.protocol import decoding as reading
from deltaci.protocol.job_spec import (
    MAX_SECONDS,
    ArtifactRule,
    BuiltInAction,
    CacheRule,
    Count,
    Executor,
    ExitCode,
    Id,
    JobSpec,
    Label,
    Labels,
    Limits,
    LongSecret,
    Name,
    NonNegative,
    NumberRule,
    Paths,
    Percent,
    RuleResult,
    Seconds,
    Secret,
    Service,
    ShortText,
    SignalNumber,
    Slots,
    Source,
    Step,
    Strict,
    Text,
    Timestamp,
    Uri,
    ValidationRule,
    Worktree,
    doc,
)

__all__ = [
    "MAX_SECONDS",
    "ArtifactRule",
    "BuiltInAction",
    "CacheRule",
    "Count",
    "Executor",
    "ExitCode",
    "Id",
    "JobSpec",
    "Label",
    "Labels",
    "Limits",
    "LongSecret",
    "Name",
    "NonNegative",
    "NumberRule",
    "Paths",
    "Percent",
    "RuleResult",
    "Seconds",
    "Secret",
    "Service",
    "ShortText",
    "SignalNumber",
    "Slots",
    "Source",
    "Step",
    "Strict",
    "Text",
    "Timestamp",
    "Uri",
    "ValidationRule",
    "Worktree",
    "doc",
]

PROTOCOL_VERSION: Final = 1
MAX_MESSAGE_BYTES: Final = 1024 * 1024
MAX_SPEC_BYTES: Final = 64 * 1024  # A larger job specification is not embedded but referred to.
MAX_BATCH: Final = 1000
MAX_BATCH_BYTES: Final = 4 * MAX_MESSAGE_BYTES
MAX_CHUNK_BYTES: Final = 4 * 1024 * 1024  # Of a log, at once.
MAX_ARTIFACTS: Final = 999  # Beside the log: as many as `Complete` may name.
MAX_ARTIFACT_BYTES: Final = 5 * 1024**3
MAX_STREAMS: Final = 1000  # At once.
MAX_TREE_BYTES: Final = 2 * 1024**3  # Of what a job adds to its tree.
MAX_LEASE_BYTES: Final = 10 * 1024**3  # Of all artifacts of a lease.
MAX_CACHE_BYTES: Final = 5 * 1024**3
MAX_OUTPUT_BYTES: Final = 256 * 1024
MAX_FAILED_TESTS: Final = 50

decoder = reading.decoder


# -- coming in


class Registration(Strict, frozen=True, kw_only=True):
    """A runner shows its registration token, or an OIDC token of the server's issuer, and says what it can do."""

    token: Annotated[LongSecret, doc("the registration token, good once, or the OIDC token: a secret")]
    capabilities: Annotated[Labels, doc("tags of its system, architecture and tools; none has a comma")] = []
    slots: Annotated[Slots, doc("how many jobs it takes at a time")] = 1
    request_id: Annotated[
        Annotated[str, Meta(max_length=200)],
        doc(
            "a random text of the runner's own, a secret: whoever shows it again with the same token is answered again"
        ),
    ] = ""


class Renewal(Strict, frozen=True, kw_only=True):
    """A runner says what it can do now. What it leaves out is as before."""

    capabilities: Annotated[Labels | None, doc("its tags")] = None
    slots: Annotated[Slots | None, doc("how many jobs it takes at a time")] = None


class EndedStreamsRequest(Strict, frozen=True, kw_only=True):
    """A runner asks which of the streams are over whose trees it keeps. Ours."""

    schema_name: ClassVar[str] = "Streams"

    ids: Annotated[list[Name], Meta(max_length=MAX_STREAMS), doc("as `Tree.stream` names them")]


class Registered(msgspec.Struct, frozen=True, kw_only=True):
    """Who it is from now on, and how it proves that."""

    runner_id: Annotated[
        str, doc("as what it speaks from now on: its name, or `<name>/<number>` in a later life of it")
    ]
    credential: Annotated[str, doc("for `Authorization: Bearer`: a secret; empty: its client certificate is enough")]
    expires_in_seconds: Annotated[Annotated[int, Meta(ge=1, le=MAX_SECONDS)], doc("renew it before that")]
    tenant: Annotated[str, doc("for whom it works")] = ""


# -- messages


class FromRunner(Strict, frozen=True, kw_only=True, tag_field="type", tag="FromRunner"):
    """What every message of a runner has."""

    lease_id: Annotated[Secret, doc("the lease that it speaks for: a secret")]
    runner_id: Annotated[Name, doc("who speaks")]
    sequence_no: Annotated[Count | None, doc("ours: a runner may number its messages; nothing follows from it")] = None


class FromServer(Strict, frozen=True, kw_only=True, tag_field="type", tag="FromServer"):
    """What every message of the server has."""

    lease_id: Annotated[Secret, doc("the lease that was named: a secret")]


class LeaseRequest(Strict, frozen=True, kw_only=True, tag_field="type", tag="Lease"):
    """A runner asks for work, and waits for it. Document 001 gives this request no fields."""

    schema_name: ClassVar[str] = "Lease"

    runner_id: Annotated[Name, doc("who asks")]
    capabilities: Annotated[Labels, doc("tags that it has; jobs that require others are not for it")] = []
    slots: Annotated[Slots, doc("how many jobs it takes now")] = 1
    wait_seconds: Annotated[float, Meta(ge=0, le=600), doc("how long to wait for the first one")] = 0.0
    sequence_no: Annotated[Count | None, doc("ours: a runner may number its messages; nothing follows from it")] = None
    attempts: Annotated[
        list[Id], Meta(max_length=100), doc("ours: these or none, from a `Dispatch`; empty: whatever fits")
    ] = []


class Dispatch(Strict, frozen=True, kw_only=True, tag_field="type", tag="Dispatch"):
    """Somewhere an attempt waits to be claimed. Ours: what transport A's queue carries; a hint without any secret."""

    attempt_id: Annotated[Id, doc("for `attempts` of a `Lease`")]


class ControlRequest(Strict, frozen=True, kw_only=True, tag_field="type", tag="Control"):
    """A runner waits to be told what is wanted of it. Ours: the push channel that document 001 leaves open.

    Whatever is told here is told by the next answer to a heartbeat, too.
    """

    schema_name: ClassVar[str] = "Control"

    runner_id: Annotated[Name, doc("who waits")]
    lease_ids: Annotated[
        list[Secret],
        Meta(max_length=1000),
        doc("leases that it has and was not asked to stop: what is wanted of them already is told at once; secrets"),
    ] = []
    wait_seconds: Annotated[float, Meta(ge=0, le=600), doc("how long to wait for the first one")] = 0.0


class LeaveRequest(Strict, frozen=True, kw_only=True, tag_field="type", tag="Leave"):
    """A runner leaves: it takes nothing new, finishes what it has, and may come back under its name."""

    schema_name: ClassVar[str] = "Leave"

    runner_id: Annotated[Name, doc("who leaves")]


class LeaseGranted(FromServer, frozen=True, kw_only=True, tag="LeaseGranted"):
    """The right to execute one attempt of a job. Either the specification is inside, or `job_spec_ref` says where."""

    job_id: Annotated[Id, doc("what is to be executed")]
    run_id: Annotated[str, doc("for which run; empty for a job of the plain queue")]
    lease_ttl_seconds: Annotated[Seconds, doc("after so long without a heartbeat the lease ends")]
    heartbeat_interval_seconds: Annotated[Seconds, doc("how often to send one")]
    max_runtime_seconds: Annotated[Seconds, doc("after so long the job is timed out")]
    job_spec: Annotated[JobSpec | None, doc("the job itself")] = None
    job_spec_ref: Annotated[Uri | None, doc("where a large one is read, under the lease")] = None
    cancel_token: Annotated[Secret | None, doc("a secret like `lease_id`; this server sends none")] = None


class AckLease(FromRunner, frozen=True, kw_only=True, tag="AckLease"):
    """The runner took the lease and starts work. The answer is a `HeartbeatAck`."""

    job_id: Annotated[Id, doc("the job of the lease")]
    accepted_at: Annotated[Timestamp, doc("by the runner's clock")]


class Progress(Strict, frozen=True, kw_only=True):
    """How far the runner is."""

    percent: Annotated[Percent | None, doc("of the whole job")] = None
    current_step: Annotated[Text, doc("the step that runs")] = ""
    step_index: Annotated[Count | None, doc("its place, from 0")] = None
    message: Annotated[ShortText, doc("one line for people")] = ""


class LogCursor(Strict, frozen=True, kw_only=True):
    """How much of the log the runner has sent."""

    bytes_sent: Annotated[Count, doc("bytes of the log that are on their way or kept")]


class Heartbeat(FromRunner, frozen=True, kw_only=True, tag="Heartbeat"):
    """The runner lives, and keeps its lease."""

    ts: Annotated[Timestamp, doc("by the runner's clock")]
    progress: Annotated[Progress | None, doc("how far it is")] = None
    log_cursor: Annotated[LogCursor | None, doc("how much of the log it has sent")] = None


class HeartbeatAck(FromServer, frozen=True, kw_only=True, omit_defaults=False, tag="HeartbeatAck"):
    """Whether the lease was renewed, and whether to stop."""

    extend_lease: Annotated[bool, doc("whether the lease goes on")]
    new_lease_ttl_seconds: Annotated[Seconds, doc("for how long it does, from when the server answered")]
    cancel_requested: Annotated[bool, doc("whether to stop and send `CancelAck`")] = False
    cancel_deadline_seconds: Annotated[Seconds, doc("how long a graceful stop may take; 0 without a cancel")] = 0
    stale: Annotated[bool | msgspec.UnsetType, doc("true when the lease is expired; absent otherwise")] = msgspec.UNSET
    reason: Annotated[ShortText | msgspec.UnsetType, doc("ours: why to stop; absent otherwise")] = msgspec.UNSET


class Artifact(Strict, frozen=True, kw_only=True):
    """Something that a job left behind, and where it is."""

    type: Annotated[Name, doc("what it is, e.g. `log` or `junit`")]
    uri: Annotated[Uri, doc("where it is")]
    name: Annotated[ShortText, doc("ours: what people call it")] = ""
    bytes: Annotated[Count, doc("ours: its size")] = 0


class Timings(Strict, frozen=True, kw_only=True):
    """By the runner's own clock."""

    started_at: Annotated[Timestamp, doc("when the first step began")]
    finished_at: Annotated[Timestamp, doc("when the last one ended")]


class StepResult(Strict, frozen=True, kw_only=True):
    """How one step ended."""

    index: Annotated[Count, doc("its place, from 0")]
    exit_code: Annotated[ExitCode | None, doc("null: it has none, e.g. because it was killed")]
    seconds: Annotated[NonNegative, doc("how long it took")]
    name: Annotated[ShortText, doc("what people call it")] = ""
    is_timed_out: Annotated[bool, doc("whether it took too long")] = False
    is_skipped: Annotated[bool, doc("ours: whether it was left out; its exit code is null then")] = False
    is_tolerated: Annotated[bool, doc("ours: whether it failed and the job goes on as if it had not")] = False
    why: Annotated[ShortText, doc("ours: why it was left out, or failed beside its exit code")] = ""


class FailedTest(Strict, frozen=True, kw_only=True):
    """A test that failed."""

    name: Annotated[ShortText, doc("its class or suite, and its name")]
    message: Annotated[ShortText, doc("the first of what it said")] = ""


class TestTotals(Strict, frozen=True, kw_only=True):
    """What the test reports of a job say together."""

    schema_name: ClassVar[str] = "Tests"

    total: Annotated[Count, doc("all tests")]
    passed: Annotated[Count, doc("those that passed, flaky ones too")] = 0
    failed: Annotated[Count, doc("those that failed")] = 0
    errors: Annotated[Count, doc("those that could not be run to their end")] = 0
    skipped: Annotated[Count, doc("those that were left out")] = 0
    flaky: Annotated[Count, doc("those that failed and then passed")] = 0
    seconds: Annotated[NonNegative, doc("how long they took together")] = 0.0
    failures: Annotated[list[FailedTest], Meta(max_length=MAX_FAILED_TESTS), doc("the first that failed")] = []


class Complete(FromRunner, frozen=True, kw_only=True, tag="Complete"):
    """The final result; it ends the lease."""

    status: Annotated[Literal["SUCCEEDED", "FAILED"], doc("how it ended")]
    exit_code: Annotated[ExitCode | None, doc("0 for a success, and only for one")] = None
    timings: Annotated[Timings | None, doc("when it ran")] = None
    artifacts: Annotated[list[Artifact], Meta(max_length=1000), doc("what it left behind")] = []
    summary: Annotated[ShortText, doc("one line for people")] = ""
    # Ours, beside document 001's.
    error_code: Annotated[Name | None, doc("ours: what went wrong before or beside the steps, e.g. `CHECKOUT`")] = None
    signal: Annotated[SignalNumber | None, doc("ours: the signal that ended it")] = None
    log_tail: Annotated[list[ShortText], Meta(max_length=50), doc("ours: the last lines, to classify a failure")] = []
    steps: Annotated[list[StepResult], Meta(max_length=1000), doc("ours: how each step ended")] = []
    tests: Annotated[TestTotals | None, doc("ours: what the test reports say")] = None
    output: Annotated[Any, doc("ours: the job's result, any JSON")] = None
    cost: Annotated[Any, doc("ours: what it used, any JSON")] = None
    is_skipped: Annotated[bool, doc("ours: with a success: its condition did not hold, and nothing was done")] = False
    verdicts: Annotated[
        Annotated[list[RuleResult], Meta(max_length=100)] | None,
        doc("ours: with a success, whether each rule holds; absent: none were looked at"),
    ] = None
    head: Annotated[
        ShortText, doc("ours: the commit that its tree has now; what is new of it was sent as an artifact")
    ] = ""
    place: Annotated[ShortText, doc("ours: where its tree is kept, for people")] = ""


class CompleteAck(FromServer, frozen=True, kw_only=True, tag="CompleteAck"):
    """Whether the result counts, and if not, why."""

    accepted: Annotated[bool, doc("whether the result counts")]
    reason: Annotated[ShortText, doc("ours: why not, e.g. `CANCEL_REQUESTED`; absent when it counts")] = ""


class CancelRequested(FromServer, frozen=True, kw_only=True, tag="CancelRequested"):
    """Stop within the deadline, and say so with `CancelAck`."""

    job_id: Annotated[Id, doc("what is to be stopped")]
    reason: Annotated[ShortText, doc("why, e.g. `RUN_CANCELED`")]
    deadline_seconds: Annotated[Seconds, doc("how long a graceful stop may take")]
    ts: Annotated[Timestamp, doc("by the server's clock")]


class CancelAck(FromRunner, frozen=True, kw_only=True, tag="CancelAck"):
    """The runner stopped; nothing of the job runs any more."""

    final_status: Annotated[Literal["CANCELED"], doc("how it ended")]
    ts: Annotated[Timestamp, doc("by the runner's clock")]
    artifacts: Annotated[list[Artifact], Meta(max_length=1000), doc("what it left behind")] = []
    summary: Annotated[ShortText, doc("one line for people")] = ""


class CancelAcked(FromServer, frozen=True, kw_only=True, tag="CancelAcked"):
    """The server heard it. Document 001 names no answer to `CancelAck`; without one a runner could not stop asking."""

    accepted: Annotated[bool, doc("that the attempt is canceled now")]
    reason: Annotated[ShortText, doc("why not; absent when it is")] = ""


StaleReason = Literal[
    "LEASE_EXPIRED", "LEASE_REVOKED", "LEASE_COMPLETED", "LEASE_CANCELED", "LEASE_REPLACED", "UNKNOWN_LEASE"
]


class StaleLease(FromServer, frozen=True, kw_only=True, tag="StaleLease"):
    """The lease is no longer good: stop, and do not complete."""

    reason: Annotated[StaleReason, doc("why")]
    # What document 001 says in two places about one answer is said in one message.
    extend_lease: Annotated[bool | msgspec.UnsetType, doc("false in the answer to a heartbeat; absent otherwise")] = (
        msgspec.UNSET
    )
    stale: Annotated[bool | msgspec.UnsetType, doc("true in the answer to a heartbeat; absent otherwise")] = (
        msgspec.UNSET
    )


class Problem(msgspec.Struct, frozen=True):
    """Why a request was refused. Nothing was changed by it."""

    code: Annotated[str, doc("a stable word, see the list of codes")]
    message: Annotated[str, doc("what was found, what was expected, what to do; for people")]


RunnerMessage = AckLease | Heartbeat | Complete | CancelAck
ServerMessage = LeaseGranted | HeartbeatAck | CompleteAck | CancelAcked | CancelRequested | StaleLease


encode = msgspec.json.Encoder().encode
decode_message: Callable[[bytes | str], RunnerMessage] = decoder(RunnerMessage)  # type: ignore[arg-type]
decode_answer: Callable[[bytes | str], ServerMessage] = decoder(ServerMessage)  # type: ignore[arg-type]
