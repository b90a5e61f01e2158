"""The HTTP routes of the runner protocol, and its error codes.

The server routes by this table; `docs/protocol.md` is generated from it.
"""

from __future__ import annotations

from typing import Final

import msgspec

ROOT: Final = "/runner/v1/"
OPENAPI_PATH: Final = "/openapi.json"
LEASE_HEADER: Final = "Delta-Lease"
OFFSET_HEADER: Final = "Delta-Offset"
SHA256_HEADER: Final = "Delta-Sha256"
MAX_LEASE_CHARS: Final = 2000
MAX_OFFSET_DIGITS: Final = 15
MAX_PATH_BYTES: Final = 600
MAX_CACHE_KEY: Final = 4000

AUTHORIZATION: Final = "`Authorization: Bearer <credential>`, or a client certificate"
UNDER_LEASE: Final = f"{AUTHORIZATION}, `{LEASE_HEADER}: <lease_id>`"


class ProtocolRoute(msgspec.Struct, frozen=True, kw_only=True):
    """One HTTP method of one path of the protocol.

    `name` is the path segment after the root; `path_parameter` stands for the segments after it.
    """

    method: str
    name: str
    path_parameter: str = ""
    summary: str
    headers: str = AUTHORIZATION
    body: str = "none"
    response: str
    codes: tuple[str, ...] = ()

    @property
    def path(self) -> str:
        """The whole path, with the placeholder of its parameter, if it has one."""
        return f"{ROOT}{self.name}{'/' + self.path_parameter if self.path_parameter else ''}"


_COMMON_CODES: Final = ("bad_credential", "expired_credential", "wrong_runner", "overloaded", "unavailable")
_JSON_BODY_CODES: Final = ("bad_json", "bad_message", "bad_request", "too_large", "too_slow", "wrong_media_type")

