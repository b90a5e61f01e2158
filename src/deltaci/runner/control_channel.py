"""The control channel: a long poll on which the server tells the runner of cancels at once.

Without it, a cancel arrives with the response to the next heartbeat. The channel is open only while the runner holds
leases, and not while cancels arrive over NATS. A server without this endpoint is supported: the channel then closes.
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
from deltaci.core.errors import Refused, Unreachable
from deltaci.protocol.messages import CancelRequested, ControlRequest
from deltaci.runner.client import RunnerClient

WAIT_SECONDS: Final = 30.0
RETRY_SECONDS: Final = 1.0
MAX_RETRY_SECONDS: Final = 5.0
MAX_LEASES: Final = 1000  # The most that one request may name; the next request names others.

LOGGER: Final = logging.getLogger(__name__)


class ControlChannel:
    """Polls for cancels and calls `on_cancel` once for each canceled lease.

    Cancels that arrive over NATS are passed to `deliver` and take the same way.
    """

    def __init__(
        self,
        client: RunnerClient,
        runner_id: str,
        lease_ids: Callable[[], Collection[str]],
        on_cancel: Callable[[CancelRequested], None],
    ) -> None:
        self._client = client
        self.runner_id = runner_id
        self._lease_ids = lease_ids
        self._on_cancel = on_cancel
        self._delivered_lease_ids: set[str] = set()
        self._is_needed = asyncio.Event()
        self._is_replaced = False
        # A thread of its own: it nearly always waits, and must not take one from the jobs.
        self._executor = ThreadPoolExecutor(1, "control-channel")

    def leases_changed(self) -> None:
        """Open the channel if the runner holds leases, otherwise close it. Call it after each change of the leases."""
        lease_ids = self._lease_ids()
        self._delivered_lease_ids.intersection_update(lease_ids)
        if lease_ids and not self._is_replaced:
            self._is_needed.set()
        else:
            self._is_needed.clear()

    def set_replaced(self, is_replaced: bool) -> None:
        """Set whether cancels arrive over NATS, so that the channel is not needed.

        A request that is open continues until its time ends, so that no cancel is missed.
        """
        self._is_replaced = is_replaced
        self.leases_changed()

    def deliver(self, cancel_request: CancelRequested) -> None:
        """Call `on_cancel` unless the lease is unknown or its cancel was delivered before."""
        if cancel_request.lease_id in self._lease_ids() and cancel_request.lease_id not in self._delivered_lease_ids:
            self._delivered_lease_ids.add(cancel_request.lease_id)
            self._on_cancel(cancel_request)

    async def run(self) -> None:
        """While needed, poll the server, until cancelled or until it answers that it has no control channel."""
        loop = asyncio.get_running_loop()
        backoff = Backoff(RETRY_SECONDS, MAX_RETRY_SECONDS)
        try:
            while True:
                await self._is_needed.wait()
                poll_started_at = loop.time()
                try:
                    cancel_requests = await loop.run_in_executor(
                        self._executor, self._client.wait_for_cancels, self._request()
                    )
                    backoff.reset()
                    for cancel_request in cancel_requests:
                        self.deliver(cancel_request)
                    if cancel_requests or loop.time() - poll_started_at > RETRY_SECONDS:
                        continue
                except Unreachable:
                    pass
                except Refused as refused:
                    if refused.code == "not_found":
                        LOGGER.info("the server has no control channel; cancels arrive with heartbeats")
                        return
                await asyncio.sleep(backoff.next(random.random()))
        finally:
            self.stop()

    def _request(self) -> ControlRequest:
        """Return a request for the leases without a delivered cancel.

        The server would answer for the others at once, again and again.
        """
        lease_ids = [lease_id for lease_id in self._lease_ids() if lease_id not in self._delivered_lease_ids]
        return ControlRequest(runner_id=self.runner_id, lease_ids=lease_ids[:MAX_LEASES], wait_seconds=WAIT_SECONDS)

    def stop(self) -> None:
        """Abort the open request, and close the connection in the channel's thread. Call it from the event loop."""
        self._client.abort()
        with suppress(RuntimeError):  # The thread has already ended.
            asyncio.get_running_loop().run_in_executor(self._executor, self._client.close)
        self._executor.shutdown(wait=False)
