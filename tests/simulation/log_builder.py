"""Logs written by hand, for showing what the checker says about them: legal as far as it goes, until somebody errs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from deltaci.simulation.checker.acknowledgements import AcknowledgementChecker
from deltaci.simulation.checker.history_checker import CheckerConfig, HistoryChecker
from deltaci.simulation.checker.tracked import TrackedAttempt, TrackedWorker

SECOND = 1_000_000
START = 1_000_000 * SECOND
TTL = 120
POLL = 20
LATE = 2.5 * POLL + 21  # What is due must happen before that.


class SimRequest(NamedTuple):
    """One event."""

    seq: int
    at: int
    tenant: str
    entity: str
    entity_id: str
    run_id: str
    from_: str | None
    to: str
    trigger: str
    actor: str
    request_id: str
    rev: int
    metadata: dict[str, Any]


class Log:
    """A run `r` with jobs, and workers. Every method is one commit, unless it says otherwise."""

    def __init__(self, poll_seconds: float = POLL) -> None:
        self.checker = HistoryChecker(CheckerConfig(TTL, poll_seconds))
        self.acknowledgements = AcknowledgementChecker(self.checker)
        self.now = START
        self.checker.set_fault_free_since(START)

    def wait(self, seconds: float) -> None:
        """Time goes by."""
        self.now += int(seconds * SECOND)

    def say(self, entity: str, id: str, to: str, trigger: str, actor: str = "orchestrator", **told: Any) -> None:
        """One event, as it would come next. Names that begin with an underscore change the event itself."""
        it = self.checker.entities.get(id)
        before = it.state if it is not None else ("CREATED" if entity == "attempt" else None)
        fields = {
            "seq": self.checker.seq + 1,
            "at": self.now,
            "tenant": "t",
            "entity": entity,
            "entity_id": id,
            "run_id": "" if entity == "worker" else id.partition("/")[0],
            "from_": before,
            "to": to,
            "trigger": trigger,
            "actor": actor,
            "request_id": "",
            "rev": (it.rev if it is not None else 0) + 1,
        }
        fields.update({name[1:]: told.pop(name) for name in list(told) if name.startswith("_")})
        self.checker.check_event(SimRequest(**fields, metadata=told), self.now)  # type: ignore[arg-type]

    def settle(self) -> None:
        """The commit is whole."""
        self.checker.check_commit(self.now)

    # -- births

    def worker(self, id: str = "w", places: int = 1, labels: tuple[str, ...] = ()) -> None:
        """A worker comes in."""
        self.say("worker", id, "INITIALIZING", "registered")
        self.say("worker", id, "IDLE", "registration_complete", labels=list(labels), max_concurrent_tasks=places)
        self.settle()

    def create(self, *, is_fail_fast: bool = False, has_validation: bool = False) -> None:
        """A run that is being planned, in two commits."""
        told = {"is_fail_fast": is_fail_fast, "has_validation": has_validation, "timeout_seconds": 3600}
        self.say("run", "r", "CREATED", "created", "user:u", **told)
        self.settle()
        self.say("run", "r", "PLANNING", "run_created", plan_by=self.now + 60 * SECOND)
        self.settle()

    def job(self, name: str = "a", kind: str = "task", needs: tuple[str, ...] = (), **told: Any) -> None:
        """A job of the plan; part of a commit."""
        told = {"is_required": True, "has_validation": False, "max_attempts": 2, **told}
        told |= {"base_delay_seconds": 10, "max_delay_seconds": 600, "jitter": 0.0}
        self.say("job", f"r/{name}", "PENDING", "created", kind=kind, needs=[f"r/{each}" for each in needs], **told)

    def plan(self, *jobs: dict[str, Any], **run: Any) -> None:
        """A run with these jobs; those without needs begin."""
        self.create(**run)
        for each in jobs or ({},):
            self.job(**each)
        self.say("run", "r", "QUEUED", "plan_returned", jobs=len(jobs) or 1)
        waiting = 0
        for each in jobs or ({},):
            if each.get("kind") == "approval":
                waiting += 1
                self.open(each.get("name", "a"), each.get("seconds", 0))
            elif not each.get("needs") and not each.get("after"):
                self.queue(each.get("name", "a"))
        if waiting == len(jobs) and jobs:
            self.say("run", "r", "RUNNING", "first_attempt_active")
            self.say("run", "r", "WAITING_APPROVAL", "approval_gate_reached")
        self.settle()

    def open(self, name: str, seconds: int = 0) -> None:
        """An approval waits; part of a commit."""
        by = self.now + seconds * SECOND if seconds else 0
        self.say("job", f"r/{name}", "WAITING_APPROVAL", "approval_opened", approve_by=by)

    def queue(self, name: str = "a", index: int = 1, **told: Any) -> None:
        """A job begins, and its attempt waits; part of a commit."""
        retried = "retry_delay_elapsed" if index > 1 else "scheduler_assigned"
        self.say("job", f"r/{name}", "QUEUED", retried, attempt_index=index)
        told = {"index": index, "job_id": f"r/{name}", "queue_key": "", "run_at": 0, **told}
        self.say(
            "attempt",
            f"r/{name}.{index}",
            "QUEUED",
            "enqueued",
            **{"timeout_seconds": 600, "max_lost_leases": 1} | told,
        )

    # -- leases

    def attempt(self, name: str = "a", index: int = 1) -> TrackedAttempt:
        """What is known of it."""
        it = self.checker.entities[f"r/{name}.{index}"]
        assert isinstance(it, TrackedAttempt)
        return it

    def grant(self, name: str = "a", worker: str = "w", index: int = 1, **lease: Any) -> None:
        """A claim, without what follows from it; part of a commit."""
        number = lease.pop("claims", self.attempt(name, index).claims + 1)
        told = {"number": number, "worker_id": worker, "from": None, "to": "GRANTED"}
        told |= {"accept_by": self.now + 30 * SECOND, "expires_at": self.now + TTL * SECOND, **lease}
        self.say("attempt", f"r/{name}.{index}", "LEASED", "claimed", f"worker:{worker}", claims=number, lease=told)

    def claim(self, name: str = "a", worker: str = "w", **lease: Any) -> None:
        """A claim, with all that follows."""
        self.grant(name, worker, **lease)
        self.say("job", f"r/{name}", "RUNNING", "worker_started", worker_id=worker)
        if self.checker.runs["r"].state == "QUEUED":
            self.say("run", "r", "RUNNING", "first_attempt_active")
        held = self.checker.entities.get(worker)
        if isinstance(held, TrackedWorker):
            self.say("worker", worker, "BUSY", "task_assigned", tasks=len(held.leased_attempts))
        self.settle()

    def renew(
        self, name: str = "a", to: str = "RUNNING", trigger: str = "heartbeat", worker: str = "w", **lease: Any
    ) -> None:
        """The runner speaks, and its lease runs anew."""
        held = self.attempt(name).lease
        assert held is not None
        told = {"number": held.number, "worker_id": held.worker_id, "from": held.state, "to": "ACTIVE"}
        told |= {"expires_at": self.now + TTL * SECOND, **lease}
        self.say("attempt", f"r/{name}.1", to, trigger, f"worker:{worker}", lease=told)
        self.settle()

    def start(self, name: str = "a", worker: str = "w") -> None:
        """Acknowledged, and running."""
        self.renew(name, "STARTING", "heartbeat", worker)
        self.renew(name, "RUNNING", "started", worker)

    def end(self, name: str, to: str, trigger: str, lease: str, actor: str = "worker:w", **told: Any) -> None:
        """The lease ends with this step; part of a commit."""
        held = self.attempt(name).lease
        assert held is not None
        changed = {"number": held.number, "worker_id": held.worker_id, "from": held.state, "to": lease}
        self.say("attempt", f"r/{name}.1", to, trigger, actor, lease=changed, **told)

    def free(self, worker: str = "w", **told: Any) -> None:
        """The worker has room again, and says what else changed; part of a commit."""
        it = self.checker.entities[worker]
        if isinstance(it, TrackedWorker) and it.infra_failures != it.reported_infra_failures:
            told = {"troubles": it.infra_failures, **told}
        self.say("worker", worker, "IDLE", "task_completed", **{"tasks": 0, **told})

    def hold(self, trigger: str = "drained", hold: str = "DRAINED", worker: str = "w", **told: Any) -> None:
        """The worker takes nothing new, or is let go; part of a commit."""
        state = self.checker.entities[worker].state
        assert state is not None
        self.say("worker", worker, state, trigger, **{"hold": hold, **told})

    def lose(self, name: str = "a", reason: str = "LEASE_EXPIRED", lost: int = 1, **told: Any) -> None:
        """The lease is lost, and the attempt stale; part of a commit."""
        lease = "EXPIRED" if reason == "LEASE_EXPIRED" else "REVOKED"
        self.end(name, "STALE", "stalled", lease, "orchestrator", reason=reason, lost_leases=lost)
        self.free(**told)

    def finish(self, name: str = "a", to: str = "SUCCEEDED", **told: Any) -> None:
        """The attempt ends by its runner's word; part of a commit."""
        self.renew(name, "UPLOADING")
        trigger = "succeeded" if to == "SUCCEEDED" else "failed"
        code = 0 if to == "SUCCEEDED" else 1
        self.end(name, to, trigger, "COMPLETED", **{"exit_code": code, **told})
        self.free()

    def fail(self, failure_class: str = "INFRA", *, is_retryable: bool = True) -> None:
        """The attempt of `a` fails; part of a commit."""
        self.finish("a", "FAILED", error={"code": "EXIT", "failure_class": failure_class, "is_retryable": is_retryable})

    def succeed(self, name: str = "a") -> None:
        """The job is done; part of a commit."""
        self.finish(name)
        self.say("job", f"r/{name}", "VALIDATING", "execution_completed", attempt_index=1)
        self.say("job", f"r/{name}", "SUCCEEDED", "validation_passed")

    def run(self, to: str, trigger: str, actor: str = "orchestrator", **told: Any) -> None:
        """A step of the run; part of a commit."""
        self.say("run", "r", to, trigger, actor, **told)

    def work(self) -> None:
        """A run with one job, under way on a worker."""
        self.worker()
        self.plan()
        self.claim()
        self.start()


Case = Callable[[Log], None]
CASES: list[tuple[str, Case]] = []


def breaks(invariant: str) -> Callable[[Case], Case]:
    """This log breaks that promise."""

    def keep(case: Case) -> Case:
        CASES.append((invariant, case))
        return case

    return keep
