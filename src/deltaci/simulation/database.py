"""The simulated database: one shared store that survives every fault, and a connection to it for each server.

A transaction reads at one moment and commits later, so that another server may commit in between; the rev guard must
notice that. A connection may be slow or unavailable, or break so that the server cannot know whether its commit
succeeded. A server may also be killed right before or after a commit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Sequence
from random import Random
from typing import Any, Final

from deltaci.core.events import Event
from deltaci.core.machine import Record
from deltaci.core.resource import Resource
from deltaci.core.results import JobResult, ResultKey
from deltaci.storage.commit_hints import CommitHints, ReadyCounts
from deltaci.storage.memory import MemoryStore
from deltaci.storage.port import (
    Conflict,
    CountLiveLeases,
    Document,
    ListQuery,
    LockGroup,
    ReadTransaction,
    ReadyAttempt,
    RecordPage,
    Request,
    ResourceQuery,
    T,
    Transaction,
    Unavailable,
    Write,
    ready_counts,
)

HINT_SECONDS: Final = 0.005
# Reads of a transaction whose answers must still be the same when it commits, with these answers.
LockedReads = list[tuple[CountLiveLeases | LockGroup, Any]]


class SharedDatabase(MemoryStore):
    """The store that all servers share.

    `on_commit` is called with the events of each commit, before a server sees them.
    """

    def __init__(self, clock: Callable[[], int], on_commit: Callable[[list[Event]], None]) -> None:
        super().__init__(clock)
        self._on_commit = on_commit
        self.connections: list[ServerConnection] = []

    async def commit(self, write: Write) -> int:
        """Apply a write atomically and pass its events to `on_commit`. Return the new last seq."""
        event_count = len(self._events)
        last_seq: int = await self.transact(lambda: _single_request(write))
        self._on_commit(self._events[event_count:])
        return last_seq

    def answer_read(self, request: Request) -> Any:
        """Return the answer to a read request of a transaction."""
        return self._answer(request)

    def log(self) -> list[Event]:
        """Return all stored events."""
        return list(self._events)

    def record(self, record_id: str) -> Record | None:
        """Return the stored record with this id; None if there is none."""
        stored_rows = self._load((record_id,))
        return stored_rows[0].record if stored_rows else None


class ConnectionFaults:
    """The faults of one connection that are active now; set by the fault injector."""

    def __init__(self) -> None:
        self.is_unavailable = False
        self.slow_seconds = 0.0
        self.break_at_commit = ""  # "before" or "after": when the connection breaks at the next commit.
        self.kill_at_commit = ""  # The same, but the server is killed.
        self.loses_hints = False  # Commit hints of other servers are lost.


class ServerConnection:
    """The connection of one server to the shared store, with its faults."""

    max_concurrent_transactions = 1

    def __init__(
        self, database: SharedDatabase, random: Random, kill_server: Callable[[], None], poll_seconds: float
    ) -> None:
        self._database = database
        self._random = random
        self._kill_server = kill_server
        self.faults = ConnectionFaults()
        self.commit_hints = CommitHints(poll_seconds)
        self.commit_count = 0
        database.connections.append(self)

    async def open(self) -> None:
        """Do nothing: the connection works from its creation on."""

    async def close(self) -> None:
        """Remove the connection from the database, so that it receives no more commit hints."""
        if self in self._database.connections:
            self._database.connections.remove(self)

    async def transact(self, work: Callable[[], Transaction[T]]) -> T:
        """Run a transaction: it reads now and commits a little later, so that another server may commit in between."""
        await self._check_available()
        transaction = work()
        locked_reads: LockedReads = []
        try:
            store_request = next(transaction)
            while True:
                if isinstance(store_request, Write):
                    answer = await self._commit(store_request, locked_reads)
                else:
                    answer = self._database.answer_read(store_request)
                if isinstance(store_request, CountLiveLeases | LockGroup):
                    locked_reads.append((store_request, answer))
                store_request = transaction.send(answer)
        except StopIteration as end:
            result: T = end.value
            return result
        finally:
            transaction.close()

    async def _check_available(self) -> None:
        """Raise `Unavailable` after a second, if a fault makes the database unavailable."""
        if self.faults.is_unavailable:
            await asyncio.sleep(1.0)
            raise Unavailable("the database is unavailable")

    async def _commit(self, write: Write, locked_reads: LockedReads) -> int:
        """Commit a write with the faults of this connection. Raise `Conflict` if a locked read has changed."""
        faults = self.faults
        if faults.slow_seconds:
            await asyncio.sleep(faults.slow_seconds * self._random.random())
        await self._check_available()
        await self._inject_fault("before")
        # There are no locks here: repeat the locked reads, and fail if another commit changed their answers.
        if any(self._database.answer_read(request) > answer for request, answer in locked_reads):
            raise Conflict(())
        last_seq = await self._database.commit(write)
        self.commit_count += 1
        counts_of_ready = ready_counts(write)
        for connection in self._database.connections:
            connection.send_hints(counts_of_ready, is_committed_here=connection is self)
        await self._inject_fault("after")
        return last_seq

    async def _inject_fault(self, moment: str) -> None:
        """Kill the server or break the connection, if a fault demands it at this moment: before or after the commit."""
        if self.faults.kill_at_commit == moment:
            self._kill_server()
            await asyncio.get_running_loop().create_future()  # Never returns: this server is dead.
        if self.faults.break_at_commit == moment:
            self.faults.break_at_commit = ""
            raise Unavailable("the connection to the database was lost")

    def send_hints(self, ready: ReadyCounts, *, is_committed_here: bool) -> None:
        """Pass the hints of a commit to this server, a little later if another server made the commit."""
        if is_committed_here:
            self.commit_hints.publish(ready)
        elif not self.faults.loses_hints:
            asyncio.get_running_loop().call_later(HINT_SECONDS, self.commit_hints.publish, ready)

    async def read(self, work: Callable[[], ReadTransaction[T]]) -> T:
        await self._check_available()
        return await self._database.read(work)

    async def find(self, id: str) -> Record | None:
        await self._check_available()
        return await self._database.find(id)

    async def find_all(self, ids: Sequence[str]) -> list[Record]:
        await self._check_available()
        return await self._database.find_all(ids)

    async def page(self, search: ListQuery) -> RecordPage:
        await self._check_available()
        return await self._database.page(search)

    async def count(self, tenant: str, list: str, limit: int) -> int:
        await self._check_available()
        return await self._database.count(tenant, list, limit)

    async def find_api_key(self, name: str) -> Record | None:
        await self._check_available()
        return await self._database.find_api_key(name)

    async def list_resources(self, query: ResourceQuery) -> list[Resource]:
        await self._check_available()
        return await self._database.list_resources(query)

    async def administrative_events(self, tenant: str, before: int, limit: int) -> list[Event]:
        await self._check_available()
        return await self._database.administrative_events(tenant, before, limit)

    async def first_documents(self, kind: str, limit: int) -> list[Document]:
        await self._check_available()
        return await self._database.first_documents(kind, limit)

    async def find_document(self, kind: str, name: str, tenant: str) -> Document | None:
        await self._check_available()
        return await self._database.find_document(kind, name, tenant)

    async def put_documents(self, documents: Sequence[Document]) -> None:
        await self._check_available()
        await self._database.put_documents(documents)

    async def list_documents(
        self, kind: str, tenant: str, *, after: str = "", limit: int = 100, prefix: str = ""
    ) -> list[Document]:
        await self._check_available()
        return await self._database.list_documents(kind, tenant, after=after, limit=limit, prefix=prefix)

    async def delete_document(self, kind: str, tenant: str, name: str, version: int) -> bool:
        await self._check_available()
        return await self._database.delete_document(kind, tenant, name, version)

    async def now(self) -> int:
        await self._check_available()
        return await self._database.now()

    async def events(self, after: int, limit: int, *, entity_id: str = "", run_id: str = "") -> list[Event]:
        await self._check_available()
        return await self._database.events(after, limit, entity_id=entity_id, run_id=run_id)

    async def last_seq(self) -> int:
        await self._check_available()
        return await self._database.last_seq()

    async def ready_attempts(self, before: int, limit: int) -> list[ReadyAttempt]:
        await self._check_available()
        return await self._database.ready_attempts(before, limit)

    async def queued_attempts(self, tenant: str, limit: int, queues: int) -> list[ReadyAttempt]:
        await self._check_available()
        return await self._database.queued_attempts(tenant, limit, queues)

    async def group_holder(self, tenant: str, group: str) -> str:
        await self._check_available()
        return await self._database.group_holder(tenant, group)

    async def find_job_results(self, keys: Sequence[ResultKey]) -> list[JobResult]:
        await self._check_available()
        return await self._database.find_job_results(keys)

    async def delete_job_results(self, before: int, limit: int) -> int:
        await self._check_available()
        return await self._database.delete_job_results(before, limit)

    async def prune(self, *, finished_before: int, events_before: int, limit: int) -> int:
        await self._check_available()
        return await self._database.prune(finished_before=finished_before, events_before=events_before, limit=limit)


def _single_request(request: Request) -> Generator[Request, Any, Any]:
    """Make a transaction of one request, which returns its answer."""
    answer = yield request
    return answer
