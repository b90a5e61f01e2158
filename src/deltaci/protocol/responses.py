"""What the server answers beside document 001's messages: small objects, read by runners and described to everybody."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import msgspec

from deltaci.protocol.messages import CancelRequested, LeaseGranted, doc


class LeaseResponse(msgspec.Struct, frozen=True, omit_defaults=True):
    """The answer to a request for work: leases, and which of the attempts that were named nobody can claim any more."""

    schema_name: ClassVar[str] = "Granted"

    leases: Annotated[list[LeaseGranted], doc("none when there is no work")]
    gone: Annotated[list[str], doc("those of `attempts` that nobody can claim any more, these leases included")] = []


class ControlResponse(msgspec.Struct, frozen=True):
    """The answer to who waits to be told what is wanted."""

    schema_name: ClassVar[str] = "Wanted"

    cancels: Annotated[list[CancelRequested], doc("none when nothing is wanted")]


class HandBackResponse(msgspec.Struct, frozen=True):
    """The job is given back."""

    schema_name: ClassVar[str] = "HandedBack"

    handed_back: Annotated[bool, doc("that others may have it")] = True


class LeaveResponse(msgspec.Struct, frozen=True):
    """The server knows that the runner leaves."""

    schema_name: ClassVar[str] = "Gone"

    gone: Annotated[bool, doc("whether it is gone already; otherwise when its current jobs are over")]


class LogSize(msgspec.Struct, frozen=True):
    """How far a log is."""

    schema_name: ClassVar[str] = "Size"

    size: Annotated[int, doc("bytes that are kept")]


class StoredArtifact(msgspec.Struct, frozen=True, kw_only=True):
    """What the server has of an artifact."""

    schema_name: ClassVar[str] = "KeptArtifact"

    uri: Annotated[str, doc("what `Complete.artifacts` refers to")]
    bytes: Annotated[int, doc("its size")]
    sha256: Annotated[str, doc("its digest, in hex")]


class StoredCache(msgspec.Struct, frozen=True, kw_only=True):
    """What the server has of a cache."""

    schema_name: ClassVar[str] = "KeptCache"

    stored: Annotated[bool, doc("false when there was one already, which stays")]
    bytes: Annotated[int, doc("its size")]
    sha256: Annotated[str, doc("its digest, in hex")]


class NeededJob(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a job ended that another one needs."""

    schema_name: ClassVar[str] = "Need"

    result: Annotated[Literal["success", "failure", "cancelled", "skipped"], doc("how it ended")]
    outputs: Annotated[dict[str, Any], doc("its output, if that is an object")] = {}
    family: Annotated[str, doc("what a pipeline calls all jobs of its matrix; empty: it is of none")] = ""
    is_there: Annotated[bool, doc("false when the run has no such job")] = True


class SharedArtifact(msgspec.Struct, frozen=True, kw_only=True):
    """An artifact of a job of the run: many files under a name, packed, or one file as it is."""

    job: Annotated[str, doc("whose it is")]
    name: Annotated[str, doc("its name; empty: it is one file")]
    path: Annotated[str, doc("of one file: its path in the workspace")]
    uri: Annotated[str, doc("where it is read, under the lease")]
    bytes: Annotated[int, doc("its size")]


class CacheMatch(msgspec.Struct, frozen=True, kw_only=True):
    """A cache that there is."""

    schema_name: ClassVar[str] = "FoundCache"

    key: Annotated[str, doc("its whole key")]


class WorktreeStart(msgspec.Struct, frozen=True, kw_only=True):
    """What the tree of a job begins with."""

    schema_name: ClassVar[str] = "TreeStart"

    base: Annotated[str, doc("a commit that the repository has")]
    tip: Annotated[str, doc("where the tree is to be; it stands on the base")]
    bundle_bytes: Annotated[int, doc("how large the bundle of what lies between is; 0: nothing does")] = 0


class EndedStreams(msgspec.Struct, frozen=True):
    """Which streams nobody needs any more."""

    schema_name: ClassVar[str] = "StreamsOver"

    over: Annotated[list[str], doc("their trees may go; those of what failed are kept")]


class SourceCredential(msgspec.Struct, frozen=True, kw_only=True):
    """With what a runner fetches the sources."""

    value: Annotated[str, doc("a token, or `user:password`: a secret, for the runner alone")]
