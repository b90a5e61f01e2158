"""The orders that an attempt takes: from its runner under a lease, from the orchestrator, from people."""

from __future__ import annotations

from typing import Any, ClassVar, Final

import msgspec

from deltaci.core import failures, lease
from deltaci.core.errors import Refused
from deltaci.core.events import ORCHESTRATOR, RUNNER, USER
from deltaci.core.failures import Facts, Failure, FailureRule
from deltaci.core.ids import LeaseRef
from deltaci.core.machine import Command

# Why an attempt went STALE. The first three are the orchestrator's own findings.
LEASE_EXPIRED: Final = "LEASE_EXPIRED"
NOT_ACCEPTED: Final = "NOT_ACCEPTED"
WORKER_LOST: Final = "WORKER_LOST"
STALLED: Final = "STALLED"
HANDED_BACK: Final = "HANDED_BACK"
# What a stall may be called, and whether it counts against the attempt: a worker that hands back lost nothing.
STALLS: Final = {STALLED: True, WORKER_LOST: True, HANDED_BACK: False}
FOUND_LOST: Final = frozenset({LEASE_EXPIRED, NOT_ACCEPTED, WORKER_LOST})
# In the same decision: nothing else would ever look at it again, should whoever asked be gone after the first half.
REQUEUED_AT_ONCE: Final = FOUND_LOST | {HANDED_BACK}


class Publish(Command, frozen=True, kw_only=True):
    """Make the attempt claimable. This is its birth."""

    by: ClassVar[frozenset[str]] = frozenset({ORCHESTRATOR, USER})


class Grant(Command, frozen=True, kw_only=True):
    """Give the attempt to the worker that asks, under a new lease."""

    by: ClassVar[frozenset[str]] = frozenset({RUNNER})

    fingerprint: str
    labels: tuple[str, ...] = ()
    ttl_seconds: int = lease.TTL_SECONDS
    accept_seconds: int = lease.ACCEPT_SECONDS
    salt: str = ""


class Leased(Command, frozen=True, kw_only=True):
    """Whatever a runner says about its attempt: it must prove which lease it speaks for.

    With a `tenant`, another tenant's attempts do not exist for it.
    """

    by: ClassVar[frozenset[str]] = frozenset({RUNNER})

    lease: LeaseRef
    tenant: str = ""


class Ack(Leased, frozen=True, kw_only=True):
    """The runner took the job."""


class Start(Leased, frozen=True, kw_only=True):
    """The steps execute now."""


class Extend(Leased, frozen=True, kw_only=True):
    """Document 004's heartbeat: keep the lease, whether or not execution began."""


class Heartbeat(Leased, frozen=True, kw_only=True):
    """Document 001's heartbeat: alive and executing. Progress is the runner's best guess; nothing follows from it."""

    progress: Any = None


class BeginUpload(Leased, frozen=True, kw_only=True):
    """The steps are over; logs and artifacts are on their way."""


class Verdict(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the rules that were looked at after the execution say together: all hold, or which do not, and why."""

    is_passed: bool
    details: str = ""


class Outcome(Leased, frozen=True, kw_only=True):
    """What the runner saw: its exit code, its result, its report of artifacts, timings and the like.

    A `verdict` belongs to a success: the execution was one, whether or not its result is valid.
    `facts` and `rules`, what is known of a failure and the project's own ways to classify it, come from the
    orchestrator: the runner does not decide whether it is worth a retry.
    """

    is_success: bool
    exit_code: int | None = None
    result: Any = None
    report: Any = None
    facts: Facts = Facts()
    rules: tuple[FailureRule, ...] = ()
    verdict: Verdict | None = None

    def succeeds(self, job_id: str) -> bool:
        """A result that is not valid fails the job; without a job, the attempt: nobody else would hear of it."""
        return self.is_success and (bool(job_id) or self.verdict is None or self.verdict.is_passed)


class Finish(Outcome, frozen=True, kw_only=True):
    """Document 004's complete and fail: only a running attempt can be finished."""


class Complete(Outcome, frozen=True, kw_only=True):
    """Document 001's Complete: it implies every earlier step that the runner did not report."""


class CancelAck(Leased, frozen=True, kw_only=True):
    """The runner proves that it stopped."""

    report: Any = None


class Cancel(Command, frozen=True, kw_only=True):
    """Ask for a stop. With a live lease the runner has until the deadline to acknowledge."""

    by: ClassVar[frozenset[str]] = frozenset({ORCHESTRATOR, USER})

    reason: str
    deadline_seconds: int = lease.CANCEL_SECONDS


class Expire(Command, frozen=True, kw_only=True):
    """The lease ran out."""


class RevokeUnaccepted(Command, frozen=True, kw_only=True):
    """Nobody acknowledged the lease within the accept window."""


class Stall(Command, frozen=True, kw_only=True):
    """Its worker is no longer trusted, or hands the work back."""

    by: ClassVar[frozenset[str]] = frozenset({ORCHESTRATOR, USER})

    reason: str = STALLED


class Requeue(Command, frozen=True, kw_only=True):
    """Make a stale attempt claimable again, or give it up when its lease was lost too often."""

    by: ClassVar[frozenset[str]] = frozenset({ORCHESTRATOR, USER})


class TimeOut(Command, frozen=True, kw_only=True):
    """The job's time is over."""


class ForceCancel(Command, frozen=True, kw_only=True):
    """Finish a cancellation that nobody will acknowledge any more."""


def exit_code_of(outcome: Outcome) -> int | None:
    """The exit code that counts; a success that has another than 0 is refused."""
    # Document 004 knows no exit codes: who completes a job through the queue says that it ended well.
    is_plain = outcome.is_success and outcome.exit_code is None and isinstance(outcome, Finish)
    exit_code = 0 if is_plain else outcome.exit_code
    if outcome.is_success and exit_code != 0:
        raise Refused("bad_request", f"a success has exit code 0, not {exit_code}; report anything else as a failure")
    return exit_code


def failure_of(outcome: Outcome) -> Failure:
    """Why it counts as a failure: because of what its rules found, or as it is classified."""
    if outcome.is_success and outcome.verdict is not None:
        return failures.invalid(outcome.verdict.details)
    facts = outcome.facts
    if facts.exit_code is None and outcome.exit_code is not None:
        facts = msgspec.structs.replace(facts, exit_code=outcome.exit_code)
    return failures.classify(facts, (*outcome.rules, *failures.RULES))
