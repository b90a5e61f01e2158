"""Simulated programs that take work from the queue directly, with the queue contract of document 004; some of them die.

They have a label that no runner has, so that some work is for them alone. Like runners they stop when they can no
longer prove that their lease is live. Their executions are recorded like those of runners.
"""

from __future__ import annotations

import asyncio
from functools import partial
from random import Random
from typing import Any, Final

from deltaci.core import attempt, ids
from deltaci.core.attempt import Attempt, LeasedCommand
from deltaci.core.cascade import NewRecord
from deltaci.core.decide import CancelJob, Decision
from deltaci.core.events import worker_actor
from deltaci.core.failures import Facts
from deltaci.core.ids import LeaseRef
from deltaci.core.worker import Worker
from deltaci.engine.engine import Claim, ClaimedAttempt, Engine
from deltaci.simulation.checker.executions import ExecutionChecker
from deltaci.simulation.checker.history_checker import HistoryChecker
from deltaci.simulation.checker.tracked import TrackedAttempt
from deltaci.simulation.client import CommandClient
from deltaci.simulation.runner import TENANT
from deltaci.simulation.scenario import Scenario
from deltaci.simulation.virtual_time import VirtualLoop

LABEL: Final = "gpu"
SLOTS: Final = 3
REGISTERED: Final = ("p0", "p1")
UNREGISTERED: Final = "q0"  # The queue also serves workers that never registered.

FAILURE_MODES: Final = ("LEASED", "STARTING", "RUNNING", "UPLOADING", "lingers", "hands back", "ignores cancel")
UNCANCELLED_SECONDS: Final = 3600.0  # A client that ignores cancels works for long.
FAILURES: Final = (
    Facts(exit_code=1),
    Facts(exit_code=127),
    Facts(error_code="CACHE_FETCH"),
    Facts(exit_code=2, log_tail=("No space left on device",)),
    Facts(exit_code=1, failed_tests=("a",), flaky_tests=("a",)),
    Facts(signal=9),
)