PROTOCOL_ROUTES: Final[tuple[ProtocolRoute, ...]] = (
    ProtocolRoute(
        method="POST",
        name="register",
        summary="exchange a registration token, which is valid once, or an OIDC token for a credential",
        headers="none",
        body="`Registration`",
        response="`Registered`",
        codes=(*_JSON_BODY_CODES, *_COMMON_CODES),
    ),
    ProtocolRoute(
        method="POST",
        name="renew",
        summary="get a new credential before the old one expires, and report changed capabilities",
        body="`Renewal`, or none",
        response="`Registered`",
        codes=(*_JSON_BODY_CODES, *_COMMON_CODES),
    ),
    ProtocolRoute(
        method="POST",
        name="lease",
        summary="ask for work; waits up to `wait_seconds` for the first job",
        body="`Lease`",
        response='`{"leases": [LeaseGranted, …]}`, an empty list when there is no work; '
        '`"gone": [<attempt>, …]` names those of `attempts` that can no longer be claimed, including the granted ones',
        codes=("shut_down", *_JSON_BODY_CODES, *_COMMON_CODES),
    ),
    ProtocolRoute(
        method="POST",
        name="leave",
        summary="sign off: the runner gets no new jobs and is shut down when its current ones are over; safe to repeat",
        body="`Leave`",
        response='`{"gone": <whether it is shut down already>}`',
        codes=(*_JSON_BODY_CODES, *_COMMON_CODES),
    ),
    ProtocolRoute(
        method="POST",
        name="control",
        summary="wait up to `wait_seconds` for cancel requests; optional: answers to heartbeats have them too",
        body="`Control`",
        response='`{"cancels": [CancelRequested, …]}`, an empty list when none came',
        codes=(*_JSON_BODY_CODES, *_COMMON_CODES),
    ),
    ProtocolRoute(
        method="POST",
        name="messages",
        summary="send one message under a lease; safe to repeat",
        body="`AckLease`, `Heartbeat`, `Complete` or `CancelAck`",
        response="`HeartbeatAck`, `HeartbeatAck`, `CompleteAck` or `CancelAcked`; 409 with `StaleLease`",
        codes=("cancel_not_requested", "wrong_state", *_JSON_BODY_CODES, "unreadable", *_COMMON_CODES),
    ),
    ProtocolRoute(
        method="POST",
        name="batch",
        summary="send many messages; each is accepted or refused on its own",
        body="a list of what `messages` takes",
        response="200 and a list with one answer for each, in the same order: a message, `StaleLease` or `Problem`",
        codes=(*_JSON_BODY_CODES, *_COMMON_CODES),
    ),
    ProtocolRoute(
        method="GET",
        name="specs",
        path_parameter="<attempt>",
        summary="read a job specification that was too large for `LeaseGranted`; `job_spec_ref` is its path",
        headers=UNDER_LEASE,
        response="`JobSpec`; 409 with `StaleLease`",
        codes=("bad_request", "not_found", "unreadable", *_COMMON_CODES),
    ),
    ProtocolRoute(
        method="POST",
        name="hand-back",
        summary="return the job to the queue because the runner leaves; its processes have ended",
        headers=UNDER_LEASE,
        response='`{"handed_back": true}`; 409 with `StaleLease`',
        codes=("bad_request", "wrong_state", "unreadable", *_COMMON_CODES),
    ),
    ProtocolRoute(
        method="GET",
        name="log",
        summary="read how many bytes of the lease's log are stored",
        headers=UNDER_LEASE,
        response='`{"size": <bytes>}`; 409 with `StaleLease`',
        codes=("bad_request", "unreadable", *_COMMON_CODES),
    ),
    ProtocolRoute(
        method="POST",
        name="log",
        summary="append to the lease's log; bytes that are stored already are skipped",
        headers=f"{UNDER_LEASE}, `{OFFSET_HEADER}: <byte at which this chunk begins>`",
        body="bytes of the log",
        response='`{"size": <bytes>}`; 409 with `StaleLease`',
        codes=("bad_request", "too_large", "too_slow", "log_gap", "log_full", "unreadable", *_COMMON_CODES),
    ),
    ProtocolRoute(
        method="PUT",
        name="artifacts",
        path_parameter="<path>",
        summary="upload a file of the job as an artifact, by its path in the workspace; safe to repeat",
        headers=f"{UNDER_LEASE}, optional `{SHA256_HEADER}: <hex>`",
        body="bytes of the file",
        response='`{"uri": …, "bytes": …, "sha256": …}`: `Complete.artifacts` names the `uri`; 409 with `StaleLease`',
        codes=("bad_request", "too_large", "too_slow", "unreadable", *_COMMON_CODES),
    ),
    ProtocolRoute(
        method="GET",
        name="caches",
        path_parameter="<key>",
        summary="read a cache entry of the job's own scope, or else of the scope of trusted runs",
        headers=UNDER_LEASE,
        response=f"bytes of the cache entry, with `{SHA256_HEADER}`; 409 with `StaleLease`",
        codes=("bad_request", "not_found", "unreadable", *_COMMON_CODES),
    ),
    ProtocolRoute(
        method="PUT",
        name="caches",
        path_parameter="<key>",
        summary="store a cache entry in the scope of the job's record; an existing entry is not replaced",
        headers=f"{UNDER_LEASE}, optional `{SHA256_HEADER}: <hex>`",
        body="bytes of the cache entry",
        response='`{"stored": true, "bytes": …, "sha256": …}`, false if the key exists; 409 with `StaleLease`',
        codes=("bad_request", "too_large", "too_slow", "unreadable", *_COMMON_CODES),
    ),
    ProtocolRoute(
        method="GET",
        name="secrets",
        summary="read the secrets that the job's record names",
        headers=UNDER_LEASE,
        response="an object of strings by name; 409 with `StaleLease`",
        codes=("bad_request", "untrusted", "no_secret", "unreadable", *_COMMON_CODES),
    ),
    ProtocolRoute(
        method="GET",
        name="optional-secrets",
        summary="read those of the record's `optional_secrets` that exist; none for an untrusted run",
        headers=UNDER_LEASE,
        response="an object of strings by name; 409 with `StaleLease`",
        codes=("bad_request", "unreadable", *_COMMON_CODES),
    ),
    ProtocolRoute(
        method="GET",
        name="source-credential",
        summary="read the credential for the sources, for the runner only; also for an untrusted run",
        headers=UNDER_LEASE,
        response='`{"value": <secret>}`; 409 with `StaleLease`',
        codes=("bad_request", "not_found", "no_secret", "unreadable", *_COMMON_CODES),
    ),
    ProtocolRoute(
        method="GET",
        name="needs",
        summary="read the results of the jobs that the job's record names in `needs`",
        headers=UNDER_LEASE,
        response='an object by name: `{"result": "success", "outputs": {…}}`; 409 with `StaleLease`',
        codes=("bad_request", "unreadable", *_COMMON_CODES),
    ),
    ProtocolRoute(
        method="GET",
        name="run-artifacts",
        summary="list the artifacts of this job and of the finished jobs of its run",
        headers=UNDER_LEASE,
        response='a list of `{"job": …, "name": …, "path": …, "uri": …, "bytes": …}`; 409 with `StaleLease`',
        codes=("bad_request", "too_large", "unreadable", *_COMMON_CODES),
    ),
    ProtocolRoute(
        method="GET",
        name="run-artifact",
        path_parameter="<uri>",
        summary="read one artifact of the run",
        headers=UNDER_LEASE,
        response=f"its bytes, with `{SHA256_HEADER}`; a named one is a compressed tar file; 409 with `StaleLease`",
        codes=("bad_request", "not_found", "unreadable", *_COMMON_CODES),
    ),
    ProtocolRoute(
        method="GET",
        name="tree",
        summary="read the commit that the job's worktree begins with",
        headers=UNDER_LEASE,
        response='`{"base": <commit>, "tip": <commit>, "bundle_bytes": …}`; 409 with `StaleLease`',
        codes=("bad_request", "not_found", "wrong_state", "unreadable", *_COMMON_CODES),
    ),
    ProtocolRoute(
        method="GET",
        name="tree-bundle",
        summary="read the commits between the base and the tip, which the repository does not have",
        headers=UNDER_LEASE,
        response=f"a git bundle, with `{SHA256_HEADER}`; an empty body if there are none; 409 with `StaleLease`",
        codes=("bad_request", "not_found", "wrong_state", "unreadable", *_COMMON_CODES),
    ),
    ProtocolRoute(
        method="POST",
        name="streams",
        summary="read which of the streams whose worktrees the runner keeps have ended, so that it may delete these",
        body="`Streams`",
        response='`{"over": [<stream>, …]}`; worktrees of failed streams are kept',
        codes=(*_JSON_BODY_CODES, *_COMMON_CODES),
    ),
    ProtocolRoute(
        method="GET",
        name="cache-keys",
        path_parameter="<prefix>",
        summary="find the newest cache entry with this key prefix, in the job's scope or else in that of trusted runs",
        headers=UNDER_LEASE,
        response='`{"key": …}`; 409 with `StaleLease`',
        codes=("bad_request", "not_found", "unreadable", *_COMMON_CODES),
    ),
)


