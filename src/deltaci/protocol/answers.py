"""What the server answers beside document 001's messages: small objects, read by runners and described to everybody."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from deltaci.protocol.messages import CancelRequested, LeaseGranted, says


class Granted(msgspec.Struct, frozen=True, omit_defaults=True):
    """The answer to a request for work: leases, and which of the attempts that were named nobody can claim any more."""

    leases: Annotated[list[LeaseGranted], says("none when there is no work")]
    gone: Annotated[list[str], says("those of `attempts` that nobody can claim any more, these leases included")] = []


class Wanted(msgspec.Struct, frozen=True):
    """The answer to who waits to be told what is wanted."""

    cancels: Annotated[list[CancelRequested], says("none when nothing is wanted")]


class HandedBack(msgspec.Struct, frozen=True):
    """The job is given back."""

    handed_back: Annotated[bool, says("that others may have it")] = True


class Gone(msgspec.Struct, frozen=True):
    """The server knows that the runner leaves."""

    gone: Annotated[bool, says("whether it is gone already; otherwise when its current jobs are over")]


class Size(msgspec.Struct, frozen=True):
    """How far a log is."""

    size: Annotated[int, says("bytes that are kept")]


class KeptArtifact(msgspec.Struct, frozen=True, kw_only=True):
    """What the server has of an artifact."""

    uri: Annotated[str, says("what `Complete.artifacts` refers to")]
    bytes: Annotated[int, says("its size")]
    sha256: Annotated[str, says("its digest, in hex")]


class KeptCache(msgspec.Struct, frozen=True, kw_only=True):
    """What the server has of a cache."""

    stored: Annotated[bool, says("false when there was one already, which stays")]
    bytes: Annotated[int, says("its size")]
    sha256: Annotated[str, says("its digest, in hex")]


class Need(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a job ended that another one needs."""

    result: Annotated[Literal["success", "failure", "cancelled", "skipped"], says("how it ended")]
    outputs: Annotated[dict[str, Any], says("its output, if that is an object")] = {}
    family: Annotated[str, says("what a pipeline calls all jobs of its matrix; empty: it is of none")] = ""
    is_there: Annotated[bool, says("false when the run has no such job")] = True


class SharedArtifact(msgspec.Struct, frozen=True, kw_only=True):
    """An artifact of a job of the run: many files under a name, packed, or one file as it is."""

    job: Annotated[str, says("whose it is")]
    name: Annotated[str, says("its name; empty: it is one file")]
    path: Annotated[str, says("of one file: its path in the workspace")]
    uri: Annotated[str, says("where it is read, under the lease")]
    bytes: Annotated[int, says("its size")]


class FoundCache(msgspec.Struct, frozen=True, kw_only=True):
    """A cache that there is."""

    key: Annotated[str, says("its whole key")]


class TreeStart(msgspec.Struct, frozen=True, kw_only=True):
    """What the tree of a job begins with."""

    base: Annotated[str, says("a commit that the repository has")]
    tip: Annotated[str, says("where the tree is to be; it stands on the base")]
    bundle_bytes: Annotated[int, says("how large the bundle of what lies between is; 0: nothing does")] = 0


class StreamsOver(msgspec.Struct, frozen=True):
    """Which streams nobody needs any more."""

    over: Annotated[list[str], says("their trees may go; those of what failed are kept")]


class SourceCredential(msgspec.Struct, frozen=True, kw_only=True):
    """With what a runner fetches the sources."""

    value: Annotated[str, says("a token, or `user:password`: a secret, for the runner alone")]
