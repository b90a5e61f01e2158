"""Where a case of the contract keeps its records: memory, a SQLite file or a PostgreSQL database.

Every place has one clock that the case moves by hand, and opens any number of stores over the same data.
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

# For rules of the engine or of a worker that no store could break. That the stores cannot be told apart is proved by
# the other cases, which run over all of them.
in_memory = pytest.mark.parametrize("place", ["memory"], indirect=True)
# For lists, searches and races of the API, which are statements of the store.
on_both_stores = pytest.mark.parametrize("place", ["sqlite", "postgres"], indirect=True)


def within(seconds: float) -> Callable[[Callable[P, Coroutine[Any, Any, None]]], Callable[P, None]]:
    """Makes plain tests of coroutines, which must come to their end within so many seconds."""

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
    """A plain test that runs this coroutine to its end, and fails when there is none."""
    return within(MAX_SECONDS)(test)


class Place:
    """One deployment's data, with its clock."""

    def __init__(self, name: str, make: Callable[[Place], Store], origin: Callable[[], int] = lambda: START) -> None:
        self.name = name
        self.shift = 0
        self._make = make
        self._origin = origin

    def now(self) -> int:
        """What the store's clock says, near enough."""
        return self._origin() + self.shift

    def after(self, seconds: float) -> Place:
        """Move the clock; backwards too."""
        self.shift += round(seconds * SECOND)
        return self

    def moment(self, seconds: float = 0) -> datetime:
        """So much from now, as people write it."""
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=self.now() + round(seconds * SECOND))

    def store(self) -> Store:
        """One more store over the same data, not open yet."""
        return self._make(self)

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Store]:
        """A store that is open."""
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
        """One of the servers that share this data."""
        async with self.opened() as store:
            server = Server(wrap(store), mint)
            await server.engine.start()
            try:
                yield server
            finally:
                await server.engine.stop()

    def queue(self, wrap: Callable[[Store], Store] = lambda store: store, **options: Any) -> AsyncQueue:
        """The queue library over this data; its timers stand still unless a case wants them."""
        options.setdefault("has_timers", False)
        return AsyncQueue(wrap(self.store()), **options)


class Server:
    """An engine over its own store, and what cases often do with it."""

    def __init__(self, store: Store, mint: DeriveLeaseSecret | None = None) -> None:
        self.store = store
        self.engine = Engine(store, mint)

    async def do(self, command: Command) -> Decision:
        """Apply one command."""
        return await self.engine.do(command)

    async def refused(self, command: Command) -> Refused:
        """Apply one command that must be refused, and show that the log has not grown."""
        before = await self.store.last_seq()
        refusal = await refused(self.engine.do(command))
        assert await self.store.last_seq() == before
        return refusal

    async def enqueue(self, id: str, **fields: Any) -> Attempt:
        """An attempt on its own."""
        return as_attempt((await self.do(birth(id, **fields))).record)

    async def register(self, id: str, slots: int = 1, labels: tuple[str, ...] = ()) -> None:
        """A worker that the fleet knows."""
        record = Worker(id=id, tenant=TENANT, labels=labels, max_concurrent_tasks=slots)
        await self.do(NewRecord(id=id, record=record))

    async def claim(self, by: str = "w1", limit: int = 1, **fields: Any) -> list[ClaimedAttempt]:
        """Ask for work."""
        given = {"tenant": TENANT, "labels": (), "ttl_seconds": 120, "accept_seconds": 30, **fields}
        return await self.engine.claim(Claim(worker_id=by, limit=limit, **given))

    async def take(self, by: str = "w1", **fields: Any) -> Lease:
        """Ask for one attempt, which must be there."""
        found = await self.claim(by, **fields)
        assert len(found) == 1, found
        return Lease(by, found[0].lease_id)

    async def say(self, message: type[Any], lease: Lease, **fields: Any) -> Attempt:
        """One of a runner's messages."""
        return as_attempt((await self.do(saying(message, lease, **fields))).record)

    async def running(self, id: str = "a", by: str = "w1", **fields: Any) -> Lease:
        """An attempt that its runner has started."""
        await self.enqueue(id, **fields)
        held = await self.take(by)
        await self.say(attempt.Start, held)
        return held

    async def tick(self) -> int:
        """Carry out everything that is due; how much that was."""
        total = 0
        for _ in range(MAX_TICKS):
            count = await self.engine.tick()
            total += count
            if not count:
                return total
        raise AssertionError(f"something is still due after {MAX_TICKS} ticks")

    async def find(self, id: str, kind: type[R]) -> R:
        """The record as everybody can read it."""
        record = await self.store.find(id)
        assert isinstance(record, kind), record
        return record

    async def state(self, id: str) -> str:
        """The state of a record."""
        record = await self.store.find(id)
        assert record is not None, id
        return record.state

    async def log(self, **chosen: str) -> list[Event]:
        """Everything that was committed."""
        return await self.store.events(0, EVERYTHING, **chosen)

    async def verified(self) -> list[Event]:
        """Everything that was committed, shown to be legal."""
        return legal(await self.log())


class Wrapped:
    """A store in front of another one, for cases that come between."""

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

    async def find_document(self, kind: str, name: str, tenant: str = "") -> Document | None:
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

    async def prune(self, *, finished_before: int, events_before: int, limit: int) -> int:
        return await self.inner.prune(finished_before=finished_before, events_before=events_before, limit=limit)


# -- commands and records


def birth(id: str, *, request_id: str = "", **fields: Any) -> NewRecord:
    """The command that enqueues an attempt on its own."""
    return NewRecord(id=id, record=Attempt(id=id, tenant=TENANT, **fields), request_id=request_id)


def saying(message: type[Any], lease: Lease, **fields: Any) -> Command:
    """One of a runner's messages, not sent yet."""
    said: Command = message(id=lease.ref.attempt_id, actor=lease.actor, lease=lease.ref, **fields)
    return said


def as_attempt(record: Record) -> Attempt:
    """The record, which is an attempt."""
    assert isinstance(record, Attempt)
    return record


def attempt_of(lease_id: str) -> str:
    """The attempt that a lease id names."""
    return lease_ref(lease_id).attempt_id


def legal(events: list[Event]) -> list[Event]:
    """The log, which the verifier finds legal."""
    report = verify(canonical_lines(events), "canonical")
    assert report.is_legal, "\n".join(map(str, report.violations[:10]))
    return events


async def refused(work: Awaitable[Any], code: str = "") -> Refused:
    """The refusal that this ends with."""
    with pytest.raises(Refused) as caught:
        await work
    assert code in ("", caught.value.code), caught.value
    return caught.value


# -- the port itself


async def ask(store: Store, *requests: Request) -> list[Any]:
    """One transaction that makes these requests; their answers."""

    def work() -> Transaction[list[Any]]:
        answers = []
        for request in requests:
            answers.append((yield request))
        return answers

    return await store.transact(work)


async def write(store: Store, *puts: Put, events: Iterable[Event] = ()) -> None:
    """One transaction that only writes."""
    await ask(store, Write(list(puts), list(events)))


def put(record: Record, version: int = 0, **fields: Any) -> Put:
    """A record to write, which nobody waits for unless the case says so."""
    return Put(
        **{"record": record, "version": version, "ready_at": None, "due_at": None, "is_terminal": False, **fields}
    )


def fact(entity_id: str, rev: int = 1, *, at: int = START, run_id: str = "") -> Event:
    """An event that was not numbered yet."""
    return Event(
        0, at, TENANT, "attempt", entity_id, run_id, "CREATED", "QUEUED", "enqueued", "user:ada", "info", "", rev, {}
    )
