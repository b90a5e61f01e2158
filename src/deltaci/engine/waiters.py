"""Who waits for work stands in line: nobody looks for himself alone, and each piece of work wakes one.

Those who could take the same work, because they have the same tenant and the same labels, stand in one line, first
come, first served. New work wakes as many as there are pieces of it, not everybody. Behind that is a poll, for whatever
nobody told: one look for a whole line, and whoever finds something lets two more look. So ten thousand who wait cost
what one of them costs.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

import msgspec

from deltaci.core.worker import required_labels
from deltaci.engine.engine import Claim, ClaimedAttempt, ClaimResult, Engine
from deltaci.storage.port import FREED_CAPACITY, CommitHints, ReadyCounts

MAX_POLLED_GROUPS: Final = 100  # So many lines at once; where there are more, they take turns.
MAX_HANDOVERS: Final = 100  # What nobody of them may have is offered to so many at once; the next time to others.
WAKES_AFTER_SUCCESS: Final = 2

Disconnected = Callable[[], Coroutine[Any, Any, None]]
OtherWorkers = tuple[tuple[tuple[str, ...], ...], tuple[str, ...]]  # Labels, and whose they are, in the same order.
FindOtherWorkers = Callable[[str], OtherWorkers]  # Of a tenant: who may be given work; see `Claim`.
LeaseLimit = Callable[[str], Awaitable[int]]  # How many live leases a tenant may have; 0: as many as it likes.


class ClaimPermit(msgspec.Struct, frozen=True):
    """Leave to look. One that spreads lets more look when something was found.

    `passes` is how often it goes to the next one because there is something, but not for this worker.
    """

    spreads: bool = False
    passes: int = 0


class WaiterGroup:
    """Those who could take the same, the one who came first in front."""

    def __init__(self, name: tuple[str, tuple[str, ...]]) -> None:
        self.name = name
        self.labels = frozenset(name[1])
        self.waiting: OrderedDict[Waiter, None] = OrderedDict()
        self.looking = 0
        self.members = 0
        self._kept: list[ClaimPermit] = []

    def turn(self, *, spreads: bool = False) -> ClaimPermit:
        """One that reaches all who wait, if there are not too many."""
        return ClaimPermit(spreads, min(len(self.waiting), MAX_HANDOVERS))

    def wake(self, turn: ClaimPermit, count: int) -> int:
        """Let so many look that wait; how many that were."""
        count = min(count, len(self.waiting))
        for _ in range(count):
            self.waiting.popitem(last=False)[0].call(turn)
        return count

    def offer(self) -> None:
        """There may be something: one looks, and more when something is found."""
        turn = self.turn(spreads=True)
        self.keep(turn, 1)
        self.wake(turn, 1)

    def keep(self, turn: ClaimPermit, count: int) -> None:
        """Who looks right now may have been too early: if nothing is found, look once more."""
        self._kept += [turn] * min(count, self.looking - len(self._kept))

    def take(self) -> ClaimPermit | None:
        """A turn that was kept for one who looked."""
        return self._kept.pop() if self._kept else None

    def trim(self) -> None:
        """Nothing is kept for those who found something."""
        del self._kept[self.looking :]


class Waiter:
    """One's place in the line, again and again until it leaves."""

    __slots__ = ("_has_left", "_line", "_ticket")

    def __init__(self, line: WaiterGroup) -> None:
        self._line = line
        self._ticket: asyncio.Future[ClaimPermit | None] | None = None
        self._has_left = False

    def call(self, turn: ClaimPermit | None) -> None:
        assert self._ticket is not None
        if not self._ticket.done():
            self._ticket.set_result(turn)

    def leave(self, *_: object) -> None:
        """Wait no longer."""
        self._has_left = True
        if self._line.waiting.pop(self, self) is None:
            self.call(None)

    def _is_gone(self) -> bool:
        return self._has_left

    async def turn(self, *, is_first: bool = False) -> ClaimPermit | None:
        """Wait, at the end of the line or as its first, until it is one's turn; None: it has left."""
        if self._is_gone():
            return None
        self._ticket = asyncio.get_running_loop().create_future()
        self._line.waiting[self] = None
        self._line.waiting.move_to_end(self, last=not is_first)
        try:
            turn = await self._ticket
        except asyncio.CancelledError:
            if self._line.waiting.pop(self, self) is self and not self._ticket.cancelled():
                self._pass_on(self._ticket.result())
            raise
        if self._is_gone():
            self._pass_on(turn)
            return None
        return turn

    def _pass_on(self, turn: ClaimPermit | None) -> None:
        """A turn that one cannot use is the next one's."""
        if turn is not None:
            self._line.wake(turn, 1)