class Refusal(msgspec.Struct, frozen=True):
    """The HTTP status of an error code, and its meaning."""

    status: int
    meaning: str


DEFAULT_STATUS: Final = 409  # Of codes that core refuses commands with.

REFUSALS: Final[dict[str, Refusal]] = {
    "bad_json": Refusal(400, "the body is not JSON"),
    "bad_request": Refusal(400, "an invalid header, or fields that contradict each other; the message names them"),
    "bad_credential": Refusal(
        401, "no token, or not one that this server issued for this use; register with a new one"
    ),
    "expired_credential": Refusal(401, "the token is expired; renew it in time, or register with a new one"),
    "wrong_runner": Refusal(
        403, "the credential belongs to another runner than `runner_id`, or than the client certificate"
    ),
    "untrusted": Refusal(403, "untrusted runs may not read this; run the job from a trusted source"),
    "not_found": Refusal(404, "the path, or what it refers to, does not exist"),
    "wrong_method": Refusal(405, "the path does not support this method"),
    "too_slow": Refusal(408, "the body did not arrive in time; send it again"),
    "cancel_not_requested": Refusal(409, "no cancel was requested for this attempt; continue"),
    "wrong_state": Refusal(409, "the attempt's state does not allow this message"),
    "shut_down": Refusal(
        409, "this incarnation of the runner is shut down: renew the credential and continue with the new `runner_id`"
    ),
    "log_gap": Refusal(
        409, "the offset is beyond the end of the log; the message says where it ends: continue from there"
    ),
    "log_full": Refusal(409, "the log has reached its size limit; stop sending it"),
    "no_secret": Refusal(
        409, "there is no secret of this name, or it cannot be decrypted; set it, then run the job again"
    ),
    "too_large": Refusal(413, "more bytes or messages than the limit; the rest was not read"),
    "wrong_media_type": Refusal(
        415, "the Content-Type is not JSON; send JSON with `application/json` or without a Content-Type"
    ),
    "bad_message": Refusal(422, "not a message of this protocol; the answer names the field"),
    "overloaded": Refusal(503, "too many requests are pending; try again later"),
    "unavailable": Refusal(
        503, "the server cannot answer now, and may or may not have processed the request; repeat it"
    ),
    "unreadable": Refusal(503, "the attempt's record cannot be read by this version; try again later"),
}


def status_of(code: str) -> int:
    """Return the HTTP status of an error code."""
    return REFUSALS[code].status if code in REFUSALS else DEFAULT_STATUS
