"""How people and programs give orders: to one server after the other, until one has done it or says no.

A server may die, hang or lose its database in the middle, so the same order is given again under the same request id.
What is acknowledged is compared with the log at once.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from contextvars import Context
from random import Random
from typing import Any, Final, TypeVar

from deltaci.core.errors import Refused
from deltaci.core.machine import Command
from deltaci.engine.engine import Engine
from deltaci.protocol.routes import LEASE_HEADER, ROOT
from deltaci.server.auth.credentials import Signer
from deltaci.simulation.checker.history_checker import Violation
from deltaci.simulation.checker.law import SECOND
from deltaci.simulation.checker.promises import Promises
from deltaci.simulation.runner import TENANT
from deltaci.simulation.server import SimServer
from deltaci.simulation.virtual_time import Node, VirtualLoop
from deltaci.storage.port import Conflict, Unavailable

DO_SECONDS: Final = 20.0
AGAIN_SECONDS: Final = 2.0
HAND_BACK_TRIES: Final = 10

T = TypeVar("T")
Blame = Callable[[Violation], None]


class Orders:
    """Gives orders for everybody who is no runner."""

    def __init__(
        self,
        loop: VirtualLoop,
        servers: list[SimServer],
        promises: Promises,
        habits: dict[str, float],
        signer: Signer,
        blame: Blame,
    ) -> None:
        self._loop = loop
        self._servers = servers
        self._promises = promises
        self._habits = habits
        self._signer = signer
        self._blame = blame
        self.node = Node("people")

    def spawn(self, work: Any) -> None:
        """Somebody begins to do something."""
        self._loop.spawn(self.node, work)

    def later(self, seconds: float, work: Callable[[], Any]) -> None:
        """Somebody will."""
        # In a context of its own: whoever is told of an event is told by a server, which may be dead by then.
        self._loop.call_later(seconds, lambda: self.spawn(work()), context=Context())

    def does(self, habit: str, random: Random) -> bool:
        """Whether somebody with this seed's habits does it now."""
        return random.random() < self._habits.get(habit, 0.0)

    async def do(self, what: str, command: Command, random: Random, other: Command | None = None) -> bool:
        """Whether it was done. Now and then it is sent once more, and now and then another one under its id."""
        answer, was_known = await self._insist(command, random, is_first=True)
        is_done = not isinstance(answer, Refused)
        if is_done:
            self._check(self._promises.accepted, what, command.id, command.request_id, command.expected_rev)
        elif was_known:
            self._check(self._promises.refused, what, command.id, command.request_id)
        if self.does("repeat", random):
            await asyncio.sleep(random.choice((0.0, 30.0)) * random.random())
            answer, was_known = await self._insist(command, random)
            if isinstance(answer, Refused) and was_known:
                self._check(self._promises.refused, what, command.id, command.request_id)
        if other is not None and self.does("reuse", random):
            answer, was_known = await self._insist(other, random)
            if not isinstance(answer, Refused) and was_known:
                self._check(self._promises.accepted_other, what, command.id, command.request_id)
        return is_done

    async def _insist(self, command: Command, random: Random, *, is_first: bool = False) -> tuple[Any, bool]:
        """The answer, and whether the request had been done when that was given: one that is under way may be done yet.

        So it is looked up before the request is sent for the last time; after it, if that was the first time as well.
        """
        is_known, count = False, 0

        async def do(engine: Engine) -> Any:
            nonlocal is_known, count
            is_known, count = self._promises.knows(command.id, command.request_id), count + 1
            return await engine.do(command)

        answer = await self.insist(do, random)
        if count == 1 and is_first:
            is_known = self._promises.knows(command.id, command.request_id)
        return answer, is_known

    async def insist(
        self, do: Callable[[Engine], Awaitable[T]], random: Random, give_up: float = float("inf")
    ) -> T | Refused | None:
        """Ask one server after the other until one of them answers; None: it was time to give up."""
        while self._loop.now < give_up:
            server = random.choice(self._servers)
            if server.is_up and server.engine is not None:
                task = self._loop.spawn(server.node, _attempted(do, server.engine))
                done, _ = await asyncio.wait({task}, timeout=DO_SECONDS)
                if done and (answer := task.result()) is not None:
                    return answer
            await asyncio.sleep(AGAIN_SECONDS)
        return None

    async def register(self, name: str, slots: int, random: Random) -> bool:
        """Come in as a worker, with a token. Whoever shows it once more, for another request, must not be let in."""
        token = self._signer.sign("register", name, TENANT, 3600)
        is_in = False
        for request_id in ("first", "first", "another"):
            body = json.dumps({"token": token, "slots": slots, "request_id": request_id}).encode()
            server = random.choice(self._servers)
            if not server.is_up:
                continue
            task = server.ask("POST", f"{ROOT}register", {}, body)
            done, _ = await asyncio.wait({task}, timeout=DO_SECONDS)
            status = task.result()[0] if done else 0
            if status == 200 and is_in and request_id == "another":
                self._blame(Violation("credential", f"the token of {name} lets somebody in once more"))
            is_in = is_in or status == 200
        return is_in

    async def hand_back(self, who: str, lease_id: str, random: Random) -> None:
        """Give back what was taken, as a runner does that leaves: again until somebody answers."""
        headers = {"Authorization": f"Bearer {self._signer.sign('run', who, TENANT, 3600)}", LEASE_HEADER: lease_id}
        for _ in range(HAND_BACK_TRIES):
            server = random.choice(self._servers)
            if server.is_up:
                task = server.ask("POST", f"{ROOT}hand-back", headers, b"")
                done, _ = await asyncio.wait({task}, timeout=DO_SECONDS)
                if done and task.result()[0] < 500:
                    return
            await asyncio.sleep(AGAIN_SECONDS)

    def given(self, attempt_id: str, worker_id: str, rivals: Mapping[str, frozenset[str]]) -> None:
        """A worker got this, while these others could have taken it."""
        self._check(self._promises.given, attempt_id, worker_id, rivals)

    def withheld(self, attempt_id: str, worker_id: str, rivals: Mapping[str, frozenset[str]], now: int) -> None:
        """A worker that is free did not get this, and nothing changed meanwhile."""
        self._check(self._promises.withheld, attempt_id, worker_id, rivals, now)

    def wall(self) -> int:
        """The time of day."""
        return int(self._signer.now() * SECOND)

    def _check(self, check: Callable[..., None], *words: Any) -> None:
        try:
            check(*words)
        except Violation as violation:
            self._blame(violation)


async def _attempted(do: Callable[[Engine], Awaitable[T]], engine: Engine) -> T | Refused | None:
    """The answer; None when nobody knows whether it was done."""
    try:
        return await do(engine)
    except Refused as refused:
        return refused
    except (Unavailable, Conflict, asyncio.CancelledError):
        return None
