"""A database in the simulated world: one disk that survives everything, and a connection to it for each server.

A transaction reads at one moment and writes at a later one, so another server's commit may come in between: then the
version guard says so. A connection may be slow, away, or break off when nobody knows whether the commit stands; and a
server may die right before a commit, or right after it, before anybody was told.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Sequence
from random import Random
from typing import Any, Final

from deltaci.core.events import Event
from deltaci.core.machine import Record
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
    T,
    Transaction,
    Unavailable,
    Write,
    ready_counts,
)

HINT_SECONDS: Final = 0.005
Counted = list[
    tuple[CountLiveLeases | LockGroup, Any]
]  # What a transaction was told that must stay true until it commits.


class Disk(MemoryStore):
    """What is kept. `seen` is told the events of every commit, and before anybody else."""

    def __init__(self, clock: Callable[[], int], seen: Callable[[list[Event]], None]) -> None:
        super().__init__(clock)
        self._seen = seen
        self.connections: list[Connection] = []

    async def commit(self, write: Write) -> int:
        """All of it or nothing."""
        count = len(self._events)
        seq: int = await self.transact(lambda: _once(write))
        self._seen(self._events[count:])
        return seq

    def answer_read(self, request: Request) -> Any:
        """Answer what only asks."""
        return self._answer(request)

    def log(self) -> list[Event]:
        """All of it, for whoever compares it with what was seen."""
        return list(self._events)

    def record(self, id: str) -> Record | None:
        """What is stored under this id."""
        found = self._load((id,))
        return found[0].record if found else None


class Troubles:
    """What is wrong with a connection now. Changed by whoever makes the faults."""

    def __init__(self) -> None:
        self.is_away = False
        self.slow_seconds = 0.0
        self.break_next = ""  # "before" or "after" the next commit the connection breaks.
        self.die_next = ""  # The same, but the server dies.
        self.deaf = False  # Whether hints of others get lost.


class Connection:
    """A store, as one server sees it."""

    max_concurrent_transactions = 1

    def __init__(self, disk: Disk, random: Random, die: Callable[[], None], poll_seconds: float) -> None:
        self._disk = disk
        self._random = random
        self._die = die
        self.troubles = Troubles()
        self.commit_hints = CommitHints(poll_seconds)
        self.commits = 0
        disk.connections.append(self)

    async def open(self) -> None:
        """Nothing to do."""

    async def close(self) -> None:
        """Be told nothing more."""
        if self in self._disk.connections:
            self._disk.connections.remove(self)

    async def transact(self, work: Callable[[], Transaction[T]]) -> T:
        """Read now, write a little later."""
        await self._reach()
        transaction = work()
        counted: Counted = []
        try:
            request = next(transaction)
            while True:
                if isinstance(request, Write):
                    answer = await self._commit(request, counted)
                else:
                    answer = self._disk.answer_read(request)
                if isinstance(request, CountLiveLeases | LockGroup):
                    counted.append((request, answer))
                request = transaction.send(answer)
        except StopIteration as end:
            result: T = end.value
            return result
        finally:
            transaction.close()

    async def _reach(self) -> None:
        if self.troubles.is_away:
            await asyncio.sleep(1.0)
            raise Unavailable("the database is away")

    async def _commit(self, write: Write, counted: Counted) -> int:
        troubles = self.troubles
        if troubles.slow_seconds:
            await asyncio.sleep(troubles.slow_seconds * self._random.random())
        await self._reach()
        await self._trouble("before")
        # Nobody holds a lock here: whoever comes later counts anew. A group that nobody had may have been taken.
        if any(self._disk.answer_read(request) > answer for request, answer in counted):
            raise Conflict(())
        seq = await self._disk.commit(write)
        self.commits += 1
        arrived = ready_counts(write)
        for connection in self._disk.connections:
            connection.hear(arrived, is_own=connection is self)
        await self._trouble("after")
        return seq

    async def _trouble(self, when: str) -> None:
        if self.troubles.die_next == when:
            self._die()
            await asyncio.get_running_loop().create_future()  # Never: nothing of this server happens any more.
        if self.troubles.break_next == when:
            self.troubles.break_next = ""
            raise Unavailable("the connection to the database broke off")

    def hear(self, arrived: ReadyCounts, *, is_own: bool) -> None:
        """Something was committed, here or elsewhere."""
        if is_own:
            self.commit_hints.publish(arrived)
        elif not self.troubles.deaf:
            asyncio.get_running_loop().call_later(HINT_SECONDS, self.commit_hints.publish, arrived)

    async def read(self, work: Callable[[], ReadTransaction[T]]) -> T:
        """Read now."""
        await self._reach()
        return await self._disk.read(work)

    async def find(self, id: str) -> Record | None:
        """The record as it is now."""
        await self._reach()
        return await self._disk.find(id)

    async def find_all(self, ids: Sequence[str]) -> list[Record]:
        """These records."""
        await self._reach()
        return await self._disk.find_all(ids)

    async def page(self, search: ListQuery) -> RecordPage:
        """What is on all of these lists."""
        await self._reach()
        return await self._disk.page(search)

    async def count(self, tenant: str, list: str, limit: int) -> int:
        """How many are on this list."""
        await self._reach()
        return await self._disk.count(tenant, list, limit)

    async def find_document(self, kind: str, name: str, tenant: str = "") -> Document | None:
        """The document of this name."""
        await self._reach()
        return await self._disk.find_document(kind, name, tenant)

    async def put_documents(self, documents: Sequence[Document]) -> None:
        """All of them or none."""
        await self._reach()
        await self._disk.put_documents(documents)

    async def list_documents(
        self, kind: str, tenant: str, *, after: str = "", limit: int = 100, prefix: str = ""
    ) -> list[Document]:
        """The tenant's documents."""
        await self._reach()
        return await self._disk.list_documents(kind, tenant, after=after, limit=limit, prefix=prefix)

    async def delete_document(self, kind: str, tenant: str, name: str, version: int) -> bool:
        """Drop it, if it is still this version of it."""
        await self._reach()
        return await self._disk.delete_document(kind, tenant, name, version)

    async def now(self) -> int:
        """The clock of the disk's machine."""
        await self._reach()
        return await self._disk.now()

    async def events(self, after: int, limit: int, *, entity_id: str = "", run_id: str = "") -> list[Event]:
        """Committed events, in order."""
        await self._reach()
        return await self._disk.events(after, limit, entity_id=entity_id, run_id=run_id)

    async def last_seq(self) -> int:
        """The newest seq."""
        await self._reach()
        return await self._disk.last_seq()

    async def ready_attempts(self, before: int, limit: int) -> list[ReadyAttempt]:
        """What is ready to be claimed."""
        await self._reach()
        return await self._disk.ready_attempts(before, limit)

    async def queued_attempts(self, tenant: str, limit: int, queues: int) -> list[ReadyAttempt]:
        """What a tenant has in its queues."""
        await self._reach()
        return await self._disk.queued_attempts(tenant, limit, queues)

    async def group_holder(self, tenant: str, group: str) -> str:
        """Who has this group now."""
        await self._reach()
        return await self._disk.group_holder(tenant, group)

    async def prune(self, *, finished_before: int, events_before: int, limit: int) -> int:
        """Drop what is old."""
        await self._reach()
        return await self._disk.prune(finished_before=finished_before, events_before=events_before, limit=limit)


def _once(request: Request) -> Generator[Request, Any, Any]:
    answer = yield request
    return answer