class QueueClients:
    """The queue clients of a simulation, which claim attempts, pretend to execute them, and report the results."""

    def __init__(
        self,
        scenario: Scenario,
        loop: VirtualLoop,
        client: CommandClient,
        history: HistoryChecker,
        executions: ExecutionChecker,
    ) -> None:
        self._scenario = scenario
        self._loop = loop
        self._client = client
        self._history = history
        self._executions = executions
        self._names = list(REGISTERED) if scenario.seed % 2 else []

    def on_claimable(self, tracked_attempt: TrackedAttempt, random: Random) -> None:
        """Schedule a claim of a queued or fenced attempt.

        Always if only queue clients have its labels, otherwise sometimes.
        """
        if tracked_attempt.labels or random.random() < 0.3:
            wait_seconds = max(0, tracked_attempt.ready_at - tracked_attempt.at) / 1e6
            wait_seconds += random.choice((1.0, 60.0)) * random.random()
            self._client.spawn_later(wait_seconds, lambda: self._claim_repeatedly(tracked_attempt, random))

    async def _claim_repeatedly(self, tracked_attempt: TrackedAttempt, random: Random) -> None:
        """Claim an attempt until a claim succeeds or the attempt is neither queued nor stale.

        Execute it after a successful claim.
        """
        while tracked_attempt.state in ("QUEUED", "STALE"):
            worker_name = await self._pick_worker(random)
            other_workers = self._other_free_workers(worker_name)
            sent_at, revs_before, store_time = (
                self._loop.now,
                self._revs(tracked_attempt, worker_name),
                self._client.wall_time(),
            )
            claim = Claim(
                tenant=TENANT,
                worker_id=worker_name,
                labels=(LABEL,),
                limit=1,
                ttl_seconds=self._scenario.ttl_seconds,
                accept_seconds=30,
                request_id=f"{tracked_attempt.id} claim {sent_at}",
                only_ids=(tracked_attempt.id,),
                other_worker_labels=tuple(tuple(sorted(labels)) for labels in other_workers.values()),
                other_worker_ids=tuple(other_workers),
            )
            claim_response = await self._client.send_until_answered(partial(_claim, claim=claim), random, sent_at + 60)
            if isinstance(claim_response, list) and claim_response:
                self._client.check_claim(tracked_attempt.id, worker_name, other_workers)
                self._repeat(claim, claim_response[0].lease_id)
                await self._execute(claim_response[0], sent_at, random)
                return
            if (
                claim_response == []
                and revs_before == self._revs(tracked_attempt, worker_name)
                and not self._scenario.has_clock_jumps
            ):
                self._client.check_denied_claim(tracked_attempt.id, worker_name, other_workers, store_time)
            if not tracked_attempt.labels:
                return  # A runner will claim it.
            await asyncio.sleep(random.choice((5.0, 60.0)))

    def _repeat(self, claim: Claim, lease_id: str) -> None:
        """Schedule a repeat of a claim that was granted this lease, sometimes, and check that it gets no other one."""
        random = Random(f"{self._scenario.seed} {claim.request_id}")
        if not self._client.happens("repeat", random):
            return

        async def repeat() -> None:
            claim_response = await self._client.send_until_answered(
                partial(_claim, claim=claim), random, self._loop.now + 60
            )
            self._client.check_repeated_claim(lease_id, claim_response)

        self._client.spawn_later(random.choice((1.0, 300.0)) * random.random(), repeat)

    async def _pick_worker(self, random: Random) -> str:
        """Return the name of a queue client for the next claim, and register it if it is new.

        One that was shut down gets a new name. If the scenario has no registered clients, it is the unregistered one.
        """
        if not self._names:
            return UNREGISTERED
        client_index = random.randrange(len(self._names))
        worker = self._history.workers.get(self._names[client_index])
        if worker is not None and worker.state == "SHUTDOWN":
            self._names[client_index], worker = f"{self._names[client_index]}+", None
        worker_name = self._names[client_index]
        if worker is None:
            worker_record = Worker(id=worker_name, tenant=TENANT, labels=(LABEL,), max_concurrent_tasks=SLOTS)
            await self._client.submit(
                "birth", NewRecord(id=worker_name, record=worker_record, request_id=f"{worker_name} come"), random
            )
        return worker_name

    def _revs(self, tracked_attempt: TrackedAttempt, worker_name: str) -> tuple[int, int]:
        """Return the current revs of the attempt and of the worker, to compare them later."""
        worker = self._history.workers.get(worker_name)
        return tracked_attempt.rev, worker.rev if worker is not None else 0

    def _other_free_workers(self, worker_name: str) -> dict[str, frozenset[str]]:
        """Return the labels of the other queue clients that can take an attempt, by their names."""
        worker_by_name = {
            other_name: self._history.workers.get(other_name) for other_name in self._names if other_name != worker_name
        }
        return {
            worker_id: worker.labels
            for worker_id, worker in worker_by_name.items()
            if worker is not None and worker.is_free
        }

    async def _execute(self, claimed_attempt: ClaimedAttempt, sent_at: float, random: Random) -> None:
        """Execute a claimed attempt: send its messages in order, possibly with one failure on the way."""
        lease = claimed_attempt.attempt.lease
        assert lease is not None
        claimed_work = _ClaimedWork(
            self._client, self._loop, claimed_attempt, lease.worker_id, sent_at, self._scenario.ttl_seconds, random
        )
        work_seconds, exit_code_value = (
            float(work_part) for work_part in claimed_attempt.attempt.spec["steps"][0].split()
        )
        failure_mode = random.choice(FAILURE_MODES) if self._client.happens("program dies", random) else ""
        if failure_mode == "LEASED":
            return
        if random.random() < 0.5 and not await claimed_work.send(
            attempt.Ack if random.random() < 0.5 else attempt.Extend
        ):
            return
        if failure_mode == "STARTING" or not await claimed_work.send(attempt.Start):
            return
        if failure_mode == "ignores cancel":
            claimed_work.ignores_cancel, work_seconds = True, UNCANCELLED_SECONDS
            self._cancel(claimed_attempt.attempt, random)
        self._executions.record_start(claimed_work.ref.attempt_id, claimed_work.ref.number, claimed_work.worker_id)
        is_leaving = failure_mode in ("RUNNING", "hands back")
        is_finished = await claimed_work.work_for(work_seconds / 2 if is_leaving else work_seconds)
        exit_code = int(exit_code_value) if is_finished and not is_leaving else None
        self._executions.record_end(
            claimed_work.ref.attempt_id, claimed_work.ref.number, claimed_work.worker_id, exit_code
        )
        if claimed_work.is_canceled and not claimed_work.ignores_cancel:
            await claimed_work.send(attempt.CancelAck)
        elif failure_mode == "hands back" and is_finished:
            await self._client.hand_back(claimed_work.worker_id, claimed_attempt.lease_id, random)
        elif exit_code is not None:
            await self._finish(claimed_work, exit_code, failure_mode, random)

    def _cancel(self, attempt_record: Attempt, random: Random) -> None:
        """Schedule a user's cancel of the job."""
        if attempt_record.job_id:
            cancel_command = CancelJob(id=attempt_record.job_id, actor="user:u", request_id=f"{attempt_record.id} deaf")
            self._client.spawn_later(
                300 * random.random(), partial(self._client.submit, "cancel", cancel_command, random)
            )

    async def _finish(self, claimed_work: _ClaimedWork, exit_code: int, failure_mode: str, random: Random) -> None:
        """Report the result of claimed work, sometimes after an upload that takes a while.

        Some failure modes end the work before that.
        """
        if random.random() < 0.7 or failure_mode:
            if not await claimed_work.send(attempt.BeginUpload) or failure_mode == "UPLOADING":
                return
            if not await claimed_work.work_for(7200 if failure_mode == "lingers" else 40 * random.random()):
                if claimed_work.is_canceled:
                    await claimed_work.send(attempt.CancelAck)
                return
        facts = random.choice(FAILURES) if exit_code else Facts()
        verdict = None if exit_code else self._check_rules(claimed_work)
        await claimed_work.send(attempt.Finish, is_success=exit_code == 0, facts=facts, verdict=verdict)

    def _check_rules(self, claimed_work: _ClaimedWork) -> attempt.Verdict | None:
        """Record that the job's validation rules were executed, and return their verdict; None if it has none."""
        for rule in claimed_work.rules:
            self._executions.record_end(
                claimed_work.ref.attempt_id,
                claimed_work.ref.number,
                claimed_work.worker_id,
                int(rule["run"].split()[1]),
                is_rule=True,
            )
        exit_codes = self._executions.rule_exit_codes.get((claimed_work.ref.attempt_id, claimed_work.ref.number))
        return (
            attempt.Verdict(is_passed=not any(exit_codes), details="1" if any(exit_codes) else "")
            if exit_codes
            else None
        )


