"""Random histories of workstreams and their workers, with observers that check every decision.

Workers register, become unresponsive, recover with and without leases, shut down while idle and while busy, are
drained, quarantined and resumed, and change their capabilities; leases expire and tasks move to other workers.
Everything else is as in `tests.support.histories`.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Final

from deltaci.core import attempt, job, run, worker
from deltaci.core.attempt import Attempt
from deltaci.core.decide import Decision
from deltaci.core.ids import incarnation_id, worker_name
from deltaci.core.job import Job, JobSpec
from deltaci.core.machine import Command
from deltaci.core.run import Run
from deltaci.core.worker import Worker
from tests.support.histories import History
from tests.support.lab import TENANT, Lab

Observer = Callable[[Command, Decision], None]

LABELS: Final = ((), ("linux",), ("linux", "gpu"))
WORKERS: Final = 3
MAX_TASKS: Final = 6


class ObservedLab(Lab):
    """A lab that calls its observers after every decision that was not refused."""

    def __init__(self) -> None:
        super().__init__()
        self.observers: list[Observer] = []

    def do(self, command: Command) -> Decision:
        decision = super().do(command)
        for observer in self.observers:
            observer(command, decision)
        return decision


class Fleet(History):
    """One random history without approvals, which are not tasks of document 003."""

    validated_share = 0.7

    def __init__(self, randomness: Random, *observers: Callable[[Lab], Observer]) -> None:
        lab = ObservedLab()
        lab.observers += [observer(lab) for observer in observers]
        super().__init__(randomness, workers=WORKERS, max_jobs=MAX_TASKS, lab=lab)
        self.registered = WORKERS

    def actions(self) -> dict[Callable[[], None], int]:
        """Return more actions of workers, and more that end a workstream, than usual; none of the plain queue."""
        actions = super().actions()
        del actions[self.new_queue_job]
        return actions | {
            self.fleet: 9,
            self.arrive: 2,
            self.stop_one: 2,
            self.linger: 1,
            self.new_run: 2,
            self.validate: 5,
        }

    def _spec(self, name: str, needs: tuple[str, ...]) -> JobSpec:
        return JobSpec(
            name=name,
            needs=needs,
            is_required=self.draw.random() < 0.7,
            has_validation=self.draw.random() < 0.4,
            max_attempts=self.draw.choice((1, 2, 3)),
            timeout_seconds=self.draw.choice((60, 900)),
            max_lost_leases=self.draw.choice((0, 1, 3)),
            queue_key=self.draw.choice(("", "linux")),
        )

    def arrive(self) -> None:
        """Register another worker, or a new incarnation of one that was shut down."""
        returning_ids = [record.id for record in self._all(Worker) if worker.may_return(record)]
        if returning_ids and self.draw.random() < 0.5:
            name = worker_name(self.draw.choice(returning_ids))
            id = incarnation_id(name, 1 + sum(worker_name(record.id) == name for record in self._all(Worker)))
        else:
            self.registered += 1
            id = f"w{self.registered}"
        self.lab.register(id, slots=self.draw.randint(1, 3), labels=self.draw.choice(LABELS))

    def fleet(self) -> None:
        """Apply a command to a worker that suits its state."""
        record = self.draw.choice(self._all(Worker))
        if record.state != worker.SHUTDOWN and self.draw.random() < 0.3:
            self.lab.do(self._hold_command(record))
            return
        commands: dict[str, tuple[Command, ...]] = {
            worker.IDLE: (worker.Shutdown(id=record.id), *(self._update_capabilities(record.id) for _ in range(3))),
            worker.BUSY: (
                *(worker.MissHealthChecks(id=record.id) for _ in range(4)),
                worker.Shutdown(id=record.id, actor="user:ada"),
                self._update_capabilities(record.id),
            ),
            worker.UNRESPONSIVE: (
                *(worker.Recover(id=record.id, actor=f"worker:{record.id}") for _ in range(3)),
                worker.GiveUp(id=record.id),
                worker.Shutdown(id=record.id),
                self._update_capabilities(record.id),
            ),
        }
        self.lab.do(self.draw.choice(commands.get(record.state, (worker.Recover(id=record.id),))))

    def _hold_command(self, record: Worker) -> Command:
        """Return a command that puts the worker on hold or resumes it."""
        if record.hold and self.draw.random() < 0.7:
            return worker.Resume(id=record.id, actor="user:bob")
        if self.draw.random() < 0.5:
            return worker.Drain(id=record.id, actor="user:ada", reason="new disk")
        return worker.Quarantine(id=record.id, reason=self.draw.choice(("slow disk", worker.REPEATED_INFRA_FAILURES)))

    def _update_capabilities(self, id: str) -> Command:
        labels, slots = self.draw.choice((None, *LABELS)), self.draw.choice((None, 1, 2, 4))
        token_at = self.draw.choice((0, 0, self.lab.now))
        return worker.UpdateCapabilities(id=id, tenant=TENANT, labels=labels, slots=slots, token_at=token_at)

    def stop_one(self) -> None:
        """Request a cancel of an attempt, whose worker may then become unresponsive before it stops."""
        leased = [a for a in self._all(Attempt) if a.state in attempt.ACTIVE_STATES and a.job_id and a.lease]
        if leased:
            record = self.draw.choice(leased)
            assert record.lease is not None
            self.lab.do(attempt.Cancel(id=record.id, reason=job.JOB_CANCELED, actor="user:ada"))
            if self.draw.random() < 0.6:
                self.lab.do(worker.MissHealthChecks(id=record.lease.worker_id))

    def validate(self) -> None:
        """End the validation of a task or of a workstream."""
        ok = self.draw.random() < 0.6
        commands: list[Command] = [
            *(job.Validate(id=o.id, is_passed=ok, details="") for o in self._all(Job) if o.state == job.VALIDATING),
            *(run.Validate(id=o.id, is_passed=ok) for o in self._all(Run) if o.state == run.VALIDATING),
        ]
        if commands:
            self.lab.do(self.draw.choice(commands))

    def linger(self) -> None:
        """Move the clock to the timeout of a workstream."""
        timeouts = [record.times_out_at for record in self._all(Run) if record.state in run.LIVE]
        if timeouts:
            self.lab.now = max(self.lab.now, self.draw.choice(timeouts))
            self.timers()
