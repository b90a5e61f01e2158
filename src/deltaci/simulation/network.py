"""The network of the simulated world: it loses, delays, doubles and reorders what is said, and can be cut one way."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Final, NamedTuple

from deltaci.simulation.server import SimServer
from deltaci.simulation.virtual_time import VirtualLoop, failed

USUAL_SECONDS: Final = 0.002
LATE_SECONDS: Final = 30.0  # So late a copy may arrive.


class Unreached(Exception):
    """No answer came. Whether it was heard is unknown."""


class Said(NamedTuple):
    """One request."""

    who: str
    method: str
    path: str
    headers: dict[str, str]
    body: bytes


class Network:
    """Between runners and servers. What is wrong with it now is changed by whoever makes the faults."""

    def __init__(self, loop: VirtualLoop, random: Random) -> None:
        self.loop = loop
        self._random = random
        self.loss = 0.0
        self.doubling = 0.0
        self.delay_seconds = 0.0
        self.cut_to: set[str] = set()  # Runners whose requests are lost,
        self.cut_from: set[str] = set()  # and those who hear no answers.
        self.said = 0

    def ask(self, server: SimServer, said: Said, timeout: float) -> asyncio.Future[tuple[int, bytes]]:
        """Ask. The answer comes with the future, or `Unreached` in so many seconds."""
        self.said += 1
        return _Call(self, server, said, timeout).answer

    def travel_seconds(self) -> float:
        """How long something is under way now."""
        return USUAL_SECONDS + (self.delay_seconds * self._random.random() if self.delay_seconds else 0.0)

    def is_lost(self) -> bool:
        """Whether this one gets lost."""
        return self.loss > 0 and self._random.random() < self.loss

    def double(self, server: SimServer, said: Said) -> None:
        """Now and then a copy of a request arrives late. Nobody waits for its answer."""
        if self.doubling and self._random.random() < self.doubling:
            self.loop.outside(self._random.random() * LATE_SECONDS, self.repeat, server, said)

    def repeat(self, server: SimServer, said: Said) -> None:
        """It arrives once more."""
        if server.is_up:
            server.ask(said.method, said.path, said.headers, said.body)


class _Call:
    """One request on its way, and back."""

    __slots__ = ("_give_up", "_network", "_said", "_server", "answer")

    def __init__(self, network: Network, server: SimServer, said: Said, timeout: float) -> None:
        self._network = network
        self._server = server
        self._said = said
        self.answer: asyncio.Future[tuple[int, bytes]] = network.loop.create_future()
        self._give_up = network.loop.outside(timeout, self._fail, "no answer")
        network.loop.outside(network.travel_seconds(), self._arrive)

    def _arrive(self) -> None:
        network, server, said = self._network, self._server, self._said
        if said.who in network.cut_to or network.is_lost():
            return
        if not server.is_up:
            self._reset()
            return
        network.double(server, said)
        asked = server.ask(said.method, said.path, said.headers, said.body)
        server.open_calls[asked] = self._reset
        asked.add_done_callback(self._answered)

    def _answered(self, asked: asyncio.Task[tuple[int, bytes]]) -> None:
        self._server.open_calls.pop(asked, None)
        network = self._network
        if self._said.who in network.cut_from or network.is_lost():
            return
        if network.delay_seconds:
            network.loop.outside(network.travel_seconds(), self._deliver, asked)
        else:
            self._deliver(asked)

    def _deliver(self, asked: asyncio.Task[tuple[int, bytes]]) -> None:
        self._give_up.cancel()
        if self.answer.done():
            return
        if asked.cancelled() or asked.exception() is not None:
            failed(self.answer, Unreached("the server hung up"))
        else:
            self.answer.set_result(asked.result())

    def _reset(self) -> None:
        """Nobody is there any more who could answer; who can hear that hears it."""
        if self._said.who not in self._network.cut_from:
            self._network.loop.outside(USUAL_SECONDS, self._fail, "the connection was reset")

    def _fail(self, why: str) -> None:
        self._give_up.cancel()
        if not self.answer.done():
            failed(self.answer, Unreached(why))
