"""The messages between a runner and the server, exactly as document 001 spells them. Version 1.

The version is part of the HTTP path, not of the messages. Decoding is strict: an unknown field, an unknown enum value
or a number out of range is refused with the path of the value. Timestamps from runners are stored for people; no
decision depends on them. `docs/protocol.md` is generated from this module.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Final, Literal

import msgspec
from msgspec import Meta, field

from deltaci.protocol import decoding
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
MAX_SPEC_BYTES: Final = 64 * 1024  # A larger job specification is sent as a reference.
MAX_BATCH: Final = 1000
MAX_BATCH_BYTES: Final = 4 * MAX_MESSAGE_BYTES
MAX_CHUNK_BYTES: Final = 4 * 1024 * 1024  # Of a log, per request.
MAX_ARTIFACTS: Final = 999  # The log is the thousandth artifact of `Complete`.
MAX_ARTIFACT_BYTES: Final = 5 * 1024**3
MAX_STREAMS: Final = 1000  # Per request.
MAX_TREE_BYTES: Final = 2 * 1024**3  # Of the commits that a job adds to its worktree.
MAX_LOG_BYTES: Final = 1024**3  # Of one lease.
MAX_LEASE_BYTES: Final = 10 * 1024**3  # Of all artifacts of a lease.
MAX_CACHE_BYTES: Final = 5 * 1024**3
MAX_OUTPUT_BYTES: Final = 256 * 1024
MAX_FAILED_TESTS: Final = 50

decoder = decoding.decoder


# -- registration


class Registration(Strict, frozen=True, kw_only=True):
    """A request to register a runner, with a registration token or an OIDC token of the server's issuer."""

    token: Annotated[LongSecret, doc("the registration token, valid once, or the OIDC token: a secret")]
    capabilities: Annotated[Labels, doc("labels of its system, architecture and tools; none has a comma")] = []
    slots: Annotated[Slots, doc("how many jobs it runs concurrently")] = 1
    request_id: Annotated[
        Annotated[str, Meta(max_length=200)],
        doc("a random text chosen by the runner, a secret: a repeat with the same token and text is answered again"),
    ] = ""


class Renewal(Strict, frozen=True, kw_only=True):
    """A request for a new credential, which may also report changed labels and slots.

    An absent field does not change.
    """

    capabilities: Annotated[Labels | None, doc("its labels")] = None
    slots: Annotated[Slots | None, doc("how many jobs it runs concurrently")] = None


class EndedStreamsRequest(Strict, frozen=True, kw_only=True):
    """A request for the ended ones among streams whose worktrees the runner keeps. An extension of document 001."""

    schema_name: ClassVar[str] = "Streams"

    ids: Annotated[list[Name], Meta(max_length=MAX_STREAMS), doc("values of `Tree.stream`")]


class Registered(msgspec.Struct, frozen=True, kw_only=True):
    """The response to a registration or a renewal: the id of the runner and its credential."""

    runner_id: Annotated[
        str, doc("the id to send from now on: its name, or `<name>/<number>` for a later incarnation of it")
    ]
    credential: Annotated[str, doc("for `Authorization: Bearer`: a secret; empty: the client certificate is enough")]
    expires_in_seconds: Annotated[Annotated[int, Meta(ge=1, le=MAX_SECONDS)], doc("renew it before that")]
    tenant: Annotated[str, doc("the tenant whose jobs it runs")] = ""


# -- messages


class FromRunner(Strict, frozen=True, kw_only=True, tag_field="type", tag="FromRunner"):
    """Base of all messages that a runner sends under a lease."""

    lease_id: Annotated[Secret, doc("the lease that the message is about: a secret")]
    runner_id: Annotated[Name, doc("the sender")]
    sequence_no: Annotated[
        Count | None,
        doc(
            "extension: a number that grows with each message of this type under the lease; a heartbeat whose number "
            "is not above the highest so far changes nothing"
        ),
    ] = None


class FromServer(Strict, frozen=True, kw_only=True, tag_field="type", tag="FromServer"):
    """Base of all messages that the server sends."""

    lease_id: Annotated[Secret, doc("the lease that the message is about: a secret")]


