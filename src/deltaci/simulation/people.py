"""What people want: runs of all kinds, decisions about approvals, validations and cancels at any moment, from several
at once; operators who send workers away. Reporters publish what came out.

Whatever they do follows from the seed, from what it is about and from its rev: leaving out one run changes no other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any, Final

import msgspec

from deltaci.core import job, run, worker
from deltaci.core.approvals import Gate
from deltaci.core.attempt import Attempt, Requeue, Stall
from deltaci.core.cascade import NewRecord
from deltaci.core.decide import CancelJob, Plan, StartRun
from deltaci.core.events import Event
from deltaci.core.job import APPROVAL, JobSpec
from deltaci.core.run import Run
from deltaci.simulation.checker.facts import AttemptFacts, JobFacts, RunFacts
from deltaci.simulation.checker.history_checker import Checker
from deltaci.simulation.checker.law import OUTCOMES
from deltaci.simulation.client import Orders
from deltaci.simulation.queue_clients import LABEL, Programs
from deltaci.simulation.runner import TENANT
from deltaci.simulation.scenario import Mix, Wish

MAX_JOBS: Final = 5


class People:
    """Everybody who gives orders. `wanted` is what must come to its end."""

    def __init__(
        self, mix: Mix, orders: Orders, checker: Checker, programs: Programs, replace: Callable[[str], None]
    ) -> None:
        self._mix = mix
        self._orders = orders
        self._checker = checker
        self._programs = programs
        self._replace = replace
        self.wanted: dict[str, None] = {}
        self._latest = ""

    def want(self, wish: Wish) -> None:
        """Somebody wants something now."""
        random = Random(f"{self._mix.seed} {wish.kind} {wish.number}")
        if wish.kind == "run":
            self._spawn(self._run(f"run-{wish.number}", random))
        elif wish.kind == "lone":
            self._spawn(self._lone(f"lone-{wish.number}", random))
        elif wish.kind == "drain":
            self._spawn(self._drain(wish.number, random))
        elif wish.kind == "ghost":
            self._spawn(self._ghost(f"ghost-{wish.number}", random))

    def _spawn(self, work: Any) -> None:
        self._orders.spawn(work)

    # -- runs

    async def _run(self, id: str, random: Random, rerun_of: str = "") -> None:
        orders = self._orders
        self.wanted[id] = None
        older, self._latest = self._latest, id
        record = Run(
            id=id,
            run_id=id,
            tenant=TENANT,
            is_fail_fast=orders.does("fail fast", random),
            has_validation=orders.does("run is validated", random),
            timeout_seconds=300 if orders.does("short", random) else random.choice((1800, 7200)),
            rerun_of=rerun_of,
        )
        own = Random(f"{self._mix.seed} {id} start")
        is_at_once = orders.does("started at once", own)
        if is_at_once:
            await self._start(record, own)
        else:
            birth = NewRecord(id=id, record=record, actor="user:u", request_id=f"{id} create")
            await orders.do("birth", birth, random)
        if older and orders.does("superseded", random):
            newer = run.Cancel(id=older, reason="SUPERSEDED", request_id=f"{older} superseded")
            self._spawn(orders.do("cancel", newer, Random(f"{id} supersedes")))
        if orders.does("run is canceled", random):
            wait = random.choice((0.0, 5.0, 60.0, 600.0, 3600.0)) * random.random()
            self._cancel(id, wait, Random(f"{self._mix.seed} {id} cancel"))
        if is_at_once:
            return
        if random.random() < 0.3:
            await asyncio.sleep(10 * random.random())
        await orders.do("begin", run.BeginPlanning(id=id, request_id=f"{id} begin"), random)
        await self._plan(id, random)

    async def _start(self, record: Run, random: Random) -> None:
        """Birth and plan in one order, for whoever knows both."""
        id, count = record.id, random.randint(0, MAX_JOBS)
        named: dict[str, Any] = {"id": id, "actor": "user:u", "request_id": f"{id} create", "record": record}
        start = StartRun(**named, jobs=tuple(self._job(id, random, n) for n in range(count)), plan_hash="h")
        if self._orders.does("race", random):
            self._spawn(self._orders.do("start", start, Random(f"{self._mix.seed} {id} start again")))
        await self._orders.do("start", start, random, StartRun(**named, jobs=(), plan_hash="other"))

    async def _plan(self, id: str, random: Random) -> None:
        orders = self._orders
        if orders.does("plan is missing", random):
            return
        await asyncio.sleep((90.0 if orders.does("plan is late", random) else 3.0) * random.random())
        if orders.does("plan fails", random):
            if random.random() < 0.5:
                circle = tuple(JobSpec(name=name, needs=(other,)) for name, other in (("a", "b"), ("b", "a")))
                await orders.do("circle", Plan(id=id, jobs=circle, request_id=f"{id} circle"), random)
            failed = run.PlanFailed(id=id, error="the planner failed", request_id=f"{id} unplanned")
            await orders.do("plan", failed, random)
            return
        count = 0 if orders.does("plan is empty", random) else random.randint(1, MAX_JOBS)
        jobs = tuple(self._job(id, random, n) for n in range(count))
        plan = Plan(id=id, jobs=jobs, plan_hash="h", request_id=f"{id} plan")
        await orders.do("plan", plan, random, Plan(id=id, jobs=(), plan_hash="other", request_id=f"{id} plan"))
        if jobs and orders.does("job is canceled", random):
            await asyncio.sleep(random.choice((1.0, 60.0, 600.0)) * random.random())
            chosen = f"{id}/{random.choice(jobs).name}"
            await orders.do("cancel", CancelJob(id=chosen, actor="user:u", request_id=f"{chosen} cancel"), random)

    def _job(self, id: str, random: Random, n: int) -> JobSpec:
        return self._bound(self._alone(id, random, n), Random(f"{self._mix.seed} {id} bonds {n}"), n)

    def _bound(self, spec: JobSpec, random: Random, n: int) -> JobSpec:
        """The job with what ties it to others."""
        does = self._orders.does
        bonds: dict[str, Any] = {"after": tuple(f"j{k}" for k in range(n) if does("comes after", random))}
        if does("family", random):
            bonds.update(family=random.choice(("even", "odd")), is_family_fail_fast=random.random() < 0.7)
        if spec.kind != APPROVAL and does("group", random):
            bonds["group"] = random.choice(("deploy", "deploy", "lab"))
        if spec.kind != APPROVAL and does("retries few", random):
            bonds["retry_on"] = random.choice((("INFRA",), ("TOOLING",), ("FLAKY", "TOOLING")))
        return msgspec.structs.replace(spec, **bonds)

    def _alone(self, id: str, random: Random, n: int) -> JobSpec:
        does = self._orders.does
        needs = tuple(f"j{k}" for k in range(n) if random.random() < 0.4)
        if does("approval", random):
            seconds = random.choice((60, 600)) if does("approval expires", random) else 0
            own = Random(f"{self._mix.seed} {id} gate {n}")
            return JobSpec(
                name=f"j{n}",
                kind=APPROVAL,
                needs=needs,
                approval_seconds=seconds,
                is_required=not does("optional", random),
                gate=Gate(approvers=own.choice((2, 3)) if does("several approve", own) else 1),
            )
        work_seconds = random.choice((1.0, 60.0, 300.0, 900.0)) * random.random()
        code = random.choice((1, 2)) if does("job fails", random) else 0
        return JobSpec(
            name=f"j{n}",
            needs=needs,
            is_required=not does("optional", random),
            has_validation=does("job is validated", random),
            max_attempts=random.choice((1, 2, 3)),
            base_delay_seconds=random.choice((1, 10)),
            max_delay_seconds=random.choice((30, 600)),
            jitter=random.choice((0.0, 0.5)),
            timeout_seconds=60 if does("short", random) else 3600,
            max_lost_leases=random.choice((0, 1, 3)),
            queue_key=LABEL if does("labels", random) else "",
            work={"steps": [f"{work_seconds:.1f} {code}"], **self._rules(Random(f"{self._mix.seed} {id} rules {n}"))},
        )

    def _rules(self, random: Random) -> dict[str, Any]:
        """What must hold after the steps, and whether it does."""
        if not self._orders.does("rules", random):
            return {}
        codes = [int(self._orders.does("rule fails", random)) for _ in range(random.randint(1, 3))]
        return {"rules": [{"run": f"{random.choice((0.5, 60.0)) * random.random():.1f} {code} rule"} for code in codes]}

    def _cancel(self, id: str, wait: float, random: Random, tag: str = "") -> None:
        """By one, or by several at once."""
        people = random.randint(2, 3) if self._orders.does("several cancel", random) else 1
        for n in range(people):
            named: dict[str, Any] = {"id": id, "actor": f"user:u{n}", "request_id": f"{id} cancel {tag}{n}"}
            wrong = None
            if self._orders.does("wrong rev", random) and (it := self._checker.known.get(id)) is not None:
                wrong = it.rev - 1
            first = run.Cancel(**named, reason="RUN_CANCELED", expected_rev=wrong)
            other = run.Cancel(**named, reason="ANOTHER")
            own = Random(f"{self._mix.seed} {id} cancel {tag}{n}")
            self._orders.later(wait, partial(self._orders.do, "cancel", first, own, other))

    # -- what people do when they see something

    def see(self, event: Event) -> None:
        """An event was committed. Somebody may do something about it, a little later."""
        if event.from_ == event.to:
            self._see_hold(event)
            return
        if event.entity == "run":
            if event.to in OUTCOMES:
                random = self._drawn(event)
                self._orders.later(60 * random.random(), partial(self._report, event.entity_id, random))
            elif event.to == "VALIDATING" and self._is_validated(event):
                self._validate(event, run.Validate)
        elif event.entity == "job":
            if event.to == "WAITING_APPROVAL":
                self._see_approval(event)
            elif event.to == "VALIDATING" and self._is_validated(event):
                self._validate(event, job.Validate)
        elif event.entity == "attempt":
            self._see_attempt(event)
        elif event.entity == "worker":
            self._see_worker(event)

    def _drawn(self, event: Event) -> Random:
        return Random(f"{self._mix.seed} {event.entity_id} {event.rev}")

    def _is_validated(self, event: Event) -> bool:
        it = self._checker.known.get(event.entity_id)
        return isinstance(it, RunFacts | JobFacts) and it.has_validation

    async def _report(self, id: str, random: Random) -> None:
        report = run.Report(id=id, actor="reporter", request_id=f"{id} report")
        if self._orders.does("impostor", random):
            await self._orders.do("report", run.Report(id=id, actor="user:u", request_id=f"{id} imposture"), random)
        if self._orders.does("race", random):
            self._spawn(self._orders.do("report", report, Random(f"{id} report")))
        await self._orders.do("report", report, random)
        if "again" not in id and self._orders.does("rerun", random):
            await self._run(f"{id}-again", random, rerun_of=id)

    def _validate(self, event: Event, order: type[run.Validate] | type[job.Validate]) -> None:
        random = self._drawn(event)
        if self._orders.does("nobody validates", random):
            return
        id = event.entity_id
        verdict = order(id=id, is_passed=not self._orders.does("invalid", random), request_id=f"{id} validate")
        self._orders.later(120 * random.random(), partial(self._orders.do, "validate", verdict, random))

    def _see_approval(self, event: Event) -> None:
        random, id = self._drawn(event), event.entity_id
        it = self._checker.known.get(id)
        is_urgent = isinstance(it, JobFacts) and it.approve_by > 0
        if self._orders.does("nobody decides", random) or (is_urgent and random.random() < 0.5):
            return
        wait = random.choice((1.0, 60.0, 600.0)) * random.random()
        named: dict[str, Any] = {"id": id, "request_id": f"{id} decide"}
        if self._orders.does("impostor", random):
            wrong = job.Approve(id=id, actor="worker:r0", request_id=f"{id} imposture")
            self._orders.later(wait / 2, partial(self._orders.do, "approve", wrong, self._drawn(event)))
        if self._orders.does("wrong rev", random):
            stale = job.Approve(id=id, actor="user:v", request_id=f"{id} stale", expected_rev=event.rev - 1)
            self._orders.later(wait / 2, partial(self._orders.do, "approve", stale, self._drawn(event)))
        if self._orders.does("race", random):
            self._cancel(event.run_id, wait, Random(f"{self._mix.seed} {id} race"), f"race {id} ")
            again = job.Approve(id=id, actor="user:w", request_id=f"{id} second")
            self._orders.later(wait, partial(self._orders.do, "approve", again, self._drawn(event)))
        for n in range(1, it.approvers if isinstance(it, JobFacts) else 1):
            own = Random(f"{self._mix.seed} {id} approver {n}")
            also = job.Approve(id=id, actor=f"user:u{n}", request_id=f"{id} approver {n}")
            self._orders.later(2 * wait * own.random(), partial(self._orders.do, "approve", also, own))
            eager = job.Approve(id=id, actor=f"user:u{n}", request_id=f"{id} approver {n} again")
            self._orders.later(2 * wait * own.random(), partial(self._orders.do, "approve", eager, own))
        if self._orders.does("reject", random):
            no = job.Reject(**named, actor="user:u", comment="no")
            self._orders.later(wait, partial(self._orders.do, "reject", no, random))
            return
        yes = job.Approve(**named, actor="user:u", comment="yes")
        other = job.Approve(**named, actor="user:u", comment="something else")
        self._orders.later(wait, partial(self._orders.do, "approve", yes, random, other))

    def _see_attempt(self, event: Event) -> None:
        it = self._checker.known.get(event.entity_id)
        if not isinstance(it, AttemptFacts):
            return
        random = self._drawn(event)
        if event.to == "QUEUED" and (it.labels or not it.job_id):
            self._programs.see_queued(it, random)
        elif event.to in ("LEASED", "STARTING", "RUNNING", "UPLOADING") and self._orders.does("stall", random):
            stall = Stall(id=it.id, actor="user:u", request_id=f"{it.id} stall {event.rev}")
            self._orders.later(30 * random.random(), partial(self._orders.do, "stall", stall, random))
        elif event.to == "STALE" and it.stale_reason == "STALLED":
            wait = 100 * random.random()
            if random.random() < 0.4:
                self._programs.reclaim(it.id, wait, Random(f"{self._mix.seed} {it.id} reclaim"))
                wait += 60
            requeue = Requeue(id=it.id, actor="user:u", request_id=f"{it.id} requeue {event.rev}")
            self._orders.later(wait, partial(self._orders.do, "requeue", requeue, random))

    # -- workers

    def _see_hold(self, event: Event) -> None:
        """Whoever takes nothing new is let go some time later."""
        if event.entity == "worker" and event.trigger in ("drained", "quarantined"):
            id, random = event.entity_id, self._drawn(event)
            resume = worker.Resume(id=id, actor="user:u", request_id=f"{id} resume {event.rev}")
            wait = random.choice((60, 600, 1800)) * random.random()
            self._orders.later(wait, partial(self._orders.do, "resume", resume, random))
            own = Random(f"{self._mix.seed} {id} held {event.rev}")
            if self._orders.does("distrust", own):
                found = worker.Quarantine(id=id, reason="slow disk", request_id=f"{id} doubt {event.rev}")
                self._orders.later(wait / 2, partial(self._orders.do, "quarantine", found, own))
            if self._orders.does("set up anew", own):
                self._orders.later(wait / 3, partial(self._set_up, id, event.rev, own))

    async def _set_up(self, id: str, rev: int, random: Random) -> None:
        """Somebody sets its runner up again, with a new token."""
        named: dict[str, Any] = {"id": id, "tenant": TENANT, "request_id": f"{id} anew {rev}"}
        await self._orders.do("offer", worker.UpdateCapabilities(**named, token_at=self._orders.wall()), random)

    def _hold(self, event: Event) -> None:
        """Somebody wants it to take nothing new for a while, or does not trust it."""
        id, random = event.entity_id, Random(f"{self._mix.seed} {event.entity_id} hold {event.rev}")
        named: dict[str, Any] = {"id": id, "request_id": f"{id} hold {event.rev}"}
        if self._orders.does("drain", random):
            order = worker.Drain(**named, actor="user:u", reason="new disk")
            other = worker.Drain(**named, actor="user:u", reason="ANOTHER")
            self._orders.later(60 * random.random(), partial(self._orders.do, "drain", order, random, other))
        elif random.random() < 0.2 and self._orders.does("distrust", random):
            found = worker.Quarantine(**named, reason="slow disk")
            self._orders.later(60 * random.random(), partial(self._orders.do, "quarantine", found, random))

    def _see_worker(self, event: Event) -> None:
        id = event.entity_id
        random = self._drawn(event)
        if event.to in ("BUSY", "UNRESPONSIVE"):
            self._hold(event)
        if event.to == "BUSY" and self._orders.does("silence", random):
            miss = worker.MissHealthChecks(id=id, request_id=f"{id} miss {event.rev}")
            self._orders.later(60 * random.random(), partial(self._orders.do, "miss", miss, random))
        elif event.to == "BUSY" and id in self._checker.pollers and self._orders.does("grow", random):
            more = worker.UpdateCapabilities(
                id=id, tenant=TENANT, labels=(f"l{event.rev}",), request_id=f"{id} grow {event.rev}"
            )
            self._orders.later(10 * random.random(), partial(self._orders.do, "offer", more, random))
        elif event.to == "BUSY" and self._orders.does("leave", random):
            self._orders.later(30 * random.random(), partial(self._leave, id, event.rev, random))
        elif event.to == "UNRESPONSIVE":
            wait = random.choice((100, 1000)) * random.random()
            self._orders.later(wait, partial(self._after_silence, id, event.rev, random))
            if id in self._checker.pollers:  # Its runner says meanwhile that it has something new.
                offer = worker.UpdateCapabilities(
                    id=id, tenant=TENANT, labels=(f"l{event.rev}",), request_id=f"{id} more {event.rev}"
                )
                self._orders.later(wait / 2, partial(self._orders.do, "offer", offer, random))
        elif event.to == "SHUTDOWN":
            self._orders.later(300 * random.random(), partial(self._send_another, id))

    async def _after_silence(self, id: str, rev: int, random: Random) -> None:
        is_gone = random.random() < 0.4
        if is_gone and await self._orders.do("give up", worker.GiveUp(id=id, request_id=f"{id} gone {rev}"), random):
            return
        await self._orders.do("recover", worker.Recover(id=id, request_id=f"{id} back {rev}"), random)

    async def _send_another(self, id: str) -> None:
        """Who was sent away never comes back under its name: another one takes its place."""
        self._replace(id)

    async def _drain(self, number: int, random: Random) -> None:
        pollers = list(self._checker.pollers)
        if not pollers:
            return
        await self._leave(pollers[number % len(pollers)], number, random)

    async def _leave(self, id: str, number: int, random: Random) -> None:
        """It shall go: at once when it is idle, after what it has otherwise."""
        named: dict[str, Any] = {"id": id, "actor": "user:u", "request_id": f"{id} leave {number}"}
        other = worker.Shutdown(**named, reason="ANOTHER")
        await self._orders.do("shutdown", worker.Shutdown(**named), random, other)

    async def _ghost(self, id: str, random: Random) -> None:
        """A worker that registers and never asks for anything; somebody else finds its token and tries it, too."""
        if not await self._orders.register(id, 2, random):
            return
        if random.random() < 0.5:
            await asyncio.sleep(600 * random.random())
            await self._orders.do("shutdown", worker.Shutdown(id=id, request_id=f"{id} leave"), random)

    # -- attempts without a run

    async def _lone(self, id: str, random: Random) -> None:
        self.wanted[id] = None
        code = random.choice((1, 2)) if self._orders.does("job fails", random) else 0
        record = Attempt(
            id=id,
            tenant=TENANT,
            queue_key=LABEL if self._orders.does("labels", random) else "",
            timeout_seconds=60 if self._orders.does("short", random) else 3600,
            max_lost_leases=random.choice((0, 1, 3)),
            spec={"steps": [f"{200 * random.random():.1f} {code}"]},
        )
        birth = NewRecord(id=id, record=record, actor="user:u", request_id=f"{id} create")
        await self._orders.do("birth", birth, random)
