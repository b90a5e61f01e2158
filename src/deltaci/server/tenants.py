"""Quotas of tenants and fair scheduling of their requests.

The operator sets the quotas. Request rates are counted by each server on its own; stored bytes, runs and leases are
read from the store.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

from deltaci.api.schemas.inputs import Quotas
from deltaci.api.schemas.records import Usage
from deltaci.core.errors import Refused
from deltaci.core.listing import runs_with_status
from deltaci.core.status.steps import PENDING
from deltaci.engine.engine import Engine
from deltaci.engine.requests import Overloaded
from deltaci.engine.resources import Resources
from deltaci.server.rest.http.cache import TtlCache
from deltaci.storage.blobs import keys
from deltaci.storage.blobs.store import BlobStore
from deltaci.storage.port import CountLiveLeases, Store, Transaction

QUOTAS: Final = "quotas"  # The kind of resource, and its name.
CACHE_SECONDS: Final = 2.0
MEASURE_SECONDS: Final = 30.0
BURST_SECONDS: Final = 10
MAX_RUNNING: Final = 64
MAX_WAITING: Final = 10_000
MAX_TENANTS: Final = 10_000
MAX_COUNTED: Final = 1_000_000


class RateLimited(Exception):
    """The tenant exceeded its request rate. It may send the next request after `seconds`."""

    def __init__(self, retry_seconds: float) -> None:
        super().__init__(f"the tenant sends too many requests; retry in {retry_seconds:.1f} s")
        self.seconds = retry_seconds


class TokenBucket:
    """A token bucket for `tokens_per_second` requests per second. It holds at most the tokens of `BURST_SECONDS`."""

    __slots__ = ("_refilled_at", "_tokens")

    def __init__(self, tokens_per_second: int, now: float) -> None:
        self._tokens = float(tokens_per_second * BURST_SECONDS)
        self._refilled_at = now

    def take(self, tokens_per_second: int, now: float) -> None:
        """Take one token. Raise `RateLimited` if there is none.

        Before, add `tokens_per_second` tokens for each second since the last call, up to BURST_SECONDS' worth.
        """
        self._tokens = min(
            float(tokens_per_second * BURST_SECONDS), self._tokens + (now - self._refilled_at) * tokens_per_second
        )
        self._refilled_at = now
        if self._tokens < 1:
            raise RateLimited((1 - self._tokens) / tokens_per_second)
        self._tokens -= 1


class RequestSlots:
    """Limits the number of concurrent requests.

    Waiting requests are served round-robin by tenant, so that a tenant with many requests does not delay the others.
    """

    def __init__(self, max_running: int = MAX_RUNNING, max_waiting: int = MAX_WAITING) -> None:
        self._free_slot_count = max_running
        self._max_waiting = max_waiting
        self._waiting_futures_by_tenant: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        self._waiting_count = 0

    @asynccontextmanager
    async def slot(self, tenant: str) -> AsyncIterator[None]:
        """Wait for a free slot and hold it while the context is open. Raises `Overloaded` if too many requests wait."""
        if self._free_slot_count > 0:
            self._free_slot_count -= 1
        else:
            await self._wait(tenant)
        try:
            yield
        finally:
            self._release()

    async def _wait(self, tenant: str) -> None:
        if self._waiting_count >= self._max_waiting:
            raise Overloaded(f"{self._max_waiting} requests are waiting already")
        slot_future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting_futures_by_tenant.setdefault(tenant, deque()).append(slot_future)
        self._waiting_count += 1
        try:
            await slot_future
        except asyncio.CancelledError:
            if slot_future.done() and not slot_future.cancelled():
                self._release()  # The slot was assigned to a request that was cancelled meanwhile.
            raise

    def _release(self) -> None:
        while self._waiting_futures_by_tenant:
            tenant, waiting_futures = self._waiting_futures_by_tenant.popitem(last=False)
            slot_future = waiting_futures.popleft()
            self._waiting_count -= 1
            if waiting_futures:
                self._waiting_futures_by_tenant[tenant] = (
                    waiting_futures  # Added at the end, so that the other tenants are served first.
                )
            if not slot_future.done():
                slot_future.set_result(None)
                return
        self._free_slot_count += 1


class Tenants:
    """The quotas of all tenants: reads and sets them, measures their use, and refuses requests that exceed them."""

    def __init__(self, engine: Engine, store: Store, blobs: BlobStore, clock: Callable[[], float]) -> None:
        self._store = store
        self._quotas = Resources(engine, store, QUOTAS, Quotas)
        self._blobs = blobs
        self._clock = clock
        self._quotas_cache: TtlCache[str, Quotas] = TtlCache(CACHE_SECONDS, MAX_TENANTS, clock)
        self._buckets: dict[str, TokenBucket] = {}
        self._stored_bytes_cache: TtlCache[str, int] = TtlCache(MEASURE_SECONDS, MAX_TENANTS, clock)
        self.request_slots = RequestSlots()

    async def quotas(self, tenant: str) -> Quotas:
        """Return the tenant's quotas, cached for two seconds."""
        if (cached := self._quotas_cache.get(tenant)) is not None:
            return cached
        return self._quotas_cache.put(tenant, await self._quotas.find(tenant, QUOTAS) or Quotas())

    async def set_quotas(self, tenant: str, quotas: Quotas, *, actor: str) -> None:
        """Store the quotas. Other servers use them after at most two seconds."""
        await self._quotas.put(tenant, QUOTAS, quotas, actor=actor)
        self._quotas_cache.discard(tenant)

    async def check_rate(self, tenant: str) -> None:
        """Count one request of the tenant. Raises `RateLimited` if it sends too many."""
        rate = (await self.quotas(tenant)).requests_per_second
        if not rate:
            return
        now = self._clock()
        bucket = self._buckets.get(tenant)
        if bucket is None:
            if len(self._buckets) >= MAX_TENANTS:
                self._buckets.clear()
            bucket = self._buckets[tenant] = TokenBucket(rate, now)
        bucket.take(rate, now)

    async def running_limit(self, tenant: str) -> int:
        """Return how many jobs the tenant's workers may run at once, 0 for no limit."""
        return (await self.quotas(tenant)).running_jobs

    async def check_queue(self, tenant: str) -> None:
        """Raise `Refused` if the tenant has as many pending runs as its quota allows."""
        max_queued_runs = (await self.quotas(tenant)).queued_runs
        if (
            max_queued_runs
            and await self._store.count(tenant, runs_with_status(PENDING), max_queued_runs) >= max_queued_runs
        ):
            raise Refused(
                "over_quota", f"{max_queued_runs} runs of this tenant are waiting; its quota is {max_queued_runs}"
            )

    async def remaining_bytes(self, tenant: str) -> int | None:
        """Return how many more bytes the tenant may store, or None for no limit. The measurement is cached."""
        max_bytes = (await self.quotas(tenant)).storage_bytes
        return max(0, max_bytes - await self.stored_bytes(tenant)) if max_bytes else None

    async def stored_bytes(self, tenant: str) -> int:
        """Return how many bytes of artifacts and caches the tenant has stored, measured at most every half minute."""
        if (cached := self._stored_bytes_cache.get(tenant)) is not None:
            return cached
        return self._stored_bytes_cache.put(tenant, await asyncio.to_thread(keys.stored_bytes, self._blobs, tenant))

    def add_stored_bytes(self, tenant: str, uploaded_bytes: int) -> None:
        """Add the bytes of an upload to the cached measurement, if there is one."""
        self._stored_bytes_cache.update(tenant, lambda measured: measured + uploaded_bytes)

    async def running_jobs(self, tenant: str) -> int:
        """Return how many jobs the tenant's workers are running."""
        return await self._store.transact(lambda: _count_leases(tenant))

    async def usage(self, tenant: str) -> Usage:
        """Return how many jobs the tenant runs, how many of its runs are pending, and how many bytes it stores."""
        running_job_count = await self.running_jobs(tenant)
        queued_run_count = await self._store.count(tenant, runs_with_status(PENDING), MAX_COUNTED)
        return Usage(
            running_jobs=running_job_count, queued_runs=queued_run_count, storage_bytes=await self.stored_bytes(tenant)
        )


def _count_leases(tenant: str) -> Transaction[int]:
    lease_count: int = yield CountLiveLeases(tenant, MAX_COUNTED)
    return lease_count
