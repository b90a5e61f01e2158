"""What must hold for an attempt and its lease, line by line."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from deltaci.audit.verify.log_lines import EPOCH, Attempt, AttemptTold, LeaseTold, Line, Worker
from deltaci.core import attempt, lease
from deltaci.core.events import RUNNER, actor_kind
from deltaci.core.ids import attempt_id

if TYPE_CHECKING:
    from deltaci.audit.verify.canonical import CanonicalVerifier

Check = Callable[["CanonicalVerifier", Any, Line, Any], None]

# Which end or life of the lease goes with the attempt's new state; the empty set: the lease does not change.
_LEASE_OF: Final = {
    attempt.QUEUED: frozenset[str](),
    attempt.LEASED: frozenset({lease.GRANTED}),
    attempt.STARTING: frozenset({lease.ACTIVE}),
    attempt.RUNNING: frozenset({lease.ACTIVE}),
    attempt.UPLOADING: frozenset({lease.ACTIVE}),
    attempt.STALE: frozenset({lease.EXPIRED, lease.REVOKED}),
    attempt.SUCCEEDED: frozenset({lease.COMPLETED}),
    attempt.TIMED_OUT: frozenset({lease.REVOKED}),
}
_LEASE_EDGES: Final = {(rule.source or None, to.state) for rule in lease.MACHINE.rules for to in rule.targets}


def _expected_lease(of: Attempt, line: Line) -> frozenset[str]:
    if line.to == attempt.FAILED:
        return frozenset() if line.from_ == attempt.STALE else frozenset({lease.COMPLETED})
    if line.to == attempt.CANCEL_REQUESTED:
        return frozenset({lease.ACTIVE}) if line.from_ == attempt.CANCEL_REQUESTED else frozenset()
    if line.to == attempt.CANCELED:
        if of.lease is None:
            return frozenset()
        is_acknowledged = actor_kind(line.actor) == RUNNER
        return frozenset({lease.CANCELED}) if is_acknowledged else frozenset({lease.EXPIRED, lease.REVOKED})
    return _LEASE_OF.get(line.to, frozenset())


def owner(log: CanonicalVerifier, of: Attempt, line: Line, told: AttemptTold) -> None:
    """Only the owner speaks for an attempt, and only while its lease lasts."""
    if actor_kind(line.actor) != RUNNER:
        return
    speaker = line.actor.partition(":")[2]
    if line.to == attempt.LEASED:
        if told.lease is not None and told.lease.worker_id != speaker:
            log.bad("QUE-C2", f"{line.actor} claims {of.id} for {told.lease.worker_id}", "a claim for itself")
        return
    if of.lease not in lease.LIVE or speaker != of.worker_id:
        holder = f"worker:{of.worker_id}" if of.lease in lease.LIVE else "nobody"
        log.bad(
            "QUE-C2",
            f"attempt {of.id} is changed by {line.actor}, but held by {holder}",
            f"{holder}, or the orchestrator",
        )
        return
    if line.at >= of.expires_at:
        log.bad(
            "PRO-H2",
            f"attempt {of.id} is changed by a lease that ended at {of.expires_at.isoformat()}",
            "StaleLease, no event",
        )
    known = log.live.get(speaker) if of.job is not None else None
    if isinstance(known, Worker) and known.state not in ("IDLE", "BUSY"):
        log.bad(
            "WST-KI2", f"worker {speaker} is {known.state} and speaks for attempt {of.id}", "an idle or busy worker"
        )


def born(log: CanonicalVerifier, of: Attempt, line: Line, told: AttemptTold) -> None:
    """An attempt is born with its number, for a job that is queued and asks for it."""
    if line.from_ != attempt.CREATED:
        return
    if told.index is None or told.timeout_seconds is None or told.max_lost_leases is None or told.job_id is None:
        log.bad(
            "MOD-E1",
            f"attempt {of.id} is born without index, job_id, timeout_seconds or max_lost_leases",
            "all of them",
        )
        return
    of.timeout = timedelta(seconds=min(told.timeout_seconds, 10**9))
    of.max_lost = told.max_lost_leases
    of.queue_key = told.queue_key or ""
    of.run_at = told.run_at or EPOCH
    parent = of.job
    if parent is None:
        if told.index != 1:
            log.bad("ORC-Y3", f"attempt {of.id} of no job has index {told.index}", "index 1")
        if told.job_id:
            log.bad("MOD-E1", f"attempt {of.id} names job {told.job_id} but no run", "the run_id of its job")
        return
    if not parent.is_task:
        log.bad("STP-W1", f"approval {parent.id} has an attempt", "an approval has no attempt at all")
    if parent.state != "QUEUED":
        log.bad("ORC-A1", f"attempt {of.id} is published while its job is {parent.state}", "a job that is QUEUED")
    if told.index != parent.attempts:
        log.bad("ORC-Y3", f"attempt {of.id} has index {told.index}", f"index {parent.attempts}")
    if of.id != attempt_id(parent.id, parent.attempts):
        log.bad(
            "ORC-Y3", f"attempt {told.index} of {parent.id} is called {of.id}", attempt_id(parent.id, parent.attempts)
        )
    if parent.attempt is not None:
        if parent.attempt.state not in attempt.TERMINAL:
            log.bad(
                "ORC-Y5",
                f"attempt {of.id} is born while {parent.attempt.id} is {parent.attempt.state}",
                "the earlier one ended",
            )
        log.live.pop(parent.attempt.id, None)
    parent.attempt = of


def requests(log: CanonicalVerifier, of: Attempt, line: Line, told: AttemptTold) -> None:
    """A repeated request changes nothing, so it cannot be seen twice."""
    if line.request_id:
        if any(r == line.request_id and t == line.trigger and at != line.at for r, t, at in of.requests):
            log.bad("QUE-C5", f"attempt {of.id} applied request {line.request_id} twice", "a repeat appends no event")
        of.requests = (*of.requests, (line.request_id, line.trigger, line.at))[-8:]


def claims(log: CanonicalVerifier, of: Attempt, line: Line, told: AttemptTold) -> None:
    """`claims` grows by one exactly when somebody claims the attempt: a worker, or the orchestrator that takes over."""
    is_takeover = (
        (line.to == attempt.CANCEL_REQUESTED and line.from_ != attempt.CANCEL_REQUESTED and of.lease is None)
        or line.to == attempt.TIMED_OUT
        or (line.to == attempt.FAILED and line.from_ == attempt.STALE)
        or (line.to == attempt.CANCELED and of.lease is not None and actor_kind(line.actor) != RUNNER)
    )
    if line.to == attempt.LEASED or is_takeover:
        if told.claims != of.claims + 1:
            log.bad("QUE-A2", f"attempt {of.id} has claims {told.claims} after {of.claims}", f"claims {of.claims + 1}")
        of.claims = of.claims + 1
    else:
        no_claim(log, of, line, told)


def no_claim(log: CanonicalVerifier, of: Attempt, line: Line, told: AttemptTold) -> None:
    """Nothing but a claim counts as one."""
    if told.claims is not None:
        log.bad(
            "QUE-A3", f"attempt {of.id} counts a claim on {line.from_} → {line.to}", "claims change only at a claim"
        )


def leases(log: CanonicalVerifier, of: Attempt, line: Line, told: AttemptTold) -> None:
    """The lease moves by its own machine, with its attempt, and never two at once."""
    expected = _expected_lease(of, line)
    change = told.lease
    if change is None:
        if expected:
            log.bad(
                "MOD-E3",
                f"attempt {of.id} goes {line.from_} → {line.to} without its lease",
                f"lease → {' or '.join(sorted(expected))}",
            )
            of.lease = None if line.to != attempt.CANCEL_REQUESTED and line.to not in attempt.HELD else of.lease
        return
    if change.to not in expected:
        wanted = f"lease → {' or '.join(sorted(expected))}" if expected else "no change of the lease"
        log.bad(
            "ORC-LF2",
            f"attempt {of.id} goes {line.from_} → {line.to} and its lease {change.from_} → {change.to}",
            wanted,
        )
    if (change.from_, change.to) not in _LEASE_EDGES:
        log.bad(
            "ORC-LF3", f"the lease of {of.id} goes {change.from_} → {change.to}", "a transition of the lease machine"
        )
    if change.from_ != of.lease:
        log.bad(
            "ORC-LF1",
            f"the lease of {of.id} is {of.lease} and changes from {change.from_}",
            f"a change from {of.lease}",
        )
    if change.to == lease.GRANTED:
        _granted(log, of, line, change)
    else:
        _held(log, of, line, told, change)
    of.lease = change.to if change.to in lease.LIVE else None
    if of.lease is None:
        of.fence = of.expires_at if _may_still_run(of, line, told) else EPOCH
        _released(log, of, line, told)


def _may_still_run(of: Attempt, line: Line, told: AttemptTold) -> bool:
    """A runner that lost its lease before its end may work until then, unless it never took it or gave it back."""
    is_lost = told.lost_leases is not None and told.lost_leases > of.lost
    return line.to == attempt.TIMED_OUT or (
        is_lost and told.reason not in (attempt.NOT_ACCEPTED, attempt.LEASE_EXPIRED)
    )


def _granted(log: CanonicalVerifier, of: Attempt, line: Line, change: LeaseTold) -> None:
    if change.number != of.claims:
        log.bad("ORC-LF1", f"lease {change.number} of {of.id} is granted at claim {of.claims}", f"lease {of.claims}")
    if change.expires_at is None or change.accept_by is None:
        log.bad("MOD-E1", f"lease {change.number} of {of.id} has no expires_at or no accept_by", "both")
        return
    of.number, of.worker_id = change.number, change.worker_id
    of.expires_at, of.accept_by, of.ttl = change.expires_at, change.accept_by, change.expires_at - line.at
    if of.ttl <= timedelta() or change.accept_by <= line.at:
        log.bad("ORC-T1", f"lease {change.number} of {of.id} is over when it is granted", "a time in the future")
    if of.job is not None and of.job.group:
        _takes_group(log, of, line, of.job.group)
    known = log.live.get(of.worker_id) if of.job is not None else None
    if isinstance(known, Worker):
        log.touch(known, line)
        known.tasks.add(of.id)
        if known.state not in ("IDLE", "BUSY") or known.is_leaving:
            log.bad("WST-K2", f"worker {known.id} is {known.state} and is granted {of.id}", "a worker that takes work")
        if known.hold:
            log.bad("WST-KH1", f"worker {known.id} is {known.hold} and is granted {of.id}", "a worker that takes work")
        if len(known.tasks) > known.places:
            log.bad("WST-KI1", f"worker {known.id} holds {len(known.tasks)} leases", f"at most {known.places}")
        missing = set(of.queue_key.split(",")) - {""} - known.labels
        if missing:
            log.bad(
                "WST-KG2", f"worker {known.id} lacks {', '.join(sorted(missing))} for {of.id}", "a worker that has them"
            )


def _takes_group(log: CanonicalVerifier, of: Attempt, line: Line, group: str) -> None:
    """Nobody else of the group has a live lease, or had one that was lost and might not have heard of it yet."""
    last = log.groups.get((of.tenant, group))
    if last is not None and last is not of:
        is_fenced = last.state == attempt.QUEUED and line.at < last.run_at
        if last.lease in lease.LIVE or is_fenced:
            log.bad("MOD-D3", f"attempt {of.id} is claimed while {last.id} has the group {group!r}", "one at a time")
    log.groups[of.tenant, group] = of


def _held(log: CanonicalVerifier, of: Attempt, line: Line, told: AttemptTold, change: LeaseTold) -> None:
    if (change.number, change.worker_id) != (of.number, of.worker_id):
        found = f"lease {change.number} of {change.worker_id} changes on {of.id}"
        log.bad("ORC-LF1", found, f"lease {of.number} of {of.worker_id}")
    if change.accept_by is not None:
        log.bad("MOD-L4", f"lease {change.number} of {of.id} gets another accept window", "one window, at the grant")
    if change.to == lease.ACTIVE:
        wanted = max(of.expires_at, line.at + of.ttl)
        if change.expires_at != wanted:
            found = change.expires_at.isoformat() if change.expires_at else "nothing"
            log.bad("PRO-Q5", f"lease {change.number} of {of.id} now ends at {found}", wanted.isoformat())
        of.expires_at = change.expires_at or wanted
    elif change.expires_at is not None:
        log.bad("MOD-E1", f"lease {change.number} of {of.id} is {change.to} and still has an end", "no expires_at")
    if change.to == lease.EXPIRED and line.at < of.expires_at:
        log.bad("ORC-L2", f"lease {change.number} of {of.id} expires early", f"not before {of.expires_at.isoformat()}")
    if told.reason == attempt.NOT_ACCEPTED and (change.from_ != lease.GRANTED or line.at < of.accept_by):
        log.bad(
            "PRO-Q4", f"lease {change.number} of {of.id} is revoked as not accepted", "unacknowledged, after the window"
        )


def _released(log: CanonicalVerifier, of: Attempt, line: Line, told: AttemptTold) -> None:
    known = log.live.get(of.worker_id) if of.job is not None else None
    if isinstance(known, Worker):
        log.touch(known, line)
        if of.id in known.tasks:
            known.tasks.discard(of.id)
            known.ended[of.id] = _is_trouble(line, told)


def _is_trouble(line: Line, told: AttemptTold) -> bool | None:
    """Whether the worker's infrastructure is to blame for this end of its lease; None: that is not known."""
    if line.to == attempt.STALE:
        return True if told.reason in attempt.FOUND_LOST else None
    if line.to == attempt.SUCCEEDED:
        return False
    if line.to != attempt.FAILED or told.error is None:
        return None
    if told.error.failure_class != "INFRA":
        return False
    return None if told.error.code == "TIMED_OUT" else True


