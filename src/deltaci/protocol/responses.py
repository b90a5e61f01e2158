"""Response bodies of the runner protocol that are not messages of document 001."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import field

from deltaci.protocol.messages import CancelRequested, LeaseGranted, doc


class LeaseResponse(msgspec.Struct, frozen=True, omit_defaults=True):
    """The granted leases, and which of the requested attempts can no longer be claimed."""

    schema_name: ClassVar[str] = "Granted"

    leases: Annotated[list[LeaseGranted], doc("empty when there is no work")]
    unclaimable: Annotated[
        list[str], doc("those of `attempts` that can no longer be claimed, including the granted ones")
    ] = field(default=[], name="gone")


class ControlResponse(msgspec.Struct, frozen=True):
    """The cancel requests for the runner's leases."""

    schema_name: ClassVar[str] = "Wanted"

    cancels: Annotated[list[CancelRequested], doc("empty when none came in time")]


class HandBackResponse(msgspec.Struct, frozen=True):
    """The confirmation that a job is back in the queue."""

    schema_name: ClassVar[str] = "HandedBack"

    handed_back: Annotated[bool, doc("always true: another runner may claim the job")] = True


class LeaveResponse(msgspec.Struct, frozen=True):
    """The confirmation that the runner gets no more jobs."""

    schema_name: ClassVar[str] = "Gone"

    is_shut_down: Annotated[
        bool, doc("whether the runner is shut down already; otherwise it is when its current jobs are over")
    ] = field(name="gone")


class LogSize(msgspec.Struct, frozen=True):
    """How much of a log is stored."""

    schema_name: ClassVar[str] = "Size"

    size: Annotated[int, doc("stored bytes")]


class StoredArtifact(msgspec.Struct, frozen=True, kw_only=True):
    """An artifact as the server stored it."""

    schema_name: ClassVar[str] = "KeptArtifact"

    uri: Annotated[str, doc("the reference for `Complete.artifacts`")]
    bytes: Annotated[int, doc("its size")]
    sha256: Annotated[str, doc("its digest, in hex")]


class StoredCache(msgspec.Struct, frozen=True, kw_only=True):
    """A cache entry as the server stored it."""

    schema_name: ClassVar[str] = "KeptCache"

    stored: Annotated[bool, doc("false when the key existed already; its entry is not replaced")]
    bytes: Annotated[int, doc("its size")]
    sha256: Annotated[str, doc("its digest, in hex")]


class NeededJob(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The result of a job that another job names in `needs`."""

    schema_name: ClassVar[str] = "Need"

    result: Annotated[Literal["success", "failure", "cancelled", "skipped"], doc("how it ended")]
    outputs: Annotated[dict[str, Any], doc("its output, if that is an object")] = {}
    family: Annotated[str, doc("the name in the pipeline file that all jobs of a matrix share; empty: no matrix")] = ""
    exists: Annotated[bool, doc("false when the run has no such job")] = field(default=True, name="is_there")


class SharedArtifact(msgspec.Struct, frozen=True, kw_only=True):
    """An artifact of a job of the run: a named archive of many files, or one plain file."""

    job: Annotated[str, doc("the job that uploaded it")]
    name: Annotated[str, doc("the name of the archive; empty: it is one file")]
    path: Annotated[str, doc("of one file: its path in the workspace")]
    uri: Annotated[str, doc("where to read it, under the lease")]
    bytes: Annotated[int, doc("its size")]


class CacheMatch(msgspec.Struct, frozen=True, kw_only=True):
    """The cache entry that matches a key prefix."""

    schema_name: ClassVar[str] = "FoundCache"

    key: Annotated[str, doc("its full key")]


class WorktreeStart(msgspec.Struct, frozen=True, kw_only=True):
    """The commit that a job's worktree begins with."""

    schema_name: ClassVar[str] = "TreeStart"

    base: Annotated[str, doc("a commit that the repository has")]
    tip: Annotated[str, doc("the commit to begin with; the base is one of its ancestors")]
    bundle_bytes: Annotated[int, doc("size of the bundle with the commits in between; 0: there are none")] = 0


class EndedStreams(msgspec.Struct, frozen=True):
    """The streams that have ended, so that their worktrees are not needed any more."""

    schema_name: ClassVar[str] = "StreamsOver"

    ended: Annotated[list[str], doc("the runner may delete their worktrees; those of failed streams are kept")] = field(
        name="over"
    )


class SourceCredential(msgspec.Struct, frozen=True, kw_only=True):
    """The credential with which the runner fetches the sources."""

    value: Annotated[str, doc("a token, or `user:password`: a secret, for the runner only")]
