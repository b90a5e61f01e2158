"""Is this history legal? Written from the documents alone: it shares no code with what it checks.

It reads the log event by event, as it is committed, and keeps what it needs to judge the next one. What is true only
of a whole commit is judged when that is whole. A violation names the invariant, the event, and what was expected.
"""

from __future__ import annotations

from typing import Final

from deltaci.simulation.checker.facts import AttemptFacts, JobFacts, Known, RunFacts, WorkerFacts
from deltaci.simulation.checker.job_order import Bonds, is_fatal
from deltaci.simulation.checker.law import (
    ACTIVE,
    ATTEMPT_ENDS,
    ENDS,
    GOING,
    JOB_ENDS,
    LEGAL,
    LIVE,
    OUTCOMES,
    SECOND,
    STEPS,
    Fact,
    Violation,
)
from deltaci.simulation.checker.leases import Deployment
from deltaci.simulation.checker.trust import judge_worker, settle_worker

__all__ = ["INVARIANTS", "Checker", "Deployment", "Violation"]

INVARIANTS: Final = {
    "order": "seq grows by one, without a gap",
    "rev": "every event counts its entity's rev by one",
    "continuity": "an event begins where the last one ended",
    "time": "the time of an entity never goes back",
    "clock": "nothing happens later than the store's clock says",
    "terminal": "what is over never changes",
    "legal": "only the documents' transitions happen, under their words",
    "actor": "only who may take a step takes it",
    "identity": "tenant and run of an entity never change, and are those of its run",
    "repeated": "a request is carried out once",
    "held": "an attempt is held exactly while its lease is live",
    "one-lease": "an attempt has one live lease at most",
    "token": "the numbers of leases grow and are never used again",
    "term": "a lease ends a TTL after its grant or its last renewal",
    "expiry": "no lease expires early",
    "revived": "nothing counts that is said under a lease that has ended",
    "shortened": "no lease is shortened",
    "accept-window": "a lease is taken back as not accepted only after its window, and only if nobody accepted",
    "fence": "only the holder of the live lease changes an attempt",
    "fence-gap": "nobody begins before the last holder has surely stopped",
    "labels": "a worker gets only what it has the labels for",
    "drained": "a worker that leaves or is gone gets nothing more",
    "hold": "a worker that is drained or quarantined gets nothing new until it is let go",
    "troubles": "a worker is quarantined exactly after three troubles in a row",
    "avoided": "a worker does not get again what it lost while a rival could take it",
    "slots": "a worker holds no more leases than it has places",
    "worker": "a worker is busy exactly while it holds leases, and knows how many",
    "lost-leases": "an attempt is given up exactly after too many lost leases",
    "requeue": "an attempt that was lost is queued again at once, or given up",
    "timeout": "nothing is timed out early",
    "cancel-deadline": "a cancel is forced only after its deadline",
    "late": "what is due happens soon, once nothing is wrong",
    "unclaimed": "nothing waits for long while a worker is free that could take it",
    "after-end": "nothing of a run begins once that is cancelled or over",
    "orphan": "every attempt is the one that its job waits for, every job belongs to a planned run",
    "attempts": "attempts follow one another, at most as many as allowed",
    "retry": "a job is retried exactly if its failure and its attempts allow it",
    "backoff": "a retry waits as long as it must",
    "approval": "enough people decide about approvals that wait, or their time is over; nobody executes one",
    "needs": "a job begins exactly when what it needs is met",
    "after": "a job begins exactly when what comes before it is over, however that ended",
    "family": "a failure ends its family at once, if it says so",
    "group": "one of a group has a lease at a time",
    "blocked": "a job is cancelled exactly when there is a reason",
    "validation": "what has no rules is valid at once; what has some waits for them",
    "verdict": "a rule that a runner found broken fails its job, at once; one that held fails nothing",
    "outcome": "a job ends as its attempts did, a run as its jobs did, and at once",
    "fail-fast": "a run that fails fast does so at once, the others when nothing is open",
    "waiting": "a run waits for approval exactly while nothing else can go on",
    "cancel": "a cancel stands, and reaches everything",
    "plan": "a plan counts only in time",
    "conclusion": "what is reported is what came out",
    # Judged by the world, from what is stored, what was said, and what really ran.
    "log": "the log is never changed",
    "record": "records are as the log tells",
    "acknowledged": "what was acknowledged is in the log",
    "idempotent": "a repeated request is answered as before",
    "reused": "a request id is good for one content",
    "stale-rev": "who decided by an old rev is refused",
    "credential": "a registration token lets somebody in once",
    "truth": "what succeeded did run, to a good end",
    "overlap": "an attempt never runs twice at the same time",
    "stopped": "nothing runs that was said to have stopped",
    "self-stop": "a runner has stopped its job before its lease runs out",
    "unowned": "nothing begins without a live lease",
    "told": "what ended is known in the end",
    "log-bytes": "a log has the bytes that its job wrote",
    "error": "no part meets an error that it did not expect",
    "liveness": "once nothing is wrong, everything comes to its end",
}
VERDICTS: Final = frozenset({"validation_passed", "validation_failed", "all_required_succeeded"})
MINE: Final = frozenset({"RUN_CANCELED", "RUN_TIMEOUT", "NOT_NEEDED"})  # Why a run cancels its jobs.


