"""The simulated users, operators and reporters: they start runs, decide approvals, validate, cancel, and shut down
workers.

They act at any moment, and several may do the same at once. What they do depends on the seed, on the entity and its
rev: leaving out one run changes nothing about the others.
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
from deltaci.core.instants import SECOND
from deltaci.core.job import APPROVAL, JobSpec
from deltaci.core.run import Run
from deltaci.simulation.checker.history_checker import HistoryChecker
from deltaci.simulation.checker.tracked import TrackedAttempt, TrackedJob, TrackedRun
from deltaci.simulation.checker.transitions import RUN_OUTCOMES
from deltaci.simulation.client import CommandClient
from deltaci.simulation.queue_clients import LABEL, QueueClients
from deltaci.simulation.runner import TENANT
from deltaci.simulation.scenario import Scenario, UserAction

MAX_JOBS: Final = 5
UNDECIDED_SECONDS: Final = 3600  # Until an approval expires, unless it expires sooner.
AWAITED_GROUPS: Final = 0.05  # The share of plans that wait for a concurrency group.


class People:
    """The simulated users.

    `unfinished` has the ids of the runs and attempts that must end before the simulation does.
    """

    def __init__(
        self,
        scenario: Scenario,
        client: CommandClient,
        history: HistoryChecker,
        queue_clients: QueueClients,
        replace_runner: Callable[[str], None],
    ) -> None:
        self._scenario = scenario
        self._client = client
        self._history = history
        self._queue_clients = queue_clients
        self._replace_runner = replace_runner
        self.unfinished: dict[str, None] = {}
        self._latest_run_id = ""
        self._work_seconds: dict[str, float] = {}  # By job id.

    def perform(self, action: UserAction) -> None:
        """Start the action of a user: a run, an attempt without a run, or a worker that is shut down or never polls."""
        random = Random(f"{self._scenario.seed} {action.kind} {action.number}")
        if action.kind == "run":
            self._spawn(self._create_run(f"run-{action.number}", random))
        elif action.kind == "lone":
            self._spawn(self._create_standalone_attempt(f"lone-{action.number}", random))
        elif action.kind == "drain":
            self._spawn(self._shut_down_polling_worker(action.number, random))
        elif action.kind == "ghost":
            self._spawn(self._register_idle_worker(f"ghost-{action.number}", random))

    def _spawn(self, coroutine: Any) -> None:
        self._client.spawn(coroutine)

    # -- runs

    async def _create_run(self, run_id: str, random: Random, rerun_of: str = "") -> None:
        """Create a run and plan it, and sometimes cancel it or let it supersede the run before."""
        client = self._client
        self.unfinished[run_id] = None
        previous_run_id, self._latest_run_id = self._latest_run_id, run_id
        run_record = Run(
            id=run_id,
            run_id=run_id,
            tenant=TENANT,
            is_fail_fast=client.happens("fail fast", random),
            has_validation=client.happens("run is validated", random),
            timeout_seconds=300 if client.happens("short", random) else random.choice((1800, 7200)),
            optional_wait_seconds=Random(f"{self._scenario.seed} {run_id} wait").choice((0, 60, 600)),
            rerun_of=rerun_of,
        )
        start_random = Random(f"{self._scenario.seed} {run_id} start")
        is_started_at_once = client.happens("started at once", start_random)
        if is_started_at_once:
            await self._start_run(run_record, start_random)
        else:
            create_command = NewRecord(id=run_id, record=run_record, actor="user:u", request_id=f"{run_id} create")
            await client.submit("birth", create_command, random)
        if previous_run_id and client.happens("superseded", random):
            cancel_command = run.Cancel(
                id=previous_run_id, reason="SUPERSEDED", request_id=f"{previous_run_id} superseded"
            )
            self._spawn(client.submit("cancel", cancel_command, Random(f"{run_id} supersedes")))
        if client.happens("run is canceled", random):
            wait_seconds = random.choice((0.0, 5.0, 60.0, 600.0, 3600.0)) * random.random()
            self._cancel(run_id, wait_seconds, Random(f"{self._scenario.seed} {run_id} cancel"))
        if is_started_at_once:
            return
        if random.random() < 0.3:
            await asyncio.sleep(10 * random.random())
        await client.submit("begin", run.BeginPlanning(id=run_id, request_id=f"{run_id} begin"), random)
        await self._plan(run_id, random)

    async def _start_run(self, run_record: Run, random: Random) -> None:
        """Create and plan a run with one command."""
        run_id, job_count = run_record.id, random.randint(0, MAX_JOBS)
        common_fields: dict[str, Any] = {
            "id": run_id,
            "actor": "user:u",
            "request_id": f"{run_id} create",
            "record": run_record,
        }
        start_command = StartRun(
            **common_fields,
            jobs=tuple(self._draw_related_job(run_id, random, job_index) for job_index in range(job_count)),
            plan_hash="h",
        )
        if self._client.happens("race", random):
            self._spawn(
                self._client.submit("start", start_command, Random(f"{self._scenario.seed} {run_id} start again"))
            )
        await self._client.submit("start", start_command, random, StartRun(**common_fields, jobs=(), plan_hash="other"))

    async def _plan(self, run_id: str, random: Random) -> None:
        """Submit a plan for the run, which may be late, missing, empty or failed.

        Sometimes cancel one of its jobs later.
        """
        client = self._client
        if client.happens("plan is missing", random):
            return
        group_random = Random(f"{self._scenario.seed} {run_id} group")
        if group_random.random() < AWAITED_GROUPS:
            await client.submit(
                "await", run.AwaitGroup(id=run_id, group="g", request_id=f"{run_id} group"), group_random
            )
        await asyncio.sleep((90.0 if client.happens("plan is late", random) else 3.0) * random.random())
        if client.happens("plan fails", random):
            if random.random() < 0.5:
                cyclic_jobs = tuple(
                    JobSpec(name=job_name, needs=(needed_name,)) for job_name, needed_name in (("a", "b"), ("b", "a"))
                )
                await client.submit("circle", Plan(id=run_id, jobs=cyclic_jobs, request_id=f"{run_id} circle"), random)
            failed_command = run.PlanFailed(id=run_id, error="the planner failed", request_id=f"{run_id} unplanned")
            await client.submit("plan", failed_command, random)
            return
        job_count = 0 if client.happens("plan is empty", random) else random.randint(1, MAX_JOBS)
        jobs = tuple(self._draw_related_job(run_id, random, job_index) for job_index in range(job_count))
        plan_command = Plan(id=run_id, jobs=jobs, plan_hash="h", request_id=f"{run_id} plan")
        await client.submit(
            "plan", plan_command, random, Plan(id=run_id, jobs=(), plan_hash="other", request_id=f"{run_id} plan")
        )
        if jobs and client.happens("job is canceled", random):
            await asyncio.sleep(random.choice((1.0, 60.0, 600.0)) * random.random())
            job_id = f"{run_id}/{random.choice(jobs).name}"
            await client.submit("cancel", CancelJob(id=job_id, actor="user:u", request_id=f"{job_id} cancel"), random)

    def _draw_related_job(self, run_id: str, random: Random, job_index: int) -> JobSpec:
        """Draw a job of the run, with random relations to the jobs with a lower index."""
        return self._with_relations(
            self._draw_job(run_id, random, job_index),
            Random(f"{self._scenario.seed} {run_id} bonds {job_index}"),
            job_index,
        )

    def _with_relations(self, spec: JobSpec, random: Random, job_index: int) -> JobSpec:
        """Return the job with random ordering, family, group and retry rules."""
        happens = self._client.happens
        relations: dict[str, Any] = {
            "after": tuple(f"j{earlier_index}" for earlier_index in range(job_index) if happens("comes after", random))
        }
        if happens("family", random):
            relations.update(family=random.choice(("even", "odd")), is_family_fail_fast=random.random() < 0.7)
        if spec.kind != APPROVAL and happens("group", random):
            relations["group"] = random.choice(("deploy", "deploy", "lab"))
        if spec.kind != APPROVAL and happens("retries few", random):
            relations["retry_on"] = random.choice((("INFRA",), ("TOOLING",), ("FLAKY", "TOOLING")))
        return msgspec.structs.replace(spec, **relations)

    def _draw_job(self, run_id: str, random: Random, job_index: int) -> JobSpec:
        """Draw a job of the run: an approval, or a job whose work is a duration and an exit code."""
        happens = self._client.happens
        needs = tuple(f"j{earlier_index}" for earlier_index in range(job_index) if random.random() < 0.4)
        if happens("approval", random):
            # Always less than a history is long: an approval that nobody decides must end, and its run with it.
            approval_seconds = random.choice((60, 600)) if happens("approval expires", random) else UNDECIDED_SECONDS
            gate_random = Random(f"{self._scenario.seed} {run_id} gate {job_index}")
            return JobSpec(
                name=f"j{job_index}",
                kind=APPROVAL,
                needs=needs,
                approval_seconds=approval_seconds,
                is_required=not happens("optional", random),
                gate=Gate(approvers=gate_random.choice((2, 3)) if happens("several approve", gate_random) else 1),
            )
        work_seconds = random.choice((1.0, 60.0, 300.0, 900.0)) * random.random()
        self._work_seconds[f"{run_id}/j{job_index}"] = work_seconds
        exit_code = random.choice((1, 2)) if happens("job fails", random) else 0
        return JobSpec(
            name=f"j{job_index}",
            needs=needs,
            is_required=not happens("optional", random),
            has_validation=happens("job is validated", random),
            max_attempts=random.choice((1, 2, 3)),
            base_delay_seconds=random.choice((1, 10)),
            max_delay_seconds=random.choice((30, 600)),
            jitter=random.choice((0.0, 0.5)),
            timeout_seconds=60 if happens("short", random) else 3600,
            max_lost_leases=random.choice((0, 1, 3)),
            queue_key=LABEL if happens("labels", random) else "",
            work={
                "steps": [f"{work_seconds:.1f} {exit_code}"],
                **self._draw_rules(Random(f"{self._scenario.seed} {run_id} rules {job_index}")),
            },
        )

    def _draw_rules(self, random: Random) -> dict[str, Any]:
        """Draw validation rules for a job's work, each a command with a duration and an exit code.

        Often return none.
        """
        if not self._client.happens("rules", random):
            return {}
        exit_codes = [int(self._client.happens("rule fails", random)) for _ in range(random.randint(1, 3))]
        return {
            "rules": [
                {"run": f"{random.choice((0.5, 60.0)) * random.random():.1f} {exit_code} rule"}
                for exit_code in exit_codes
            ]
        }

    def _cancel(self, run_id: str, wait_seconds: float, random: Random, request_tag: str = "") -> None:
        """Cancel the run later, by one user or by several at once."""
        user_count = random.randint(2, 3) if self._client.happens("several cancel", random) else 1
        for user_index in range(user_count):
            common_fields: dict[str, Any] = {
                "id": run_id,
                "actor": f"user:u{user_index}",
                "request_id": f"{run_id} cancel {request_tag}{user_index}",
            }
            wrong_rev = None
            if (
                self._client.happens("wrong rev", random)
                and (tracked_run := self._history.entities.get(run_id)) is not None
            ):
                wrong_rev = tracked_run.rev - 1
            cancel_command = run.Cancel(**common_fields, reason="RUN_CANCELED", expected_rev=wrong_rev)
            other_cancel_command = run.Cancel(**common_fields, reason="ANOTHER")
            action_random = Random(f"{self._scenario.seed} {run_id} cancel {request_tag}{user_index}")
            self._client.spawn_later(
                wait_seconds,
                partial(self._client.submit, "cancel", cancel_command, action_random, other_cancel_command),
            )

    # -- reactions to events

    def on_event(self, event: Event) -> None:
        """React to a committed event: schedule what users do because of it."""
        if event.entity == "attempt" and event.run_id and event.actor.startswith("worker:"):
            self._watch_silence(event)
        if event.from_ == event.to:
            self._on_hold(event)
            return
        if event.entity == "run":
            if event.to in RUN_OUTCOMES:
                random = self._random_for(event)
                self._client.spawn_later(60 * random.random(), partial(self._report_run, event.entity_id, random))
            elif event.to == "VALIDATING" and self._is_validated(event):
                self._validate(event, run.Validate)
        elif event.entity == "job":
            if event.to == "WAITING_APPROVAL":
                self._on_approval(event)
            elif event.to == "VALIDATING" and self._is_validated(event):
                self._validate(event, job.Validate)
        elif event.entity == "attempt":
            self._on_attempt(event)
        elif event.entity == "worker":
            self._on_worker(event)

    def _random_for(self, event: Event) -> Random:
        """Return a generator that depends only on the seed, the entity and its rev."""
        return Random(f"{self._scenario.seed} {event.entity_id} {event.rev}")

    def _is_validated(self, event: Event) -> bool:
        """Return whether the run or job of this event was created with a validation that a user must decide."""
        tracked_entity = self._history.entities.get(event.entity_id)
        return isinstance(tracked_entity, TrackedRun | TrackedJob) and tracked_entity.has_validation

    async def _report_run(self, run_id: str, random: Random) -> None:
        """Report the outcome of a run, as a reporter does. Sometimes rerun the run afterwards."""
        report_command = run.Report(id=run_id, actor="reporter", request_id=f"{run_id} report")
        if self._client.happens("impostor", random):
            await self._client.submit(
                "report", run.Report(id=run_id, actor="user:u", request_id=f"{run_id} imposture"), random
            )
        if self._client.happens("race", random):
            self._spawn(self._client.submit("report", report_command, Random(f"{run_id} report")))
        await self._client.submit("report", report_command, random)
        if "again" not in run_id and self._client.happens("rerun", random):
            await self._create_run(f"{run_id}-again", random, rerun_of=run_id)

    def _validate(self, event: Event, command_type: type[run.Validate] | type[job.Validate]) -> None:
        """Schedule a verdict on the validation of a run or job, unless no user validates it."""
        random = self._random_for(event)
        if self._client.happens("nobody validates", random):
            return
        entity_id = event.entity_id
        verdict = command_type(
            id=entity_id, is_passed=not self._client.happens("invalid", random), request_id=f"{entity_id} validate"
        )
        self._client.spawn_later(120 * random.random(), partial(self._client.submit, "validate", verdict, random))

    def _on_approval(self, event: Event) -> None:
        """Schedule approvals, or a rejection, of a job that waits for approval; some of them are invalid."""
        random, job_id = self._random_for(event), event.entity_id
        tracked_job = self._history.entities.get(job_id)
        is_urgent = isinstance(tracked_job, TrackedJob) and tracked_job.approve_by < event.at + 3600 * SECOND
        if self._client.happens("nobody decides", random) or (is_urgent and random.random() < 0.5):
            return
        wait_seconds = random.choice((1.0, 60.0, 600.0)) * random.random()
        common_fields: dict[str, Any] = {"id": job_id, "request_id": f"{job_id} decide"}
        if self._client.happens("impostor", random):
            unauthorized_approval = job.Approve(id=job_id, actor="worker:r0", request_id=f"{job_id} imposture")
            self._client.spawn_later(
                wait_seconds / 2,
                partial(self._client.submit, "approve", unauthorized_approval, self._random_for(event)),
            )
        if self._client.happens("wrong rev", random):
            stale_approval = job.Approve(
                id=job_id, actor="user:v", request_id=f"{job_id} stale", expected_rev=event.rev - 1
            )
            self._client.spawn_later(
                wait_seconds / 2, partial(self._client.submit, "approve", stale_approval, self._random_for(event))
            )
        if self._client.happens("race", random):
            self._cancel(event.run_id, wait_seconds, Random(f"{self._scenario.seed} {job_id} race"), f"race {job_id} ")
            second_approval = job.Approve(id=job_id, actor="user:w", request_id=f"{job_id} second")
            self._client.spawn_later(
                wait_seconds, partial(self._client.submit, "approve", second_approval, self._random_for(event))
            )
        for approver_index in range(
            1, tracked_job.required_approver_count if isinstance(tracked_job, TrackedJob) else 1
        ):
            action_random = Random(f"{self._scenario.seed} {job_id} approver {approver_index}")
            approval = job.Approve(
                id=job_id, actor=f"user:u{approver_index}", request_id=f"{job_id} approver {approver_index}"
            )
            self._client.spawn_later(
                2 * wait_seconds * action_random.random(),
                partial(self._client.submit, "approve", approval, action_random),
            )
            repeated_approval = job.Approve(
                id=job_id, actor=f"user:u{approver_index}", request_id=f"{job_id} approver {approver_index} again"
            )
            self._client.spawn_later(
                2 * wait_seconds * action_random.random(),
                partial(self._client.submit, "approve", repeated_approval, action_random),
            )
        if self._client.happens("reject", random):
            rejection = job.Reject(**common_fields, actor="user:u", comment="no")
            self._client.spawn_later(wait_seconds, partial(self._client.submit, "reject", rejection, random))
            return
        user_approval = job.Approve(**common_fields, actor="user:u", comment="yes")
        conflicting_approval = job.Approve(**common_fields, actor="user:u", comment="something else")
        self._client.spawn_later(
            wait_seconds, partial(self._client.submit, "approve", user_approval, random, conflicting_approval)
        )

    def _on_attempt(self, event: Event) -> None:
        """Schedule the reactions to a transition of an attempt.

        If it is claimable and has labels or no job: a claim by a queue client. If it is leased: sometimes a stall by a
        user. If it is fenced: sometimes a requeue, before or after the end of the fence. If a runner accepted it:
        sometimes a cancel at about the time at which the runner sends the result.
        """
        tracked_attempt = self._history.entities.get(event.entity_id)
        if not isinstance(tracked_attempt, TrackedAttempt):
            return
        random = self._random_for(event)
        is_fenced = event.to == "STALE" and (
            tracked_attempt.fence_until > event.at or tracked_attempt.stale_reason == "STALLED"
        )
        if (event.to == "QUEUED" or is_fenced) and (tracked_attempt.labels or not tracked_attempt.job_id):
            self._queue_clients.on_claimable(tracked_attempt, random)
        if event.to in ("LEASED", "STARTING", "RUNNING", "UPLOADING") and self._client.happens("stall", random):
            stall_command = Stall(
                id=tracked_attempt.id, actor="user:u", request_id=f"{tracked_attempt.id} stall {event.rev}"
            )
            self._client.spawn_later(30 * random.random(), partial(self._client.submit, "stall", stall_command, random))
        elif is_fenced and random.random() < 0.5:
            wait_seconds = 160 * random.random()  # Before or after the end of the fence.
            requeue_command = Requeue(
                id=tracked_attempt.id, actor="user:u", request_id=f"{tracked_attempt.id} requeue {event.rev}"
            )
            self._client.spawn_later(wait_seconds, partial(self._client.submit, "requeue", requeue_command, random))
        elif event.to == "STARTING" and self._client.happens("job is canceled", random):
            self._cancel_at_end(tracked_attempt.job_id, event, random)

    def _cancel_at_end(self, job_id: str, event: Event, random: Random) -> None:
        """Schedule a cancel of the job shortly before or after the end of its work, which begins with this event."""
        work_seconds = self._work_seconds.get(job_id)
        if work_seconds is not None:
            cancel_command = CancelJob(id=job_id, actor="user:u", request_id=f"{job_id} cancel {event.rev}")
            wait_seconds = work_seconds + random.choice((0.02, 2.0)) * (random.random() - 0.5)
            self._client.spawn_later(wait_seconds, partial(self._client.submit, "cancel", cancel_command, random))

    # -- workers

    def _watch_silence(self, event: Event) -> None:
        """Check the worker's health some time after its message about an attempt, for half of all attempts."""
        random = Random(f"{self._scenario.seed} {event.entity_id} watched")
        if self._scenario.probabilities.get("silence") and random.random() < 0.5:
            seconds = self._scenario.ttl_seconds * (0.5 + 0.4 * random.random())
            self._client.spawn_later(seconds, partial(self._check_silence, event))

    async def _check_silence(self, event: Event) -> None:
        """Report that the worker missed its health checks if it sent no message about the attempt since this event."""
        attempt, worker_id = self._history.entities.get(event.entity_id), event.actor.partition(":")[2]
        if isinstance(attempt, TrackedAttempt) and attempt.rev == event.rev and worker_id in self._history.workers:
            miss = worker.MissHealthChecks(id=worker_id, request_id=f"{worker_id} silent {event.entity_id} {event.rev}")
            await self._client.submit("miss", miss, self._random_for(event))

    def _on_hold(self, event: Event) -> None:
        """Resume a worker some time after it was put on hold; meanwhile it may be quarantined or registered again."""
        if event.entity == "worker" and event.trigger in ("drained", "quarantined"):
            worker_id, random = event.entity_id, self._random_for(event)
            resume_command = worker.Resume(id=worker_id, actor="user:u", request_id=f"{worker_id} resume {event.rev}")
            wait_seconds = random.choice((60, 600, 1800)) * random.random()
            self._client.spawn_later(wait_seconds, partial(self._client.submit, "resume", resume_command, random))
            action_random = Random(f"{self._scenario.seed} {worker_id} held {event.rev}")
            if self._client.happens("distrust", action_random):
                quarantine_command = worker.Quarantine(
                    id=worker_id, reason="slow disk", request_id=f"{worker_id} doubt {event.rev}"
                )
                self._client.spawn_later(
                    wait_seconds / 2, partial(self._client.submit, "quarantine", quarantine_command, action_random)
                )
            if self._client.happens("set up anew", action_random):
                self._client.spawn_later(
                    wait_seconds / 3, partial(self._register_again, worker_id, event.rev, action_random)
                )

    async def _register_again(self, worker_id: str, rev: int, random: Random) -> None:
        """Register a worker once more, as with a new token."""
        common_fields: dict[str, Any] = {"id": worker_id, "tenant": TENANT, "request_id": f"{worker_id} anew {rev}"}
        await self._client.submit(
            "offer", worker.UpdateCapabilities(**common_fields, token_at=self._client.wall_time()), random
        )

    def _maybe_hold(self, event: Event) -> None:
        """Sometimes drain or quarantine the worker."""
        worker_id, random = event.entity_id, Random(f"{self._scenario.seed} {event.entity_id} hold {event.rev}")
        common_fields: dict[str, Any] = {"id": worker_id, "request_id": f"{worker_id} hold {event.rev}"}
        if self._client.happens("drain", random):
            drain_command = worker.Drain(**common_fields, actor="user:u", reason="new disk")
            other_drain_command = worker.Drain(**common_fields, actor="user:u", reason="ANOTHER")
            self._client.spawn_later(
                60 * random.random(), partial(self._client.submit, "drain", drain_command, random, other_drain_command)
            )
        elif random.random() < 0.2 and self._client.happens("distrust", random):
            quarantine_command = worker.Quarantine(**common_fields, reason="slow disk")
            self._client.spawn_later(
                60 * random.random(), partial(self._client.submit, "quarantine", quarantine_command, random)
            )

    def _on_worker(self, event: Event) -> None:
        """Schedule the reactions to a transition of a worker.

        Sometimes: a hold, missed health checks, new labels, or a shutdown of a busy worker. Always: the recovery or
        loss of an unresponsive worker, and the replacement of a worker that was shut down.
        """
        worker_id = event.entity_id
        random = self._random_for(event)
        if event.to in ("BUSY", "UNRESPONSIVE"):
            self._maybe_hold(event)
        if event.to == "BUSY" and self._client.happens("silence", random):
            miss_command = worker.MissHealthChecks(id=worker_id, request_id=f"{worker_id} miss {event.rev}")
            self._client.spawn_later(60 * random.random(), partial(self._client.submit, "miss", miss_command, random))
        elif (
            event.to == "BUSY"
            and worker_id in self._history.polling_worker_ids
            and self._client.happens("grow", random)
        ):
            update_command = worker.UpdateCapabilities(
                id=worker_id, tenant=TENANT, labels=(f"l{event.rev}",), request_id=f"{worker_id} grow {event.rev}"
            )
            self._client.spawn_later(
                10 * random.random(), partial(self._client.submit, "offer", update_command, random)
            )
        elif event.to == "BUSY" and self._client.happens("leave", random):
            self._client.spawn_later(30 * random.random(), partial(self._shut_down, worker_id, event.rev, random))
        elif event.to == "UNRESPONSIVE":
            wait_seconds = random.choice((100, 1000)) * random.random()
            self._client.spawn_later(wait_seconds, partial(self._resolve_unresponsive, worker_id, event.rev, random))
            if worker_id in self._history.polling_worker_ids:  # Its runner reports new labels meanwhile.
                update_command = worker.UpdateCapabilities(
                    id=worker_id, tenant=TENANT, labels=(f"l{event.rev}",), request_id=f"{worker_id} more {event.rev}"
                )
                self._client.spawn_later(
                    wait_seconds / 2, partial(self._client.submit, "offer", update_command, random)
                )
        elif event.to == "SHUTDOWN":
            self._client.spawn_later(300 * random.random(), partial(self._replace_worker, worker_id))

    async def _resolve_unresponsive(self, worker_id: str, rev: int, random: Random) -> None:
        """Give up an unresponsive worker, or let it recover."""
        gives_up = random.random() < 0.4
        if gives_up and await self._client.submit(
            "give up", worker.GiveUp(id=worker_id, request_id=f"{worker_id} gone {rev}"), random
        ):
            return
        await self._client.submit("recover", worker.Recover(id=worker_id, request_id=f"{worker_id} back {rev}"), random)

    async def _replace_worker(self, worker_id: str) -> None:
        """Replace the runner of a worker that was shut down by one on another machine, under a new name."""
        self._replace_runner(worker_id)

    async def _shut_down_polling_worker(self, action_number: int, random: Random) -> None:
        """Shut down one of the workers that poll for work, chosen by this number."""
        polling_worker_ids = list(self._history.polling_worker_ids)
        if not polling_worker_ids:
            return
        await self._shut_down(polling_worker_ids[action_number % len(polling_worker_ids)], action_number, random)

    async def _shut_down(self, worker_id: str, action_number: int, random: Random) -> None:
        """Request the shutdown of a worker: at once if it is idle, otherwise after its jobs."""
        common_fields: dict[str, Any] = {
            "id": worker_id,
            "actor": "user:u",
            "request_id": f"{worker_id} leave {action_number}",
        }
        conflicting_shutdown = worker.Shutdown(**common_fields, reason="ANOTHER")
        await self._client.submit("shutdown", worker.Shutdown(**common_fields), random, conflicting_shutdown)

    async def _register_idle_worker(self, worker_id: str, random: Random) -> None:
        """Register a worker that never polls for work, try its token again, and sometimes shut it down later."""
        if not await self._client.register(worker_id, 2, random):
            return
        if random.random() < 0.5:
            await asyncio.sleep(600 * random.random())
            await self._client.submit(
                "shutdown", worker.Shutdown(id=worker_id, request_id=f"{worker_id} leave"), random
            )

    # -- attempts without a run

    async def _create_standalone_attempt(self, attempt_id: str, random: Random) -> None:
        """Put an attempt that belongs to no run into the queue."""
        self.unfinished[attempt_id] = None
        exit_code = random.choice((1, 2)) if self._client.happens("job fails", random) else 0
        attempt_record = Attempt(
            id=attempt_id,
            tenant=TENANT,
            queue_key=LABEL if self._client.happens("labels", random) else "",
            timeout_seconds=60 if self._client.happens("short", random) else 3600,
            max_lost_leases=random.choice((0, 1, 3)),
            spec={"steps": [f"{200 * random.random():.1f} {exit_code}"]},
        )
        create_command = NewRecord(
            id=attempt_id, record=attempt_record, actor="user:u", request_id=f"{attempt_id} create"
        )
        await self._client.submit("birth", create_command, random)
