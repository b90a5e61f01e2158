"""Notifies subscribers within one process that something was committed.

A hint may be lost or come without a reason. Every subscriber polls as well, so a hint only saves time.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Final

POLL_SECONDS: Final = 0.5
# In place of a queue key: the tenant may have capacity for more leases. No queue key is ",", as no label has a comma.
FREED_CAPACITY: Final = ","

# How many attempts became ready with a commit: (tenant, queue key) -> count.
ReadyCounts = Mapping[tuple[str, str], int]


class HintSubscription:
    """One subscriber's side of the hints. A hint that comes while it does not wait ends its next wait at once."""

    def __init__(self, poll_seconds: float | None = None) -> None:
        self._is_notified = asyncio.Event()
        self._poll_seconds = poll_seconds

    def notify(self) -> None:
        """End the current wait or, if there is none, the next one."""
        self._is_notified.set()

    async def wait(self, max_seconds: float = math.inf) -> None:
        """Wait until there is a hint, the poll interval is over, or `max_seconds` have passed."""
        with suppress(TimeoutError):
            async with asyncio.timeout(min(max_seconds, self._poll_seconds or POLL_SECONDS)):
                await self._is_notified.wait()
        self._is_notified.clear()


class CommitHints:
    """Notifies other parts of this process of commits.

    Subscribers are notified after every commit, listeners only if attempts became ready, or may have. The order is that
    of subscription, so that simulated runs are repeatable.
    """

    def __init__(self, poll_seconds: float | None = None) -> None:
        self._poll_seconds = poll_seconds
        self._subscriptions: dict[HintSubscription, None] = {}
        self._listeners: list[Callable[[ReadyCounts | None], None]] = []

    @contextmanager
    def subscribe(self) -> Iterator[HintSubscription]:
        """Yield a subscription that receives hints while the context is open."""
        subscription = HintSubscription(self._poll_seconds)
        self._subscriptions[subscription] = None
        try:
            yield subscription
        finally:
            del self._subscriptions[subscription]

    def poll_delay(self) -> float:
        """Return the seconds until the next poll, with jitter so that servers do not query at the same moment."""
        return (self._poll_seconds or POLL_SECONDS) * random.uniform(0.8, 1.2)

    def add_listener(self, on_ready: Callable[[ReadyCounts | None], None]) -> None:
        """Call `on_ready` after each commit that made attempts ready, with their counts; None if these are unknown."""
        self._listeners.append(on_ready)

    def remove_listener(self, on_ready: Callable[[ReadyCounts | None], None]) -> None:
        """Stop calling `on_ready`."""
        self._listeners.remove(on_ready)

    def publish(self, ready: ReadyCounts | None = None) -> None:
        """Notify all subscribers and, unless `ready` is empty, the listeners.

        None means that the counts are unknown.
        """
        for subscription in self._subscriptions:
            subscription.notify()
        if ready is None or ready:
            for on_ready in tuple(self._listeners):
                on_ready(ready)