class Checker(Bonds):
    """Sees every event once, in order."""

    def __init__(self, deployment: Deployment | None = None) -> None:
        super().__init__(deployment)
        self.seq = 0
        self.seen = 0
        self.commits = 0
        self.runs: dict[str, RunFacts] = {}
        self.requests: dict[tuple[str, str], tuple[int, int]] = {}  # Request and entity: its commit and its first rev.
        self._dependents: dict[str, list[str]] = {}
        self._touched: dict[str, None] = {}
        self._ending: list[RunFacts] = []

    def see(self, event: Fact, now: int = 0) -> None:
        """Judge one event; `now` is what the store's clock says. Raises `Violation`."""
        self.seen += 1
        if event.seq != self.seq + 1:
            raise Violation("order", f"seq {event.seq} comes after {self.seq}")
        self.seq = event.seq
        it = self.known.get(event.entity_id)
        if it is None:
            it = self._met(event)
        self._check_step(it, event)
        if now and event.at > now and not self.deployment.has_jumps:
            raise Violation("clock", f"{it.id} (seq {event.seq}) happens {(event.at - now) / SECOND:.1f} s from now")
        if event.request_id:
            self._check_request(event)
        if isinstance(it, AttemptFacts):
            self.judge_attempt(it, event)
        elif isinstance(it, JobFacts):
            self._judge_job(it, event)
        elif isinstance(it, RunFacts):
            self._judge_run(it, event)
        elif isinstance(it, WorkerFacts):
            self._judge_worker(it, event)
        it.state, it.rev, it.at = event.to, event.rev, event.at
        self._touch(it, event)

    def _met(self, event: Fact) -> Known:
        """Something new."""
        id = event.entity_id
        it: Known
        if event.entity == "attempt":
            it = AttemptFacts(id)
        elif event.entity == "job":
            it = job = JobFacts(id)
            job.dependents = self._dependents.setdefault(id, [])
        elif event.entity == "run":
            it = self.runs[id] = RunFacts(id)
        else:
            it = self.workers[id] = WorkerFacts(id)
        it.tenant, it.run_id = event.tenant, event.run_id
        owner = self.runs.get(event.run_id)
        if event.entity in ("job", "attempt") and event.run_id and (owner is None or owner.tenant != event.tenant):
            raise Violation("identity", f"{id} is of {event.tenant}, but its run is of {owner and owner.tenant}")
        self.known[id] = it
        return it

    def _check_step(self, it: Known, event: Fact) -> None:
        name = f"{event.entity} {event.entity_id} (seq {event.seq}, {event.trigger})"
        edge = (event.entity, event.from_, event.to, event.trigger)
        if it.state in ENDS[event.entity]:
            raise Violation("terminal", f"{name} changes after its end {it.state}")
        if event.rev != it.rev + 1:
            raise Violation("rev", f"{name} has rev {event.rev} after {it.rev}")
        if event.from_ != it.state:
            raise Violation("continuity", f"{name} goes from {event.from_}, but it is {it.state}")
        if event.at < it.at:
            raise Violation("time", f"{name} happens at {event.at}, before {it.at}")
        if event.tenant != it.tenant or event.run_id != it.run_id:
            raise Violation("identity", f"{name} is of {event.tenant}, {event.run_id}; it was of {it.tenant}")
        actors = STEPS.get(edge)
        if actors is None:
            what = "is no transition" if edge[:3] not in LEGAL else f"is not called {event.trigger}"
            raise Violation("legal", f"{name}: {event.from_} → {event.to} {what} of a {event.entity}")
        if event.actor.partition(":")[0] not in actors:
            raise Violation("actor", f"{name} was done by {event.actor}; expected {' or '.join(sorted(actors))}")
        self.edges.add(edge)

    def _check_request(self, event: Fact) -> None:
        key = event.request_id, event.entity_id
        first = self.requests.setdefault(key, (self.commits, event.rev))
        if first[0] != self.commits:
            raise Violation("repeated", f"request {key[0]} changes {key[1]} again (seq {event.seq}, {event.trigger})")

    def _touch(self, it: Known, event: Fact) -> None:
        if event.from_ == event.to and event.entity == "attempt":
            return
        self._touched[it.id] = None
        if isinstance(it, JobFacts):
            self._touched[it.run_id] = None
            if event.to in JOB_ENDS:
                self._touched.update(dict.fromkeys(it.dependents))
        elif isinstance(it, AttemptFacts):
            if it.job_id:
                self._touched[it.job_id] = None
            if it.lease is not None:
                self._touched[it.lease.worker_id] = None

    # -- jobs

    def _judge_job(self, it: JobFacts, event: Fact) -> None:
        name = f"job {it.id} (seq {event.seq}, {event.trigger})"
        run = self.runs[it.run_id]
        told = event.metadata
        if event.from_ is None:
            if run.state != "PLANNING":
                raise Violation("orphan", f"{name} is born while its run is {run.state}")
            it.kind, it.needs, it.is_required = told["kind"], tuple(told["needs"]), bool(told["is_required"])
            it.max_attempts, it.jitter = int(told.get("max_attempts", 1)), float(told.get("jitter", 0.0))
            it.backoff = int(told.get("base_delay_seconds", 0)), int(told.get("max_delay_seconds", 0))
            it.has_validation = bool(told.get("has_validation"))
            it.approvers = int(told.get("approvers", 1))
            run.jobs.append(it.id)
            self.learn_bonds(it, told)
            for need in (*it.needs, *it.after):
                self._dependents.setdefault(need, []).append(it.id)
        if event.trigger in ("approval_given", "approved"):
            self._check_approval(name, it, event)
        if event.from_ != event.to:
            self._count(run, it, event)
            self._check_job_step(name, it, run, event)

    @staticmethod
    def _count(run: RunFacts, it: JobFacts, event: Fact) -> None:
        run.open += (event.from_ is None) - (event.to in JOB_ENDS)
        run.active += (event.to in ACTIVE) - (event.from_ in ACTIVE)
        run.waiting += (event.to == "WAITING_APPROVAL") - (event.from_ == "WAITING_APPROVAL")
        run.doomed += it.is_required and event.to in ("FAILED", "CANCELED")
        run.is_begun = run.is_begun or event.to == "RUNNING"

    def _check_job_step(self, name: str, it: JobFacts, run: RunFacts, event: Fact) -> None:
        if event.from_ == "PENDING" and event.to != "CANCELED":
            self._check_beginning(name, it, run, event)
        if event.to == "QUEUED":
            if event.metadata.get("attempt_index") != it.index + 1:
                raise Violation("attempts", f"{name} is attempt {event.metadata.get('attempt_index')} after {it.index}")
            it.index += 1
        if event.from_ == "RETRYING":
            if event.to == "QUEUED" and event.at < it.next_run_at:
                raise Violation("backoff", f"{name} is retried {(it.next_run_at - event.at) / SECOND:.1f} s too early")
            self.check_late(name, event, it.next_run_at)
        if event.from_ == "RUNNING" and event.to in ("RETRYING", "FAILED"):
            self._check_retry(name, it, event)
        if event.from_ == "WAITING_APPROVAL":
            self._check_decision(name, it, event)
        last = self.known.get(f"{it.id}.{it.index}")
        if event.to == "VALIDATING" and (last is None or last.state != "SUCCEEDED"):
            raise Violation("outcome", f"{name} was executed, but its attempt {it.index} is {last and last.state}")
        self._check_validated(name, it, event)
        if event.from_ == "VALIDATING":
            self.check_verdict(name, it, event, is_at_once=it.validating == self.commits)
        if event.to in JOB_ENDS and last is not None and last.state not in ATTEMPT_ENDS:
            raise Violation("outcome", f"{name} is over, but its attempt {it.index} is {last.state}")
        if event.to == "CANCELED":
            self._check_canceled(name, it, run, event)

    def _check_beginning(self, name: str, it: JobFacts, run: RunFacts, event: Fact) -> None:
        self.check_order(name, it)
        if (it.kind == "approval") != (event.to == "WAITING_APPROVAL"):
            raise Violation("approval", f"{name} is {event.to}, but it is of kind {it.kind}")
        if run.state not in GOING or run.is_canceled:
            raise Violation("after-end", f"{name} begins, but its run is {run.state}")
        if event.to == "WAITING_APPROVAL":
            it.approve_by = int(event.metadata.get("approve_by", 0))

    def _check_validated(self, name: str, it: JobFacts | RunFacts, event: Fact) -> None:
        """Rules are run after the commit that says that they are to be run."""
        if event.to == "VALIDATING":
            it.validating = self.commits
        elif (
            event.trigger in VERDICTS
            and it.has_validation
            and it.validating == self.commits
            and not self.is_invalid(it)
        ):
            raise Violation("validation", f"{name} has rules, and nobody ran them")

    def _check_retry(self, name: str, it: JobFacts, event: Fact) -> None:
        last = self.known.get(f"{it.id}.{it.index}")
        if not isinstance(last, AttemptFacts) or last.state not in ("FAILED", "TIMED_OUT"):
            raise Violation("outcome", f"{name} failed, but its attempt {it.index} is {last and last.state}")
        kind = last.error.get("failure_class")
        may = kind != "USER" and bool(last.error.get("is_retryable"))
        if last.state == "TIMED_OUT" or last.error.get("code") == "LEASE_LOST":
            may = True
        may = may and it.index < it.max_attempts and (not it.retry_on or kind in it.retry_on)
        if may != (event.to == "RETRYING"):
            of = f"attempt {it.index} of {it.max_attempts} failed as {kind}"
            raise Violation("retry", f"{name} is {event.to}, but {of}")
        if not may:
            return
        it.next_run_at = int(event.metadata["next_run_at"])
        wait = min(it.backoff[1], it.backoff[0] * 2 ** min(it.index, 30)) * SECOND
        least = max(event.at + wait, last.fence)
        if not least <= it.next_run_at <= max(event.at + int(wait * (1 + it.jitter)), last.fence):
            off = (it.next_run_at - least) / SECOND
            raise Violation("backoff", f"{name} will be retried {off:+.1f} s from when it should")

    @staticmethod
    def _check_approval(name: str, it: JobFacts, event: Fact) -> None:
        """Each person counts once; the last who must makes it succeed."""
        if event.actor in it.approved_by:
            raise Violation("approval", f"{name} is approved by {event.actor} again")
        it.approved_by.append(event.actor)
        if (len(it.approved_by) == it.approvers) != (event.to == "SUCCEEDED"):
            given = f"{len(it.approved_by)} of {it.approvers} people"
            raise Violation("approval", f"{name} is {event.to}, approved by {given}")

    def _check_decision(self, name: str, it: JobFacts, event: Fact) -> None:
        if event.to == "FAILED" and event.actor == "orchestrator" and not 0 < it.approve_by <= event.at:
            raise Violation("approval", f"{name} is decided by nobody, before its time is over")
        if it.approve_by:
            self.check_late(name, event, it.approve_by)
        it.decided_by = event.actor

    def _check_canceled(self, name: str, it: JobFacts, run: RunFacts, event: Fact) -> None:
        reason = event.metadata.get("reason")
        if reason == "BLOCKED":
            needs = [self.known.get(need) for need in it.needs]
            is_so = any(need is not None and need.state in JOB_ENDS and not self.is_met(need.id) for need in needs)
        elif reason == "NOT_NEEDED" and self.has_lost_family(it, run):
            is_so = True
        elif reason in MINE:
            is_so = run.state not in GOING and run.state != "VALIDATING"
        else:
            is_so = bool(reason)
        if not is_so:
            raise Violation("blocked", f"{name} is cancelled as {reason}, but there is no reason for that")

    # -- runs and workers

    def _judge_run(self, it: RunFacts, event: Fact) -> None:
        name = f"run {it.id} (seq {event.seq}, {event.trigger})"
        told = event.metadata
        if event.from_ is None:
            it.timeout = int(told["timeout_seconds"]) * SECOND
            it.is_fail_fast, it.has_validation = bool(told["is_fail_fast"]), bool(told["has_validation"])
        elif event.trigger == "cancel_requested":
            it.is_canceled = True
        if event.to == "PLANNING" and event.from_ == "CREATED":
            it.plan_by = int(told["plan_by"])
        elif event.from_ == "PLANNING" and event.from_ != event.to:
            self._check_plan(name, it, event)
        elif event.to == "RUNNING" and event.from_ == "QUEUED":
            it.started_at = event.at
        elif event.to == "TIMEOUT":
            if event.at < it.started_at + it.timeout:
                early = (it.started_at + it.timeout - event.at) / SECOND
                raise Violation("timeout", f"{name} is timed out {early:.1f} s too early")
            self.check_late(name, event, it.started_at + it.timeout)
        elif event.to == "REPORTED" and told.get("conclusion") != event.from_:
            raise Violation("conclusion", f"{name} reports {told.get('conclusion')}, but it was {event.from_}")
        self._check_validated(name, it, event)
        if event.to in OUTCOMES or event.to == "CANCEL_REQUESTED":
            self._check_outcome(name, it, event)

    def _check_plan(self, name: str, it: RunFacts, event: Fact) -> None:
        is_late = event.at >= it.plan_by
        if event.to == "QUEUED" and (is_late or event.metadata.get("jobs") != it.open):
            raise Violation("plan", f"{name}: the plan came too late, or not all of its {it.open} jobs exist")
        if event.to == "PLAN_FAILED" and str(event.metadata.get("error", "")).startswith("no plan within"):
            if not is_late:
                raise Violation("plan", f"{name} has no plan, but still time for it")
            self.check_late(name, event, it.plan_by)

    def _check_outcome(self, name: str, it: RunFacts, event: Fact) -> None:
        if event.to == "SUCCESS" and (it.open or it.doomed):
            raise Violation("outcome", f"{name} succeeds with {it.open} jobs open and {it.doomed} lost")
        if event.to == "CANCELED" and it.open:
            raise Violation("outcome", f"{name} is cancelled with {it.open} jobs open")
        if event.trigger == "required_job_failed":
            if not it.doomed:
                raise Violation("outcome", f"{name} fails, but it can still succeed")
            if it.open and not it.is_fail_fast:
                raise Violation("fail-fast", f"{name} fails with {it.open} jobs open, but it does not fail fast")
        if it.open:
            self._ending.append(it)

    def _judge_worker(self, it: WorkerFacts, event: Fact) -> None:
        told = event.metadata
        if "max_concurrent_tasks" in told:
            it.labels, it.places = frozenset(told["labels"]), int(told["max_concurrent_tasks"])
            it.free_since = event.at
        if event.trigger == "health_check_recovered":
            it.free_since = event.at
        if event.trigger == "shutdown_requested":
            it.is_leaving = True
        if "tasks" in told:
            it.told_tasks = int(told["tasks"])
        judge_worker(it, event)

    # -- when a commit is whole

    def settle(self, now: int = 0) -> None:
        """The commit is whole: what is true only of all of it is judged now, by the store's clock."""
        self.commits += 1
        touched, self._touched = self._touched, {}
        ending, self._ending = self._ending, []
        for id in touched:
            it = self.known.get(id)
            if isinstance(it, AttemptFacts):
                self.settle_attempt(it)
            elif isinstance(it, JobFacts):
                self._settle_job(it)
            elif isinstance(it, RunFacts):
                self._settle_run(it)
            elif isinstance(it, WorkerFacts):
                self._settle_worker(it)
            if it is not None:
                self.arm(it)
        self.check_overdue(now)
        for run in ending:
            self._settle_ending(run)

    def _settle_job(self, it: JobFacts) -> None:
        name = f"job {it.id} (rev {it.rev})"
        last = self.known.get(f"{it.id}.{it.index}")
        if it.state in ("QUEUED", "RUNNING") and (last is None or last.state in ATTEMPT_ENDS):
            raise Violation("outcome", f"{name} is {it.state}, but its attempt {it.index} is {last and last.state}")
        if it.state == "VALIDATING" and not it.has_validation:
            raise Violation("validation", f"{name} has no rules, and is not valid at once")
        if it.state == "VALIDATING" and self.is_invalid(it):
            raise Violation("verdict", f"{name} is not failed at once, but a rule failed")
        if is_fatal(it):
            self.settle_family(it, self.runs[it.run_id])
        if it.state != "PENDING" or self.runs[it.run_id].state not in GOING:
            return
        self.settle_pending(name, it)

    def _settle_run(self, it: RunFacts) -> None:
        name = f"run {it.id} (rev {it.rev})"
        if it.state in GOING:
            if not it.open:
                raise Violation("outcome", f"{name} is {it.state}, but all of its jobs are over")
            if it.doomed and it.is_fail_fast:
                raise Violation("fail-fast", f"{name} goes on with {it.doomed} of its jobs lost")
            if it.is_canceled:
                raise Violation("cancel", f"{name} is cancelled, and goes on")
            if (it.state == "WAITING_APPROVAL") != (it.waiting > 0 and not it.active):
                raise Violation("waiting", f"{name} is {it.state} with {it.waiting} waiting and {it.active} under way")
            if it.state == "QUEUED" and it.is_begun:
                raise Violation("outcome", f"{name} is QUEUED, but its first job is under way")
        elif it.state == "CANCEL_REQUESTED" and not it.open:
            raise Violation("cancel", f"{name} has nothing left to stop, and is not cancelled")
        elif it.state == "PLAN_FAILED":
            raise Violation("outcome", f"{name} has no plan, and does not fail")
        elif it.state == "VALIDATING" and not it.has_validation:
            raise Violation("validation", f"{name} has no final validation, and is not valid at once")

    def _settle_ending(self, it: RunFacts) -> None:
        """A job whose runner was told to stop is over when that has stopped, which may be later than its run."""
        for id in it.jobs:
            job = self.known[id]
            last = self.known.get(f"{id}.{job.index}") if isinstance(job, JobFacts) else None
            if job.state not in JOB_ENDS and (last is None or last.state != "CANCEL_REQUESTED"):
                raise Violation("cancel", f"run {it.id} is {it.state}, but its job {id} goes on as {job.state}")

    def _settle_worker(self, it: WorkerFacts) -> None:
        name = f"worker {it.id} (rev {it.rev})"
        if (it.state == "BUSY") != bool(it.held) and it.state != "UNRESPONSIVE":
            raise Violation("worker", f"{name} is {it.state}, but holds {sorted(it.held)}")
        if it.told_tasks != len(it.held) and it.state != "UNRESPONSIVE":
            raise Violation("worker", f"{name} says that it holds {it.told_tasks}, but holds {sorted(it.held)}")
        if it.state == "UNRESPONSIVE" and any(self.known[id].state != "CANCEL_REQUESTED" for id in it.held):
            raise Violation("worker", f"{name} does not answer, but still holds {sorted(it.held)}")
        settle_worker(it)

    # -- the end

    def is_over(self, id: str) -> bool:
        """Whether nothing more is to happen to a run, or to an attempt without one."""
        it = self.known.get(id)
        if isinstance(it, RunFacts):
            return it.state == "REPORTED" and not it.open
        return it is not None and it.state in ATTEMPT_ENDS

    def check_end(self) -> None:
        """Once everything has come to rest: nothing is left that waits, runs or is busy."""
        for it in self.known.values():
            if isinstance(it, RunFacts) and not self.is_over(it.id):
                raise Violation("liveness", f"run {it.id} is {it.state} with {it.open} jobs open, and nothing happens")
            if isinstance(it, AttemptFacts):
                if it.lease is not None and it.lease.state in LIVE:
                    raise Violation("liveness", f"{it.id} still has a live lease of {it.lease.worker_id}")
                if it.state not in ATTEMPT_ENDS:
                    raise Violation("liveness", f"{it.id} is still {it.state}")
        for worker in self.workers.values():
            if worker.held or worker.state == "BUSY":
                raise Violation("liveness", f"worker {worker.id} is {worker.state} with {sorted(worker.held)}")
