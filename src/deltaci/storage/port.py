"""The interface between the engine and a store.

A transaction is a generator: it yields requests, receives their answers, decides with pure code in between and returns
its result. A store runs the generator to its end inside one real transaction, in any thread or loop. So the same engine
runs over memory, SQLite and PostgreSQL, and in the simulator.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeVar

import msgspec

from deltaci.core.attempt import Attempt
from deltaci.core.errors import Unreachable
from deltaci.core.events import Event
from deltaci.core.job import Job
from deltaci.core.listing import ListKey
from deltaci.core.machine import Record, request_id_of
from deltaci.core.resource import Resource
from deltaci.core.results import JobResult, ResultKey
from deltaci.core.timers import group_fence
from deltaci.core.worker import required_labels
from deltaci.storage import commit_hints

T = TypeVar("T")
ReadyCounts = commit_hints.ReadyCounts
CommitHints = commit_hints.CommitHints
FREED_CAPACITY: Final = commit_hints.FREED_CAPACITY

CONTENDED: Final = "?"  # The answer if another transaction has locked the group.
SCAN_LIMIT: Final = 2000  # The maximum number of entries of a list that are scanned for one page.


def wall_clock() -> int:
    """Return the current time in microseconds since the epoch."""
    return time.time_ns() // 1000


class StoredRecord(msgspec.Struct, frozen=True, gc=False):
    """A record with two stored columns: `version` counts its writes, `due_at` is when the timers must process it.

    Wherever a store returns records, a record that cannot be decoded is replaced by an `UnreadableRecord`.
    """

    record: Record
    version: int
    due_at: int | None


class UnreadableRecord(Record, frozen=True, kw_only=True):
    """Stands for a stored record that cannot be decoded, so that only requests for this record fail."""

    problem: str


class Begin(msgspec.Struct, frozen=True):
    """The first request of most transactions: load these records and read the clock.

    Answer: `(now, [StoredRecord])`.
    """

    ids: tuple[str, ...]


class BeginClaim(msgspec.Struct, frozen=True):
    """The first request of a transaction with a single claim: read the store's clock and find ready attempts.

    Answer: `(now, [StoredRecord])`. An attempt is ready if its ready time is not after the store's time plus
    `clock_lead` microseconds, which is the time of the caller's clock.
    """

    tenant: str
    labels: tuple[str, ...]
    limit: int
    only_ids: tuple[str, ...] = ()
    clock_lead: int = 0


class Load(msgspec.Struct, frozen=True):
    """Load these records, also finished ones. Answer: `[StoredRecord]`, without ids that do not exist."""

    ids: tuple[str, ...]


class LoadJobs(msgspec.Struct, frozen=True):
    """Load all jobs of a run, also finished ones. Answer: `[StoredRecord]`."""

    run_id: str


class LoadList(msgspec.Struct, frozen=True):
    """Load all records of the tenant on this list, which has no finished records. Answer: `[StoredRecord]`."""

    tenant: str
    list: str


class FindReady(msgspec.Struct, frozen=True):
    """Find and lock the tenant's ready attempts that a worker with these labels may claim, the most urgent first.

    Answer: `[StoredRecord]`. The cost does not depend on other tenants. `only_ids`, if not empty, restricts the result
    to these ids. `excluded_groups` excludes the attempts of these concurrency groups and of all groups that are held;
    None ignores groups, which is cheaper.
    """

    tenant: str
    labels: tuple[str, ...]
    now: int
    limit: int
    only_ids: tuple[str, ...] = ()
    excluded_groups: tuple[str, ...] | None = None


def matching_queue_keys(queue_keys: Iterable[str], labels: Iterable[str]) -> list[str]:
    """Return the queue keys whose required labels are all among a worker's labels."""
    worker_labels = set(labels)
    return [queue_key for queue_key in queue_keys if required_labels(queue_key) <= worker_labels]


def matches_labels(stored_record: StoredRecord, labels: Iterable[str]) -> bool:
    """Return whether a worker with these labels may claim the attempt.

    True for an unreadable record, to be postponed.
    """
    record = stored_record.record
    return not isinstance(record, Attempt) or required_labels(record.queue_key) <= set(labels)


class ReadyAttempt(msgspec.Struct, frozen=True, gc=False):
    """An attempt that waits to be claimed.

    Its fields come from stored columns, so that its body need not be decoded.
    """

    tenant: str
    queue_key: str
    id: str
    ready_at: int