def claimed(log: CanonicalVerifier, of: Attempt, line: Line, told: AttemptTold) -> None:
    """A claim finds the attempt ready and its lease not lost too often."""
    due = max(of.run_at, of.fence)
    if line.at < due:
        log.bad("QUE-S1", f"attempt {of.id} is claimed before {due.isoformat()}", "when it is due")
    if of.lost > of.max_lost:
        log.bad(
            "MOD-5",
            f"attempt {of.id} is claimed after {of.lost} lost leases",
            f"at most {of.max_lost}, then LEASE_LOST",
        )
    of.started_at = EPOCH


def started(_log: CanonicalVerifier, of: Attempt, line: Line, told: AttemptTold) -> None:
    """The job's time runs from here."""
    if line.from_ == attempt.STARTING:
        of.started_at = line.at


def stalled(log: CanonicalVerifier, of: Attempt, line: Line, told: AttemptTold) -> None:
    """A lost lease is counted, and the reason is known."""
    wanted = {of.lost + 1} | ({of.lost} if told.reason not in attempt.FOUND_LOST else set())
    if told.lost_leases not in wanted:
        log.bad("MOD-5", f"attempt {of.id} has lost {told.lost_leases} leases after {of.lost}", f"{of.lost + 1}")
    if not told.reason or (told.reason == attempt.LEASE_EXPIRED) != (
        told.lease is not None and told.lease.to == lease.EXPIRED
    ):
        log.bad("MOD-5", f"attempt {of.id} is stale for {told.reason!r}", "the reason that fits the end of its lease")
    of.lost = told.lost_leases if told.lost_leases is not None else of.lost + 1
    of.stale_reason = told.reason or ""


