"""The simulated network between runners and servers: it loses, delays, duplicates and reorders requests.

It can be cut in one direction: requests are lost, or only responses.
"""

from __future__ import annotations

import asyncio
from random import Random
from typing import Final, NamedTuple

from deltaci.simulation.server import SimServer
from deltaci.simulation.virtual_time import VirtualLoop, fail_quietly

USUAL_SECONDS: Final = 0.002
MAX_COPY_DELAY_SECONDS: Final = 30.0


class NoResponse(Exception):
    """No response arrived; whether the server handled the request is unknown."""


class SimRequest(NamedTuple):
    """One request of a runner."""

    runner: str
    method: str
    path: str
    headers: dict[str, str]
    body: bytes


class Network:
    """Carries requests from runners to servers. The fault injector sets its attributes."""

    def __init__(self, loop: VirtualLoop, random: Random) -> None:
        self.loop = loop
        self._random = random
        self.loss = 0.0
        self.duplication = 0.0
        self.delay_seconds = 0.0
        self.cut_requests: set[str] = set()  # Runners whose requests are lost.
        self.cut_responses: set[str] = set()  # Runners that get no responses.
        self.request_count = 0

    def send(self, server: SimServer, request: SimRequest, timeout: float) -> asyncio.Future[tuple[int, bytes]]:
        """Send a request. The returned future gets the response, or `NoResponse` after the timeout."""
        self.request_count += 1
        return _Call(self, server, request, timeout).response

    def travel_seconds(self) -> float:
        """Draw the time that a message takes now."""
        return USUAL_SECONDS + (self.delay_seconds * self._random.random() if self.delay_seconds else 0.0)

    def _is_lost(self) -> bool:
        """Draw whether a message is lost."""
        return self.loss > 0 and self._random.random() < self.loss

    def _maybe_duplicate(self, server: SimServer, request: SimRequest) -> None:
        """Sometimes schedule a late second delivery of a request, whose response is dropped."""
        if self.duplication and self._random.random() < self.duplication:
            self.loop.call_outside(self._random.random() * MAX_COPY_DELAY_SECONDS, self._deliver_copy, server, request)

    def _deliver_copy(self, server: SimServer, request: SimRequest) -> None:
        """Deliver a duplicated request."""
        if server.is_up:
            server.handle_request(request.method, request.path, request.headers, request.body)


class _Call:
    """One request on its way, and its response."""

    __slots__ = ("_network", "_request", "_server", "_timeout", "response")

    def __init__(self, network: Network, server: SimServer, request: SimRequest, timeout: float) -> None:
        self._network = network
        self._server = server
        self._request = request
        self.response: asyncio.Future[tuple[int, bytes]] = network.loop.create_future()
        self._timeout = network.loop.call_outside(timeout, self._fail, "no answer")
        network.loop.call_outside(network.travel_seconds(), self._deliver_request)

    def _deliver_request(self) -> None:
        network, server, request = self._network, self._server, self._request
        if request.runner in network.cut_requests or network._is_lost():
            return
        if not server.is_up:
            self._reset()
            return
        network._maybe_duplicate(server, request)
        pending = server.handle_request(request.method, request.path, request.headers, request.body)
        server.open_requests[pending] = self._reset
        pending.add_done_callback(self._on_response)

    def _on_response(self, pending: asyncio.Task[tuple[int, bytes]]) -> None:
        self._server.open_requests.pop(pending, None)
        network = self._network
        if self._request.runner in network.cut_responses or network._is_lost():
            return
        if network.delay_seconds:
            network.loop.call_outside(network.travel_seconds(), self._deliver, pending)
        else:
            self._deliver(pending)

    def _deliver(self, pending: asyncio.Task[tuple[int, bytes]]) -> None:
        self._timeout.cancel()
        if self.response.done():
            return
        if pending.cancelled() or pending.exception() is not None:
            fail_quietly(self.response, NoResponse("the server hung up"))
        else:
            self.response.set_result(pending.result())

    def _reset(self) -> None:
        """Fail the request with a connection reset: the server process is dead."""
        if self._request.runner not in self._network.cut_responses:
            self._network.loop.call_outside(USUAL_SECONDS, self._fail, "the connection was reset")

    def _fail(self, reason: str) -> None:
        self._timeout.cancel()
        if not self.response.done():
            fail_quietly(self.response, NoResponse(reason))