class FindDue(msgspec.Struct, frozen=True):
    """Find and lock records whose due time is not after `now`. Answer: `[StoredRecord]`."""

    now: int
    limit: int


class CountLiveLeases(msgspec.Struct, frozen=True):
    """Count the tenant's attempts with a live lease, up to `limit`. Answer: the number.

    The count is locked: until this transaction ends, no other transaction that counts the same tenant gets its answer.
    To avoid deadlocks, send this before all other requests, and for several tenants in sorted order.
    """

    tenant: str
    limit: int


class LockGroup(msgspec.Struct, frozen=True):
    """Lock a concurrency group of the tenant until this transaction ends.

    Answer: the id of the attempt that holds the group, "" if none does, or `CONTENDED` if another transaction has the
    lock. An attempt holds its group while it has a live lease and as long as the runner that lost it may still execute
    it, also after its own end.
    """

    tenant: str
    group: str
    now: int


class Postpone(msgspec.Struct, frozen=True):
    """Set the ready time and the due time of these records, unless they are NULL, to `until`. Answer: None.

    This is for unreadable records, which cannot be written. The version does not change, so that a server that can read
    them is not disturbed.
    """

    ids: tuple[str, ...]
    until: int


class FindRequests(msgspec.Struct, frozen=True):
    """Find requests that were moved out of their records, by record id and request id.

    Answer: `[MovedRequest]`, one for each that exists.
    """

    keys: tuple[tuple[str, str], ...]


class FindClaim(msgspec.Struct, frozen=True):
    """Find the leases that a worker's claim with this request id was granted. Answer: `[ClaimGrant]`, in order."""

    tenant: str
    worker_id: str
    request_id: str


class MovedRequest(msgspec.Struct, frozen=True, gc=False):
    """A request that was moved out of its record, because the record has many. See `core.machine.Record`."""

    record_id: str
    request: str

    @property
    def key(self) -> tuple[str, str]:
        """The record id and the request id."""
        return self.record_id, request_id_of(self.request)


class ClaimGrant(msgspec.Struct, frozen=True, gc=False):
    """One lease that was granted for a claim with a request id. `position` is its index among those of the claim."""

    tenant: str
    worker_id: str
    request_id: str
    position: int
    attempt_id: str
    lease_number: int

    @property
    def key(self) -> tuple[str, str, str]:
        """The tenant, the worker id and the request id."""
        return self.tenant, self.worker_id, self.request_id


class Put(msgspec.Struct, frozen=True, gc=False):
    """A record to write. `version` is the version that was read, 0 for a new record."""

    record: Record
    version: int
    ready_at: int | None
    due_at: int | None
    is_terminal: bool


class ListChange(msgspec.Struct, frozen=True):
    """The lists to which a record is added and from which it is removed. Lists are sorted by `created_at`, then id."""

    id: str
    created_at: int
    added: frozenset[ListKey]
    removed: frozenset[ListKey] = frozenset()


class Write(msgspec.Struct, frozen=True):
    """Write these records, each guarded by its version, and append the events. Answer: the `seq` of the last event.

    `is_last` promises that no request follows, so that the store may commit with the same statement. `freed_tenants`
    are tenants that may have more leases after this write; their waiting workers are woken.

    `moved_requests` and `claim_grants` are stored until the record that they name is deleted. A claim that was stored
    with grants before is a `Conflict`.

    `job_results` are sorted by key. Each replaces the stored result with its key, unless that one is later.
    """

    puts: list[Put]
    events: list[Event]
    is_last: bool = False
    list_changes: list[ListChange] = []
    freed_tenants: frozenset[str] = frozenset()
    moved_requests: list[MovedRequest] = []
    claim_grants: list[ClaimGrant] = []
    job_results: list[JobResult] = []


def ready_counts(write: Write) -> dict[tuple[str, str], int]:
    """Return how many attempts this write makes claimable, now or later, by tenant and queue key.

    For a tenant with freed capacity, the key FREED_CAPACITY has the count 1.
    """
    count_by_queue: dict[tuple[str, str], int] = {}
    for put in write.puts:
        record = put.record
        if put.ready_at is not None and isinstance(record, Attempt):
            queue = (record.tenant, record.queue_key)
            count_by_queue[queue] = count_by_queue.get(queue, 0) + 1
    for tenant in write.freed_tenants:
        count_by_queue[tenant, FREED_CAPACITY] = 1
    return count_by_queue


class GroupFence(NamedTuple):
    """A concurrency group that an ended attempt holds until a time, because its runner may still execute it."""

    tenant: str
    group: str
    fence_until: int
    attempt_id: str