class LeaseRequest(Strict, frozen=True, kw_only=True, tag_field="type", tag="Lease"):
    """A runner's request for work, which may wait for the first job. Document 001 gives it no fields."""

    schema_name: ClassVar[str] = "Lease"

    runner_id: Annotated[Name, doc("the sender")]
    capabilities: Annotated[Labels, doc("its labels; a job that requires others is not granted")] = []
    slots: Annotated[Slots, doc("how many jobs to grant at most")] = 1
    wait_seconds: Annotated[float, Meta(ge=0, le=600), doc("how long to wait for the first job")] = 0.0
    sequence_no: Annotated[
        Count | None, doc("extension: a number that the runner may give its messages; the server ignores it")
    ] = None
    attempts: Annotated[
        list[Id], Meta(max_length=100), doc("extension: grant only these, from a `Dispatch`; empty: any that match")
    ] = []


class Dispatch(Strict, frozen=True, kw_only=True, tag_field="type", tag="Dispatch"):
    """The announcement of an attempt that can be claimed.

    An extension: the message of transport A's queue, without secrets.
    """

    attempt_id: Annotated[Id, doc("for `attempts` of a `Lease`")]


class ControlRequest(Strict, frozen=True, kw_only=True, tag_field="type", tag="Control"):
    """A runner's request that waits for cancel requests. An extension: the push channel that document 001 leaves open.

    The answer to the next heartbeat repeats every cancel request that is sent here.
    """

    schema_name: ClassVar[str] = "Control"

    runner_id: Annotated[Name, doc("the sender")]
    lease_ids: Annotated[
        list[Secret],
        Meta(max_length=1000),
        doc("held leases without a known cancel; one that is canceled already is answered at once; secrets"),
    ] = []
    wait_seconds: Annotated[float, Meta(ge=0, le=600), doc("how long to wait for the first cancel")] = 0.0


class LeaveRequest(Strict, frozen=True, kw_only=True, tag_field="type", tag="Leave"):
    """The announcement that a runner takes no new jobs.

    It finishes its current jobs, and may register again under its name.
    """

    schema_name: ClassVar[str] = "Leave"

    runner_id: Annotated[Name, doc("the sender")]


class LeaseGranted(FromServer, frozen=True, kw_only=True, tag="LeaseGranted"):
    """The grant of a lease, which is the right to execute one attempt of a job.

    Contains the job specification or a reference to it.
    """

    job_id: Annotated[Id, doc("the attempt to execute")]
    run_id: Annotated[str, doc("its run; empty for a job of the plain queue")]
    lease_ttl_seconds: Annotated[Seconds, doc("the lease ends after so long without a heartbeat")]
    heartbeat_interval_seconds: Annotated[Seconds, doc("how often to send a heartbeat")]
    max_runtime_seconds: Annotated[Seconds, doc("the time limit of the job")]
    job_spec: Annotated[JobSpec | None, doc("the job itself")] = None
    job_spec_ref: Annotated[Uri | None, doc("where to read a large job specification, under the lease")] = None
    cancel_token: Annotated[Secret | None, doc("a secret like `lease_id`; this server sends none")] = None


class AckLease(FromRunner, frozen=True, kw_only=True, tag="AckLease"):
    """The runner's message that it accepts the lease and starts work. The answer is a `HeartbeatAck`."""

    job_id: Annotated[Id, doc("the job of the lease")]
    accepted_at: Annotated[Timestamp, doc("time of the runner's clock")]


class Progress(Strict, frozen=True, kw_only=True):
    """The progress of a running job: a percentage, the running step and a message for people."""

    percent: Annotated[Percent | None, doc("of the whole job")] = None
    current_step: Annotated[Text, doc("the running step")] = ""
    step_index: Annotated[Count | None, doc("its index, from 0")] = None
    message: Annotated[ShortText, doc("one line for people")] = ""
    phase: Annotated[
        Literal["", "uploading"], doc("extension: `uploading` when the steps have ended and the uploads begin")
    ] = ""


class LogCursor(Strict, frozen=True, kw_only=True):
    """How many bytes of the log the runner has sent."""

    bytes_sent: Annotated[Count, doc("bytes of the log that were sent")]


class Heartbeat(FromRunner, frozen=True, kw_only=True, tag="Heartbeat"):
    """The runner's periodic message that renews the lease and reports progress."""

    ts: Annotated[Timestamp, doc("time of the runner's clock")]
    progress: Annotated[Progress | None, doc("how far the job is")] = None
    log_cursor: Annotated[LogCursor | None, doc("how much of the log was sent")] = None


