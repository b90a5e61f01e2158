"""Is this history legal? Written from the documents alone: it shares no code with what it checks.

It reads the log event by event, as it is committed, and keeps what it needs to judge the next one. A violation names
the invariant, the event, and what was expected.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple, Protocol

SECOND: Final = 1_000_000

LEGAL: Final[dict[str, dict[str | None, set[str]]]] = {
    "run": {
        None: {"CREATED"},
        "CREATED": {"PLANNING"},
        "PLANNING": {"QUEUED", "PLAN_FAILED"},
        "PLAN_FAILED": {"FAILED"},
        "QUEUED": {"RUNNING", "CANCEL_REQUESTED"},
        "RUNNING": {"VALIDATING", "WAITING_APPROVAL", "FAILED", "TIMEOUT", "CANCEL_REQUESTED"},
        "WAITING_APPROVAL": {"RUNNING", "FAILED", "TIMEOUT", "CANCEL_REQUESTED"},
        "VALIDATING": {"SUCCESS", "FAILED", "TIMEOUT", "CANCEL_REQUESTED"},
        "CANCEL_REQUESTED": {"CANCELED"},
        "SUCCESS": {"REPORTED"},
        "FAILED": {"REPORTED"},
        "CANCELED": {"REPORTED"},
        "TIMEOUT": {"REPORTED"},
    },
    "job": {
        None: {"PENDING"},
        "PENDING": {"QUEUED", "WAITING_APPROVAL", "CANCELED"},
        "QUEUED": {"RUNNING", "CANCELED"},
        "RUNNING": {"VALIDATING", "RETRYING", "FAILED", "CANCELED"},
        "VALIDATING": {"SUCCEEDED", "FAILED", "CANCELED"},
        "RETRYING": {"QUEUED", "CANCELED"},
        "WAITING_APPROVAL": {"SUCCEEDED", "FAILED", "CANCELED"},
    },
    "attempt": {
        None: {"CREATED"},
        "CREATED": {"QUEUED"},
        "QUEUED": {"LEASED", "CANCEL_REQUESTED"},
        "LEASED": {"STARTING", "STALE", "CANCEL_REQUESTED"},
        "STARTING": {"RUNNING", "STALE", "CANCEL_REQUESTED"},
        "RUNNING": {"UPLOADING", "STALE", "TIMED_OUT", "CANCEL_REQUESTED"},
        "UPLOADING": {"SUCCEEDED", "FAILED", "STALE", "TIMED_OUT", "CANCEL_REQUESTED"},
        "STALE": {"QUEUED", "LEASED", "FAILED", "CANCEL_REQUESTED"},
        "CANCEL_REQUESTED": {"CANCELED"},
    },
    "lease": {
        None: {"GRANTED"},
        "GRANTED": {"ACTIVE", "EXPIRED", "REVOKED"},
        "ACTIVE": {"COMPLETED", "CANCELED", "EXPIRED", "REVOKED"},
    },
    "worker": {
        None: {"INITIALIZING"},
        "INITIALIZING": {"IDLE"},
        "IDLE": {"BUSY", "SHUTDOWN"},
        "BUSY": {"IDLE", "UNRESPONSIVE", "SHUTDOWN"},
        "UNRESPONSIVE": {"IDLE", "SHUTDOWN", "BUSY"},
    },
}
ENDS: Final = {
    "job": {"SUCCEEDED", "FAILED", "CANCELED"},
    "attempt": {"SUCCEEDED", "FAILED", "TIMED_OUT", "CANCELED"},
    "run": {"SUCCESS", "FAILED", "CANCELED", "TIMEOUT", "REPORTED"},
    "lease": {"COMPLETED", "CANCELED", "EXPIRED", "REVOKED"},
}
LIVE: Final = {"GRANTED", "ACTIVE"}
HELD: Final = {"LEASED", "STARTING", "RUNNING", "UPLOADING"}


class Fact(Protocol):
    """What the checker reads of an event."""

    @property
    def seq(self) -> int: ...
    @property
    def at(self) -> int: ...
    @property
    def entity(self) -> str: ...
    @property
    def entity_id(self) -> str: ...
    @property
    def run_id(self) -> str: ...
    @property
    def from_(self) -> str | None: ...
    @property
    def to(self) -> str: ...
    @property
    def trigger(self) -> str: ...
    @property
    def actor(self) -> str: ...
    @property
    def rev(self) -> int: ...
    @property
    def metadata(self) -> dict[str, Any]: ...


class Violation(AssertionError):
    """The history is illegal, or the promise was broken."""

    def __init__(self, invariant: str, message: str) -> None:
        super().__init__(f"{invariant}: {message}")
        self.invariant = invariant


class Lease(NamedTuple):
    """The last lease of an attempt, as the log tells it."""

    number: int
    worker_id: str
    state: str
    expires_at: int
    accept_by: int


class Known:
    """What is known of one entity."""

    __slots__ = ("at", "born", "lease", "needs", "rev", "since", "state", "told")

    def __init__(self) -> None:
        self.state: str | None = None
        self.rev = 0
        self.at = 0
        self.since: dict[str, int] = {}  # When it came into a state for the last time.
        self.born: dict[str, Any] = {}
        self.told: dict[str, Any] = {}
        self.lease: Lease | None = None
        self.needs: tuple[str, ...] = ()


class Checker:
    """Sees every event once, in order."""

    def __init__(self) -> None:
        self.seq = 0
        self.known: dict[str, Known] = {}
        self.jobs: dict[str, list[str]] = {}
        self.live: dict[str, set[str]] = {}  # By worker: the attempts whose live leases it holds.
        self.edges: set[tuple[str, str | None, str]] = set()
        self.seen = 0
        self._open: list[tuple[str, str, str]] = []  # Runs that ended in this commit, and what is said of them.

    def settle(self) -> None:
        """The commit is whole: what is true only of all of it is judged now."""
        for id, state, name in self._open:
            self._outcome(id, state, name)
        self._open.clear()

    def see(self, event: Fact) -> None:
        """Judge one event. Raises `Violation`."""
        self.seen += 1
        if event.seq <= self.seq:
            raise Violation("order", f"seq {event.seq} comes after {self.seq}")
        self.seq = event.seq
        known = self.known.get(event.entity_id)
        if known is None:
            known = self.known[event.entity_id] = Known()
            known.born = event.metadata
            if event.entity == "attempt":  # It is born and published in one step; the log shows the second.
                known.state = "CREATED"
        self._check_step(known, event)
        {"attempt": self._attempt, "job": self._job, "run": self._run, "worker": self._worker}[event.entity](
            known, event
        )
        if event.to != known.state:
            known.since[event.to] = event.at
        known.state, known.rev, known.at = event.to, event.rev, event.at
        known.told = {**known.told, **event.metadata}

    def _check_step(self, known: Known, event: Fact) -> None:
        name = f"{event.entity} {event.entity_id} (seq {event.seq}, {event.trigger})"
        if event.rev != known.rev + 1:
            raise Violation("rev", f"{name} has rev {event.rev} after {known.rev}")
        if event.from_ != known.state:
            raise Violation("continuity", f"{name} goes from {event.from_}, but it is {known.state}")
        if event.at < known.at:
            raise Violation("time", f"{name} happens at {event.at}, before {known.at}")
        if event.from_ == event.to:
            if event.to in ENDS.get(event.entity, ()):
                raise Violation("terminal", f"{name} changes after its end {event.to}")
        elif event.to not in LEGAL[event.entity].get(event.from_, ()):
            raise Violation("legal", f"{name}: {event.from_} → {event.to} is no transition of a {event.entity}")
        self.edges.add((event.entity, event.from_, event.to))

    # -- attempts and their leases

    def _attempt(self, known: Known, event: Fact) -> None:
        told = event.metadata.get("lease")
        name = f"attempt {event.entity_id} (seq {event.seq}, {event.trigger})"
        before = known.lease
        if told is not None:
            known.lease = self._lease(name, event, before, told)
        live = known.lease is not None and known.lease.state in LIVE
        if event.to in HELD and not live:
            raise Violation("held", f"{name} is {event.to}, but nobody holds its lease")
        if event.to not in HELD and event.to != "CANCEL_REQUESTED" and live:
            raise Violation("held", f"{name} is {event.to}, but its lease is still {known.lease and known.lease.state}")
        if event.actor.startswith("worker:") and before is not None and event.trigger != "claimed":
            holder = event.actor.partition(":")[2]
            if before.worker_id != holder or before.state not in LIVE:
                raise Violation("fence", f"{name} was said by {holder}, but the lease is {before}")
        if event.to == "TIMED_OUT":
            due = known.since.get("RUNNING", 0) + int(known.born.get("timeout_seconds", 0)) * SECOND
            if event.at < due:
                raise Violation("timeout", f"{name} is timed out {(due - event.at) / SECOND:.1f} s too early")
        if event.to == "QUEUED" and event.from_ == "CREATED" and event.metadata.get("job_id"):
            self._new_attempt(name, event)

    def _lease(self, name: str, event: Fact, before: Lease | None, told: dict[str, Any]) -> Lease:
        number, state = int(told["number"]), str(told["to"])
        self.edges.add(("lease", told["from"], state))
        if told["from"] is None:
            if before is not None and before.state in LIVE:
                raise Violation("one-lease", f"{name} grants lease {number} while lease {before.number} is live")
            if number != (before.number if before is not None else 0) + 1 and before is not None:
                self._check_number(name, number, before)
            self._occupy(name, event.entity_id, str(told["worker_id"]))
            return Lease(number, str(told["worker_id"]), state, int(told["expires_at"]), int(told["accept_by"]))
        if before is None or before.number != number or before.state != told["from"]:
            raise Violation("one-lease", f"{name} changes lease {number} from {told['from']}, but it is {before}")
        if told["from"] != state and state not in LEGAL["lease"].get(told["from"], ()):
            raise Violation("legal", f"{name}: lease {told['from']} → {state} is no transition of a lease")
        if state == "EXPIRED" and event.at < before.expires_at:
            raise Violation("expiry", f"{name} lets the lease expire {(before.expires_at - event.at) / SECOND} s early")
        if state in LIVE and event.at >= before.expires_at:
            raise Violation("revived", f"{name} renews a lease that ended at {before.expires_at}")
        expires_at = int(told.get("expires_at", before.expires_at))
        if state in LIVE and expires_at < before.expires_at:
            raise Violation("shortened", f"{name} shortens the lease by {(before.expires_at - expires_at) / SECOND} s")
        if state not in LIVE:
            self.live.get(before.worker_id, set()).discard(event.entity_id)
        return before._replace(state=state, expires_at=expires_at)

    @staticmethod
    def _check_number(name: str, number: int, before: Lease) -> None:
        if number <= before.number:
            raise Violation("token", f"{name} grants lease {number} after lease {before.number}: a token is used again")

    def _occupy(self, name: str, attempt_id: str, worker_id: str) -> None:
        held = self.live.setdefault(worker_id, set())
        held.add(attempt_id)
        worker = self.known.get(worker_id)
        places = int(worker.told.get("max_concurrent_tasks", 0)) if worker is not None else 0
        if places and len(held) > places:
            raise Violation("slots", f"{name} is the {len(held)}th lease of {worker_id}, which has {places} places")

    def _new_attempt(self, name: str, event: Fact) -> None:
        job = self.known.get(event.metadata["job_id"])
        index = int(event.metadata["index"])
        if job is None:
            raise Violation("orphan", f"{name} belongs to no job")
        if job.born.get("kind") == "approval":
            raise Violation("approval", f"{name} is an attempt of an approval")
        if index > int(job.born.get("max_attempts", 1)):
            raise Violation("attempts", f"{name} is attempt {index} of {job.born.get('max_attempts')}")
        earlier = self.known.get(f"{event.metadata['job_id']}.{index - 1}")
        if index > 1 and (earlier is None or earlier.state not in ("FAILED", "TIMED_OUT")):
            raise Violation("attempts", f"{name} begins while attempt {index - 1} is {earlier and earlier.state}")

    # -- jobs, runs, workers

    def _job(self, known: Known, event: Fact) -> None:
        name = f"job {event.entity_id} (seq {event.seq}, {event.trigger})"
        if event.from_ is None:
            known.needs = tuple(event.metadata.get("needs", ()))
            self.jobs.setdefault(event.run_id, []).append(event.entity_id)
        if event.from_ == "PENDING" and event.to in ("QUEUED", "WAITING_APPROVAL"):
            for need in known.needs:
                other = self.known.get(need)
                if other is None or not (
                    other.state == "SUCCEEDED" or (other.state in ENDS["job"] and not other.born["is_required"])
                ):
                    raise Violation("needs", f"{name} begins although {need} is {other and other.state}")
        if event.to in ENDS["job"] and known.born.get("kind") != "approval":
            index = int(known.told.get("attempt_index", 0))
            last = self.known.get(f"{event.entity_id}.{index}") if index else None
            if event.to == "SUCCEEDED" and (last is None or last.state != "SUCCEEDED"):
                raise Violation("outcome", f"{name} succeeds, but its last attempt is {last and last.state}")
            if last is not None and last.state not in ENDS["attempt"]:
                raise Violation("outcome", f"{name} is over, but its attempt {index} is {last.state}")

    def _run(self, known: Known, event: Fact) -> None:
        name = f"run {event.entity_id} (seq {event.seq}, {event.trigger})"
        if event.to in ENDS["run"] and event.to != "REPORTED":
            self._open.append((event.entity_id, event.to, name))

    def _outcome(self, run_id: str, state: str, name: str) -> None:
        jobs = {id: self.known[id] for id in self.jobs.get(run_id, ())}
        # A job whose runner was told to stop is over when that has stopped, which may be later than its run.
        running = [id for id, job in jobs.items() if job.state not in ENDS["job"] and not self._is_stopping(id, job)]
        if running:
            raise Violation("outcome", f"{name} is {state}, but {running[0]} is {jobs[running[0]].state}")
        failed = [id for id, job in jobs.items() if job.state != "SUCCEEDED" and job.born["is_required"]]
        if state == "SUCCESS" and failed:
            raise Violation("outcome", f"{name} succeeds, but {failed[0]} is {jobs[failed[0]].state}")

    def _is_stopping(self, id: str, job: Known) -> bool:
        last = self.known.get(f"{id}.{job.told.get('attempt_index', 0)}")
        return last is not None and last.state == "CANCEL_REQUESTED"

    def _worker(self, known: Known, event: Fact) -> None:
        held = self.live.get(event.entity_id, set())
        name = f"worker {event.entity_id} (seq {event.seq}, {event.trigger})"
        if event.to == "IDLE" and len(held) > 0:
            raise Violation("slots", f"{name} is idle, but holds {sorted(held)}")

    # -- the end

    def check_end(self) -> None:
        """Once everything has come to rest: nothing is left that waits, runs or is busy."""
        for id, known in self.known.items():
            if id in self.jobs and known.state != "REPORTED":
                raise Violation("liveness", f"run {id} is {known.state}, and nothing more happens")
            if known.lease is not None and known.lease.state in LIVE:
                raise Violation("liveness", f"{id} still has a live lease of {known.lease.worker_id}")
        for worker_id, held in self.live.items():
            if held:
                raise Violation("liveness", f"worker {worker_id} is still busy with {sorted(held)}")
            known_worker = self.known.get(worker_id)
            if known_worker is not None and known_worker.state == "BUSY":
                raise Violation("liveness", f"worker {worker_id} is BUSY with nothing")
