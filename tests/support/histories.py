"""Random histories: whole runs driven by random commands, with all kinds of faults.

Jobs have dependencies, retries, approvals and validation; workers die, recover, hang and answer too late; messages are
lost, repeated and reordered; people cancel; the clock jumps. Refusals are expected. A broken invariant, a log that does
not verify, or work that does not end after the faults stop is a failure.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any, Self, TypeVar

import msgspec

from deltaci.core import attempt, job, run, worker
from deltaci.core.approvals import Gate
from deltaci.core.attempt import Attempt
from deltaci.core.decide import CancelJob, Plan
from deltaci.core.errors import Refused
from deltaci.core.failures import Facts
from deltaci.core.job import Job, JobSpec
from deltaci.core.machine import Command
from deltaci.core.run import Run
from deltaci.core.status.queue import check_invariants
from deltaci.core.worker import Worker
from tests.support.lab import TENANT, Lab, Lease

T = TypeVar("T")

PEOPLE = ("ada", "bob", "cyd", "dan")
ERRORS = ("", "RUNNER_STARTUP", "CACHE_FETCH", "BAD_SPEC", "IMAGE_PULL")
CALM_ROUNDS = 400  # More than any history needs to finish.


class History:
    """One random history; the same `randomness` yields the same history."""

    validated_share = 0.3  # The share of runs with a final validation.

    def __init__(self, randomness: Random, *, workers: int = 4, max_jobs: int = 14, lab: Lab | None = None) -> None:
        self.lab = lab or Lab()
        self.draw = randomness
        self.max_jobs = max_jobs
        self.leases: list[Lease] = []
        self.sent: list[Command] = []
        self.runs = 0
        self.requests = 0
        self.refusals = 0
        for index in range(workers):
            self.lab.register(f"w{index}", slots=randomness.randint(1, 2), labels=("linux",))

    # -- random actions

    def new_run(self) -> None:
        """Create a run with a random plan."""
        self.runs += 1
        count, names = self.draw.randint(0, self.max_jobs), list[str]()
        specs = []
        for index in range(count):
            needs = self.draw.sample(names, k=min(len(names), self.draw.choice((0, 1, 1, 2, 3))))
            after = self.draw.sample(names, k=min(len(names), self.draw.choice((0, 0, 0, 1, 2))))
            spec = self._spec(f"j{index}", tuple(needs))
            specs.append(msgspec.structs.replace(spec, after=tuple(after), **self._dependencies(spec)))
            names.append(f"j{index}")
        id = f"r{self.runs}"
        self.lab.create(
            id,
            started_by=self.draw.choice(("", *PEOPLE)),
            timeout_seconds=self.draw.choice((600, 3600, 20000)),
            optional_wait_seconds=(0, 60, 600)[self.runs % 3],
            is_fail_fast=self.draw.random() < 0.3,
            has_validation=self.draw.random() < self.validated_share,
        )
        if self.draw.random() < 0.05:
            self.lab.cancel_run(id)
        self.lab.do(run.BeginPlanning(id=id))
        if self.draw.random() < 0.05:
            self.lab.cancel_run(id)
        if self.runs % 10 == 3:
            self.lab.do(run.AwaitGroup(id=id, group="deploy"))
        if self.draw.random() < 0.1:
            self.lab.do(run.PlanFailed(id=id, error="no plan"))
            return
        self.lab.do(Plan(id=id, jobs=tuple(specs), plan_hash="hash"))

    def _dependencies(self, spec: JobSpec) -> dict[str, Any]:
        """Return the settings that tie the job to others, in its run and in other runs."""
        settings: dict[str, Any] = {"family": self.draw.choice(("", "", "odd", "even"))}
        settings["is_family_fail_fast"] = bool(settings["family"]) and self.draw.random() < 0.6
        if spec.kind == job.TASK:
            settings["group"] = self.draw.choice(("", "", "", "deploy", "lab"))
            settings["retry_on"] = self.draw.choice(((), (), ("INFRA",), ("TOOLING", "FLAKY")))
        return settings

    def _spec(self, name: str, needs: tuple[str, ...]) -> JobSpec:
        if self.draw.random() < 0.15:
            settings = Gate(
                role=self.draw.choice(("", "", "ops")),
                approvers=self.draw.choice((1, 1, 2, 3)),
                not_by_starter=self.draw.random() < 0.3,
            )
            seconds = self.draw.choice((0, 900))
            return JobSpec(
                name=name,
                needs=needs,
                kind=job.APPROVAL,
                is_required=not name.endswith(("3", "7")),
                approval_seconds=seconds,
                gate=settings,
            )
        return JobSpec(
            name=name,
            needs=needs,
            is_required=self.draw.random() < 0.8,
            has_validation=self.draw.random() < 0.2,
            max_attempts=self.draw.choice((1, 2, 3)),
            jitter=self.draw.choice((0.0, 0.5)),
            timeout_seconds=self.draw.choice((60, 900)),
            max_lost_leases=self.draw.choice((0, 1, 3)),
            queue_key=self.draw.choice(("", "linux")),
        )

    def new_queue_job(self) -> None:
        """Enqueue a job of the plain queue, without a run."""
        self.runs += 1
        self.lab.enqueue(f"q{self.runs}", run_at=self.lab.now if self.draw.random() < 0.3 else 0)

    def claim(self) -> None:
        """Claim a waiting attempt."""
        waiting = [a for a in self._all(Attempt) if a.state in (attempt.QUEUED, attempt.STALE)]
        if waiting:
            by = self.draw.choice([w.id for w in self._all(Worker)] + ["unregistered"])
            self.leases.append(self.lab.claim(self.draw.choice(waiting), by=by))

    def message(self) -> None:
        """Send a message under a recent lease, perhaps twice."""
        if not self.leases:
            return
        lease = self.draw.choice(self.leases[-8:])
        kind = self.draw.choice(
            (attempt.Ack, attempt.Heartbeat, attempt.Extend, attempt.Start, attempt.BeginUpload, attempt.CancelAck)
        )
        self._send(self.lab.message(kind, lease, request_id=self._request()))

    def finish(self) -> None:
        """Report a result."""
        if self.leases:
            lease, ok = self.draw.choice(self.leases[-8:]), self.draw.random() < 0.7
            facts = Facts(error_code=self.draw.choice(ERRORS))
            kind = self.draw.choice((attempt.Complete, attempt.Complete, attempt.Finish))
            code = 0 if ok else self.draw.choice((1, 2, 137))
            fields: dict[str, Any] = {"is_success": ok, "exit_code": code, "facts": facts}
            fields.update(request_id=self._request(), verdict=self._verdict() if ok else None)
            self._send(self.lab.message(kind, lease, **fields))

    def _verdict(self) -> attempt.Verdict | None:
        """Return the runner's verdict, or None without validation rules."""
        passed = self.draw.choice((None, None, True, False))
        details = "coverage: found 71, wanted at least 80" if passed is False else ""
        return None if passed is None else attempt.Verdict(is_passed=passed, details=details)

    def repeat(self) -> None:
        """Deliver an old message again."""
        if self.sent:
            self.lab.do(self.draw.choice(self.sent[-40:]))

    def person(self) -> None:
        """Decide an approval or cancel something, as a person."""
        jobs = self._all(Job)
        target = self.draw.choice(jobs).id if jobs else "nothing"
        runs = [r.id for r in self._all(Run)] or ["nothing"]
        waiting = [j.id for j in jobs if j.state == job.WAITING_APPROVAL] or [target]
        actor = f"user:{self.draw.choice(PEOPLE)}"
        roles, plan_hash = self.draw.choice(((), ("ops",), ("dev", "ops"))), self.draw.choice(("", "", "hash", "old"))
        choices: tuple[Command, ...] = (
            job.Approve(id=self.draw.choice(waiting), actor=actor, roles=roles, plan_hash=plan_hash),
            job.Approve(id=self.draw.choice(waiting), actor="user:bob", roles=("ops",)),
            job.Reject(id=self.draw.choice(waiting), actor=actor, roles=roles, plan_hash=plan_hash),
            CancelJob(id=target, actor="user:ada", request_id=self._request()),
            run.Cancel(id=self.draw.choice(runs), actor="user:bob", request_id=self._request()),
        )
        self._send(self.draw.choices(choices, weights=(6, 3, 2, 2, 1))[0])

    def fleet(self) -> None:
        """Change the state, the capabilities or the hold of a worker."""
        id = self.draw.choice(self._all(Worker)).id
        kinds = (worker.MissHealthChecks, worker.Recover, worker.GiveUp, worker.Shutdown)
        commands: list[Command] = [kind(id=id) for kind in kinds]
        slots, token_at = self.draw.choice(((None, 0), (1, 0), (4, self.lab.now)))
        labels = self.draw.choice((None, ("linux",), ("linux", "gpu")))
        commands.append(worker.UpdateCapabilities(id=id, tenant=TENANT, labels=labels, slots=slots, token_at=token_at))
        commands.append(worker.Drain(id=id, actor=self.draw.choice(("orchestrator", "user:ada")), reason="new disk"))
        commands.append(
            worker.Quarantine(id=id, reason=self.draw.choice(("slow disk", worker.REPEATED_INFRA_FAILURES)))
        )
        commands.append(worker.Resume(id=id, actor=self.draw.choice(("orchestrator", "user:bob"))))
        self.lab.do(self.draw.choices(commands, weights=(4, 6, 2, 1, 4, 2, 1, 5))[0])

    def operator(self) -> None:
        """Stall, hand back or requeue an attempt through the queue contract."""
        live_ids = [a.id for a in self._all(Attempt) if a.state not in attempt.TERMINAL]
        if live_ids:
            id = self.draw.choice(live_ids)
            choices = (
                attempt.Stall(id=id),
                attempt.Stall(id=id, reason=attempt.HANDED_BACK),
                attempt.Requeue(id=id),
            )
            self.lab.do(self.draw.choice(choices))

    def validate(self) -> None:
        """End or cancel a validation."""
        ok = self.draw.random() < 0.8
        for validating in self._all(Job):
            if validating.state == job.VALIDATING:
                self.lab.do(job.Validate(id=validating.id, is_passed=ok, details="" if ok else "coverage 71 % < 80 %"))
                return
        for record in self._all(Run):
            if record.state == run.VALIDATING:
                if self.draw.random() < 0.2:
                    self.lab.cancel_run(record.id)
                self.lab.do(run.Validate(id=record.id, is_passed=ok))
                return

    def time(self) -> None:
        """Move the clock, mostly forward, and apply the commands that are due."""
        self.lab.after(self.draw.choice((1, 5, 20, 31, 61, 121, 700)))
        if self.draw.random() < 0.1:
            self.lab.after(-self.draw.choice((3, 60, 3600)))
        self.timers()

    # -- the orchestrator's own actions

    def timers(self) -> None:
        """Apply every timer command; those that are not due are refused."""
        due: list[Command] = []
        for id in [record.id for record in self._all(Attempt)]:
            due += [attempt.RevokeUnaccepted(id=id), attempt.Expire(id=id), attempt.TimeOut(id=id)]
            due.append(attempt.ForceCancel(id=id))
        for waiting in self._all(Job):
            due += [job.RetryDue(id=waiting.id), job.ExpireApproval(id=waiting.id)]
        for live in self._all(Run):
            due += [run.TimeOut(id=live.id), run.EndOptionalWait(id=live.id)]
        for command in due:
            self.attempt(partial(self.lab.do, command))

    def attempt(self, action: Callable[[], object]) -> None:
        """Run the action and count a refusal."""
        try:
            action()
        except Refused:
            self.refusals += 1

    def actions(self) -> dict[Callable[[], None], int]:
        """Return the possible actions of a step with their weights."""
        weights = {self.claim: 14, self.message: 16, self.finish: 10, self.repeat: 5, self.person: 5, self.fleet: 4}
        return weights | {self.operator: 2, self.validate: 3, self.time: 8, self.new_run: 1, self.new_queue_job: 1}

    def go(self, steps: int) -> Self:
        """Make this many random steps."""
        actions, weights = zip(*self.actions().items(), strict=True)
        self.new_run()
        for _ in range(steps):
            if self.draw.random() < 0.8:
                self.lab.after(self.draw.choice((0.001, 0.2, 1)))
            self.attempt(self.draw.choices(actions, weights=weights)[0])
            self.check()
        return self

    def calm(self) -> Self:
        """Finish all work without faults: with a reliable worker, approvals, and validations that pass."""
        self.lab.register("good", slots=1000, labels=("linux",))
        for _ in range(CALM_ROUNDS):
            if not self.stuck():
                break
            self.lab.after(1000)
            self.timers()
            self._help()
        for ended in self._all(Run):
            self.attempt(partial(self.lab.report, ended.id))
        self.check()
        return self

    def leave(self) -> Self:
        """Shut down every worker."""
        for record in self._all(Worker):
            self.attempt(partial(self.lab.do, worker.GiveUp(id=record.id)))
            self.attempt(partial(self.lab.do, worker.Shutdown(id=record.id)))
        return self

    def _help(self) -> None:
        for record in self._all(Attempt):
            if record.state == attempt.STALE:
                self.attempt(partial(self.lab.do, attempt.Requeue(id=record.id)))
            if self.lab.unit.attempt(record.id).state == attempt.QUEUED:
                self.attempt(partial(self._work, record.id))
        for waiting in self._all(Job):
            if waiting.state == job.WAITING_APPROVAL:
                for name in PEOPLE:
                    approve = job.Approve(id=waiting.id, actor=f"user:{name}", roles=("ops",))
                    self.attempt(partial(self.lab.do, approve))
            elif waiting.state == job.VALIDATING:
                self.lab.do(job.Validate(id=waiting.id, is_passed=True))
        for validating in self._all(Run):
            if validating.state == run.VALIDATING:
                self.lab.do(run.Validate(id=validating.id, is_passed=True))

    def _work(self, id: str) -> None:
        self.lab.complete(self.lab.claim(self.lab.unit.attempt(id), by="good"))

    def stuck(self) -> list[str]:
        """Describe all records that have not ended."""
        records: list[Run | Job | Attempt] = [*self._all(Run), *self._all(Job), *self._all(Attempt)]
        unfinished = [f"{record.id} is {record.state}" for record in records if not self._is_over(record)]
        busy = [f"{record.id} is busy with {record.tasks}" for record in self._all(Worker) if record.tasks]
        return unfinished + busy

    def check(self) -> None:
        """Check the invariants of every record."""
        for record in self._all(Attempt):
            check_invariants(record)
        for checked_job in self._all(Job):
            assert (checked_job.worker_id != "") <= (checked_job.state == job.RUNNING), checked_job
            assert checked_job.attempts <= checked_job.spec.max_attempts, checked_job

    @staticmethod
    def _is_over(record: Run | Job | Attempt) -> bool:
        if isinstance(record, Run):
            return run.is_over(record)
        return record.state in (job.TERMINAL if isinstance(record, Job) else attempt.TERMINAL)

    def _send(self, command: Command) -> None:
        self.sent.append(command)
        self.lab.do(command)
        if self.draw.random() < 0.1:
            self.lab.do(command)

    def _request(self) -> str:
        self.requests += 1
        return f"req-{self.requests}" if self.draw.random() < 0.5 else ""

    def _all(self, kind: type[T]) -> list[T]:
        return [record for record in self.lab.unit.records.values() if isinstance(record, kind)]