async def _claim(engine: Engine, claim: Claim) -> list[ClaimedAttempt]:
    """Send a claim to a server's engine and return the claimed attempts."""
    return await engine.claim(claim)


class _ClaimedWork:
    """An attempt that a queue client has claimed, with its lease and the time until which the lease is surely live."""

    def __init__(
        self,
        client: CommandClient,
        loop: VirtualLoop,
        claimed_attempt: ClaimedAttempt,
        worker_id: str,
        sent_at: float,
        ttl_seconds: float,
        random: Random,
    ) -> None:
        self._client = client
        self._loop = loop
        self._random = random
        self._ttl_seconds = ttl_seconds
        self._safety_seconds = min(10.0, ttl_seconds / 4)
        self._live_until = sent_at + ttl_seconds - self._safety_seconds
        self.ref: LeaseRef = ids.lease_ref(claimed_attempt.lease_id)
        self.worker_id = worker_id
        self.rules: list[dict[str, str]] = (claimed_attempt.attempt.spec or {}).get("rules", [])
        self.is_canceled = self.ignores_cancel = False

    async def send(self, command_type: type[LeasedCommand], **command_fields: Any) -> bool:
        """Send a command under the lease. Return whether it was accepted and the attempt is not cancelled.

        A renewed lease counts from the moment when the command was sent.
        """
        command = command_type(
            id=self.ref.attempt_id, actor=worker_actor(self.worker_id), lease=self.ref, tenant=TENANT, **command_fields
        )
        sent_at = self._loop.now

        async def send_once(engine: Engine) -> Decision:
            nonlocal sent_at
            sent_at = self._loop.now
            return await engine.do(command)

        response = await self._client.send_until_answered(send_once, self._random, self._live_until)
        if not isinstance(response, Decision) or not isinstance(response.record, Attempt):
            return False
        if response.events and response.record.lease is not None:
            self._live_until = sent_at + self._ttl_seconds - self._safety_seconds
        self.is_canceled = response.record.state == attempt.CANCEL_REQUESTED
        return self.ignores_cancel or not self.is_canceled

    async def work_for(self, seconds: float) -> bool:
        """Let virtual time pass and renew the lease meanwhile. Return whether all of the time was worked.

        Return False early if the attempt was cancelled, or if the lease can no longer be proved to be live.
        """
        end_at = self._loop.now + seconds
        while (remaining_seconds := end_at - self._loop.now) > 0:
            if self._loop.now >= self._live_until:
                return False
            await asyncio.sleep(
                min(remaining_seconds, self._ttl_seconds / 3, max(0.1, self._live_until - self._loop.now))
            )
            request_id = f"{self.ref.attempt_id}#{self.ref.number} {self._loop.now}"
            if self._loop.now < end_at and not await self.send(attempt.Extend, request_id=request_id):
                return False
        return self._loop.now < self._live_until
