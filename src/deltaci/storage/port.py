"""What the engine asks of a store, and nothing more.

A transaction is a generator: it yields requests and gets their answers, decides purely in between, and
returns its result. A store runs it to its end inside one real transaction, in whatever thread or loop it
likes; so the same engine runs over memory, SQLite and PostgreSQL, and under a simulator.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any, Final, Protocol, TypeVar

import msgspec

from deltaci.core.attempt import Attempt
from deltaci.core.events import Event
from deltaci.core.job import Job
from deltaci.core.listing import ListKey
from deltaci.core.machine import Record
from deltaci.core.worker import required_labels
from deltaci.storage import commit_hints

T = TypeVar("T")
ReadyCounts = commit_hints.ReadyCounts
CommitHints = commit_hints.CommitHints
FREED_CAPACITY: Final = commit_hints.FREED_CAPACITY

API_KEY_KIND: Final = "key"  # The kind of documents that are found by their names alone: only they say whose they are.
CONTENDED: Final = "?"  # Somebody else takes the group right now, or leaves it.
SCAN_LIMIT: Final = 2000  # So many entries of a list are looked at for one page, at most.


class StoredRecord(msgspec.Struct, frozen=True, gc=False):
    """A record as it is stored: `version` counts its writes, `due_at` is when the timers look at it.

    One that cannot be decoded is `Unreadable`, wherever records are answered.
    """

    record: Record
    version: int
    due_at: int | None


class UnreadableRecord(Record, frozen=True, kw_only=True):
    """Stands for a stored record whose bytes make no sense, so that it troubles only those who ask for it."""

    problem: str


class Begin(msgspec.Struct, frozen=True):
    """Start: load these records and read the store's clock. Answered by `(now, [Held])`."""

    ids: tuple[str, ...]


class BeginClaim(msgspec.Struct, frozen=True):
    """Start what is only a claim: read the store's clock and find what is ready by it. Answered by `(now, [Held])`.

    Who decides by a time that is ahead of the store's clock, or behind it, says by how much: `lead`.
    """

    tenant: str
    labels: tuple[str, ...]
    limit: int
    only_ids: tuple[str, ...] = ()
    clock_lead: int = 0


class Load(msgspec.Struct, frozen=True):
    """Load these records, finished ones too. Answered by `[Held]`; what does not exist is left out."""

    ids: tuple[str, ...]


class LoadJobs(msgspec.Struct, frozen=True):
    """Load every job of a run. Answered by `[Held]`."""

    run_id: str


class FindReady(msgspec.Struct, frozen=True):
    """Attempts that a worker with these labels may claim now, best first, and nobody else's meanwhile: `[Held]`.

    Only this tenant's: what another one has waiting is neither found nor walked past. With `only`, those among them
    that have one of these ids. `without` these groups, and without every other that somebody has; where it is None,
    nobody looks after groups, which costs less.
    """

    tenant: str
    labels: tuple[str, ...]
    now: int
    limit: int
    only_ids: tuple[str, ...] = ()
    excluded_groups: tuple[str, ...] | None = None


def matching_queue_keys(queue_keys: Iterable[str], labels: Iterable[str]) -> list[str]:
    """The queues from which a worker with these labels may take."""
    offered = set(labels)
    return [key for key in queue_keys if required_labels(key) <= offered]


def matches_labels(held: StoredRecord, labels: Iterable[str]) -> bool:
    """Whether a worker with these labels may take it. One that cannot be read concerns whoever finds it."""
    record = held.record
    return not isinstance(record, Attempt) or required_labels(record.queue_key) <= set(labels)


class ReadyAttempt(msgspec.Struct, frozen=True, gc=False):
    """An attempt that waits to be claimed, by what the store knows of it without reading it."""

    tenant: str
    queue_key: str
    id: str
    ready_at: int


class FindDue(msgspec.Struct, frozen=True):
    """Records whose time has come, and nobody else's meanwhile. Answered by `[Held]`."""

    now: int
    limit: int