class HeartbeatAck(FromServer, frozen=True, kw_only=True, omit_defaults=False, tag="HeartbeatAck"):
    """The answer to `AckLease` and `Heartbeat`: whether the lease was renewed, and whether to stop."""

    extend_lease: Annotated[bool, doc("whether the lease was renewed")]
    new_lease_ttl_seconds: Annotated[Seconds, doc("the new TTL, counted from the server's answer")]
    cancel_requested: Annotated[bool, doc("whether to stop and send `CancelAck`")] = False
    cancel_deadline_seconds: Annotated[Seconds, doc("how long a graceful stop may take; 0 without a cancel")] = 0
    stale: Annotated[bool | msgspec.UnsetType, doc("true when the lease is expired; absent otherwise")] = msgspec.UNSET
    reason: Annotated[ShortText | msgspec.UnsetType, doc("extension: why to stop; absent otherwise")] = msgspec.UNSET


class Artifact(Strict, frozen=True, kw_only=True):
    """A file that a job produced, and where it is stored."""

    type: Annotated[Name, doc("its type, e.g. `log` or `junit`")]
    uri: Annotated[Uri, doc("where it is stored")]
    name: Annotated[ShortText, doc("extension: display name")] = ""
    bytes: Annotated[Count, doc("extension: its size")] = 0


class Timings(Strict, frozen=True, kw_only=True):
    """When the job started and ended, by the runner's own clock."""

    started_at: Annotated[Timestamp, doc("start of the first step")]
    finished_at: Annotated[Timestamp, doc("end of the last step")]


class StepResult(Strict, frozen=True, kw_only=True):
    """The result of one step: its exit code and duration, and whether it was skipped or timed out."""

    index: Annotated[Count, doc("its index, from 0")]
    exit_code: Annotated[ExitCode | None, doc("null: there is none, e.g. because the step was killed")]
    seconds: Annotated[NonNegative, doc("its duration")]
    name: Annotated[ShortText, doc("display name")] = ""
    is_timed_out: Annotated[bool, doc("whether it exceeded its time limit")] = False
    is_skipped: Annotated[bool, doc("extension: whether it was skipped; its exit code is null then")] = False
    is_tolerated: Annotated[bool, doc("extension: whether it failed and the job ignores that")] = False
    why: Annotated[ShortText, doc("extension: why it was skipped, or why it failed if not by its exit code")] = ""


class FailedTest(Strict, frozen=True, kw_only=True):
    """A test that failed."""

    name: Annotated[ShortText, doc("its class or suite, and its name")]
    message: Annotated[ShortText, doc("the beginning of its failure message")] = ""


class TestTotals(Strict, frozen=True, kw_only=True):
    """Totals of all test reports of a job."""

    schema_name: ClassVar[str] = "Tests"

    total: Annotated[Count, doc("all tests")]
    passed: Annotated[Count, doc("tests that passed, including flaky ones")] = 0
    failed: Annotated[Count, doc("tests that failed")] = 0
    errors: Annotated[Count, doc("tests that ended with an error")] = 0
    skipped: Annotated[Count, doc("tests that were skipped")] = 0
    flaky: Annotated[Count, doc("tests that failed and then passed")] = 0
    seconds: Annotated[NonNegative, doc("total duration")] = 0.0
    failures: Annotated[list[FailedTest], Meta(max_length=MAX_FAILED_TESTS), doc("the first failed tests")] = []


