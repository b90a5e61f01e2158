"""The addresses of the runner protocol over HTTP, and every code that a refusal may carry there.

The server routes by this table, and `docs/protocol.md` is drawn from it.
"""

from __future__ import annotations

from typing import Final

import msgspec

ROOT: Final = "/runner/v1/"
OPENAPI_PATH: Final = "/openapi.json"  # Of all addresses, see openapi.py.
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
    """One method of one address. `name` is what follows the root; what follows `name/` is a part of the request."""

    method: str
    name: str
    rest: str = ""
    does: str
    headers: str = AUTHORIZATION
    body: str = "none"
    answer: str
    codes: tuple[str, ...] = ()

    @property
    def path(self) -> str:
        """As people write it."""
        return f"{ROOT}{self.name}{'/' + self.rest if self.rest else ''}"


_ANY: Final = ("bad_credential", "expired_credential", "wrong_runner", "overloaded", "unavailable")
_BODY: Final = ("bad_json", "bad_message", "bad_request", "too_large", "too_slow", "wrong_media_type")

PROTOCOL_ROUTES: Final[tuple[ProtocolRoute, ...]] = (
    ProtocolRoute(
        method="POST",
        name="register",
        does="exchange a registration token, which is good once, or an OIDC token for a credential",
        headers="none",
        body="`Registration`",
        answer="`Registered`",
        codes=(*_BODY, *_ANY),
    ),
    ProtocolRoute(
        method="POST",
        name="renew",
        does="get a fresh credential while the old one is good, and tell what changed",
        body="`Renewal`, or none",
        answer="`Registered`",
        codes=(*_BODY, *_ANY),
    ),
    ProtocolRoute(
        method="POST",
        name="lease",
        does="ask for work; waits up to `wait_seconds` for the first job",
        body="`Lease`",
        answer='`{"leases": [LeaseGranted, …]}`, an empty list when there is no work; '
        '`"gone": [<attempt>, …]` names those of `attempts` that nobody can claim any more, these leases included',
        codes=("shut_down", *_BODY, *_ANY),
    ),
    ProtocolRoute(
        method="POST",
        name="leave",
        does="say that the runner leaves: it gets nothing new, and is gone when its current jobs are over; repeatable",
        body="`Leave`",
        answer='`{"gone": <whether it is gone already>}`',
        codes=(*_BODY, *_ANY),
    ),
    ProtocolRoute(
        method="POST",
        name="control",
        does="wait up to `wait_seconds` to be asked to stop; optional: heartbeats are answered with the same",
        body="`Control`",
        answer='`{"cancels": [CancelRequested, …]}`, an empty list when nothing is wanted',
        codes=(*_BODY, *_ANY),
    ),
    ProtocolRoute(
        method="POST",
        name="messages",
        does="say one thing under a lease; safe to repeat",
        body="`AckLease`, `Heartbeat`, `Complete` or `CancelAck`",
        answer="`HeartbeatAck`, `HeartbeatAck`, `CompleteAck` or `CancelAcked`; 409 with `StaleLease`",
        codes=("cancel_not_requested", "wrong_state", *_BODY, "unreadable", *_ANY),
    ),
    ProtocolRoute(
        method="POST",
        name="batch",
        does="say many things; each is accepted or refused on its own",
        body="a list of what `messages` takes",
        answer="200 and a list with the answer to each in its place: a message, `StaleLease` or `Problem`",
        codes=(*_BODY, *_ANY),
    ),
    ProtocolRoute(
        method="GET",
        name="specs",
        rest="<attempt>",
        does="read a job specification that was too large for `LeaseGranted`; `job_spec_ref` is its address",
        headers=UNDER_LEASE,
        answer="`JobSpec`; 409 with `StaleLease`",
        codes=("bad_request", "not_found", "unreadable", *_ANY),
    ),
    ProtocolRoute(
        method="POST",
        name="hand-back",
        does="give the job back because the runner leaves: nothing of it runs any more, and it counts for nothing",
        headers=UNDER_LEASE,
        answer='`{"handed_back": true}`; 409 with `StaleLease`',
        codes=("bad_request", "wrong_state", "unreadable", *_ANY),
    ),
    ProtocolRoute(
        method="GET",
        name="log",
        does="ask how much of the lease's log is kept",
        headers=UNDER_LEASE,
        answer='`{"size": <bytes>}`; 409 with `StaleLease`',
        codes=("bad_request", "unreadable", *_ANY),
    ),
    ProtocolRoute(
        method="POST",
        name="log",
        does="append to the lease's log; bytes that are kept already are skipped",
        headers=f"{UNDER_LEASE}, `{OFFSET_HEADER}: <byte at which this part begins>`",
        body="bytes of the log",
        answer='`{"size": <bytes>}`; 409 with `StaleLease`',
        codes=("bad_request", "too_large", "too_slow", "log_gap", "log_full", "unreadable", *_ANY),
    ),
    ProtocolRoute(
        method="PUT",
        name="artifacts",
        rest="<path>",
        does="keep a file that the job left behind, by its path in the workspace; safe to repeat",
        headers=f"{UNDER_LEASE}, optional `{SHA256_HEADER}: <hex>`",
        body="bytes of the file",
        answer='`{"uri": …, "bytes": …, "sha256": …}`: `Complete.artifacts` refers to the `uri`; 409 with `StaleLease`',
        codes=("bad_request", "too_large", "too_slow", "unreadable", *_ANY),
    ),
    ProtocolRoute(
        method="GET",
        name="caches",
        rest="<key>",
        does="read a cache: the job's own scope's, or else that of trusted runs",
        headers=UNDER_LEASE,
        answer=f"bytes of the cache, with `{SHA256_HEADER}`; 409 with `StaleLease`",
        codes=("bad_request", "not_found", "unreadable", *_ANY),
    ),
    ProtocolRoute(
        method="PUT",
        name="caches",
        rest="<key>",
        does="keep a cache, in the scope that the job's own record names; the first one under a key stays",
        headers=f"{UNDER_LEASE}, optional `{SHA256_HEADER}: <hex>`",
        body="bytes of the cache",
        answer='`{"stored": true, "bytes": …, "sha256": …}`, false when there was one; 409 with `StaleLease`',
        codes=("bad_request", "too_large", "too_slow", "unreadable", *_ANY),
    ),
    ProtocolRoute(
        method="GET",
        name="secrets",
        does="read the secrets that the job's own record names",
        headers=UNDER_LEASE,
        answer="an object of texts, each by its name; 409 with `StaleLease`",
        codes=("bad_request", "untrusted", "no_secret", "unreadable", *_ANY),
    ),
    ProtocolRoute(
        method="GET",
        name="optional-secrets",
        does="read those of the record's `optional_secrets` that there are; none for a run that is not trusted",
        headers=UNDER_LEASE,
        answer="an object of texts, each by its name; 409 with `StaleLease`",
        codes=("bad_request", "unreadable", *_ANY),
    ),
    ProtocolRoute(
        method="GET",
        name="source-credential",
        does="read with what the runner, never the job, fetches the sources; also for a run that is not trusted",
        headers=UNDER_LEASE,
        answer='`{"value": <secret>}`; 409 with `StaleLease`',
        codes=("bad_request", "not_found", "no_secret", "unreadable", *_ANY),
    ),
    ProtocolRoute(
        method="GET",
        name="needs",
        does="ask how the jobs of the run ended that the job's own record names in `needs`",
        headers=UNDER_LEASE,
        answer='an object, by name: `{"result": "success", "outputs": {…}}`; 409 with `StaleLease`',
        codes=("bad_request", "unreadable", *_ANY),
    ),
    ProtocolRoute(
        method="GET",
        name="run-artifacts",
        does="list the artifacts of the jobs of the run that are over, and of this one itself",
        headers=UNDER_LEASE,
        answer='a list of `{"job": …, "name": …, "path": …, "uri": …, "bytes": …}`; 409 with `StaleLease`',
        codes=("bad_request", "too_large", "unreadable", *_ANY),
    ),
    ProtocolRoute(
        method="GET",
        name="run-artifact",
        rest="<uri>",
        does="read one of them",
        headers=UNDER_LEASE,
        answer=f"its bytes, with `{SHA256_HEADER}`; one with a name is a compressed tar file; 409 with `StaleLease`",
        codes=("bad_request", "not_found", "unreadable", *_ANY),
    ),
    ProtocolRoute(
        method="GET",
        name="tree",
        does="ask what the job's tree begins with",
        headers=UNDER_LEASE,
        answer='`{"base": <commit>, "tip": <commit>, "bundle_bytes": …}`; 409 with `StaleLease`',
        codes=("bad_request", "not_found", "wrong_state", "unreadable", *_ANY),
    ),
    ProtocolRoute(
        method="GET",
        name="tree-bundle",
        does="read the commits between the base and the tip, which only the server has",
        headers=UNDER_LEASE,
        answer=f"a bundle of git, with `{SHA256_HEADER}`; nothing if there are none; 409 with `StaleLease`",
        codes=("bad_request", "not_found", "wrong_state", "unreadable", *_ANY),
    ),
    ProtocolRoute(
        method="POST",
        name="streams",
        does="ask which of the streams whose trees the runner keeps are over, so that these may go",
        body="`Streams`",
        answer='`{"over": [<stream>, …]}`; trees of what failed are kept',
        codes=(*_BODY, *_ANY),
    ),
    ProtocolRoute(
        method="GET",
        name="cache-keys",
        rest="<prefix>",
        does="find the newest cache whose key begins so: in the job's own scope, or else of trusted runs",
        headers=UNDER_LEASE,
        answer='`{"key": …}`; 409 with `StaleLease`',
        codes=("bad_request", "not_found", "unreadable", *_ANY),
    ),
)


