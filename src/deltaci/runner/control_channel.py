"""Hears at once what the server wants of this runner: one line that is kept open while there are leases.

Without it a cancel is heard with the next heartbeat. A server that has no such line is no trouble: then it is so.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Final

from deltaci.core.backoff import Backoff
from deltaci.core.errors import Refused
from deltaci.protocol.messages import CancelRequested, ControlRequest
from deltaci.runner.client import RunnerClient, Unreachable

WAIT_SECONDS: Final = 30.0
RETRY_SECONDS: Final = 1.0
MAX_RETRY_SECONDS: Final = 5.0
MAX_NAMED: Final = 1000  # What a message can name; the others are told as soon as something changes for them.

LOGGER: Final = logging.getLogger(__name__)


class ControlChannel:
    """Tells `hear` of every cancel, once for each lease, whichever way it came."""

    def __init__(
        self,
        client: RunnerClient,
        runner_id: str,
        held: Callable[[], Collection[str]],
        hear: Callable[[CancelRequested], None],
    ) -> None:
        self._client = client
        self.runner_id = runner_id
        self._held = held
        self._hear = hear
        self._told: set[str] = set()
        self._is_needed = asyncio.Event()
        self._is_relieved = False
        # It waits nearly always, and must not take a thread from those who work.
        self._thread = ThreadPoolExecutor(1, "ear")

    def leases_changed(self) -> None:
        """There is one more, or one less."""
        held = self._held()
        self._told.intersection_update(held)
        if held and not self._is_relieved:
            self._is_needed.set()
        else:
            self._is_needed.clear()

    def relieve(self, is_relieved: bool) -> None:
        """Whether cancels come another way. A line that is open then stays until its time is over: no gap."""
        self._is_relieved = is_relieved
        self.leases_changed()

    def tell(self, message: CancelRequested) -> None:
        """Somebody says that this is wanted. Only what is about a lease that is held counts, and only once."""
        if message.lease_id in self._held() and message.lease_id not in self._told:
            self._told.add(message.lease_id)
            self._hear(message)

    async def run(self) -> None:
        """Listen until cancelled, or until the server says that it has no such line."""
        loop = asyncio.get_running_loop()
        backoff = Backoff(RETRY_SECONDS, MAX_RETRY_SECONDS)
        try:
            while True:
                await self._is_needed.wait()
                began = loop.time()
                try:
                    found = await loop.run_in_executor(self._thread, self._client.wait_for_cancels, self._asked())
                    backoff.reset()
                    for each in found:
                        self.tell(each)
                    if found or loop.time() - began > RETRY_SECONDS:
                        continue
                except Unreachable:
                    pass
                except Refused as refused:
                    if refused.code == "not_found":
                        LOGGER.info("the server tells of cancels only by heartbeats")
                        return
                await asyncio.sleep(backoff.next(random.random()))
        finally:
            self.stop()

    def _asked(self) -> ControlRequest:
        """What was told already is not asked for again: it would be answered at once, over and over."""
        named = [lease_id for lease_id in self._held() if lease_id not in self._told]
        return ControlRequest(runner_id=self.runner_id, lease_ids=named[:MAX_NAMED], wait_seconds=WAIT_SECONDS)

    def stop(self) -> None:
        """Hang up."""
        self._client.abort()
        with suppress(RuntimeError):  # It was stopped before.
            asyncio.get_running_loop().run_in_executor(self._thread, self._client.close)
        self._thread.shutdown(wait=False)
