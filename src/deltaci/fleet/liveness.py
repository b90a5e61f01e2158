"""Which workers exist, which are unresponsive, and which may be given work.

`Fleet` keeps a copy of all worker records up to date from the event log. In every health check it reads which workers
the other servers have seen, and submits the commands that `health.py` derives for each worker. Any number of servers
may do this side by side: a command that two of them submit takes effect once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import msgspec

from deltaci.core import worker
from deltaci.core.decide import Decision
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
from deltaci.engine.waiters import EligibleWorkers, WaitForDisconnect
from deltaci.fleet import health
from deltaci.fleet.health import HealthLimits
from deltaci.fleet.heartbeats import Heartbeats, WorkerKey
from deltaci.storage.port import Conflict, ListPosition, ListQuery, Store, Unavailable

PAGE_SIZE: Final = 500
MAX_CACHED: Final = 20_000  # Size of the cache of ids without a record, and of that of ended workers.
MAX_SKIPPED_CHECKS: Final = (
    2  # After a longer pause between checks, silence is measured anew: messages may have been missed.
)
RETRY_SECONDS: Final = 1.0
# After these events, a worker's record differs only in what the event itself says.
TASK_ASSIGNED: Final = "task_assigned"
SELF_CONTAINED_TRIGGERS: Final = frozenset({TASK_ASSIGNED, "task_completed"})

LOGGER: Final = logging.getLogger(__name__)


class Fleet:
    """One server's copy of the records of all workers that are not shut down.

    Runs the health checks, and lets a claim wait until its worker may be given work.
    """

    def __init__(self, store: Store, engine: Engine, limits: HealthLimits | None = None) -> None:
        self._store = store
        self._engine = engine
        self._limits = limits or HealthLimits()
        self.heartbeats = Heartbeats(store, self._limits)
        self._workers: dict[WorkerKey, Worker] = {}
        self._ended: dict[str, Worker] = {}
        self._ids_without_record: set[str] = set()
        self._silent: set[WorkerKey] = set()  # Workers that missed too many checks, whatever their state.
        self._eligible: dict[str, dict[str, tuple[str, ...]]] = {}  # By tenant and id: labels of workers for new work.
        self._eligible_cache: dict[str, EligibleWorkers] = {}
        self._change_waiters: dict[str, set[asyncio.Future[None]]] = {}
        self._stale_ids: dict[str, None] = {}
        self._has_stale = asyncio.Event()
        self._checked_at = 0
        self._observed_since = 0
        self._is_closing = False
        self._tasks: list[asyncio.Task[None]] = []

    # -- the copy of the records

    async def start(self) -> None:
        """Load all workers and start the health checks. `on_events` must already receive the event log."""
        await self.load()
        self._tasks = [
            asyncio.create_task(self._refresh_forever(), name="fleet"),
            asyncio.create_task(self._check_forever(), name="health"),
        ]

    async def stop(self) -> None:
        """Stop the health checks and the updates of the copied records."""
        for task in self._tasks:
            await cancel_and_wait(task)

    def stop_waiting(self) -> None:
        """Make current and future calls of `wait_until_eligible` return at once. Called when the server shuts down."""
        self._is_closing = True
        for waiters in self._change_waiters.values():
            _wake(waiters)

    async def load(self) -> None:
        """Load all workers that are not shut down from the store. Silence is measured from this moment on."""
        self._observed_since = self._checked_at = await self._store.now()
        position: ListPosition | None = None
        while True:
            page = await self._store.page(
                ListQuery(tenant=ALL_TENANTS, lists=[PRESENT_WORKERS], before=position, limit=PAGE_SIZE)
            )
            for record in page.records:
                if isinstance(record, Worker):
                    self._cache_record(record)
            position = page.next
            if position is None:
                return

    def on_events(self, events: Sequence[Event]) -> None:
        """Apply events of the log to the cached workers.

        A record that an event does not describe completely becomes stale: a background task reads it again.
        """
        for event in events:
            if event.entity != WORKER:
                continue
            cached_record = self._workers.get((event.tenant, worker_name(event.entity_id)))
            if (
                event.trigger not in SELF_CONTAINED_TRIGGERS
                or cached_record is None
                or cached_record.id != event.entity_id
            ):
                self._stale_ids[event.entity_id] = None
                self._has_stale.set()
            elif event.rev > cached_record.rev:
                updated_record = msgspec.structs.replace(
                    cached_record,
                    state=event.to,
                    rev=event.rev,
                    updated_at=event.at,
                    tasks=_tasks_after(cached_record.tasks, event),
                )
                self._workers[event.tenant, worker_name(event.entity_id)] = updated_record

    async def refresh(self) -> None:
        """Read all stale records from the store again, and update the cache."""
        while self._stale_ids:
            stale_ids = list(self._stale_ids)[:PAGE_SIZE]
            for record in await self._store.find_all(stale_ids):
                if isinstance(record, Worker):
                    self._cache_record(record)
            for id in stale_ids:
                self._stale_ids.pop(id, None)
        self._has_stale.clear()

    async def _refresh_forever(self) -> None:
        while True:
            await self._has_stale.wait()
            try:
                await self.refresh()
            except (Unavailable, Conflict) as error:
                LOGGER.warning("cannot read changed workers: %s; retrying", error)
                await asyncio.sleep(RETRY_SECONDS)

    def _cache_record(self, worker_record: Worker) -> None:
        """Cache a record unless the cached one is newer, and wake requests that wait for a change of it."""
        worker_key = (worker_record.tenant, worker_name(worker_record.id))
        cached_record = self._workers.get(worker_key)
        if cached_record is not None and cached_record.id == worker_record.id and cached_record.rev > worker_record.rev:
            return
        self._ids_without_record.discard(worker_record.id)
        if not worker.is_over(worker_record):
            self._workers[worker_key] = worker_record
        else:
            if cached_record is not None and cached_record.id == worker_record.id:
                del self._workers[worker_key]
            if len(self._ended) >= MAX_CACHED:
                self._ended.clear()
            self._ended[worker_record.id] = worker_record
        self._update_eligible(worker_key, worker_record)
        _wake(self._change_waiters.get(worker_record.id, ()))

    def _cached(self, tenant: str, worker_id: str) -> Worker | None:
        """Return the record if it is cached, else None. Never read the store."""
        worker_record = self._workers.get((tenant, worker_name(worker_id)))
        if worker_record is None or worker_record.id != worker_id:
            worker_record = self._ended.get(worker_id)
        return worker_record if worker_record is not None and worker_record.tenant == tenant else None

    async def find(self, tenant: str, worker_id: str) -> Worker | None:
        """Return a worker from the cache or else from the store, or None if there is no such record."""
        worker_record = self._cached(tenant, worker_id)
        if worker_record is None and worker_id not in self._ids_without_record:
            stored_record = await self._store.find(worker_id)
            if isinstance(stored_record, Worker):
                self._cache_record(stored_record)
                return self._cached(tenant, worker_id)  # A newer version may have been cached meanwhile.
            if len(self._ids_without_record) >= MAX_CACHED:
                self._ids_without_record.clear()
            self._ids_without_record.add(worker_id)
        return worker_record

    def last_seen_at(self, worker_record: Worker) -> int:
        """Return the time when a worker was last seen by any server, or that of its registration if that is later."""
        return max(
            self.heartbeats.last_seen_at((worker_record.tenant, worker_name(worker_record.id))),
            worker_record.created_at,
        )

    def has_missed_checks(self, worker_record: Worker) -> bool:
        """Return whether a worker missed too many health checks in a row. An idle worker's state does not show that."""
        return (worker_record.tenant, worker_name(worker_record.id)) in self._silent and not worker.is_over(
            worker_record
        )

    # -- eligibility for work

    def eligible_workers(self, tenant: str) -> EligibleWorkers:
        """Return labels and ids, as two tuples, of the tenant's workers that accept work and are not silent.

        The engine gives a job back to the worker that lost it only if no other eligible worker fits. The result may
        include the worker that claims work; the caller leaves that one out.
        """
        workers = self._eligible_cache.get(tenant)
        if workers is None:
            labels_by_id = self._eligible.get(tenant, {})
            workers = self._eligible_cache[tenant] = tuple(labels_by_id.values()), tuple(labels_by_id)
        return workers

    def _update_eligible(self, worker_key: WorkerKey, worker_record: Worker) -> None:
        """Add a worker to the eligible workers of its tenant, or remove it, according to its record and silence."""
        labels_by_id = self._eligible.setdefault(worker_record.tenant, {})
        is_eligible = worker_key not in self._silent and worker.accepts_work(worker_record)
        if is_eligible and labels_by_id.get(worker_record.id) != worker_record.labels:
            labels_by_id[worker_record.id] = worker_record.labels
        elif is_eligible or labels_by_id.pop(worker_record.id, None) is None:
            return
        self._eligible_cache.pop(worker_record.tenant, None)

    async def wait_until_eligible(
        self, tenant: str, worker_id: str, seconds: float, wait_for_disconnect: WaitForDisconnect | None = None
    ) -> bool:
        """Wait until a worker may be given work. Return False on timeout, disconnection or server shutdown.

        An unresponsive worker recovers first, because it has just sent a request. A worker without a record may be
        given work. Raise `Refused` for a worker that was shut down.
        """
        clock = asyncio.get_running_loop().time
        deadline = clock() + seconds
        while True:
            with self._change_of(worker_id) as change_future:
                worker_record = await self.find(tenant, worker_id)
                if worker_record is not None and worker.is_unresponsive(worker_record):
                    await self.mark_alive(tenant, [worker_id])
                    worker_record = await self.find(tenant, worker_id)
                if worker_record is None or worker.accepts_work(worker_record):
                    return True
                if worker.is_over(worker_record):
                    raise shut_down_refusal(worker_record)
                remaining_seconds = deadline - clock()
                if (
                    remaining_seconds <= 0
                    or self._is_closing
                    or not await self._wait(change_future, remaining_seconds, wait_for_disconnect)
                ):
                    return False

    def is_on_hold(self, tenant: str, worker_id: str) -> bool:
        """Return whether a worker may not be given work according to its cached record; False if none is cached."""
        worker_record = self._cached(tenant, worker_id)
        return worker_record is not None and not worker.accepts_work(worker_record)

    async def wait_until_on_hold(
        self, tenant: str, worker_id: str, wait_for_disconnect: WaitForDisconnect | None = None
    ) -> None:
        """Wait until a worker may no longer be given work, or has disconnected."""
        while not self.is_on_hold(tenant, worker_id):
            with self._change_of(worker_id) as change_future:
                if not await self._wait(change_future, None, wait_for_disconnect):
                    return

    @contextmanager
    def _change_of(self, worker_id: str) -> Iterator[asyncio.Future[None]]:
        """Yield a future that is done as soon as the cached record of a worker is updated."""
        change_future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._change_waiters.setdefault(worker_id, set()).add(change_future)
        try:
            yield change_future
        finally:
            self._change_waiters[worker_id].discard(change_future)
            if not self._change_waiters[worker_id]:
                del self._change_waiters[worker_id]

    @staticmethod
    async def _wait(
        change_future: asyncio.Future[None], seconds: float | None, wait_for_disconnect: WaitForDisconnect | None
    ) -> bool:
        """Wait until `change_future` is done. Return False if time runs out or the worker disconnects first."""
        disconnect_task = asyncio.create_task(wait_for_disconnect()) if wait_for_disconnect is not None else None
        futures: set[asyncio.Future[Any]] = (
            {change_future} if disconnect_task is None else {change_future, disconnect_task}
        )
        try:
            await asyncio.wait(futures, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if disconnect_task is not None:
                disconnect_task.cancel()
        return change_future.done()

    # -- health checks

    async def mark_alive(
        self, tenant: str, worker_ids: Collection[str], results: Sequence[Decision | Refused] = ()
    ) -> None:
        """Submit `Recover` for each of these workers, which sent a message, that is unresponsive.

        `results` are those of messages under leases: they recover the worker in the same transaction if its lease is
        live, but not if it has ended.
        """
        if not self._unresponsive(tenant, worker_ids):
            return
        for result in results:
            for changed_record in result.changed.values() if isinstance(result, Decision) else ():
                if isinstance(changed_record, Worker):
                    self._cache_record(changed_record)
        await self._submit(
            [
                worker.Recover(id=worker_id, actor=worker_actor(worker_id))
                for worker_id in self._unresponsive(tenant, worker_ids)
            ]
        )

    def _unresponsive(self, tenant: str, worker_ids: Iterable[str]) -> list[str]:
        """Return the workers whose cached records are unresponsive."""
        cached_records = [self._cached(tenant, worker_id) for worker_id in worker_ids]
        return [record.id for record in cached_records if record is not None and worker.is_unresponsive(record)]

    async def check_health(self) -> None:
        """Exchange heartbeat times with the other servers, then submit the command that is due for each worker."""
        now = await self._store.now()
        max_pause = MAX_SKIPPED_CHECKS * self._limits.health_seconds * SECOND
        if not self._checked_at <= now <= self._checked_at + max_pause:
            self._observed_since = now  # This server was suspended, or the clock jumped: it may have missed messages.
        self._checked_at = now
        await self.heartbeats.publish(now)
        await self.heartbeats.read_others(now)
        await self.refresh()
        silent_keys = {
            worker_key for worker_key, record in self._workers.items() if self._is_silent(worker_key, record, now)
        }
        changed_keys, self._silent = silent_keys ^ self._silent, silent_keys
        for worker_key in changed_keys & self._workers.keys():
            self._update_eligible(worker_key, self._workers[worker_key])
        due_ids = [record.id for record in self._workers.values() if self._next_command(record, now) is not None]
        for batch_start in range(0, len(due_ids), PAGE_SIZE):
            # The cached records may be stale, so the decision is made again with stored ones.
            records = await self._store.find_all(due_ids[batch_start : batch_start + PAGE_SIZE])
            commands = [self._next_command(record, now) for record in records if isinstance(record, Worker)]
            await self._submit([command for command in commands if command is not None])

    def _is_silent(self, worker_key: WorkerKey, worker_record: Worker, now: int) -> bool:
        silent_for = health.silence(worker_record, self.heartbeats.last_seen_at(worker_key), self._observed_since, now)
        return silent_for >= self._limits.unresponsive_after

    def _next_command(self, worker_record: Worker, now: int) -> Command | None:
        last_seen_at = self.heartbeats.last_seen_at((worker_record.tenant, worker_name(worker_record.id)))
        return health.next_command(worker_record, last_seen_at, self._observed_since, now, self._limits)

    async def _submit(self, commands: Sequence[Command]) -> None:
        """Submit commands and cache the resulting records.

        A refused command is only logged, and the record is read again: another server submitted it, or it is not due.
        """
        for command, result in zip(commands, await self._engine.do_all(commands), strict=True):
            if isinstance(result, Refused):
                LOGGER.debug("worker %s: %s is refused: %s", command.id, type(command).__name__, result.message)
                self._stale_ids[command.id] = None
                self._has_stale.set()
                continue
            if result.events:
                LOGGER.info("worker %s: %s", command.id, type(command).__name__)
            if isinstance(result.record, Worker):
                self._cache_record(result.record)

    async def _check_forever(self) -> None:
        while True:
            await asyncio.sleep(self._limits.health_seconds / 2)
            try:
                await self.check_health()
            except (Unavailable, Conflict, Overloaded) as error:
                LOGGER.warning("cannot check the health of workers: %s; retrying", error)
            except Exception:
                LOGGER.exception("internal error while checking the health of workers; retrying")


def _tasks_after(tasks: tuple[str, ...], event: Event) -> tuple[str, ...]:
    """Return a worker's tasks after an event with one of the `SELF_CONTAINED_TRIGGERS`."""
    attempt_id = event.metadata["attempt_id"]
    other_tasks = tuple(task for task in tasks if task != attempt_id)
    return (*other_tasks, attempt_id) if event.trigger == TASK_ASSIGNED else other_tasks


def _wake(waiters: Iterable[asyncio.Future[None]]) -> None:
    for waiter in waiters:
        if not waiter.done():
            waiter.set_result(None)


def shut_down_refusal(worker_record: Worker) -> Refused:
    """Return the error for a request of a worker that was shut down."""
    reason = worker_record.shutdown_reason or "it was silent for too long"
    return Refused(
        "shut_down", f"worker {worker_record.id} was shut down ({reason}); renew the credential to come back"
    )