def group_fences(write: Write) -> list[GroupFence]:
    """Return the groups that the ended attempts of this write keep, sorted, so that no two writers deadlock."""
    ended_attempts = [put.record for put in write.puts if put.is_terminal and isinstance(put.record, Attempt)]
    return sorted(
        GroupFence(ended_attempt.tenant, ended_attempt.group, fence_until, ended_attempt.id)
        for ended_attempt in ended_attempts
        if (fence_until := group_fence(ended_attempt)) is not None
    )


Request = (
    Begin
    | BeginClaim
    | Load
    | LoadJobs
    | LoadList
    | FindReady
    | FindDue
    | FindRequests
    | FindClaim
    | CountLiveLeases
    | LockGroup
    | Postpone
    | Write
)
Transaction = Generator[Request, Any, T]
ReadTransaction = Generator[Load | LoadJobs, list[StoredRecord], T]  # A transaction that only reads.


def run_transaction(transaction: Transaction[T], answer: Callable[[Request], Any]) -> tuple[T, ReadyCounts | None]:
    """Run a transaction to its end; `answer` returns the answer to each of its requests.

    Return the result of the transaction and how many attempts its writes made ready, None if it wrote nothing.
    """
    became_ready: ReadyCounts | None = None
    try:
        request = next(transaction)
        while True:
            if isinstance(request, Write):
                became_ready = {**(became_ready or {}), **ready_counts(request)}
            request = transaction.send(answer(request))
    except StopIteration as end:
        result: T = end.value
        return result, became_ready
    finally:
        transaction.close()


def load_jobs(run_id: str) -> ReadTransaction[list[Job]]:
    """A read transaction that returns all readable jobs of a run, also finished ones, in the order of the plan."""
    stored_records = yield LoadJobs(run_id)
    jobs = (stored_record.record for stored_record in stored_records if isinstance(stored_record.record, Job))
    return sorted(jobs, key=lambda job: job.position)


class ListPosition(msgspec.Struct, frozen=True, order=True):
    """A position on a list, given by the creation time and the id of a record."""

    created_at: int
    id: str


class ListQuery(msgspec.Struct, frozen=True, kw_only=True):
    """A query for records that are on all of these lists and older than the position `before`, newest first.

    It is restricted to since <= created_at < until, where 0 means no bound. Name the shortest list first: it is
    scanned, the others are only probed. At most `scan_limit` entries are scanned, so that the cost of a page is
    bounded: a page may be short or even empty although more follow.
    """

    tenant: str
    lists: Sequence[str]
    before: ListPosition | None = None
    since: int = 0
    until: int = 0
    limit: int
    scan_limit: int = SCAN_LIMIT


class RecordPage(msgspec.Struct, frozen=True):
    """A part of a list, newest first. `next` is the position after which the next page begins, or None at the end."""

    records: list[Record]
    next: ListPosition | None


class ResourceQuery(msgspec.Struct, frozen=True, kw_only=True):
    """A query for the resources of one kind that are not deleted: of one tenant, or of all if `tenant` is None.

    They are sorted by tenant and name. `after` is the tenant and the name of the last one of the page before.
    """

    kind: str
    tenant: str | None
    after: tuple[str, str] = ("", "")
    prefix: str = ""
    limit: int = 100


class Document(msgspec.Struct, frozen=True):
    """A small named value. Unlike a record, it has no state machine and no events; only its newest version is stored.

    `version` counts its writes, `at` is the time of the last write.
    """

    kind: str
    tenant: str
    name: str
    version: int
    at: int
    body: bytes


def is_storable_text(text: str) -> bool:
    """Return whether every store can store the text: it has neither NUL (PostgreSQL) nor lone surrogates."""
    try:
        return b"\x00" not in text.encode()
    except UnicodeEncodeError:
        return False


class Conflict(Exception):
    """Raised if another transaction wrote one of these records first. Nothing was written: load and decide again."""

    def __init__(self, ids: tuple[str, ...]) -> None:
        super().__init__(f"changed by another writer: {', '.join(ids)}")
        self.ids = ids


class Unavailable(Unreachable):
    """Raised if the store cannot be used now.

    The last transaction may have been committed: repeat it with its request ids.
    """


