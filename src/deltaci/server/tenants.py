"""What each tenant may use, and whose turn it is when all want something at once.

Quotas are the operator's to set. Of what is counted per request each server counts its own; of what is kept, or held
by workers, the store knows the truth.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

import msgspec

from deltaci.api.schemas.inputs import Quotas
from deltaci.api.schemas.records import Usage
from deltaci.core.errors import Refused
from deltaci.core.listing import runs_with_status
from deltaci.core.status.steps import PENDING
from deltaci.engine.requests import Overloaded
from deltaci.server.rest.http.cache import TtlCache
from deltaci.storage.blobs import keys
from deltaci.storage.blobs.store import BlobStore
from deltaci.storage.port import Conflict, CountLiveLeases, Document, Store, Transaction

QUOTAS: Final = "quotas"  # The kind of document, and its name.
REMEMBERED_SECONDS: Final = 2.0
MEASURED_SECONDS: Final = 30.0
BURST_SECONDS: Final = 10
AT_ONCE: Final = 64
MAX_WAITING: Final = 10_000
MAX_TENANTS: Final = 10_000
MAX_COUNTED: Final = 1_000_000

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Quotas).decode


class TooOften(Exception):
    """The tenant asks more often than it may; after so many seconds it may again."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"more requests than the tenant may send; again in {seconds:.1f} s")
        self.seconds = seconds


class Bucket:
    """So many requests a second, and ten seconds' worth at once."""

    __slots__ = ("_at", "_left")

    def __init__(self, rate: int, now: float) -> None:
        self._left = float(rate * BURST_SECONDS)
        self._at = now

    def take(self, rate: int, now: float) -> None:
        """One request more; `TooOften` if there were too many."""
        self._left = min(float(rate * BURST_SECONDS), self._left + (now - self._at) * rate)
        self._at = now
        if self._left < 1:
            raise TooOften((1 - self._left) / rate)
        self._left -= 1


class Turns:
    """So many requests are under way at once. Those that wait take turns by tenant, so nobody waits for a crowd."""

    def __init__(self, at_once: int = AT_ONCE, max_waiting: int = MAX_WAITING) -> None:
        self._free = at_once
        self._max_waiting = max_waiting
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        self._count = 0

    @asynccontextmanager
    async def turn(self, tenant: str) -> AsyncIterator[None]:
        """Wait for it, and have it."""
        if self._free > 0:
            self._free -= 1
        else:
            await self._wait(tenant)
        try:
            yield
        finally:
            self._pass_on()

    async def _wait(self, tenant: str) -> None:
        if self._count >= self._max_waiting:
            raise Overloaded(f"{self._max_waiting} requests wait already")
        mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(tenant, deque()).append(mine)
        self._count += 1
        try:
            await mine
        except asyncio.CancelledError:
            if mine.done() and not mine.cancelled():
                self._pass_on()  # It was given to one who had just left.
            raise

    def _pass_on(self) -> None:
        while self._waiting:
            tenant, line = self._waiting.popitem(last=False)
            given = line.popleft()
            self._count -= 1
            if line:
                self._waiting[tenant] = line  # Behind the others: their turn comes first.
            if not given.done():
                given.set_result(None)
                return
        self._free += 1


class Tenants:
    """Quotas, and what is used of them."""

    def __init__(self, store: Store, blobs: BlobStore, clock: Callable[[], float]) -> None:
        self._store = store
        self._blobs = blobs
        self._clock = clock
        self._known: TtlCache[str, Quotas] = TtlCache(REMEMBERED_SECONDS, MAX_TENANTS, clock)
        self._buckets: dict[str, Bucket] = {}
        self._stored: TtlCache[str, int] = TtlCache(MEASURED_SECONDS, MAX_TENANTS, clock)
        self.turns = Turns()

    async def quotas(self, tenant: str) -> Quotas:
        """What it may use; remembered for two seconds."""
        if (known := self._known.get(tenant)) is not None:
            return known
        document = await self._store.find_document(QUOTAS, QUOTAS, tenant)
        return self._known.put(tenant, _decode(document.body) if document is not None else Quotas())

    async def set_quotas(self, tenant: str, quotas: Quotas) -> None:
        """Other servers know it two seconds later at the latest."""
        document = await self._store.find_document(QUOTAS, QUOTAS, tenant)
        version = document.version if document is not None else 0
        try:
            await self._store.put_documents(
                [Document(kind=QUOTAS, tenant=tenant, name=QUOTAS, version=version, at=0, body=_encode(quotas))]
            )
        except Conflict:
            raise Refused("stale_version", "somebody else set these quotas at the same moment") from None
        self._known.discard(tenant)

    async def admit(self, tenant: str) -> None:
        """One request of the tenant; `TooOften` if it sends too many."""
        rate = (await self.quotas(tenant)).requests_per_second
        if not rate:
            return
        now = self._clock()
        bucket = self._buckets.get(tenant)
        if bucket is None:
            if len(self._buckets) >= MAX_TENANTS:
                self._buckets.clear()
            bucket = self._buckets[tenant] = Bucket(rate, now)
        bucket.take(rate, now)

    async def running_limit(self, tenant: str) -> int:
        """How many jobs its workers may hold at once; 0: as many as they like."""
        return (await self.quotas(tenant)).running_jobs

    async def check_queue(self, tenant: str) -> None:
        """Refuse one more run when as many as may wait do so already."""
        limit = (await self.quotas(tenant)).queued_runs
        if limit and await self._store.count(tenant, runs_with_status(PENDING), limit) >= limit:
            raise Refused("over_quota", f"{limit} runs of this tenant have not begun; it may have {limit}")

    async def room(self, tenant: str) -> int | None:
        """How many bytes it may still keep; None: as many as it likes. What was kept meanwhile counts later."""
        limit = (await self.quotas(tenant)).storage_bytes
        return max(0, limit - await self.stored(tenant)) if limit else None

    async def stored(self, tenant: str) -> int:
        """How many bytes of artifacts and caches it has; measured at most every half minute."""
        if (known := self._stored.get(tenant)) is not None:
            return known
        return self._stored.put(tenant, await asyncio.to_thread(keys.bytes_of, self._blobs, tenant))

    def kept(self, tenant: str, size: int) -> None:
        """So many bytes were added since it was measured."""
        self._stored.update(tenant, lambda known: known + size)

    async def running(self, tenant: str) -> int:
        """How many jobs its workers hold."""
        return await self._store.transact(lambda: _held(tenant))

    async def usage(self, tenant: str) -> Usage:
        """What it uses now."""
        held = await self.running(tenant)
        queued = await self._store.count(tenant, runs_with_status(PENDING), MAX_COUNTED)
        return Usage(running_jobs=held, queued_runs=queued, storage_bytes=await self.stored(tenant))


def _held(tenant: str) -> Transaction[int]:
    count: int = yield CountLiveLeases(tenant, MAX_COUNTED)
    return count
