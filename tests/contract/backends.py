"""The storage backends of the contract tests: memory, a SQLite file or a PostgreSQL database.

A backend has one clock, which the test moves, and opens any number of stores over the same data.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import wraps
from typing import Any, Final, ParamSpec, TypeVar

import pytest

from deltaci.audit.projections.canonical import canonical_lines
from deltaci.audit.verify import verify
from deltaci.core import attempt
from deltaci.core.attempt import Attempt
from deltaci.core.cascade import NewRecord
from deltaci.core.decide import Decision
from deltaci.core.errors import Refused
from deltaci.core.events import Event
from deltaci.core.ids import lease_ref
from deltaci.core.instants import SECOND
from deltaci.core.machine import Command, Record
from deltaci.core.resource import Resource
from deltaci.core.results import JobResult, ResultKey
from deltaci.core.worker import Worker
from deltaci.engine.engine import Claim, ClaimedAttempt, DeriveLeaseSecret, Engine
from deltaci.engine.queue import AsyncQueue
from deltaci.storage.commit_hints import CommitHints
from deltaci.storage.port import (
    Document,
    ListQuery,
    Put,
    ReadTransaction,
    ReadyAttempt,
    RecordPage,
    Request,
    ResourceQuery,
    Store,
    Transaction,
    Write,
)
from tests.support.lab import START, TENANT, Lease

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R", bound=Record)

MAX_SECONDS: Final = 300.0  # Only a test that hangs takes as long.
EVERYTHING: Final = 1_000_000
MAX_TICKS: Final = 20

# For rules of the engine or of a worker that do not depend on the store. The other tests run over all stores and prove
# that they behave alike.
in_memory = pytest.mark.parametrize("backend", ["memory"], indirect=True)
# For lists, searches and races of the API, which are statements of the store.
on_both_stores = pytest.mark.parametrize("backend", ["sqlite", "postgres"], indirect=True)


def within(seconds: float) -> Callable[[Callable[P, Coroutine[Any, Any, None]]], Callable[P, None]]:
    """Return a decorator that makes a plain test of a coroutine, and fails it after this time."""

    def decorate(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
        @wraps(test)
        def plain(*args: P.args, **kwargs: P.kwargs) -> None:
            async def bounded() -> None:
                async with asyncio.timeout(seconds):
                    await test(*args, **kwargs)

            asyncio.run(bounded())

        return plain

    return decorate


def on_loop(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Make a plain test of a coroutine. The test fails after MAX_SECONDS."""
    return within(MAX_SECONDS)(test)


class Backend:
    """The data of one deployment, with its clock."""

    def __init__(self, name: str, make: Callable[[Backend], Store], origin: Callable[[], int] = lambda: START) -> None:
        self.name = name
        self.shift = 0
        self._make = make
        self._origin = origin

    def now(self) -> int:
        """Return the time of the store's clock, approximately."""
        return self._origin() + self.shift

    def after(self, seconds: float) -> Backend:
        """Move the clock by this time, which may be negative."""
        self.shift += round(seconds * SECOND)
        return self

    def moment(self, seconds: float = 0) -> datetime:
        """Return the time that is this far from now."""
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=self.now() + round(seconds * SECOND))

    def store(self) -> Store:
        """Return another store over the same data, which is not open yet."""
        return self._make(self)

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Store]:
        """Open a store."""
        store = self.store()
        try:
            await store.open()
            yield store
        finally:
            await store.close()

    @asynccontextmanager
    async def server(
        self, wrap: Callable[[Store], Store] = lambda store: store, mint: DeriveLeaseSecret | None = None
    ) -> AsyncIterator[Server]:
        """Start a server over this data."""
        async with self.opened() as store:
            server = Server(wrap(store), mint)
            await server.engine.start()
            try:
                yield server
            finally:
                await server.engine.stop()

    def queue(self, wrap: Callable[[Store], Store] = lambda store: store, **options: Any) -> AsyncQueue:
        """Return the queue library over this data; its timers are off unless `has_timers` is given."""
        options.setdefault("has_timers", False)
        return AsyncQueue(wrap(self.store()), **options)