class Store(Protocol):
    """Stores records, their events, the index of lists, and documents."""

    @property
    def max_concurrent_transactions(self) -> int:
        """How many transactions may usefully run at the same time."""
        ...

    async def open(self) -> None:
        """Connect to the database and apply pending migrations."""
        ...

    async def close(self) -> None:
        """Close all connections."""
        ...

    async def transact(self, work: Callable[[], Transaction[T]]) -> T:
        """Run the transaction that `work` returns to its end, commit it and return its result.

        Raises `Conflict` if nothing was written, or `Unavailable`.
        """
        ...

    async def read(self, work: Callable[[], ReadTransaction[T]]) -> T:
        """Run the read-only transaction that `work` returns, beside writers, and return its result.

        It may or may not see commits that happen meanwhile.
        """
        ...

    async def find(self, id: str) -> Record | None:
        """Return the record, also if it is finished, or None. It is an `UnreadableRecord` if it cannot be decoded."""
        ...

    async def find_all(self, ids: Sequence[str]) -> list[Record]:
        """Return these records, also finished ones, in this order, without ids that do not exist."""
        ...

    async def page(self, query: ListQuery) -> RecordPage:
        """Return one page of the queried records, newest first. Records created later do not shift the next page."""
        ...

    async def count(self, tenant: str, list: str, limit: int) -> int:
        """Return how many records are on this list, counting up to `limit`."""
        ...

    async def find_api_key(self, name: str) -> Record | None:
        """Return the resource of the kind `core.resource.API_KEY` with this name, of any tenant, or None."""
        ...

    async def list_resources(self, query: ResourceQuery) -> list[Resource]:
        """Return one page of resources. Resources that cannot be decoded are left out."""
        ...

    async def administrative_events(self, tenant: str, before: int, limit: int) -> list[Event]:
        """Return up to `limit` of the tenant's administrative events with a `seq` below `before`, the newest first.

        They are the events of its resources, and those of its workers that a person caused.
        """
        ...

    async def find_document(self, kind: str, name: str, tenant: str) -> Document | None:
        """Return the document with this name, or None."""
        ...

    async def first_documents(self, kind: str, limit: int) -> list[Document]:
        """Return up to `limit` documents of this kind, of all tenants, by tenant and name."""
        ...

    async def put_documents(self, documents: Sequence[Document]) -> None:
        """Write all documents, each guarded by the version that was read (0 for a new document), or raise `Conflict`.

        The store writes version + 1 and its own time as `at`. Raises ValueError for a name that cannot be stored.
        """
        ...

    async def list_documents(
        self, kind: str, tenant: str, *, after: str = "", limit: int = 100, prefix: str = ""
    ) -> list[Document]:
        """Return up to `limit` of the tenant's documents with this name prefix, by name, after the name `after`."""
        ...

    async def delete_document(self, kind: str, tenant: str, name: str, version: int) -> bool:
        """Delete the document if it still has this version. Return whether it was deleted."""
        ...

    async def now(self) -> int:
        """Return the time of the store's clock, in microseconds."""
        ...

    async def events(self, after: int, limit: int, *, entity_id: str = "", run_id: str = "") -> list[Event]:
        """Return up to `limit` committed events with a `seq` above `after`, in order.

        Without an entity or run, the events of all records.
        """
        ...

    async def ready_attempts(self, before: int, limit: int) -> list[ReadyAttempt]:
        """Return up to `limit` claimable attempts of each queue of each tenant that became ready by `before`."""
        ...

    async def queued_attempts(self, tenant: str, limit: int, queues: int) -> list[ReadyAttempt]:
        """Return the tenant's queued attempts for display, also those not yet claimable or whose group is held.

        Up to `limit` attempts of each of the first `queues` queues: queues by name, attempts in the order of claims.
        """
        ...

    async def group_holder(self, tenant: str, group: str) -> str:
        """Return the id of the attempt that holds this concurrency group, or an empty string if none does.

        It may have ended: see `LockGroup`.
        """
        ...

    async def last_seq(self) -> int:
        """Return the `seq` of the newest committed event, 0 if there is none."""
        ...

    async def find_job_results(self, keys: Sequence[ResultKey]) -> list[JobResult]:
        """Return the stored results with these keys, without keys that have none."""
        ...

    async def delete_job_results(self, before: int, limit: int) -> int:
        """Delete up to `limit` results of jobs that ended before this time. Return how many."""
        ...

    @property
    def commit_hints(self) -> CommitHints:
        """The hints that are published after each commit."""
        ...

    async def prune(self, *, finished_before: int, events_before: int, limit: int) -> int:
        """Delete records that finished, and events that happened, before these times; up to `limit` of each.

        Return how many.
        """
        ...
