"""A fake forge: an HTTP endpoint on 127.0.0.1 that records requests and fails as planned."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from tests.listener import Listener


class Heard(NamedTuple):
    """One request that came in whole."""

    method: str
    path: str
    headers: dict[str, str]
    body: Any


class Answered(NamedTuple):
    """How to answer one."""

    status: int = 201
    headers: dict[str, str] = {}  # noqa: RUF012
    body: Any = None


Plan = Answered | Literal["reset", "silence"] | asyncio.Event  # An event: answered once it is set.


class PlayedForge(Listener):
    """Answers by its plan, one entry for each request; then as if all were well."""

    def __init__(self, *plan: Plan) -> None:
        super().__init__()
        self.heard: list[Heard] = []
        self.kept: list[Heard] = []  # Of these, what it took, in the order in which it did.
        self.plan: deque[Plan] = deque(plan)
        self.otherwise: Plan = Answered()
        self._changed = asyncio.Condition()

    @property
    def host(self) -> str:
        """As the server's configuration allows it."""
        return self.url.removeprefix("http://")

    async def until(self, is_so: Callable[[], bool]) -> None:
        """Wait until something is so; it is looked at with each request."""
        async with self._changed:
            await self._changed.wait_for(is_so)

    async def told(self, count: int) -> list[Any]:
        """The first so many bodies that it took."""
        await self.until(lambda: len(self.kept) >= count)
        return [each.body for each in self.kept[:count]]

    async def tried(self, count: int) -> None:
        """Wait for so many requests, however they were answered."""
        await self.until(lambda: len(self.heard) >= count)

    async def meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One request."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        method, path, _ = head[0].split(" ")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        came = Heard(method, path, headers, json.loads(body) if body else None)
        plan = self.plan.popleft() if self.plan else self.otherwise
        await self._note(self.heard, came)
        if plan == "reset":
            return
        if plan == "silence":
            await asyncio.get_running_loop().create_future()
        if isinstance(plan, asyncio.Event):
            await plan.wait()
            plan = Answered()
        assert isinstance(plan, Answered)
        id = path.rpartition("/")[2] if method == "PATCH" else len(self.kept) + 1
        answer = json.dumps({"id": id} if plan.body is None else plan.body).encode()
        lines = {"Content-Type": "application/json", "Content-Length": str(len(answer)), "Connection": "close"}
        sent = "".join(f"{name}: {value}\r\n" for name, value in {**lines, **plan.headers}.items())
        writer.write(f"HTTP/1.1 {plan.status} So\r\n{sent}\r\n".encode() + answer)
        await writer.drain()
        if plan.status < 300:
            await self._note(self.kept, came)
        writer.write_eof()
        await reader.read()

    async def _note(self, where: list[Heard], came: Heard) -> None:
        async with self._changed:
            where.append(came)
            self._changed.notify_all()
