"""The fleet as it lives: who is there, who is silent and what follows from that, who may be given work.

It keeps a picture of all workers from the log, looks at their health again and again, and gives the orders that follow
(`health.py`). Any number of servers may do so side by side: each reads what the others heard before it judges, and an
order that two of them give is carried out once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import msgspec

from deltaci.core import worker
from deltaci.core.errors import Refused
from deltaci.core.events import WORKER, Event, worker_actor
from deltaci.core.ids import worker_name
from deltaci.core.instants import SECOND
from deltaci.core.listing import ALL_TENANTS, PRESENT_WORKERS
from deltaci.core.machine import Command
from deltaci.core.worker import Worker
from deltaci.engine.engine import Engine
from deltaci.engine.event_loop import cancel_and_wait
from deltaci.engine.requests import Overloaded
from deltaci.engine.waiters import Disconnected, OtherWorkers
from deltaci.fleet import health
from deltaci.fleet.health import Limits
from deltaci.fleet.heartbeats import Hearing, Key
from deltaci.storage.port import Conflict, ListPosition, ListQuery, Store, Unavailable

PAGE: Final = 500
MAX_REMEMBERED: Final = 20_000  # Of names that have no record, and of lives that are over.
STILL: Final = 2  # Checks that did not happen: whoever missed so many stood still, and heard nobody.
RETRY_SECONDS: Final = 1.0
# After these nothing else of a worker is new than what the event says of it.
QUIET: Final = frozenset({"task_assigned", "task_completed"})

LOGGER: Final = logging.getLogger(__name__)


class Fleet:
    """One server's view of all workers, and its part in looking after them."""

    def __init__(self, store: Store, engine: Engine, limits: Limits | None = None) -> None:
        self._store = store
        self._engine = engine
        self._limits = limits or Limits()
        self.hearing = Hearing(store, self._limits)
        self._known: dict[Key, Worker] = {}
        self._over: dict[str, Worker] = {}
        self._absent: set[str] = set()
        self._missing: set[Key] = set()  # Those who missed too many checks, whatever their record says.
        self._fit: dict[str, dict[str, tuple[str, ...]]] = {}  # By tenant: the labels of all who may be given work.
        self._rivals: dict[str, OtherWorkers] = {}
        self._waiting: dict[str, set[asyncio.Future[None]]] = {}
        self._stale: dict[str, None] = {}
        self._is_stale = asyncio.Event()
        self._checked_at = 0
        self._since = 0
        self._is_closing = False
        self._tasks: list[asyncio.Task[None]] = []

    # -- what is known

    async def start(self) -> None:
        """Learn who is there, and begin to look after them. Let it hear the log before."""
        await self.load()
        self._tasks = [
            asyncio.create_task(self._read(), name="fleet"),
            asyncio.create_task(self._run(), name="health"),
        ]

    async def stop(self) -> None:
        """Look no more."""
        for task in self._tasks:
            await cancel_and_wait(task)

    def stop_waiting(self) -> None:
        """The server is about to end: whoever waits to be given work again is answered now."""
        self._is_closing = True
        for all_of_one in self._waiting.values():
            _wake(all_of_one)

    async def load(self) -> None:
        """Everybody who is there. From now on, and not before, we could hear them."""
        self._since = self._checked_at = await self._store.now()
        before: ListPosition | None = None
        while True:
            page = await self._store.page(
                ListQuery(tenant=ALL_TENANTS, lists=[PRESENT_WORKERS], before=before, limit=PAGE)
            )
            for record in page.records:
                if isinstance(record, Worker):
                    self._learn(record)
            before = page.next
            if before is None:
                return

    def hear(self, events: Sequence[Event]) -> None:
        """What happened. What an event does not tell in full is read soon."""
        for event in events:
            if event.entity != WORKER:
                continue
            known = self._known.get((event.tenant, worker_name(event.entity_id)))
            if event.trigger not in QUIET or known is None or known.id != event.entity_id:
                self._stale[event.entity_id] = None
                self._is_stale.set()
            elif event.rev > known.rev:
                told = msgspec.structs.replace(known, state=event.to, rev=event.rev, updated_at=event.at)
                self._known[event.tenant, worker_name(event.entity_id)] = told

    async def catch_up(self) -> None:
        """Read what events did not tell in full."""
        while self._stale:
            some = list(self._stale)[:PAGE]
            for record in await self._store.find_all(some):
                if isinstance(record, Worker):
                    self._learn(record)
            for id in some:
                self._stale.pop(id, None)
        self._is_stale.clear()

    async def _read(self) -> None:
        while True:
            await self._is_stale.wait()
            try:
                await self.catch_up()
            except (Unavailable, Conflict) as error:
                LOGGER.warning("the fleet cannot be read now: %s; trying again", error)
                await asyncio.sleep(RETRY_SECONDS)

    def _learn(self, record: Worker) -> None:
        """This is how it is now, unless we know better."""
        key = (record.tenant, worker_name(record.id))
        known = self._known.get(key)
        if known is not None and known.id == record.id and known.rev > record.rev:
            return
        self._absent.discard(record.id)
        if not worker.is_over(record):
            self._known[key] = record
        else:
            if known is not None and known.id == record.id:
                del self._known[key]
            if len(self._over) >= MAX_REMEMBERED:
                self._over.clear()
            self._over[record.id] = record
        self._count_in(key, record)
        _wake(self._waiting.get(record.id, ()))

    def _seen(self, tenant: str, id: str) -> Worker | None:
        """The worker as far as it is known without a look."""
        record = self._known.get((tenant, worker_name(id)))
        if record is None or record.id != id:
            record = self._over.get(id)
        return record if record is not None and record.tenant == tenant else None

    async def find(self, tenant: str, id: str) -> Worker | None:
        """The worker with this id; None for one that speaks without a record of its own."""
        record = self._seen(tenant, id)
        if record is None and id not in self._absent:
            found = await self._store.find(id)
            if isinstance(found, Worker):
                self._learn(found)
                return self._seen(tenant, id)  # Which may be newer by now.
            if len(self._absent) >= MAX_REMEMBERED:
                self._absent.clear()
            self._absent.add(id)
        return record

    def seen_at(self, record: Worker) -> int:
        """When it was heard last: at least when it came in."""
        return max(self.hearing.at((record.tenant, worker_name(record.id))), record.created_at)

    def is_missed(self, record: Worker) -> bool:
        """Whether it missed too many checks in a row; also an idle one, of which nothing else says so."""
        return (record.tenant, worker_name(record.id)) in self._missing and not worker.is_over(record)

    # -- who may be given work

    def rivals(self, tenant: str) -> OtherWorkers:
        """Who else could take a job that somebody lost: all who are there, are not silent and may be given work.

        Also those who are full, because they have room again soon: a job goes back to the one that lost it only
        when nobody else fits. Whoever asks may be among them: who lost a job is no rival of itself for it.
        """
        found = self._rivals.get(tenant)
        if found is None:
            fit = self._fit.get(tenant, {})
            found = self._rivals[tenant] = tuple(fit.values()), tuple(fit)
        return found

    def _count_in(self, key: Key, record: Worker) -> None:
        """Or out: whether it is one of those who could take a job."""
        fit = self._fit.setdefault(record.tenant, {})
        is_fit = key not in self._missing and worker.accepts_work(record)
        if is_fit and fit.get(record.id) != record.labels:
            fit[record.id] = record.labels
        elif is_fit or fit.pop(record.id, None) is None:
            return
        self._rivals.pop(record.tenant, None)

    async def may_ask(self, tenant: str, id: str, seconds: float, gone: Disconnected | None = None) -> bool:
        """Whether this worker may be given work. One that is held back waits here until it may; False: in vain."""
        clock = asyncio.get_running_loop().time
        give_up = clock() + seconds
        while True:
            with self._changing(id) as change:
                record = await self.find(tenant, id)
                if record is not None and worker.is_unresponsive(record):
                    await self.greet(tenant, [id])
                    record = await self.find(tenant, id)
                if record is None or worker.accepts_work(record):
                    return True
                if worker.is_over(record):
                    raise shut_down(record)
                left = give_up - clock()
                if left <= 0 or self._is_closing or not await self._wait(change, left, gone):
                    return False

    def is_held(self, tenant: str, id: str) -> bool:
        """Whether this worker may not be given work now, as far as is known without a look."""
        record = self._seen(tenant, id)
        return record is not None and not worker.accepts_work(record)

    async def until_held(self, tenant: str, id: str, gone: Disconnected | None = None) -> None:
        """Wait until this worker may not be given work any more, or is gone."""
        while not self.is_held(tenant, id):
            with self._changing(id) as change:
                if not await self._wait(change, None, gone):
                    return

    @contextmanager
    def _changing(self, id: str) -> Iterator[asyncio.Future[None]]:
        change: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(id, set()).add(change)
        try:
            yield change
        finally:
            self._waiting[id].discard(change)
            if not self._waiting[id]:
                del self._waiting[id]

    @staticmethod
    async def _wait(change: asyncio.Future[None], seconds: float | None, gone: Disconnected | None) -> bool:
        """Whether it changed, within this time and before whoever waits was gone."""
        leaving = asyncio.create_task(gone()) if gone is not None else None
        waits: set[asyncio.Future[Any]] = {change} if leaving is None else {change, leaving}
        try:
            await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if leaving is not None:
                leaving.cancel()
        return change.done()

    # -- who is silent

    async def greet(self, tenant: str, ids: Collection[str]) -> None:
        """Somebody speaks: whoever of them was found silent has recovered, before what it says is decided."""
        for id in ids:
            record = self._seen(tenant, id)
            if record is not None and worker.is_unresponsive(record):
                await self._order([worker.Recover(id=id, actor=worker_actor(id))])

    async def check(self) -> None:
        """One health check: tell and learn who was heard, then judge who was not."""
        now = await self._store.now()
        if not self._checked_at <= now <= self._checked_at + STILL * self._limits.health_seconds * SECOND:
            self._since = now  # We stood still, or the clock jumped: what we did not hear meanwhile proves nothing.
        self._checked_at = now
        await self.hearing.tell(now)
        await self.hearing.listen(now)
        await self.catch_up()
        missing = {key for key, each in self._known.items() if self._is_silent(key, each, now)}
        changed, self._missing = missing ^ self._missing, missing
        for key in changed & self._known.keys():
            self._count_in(key, self._known[key])
        due = [each.id for each in self._known.values() if self._judged(each, now) is not None]
        for start in range(0, len(due), PAGE):
            # The picture may be a little old: who is judged is looked at.
            found = await self._store.find_all(due[start : start + PAGE])
            orders = [self._judged(each, now) for each in found if isinstance(each, Worker)]
            await self._order([each for each in orders if each is not None])

    def _is_silent(self, key: Key, record: Worker, now: int) -> bool:
        return health.silence(record, self.hearing.at(key), self._since, now) >= self._limits.silent

    def _judged(self, record: Worker, now: int) -> Command | None:
        heard_at = self.hearing.at((record.tenant, worker_name(record.id)))
        return health.order(record, heard_at, self._since, now, self._limits)

    async def _order(self, orders: Sequence[Command]) -> None:
        """Give orders. One that is refused was given by somebody else, or is not due any more, or not yet."""
        for order, answer in zip(orders, await self._engine.do_all(orders), strict=True):
            if isinstance(answer, Refused):
                LOGGER.debug("worker %s: %s is refused: %s", order.id, type(order).__name__, answer.message)
                self._stale[order.id] = None  # It is not as we thought.
                self._is_stale.set()
                continue
            if answer.events:
                LOGGER.info("worker %s: %s", order.id, type(order).__name__)
            if isinstance(answer.record, Worker):
                self._learn(answer.record)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._limits.health_seconds / 2)
            try:
                await self.check()
            except (Unavailable, Conflict, Overloaded) as error:
                LOGGER.warning("the health of the fleet cannot be looked at now: %s; trying again", error)
            except Exception:
                LOGGER.exception("the health of the fleet cannot be looked at: an error of ours; trying again")


def _wake(waiting: Iterable[asyncio.Future[None]]) -> None:
    for each in waiting:
        if not each.done():
            each.set_result(None)


def shut_down(record: Worker) -> Refused:
    """What one is told whose life is over."""
    why = record.shutdown_reason or "it was silent for too long"
    return Refused("shut_down", f"worker {record.id} was shut down ({why}); renew the credential to come back")
