"""One well-behaved runner that measures how long its heartbeats take while a fault is active."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Final

from chaos import liar
from chaos.deployment import Deployment
from chaos.rows import p99
from deltaci.conformance.http_client import HttpClient
from deltaci.conformance.scripted_runner import HeldLease
from deltaci.core.errors import Unreachable
from deltaci.protocol.messages import Heartbeat, HeartbeatAck
from deltaci.runner.client import RunnerClient

EACH_SECONDS: Final = 0.1


class Probe:
    """`seconds` are the durations of its heartbeats; `failures` are answers that were not a HeartbeatAck."""

    def __init__(self, deployment: Deployment, held: HeldLease) -> None:
        self.held = held
        self.seconds: list[float] = []
        self.failures: list[str] = []
        self._client = RunnerClient(f"http://127.0.0.1:{deployment.ports()[0]}", held.runner.credential)

    @property
    def p99(self) -> float:
        """The 99th percentile of all durations so far."""
        return p99(self.seconds)

    def reset(self) -> None:
        """Discard all measurements."""
        self.seconds, self.failures = [], []

    def beat(self) -> None:
        """Send one heartbeat."""
        said = Heartbeat(
            lease_id=self.held.granted.lease_id, runner_id=self.held.runner.runner_id, ts=datetime.now(UTC)
        )
        began = time.monotonic()
        try:
            answer = self._client.send(said)
            if not isinstance(answer, HeartbeatAck):
                self.failures.append(str(answer))
        except Unreachable as error:
            self.failures.append(str(error))
        self.seconds.append(time.monotonic() - began)

    def close(self) -> None:
        self._client.close_all()


@asynccontextmanager
async def running_probe(deployment: Deployment) -> AsyncIterator[Probe]:
    """Register a runner, lease a job, and send heartbeats until the block ends.

    Use it before there are other runners.
    """
    id = await deployment.work.ask({"steps": ["true"]})
    caller = HttpClient(f"http://127.0.0.1:{deployment.ports()[0]}")
    visitor = await asyncio.to_thread(liar.register_runner, caller, deployment.data, "probe")
    probe = Probe(deployment, await asyncio.to_thread(liar.lease_job, visitor))
    assert probe.held.granted.job_id == id
    is_over = asyncio.Event()

    async def beat() -> None:
        while not is_over.is_set():
            await asyncio.to_thread(probe.beat)
            try:
                await asyncio.wait_for(is_over.wait(), EACH_SECONDS)
            except TimeoutError:
                continue

    beating = asyncio.create_task(beat())
    try:
        yield probe
    finally:
        is_over.set()
        await beating
        await asyncio.to_thread(probe.held.send, "Complete")
        probe.close()
