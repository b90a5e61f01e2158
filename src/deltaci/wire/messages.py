"""The messages between a runner and the server, exactly as document 001 spells them. Version 1.

The version is part of the address under which they are exchanged, not of the messages. Everything is strict: a
field that is not known, a word that is not in its list or a number out of its range is refused where it comes in, with
the place where it was found. Times that a runner sends are kept for people; nothing is ever decided by them.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

VERSION: Final = 1
MAX_MESSAGE_BYTES: Final = 1024 * 1024
MAX_SPEC_BYTES: Final = 64 * 1024  # A larger job specification is not embedded but referred to.

Name = Annotated[str, Meta(min_length=1, max_length=200, pattern=r"^[!-~][ -~]*$")]
Secret = Annotated[str, Meta(min_length=1, max_length=400)]
Line = Annotated[str, Meta(max_length=2000)]
Text = Annotated[str, Meta(max_length=100_000)]
Uri = Annotated[str, Meta(min_length=1, max_length=2000)]
Seconds = Annotated[int, Meta(ge=0, le=30 * 86400)]
Count = Annotated[int, Meta(ge=0, le=2**53)]
Moment = Annotated[datetime, Meta(tz=True)]


class Strict(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Nothing but the fields that are named."""


# -- what a runner is asked to do


class Step(Strict, frozen=True, kw_only=True):
    """One command, with what it needs. A bare text is the same as a step that only runs it."""

    run: Text
    name: Line = ""
    env: dict[Name, Text] = {}
    workdir: Line = ""
    timeout_seconds: Seconds = 0
    continue_on_error: bool = False


class ArtifactRule(Strict, frozen=True, kw_only=True):
    """Which files to keep."""

    path_glob: Line
    type: Name = "file"


class CacheRule(Strict, frozen=True, kw_only=True):
    """Which folders to bring along from earlier runs. `{lock_hash}` in the key is the hash of the lock files."""

    key: Line
    paths: Annotated[list[Line], Meta(max_length=100)]
    type: Name = "deps"
    lock_files: Annotated[list[Line], Meta(max_length=100)] = []


class Limits(Strict, frozen=True, kw_only=True):
    """What a job may use at most; 0: as much as there is."""

    memory_bytes: Count = 0
    processes: Count = 0
    cpus: float = 0.0


Executor = Literal["process", "sandbox", "container"]


class JobSpec(Strict, frozen=True, kw_only=True):
    """The job itself. Every step runs in order; the first that fails ends it."""

    name: Line = ""
    workdir: Line = "."
    image: Line = ""
    steps: Annotated[list[Text | Step], Meta(max_length=1000)] = []
    env: dict[Name, Text] = {}
    artifacts: Annotated[list[ArtifactRule], Meta(max_length=100)] = []
    caches: Annotated[list[CacheRule], Meta(max_length=100)] = []
    # Ours, beside document 001's.
    executor: Executor | None = None
    network: bool = False
    limits: Limits = Limits()
    output_path: Line = ""
    secrets: Annotated[list[Name], Meta(max_length=100)] = []


# -- messages


class FromRunner(Strict, frozen=True, kw_only=True, tag_field="type", tag=True):
    """What every message of a runner has. `sequence_no` lets it number them; the server only keeps it."""

    lease_id: Secret
    runner_id: Name
    sequence_no: Count | None = None


class FromServer(Strict, frozen=True, kw_only=True, tag_field="type", tag=True):
    """What every message of the server has."""

    lease_id: Secret


class Lease(Strict, frozen=True, kw_only=True, tag_field="type", tag=True):
    """A runner asks for work, and waits for it up to `wait_seconds`. Document 001 gives this request no fields."""

    runner_id: Name
    capabilities: Annotated[list[Name], Meta(max_length=32)] = []
    slots: Annotated[int, Meta(ge=1, le=1000)] = 1
    wait_seconds: Annotated[float, Meta(ge=0, le=60)] = 0.0
    sequence_no: Count | None = None


class LeaseGranted(FromServer, frozen=True, kw_only=True):
    """The right to execute one attempt of a job. Either the specification is inside, or `job_spec_ref` says where."""

    job_id: Name
    run_id: str
    lease_ttl_seconds: Seconds
    heartbeat_interval_seconds: Seconds
    max_runtime_seconds: Seconds
    job_spec: JobSpec | None = None
    job_spec_ref: Uri | None = None
    cancel_token: Secret | None = None


