"""A fake forge: an HTTP endpoint on 127.0.0.1 that records requests and fails as planned."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from tests.support.listener import Listener


class ReceivedRequest(NamedTuple):
    """A request that was received completely."""

    method: str
    path: str
    headers: dict[str, str]
    body: Any


class PlannedResponse(NamedTuple):
    status: int = 201
    headers: dict[str, str] = {}  # noqa: RUF012
    body: Any = None


Plan = PlannedResponse | Literal["reset", "silence"] | asyncio.Event  # An event delays the response until it is set.


class FakeForge(Listener):
    """Responds by its plan, one entry for each request, and with success afterwards."""

    def __init__(self, *plan: Plan) -> None:
        super().__init__()
        self.received: list[ReceivedRequest] = []
        self.accepted: list[ReceivedRequest] = []  # The successful ones, in order.
        self.plan: deque[Plan] = deque(plan)
        self.default: Plan = PlannedResponse()
        self._changed = asyncio.Condition()

    @property
    def host(self) -> str:
        """Its host and port, as in the list of allowed hosts."""
        return self.url.removeprefix("http://")

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait until the condition holds; check it after each request."""
        async with self._changed:
            await self._changed.wait_for(condition)

    async def accepted_bodies(self, count: int) -> list[Any]:
        """Wait for so many successful requests; return their bodies."""
        await self.wait_until(lambda: len(self.accepted) >= count)
        return [request.body for request in self.accepted[:count]]

    async def wait_for_requests(self, count: int) -> None:
        """Wait for so many requests, successful or not."""
        await self.wait_until(lambda: len(self.received) >= count)

    async def handle_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        method, path, _ = head[0].split(" ")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        request = ReceivedRequest(method, path, headers, json.loads(body) if body else None)
        plan = self.plan.popleft() if self.plan else self.default
        await self._record(self.received, request)
        if plan == "reset":
            return
        if plan == "silence":
            await asyncio.get_running_loop().create_future()
        if isinstance(plan, asyncio.Event):
            await plan.wait()
            plan = PlannedResponse()
        assert isinstance(plan, PlannedResponse)
        id = path.rpartition("/")[2] if method == "PATCH" else len(self.accepted) + 1
        response = json.dumps({"id": id} if plan.body is None else plan.body).encode()
        lines = {"Content-Type": "application/json", "Content-Length": str(len(response)), "Connection": "close"}
        sent = "".join(f"{name}: {value}\r\n" for name, value in {**lines, **plan.headers}.items())
        writer.write(f"HTTP/1.1 {plan.status} So\r\n{sent}\r\n".encode() + response)
        await writer.drain()
        if plan.status < 300:
            await self._record(self.accepted, request)
        writer.write_eof()
        await reader.read()

    async def _record(self, requests: list[ReceivedRequest], request: ReceivedRequest) -> None:
        async with self._changed:
            requests.append(request)
            self._changed.notify_all()