def requeued(log: CanonicalVerifier, of: Attempt, line: Line, told: AttemptTold) -> None:
    """Back in the queue: only while the limit allows, and not before the old runner has surely stopped."""
    if line.from_ != attempt.STALE:
        return
    if of.lost > of.max_lost:
        log.bad("MOD-5", f"attempt {of.id} is requeued after {of.lost} lost leases", "STALE → FAILED as LEASE_LOST")
    run_at = told.run_at or EPOCH
    if run_at < max(of.run_at, of.fence):
        log.bad(
            "MOD-5",
            f"attempt {of.id} may run at {run_at.isoformat()}",
            f"not before {max(of.run_at, of.fence).isoformat()}",
        )
    of.run_at = run_at


def finished(log: CanonicalVerifier, of: Attempt, line: Line, told: AttemptTold) -> None:
    """A success has exit code 0; a failure says why."""
    if line.to == attempt.SUCCEEDED:
        if told.exit_code != 0 or told.error is not None:
            log.bad("WST-TG3", f"attempt {of.id} succeeds with exit code {told.exit_code}", "exit code 0 and no error")
        return
    of.error = told.error
    if told.error is None:
        log.bad("QUE-N5", f"attempt {of.id} is {line.to} without an error", "an error")
        return
    if told.error.failure_class == "USER" and told.error.is_retryable:
        log.bad("MOD-F2", f"attempt {of.id} failed by its user and is called retryable", "USER is never retried")
    codes = {attempt.TIMED_OUT: "TIMED_OUT"}
    if line.from_ == attempt.STALE:
        codes[attempt.FAILED] = "LEASE_LOST"
        if of.lost <= of.max_lost:
            log.bad("MOD-5", f"attempt {of.id} is given up after {of.lost} lost leases", f"more than {of.max_lost}")
    if line.to in codes and told.error.code != codes[line.to]:
        log.bad("MOD-F3", f"attempt {of.id} is {line.to} for {told.error.code}", codes[line.to])
    if line.to == attempt.TIMED_OUT and line.at < of.started_at + of.timeout:
        log.bad("ORC-T2", f"attempt {of.id} times out early", f"not before {(of.started_at + of.timeout).isoformat()}")


