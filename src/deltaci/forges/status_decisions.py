"""Decide which commit status may be sent next. Pure: no clock, no network.

The store has one document for each context of a commit. It records which version of which run the forge has, which
server is about to send a status, and the failures so far. Versions are ordered: those of a trusted run are newer than
those of a run for a fork, then those of the run created later, and within a run its `rev` counts. A version is never
sent after a newer one.

A server sends in three steps: `next_action` returns the state with its claim, which it writes to the store, so that no
other server sends at the same time; it sends the request; and it writes the state that `after_success` or
`after_failure` returns.
"""

from __future__ import annotations

from typing import Any, Final, Literal, Protocol

import msgspec
from msgspec.structs import replace

from deltaci.forges.projects import ForgeProject
from deltaci.forges.webhook_event import fingerprint

MAX_DESCRIPTION: Final = 140  # GitHub's limit.
MAX_PROBLEM: Final = 500

State = Literal["pending", "running", "success", "failure", "canceled", "error"]


class Annotation(msgspec.Struct, frozen=True, kw_only=True):
    """A message about one line of a file, shown by the forge beside the code."""

    path: str
    line: int
    message: str
    column: int = 0
    title: str = ""
    level: Literal["failure", "warning", "notice"] = "failure"


class RunVersion(msgspec.Struct, frozen=True, order=True):
    """A run at one of its revisions. The forge must show the greatest version of a commit's context.

    A run for a fork orders before every other: a pull request with a commit that the repository already has must not
    change the status of that commit.
    """

    is_trusted: bool = False
    created_at: int = msgspec.field(default=0, name="at")
    run_id: str = ""
    rev: int = 0


class StatusReport(msgspec.Struct, frozen=True, kw_only=True):
    """The status of a run, to be sent to a forge."""

    run_id: str
    commit: str
    context: str
    state: State
    description: str
    url: str = ""
    ref: str = ""
    summary: str = ""
    annotations: tuple[Annotation, ...] = ()


class ForgeRequest(msgspec.Struct, frozen=True):
    """A request to a forge's API. `headers` contains the token, so `repr` leaves it out."""

    method: str
    url: str
    headers: dict[str, str]
    body: dict[str, Any]

    def __repr__(self) -> str:
        return f"ForgeRequest({self.method} {self.url})"


class ForgeResponse(msgspec.Struct, frozen=True):
    """A forge's response: the beginning of its body as text, and the `id` of the resource that it describes.

    `retry_after_seconds` is how long the forge wants no further requests.
    """

    status: int
    text: str = ""
    retry_after_seconds: float = 0.0
    id: str = ""


class StatusApi(Protocol):
    """Builds the requests that set commit statuses on one kind of forge, and interprets the responses."""

    def build_request(self, project: ForgeProject, report: StatusReport, check_id: str) -> ForgeRequest:
        """Build the request for a report. `check_id` is the forge's id of the run's existing check, if it has one."""
        ...

    def repository_request(self, project: ForgeProject, repository_id: str) -> ForgeRequest:
        """Build the request that reads a repository by its id."""
        ...

    def accepted_id(self, response: ForgeResponse) -> str | None:
        """Return the forge's id of the status that it accepted, or None if it did not accept it."""
        ...


class StatusState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The stored document about one context of a commit.

    `sent` is the version that the forge has; if it `is_unsure`, that version must be sent again. `attempted` is the
    newest version of any request, even of one without a response. `claimed_by` is the server that is about to send,
    until `claimed_until`. `failing_since`, `tries` and `refusals` count the failures of sending the version `failing`;
    once it `is_abandoned`, it is not tried again.
    """

    sent: RunVersion = msgspec.field(default=RunVersion(), name="mark")
    attempted: RunVersion = msgspec.field(default=RunVersion(), name="tried")
    state: str = ""
    description: str = ""
    check_id: str = msgspec.field(default="", name="check")
    check_run_id: str = msgspec.field(default="", name="check_of")  # The run that the check belongs to.
    is_unsure: bool = False
    claimed_by: str = msgspec.field(default="", name="holder")
    claimed_until: float = msgspec.field(default=0.0, name="held_until")
    failing: RunVersion = RunVersion()
    failing_since: float = msgspec.field(default=0.0, name="since")
    tries: int = 0
    refusals: int = 0
    retry_at: float = msgspec.field(default=0.0, name="next_at")
    problem: str = ""
    is_abandoned: bool = msgspec.field(default=False, name="is_given_up")


class StatusRetryPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """The delays between tries of sending a status, and when to abandon it."""

    initial_seconds: float = 1.0
    max_seconds: float = 300.0
    abandon_after_seconds: float = 6 * 3600.0
    max_refusals: int = 8  # A person may repair the cause of a refusal, but waiting rarely helps.
    claim_seconds: float = 30.0  # Longer than a request can take.
    max_retry_after_seconds: float = 3600.0  # A longer Retry-After of a forge is shortened to this.


class SendStatus(msgspec.Struct, frozen=True):
    """Send now. Write `claimed` to the store first, so that no other server sends meanwhile."""

    claimed: StatusState


class StatusDone(msgspec.Struct, frozen=True):
    """Nothing more is to be sent for this version; `outcome` says why, for the run's last event."""

    outcome: str


