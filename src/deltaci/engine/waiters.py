"""Blocked claims: workers that wait for work, grouped by tenant and labels.

1. Workers with the same tenant and labels form one group and are served in order of arrival.
2. A commit says how many attempts became ready in which queue. That wakes as many waiters as there are new attempts.
3. A waiter that may not have an attempt passes its permit on, to the next of its group or to a waiter of another group.
4. A poll covers lost notifications: one waiter per group queries the store. A waiter that finds work wakes two more, in
   case there is a backlog.

So the cost of 10,000 waiting workers is that of their groups, not of 10,000 polls.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

import msgspec

from deltaci.core.worker import required_labels
from deltaci.engine.engine import Claim, ClaimedAttempt, ClaimResult, Engine
from deltaci.engine.event_loop import cancel_and_wait
from deltaci.storage.port import FREED_CAPACITY, CommitHints, ReadyCounts

MAX_POLLED_GROUPS: Final = 100  # Groups per poll; if there are more, they take turns.
MAX_HANDOVERS: Final = 100  # How often one permit is passed on; the next permit goes to other waiters.
WAKES_AFTER_SUCCESS: Final = 2

WaitForDisconnect = Callable[[], Coroutine[Any, Any, None]]  # Returns when the waiting worker has disconnected.
GroupKey = tuple[str, tuple[str, ...]]  # Tenant and labels.
EligibleWorkers = tuple[tuple[tuple[str, ...], ...], tuple[str, ...]]  # Labels and ids, in the same order.
FindEligibleWorkers = Callable[[str], EligibleWorkers]  # The eligible workers of a tenant; see `Claim`.
LeaseLimit = Callable[[str], Awaitable[int]]  # How many live leases a tenant may have; 0 means no limit.


class ClaimPermit(msgspec.Struct, frozen=True):
    """Permission for one waiter to query the store.

    With `wakes_more`, a successful claim wakes further waiters. `handovers` is how often the permit may still be passed
    on because there is work, but not for this worker.
    """

    wakes_more: bool = False
    handovers: int = 0


class WaiterGroup:
    """The waiting claims of workers with the same tenant and labels, in order of arrival."""

    def __init__(self, group_key: GroupKey) -> None:
        self.key = group_key
        self.labels = frozenset(group_key[1])
        self.waiting: OrderedDict[Waiter, None] = OrderedDict()
        self.query_count = 0  # Queries in flight.
        self.member_count = 0
        self._repeat_permits: list[ClaimPermit] = []

    def create_permit(self, *, wakes_more: bool = False) -> ClaimPermit:
        """Return a permit that can be handed over once per waiter of the group, at most MAX_HANDOVERS times."""
        return ClaimPermit(wakes_more, min(len(self.waiting), MAX_HANDOVERS))

    def wake(self, permit: ClaimPermit, max_waiters: int) -> int:
        """Give the permit to the first `max_waiters` waiters of the group, or all if there are fewer.

        Return how many were woken.
        """
        max_waiters = min(max_waiters, len(self.waiting))
        for _ in range(max_waiters):
            self.waiting.popitem(last=False)[0].wake(permit)
        return max_waiters

    def offer(self) -> None:
        """Let one waiter of the group query the store. If it finds work, it wakes more."""
        permit = self.create_permit(wakes_more=True)
        self.request_repeats(permit, 1)
        self.wake(permit, 1)

    def request_repeats(self, permit: ClaimPermit, max_queries: int) -> None:
        """Have up to `max_queries` of the group's queries in flight repeated with this permit, if they find nothing.

        They may have started before the new work was visible.
        """
        self._repeat_permits += [permit] * min(max_queries, self.query_count - len(self._repeat_permits))

    def take_repeat(self) -> ClaimPermit | None:
        """Remove and return the permit of one requested repeat, or None if no repeat is requested."""
        return self._repeat_permits.pop() if self._repeat_permits else None

    def trim_repeats(self) -> None:
        """Drop requested repeats until there are no more of them than queries in flight."""
        del self._repeat_permits[self.query_count :]


class Waiter:
    """One blocked claim. Each call of `wait` waits for one permit, until `leave` is called."""

    __slots__ = ("_group", "_has_left", "_permit_future")

    def __init__(self, group: WaiterGroup) -> None:
        self._group = group
        self._permit_future: asyncio.Future[ClaimPermit | None] | None = None
        self._has_left = False

    def wake(self, permit: ClaimPermit | None) -> None:
        """End the current wait with this permit, or with None because the waiter leaves."""
        assert self._permit_future is not None
        if not self._permit_future.done():
            self._permit_future.set_result(permit)

    def leave(self, *_: object) -> None:
        """End the current wait without a permit, and all later ones at once."""
        self._has_left = True
        if self._group.waiting.pop(self, self) is None:
            self.wake(None)

    def has_left(self) -> bool:
        """Return whether `leave` was called. A method, because that may happen during an `await`."""
        return self._has_left

    async def wait(self, *, is_first: bool = False) -> ClaimPermit | None:
        """Wait for a permit and return it; None after `leave`.

        With `is_first`, wait in front of the group, else at its end.
        """
        if self.has_left():
            return None
        self._permit_future = asyncio.get_running_loop().create_future()
        self._group.waiting[self] = None
        self._group.waiting.move_to_end(self, last=not is_first)
        try:
            permit = await self._permit_future
        except asyncio.CancelledError:
            if self._group.waiting.pop(self, self) is self and not self._permit_future.cancelled():
                self._hand_over(self._permit_future.result())
            raise
        if self.has_left():
            self._hand_over(permit)
            return None
        return permit

    def _hand_over(self, permit: ClaimPermit | None) -> None:
        """Give a permit that this waiter cannot use to the next waiter of its group."""
        if permit is not None:
            self._group.wake(permit, 1)


class ClaimWaiters:
    """All blocked claims of one process."""

    def __init__(
        self,
        engine: Engine,
        commit_hints: CommitHints,
        lease_limit: LeaseLimit | None = None,
        find_eligible_workers: FindEligibleWorkers | None = None,
    ) -> None:
        self._engine = engine
        self._commit_hints = commit_hints
        self._lease_limit = lease_limit
        self._find_eligible_workers = find_eligible_workers
        self._group_by_key: OrderedDict[GroupKey, WaiterGroup] = OrderedDict()
        self._poll_task: asyncio.Task[None] | None = None
        # Set by `stop`; completed when the last claim has returned.
        self._last_claim_future: asyncio.Future[None] | None = None
        self._is_closed = False

    def close(self) -> None:
        """End all present and later waits. Their claims return no attempts."""
        self._is_closed = True
        for group in self._group_by_key.values():
            for waiter in list(group.waiting):
                waiter.leave()

    async def stop(self) -> None:
        """End all waits as `close` does, and return after the last claim and the poll have ended."""
        self.close()
        if self._group_by_key:
            self._last_claim_future = asyncio.get_running_loop().create_future()
            await self._last_claim_future
        if self._poll_task is not None:
            await cancel_and_wait(self._poll_task)

    async def claim(
        self, claim: Claim, wait_seconds: float = 0.0, wait_for_disconnect: WaitForDisconnect | None = None
    ) -> list[ClaimedAttempt]:
        """Claim attempts, and wait up to `wait_seconds` for the first one.

        Return none if the time is over or the coroutine `wait_for_disconnect()` has returned.
        """
        if wait_seconds <= 0 or claim.only_ids:  # A claim for certain attempts never waits.
            return (await self._try_claim(claim)).claimed
        group = self._enter((claim.tenant, claim.labels))
        try:
            # If other claims of the group wait, there is no ready attempt for this one either, unless it is a repeat.
            must_wait = bool(group.waiting) and not claim.request_id
            claim_result = ClaimResult([]) if must_wait else await self._claim_with_permit(group, ClaimPermit(), claim)
            if claim_result.claimed or self._is_closed:
                return claim_result.claimed
            return await self._wait(group, claim, wait_seconds, wait_for_disconnect)
        finally:
            self._leave(group)

    async def _wait(
        self, group: WaiterGroup, claim: Claim, seconds: float, wait_for_disconnect: WaitForDisconnect | None
    ) -> list[ClaimedAttempt]:
        """Wait for permits and query the store with each, until a query finds work or the wait ends."""
        waiter = Waiter(group)
        timer = asyncio.get_running_loop().call_later(seconds, waiter.leave)
        disconnect_task = asyncio.create_task(wait_for_disconnect()) if wait_for_disconnect is not None else None
        if disconnect_task is not None:
            disconnect_task.add_done_callback(waiter.leave)
        if self._poll_task is None:
            self._poll_task = asyncio.create_task(self._poll(), name="claim-waiters")
        is_first = False
        try:
            while not self._is_closed and (permit := await waiter.wait(is_first=is_first)) is not None:
                claim_result = await self._claim_with_permit(group, permit, claim)
                if claim_result.claimed:
                    return claim_result.claimed
                # A query that found nothing does not cost the place in the group.
                is_first = not claim_result.has_skipped
            return []
        finally:
            timer.cancel()
            if disconnect_task is not None:
                disconnect_task.remove_done_callback(waiter.leave)
                disconnect_task.cancel()

    async def _claim_with_permit(self, group: WaiterGroup, permit: ClaimPermit, claim: Claim) -> ClaimResult:
        """Query the store, and repeat the query while that is requested and nothing is found. Return the last result.

        If work was skipped, hand the permit over; if work was found, wake more waiters.
        """
        while True:
            group.query_count += 1
            try:
                claim_result = await self._try_claim(claim)
            finally:
                group.query_count -= 1
            repeat_permit = None if claim_result.claimed else group.take_repeat()
            group.trim_repeats()
            if claim_result.has_skipped and permit.handovers:
                next_permit = ClaimPermit(permit.wakes_more, permit.handovers - 1)
                self._hand_over(group, next_permit, claim_result.skipped_queue_keys)
            elif claim_result.claimed and permit.wakes_more:
                group.wake(permit, WAKES_AFTER_SUCCESS)
            if repeat_permit is None:
                return claim_result
            permit = repeat_permit

    def _hand_over(self, group: WaiterGroup, permit: ClaimPermit, queue_keys: tuple[str, ...]) -> None:
        """Wake the next waiter of the group with the permit.

        If none waits, wake, for each skipped queue, a waiter of another group whose labels match it.
        """
        if group.wake(permit, 1):
            return
        for queue_key in queue_keys:
            required = required_labels(queue_key)
            for other_group in self._group_by_key.values():
                if other_group.waiting and other_group.key[0] == group.key[0] and required <= other_group.labels:
                    other_group.wake(permit, 1)
                    break

    async def _try_claim(self, claim: Claim) -> ClaimResult:
        """Query the store once for ready attempts.

        The tenant's limit and the other workers are determined anew, because they may have changed during the wait.
        """
        if self._lease_limit is not None and (limit := await self._lease_limit(claim.tenant)) != claim.tenant_limit:
            claim = msgspec.structs.replace(claim, tenant_limit=limit)
        if self._find_eligible_workers is not None:
            worker_labels, worker_ids = self._find_eligible_workers(claim.tenant)
            claim = msgspec.structs.replace(claim, other_worker_labels=worker_labels, other_worker_ids=worker_ids)
        return await self._engine.try_claim(claim)

    def _enter(self, group_key: GroupKey) -> WaiterGroup:
        """Return the group with this key, with one more member; create it if it does not exist."""
        group = self._group_by_key.get(group_key)
        if group is None:
            if not self._group_by_key:
                self._commit_hints.add_listener(self._on_commit)
            group = self._group_by_key[group_key] = WaiterGroup(group_key)
        group.member_count += 1
        return group

    def _leave(self, group: WaiterGroup) -> None:
        """Remove one member from the group, and the group itself after its last member.

        After the last group, complete a `stop` that waits for this.
        """
        group.member_count -= 1
        if not group.member_count:
            del self._group_by_key[group.key]
            if not self._group_by_key:
                self._commit_hints.remove_listener(self._on_commit)
                if self._last_claim_future is not None and not self._last_claim_future.done():
                    self._last_claim_future.set_result(None)

    def _on_commit(self, ready: ReadyCounts | None) -> None:
        """Wake waiters after a commit: for each tenant and queue, as many as attempts became ready.

        `None` means that it is unknown which became ready: one waiter of each group is woken.
        """
        if ready is None:
            self._offer_to_groups()
            return
        for (tenant, queue_key), count in ready.items():
            if queue_key == FREED_CAPACITY:
                self._offer_capacity(tenant)
                continue
            required = required_labels(queue_key)
            remaining_count = count
            woken_groups: list[WaiterGroup] = []
            for group in self._group_by_key.values():
                if group.key[0] == tenant and required <= group.labels:
                    permit = group.create_permit()
                    group.request_repeats(permit, count)
                    if remaining_count and group.waiting:
                        remaining_count -= group.wake(permit, remaining_count)
                        woken_groups.append(group)
            for group in woken_groups:  # At the next commit, other groups come first.
                self._group_by_key.move_to_end(group.key)

    def _offer_capacity(self, tenant: str) -> None:
        """Let one waiter of each of the tenant's groups query the store: the tenant may have more leases now."""
        for group in list(self._group_by_key.values()):
            if group.key[0] == tenant:
                group.offer()

    def _offer_to_groups(self) -> None:
        """Let one waiter of each group query the store.

        If there are more than MAX_POLLED_GROUPS, the groups take turns.
        """
        for group_key in list(self._group_by_key)[:MAX_POLLED_GROUPS]:
            self._group_by_key.move_to_end(group_key)
            self._group_by_key[group_key].offer()

    async def _poll(self) -> None:
        """Periodically let one waiter of each group query the store, as long as there are groups."""
        try:
            while self._group_by_key:
                await asyncio.sleep(self._commit_hints.poll_delay())
                self._offer_to_groups()
        finally:
            self._poll_task = None
