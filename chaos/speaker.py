"""Runners that only use the protocol: the real client, but no jobs; they record every acknowledgement.

Their jobs record no execution, so they need jobs of their own: `Speakers.give`.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Final, TypeVar

import msgspec

from chaos.deployment import Deployment
from chaos.workload import TENANT, Workload
from deltaci.app import registration_token
from deltaci.core import attempt, ids
from deltaci.core.errors import Refused, Unreachable
from deltaci.engine.queue import NewJob
from deltaci.protocol import messages as wire
from deltaci.runner.client import RunnerClient

RETRY_SECONDS: Final = 0.02
WAIT_SECONDS: Final = 1.0
LABEL: Final = "speaker"

T = TypeVar("T")


class Acknowledgement(msgspec.Struct, frozen=True):
    """A grant or a message that was acknowledged, with the time by this machine's clock."""

    at: float
    runner_id: str
    lease_id: str
    what: str

    @property
    def ref(self) -> ids.LeaseRef:
        """The lease that was acknowledged."""
        return ids.lease_ref(self.lease_id)


class Speakers:
    """Any number of such runners, each in a thread of its own."""

    def __init__(self, deployment: Deployment, count: int, slots: int = 1) -> None:
        self.acknowledged: list[Acknowledgement] = []
        self.granted: dict[str, list[str]] = {}
        self.stale = 0
        self._deployment = deployment
        self._slots = slots
        self._is_over = threading.Event()
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._live, args=(f"speaker{n}",), daemon=True) for n in range(count)]

    @asynccontextmanager
    async def speaking(self) -> AsyncIterator[Speakers]:
        """Run them until the block ends."""
        for thread in self._threads:
            thread.start()
        try:
            yield self
        finally:
            await asyncio.to_thread(self.stop)  # In a thread: the load balancer that they use runs on this loop.

    def stop(self) -> None:
        """Stop them after their current job."""
        self._is_over.set()
        for thread in self._threads:
            thread.join(30)

    @staticmethod
    async def enqueue_recorded(work: Workload, count: int, prefix: str) -> list[str]:
        """Enqueue jobs for these runners alone; they are acknowledged when this returns."""
        jobs = [NewJob(payload={"steps": ["true"]}, labels=[LABEL], request_id=f"{prefix}-{n}") for n in range(count)]
        found = await work.enqueue(jobs)
        return [each.id for each in found]

    def completed(self) -> set[str]:
        """Return the attempts whose success was acknowledged."""
        return {each.ref.attempt_id for each in self.acknowledged if each.what == "Complete"}

    def broken(self, records: dict[str, attempt.Attempt]) -> list[str]:
        """Return what was acknowledged but is not in these records."""
        wrong = []
        for yes in list(self.acknowledged):
            record = records.get(yes.ref.attempt_id)
            if record is None:
                wrong.append(f"{yes.ref.attempt_id}: {yes.what} was acknowledged, and there is no such attempt")
            elif record.claims < yes.ref.number:
                wrong.append(f"{record.id}: lease {yes.ref.number} was acknowledged, and {record.claims} were given")
            elif yes.what == "Complete" and record.state != attempt.SUCCEEDED:
                wrong.append(f"{record.id}: its success was acknowledged, and it is {record.state}")
        return wrong

    def granted_twice(self) -> list[str]:
        """Return the lease ids that were granted more than once."""
        return [lease_id for lease_id, who in self.granted.items() if len(who) > 1]

    # -- in its own thread

    def _live(self, name: str) -> None:
        client = RunnerClient(self._deployment.load_balancer.url)
        token = registration_token(self._deployment.data, name, TENANT)
        try:
            told = self._insist(lambda: client.register(token, [LABEL], self._slots, request_id=f"{name}-request"))
            if told is None:
                return
            client.token = told.credential
            asked = wire.LeaseRequest(
                runner_id=name, capabilities=[LABEL], slots=self._slots, wait_seconds=WAIT_SECONDS
            )
            while not self._is_over.is_set():
                for granted in self._insist(lambda: client.lease(asked)) or []:
                    self._note(name, granted.lease_id, "Lease")
                    self._do(client, name, granted)
        finally:
            client.close_all()

    def _do(self, client: RunnerClient, name: str, granted: wire.LeaseGranted) -> None:
        """Send all messages of a job's life; a stale lease ends it."""
        now = datetime.now(UTC)
        lease_id = granted.lease_id
        for message in (
            wire.AckLease(lease_id=lease_id, runner_id=name, job_id=granted.job_id, accepted_at=now),
            wire.Heartbeat(lease_id=lease_id, runner_id=name, ts=now),
            wire.Complete(lease_id=lease_id, runner_id=name, status="SUCCEEDED", exit_code=0),
        ):
            answer = self._insist(lambda message=message: client.send(message))  # type: ignore[misc]
            if answer is None:
                return
            if isinstance(answer, wire.StaleLease) or getattr(answer, "accepted", True) is False:
                self.stale += 1
                return
            self._note(name, lease_id, type(message).__name__)

    def _note(self, name: str, lease_id: str, what: str) -> None:
        with self._lock:
            self.acknowledged.append(Acknowledgement(time.time(), name, lease_id, what))
            if what == "Lease":
                self.granted.setdefault(lease_id, []).append(name)

    def _insist(self, ask: Callable[[], T]) -> T | None:
        """Repeat a request until it is answered, or until the runners are stopped."""
        while not self._is_over.is_set():
            try:
                return ask()
            except Unreachable:
                pass
            except Refused as refused:
                if refused.code not in ("expired_credential", "overloaded", "unavailable"):
                    raise
            self._is_over.wait(RETRY_SECONDS)
        return None