class Server:
    """An engine over its own store, and the operations that tests need most."""

    def __init__(self, store: Store, mint: DeriveLeaseSecret | None = None) -> None:
        self.store = store
        self.engine = Engine(store, mint)

    async def do(self, command: Command) -> Decision:
        """Apply one command."""
        return await self.engine.do(command)

    async def refused(self, command: Command) -> Refused:
        """Apply a command that must be refused, and check that no event was written."""
        before = await self.store.last_seq()
        refusal = await refused(self.engine.do(command))
        assert await self.store.last_seq() == before
        return refusal

    async def enqueue(self, id: str, **fields: Any) -> Attempt:
        """Enqueue an attempt without a run."""
        return as_attempt((await self.do(new_attempt(id, **fields))).record)

    async def register(self, id: str, slots: int = 1, labels: tuple[str, ...] = ()) -> None:
        """Register a worker."""
        record = Worker(id=id, tenant=TENANT, labels=labels, max_concurrent_tasks=slots)
        await self.do(NewRecord(id=id, record=record))

    async def claim(self, by: str = "w1", limit: int = 1, **fields: Any) -> list[ClaimedAttempt]:
        """Claim attempts."""
        options = {"tenant": TENANT, "labels": (), "ttl_seconds": 120, "accept_seconds": 30, **fields}
        return await self.engine.claim(Claim(worker_id=by, limit=limit, **options))

    async def take(self, by: str = "w1", **fields: Any) -> Lease:
        """Claim one attempt, which must exist."""
        claimed = await self.claim(by, **fields)
        assert len(claimed) == 1, claimed
        return Lease(by, claimed[0].lease_id)

    async def send(self, message: type[Any], lease: Lease, **fields: Any) -> Attempt:
        """Apply a runner's message about its lease."""
        return as_attempt((await self.do(runner_message(message, lease, **fields))).record)

    async def running(self, id: str = "a", by: str = "w1", **fields: Any) -> Lease:
        """Enqueue an attempt, claim it and start it."""
        await self.enqueue(id, **fields)
        lease = await self.take(by)
        await self.send(attempt.Start, lease)
        return lease

    async def tick(self) -> int:
        """Apply all commands that are due; return how many there were."""
        total = 0
        for _ in range(MAX_TICKS):
            count = await self.engine.tick()
            total += count
            if not count:
                return total
        raise AssertionError(f"something is still due after {MAX_TICKS} ticks")

    async def find(self, id: str, kind: type[R]) -> R:
        """Return the stored record."""
        record = await self.store.find(id)
        assert isinstance(record, kind), record
        return record

    async def state(self, id: str) -> str:
        """Return the state of a record."""
        record = await self.store.find(id)
        assert record is not None, id
        return record.state

    async def log(self, **chosen: str) -> list[Event]:
        """Return all committed events."""
        return await self.store.events(0, EVERYTHING, **chosen)

    async def verified(self) -> list[Event]:
        """Return all committed events, after the verifier found them legal."""
        return legal(await self.log())