def judged(log: CanonicalVerifier, of: Attempt, line: Line, told: AttemptTold) -> None:
    """Only a success has a verdict, and one that did not pass fails its job."""
    of.verdict = told.verdict
    if told.verdict is not None and line.to != attempt.SUCCEEDED:
        log.bad("WST-TA3", f"attempt {of.id} is {line.to} with a verdict", "a verdict about what was executed")
    elif told.verdict is not None and of.job is None and not told.verdict.is_passed:
        log.bad("WST-TG9", f"attempt {of.id} succeeds with a failed verdict, and has no job", "FAILED")


def cancel_requested(log: CanonicalVerifier, of: Attempt, line: Line, told: AttemptTold) -> None:
    """A request has a reason and a deadline; repeating it is no event."""
    if line.from_ == attempt.CANCEL_REQUESTED:
        return
    if not told.reason or told.cancel_by is None or told.cancel_by < line.at:
        log.bad("ORC-C1", f"the cancellation of {of.id} has no reason or no deadline ahead", "both")
    of.cancel_reason, of.cancel_by = told.reason or "", told.cancel_by or line.at


def canceled(log: CanonicalVerifier, of: Attempt, line: Line, told: AttemptTold) -> None:
    """Acknowledged by the runner, or forced when nobody can acknowledge any more."""
    if told.reason != of.cancel_reason:
        log.bad("ORC-A10", f"attempt {of.id} is cancelled for {told.reason!r}", repr(of.cancel_reason))
    is_forced = actor_kind(line.actor) != RUNNER
    if bool(told.is_forced) != is_forced:
        log.bad(
            "ORC-C2",
            f"the cancellation of {of.id} by {line.actor} is_forced={told.is_forced}",
            f"is_forced={is_forced}",
        )
    ended = told.lease
    if is_forced and ended is not None and ended.to == lease.REVOKED:
        is_unaccepted = ended.from_ == lease.GRANTED and line.at >= of.accept_by
        if line.at < of.cancel_by and not is_unaccepted:
            log.bad("ORC-T4", f"attempt {of.id} is cancelled by force early", f"not before {of.cancel_by.isoformat()}")