class AckLease(FromRunner, frozen=True, kw_only=True):
    """The runner took the lease and starts work."""

    job_id: Name
    accepted_at: Moment


class Progress(Strict, frozen=True, kw_only=True):
    """How far the runner is."""

    percent: Annotated[float, Meta(ge=0, le=100)] | None = None
    current_step: Text = ""
    step_index: Count | None = None
    message: Line = ""


class LogCursor(Strict, frozen=True, kw_only=True):
    """How much of the log the runner has sent."""

    bytes_sent: Count


class Heartbeat(FromRunner, frozen=True, kw_only=True):
    """The runner lives, and keeps its lease."""

    ts: Moment
    progress: Progress | None = None
    log_cursor: LogCursor | None = None


class HeartbeatAck(FromServer, frozen=True, kw_only=True, omit_defaults=False):
    """Whether the lease was renewed, and whether to stop."""

    extend_lease: bool
    new_lease_ttl_seconds: Seconds
    cancel_requested: bool = False
    cancel_deadline_seconds: Seconds = 0
    stale: bool | msgspec.UnsetType = msgspec.UNSET
    reason: Line | msgspec.UnsetType = msgspec.UNSET


class Artifact(Strict, frozen=True, kw_only=True):
    """Something that a job left behind, and where it is."""

    type: Name
    uri: Uri
    name: Line = ""
    bytes: Count = 0


class Timings(Strict, frozen=True, kw_only=True):
    """By the runner's own clock."""

    started_at: Moment
    finished_at: Moment


class StepResult(Strict, frozen=True, kw_only=True):
    """How one step ended."""

    index: Count
    exit_code: int | None
    seconds: float
    name: Line = ""
    is_timed_out: bool = False


class Complete(FromRunner, frozen=True, kw_only=True):
    """The final result; it ends the lease."""

    status: Literal["SUCCEEDED", "FAILED"]
    exit_code: int | None = None
    timings: Timings | None = None
    artifacts: Annotated[list[Artifact], Meta(max_length=1000)] = []
    summary: Line = ""
    # Ours, beside document 001's.
    error_code: Name | None = None
    signal: int | None = None
    log_tail: Annotated[list[Line], Meta(max_length=50)] = []
    steps: Annotated[list[StepResult], Meta(max_length=1000)] = []
    output: Any = None
    cost: Any = None


class CompleteAck(FromServer, frozen=True, kw_only=True):
    """Whether the result counts, and if not, why."""

    accepted: bool
    reason: Line = ""


class CancelRequested(FromServer, frozen=True, kw_only=True):
    """Stop within the deadline, and say so with `CancelAck`."""

    job_id: Name
    reason: Line
    deadline_seconds: Seconds
    ts: Moment


class CancelAck(FromRunner, frozen=True, kw_only=True):
    """The runner stopped; nothing of the job runs any more."""

    final_status: Literal["CANCELED"]
    ts: Moment
    artifacts: Annotated[list[Artifact], Meta(max_length=1000)] = []
    summary: Line = ""


class CancelAcked(FromServer, frozen=True, kw_only=True):
    """The server heard it. Document 001 names no answer to `CancelAck`; without one a runner could not stop asking."""

    accepted: bool
    reason: Line = ""


class StaleLease(FromServer, frozen=True, kw_only=True):
    """The lease is no longer good: stop, and do not complete."""

    reason: Literal[
        "LEASE_EXPIRED", "LEASE_REVOKED", "LEASE_COMPLETED", "LEASE_CANCELED", "LEASE_REPLACED", "UNKNOWN_LEASE"
    ]


RunnerMessage = AckLease | Heartbeat | Complete | CancelAck
RunnerRequest = Lease | RunnerMessage
ServerMessage = LeaseGranted | HeartbeatAck | CompleteAck | CancelAcked | CancelRequested | StaleLease

encode = msgspec.json.Encoder().encode
decode_request = msgspec.json.Decoder(RunnerRequest).decode
decode_answer = msgspec.json.Decoder(ServerMessage).decode