class Refusal(msgspec.Struct, frozen=True):
    """What a code is sent with, and what it means."""

    status: int
    means: str


DEFAULT_STATUS: Final = 409  # What is not allowed now, whatever its code.

REFUSALS: Final[dict[str, Refusal]] = {
    "bad_json": Refusal(400, "the body is not JSON"),
    "bad_request": Refusal(400, "a header, or fields that do not fit each other; the message says which"),
    "bad_credential": Refusal(401, "no token, or not one of this server for this use; register with a new one"),
    "expired_credential": Refusal(401, "the token is too old; renew it in time, or register with a new one"),
    "wrong_runner": Refusal(403, "the credential is another runner's than `runner_id`, or than the client certificate"),
    "untrusted": Refusal(403, "the run is not trusted with this; run the job from a trusted source"),
    "not_found": Refusal(404, "there is nothing at this address"),
    "wrong_method": Refusal(405, "the address takes another method"),
    "too_slow": Refusal(408, "the body stopped coming; send it again"),
    "cancel_not_requested": Refusal(409, "nobody asked this attempt to stop; go on"),
    "wrong_state": Refusal(409, "the attempt is in a state in which this cannot be said"),
    "shut_down": Refusal(
        409, "the runner's life is over: renew the credential, and go on under the `runner_id` of the answer"
    ),
    "log_gap": Refusal(409, "the log is shorter than the offset; the message says where it ends: go on from there"),
    "log_full": Refusal(409, "the log has reached its limit; send no more of it"),
    "no_secret": Refusal(
        409, "there is no secret of this name, or it cannot be opened; set it, then run the job again"
    ),
    "too_large": Refusal(413, "more bytes or messages than fit at once; the rest was not read"),
    "wrong_media_type": Refusal(415, "the body says that it is not JSON; send JSON, and name it so or not at all"),
    "bad_message": Refusal(422, "not a message of this protocol; the answer names the field"),
    "overloaded": Refusal(503, "too much waits already; try again later"),
    "unavailable": Refusal(503, "the server cannot answer now, and may have done it or not; say the same again"),
    "unreadable": Refusal(503, "the attempt's record cannot be read by this version; try again later"),
}


def status_of(code: str) -> int:
    """The HTTP status of a refusal with this code."""
    return REFUSALS[code].status if code in REFUSALS else DEFAULT_STATUS
