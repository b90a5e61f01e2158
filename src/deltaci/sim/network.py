"""The network of the simulated world: it loses, delays, doubles and reorders what is said, and can be cut one way."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Final

from deltaci.sim.loop import HERE, VirtualLoop
from deltaci.sim.server import SimServer

USUAL_SECONDS: Final = 0.002


class Unreached(Exception):
    """No answer came. Whether it was heard is unknown."""


class Network:
    """Between runners and servers. What is wrong with it now is changed by whoever makes the faults."""

    def __init__(self, loop: VirtualLoop, random: Random) -> None:
        self._loop = loop
        self._random = random
        self.loss = 0.0
        self.doubling = 0.0
        self.delay_seconds = 0.0
        self.cut_to: set[str] = set()  # Runners whose requests are lost,
        self.cut_from: set[str] = set()  # and those who hear no answers.
        self.said = 0

    async def ask(
        self,
        who: str,
        server: SimServer,
        method: str,
        path: str,
        headers: dict[str, str],
        body: bytes,
        timeout: float,
    ) -> tuple[int, bytes]:
        """Ask, and wait so long for the answer."""
        self.said += 1
        give_up = self._loop.now + timeout
        await self._travel()
        if who in self.cut_to or self._is_lost():
            await self._wait_in_vain(give_up)
        if not server.is_up:
            raise Unreached("nobody listens")
        answer = self._loop.spawn(server.node, server.answer(method, path, headers, body))
        if self._random.random() < self.doubling:
            self._loop.call_later(self._random.random() * 30, self._again, server, method, path, headers, body)
        done, _ = await asyncio.wait({answer}, timeout=max(0.0, give_up - self._loop.now))
        if not done or who in self.cut_from or self._is_lost():
            await self._wait_in_vain(give_up)
        await self._travel()
        return answer.result()

    def _again(self, server: SimServer, method: str, path: str, headers: dict[str, str], body: bytes) -> None:
        """A copy of a request arrives late. Nobody waits for its answer."""
        if server.is_up and not path.endswith("/lease"):
            task = self._loop.spawn(server.node, server.answer(method, path, headers, body))
            task.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def _travel(self) -> None:
        await asyncio.sleep(USUAL_SECONDS + self.delay_seconds * self._random.random())

    def _is_lost(self) -> bool:
        return self.loss > 0 and self._random.random() < self.loss

    async def _wait_in_vain(self, give_up: float) -> None:
        await asyncio.sleep(max(0.0, give_up - self._loop.now))
        raise Unreached(f"no answer ({HERE.get().name})")
