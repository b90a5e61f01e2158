"""Is what happens to attempts and their leases legal? The checker's part for the fence, and for time."""

from __future__ import annotations

import heapq
from typing import Any, Final

from deltaci.simulation.checker.facts import AttemptFacts, JobFacts, Known, Lease, RunFacts, WorkerFacts
from deltaci.simulation.checker.law import (
    ATTEMPT_ENDS,
    GOING,
    HELD,
    LEASE_STEPS,
    LIVE,
    REQUEUED_AT_ONCE,
    SECOND,
    Edge,
    Fact,
    Violation,
)
from deltaci.simulation.checker.trust import blame, remember

ACCEPT_SECONDS: Final = 30
Group = tuple[str, str]  # Of which tenant, and its name.
STALE_REASONS: Final = REQUEUED_AT_ONCE | {"STALLED"}


class Deployment:
    """What the checker is told of the world: terms of leases, and how long a thing may wait when all is well."""

    def __init__(
        self, ttl_seconds: int = 0, poll_seconds: float = 0.0, wait_seconds: float = 0.0, *, has_jumps: bool = False
    ) -> None:
        self.ttl = ttl_seconds * SECOND
        self.late = int((2.5 * poll_seconds + 20) * SECOND)
        # A runner whose request for work was lost notices that when its time to wait is over.
        self.unclaimed = int((2 * poll_seconds + wait_seconds + 150) * SECOND)
        self.has_jumps = has_jumps


