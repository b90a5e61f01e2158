"""Exceptions of the core.

`Refused` and its subclasses are errors of the caller: nothing changed, the code is stable, and the message names
the actual value, the expected one and the next step. `InvariantBroken` is a bug of this program: it is raised and
never caught. `Unreachable` is an error of a connection: the same call may succeed later.
"""

from __future__ import annotations

# The codes of `Refused`. Callers and the API depend on them.
CODES = frozenset(
    {
        "bad_credential",
        "bad_range",
        "bad_request",
        "bad_spec",
        "cancel_not_requested",
        "dependency_cycle",
        "expired_credential",
        "job_canceled",
        "lease_lost",
        "log_full",
        "log_gap",
        "missing_scope",
        "no_executor",
        "no_secret",
        "not_allowed",
        "not_due",
        "not_eligible",
        "not_found",
        "over_quota",
        "plan_changed",
        "request_id_reused",
        "shut_down",
        "stale_lease",
        "stale_rev",
        "stale_version",
        "too_large",
        "too_slow",
        "unreadable",
        "untrusted",
        "worker_full",
        "wrong_actor",
        "wrong_media_type",
        "wrong_method",
        "wrong_runner",
        "wrong_state",
    }
)


# The reasons of `StaleLease`, which are sent to runners.
STALE_REASONS = frozenset(
    {"LEASE_EXPIRED", "LEASE_REVOKED", "LEASE_COMPLETED", "LEASE_CANCELED", "LEASE_REPLACED", "UNKNOWN_LEASE"}
)


class Refused(Exception):
    """Raised if a command is invalid or not allowed in the current state. It has changed nothing."""

    def __init__(self, code: str, message: str) -> None:
        if code not in CODES:
            raise InvariantBroken(f"refusal code {code!r} is not declared in CODES")
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message


class StaleLease(Refused):
    """Raised for a message under a lease that is no longer live; its runner must stop the attempt."""

    def __init__(self, reason: str, message: str) -> None:
        if reason not in STALE_REASONS:
            raise InvariantBroken(f"reason {reason!r} is not declared in STALE_REASONS")
        super().__init__("stale_lease", message)
        self.reason = reason


class JobCanceled(Refused):
    """Raised if the job's cancellation was requested before its result arrived, so that the result does not count.

    The late result may have changed the job: it counts as the acknowledgement of the cancellation.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__("job_canceled", message)
        self.reason = reason


class LeaseLost(Refused):
    """Raised if the job failed instead of becoming claimable, because its lease was lost more often than allowed.

    Unlike other refusals, this one may have changed the job: it is `failed` now, with the error LEASE_LOST.
    """

    def __init__(self, lost_leases: int, message: str) -> None:
        super().__init__("lease_lost", message)
        self.lost_leases = lost_leases


class InvariantBroken(Exception):
    """Raised if an invariant of this program does not hold: a bug in it, never an error of the caller."""


class NotLoaded(Exception):
    """Raised if a decision needs records that are not loaded: the caller loads them and decides again.

    `ids` are the missing records; `jobs_of` is a run whose jobs are not loaded, `workers_of` a tenant whose workers.
    """

    def __init__(self, *, ids: tuple[str, ...] = (), jobs_of: str = "", workers_of: str | None = None) -> None:
        records = f"the workers of tenant {workers_of!r}" if workers_of is not None else f"the jobs of {jobs_of}"
        super().__init__(f"not loaded: {', '.join(ids) or records}")
        self.ids = ids
        self.jobs_of = jobs_of
        self.workers_of = workers_of


class Unreachable(Exception):
    """A server, a forge or a store did not answer correctly. It may have carried out the request: repeat it."""