class Wrapped:
    """A store that delegates to another one; tests override single methods."""

    def __init__(self, store: Store) -> None:
        self.inner = store

    @property
    def max_concurrent_transactions(self) -> int:
        return self.inner.max_concurrent_transactions

    @property
    def commit_hints(self) -> CommitHints:
        return self.inner.commit_hints

    async def open(self) -> None:
        await self.inner.open()

    async def close(self) -> None:
        await self.inner.close()

    async def transact(self, work: Callable[[], Transaction[T]]) -> T:
        return await self.inner.transact(work)

    async def read(self, work: Callable[[], ReadTransaction[T]]) -> T:
        return await self.inner.read(work)

    async def find(self, id: str) -> Record | None:
        return await self.inner.find(id)

    async def find_all(self, ids: Sequence[str]) -> list[Record]:
        return await self.inner.find_all(ids)

    async def page(self, search: ListQuery) -> RecordPage:
        return await self.inner.page(search)

    async def count(self, tenant: str, list: str, limit: int) -> int:
        return await self.inner.count(tenant, list, limit)

    async def find_api_key(self, name: str) -> Record | None:
        return await self.inner.find_api_key(name)

    async def list_resources(self, query: ResourceQuery) -> list[Resource]:
        return await self.inner.list_resources(query)

    async def administrative_events(self, tenant: str, before: int, limit: int) -> list[Event]:
        return await self.inner.administrative_events(tenant, before, limit)

    async def first_documents(self, kind: str, limit: int) -> list[Document]:
        return await self.inner.first_documents(kind, limit)

    async def find_document(self, kind: str, name: str, tenant: str) -> Document | None:
        return await self.inner.find_document(kind, name, tenant)

    async def put_documents(self, documents: Sequence[Document]) -> None:
        await self.inner.put_documents(documents)

    async def list_documents(self, kind: str, tenant: str, **chosen: Any) -> list[Document]:
        return await self.inner.list_documents(kind, tenant, **chosen)

    async def delete_document(self, kind: str, tenant: str, name: str, version: int) -> bool:
        return await self.inner.delete_document(kind, tenant, name, version)

    async def now(self) -> int:
        return await self.inner.now()

    async def events(self, after: int, limit: int, *, entity_id: str = "", run_id: str = "") -> list[Event]:
        return await self.inner.events(after, limit, entity_id=entity_id, run_id=run_id)

    async def ready_attempts(self, before: int, limit: int) -> list[ReadyAttempt]:
        return await self.inner.ready_attempts(before, limit)

    async def queued_attempts(self, tenant: str, limit: int, queues: int) -> list[ReadyAttempt]:
        return await self.inner.queued_attempts(tenant, limit, queues)

    async def group_holder(self, tenant: str, group: str) -> str:
        return await self.inner.group_holder(tenant, group)

    async def last_seq(self) -> int:
        return await self.inner.last_seq()

    async def find_job_results(self, keys: Sequence[ResultKey]) -> list[JobResult]:
        return await self.inner.find_job_results(keys)

    async def delete_job_results(self, before: int, limit: int) -> int:
        return await self.inner.delete_job_results(before, limit)

    async def prune(self, *, finished_before: int, events_before: int, limit: int) -> int:
        return await self.inner.prune(finished_before=finished_before, events_before=events_before, limit=limit)


# -- commands and records


def new_attempt(id: str, *, request_id: str = "", **fields: Any) -> NewRecord:
    """Return the command that enqueues an attempt without a run."""
    return NewRecord(id=id, record=Attempt(id=id, tenant=TENANT, **fields), request_id=request_id)


def runner_message(message: type[Any], lease: Lease, **fields: Any) -> Command:
    """Return a runner's message about its lease, as a command."""
    command: Command = message(id=lease.ref.attempt_id, actor=lease.actor, lease=lease.ref, **fields)
    return command


def as_attempt(record: Record) -> Attempt:
    """Return the record, which must be an attempt."""
    assert isinstance(record, Attempt)
    return record


def attempt_of(lease_id: str) -> str:
    """Return the id of the attempt that a lease id contains."""
    return lease_ref(lease_id).attempt_id


def legal(events: list[Event]) -> list[Event]:
    """Return the events, which the verifier must find legal."""
    report = verify(canonical_lines(events), "canonical")
    assert report.is_legal, "\n".join(map(str, report.violations[:10]))
    return events


async def refused(work: Awaitable[Any], code: str = "") -> Refused:
    """Return the refusal that the operation must raise, optionally with this code."""
    with pytest.raises(Refused) as caught:
        await work
    assert code in ("", caught.value.code), caught.value
    return caught.value


# -- the port itself


async def ask(store: Store, *requests: Request) -> list[Any]:
    """Make these requests in one transaction; return their responses."""

    def work() -> Transaction[list[Any]]:
        responses = []
        for request in requests:
            responses.append((yield request))
        return responses

    return await store.transact(work)


async def write(store: Store, *puts: Put, events: Iterable[Event] = ()) -> None:
    """Write records and events in one transaction."""
    await ask(store, Write(list(puts), list(events)))


def put(record: Record, version: int = 0, **fields: Any) -> Put:
    """Return the write of a record that is neither ready nor due, unless the fields say otherwise."""
    return Put(
        **{"record": record, "version": version, "ready_at": None, "due_at": None, "is_terminal": False, **fields}
    )


def new_event(entity_id: str, rev: int = 1, *, at: int = START, run_id: str = "") -> Event:
    """Return an event without a sequence number."""
    return Event(
        0, at, TENANT, "attempt", entity_id, run_id, "CREATED", "QUEUED", "enqueued", "user:ada", "info", "", rev, {}
    )