class ClaimWaiters:
    """All the lines of one process."""

    def __init__(
        self,
        engine: Engine,
        wakers: CommitHints,
        limit: LeaseLimit | None = None,
        rivals: FindOtherWorkers | None = None,
    ) -> None:
        self._engine = engine
        self._wakers = wakers
        self._limit = limit
        self._rivals = rivals
        self._lines: OrderedDict[tuple[str, tuple[str, ...]], WaiterGroup] = OrderedDict()
        self._polling: asyncio.Task[None] | None = None
        self._is_closed = False

    def close(self) -> None:
        """Whoever waits, or comes to wait, is told that there is nothing."""
        self._is_closed = True
        for line in self._lines.values():
            for place in list(line.waiting):
                place.leave()

    async def claim(
        self, claim: Claim, wait_seconds: float = 0.0, gone: Disconnected | None = None
    ) -> list[ClaimedAttempt]:
        """Claim now, or wait for the first one; nothing is claimed for one that is `gone` while it waits."""
        if wait_seconds <= 0 or claim.only_ids:  # Whoever was told of certain attempts gets these, or none.
            return (await self._find(claim)).claimed
        line = self._enter((claim.tenant, claim.labels))
        try:
            # Where somebody waits there is nothing, or it is given out already. Else nobody knows.
            found = ClaimResult([]) if line.waiting else await self._look(line, ClaimPermit(), claim)
            if found.claimed or self._is_closed:
                return found.claimed
            return await self._wait(line, claim, wait_seconds, gone)
        finally:
            self._leave(line)

    async def _wait(
        self, line: WaiterGroup, claim: Claim, seconds: float, gone: Disconnected | None
    ) -> list[ClaimedAttempt]:
        place = Waiter(line)
        timer = asyncio.get_running_loop().call_later(seconds, place.leave)
        leaving = asyncio.create_task(gone()) if gone is not None else None
        if leaving is not None:
            leaving.add_done_callback(place.leave)
        if self._polling is None:
            self._polling = asyncio.create_task(self._poll(), name="line")
        is_first = False
        try:
            while not self._is_closed and (turn := await place.turn(is_first=is_first)) is not None:
                found = await self._look(line, turn, claim)
                if found.claimed:
                    return found.claimed
                is_first = not found.has_skipped  # Who looked in vain has lost nothing by it.
            return []
        finally:
            timer.cancel()
            if leaving is not None:
                leaving.remove_done_callback(place.leave)
                leaving.cancel()

    async def _look(self, line: WaiterGroup, turn: ClaimPermit, claim: Claim) -> ClaimResult:
        """Look, as often as there is reason to, and let others look."""
        while True:
            line.looking += 1
            try:
                found = await self._find(claim)
            finally:
                line.looking -= 1
            kept = None if found.claimed else line.take()
            line.trim()
            if found.has_skipped and turn.passes:
                self._pass_on(line, ClaimPermit(turn.spreads, turn.passes - 1), found.skipped_queue_keys)
            elif found.claimed and turn.spreads:
                line.wake(turn, WAKES_AFTER_SUCCESS)
            if kept is None:
                return found
            turn = kept

    def _pass_on(self, line: WaiterGroup, turn: ClaimPermit, keys: tuple[str, ...]) -> None:
        """The next one looks; where nobody else waits who could take the same, one who could take this."""
        if line.wake(turn, 1):
            return
        for key in keys:
            wanted = required_labels(key)
            for other in self._lines.values():
                if other.waiting and other.name[0] == line.name[0] and wanted <= other.labels:
                    other.wake(turn, 1)
                    break

    async def _find(self, claim: Claim) -> ClaimResult:
        """One look, by what is so at this moment: who waits for long must not go by what was once.

        That is what the tenant may have, and who else there is to take what this one lost.
        """
        if self._limit is not None and (limit := await self._limit(claim.tenant)) != claim.tenant_limit:
            claim = msgspec.structs.replace(claim, tenant_limit=limit)
        if self._rivals is not None:
            labels, ids = self._rivals(claim.tenant)
            claim = msgspec.structs.replace(claim, other_worker_labels=labels, other_worker_ids=ids)
        return await self._engine.try_claim(claim)

    def _enter(self, name: tuple[str, tuple[str, ...]]) -> WaiterGroup:
        line = self._lines.get(name)
        if line is None:
            if not self._lines:
                self._wakers.add_listener(self._hear)
            line = self._lines[name] = WaiterGroup(name)
        line.members += 1
        return line

    def _leave(self, line: WaiterGroup) -> None:
        line.members -= 1
        if not line.members:
            del self._lines[line.name]
            if not self._lines:
                self._wakers.remove_listener(self._hear)

    def _hear(self, ready: ReadyCounts | None) -> None:
        """Something is ready: so many of that tenant in that queue. None: there may be anything."""
        if ready is None:
            self._look_around()
            return
        for (tenant, key), count in ready.items():
            if key == FREED_CAPACITY:
                self._offer_room(tenant)
                continue
            wanted = required_labels(key)
            left = count
            woken: list[WaiterGroup] = []
            for line in self._lines.values():
                if line.name[0] == tenant and wanted <= line.labels:
                    turn = line.turn()
                    line.keep(turn, count)
                    if left and line.waiting:
                        left -= line.wake(turn, left)
                        woken.append(line)
            for line in woken:  # The next time others come first.
                self._lines.move_to_end(line.name)

    def _offer_room(self, tenant: str) -> None:
        """The tenant may have more leases now: one of each of its lines looks."""
        for line in list(self._lines.values()):
            if line.name[0] == tenant:
                line.offer()

    def _look_around(self) -> None:
        """One of each line looks, of so many lines."""
        for name in list(self._lines)[:MAX_POLLED_GROUPS]:
            self._lines.move_to_end(name)
            self._lines[name].offer()

    async def _poll(self) -> None:
        """For as long as anybody waits."""
        try:
            while self._lines:
                await asyncio.sleep(self._wakers.poll_delay())
                self._look_around()
        finally:
            self._polling = None
