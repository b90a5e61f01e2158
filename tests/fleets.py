"""Random histories of workstreams and of the workers that carry them, looked at after every single decision.

Workers register, fall silent, come back with and without leases, are given up, leave while idle and while busy,
are drained, quarantined and resumed, and offer other places; leases run out and tasks go to somebody else.
Everything else is as in `tests.histories`.
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
from tests.histories import History
from tests.lab import TENANT, Lab

Watcher = Callable[[Command, Decision], None]

LABELS: Final = ((), ("linux",), ("linux", "gpu"))
WORKERS: Final = 3
MAX_TASKS: Final = 6


class Watched(Lab):
    """A lab in which somebody looks at every decision that was not refused."""

    def __init__(self) -> None:
        super().__init__()
        self.watchers: list[Watcher] = []

    def do(self, command: Command) -> Decision:
        decision = super().do(command)
        for watcher in self.watchers:
            watcher(command, decision)
        return decision


class Fleet(History):
    """One random history of tasks only: an approval is no task of document 003."""

    validated_share = 0.7

    def __init__(self, randomness: Random, *watchers: Callable[[Lab], Watcher]) -> None:
        lab = Watched()
        lab.watchers += [watcher(lab) for watcher in watchers]
        super().__init__(randomness, workers=WORKERS, max_jobs=MAX_TASKS, lab=lab)
        self.born = WORKERS

    def actions(self) -> dict[Callable[[], None], int]:
        """More of the fleet, and of what ends a workstream, than elsewhere; nothing of the plain queue."""
        chosen = super().actions()
        del chosen[self.new_queue_job]
        return chosen | {
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
        """One more worker registers, or one that went comes back in a new life."""
        gone = [each.id for each in self._all(Worker) if worker.may_return(each)]
        if gone and self.draw.random() < 0.5:
            name = worker_name(self.draw.choice(gone))
            id = incarnation_id(name, 1 + sum(worker_name(each.id) == name for each in self._all(Worker)))
        else:
            self.born += 1
            id = f"w{self.born}"
        self.lab.register(id, slots=self.draw.randint(1, 3), labels=self.draw.choice(LABELS))

    def fleet(self) -> None:
        """Something happens to a worker that can happen to it as it is now, or almost."""
        of = self.draw.choice(self._all(Worker))
        if of.state != worker.SHUTDOWN and self.draw.random() < 0.3:
            self.lab.do(self._held(of))
            return
        orders: dict[str, tuple[Command, ...]] = {
            worker.IDLE: (worker.Shutdown(id=of.id), *(self._offer(of.id) for _ in range(3))),
            worker.BUSY: (
                *(worker.MissHealthChecks(id=of.id) for _ in range(4)),
                worker.Shutdown(id=of.id, actor="user:ada"),
                self._offer(of.id),
            ),
            worker.UNRESPONSIVE: (
                *(worker.Recover(id=of.id, actor=f"worker:{of.id}") for _ in range(3)),
                worker.GiveUp(id=of.id),
                worker.Shutdown(id=of.id),
                self._offer(of.id),
            ),
        }
        self.lab.do(self.draw.choice(orders.get(of.state, (worker.Recover(id=of.id),))))

    def _held(self, of: Worker) -> Command:
        """It takes nothing new for a while, or takes work again."""
        if of.hold and self.draw.random() < 0.7:
            return worker.Resume(id=of.id, actor="user:bob")
        if self.draw.random() < 0.5:
            return worker.Drain(id=of.id, actor="user:ada", reason="new disk")
        return worker.Quarantine(id=of.id, reason=self.draw.choice(("slow disk", worker.REPEATED_INFRA_FAILURES)))

    def _offer(self, id: str) -> Command:
        labels, places = self.draw.choice((None, *LABELS)), self.draw.choice((None, 1, 2, 4))
        token_at = self.draw.choice((0, 0, self.lab.now))
        return worker.UpdateCapabilities(id=id, tenant=TENANT, labels=labels, slots=places, token_at=token_at)

    def stop_one(self) -> None:
        """A runner hears that it has to stop, and falls silent before it has: it keeps the lease for a while."""
        held = [a for a in self._all(Attempt) if a.state in attempt.ACTIVE_STATES and a.job_id and a.lease]
        if held:
            of = self.draw.choice(held)
            assert of.lease is not None
            self.lab.do(attempt.Cancel(id=of.id, reason=job.JOB_CANCELED, actor="user:ada"))
            if self.draw.random() < 0.6:
                self.lab.do(worker.MissHealthChecks(id=of.lease.worker_id))

    def validate(self) -> None:
        """The rules of a task, or of a workstream, were looked at."""
        ok = self.draw.random() < 0.6
        orders: list[Command] = [
            *(job.Validate(id=o.id, is_passed=ok, details="") for o in self._all(Job) if o.state == job.VALIDATING),
            *(run.Validate(id=o.id, is_passed=ok) for o in self._all(Run) if o.state == run.VALIDATING),
        ]
        if orders:
            self.lab.do(self.draw.choice(orders))

    def linger(self) -> None:
        """A workstream takes longer than it may."""
        late = [each.times_out_at for each in self._all(Run) if each.state in run.LIVE]
        if late:
            self.lab.now = max(self.lab.now, self.draw.choice(late))
            self.timers()
