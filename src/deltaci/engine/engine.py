"""The write path's front: it takes commands, gives each to the lane that should decide it, and returns the answers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

from deltaci.core.decide import Decision
from deltaci.core.errors import Refused
from deltaci.core.machine import Command
from deltaci.engine.clock import MonotonicClock
from deltaci.engine.requests import (
    MAX_BATCH,
    Claim,
    ClaimedAttempt,
    ClaimResult,
    DeriveLeaseSecret,
    Overloaded,
    PendingRequests,
    Request,
    Response,
    Tick,
)
from deltaci.engine.shard import Shard
from deltaci.engine.unreadable_records import UnreadableRecordReporter
from deltaci.storage.port import Store, Unavailable

__all__ = ["MAX_BATCH", "Claim", "ClaimResult", "ClaimedAttempt", "DeriveLeaseSecret", "Engine", "Overloaded", "Tick"]


class Engine:
    """Commands in, decisions out, everything durable. Start it before use, stop it after.

    Lease ids are drawn, unless there is somebody who mints them so that they can be made again.
    """

    def __init__(
        self, store: Store, mint: DeriveLeaseSecret | None = None, clock: MonotonicClock | None = None
    ) -> None:
        self.clock = clock or MonotonicClock()  # One for all lanes: none may lag behind what another has seen.
        reports, limited = UnreadableRecordReporter(), set[str]()
        self._lanes = [
            Shard(store, self.clock, reports, mint, limited) for _ in range(store.max_concurrent_transactions)
        ]
        self._tasks: list[asyncio.Task[None]] = []
        self._next = 0

    async def start(self) -> None:
        """Begin to take commands."""
        self._tasks = [asyncio.create_task(lane.run(), name="engine") for lane in self._lanes]

    async def stop(self) -> None:
        """Stop; whoever still waits is told so."""
        for lane in self._lanes:
            lane.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for lane in self._lanes:
            lane.dismiss()
        self._tasks = []

    async def do(self, command: Command) -> Decision:
        """Apply one command; returns when it is durable. Raises `Refused`."""
        answer = (await self._submit([command], self._lane_of(command.id)))[0]
        if isinstance(answer, Refused):
            raise answer
        assert isinstance(answer, Decision)
        return answer

    async def do_all(self, commands: Iterable[Command]) -> list[Decision | Refused]:
        """Apply many commands; each succeeds or is refused on its own. Answered in the order given."""
        wanted = list(commands)
        found: list[Any] = [None] * len(wanted)
        parts: dict[Shard, list[int]] = {}
        for place, command in enumerate(wanted):
            parts.setdefault(self._lane_of(command.id), []).append(place)
        waiting = []
        for lane, places in parts.items():
            for start in range(0, len(places), MAX_BATCH):
                some = places[start : start + MAX_BATCH]
                waiting.append((some, self._submit([wanted[place] for place in some], lane)))
        for some, answer in waiting:
            for place, own in zip(some, await answer, strict=True):
                found[place] = own
        return found

    async def claim(self, claim: Claim) -> list[ClaimedAttempt]:
        """Hand out attempts that wait."""
        return (await self.try_claim(claim)).claimed

    async def try_claim(self, claim: Claim) -> ClaimResult:
        """The same, and whether there was something that this worker may not have."""
        answer = (await self._submit([claim], self._any_lane()))[0]
        assert isinstance(answer, ClaimResult)
        return answer

    async def tick(self, limit: int = MAX_BATCH) -> int:
        """Carry out what is due; how much that was."""
        answer = (await self._submit([Tick(limit)], self._lanes[0]))[0]
        assert isinstance(answer, int)
        return answer

    def _submit(self, items: Sequence[Request], lane: Shard) -> asyncio.Future[list[Response]]:
        if not self._tasks:
            raise Unavailable("the engine does not run; start it first")
        answer: asyncio.Future[list[Response]] = asyncio.get_running_loop().create_future()
        lane.put(PendingRequests(items, answer))
        return answer

    def _lane_of(self, id: str) -> Shard:
        """Whoever keeps it; else everything about one run goes one way, so that lanes seldom meet."""
        for lane in self._lanes:
            if lane.keeps(id):
                return lane
        return self._lanes[hash(id.partition("/")[0]) % len(self._lanes)]

    def _any_lane(self) -> Shard:
        self._next += 1
        return self._lanes[self._next % len(self._lanes)]