class Complete(FromRunner, frozen=True, kw_only=True, tag="Complete"):
    """The runner's final result of the job. It ends the lease."""

    status: Annotated[Literal["SUCCEEDED", "FAILED"], doc("how the job ended")]
    exit_code: Annotated[ExitCode | None, doc("0 for a success, and only for one")] = None
    timings: Annotated[Timings | None, doc("when the job ran")] = None
    artifacts: Annotated[list[Artifact], Meta(max_length=1000), doc("the uploaded files")] = []
    summary: Annotated[ShortText, doc("one line for people")] = ""
    # Extensions of document 001.
    error_code: Annotated[Name | None, doc("extension: what failed other than a step, e.g. `CHECKOUT`")] = None
    signal: Annotated[SignalNumber | None, doc("extension: the signal that ended the job")] = None
    log_tail: Annotated[
        list[ShortText], Meta(max_length=50), doc("extension: the last lines of the log, to classify a failure")
    ] = []
    steps: Annotated[list[StepResult], Meta(max_length=1000), doc("extension: how each step ended")] = []
    tests: Annotated[TestTotals | None, doc("extension: totals of the test reports")] = None
    output: Annotated[Any, doc("extension: the job's result, any JSON")] = None
    cost: Annotated[Any, doc("extension: the resources that it used, any JSON")] = None
    is_skipped: Annotated[
        bool, doc("extension: with a success: whether its condition was false and nothing was executed")
    ] = False
    verdicts: Annotated[
        Annotated[list[RuleResult], Meta(max_length=100)] | None,
        doc("extension: with a success, the result of each validation rule; absent: none was checked"),
    ] = None
    head: Annotated[
        ShortText, doc("extension: the new tip of its worktree; new commits were uploaded as an artifact")
    ] = ""
    worktree_path: Annotated[ShortText, doc("extension: the path of its worktree, for people")] = field(
        default="", name="place"
    )


class CompleteAck(FromServer, frozen=True, kw_only=True, tag="CompleteAck"):
    """The answer to `Complete`: whether the result was accepted, and if not, why."""

    accepted: Annotated[bool, doc("whether the result was accepted")]
    reason: Annotated[ShortText, doc("extension: why not, e.g. `CANCEL_REQUESTED`; absent when it was")] = ""


class CancelRequested(FromServer, frozen=True, kw_only=True, tag="CancelRequested"):
    """The server's request to stop the job within the deadline, and to confirm that with `CancelAck`."""

    job_id: Annotated[Id, doc("the attempt to stop")]
    reason: Annotated[ShortText, doc("why, e.g. `RUN_CANCELED`")]
    deadline_seconds: Annotated[Seconds, doc("how long a graceful stop may take")]
    ts: Annotated[Timestamp, doc("time of the server's clock")]


class CancelAck(FromRunner, frozen=True, kw_only=True, tag="CancelAck"):
    """The runner's confirmation that it stopped the job; no process of the job is left."""

    final_status: Annotated[Literal["CANCELED"], doc("how the job ended")]
    ts: Annotated[Timestamp, doc("time of the runner's clock")]
    artifacts: Annotated[list[Artifact], Meta(max_length=1000), doc("the uploaded files")] = []
    summary: Annotated[ShortText, doc("one line for people")] = ""


class CancelAcked(FromServer, frozen=True, kw_only=True, tag="CancelAcked"):
    """The answer to `CancelAck`. Document 001 names none; without one a runner could not stop repeating."""

    accepted: Annotated[bool, doc("whether the attempt is canceled now")]
    reason: Annotated[ShortText, doc("why not; absent when it is")] = ""


StaleReason = Literal[
    "LEASE_EXPIRED", "LEASE_REVOKED", "LEASE_COMPLETED", "LEASE_CANCELED", "LEASE_REPLACED", "UNKNOWN_LEASE"
]


class StaleLease(FromServer, frozen=True, kw_only=True, tag="StaleLease"):
    """The answer to a message under a lease that is no longer valid: the runner must stop, and not complete."""

    reason: Annotated[StaleReason, doc("why")]
    # Document 001 describes the answer to a stale heartbeat in two places; this message has the fields of both.
    extend_lease: Annotated[bool | msgspec.UnsetType, doc("false in the answer to a heartbeat; absent otherwise")] = (
        msgspec.UNSET
    )
    stale: Annotated[bool | msgspec.UnsetType, doc("true in the answer to a heartbeat; absent otherwise")] = (
        msgspec.UNSET
    )


class Problem(msgspec.Struct, frozen=True):
    """The response to a request that was refused and changed nothing."""

    code: Annotated[str, doc("a stable error code, see the list of codes")]
    message: Annotated[str, doc("what was found, what was expected, what to do; for people")]


RunnerMessage = AckLease | Heartbeat | Complete | CancelAck
ServerMessage = LeaseGranted | HeartbeatAck | CompleteAck | CancelAcked | CancelRequested | StaleLease


encode = msgspec.json.Encoder().encode
decode_message: Callable[[bytes | str], RunnerMessage] = decoder(RunnerMessage)  # type: ignore[arg-type]
decode_answer: Callable[[bytes | str], ServerMessage] = decoder(ServerMessage)  # type: ignore[arg-type]
