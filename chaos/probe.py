"""One honest runner among the others: how long its heartbeats take, while something else goes wrong."""

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
from deltaci.protocol.messages import Heartbeat, HeartbeatAck
from deltaci.runner.client import RunnerClient, Unreachable

EACH_SECONDS: Final = 0.1


class Probe:
    """`seconds` are what its heartbeats took; `troubles` are those that were not answered as they should be."""

    def __init__(self, place: Deployment, held: HeldLease) -> None:
        self.held = held
        self.seconds: list[float] = []
        self.troubles: list[str] = []
        self._client = RunnerClient(f"http://127.0.0.1:{place.ports()[0]}", held.runner.credential)

    @property
    def p99(self) -> float:
        """Of all so far."""
        return p99(self.seconds)

    def fresh(self) -> None:
        """Forget what was measured."""
        self.seconds, self.troubles = [], []

    def beat(self) -> None:
        """One heartbeat."""
        said = Heartbeat(
            lease_id=self.held.granted.lease_id, runner_id=self.held.runner.runner_id, ts=datetime.now(UTC)
        )
        began = time.monotonic()
        try:
            answer = self._client.send(said)
            if not isinstance(answer, HeartbeatAck):
                self.troubles.append(str(answer))
        except Unreachable as error:
            self.troubles.append(str(error))
        self.seconds.append(time.monotonic() - began)

    def close(self) -> None:
        """Hang up."""
        self._client.close_all()


@asynccontextmanager
async def probing(place: Deployment) -> AsyncIterator[Probe]:
    """A runner by hand, with a lease of its own, that beats as long as this lasts. Use it before there are others."""
    id = await place.work.ask({"steps": ["true"]})
    caller = HttpClient(f"http://127.0.0.1:{place.ports()[0]}")
    visitor = await asyncio.to_thread(liar.registered, caller, place.data, "probe")
    probe = Probe(place, await asyncio.to_thread(liar.leased, visitor))
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
