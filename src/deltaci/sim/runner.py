"""A runner in the simulated world. It keeps the protocol as ours does: it proves its leases by its own clock, stops
what it cannot prove, and says a thing until it is heard. A bad one does not, now and then.

What really executes is written down by the world, so that everybody's word can be compared with it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from random import Random
from typing import Any, Final, Protocol

from deltaci.server.credentials import Signer
from deltaci.sim.loop import Node, VirtualLoop
from deltaci.sim.network import Network, Unreached
from deltaci.sim.server import SimServer
from deltaci.wire.addresses import ROOT

TENANT: Final = "default"
CALL_SECONDS: Final = 10.0
WAIT_SECONDS: Final = 60.0
TIME: Final = "2026-01-04T08:00:00Z"


class Truth(Protocol):
    """What the world writes down."""

    def began(self, attempt_id: str, number: int, who: str) -> None:
        """A process of the job runs now."""

    def ended(self, attempt_id: str, number: int, who: str, exit_code: int | None) -> None:
        """None of them does any more. Without an exit code it was killed."""


class SimRunner:
    """One runner; it may die, hang, and come back under its name."""

    def __init__(
        self,
        name: str,
        loop: VirtualLoop,
        network: Network,
        servers: list[SimServer],
        random: Random,
        signer: Signer,
        truth: Truth,
        slots: int,
    ) -> None:
        self.name = name
        self._loop = loop
        self._network = network
        self._servers = servers
        self._random = random
        self._signer = signer
        self._truth = truth
        self._slots = slots
        self.lies = 0.0  # How often it says what it should not.
        self.pace = 1.0  # How fast its clock runs.
        self.node = Node(name)
        self.node.is_dead = True
        self._credential = ""
        self._running: dict[str, tuple[str, int]] = {}
        self._lives = 0

    def start(self) -> None:
        """A new process."""
        self.node = Node(self.name)
        self._lives += 1
        self._loop.spawn(self.node, self._live(), self.name)

    def kill(self) -> None:
        """SIGKILL: its keeper sees it, and no process of its jobs goes on."""
        self._loop.kill(self.node)
        for attempt_id, number in list(self._running.values()):
            self._truth.ended(attempt_id, number, self.name, None)
        self._running.clear()

    def clock(self) -> float:
        """Its own, which does not jump but may be a little fast or slow."""
        return self._loop.now * self.pace

    # -- talking

    async def _ask(self, name: str, body: dict[str, Any], timeout: float = CALL_SECONDS) -> dict[str, Any]:
        """One request to one of the servers; raises `Unreached` when there is no answer to rely on."""
        server = self._random.choice(self._servers)
        headers = {"Authorization": f"Bearer {self._credential}"} if self._credential else {}
        status, answer = await self._network.ask(
            self.name, server, "POST", ROOT + name, headers, json.dumps(body).encode(), timeout
        )
        if status >= 500:
            raise Unreached(f"{status}")
        found: dict[str, Any] = json.loads(answer)
        if status == 401:
            await self._enter()
            raise Unreached("the credential was renewed")
        return found

    async def _enter(self) -> None:
        self._credential = ""
        token = self._signer.sign("register", self.name, TENANT, 3600, again=self._lives > 1)
        while not self._credential:
            try:
                answer = await self._ask_once("register", {"token": token, "slots": self._slots, "request_id": "r"})
                if "credential" not in answer:
                    self._lives += 1  # It was here before, and nobody remembers that it was told.
                    await asyncio.sleep(1.0)
                    token = self._signer.sign("register", self.name, TENANT, 3600, again=True)
                self._credential = answer.get("credential", "")
            except Unreached:
                await asyncio.sleep(5.0)

    async def _ask_once(self, name: str, body: dict[str, Any]) -> dict[str, Any]:
        server = self._random.choice(self._servers)
        status, answer = await self._network.ask(
            self.name, server, "POST", ROOT + name, {}, json.dumps(body).encode(), CALL_SECONDS
        )
        if status >= 500:
            raise Unreached(f"{status}")
        found: dict[str, Any] = json.loads(answer)
        return found

    # -- working

    async def _live(self) -> None:
        await self._enter()
        free = asyncio.Semaphore(self._slots)
        while True:
            async with free:
                pass
            asked = {"type": "Lease", "runner_id": self.name, "slots": 1, "wait_seconds": WAIT_SECONDS}
            try:
                leases = (await self._ask("lease", asked, WAIT_SECONDS + CALL_SECONDS)).get("leases", [])
            except Unreached:
                await asyncio.sleep(5.0)
                continue
            for granted in leases:
                await free.acquire()
                task = asyncio.get_running_loop().create_task(self._work(granted))
                task.add_done_callback(lambda _: free.release())

    async def _work(self, granted: dict[str, Any]) -> None:
        lease_id: str = granted["lease_id"]
        attempt_id, number = lease_id.rsplit(".", 2)[:2]
        ttl = granted["lease_ttl_seconds"]
        named = {"lease_id": lease_id, "runner_id": self.name}
        said_at = self.clock()
        ack = {"type": "AckLease", **named, "job_id": granted["job_id"], "accepted_at": TIME}
        answer = await self._insist(ack, lambda: self.clock() < said_at + ttl)
        if answer.get("type") != "HeartbeatAck":
            return
        job = _Job(said_at + answer["new_lease_ttl_seconds"] - min(10.0, ttl / 4))
        spec = granted["job_spec"] or {}
        seconds, code = (float(part) for part in spec["steps"][0].split())
        self._running[lease_id] = attempt_id, int(number)
        self._truth.began(attempt_id, int(number), self.name)
        keeping = asyncio.get_running_loop().create_task(self._keep(job, named, granted["heartbeat_interval_seconds"]))
        try:
            await asyncio.wait_for(job.is_over.wait(), seconds)
            exit_code = None
        except TimeoutError:
            exit_code = int(code)
        self._running.pop(lease_id, None)
        self._truth.ended(attempt_id, int(number), self.name, exit_code)
        is_liar = self._random.random() < self.lies
        try:
            await self._tell(job, named, exit_code, ttl, is_liar=is_liar)
        finally:
            keeping.cancel()

    async def _tell(
        self, job: _Job, named: dict[str, Any], exit_code: int | None, ttl: float, *, is_liar: bool
    ) -> None:
        give_up = self.clock() + 3 * ttl
        if job.is_canceled:
            said = {"type": "CancelAck", **named, "final_status": "CANCELED", "ts": TIME}
        elif job.is_lost and not is_liar:
            return
        else:
            is_success = exit_code == 0
            said = {"type": "Complete", **named, "status": "SUCCEEDED" if is_success else "FAILED"}
            said |= {"exit_code": 0} if is_success else {"exit_code": exit_code or 1, "error_code": "RUNNER_STARTUP"}
        await self._insist(said, lambda: self.clock() < (give_up if is_liar else job.proved_until))

    async def _keep(self, job: _Job, named: dict[str, Any], interval: float) -> None:
        """Heartbeats, and an end to what can no longer be proved."""
        while True:
            wait = min(interval, max(0.0, job.proved_until - self.clock()))
            await asyncio.sleep(wait / self.pace)
            if self.clock() >= job.proved_until:
                job.is_lost = True
                job.is_over.set()
                return
            said_at = self.clock()
            left = max(0.2, min(5.0, job.proved_until - said_at))
            try:
                # Whatever else an answer may wait for, such as a new credential: the fence does not wait for it.
                beat = self._ask("messages", {"type": "Heartbeat", **named, "ts": TIME}, left)
                answer = await asyncio.wait_for(beat, left)
            except (Unreached, TimeoutError):
                continue
            if not answer.get("extend_lease"):
                job.is_lost = True
                job.is_over.set()
                return
            job.proved_until = said_at + answer["new_lease_ttl_seconds"] - job.margin
            if answer["cancel_requested"]:
                job.is_canceled = True
                job.is_over.set()

    async def _insist(self, message: dict[str, Any], may: Callable[[], bool]) -> dict[str, Any]:
        """Say it until it is heard, as long as it may be said."""
        while may():
            try:
                return await self._ask("messages", message)
            except Unreached:
                await asyncio.sleep(1.0)
        return {}


class _Job:
    """What is known of a job that runs."""

    def __init__(self, proved_until: float) -> None:
        self.proved_until = proved_until
        self.margin = 10.0
        self.is_over = asyncio.Event()
        self.is_lost = False
        self.is_canceled = False
