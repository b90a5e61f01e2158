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
    """Raised when no response arrives, so that it is unknown whether the server handled the request."""


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
        self.loss_probability = 0.0
        self.duplication_probability = 0.0
        self.delay_seconds = 0.0
        self.cut_requests: set[str] = set()  # Runners whose requests are lost.
        self.cut_responses: set[str] = set()  # Runners that get no responses.
        self.request_count = 0

    def send(self, server: SimServer, request: SimRequest, timeout: float) -> asyncio.Future[tuple[int, bytes]]:
        """Send a request to a server.

        Return the future of its response, which fails with `NoResponse` after the timeout.
        """
        self.request_count += 1
        return _Call(self, server, request, timeout).response_future

    def travel_seconds(self) -> float:
        """Draw how long a message now takes from one end to the other."""
        return USUAL_SECONDS + (self.delay_seconds * self._random.random() if self.delay_seconds else 0.0)

    def _is_lost(self) -> bool:
        """Draw whether a message is lost."""
        return self.loss_probability > 0 and self._random.random() < self.loss_probability

    def _maybe_duplicate(self, server: SimServer, request: SimRequest) -> None:
        """Sometimes schedule a second, late delivery of a request. Its response is dropped."""
        if self.duplication_probability and self._random.random() < self.duplication_probability:
            self.loop.call_outside(self._random.random() * MAX_COPY_DELAY_SECONDS, self._deliver_copy, server, request)

    def _deliver_copy(self, server: SimServer, request: SimRequest) -> None:
        """Let the server handle a duplicated request, and ignore its response."""
        if server.is_up:
            server.handle_request(request.method, request.path, request.headers, request.body)


class _Call:
    """One request and its response, while they travel through the network."""

    __slots__ = ("_network", "_request", "_server", "_timeout_handle", "response_future")

    def __init__(self, network: Network, server: SimServer, request: SimRequest, timeout: float) -> None:
        self._network = network
        self._server = server
        self._request = request
        self.response_future: asyncio.Future[tuple[int, bytes]] = network.loop.create_future()
        self._timeout_handle = network.loop.call_outside(timeout, self._fail, "no answer")
        network.loop.call_outside(network.travel_seconds(), self._deliver_request)

    def _deliver_request(self) -> None:
        """Pass the request to the server, unless the network loses it or the server is dead."""
        network, server, request = self._network, self._server, self._request
        if request.runner in network.cut_requests or network._is_lost():
            return
        if not server.is_up:
            self._reset()
            return
        network._maybe_duplicate(server, request)
        server_task = server.handle_request(request.method, request.path, request.headers, request.body)
        server.open_requests[server_task] = self._reset
        server_task.add_done_callback(self._on_response)

    def _on_response(self, server_task: asyncio.Task[tuple[int, bytes]]) -> None:
        """Send the finished response back to the runner, unless the network loses it."""
        self._server.open_requests.pop(server_task, None)
        network = self._network
        if self._request.runner in network.cut_responses or network._is_lost():
            return
        if network.delay_seconds:
            network.loop.call_outside(network.travel_seconds(), self._deliver, server_task)
        else:
            self._deliver(server_task)

    def _deliver(self, server_task: asyncio.Task[tuple[int, bytes]]) -> None:
        """Give the response to the runner, or `NoResponse` if the server did not produce one."""
        self._timeout_handle.cancel()
        if self.response_future.done():
            return
        if server_task.cancelled() or server_task.exception() is not None:
            fail_quietly(self.response_future, NoResponse("the server hung up"))
        else:
            self.response_future.set_result(server_task.result())

    def _reset(self) -> None:
        """Fail the request with a connection reset, because the server process is dead."""
        if self._request.runner not in self._network.cut_responses:
            self._network.loop.call_outside(USUAL_SECONDS, self._fail, "the connection was reset")

    def _fail(self, reason: str) -> None:
        """Fail the runner's request with `NoResponse`, unless its response has arrived."""
        self._timeout_handle.cancel()
        if not self.response_future.done():
            fail_quietly(self.response_future, NoResponse(reason))