class CountLiveLeases(msgspec.Struct, frozen=True):
    """How many of the tenant's attempts have a live lease: counted, up to `limit`. Answered by that number.

    Until this transaction ends, nobody else's that counts the same tenant is answered: what is decided by the number
    stays true until it is written. Ask for it first, and for many tenants in their order: nobody then waits for this
    with something in hand that another one needs.
    """

    tenant: str
    limit: int


class LockGroup(msgspec.Struct, frozen=True):
    """Who has this group of the tenant: the id of the attempt, "" if nobody has, `DISPUTED` if that is being decided.

    An attempt has its group while it has a live lease; and while it lost one and may not be claimed again yet. If
    nobody has it, it is nobody else's until this transaction ends.
    """

    tenant: str
    group: str
    now: int


class Postpone(msgspec.Struct, frozen=True):
    """Neither ready nor due before then, if they are at all; nothing else of them changes. Answered by `None`.

    For records that cannot be read, and so cannot be written: whoever can read them is not disturbed.
    """

    ids: tuple[str, ...]
    until: int


class Put(msgspec.Struct, frozen=True, gc=False):
    """One record to write. `version` is the one it was read at; 0 for a record that is new."""

    record: Record
    version: int
    ready_at: int | None
    due_at: int | None
    is_terminal: bool


class ListChange(msgspec.Struct, frozen=True):
    """On which lists a record is from now on, and on which no longer. `at` is when it was created: its place there."""

    id: str
    created_at: int
    added: frozenset[ListKey]
    removed: frozenset[ListKey] = frozenset()


class Write(msgspec.Struct, frozen=True):
    """Write the records, each guarded by its version, and append the events. Answered by the last event's seq.

    After the last one nothing is asked any more: the store may commit together with it. `freed` are tenants who may
    have room for more leases by it, for whoever waits for that.
    """

    puts: list[Put]
    events: list[Event]
    is_last: bool = False
    list_changes: list[ListChange] = []
    freed_tenants: frozenset[str] = frozenset()


def ready_counts(write: Write) -> dict[tuple[str, str], int]:
    """What can be claimed once this is committed, now or later: how much of each tenant in each queue."""
    found: dict[tuple[str, str], int] = {}
    for put in write.puts:
        record = put.record
        if put.ready_at is not None and isinstance(record, Attempt):
            name = (record.tenant, record.queue_key)
            found[name] = found.get(name, 0) + 1
    for tenant in write.freed_tenants:
        found[tenant, FREED_CAPACITY] = 1
    return found


Request = Begin | BeginClaim | Load | LoadJobs | FindReady | FindDue | CountLiveLeases | LockGroup | Postpone | Write
Transaction = Generator[Request, Any, T]
ReadTransaction = Generator[Load | LoadJobs, list[StoredRecord], T]  # One that only reads.


def load_jobs(run_id: str) -> ReadTransaction[list[Job]]:
    """A look at all jobs of a run that can be read, finished ones too, in the order of the plan."""
    held = yield LoadJobs(run_id)
    return sorted((each.record for each in held if isinstance(each.record, Job)), key=lambda each: each.position)


class ListPosition(msgspec.Struct, frozen=True, order=True):
    """A place on a list: records that were created at one moment are told apart by their ids."""

    created_at: int
    id: str


class ListQuery(msgspec.Struct, frozen=True, kw_only=True):
    """What is on all of these lists, from `before` on: since <= at < until, 0 is open.

    Name the list first that holds the least: it is walked, the others are only asked about what is on it. At most
    `budget` of its entries are looked at, so that a page costs the same however much there is: one may be short, or
    empty, and go on all the same.
    """

    tenant: str
    lists: Sequence[str]
    before: ListPosition | None = None
    since: int = 0
    until: int = 0
    limit: int
    scan_limit: int = SCAN_LIMIT


class RecordPage(msgspec.Struct, frozen=True):
    """A part of a list, newest first. It goes on behind `next`; None: nothing is left."""

    records: list[Record]
    next: ListPosition | None


class Document(msgspec.Struct, frozen=True):
    """Something small that people wrote and may write again: no machine, no events, only its newest version.

    `version` counts its writes, `at` is when the last one was.
    """

    kind: str
    tenant: str
    name: str
    version: int
    at: int
    body: bytes