_EVERY: Final = (owner, no_claim, leases, requests, judged)
_CLAIM: Final = (owner, claims, leases, requests, judged)
CHECKS: Final[dict[str, tuple[Check, ...]]] = {
    attempt.QUEUED: (*_EVERY, born, requeued),
    attempt.LEASED: (*_CLAIM, claimed),
    attempt.STARTING: _EVERY,
    attempt.RUNNING: (*_EVERY, started),
    attempt.UPLOADING: _EVERY,
    attempt.STALE: (*_EVERY, stalled),
    attempt.SUCCEEDED: (*_EVERY, finished),
    attempt.FAILED: (*_CLAIM, finished),
    attempt.TIMED_OUT: (*_CLAIM, finished),
    attempt.CANCEL_REQUESTED: (*_CLAIM, cancel_requested),
    attempt.CANCELED: (*_CLAIM, canceled),
}

# What the job of an attempt in this state may be, once its transaction is over.
_JOB_OF: Final = {
    attempt.QUEUED: ("QUEUED", "RUNNING"),
    **dict.fromkeys((*attempt.HELD, attempt.STALE, attempt.CANCEL_REQUESTED), ("RUNNING",)),
    attempt.SUCCEEDED: ("VALIDATING", "SUCCEEDED", "FAILED", "CANCELED"),
    attempt.FAILED: ("RETRYING", "FAILED", "CANCELED"),
    attempt.TIMED_OUT: ("RETRYING", "FAILED", "CANCELED"),
    attempt.CANCELED: ("CANCELED",),
}


def settle(log: CanonicalVerifier, of: Attempt) -> None:
    """After the transaction: what was found lost is back in the queue, and the job stands as its attempt does."""
    if of.state == attempt.STALE and of.stale_reason in attempt.REQUEUED_AT_ONCE:
        log.bad(
            "ORC-A7", f"attempt {of.id} stays STALE after {of.stale_reason}", "QUEUED or FAILED in the same transaction"
        )
    if of.state == attempt.CANCEL_REQUESTED and of.lease is None:
        log.bad(
            "ORC-C3",
            f"attempt {of.id} waits for an acknowledgement that nobody can give",
            "CANCELED in the same transaction",
        )
    if of.job is not None and of.job.attempt is of and of.job.state not in _JOB_OF.get(of.state or "", ()):
        found = f"attempt {of.id} is {of.state} and its job {of.job.state}"
        log.bad("ORC-J1", found, f"a job that is {' or '.join(_JOB_OF.get(of.state or '', ('gone',)))}")
