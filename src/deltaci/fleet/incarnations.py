"""Incarnations of workers: a worker that was shut down never changes; its machine comes back as a new record.

The records of a name are numbered: `NAME`, `NAME/2`, `NAME/3`. A document beside the records has the number of the
latest incarnation. It may be behind by a few after a crash between the two writes, so the search continues after it. A
worker that a person removed may return only with a registration token that is newer than its removal, which is a
resource.
"""

from __future__ import annotations

from typing import Final

import msgspec

from deltaci.core.ids import incarnation_id
from deltaci.core.worker import Worker, is_over, may_return
from deltaci.engine.engine import Engine
from deltaci.engine.resources import Resources
from deltaci.engine.unreadable_records import unreadable_refusal
from deltaci.storage.documents import TypedDocuments
from deltaci.storage.port import Store

KIND: Final = "life"
REMOVAL: Final = "worker-removal"
MAX_UNCOUNTED: Final = 100  # Incarnations that were created but not counted because of a crash.


class IncarnationCounter(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The stored document about a worker name: the number of its latest incarnation.

    Earlier versions stored its removal here, too.
    """

    number: int = 1
    removed_at: int = 0
    removed_by: str = ""


class WorkerRemoval(msgspec.Struct, frozen=True, kw_only=True):
    """That a person removed an incarnation of a worker, and when."""

    number: int
    removed_at: int
    removed_by: str


class Incarnation(msgspec.Struct, frozen=True, kw_only=True):
    """The latest incarnation of a worker name: its number and its record.

    `worker` is None if no worker of this name was ever registered.
    """

    name: str
    number: int
    worker: Worker | None
    removed_at: int = 0

    @property
    def id(self) -> str:
        """The id of this incarnation's worker record."""
        return incarnation_id(self.name, self.number)

    @property
    def next_id(self) -> str:
        """The id that the worker record of the next incarnation will have."""
        return incarnation_id(self.name, self.number + 1)

    @property
    def is_over(self) -> bool:
        """Whether this incarnation was shut down."""
        return self.worker is not None and is_over(self.worker)

    @property
    def may_return(self) -> bool:
        """Whether the worker's machine may register a new incarnation without a new registration token."""
        return self.worker is not None and may_return(self.worker) and not self.removed_at

    def accepts_token(self, made_at: int, *, is_recovery: bool) -> bool:
        """Return whether a machine can register the next incarnation with a token that was created at `made_at`.

        The token must be newer than the end of this incarnation. A recovery token, for a machine that lost its
        credential, need only be newer than the token that registered this incarnation, if the worker may return.
        """
        if self.worker is None:
            return True
        ended_at = self.removed_at or self.worker.updated_at
        return made_at > (self.worker.token_at if is_recovery and self.may_return else ended_at)


class Incarnations:
    """Finds the latest incarnation of a worker name, and stores its number and removal."""

    def __init__(self, engine: Engine, store: Store) -> None:
        self._store = store
        self._removals = Resources(engine, store, REMOVAL, WorkerRemoval)
        self._counters = TypedDocuments(store, KIND, IncarnationCounter)

    async def latest(self, tenant: str, worker_name: str) -> Incarnation:
        """Return the latest incarnation of a tenant's worker name. Raise `Refused` if its record cannot be decoded."""
        counter = await self._counters.find(tenant, worker_name) or IncarnationCounter()
        number, worker = counter.number, await self._find_worker(tenant, incarnation_id(worker_name, counter.number))
        for _ in range(MAX_UNCOUNTED):
            if worker is None or not is_over(worker):
                break
            next_worker = await self._find_worker(tenant, incarnation_id(worker_name, number + 1))
            if next_worker is None:
                break
            number, worker = number + 1, next_worker
        removal = await self._removals.find(tenant, worker_name)
        removed_at = counter.removed_at if number == counter.number else 0
        if removal is not None and removal.number == number:
            removed_at = removal.removed_at
        return Incarnation(name=worker_name, number=number, worker=worker, removed_at=removed_at)

    async def _find_worker(self, tenant: str, worker_id: str) -> Worker | None:
        record = await self._store.find(worker_id)
        if (refusal := unreadable_refusal(record)) is not None:
            raise refusal
        return record if isinstance(record, Worker) and record.tenant == tenant else None

    async def count_next(self, tenant: str, previous_incarnation: Incarnation) -> None:
        """Store that the incarnation after `previous_incarnation` was created: its number is now the latest one.

        Repeating it has no effect.
        """
        next_number = previous_incarnation.number + 1

        def advance_counter(counter: IncarnationCounter | None) -> IncarnationCounter | None:
            is_behind = counter is None or counter.number < next_number
            return IncarnationCounter(number=next_number) if is_behind else None

        await self._counters.update(tenant, previous_incarnation.name, advance_counter)

    async def mark_removed(self, tenant: str, incarnation: Incarnation, actor: str, removed_at: int) -> None:
        """Store that a person removed the worker, unless it was removed already or a later incarnation exists."""
        removal = await self._removals.find(tenant, incarnation.name)
        if incarnation.removed_at or (removal is not None and removal.number >= incarnation.number):
            return
        new_removal = WorkerRemoval(number=incarnation.number, removed_at=removed_at, removed_by=actor)
        await self._removals.put(tenant, incarnation.name, new_removal, actor=actor)