def is_storable_text(text: str) -> bool:
    """Whether every store can keep this text: PostgreSQL knows no null character, and nobody half of one."""
    try:
        return b"\x00" not in text.encode()
    except UnicodeEncodeError:
        return False


class Conflict(Exception):
    """Somebody else wrote one of these records first. Nothing was written: load and decide again."""

    def __init__(self, ids: tuple[str, ...]) -> None:
        super().__init__(f"written by somebody else: {', '.join(ids)}")
        self.ids = ids


class Unavailable(Exception):
    """The store cannot be used now. Whether the last transaction stands is unknown: repeat it with its request ids."""


class Store(Protocol):
    """A place that keeps records and their events."""

    @property
    def max_concurrent_transactions(self) -> int:
        """How many transactions may usefully run side by side."""
        ...

    async def open(self) -> None:
        """Make it ready: connect, and bring its tables up to date."""
        ...

    async def close(self) -> None:
        """Let go of everything."""
        ...

    async def transact(self, work: Callable[[], Transaction[T]]) -> T:
        """Run one transaction to its end. Raises `Conflict` or `Unavailable`, and then nothing was written."""
        ...

    async def read(self, work: Callable[[], ReadTransaction[T]]) -> T:
        """Run one that only reads to its end, beside whoever writes. What is committed meanwhile it may see, or not."""
        ...

    async def find(self, id: str) -> Record | None:
        """The record as it is now, finished ones too; `Unreadable` when its bytes make no sense."""
        ...

    async def find_all(self, ids: Sequence[str]) -> list[Record]:
        """These records, in this order; what does not exist is left out."""
        ...

    async def page(self, search: ListQuery) -> RecordPage:
        """The records that were searched for, newest first. What is created later never changes what comes next."""
        ...

    async def count(self, tenant: str, list: str, limit: int) -> int:
        """How many are on this list; counts no further than `limit`."""
        ...

    async def find_document(self, kind: str, name: str, tenant: str = "") -> Document | None:
        """The document of this name. A key is found without its tenant, and nothing else is."""
        ...

    async def put_documents(self, documents: Sequence[Document]) -> None:
        """Write them all, each guarded by the version that was read, 0 for a new one; or raise `Conflict`.

        Stored are version + 1 and the store's time, whatever `at` says. A name that is not `storable` is a ValueError.
        """
        ...

    async def list_documents(
        self, kind: str, tenant: str, *, after: str = "", limit: int = 100, prefix: str = ""
    ) -> list[Document]:
        """The tenant's documents of this kind whose names begin like this, in the order of names, behind `after`."""
        ...

    async def delete_document(self, kind: str, tenant: str, name: str, version: int) -> bool:
        """Drop it, if it is still this version of it. Whether it was."""
        ...

    async def now(self) -> int:
        """The store's clock."""
        ...

    async def events(self, after: int, limit: int, *, entity_id: str = "", run_id: str = "") -> list[Event]:
        """Committed events with a greater seq, in order, of everything or of one entity or run."""
        ...

    async def ready_attempts(self, before: int, limit: int) -> list[ReadyAttempt]:
        """What waits to be claimed since before then: of every queue of every tenant so many, best first."""
        ...

    async def queued_attempts(self, tenant: str, limit: int, queues: int) -> list[ReadyAttempt]:
        """What this tenant has in its queues, also for later and of groups that somebody has: for people to look at.

        Of at most so many queues, in the order of their names, the first `limit` of each, in the order of claims.
        """
        ...

    async def group_holder(self, tenant: str, group: str) -> str:
        """The id of the attempt that has this group now; "" if nobody has."""
        ...

    async def last_seq(self) -> int:
        """The seq of the newest committed event."""
        ...

    @property
    def commit_hints(self) -> CommitHints:
        """Who wants to know when something was committed."""
        ...

    async def prune(self, *, finished_before: int, events_before: int, limit: int) -> int:
        """Drop what its retention no longer covers, at most `limit` of each. How much was dropped."""
        ...