class CheckLater(msgspec.Struct, frozen=True):
    """Decide again at this time."""

    at: float


def document_name(project: str, commit: str, context: str) -> str:
    """Return the name of the document of a commit's context. Project and context are hashed: they may contain a `/`."""
    return f"{fingerprint(project)[:16]}/{commit}/{fingerprint(context)[:16]}"


def next_action(
    state: StatusState, version: RunVersion, report: StatusReport, server_id: str, now: float, policy: StatusRetryPolicy
) -> SendStatus | StatusDone | CheckLater:
    """Return what to do about the report of this version: send it now, decide again later, or never send it."""
    newest_version = max(state.sent, state.attempted)
    if newest_version > version:
        is_same_run = newest_version.run_id == version.run_id
        return StatusDone(state.state if is_same_run else f"superseded by run {newest_version.run_id}")
    # An equal status of the same run need not be sent again, unless a later request may have arrived since.
    is_same_status = (state.state, state.description) == (report.state, report.description)
    is_displayed = state.sent.run_id == version.run_id and is_same_status and newest_version == state.sent
    if not state.is_unsure and (state.sent == version or is_displayed):
        return StatusDone(state.state)
    if state.failing == version and state.is_abandoned:
        return StatusDone(f"exhausted: {state.problem}")
    if state.claimed_by and state.claimed_by != server_id and state.claimed_until > now:
        return CheckLater(state.claimed_until)
    if state.failing == version and state.retry_at > now:
        return CheckLater(state.retry_at)
    claimed_state = replace(state, attempted=version, claimed_by=server_id, claimed_until=now + policy.claim_seconds)
    return SendStatus(claimed_state)


def after_success(state: StatusState, version: RunVersion, report: StatusReport, status_id: str) -> StatusState:
    """Return the state after the forge accepted the report. `status_id` is the forge's id of the status or check."""
    return StatusState(
        sent=version,
        attempted=version,
        state=report.state,
        description=report.description,
        check_id=status_id or existing_check_id(state, report),
        check_run_id=report.run_id,
    )


def existing_check_id(state: StatusState, report: StatusReport) -> str:
    """Return the forge's id of the run's check, or an empty string if the check belongs to another run."""
    return state.check_id if state.check_run_id == report.run_id else ""


def after_failure(
    state: StatusState,
    version: RunVersion,
    problem: str,
    *,
    is_refused: bool,
    delay_seconds: float,
    now: float,
    policy: StatusRetryPolicy,
) -> StatusState:
    """Return the state after a failed request. `is_refused`: the same request will hardly be accepted later."""
    if state.failing != version:
        state = replace(state, failing=version, failing_since=now, tries=0, refusals=0)
    tries, refusals = state.tries + 1, state.refusals + is_refused
    is_abandoned = refusals >= policy.max_refusals or now - state.failing_since >= policy.abandon_after_seconds
    return replace(
        state,
        claimed_by="",
        claimed_until=0.0,
        tries=tries,
        refusals=refusals,
        retry_at=now + delay_seconds,
        problem=f"{problem}; {tries} {'try' if tries == 1 else 'tries'}"[:MAX_PROBLEM],
        is_abandoned=is_abandoned,
    )


def retry_delay_seconds(
    try_count: int, response: ForgeResponse | None, random_fraction: float, policy: StatusRetryPolicy
) -> float:
    """Return the seconds to wait before the next try, at least as many as the forge asks for.

    They grow exponentially with `try_count`; up to half of them is taken off at random.
    """
    requested_seconds = (
        min(response.retry_after_seconds, policy.max_retry_after_seconds) if response is not None else 0.0
    )
    backoff_seconds = min(policy.max_seconds, policy.initial_seconds * 2.0 ** min(try_count, 30))
    return max(requested_seconds, backoff_seconds * (0.5 + random_fraction / 2))


def is_refusal(response: ForgeResponse) -> bool:
    """Return whether the same request will hardly be accepted later: it is invalid, or the token may not make it."""
    if response.status in (408, 425, 429) or response.retry_after_seconds:
        return False
    return 300 <= response.status < 500