class Leases:
    """Judges the events of attempts, and keeps who holds what."""

    def __init__(self, deployment: Deployment | None = None) -> None:
        self.deployment = deployment or Deployment()
        self.known: dict[str, Known] = {}
        self.edges: set[Edge] = set()
        self.workers: dict[str, WorkerFacts] = {}
        self.pollers: dict[str, None] = {}  # Workers that ask for work whenever they have room.
        self.quiet_at: int | None = None  # Since when nothing is wrong, by the store's clock.
        self._last_of: dict[Group, AttemptFacts] = {}  # Who had it last.
        self._freed_at: dict[Group, int] = {}
        self._deadlines: list[tuple[int, str]] = []
        self._armed: set[str] = set()

    # -- time

    def quiet(self, at: int | None) -> None:
        """Nothing is wrong any more, from this moment on; None: something is."""
        self.quiet_at = at

    def check_late(self, name: str, event: Fact, due: int) -> None:
        """What is due must happen soon, once nothing is wrong."""
        if self.quiet_at is None or self.deployment.has_jumps:
            return
        late = event.at - max(due, self.quiet_at)
        if late > self.deployment.late:
            raise Violation("late", f"{name} happens {late / SECOND:.0f} s late")

    def arm(self, it: Known) -> None:
        """Remember to look whether what is due for it does happen."""
        due = due_of(it)
        if due and it.id not in self._armed:
            self._armed.add(it.id)
            heapq.heappush(self._deadlines, (due, it.id))

    def check_overdue(self, now: int) -> None:
        """Nothing may be due for long and not happen, once nothing is wrong."""
        late = self.deployment.late
        while self._deadlines and self._deadlines[0][0] + late < now:
            _, id = heapq.heappop(self._deadlines)
            self._armed.discard(id)
            it = self.known[id]
            due = due_of(it)
            if due and self.quiet_at is not None and not self.deployment.has_jumps:
                if max(due, self.quiet_at) + late < now:
                    over = (now - due) / SECOND
                    raise Violation("late", f"{id} is {it.state}, and what was due {over:.0f} s ago did not happen")
                due = max(due, self.quiet_at)
            if due:
                self._armed.add(id)
                heapq.heappush(self._deadlines, (max(due, now - late), id))

    # -- attempts

    def judge_attempt(self, it: AttemptFacts, event: Fact) -> None:
        """One event of an attempt."""
        name = f"attempt {it.id} (seq {event.seq}, {event.trigger})"
        before = it.lease
        told = event.metadata.get("lease")
        if event.actor.startswith("worker:") and event.to != "LEASED":
            self._check_fence(name, event, before)
            if it.state in ("RUNNING", "UPLOADING"):
                self.check_late(name, event, it.started_at + it.timeout)
        elif event.to in ("LEASED", "CANCEL_REQUESTED"):
            self._check_waited(name, it, event)
        if told is not None:
            it.lease = self._changed(name, it, event, told)
        if event.from_ != event.to:
            self._check_held(name, it, event)
            self._STEPS.get(event.to, Leases._nothing)(self, name, it, event, before)
        claims = event.metadata.get("claims")
        if claims is not None:
            if claims != it.claims + 1:
                raise Violation("token", f"{name} is claim {claims} after {it.claims}")
            it.claims = claims

    @staticmethod
    def _check_fence(name: str, event: Fact, before: Lease | None) -> None:
        holder = event.actor.partition(":")[2]
        if before is None or before.worker_id != holder or before.state not in LIVE:
            raise Violation("fence", f"{name} was said by {holder}, but the lease is {before}")
        if event.at >= before.expires_at:
            late = (event.at - before.expires_at) / SECOND
            raise Violation("revived", f"{name} counts, but its lease ended {late:.1f} s before")

    @staticmethod
    def _check_held(name: str, it: AttemptFacts, event: Fact) -> None:
        is_live = it.lease is not None and it.lease.state in LIVE
        if event.to in HELD and not is_live:
            raise Violation("held", f"{name} is {event.to}, but nobody holds its lease")
        if event.to not in HELD and event.to != "CANCEL_REQUESTED" and is_live:
            raise Violation("held", f"{name} is {event.to}, but its lease is still {it.lease and it.lease.state}")

    def _nothing(self, name: str, it: AttemptFacts, event: Fact, before: Lease | None) -> None:
        """Nothing more to say about this step."""

    def _queued(self, name: str, it: AttemptFacts, event: Fact, before: Lease | None) -> None:
        told = event.metadata
        if event.from_ == "CREATED":
            it.job_id, it.index = told.get("job_id", ""), int(told.get("index", 1))
            it.labels = frozenset(filter(None, told.get("queue_key", "").split(",")))
            it.timeout, it.max_lost = int(told["timeout_seconds"]) * SECOND, int(told["max_lost_leases"])
            if it.job_id:
                self._check_new(name, it, event)
        elif it.lost > it.max_lost:
            raise Violation("lost-leases", f"{name} is queued again after {it.lost} lost leases of {it.max_lost}")
        it.run_at = int(told.get("run_at", it.run_at))
        if it.run_at < it.fence:
            raise Violation("fence-gap", f"{name} may be claimed {(it.fence - it.run_at) / SECOND:.1f} s too early")
        it.ready_at = max(event.at, it.run_at)
        it.stale_reason = ""

    def _check_new(self, name: str, it: AttemptFacts, event: Fact) -> None:
        job = self.known.get(it.job_id)
        if not isinstance(job, JobFacts) or job.index != it.index or it.id != f"{it.job_id}.{it.index}":
            raise Violation("orphan", f"{name} belongs to no job that waits for it")
        if job.kind == "approval":
            raise Violation("approval", f"{name} is an attempt of an approval")
        if it.index > job.max_attempts:
            raise Violation("attempts", f"{name} is attempt {it.index} of {job.max_attempts}")
        earlier = self.known.get(f"{it.job_id}.{it.index - 1}")
        if it.index > 1 and (earlier is None or earlier.state not in ("FAILED", "TIMED_OUT")):
            raise Violation("attempts", f"{name} begins while attempt {it.index - 1} is {earlier and earlier.state}")

    def _leased(self, name: str, it: AttemptFacts, event: Fact, before: Lease | None) -> None:
        if it.lost > it.max_lost:
            raise Violation("lost-leases", f"{name} is claimed after {it.lost} lost leases of {it.max_lost}")
        if event.at < max(it.run_at, it.fence):
            early = (max(it.run_at, it.fence) - event.at) / SECOND
            raise Violation("fence-gap", f"{name} is claimed {early:.1f} s too early: its last runner may be at work")
        run = self.known.get(it.run_id)
        if it.job_id and (not isinstance(run, RunFacts) or run.state not in GOING or run.is_canceled):
            raise Violation("after-end", f"{name} is claimed, but its run is {run and run.state}")
        it.stale_reason = ""

    def _check_waited(self, name: str, it: AttemptFacts, event: Fact) -> None:
        """It may not wait for long while somebody is free who asks for such work all the time."""
        if self.quiet_at is None or self.deployment.has_jumps or event.from_ != "QUEUED":
            return
        since = max(it.ready_at, self.quiet_at, self._free_since(it))
        if event.at - since <= self.deployment.unclaimed:
            return
        for id in self.pollers:
            free = self.workers.get(id)
            if free is not None and free.is_free and it.labels <= free.labels and (free.free_since or 0) < since:
                waited = (event.at - since) / SECOND
                raise Violation("unclaimed", f"{name} waited for {waited:.0f} s, although {id} was free")

    def _running(self, name: str, it: AttemptFacts, event: Fact, before: Lease | None) -> None:
        it.started_at = event.at

    def _stale(self, name: str, it: AttemptFacts, event: Fact, before: Lease | None) -> None:
        reason = event.metadata.get("reason")
        if reason not in STALE_REASONS or before is None or it.lease is None:
            raise Violation("requeue", f"{name} is stale for no known reason: {reason}")
        it.stale_reason = reason
        it.lost += reason != "HANDED_BACK"
        if event.metadata.get("lost_leases") != it.lost:
            told = event.metadata.get("lost_leases")
            raise Violation("lost-leases", f"{name} tells of {told} lost leases; there were {it.lost}")
        if reason == "NOT_ACCEPTED":
            self._check_unaccepted(name, event, before)
        # Who took the job may be at work until its own lease ends. Who never took it, or gave it back, is not.
        it.fence = event.at if reason in ("NOT_ACCEPTED", "HANDED_BACK") else before.expires_at

    def _check_unaccepted(self, name: str, event: Fact, before: Lease) -> None:
        if before.state != "GRANTED":
            raise Violation("accept-window", f"{name} takes a lease back that was acknowledged")
        if event.at < before.accept_by:
            early = (before.accept_by - event.at) / SECOND
            raise Violation("accept-window", f"{name} takes the lease back {early:.1f} s early")
        self.check_late(name, event, before.accept_by)

    def _succeeded(self, name: str, it: AttemptFacts, event: Fact, before: Lease | None) -> None:
        if event.metadata.get("exit_code") != 0 or it.lease is None or it.lease.state != "COMPLETED":
            raise Violation("outcome", f"{name} succeeds with {event.metadata.get('exit_code')} under {it.lease}")
        it.verdict = event.metadata.get("verdict") or {}
        if it.is_invalid and not it.job_id:
            raise Violation("verdict", f"{name} succeeds although a rule failed, and has no job that could fail")

    def _failed(self, name: str, it: AttemptFacts, event: Fact, before: Lease | None) -> None:
        it.error = event.metadata.get("error") or {}
        if event.from_ == "STALE" and it.lost <= it.max_lost:
            raise Violation("lost-leases", f"{name} is given up after {it.lost} lost leases of {it.max_lost}")

    def _timed_out(self, name: str, it: AttemptFacts, event: Fact, before: Lease | None) -> None:
        it.error = event.metadata.get("error") or {}
        due = it.started_at + it.timeout
        if event.at < due:
            raise Violation("timeout", f"{name} is timed out {(due - event.at) / SECOND:.1f} s too early")
        self.check_late(name, event, due)
        it.fence = before.expires_at if before is not None else 0

    def _cancel_requested(self, name: str, it: AttemptFacts, event: Fact, before: Lease | None) -> None:
        it.cancel_by = int(event.metadata["cancel_by"])

    def _canceled(self, name: str, it: AttemptFacts, event: Fact, before: Lease | None) -> None:
        if event.actor.startswith("worker:") or before is None or before.state not in LIVE:
            return
        due = min(it.cancel_by, _ends_at(before))
        if event.at < due:
            early = (due - event.at) / SECOND
            raise Violation("cancel-deadline", f"{name} is forced {early:.1f} s before its runner had to stop")
        self.check_late(name, event, due)

    _STEPS: Final = {
        "QUEUED": _queued,
        "LEASED": _leased,
        "RUNNING": _running,
        "STALE": _stale,
        "SUCCEEDED": _succeeded,
        "FAILED": _failed,
        "TIMED_OUT": _timed_out,
        "CANCEL_REQUESTED": _cancel_requested,
        "CANCELED": _canceled,
    }

    # -- leases

    def _changed(self, name: str, it: AttemptFacts, event: Fact, told: dict[str, Any]) -> Lease:
        number, source, state, before = int(told["number"]), told["from"], str(told["to"]), it.lease
        self.edges.add(("lease", source, state, ""))
        if source is None:
            return self._granted(name, it, event, told)
        if before is None or before.number != number or before.state != source:
            raise Violation("one-lease", f"{name} changes lease {number} from {source}, but it is {before}")
        if state not in LEASE_STEPS.get(source, ()):
            raise Violation("legal", f"{name}: lease {source} → {state} is no transition of a lease")
        if state == "EXPIRED":
            if event.at < before.expires_at:
                early = (before.expires_at - event.at) / SECOND
                raise Violation("expiry", f"{name} lets the lease expire {early:.1f} s early")
            self.check_late(name, event, _ends_at(before))
        expires_at = int(told.get("expires_at", before.expires_at))
        if state in LIVE:
            if expires_at < before.expires_at:
                short = (before.expires_at - expires_at) / SECOND
                raise Violation("shortened", f"{name} shortens the lease by {short:.1f} s")
            self._check_term(name, max(before.expires_at, event.at + self.deployment.ttl), expires_at)
        else:
            self._blame(before.worker_id, it, event)
            self._free(before.worker_id, it.id, event.at)
            if group := self._group(it):
                self._freed_at[group] = event.at
        return before._replace(state=state, expires_at=expires_at)

    def _check_term(self, name: str, expected: int, expires_at: int) -> None:
        if self.deployment.ttl and expires_at != expected:
            off = (expires_at - expected) / SECOND
            raise Violation("term", f"{name} lets the lease end {off:+.1f} s from when it should")

    def _granted(self, name: str, it: AttemptFacts, event: Fact, told: dict[str, Any]) -> Lease:
        number, worker_id, before = int(told["number"]), str(told["worker_id"]), it.lease
        if before is not None and before.state in LIVE:
            raise Violation("one-lease", f"{name} grants lease {number} while lease {before.number} is live")
        if number != it.claims + 1 or event.metadata.get("claims") != number:
            raise Violation("token", f"{name} grants lease {number} after {it.claims} claims: a token is used again")
        if event.actor != f"worker:{worker_id}" or told["to"] != "GRANTED":
            raise Violation("one-lease", f"{name} grants a lease to {worker_id}, but {event.actor} asked")
        expires_at, accept_by = int(told["expires_at"]), int(told["accept_by"])
        self._check_term(name, event.at + self.deployment.ttl, expires_at)
        if self.deployment.ttl and accept_by != event.at + ACCEPT_SECONDS * SECOND:
            raise Violation("accept-window", f"{name} has an accept window of {(accept_by - event.at) / SECOND:.1f} s")
        self._occupy(name, it, worker_id)
        job = self.known.get(it.job_id)
        it.shunned = job.lost_by if isinstance(job, JobFacts) else ()
        if group := self._group(it):
            self._take_group(name, it, group, event.at)
        return Lease(number, worker_id, "GRANTED", expires_at, accept_by)

    def _group(self, it: AttemptFacts) -> Group | None:
        job = self.known.get(it.job_id)
        return (it.tenant, job.group) if isinstance(job, JobFacts) and job.group else None

    def _take_group(self, name: str, it: AttemptFacts, group: Group, at: int) -> None:
        """Nobody else of the group has a lease, or lost one and may not have heard of it yet."""
        last = self._last_of.get(group)
        if last is not None and last is not it:
            is_live = last.lease is not None and last.lease.state in LIVE
            if is_live or (last.state == "QUEUED" and at < last.run_at):
                raise Violation("group", f"{name} takes the group {group[1]}, which {last.id} has")
        self._last_of[group] = it

    def _free_since(self, it: AttemptFacts) -> int:
        """Since when nobody has the attempt's group."""
        group = self._group(it)
        if group is None:
            return 0
        last = self._last_of.get(group)
        return max(self._freed_at.get(group, 0), last.run_at if last is not None and last.state == "QUEUED" else 0)

    def _occupy(self, name: str, it: AttemptFacts, worker_id: str) -> None:
        worker = self.workers.get(worker_id)
        if worker is None:  # The plain queue also serves owners that never registered.
            return
        if not it.job_id:
            worker.lone.add(it.id)
            return
        if worker.is_leaving or worker.state not in ("IDLE", "BUSY"):
            raise Violation("drained", f"{name} goes to {worker_id}, which is {worker.state} and takes nothing more")
        if worker.hold:
            raise Violation("hold", f"{name} goes to {worker_id}, which is {worker.hold} and takes nothing new")
        if not it.labels <= worker.labels:
            raise Violation("labels", f"{name} needs {sorted(it.labels)}; {worker_id} has {sorted(worker.labels)}")
        worker.held.add(it.id)
        if len(worker.held) > worker.places:
            held = len(worker.held)
            raise Violation("slots", f"{name} is the {held}th lease of {worker_id}, which has {worker.places} places")

    def _blame(self, worker_id: str, it: AttemptFacts, event: Fact) -> None:
        worker, job = self.workers.get(worker_id), self.known.get(it.job_id)
        if isinstance(job, JobFacts):
            remember(job, worker_id, event)
            if worker is not None and it.id in worker.held:
                blame(worker, it.id, event)

    def _free(self, worker_id: str, attempt_id: str, at: int) -> None:
        worker = self.workers.get(worker_id)
        if worker is not None:
            if not worker.is_free:
                worker.free_since = at
            worker.held.discard(attempt_id)
            worker.lone.discard(attempt_id)

    # -- when a commit is whole

    def settle_attempt(self, it: AttemptFacts) -> None:
        """What must be true of an attempt after every commit."""
        name = f"attempt {it.id} (rev {it.rev})"
        if it.state == "STALE" and it.stale_reason in REQUEUED_AT_ONCE:
            raise Violation("requeue", f"{name} lost its lease ({it.stale_reason}), and nobody queues it again")
        if it.state == "CANCEL_REQUESTED" and (it.lease is None or it.lease.state not in LIVE):
            raise Violation("cancel", f"{name} should stop, and nobody has it: it is over")
        job = self.known.get(it.job_id)
        if not isinstance(job, JobFacts) or job.index != it.index:
            return
        if it.state in ATTEMPT_ENDS and job.state in ("QUEUED", "RUNNING"):
            raise Violation("outcome", f"{name} is {it.state}, but its job is still {job.state}")
        if it.state in HELD and job.state != "RUNNING":
            raise Violation("outcome", f"{name} is {it.state}, but its job is {job.state}")


def due_of(it: Known) -> int:
    """When something must happen to it by itself; 0: never."""
    if isinstance(it, AttemptFacts) and it.lease is not None and it.lease.state in LIVE:
        due = _ends_at(it.lease)
        if it.state in ("RUNNING", "UPLOADING"):
            due = min(due, it.started_at + it.timeout)
        return min(due, it.cancel_by) if it.state == "CANCEL_REQUESTED" else due
    if isinstance(it, JobFacts):
        return {"RETRYING": it.next_run_at, "WAITING_APPROVAL": it.approve_by}.get(it.state or "", 0)
    if isinstance(it, RunFacts):
        if it.state == "PLANNING":
            return it.plan_by
        return it.started_at + it.timeout if it.state in ("RUNNING", "WAITING_APPROVAL", "VALIDATING") else 0
    return 0


def _ends_at(lease: Lease) -> int:
    """When it is over without another word of its runner."""
    return min(lease.accept_by, lease.expires_at) if lease.state == "GRANTED" else lease.expires_at
