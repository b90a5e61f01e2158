"""A store in memory, for tests, the simulator and trials.

Like the other stores it keeps records as encoded bytes, so that a caller who changes a record does not change the
stored one.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

import msgspec

from deltaci.core.attempt import Attempt
from deltaci.core.events import Event, with_seq
from deltaci.core.machine import Record
from deltaci.core.resource import API_KEY, PRESENT, Resource
from deltaci.core.results import JobResult, ResultKey
from deltaci.core.timers import group_fence
from deltaci.storage.codec import (
    ATTEMPT_KIND,
    JOB_KIND,
    KIND_OF,
    RESOURCE_KIND,
    decode_record,
    encode,
    is_administrative,
)
from deltaci.storage.commit_hints import CommitHints
from deltaci.storage.document_backends import MemoryDocuments
from deltaci.storage.list_index import MemoryListIndex, removals
from deltaci.storage.port import (
    Begin,
    BeginClaim,
    ClaimGrant,
    Conflict,
    CountLiveLeases,
    Document,
    FindClaim,
    FindDue,
    FindReady,
    FindRequests,
    ListChange,
    ListQuery,
    Load,
    LoadJobs,
    LoadList,
    LockGroup,
    MovedRequest,
    Postpone,
    Put,
    ReadTransaction,
    ReadyAttempt,
    RecordPage,
    Request,
    ResourceQuery,
    StoredRecord,
    T,
    Transaction,
    Write,
    matches_labels,
    matching_queue_keys,
    run_transaction,
    wall_clock,
)
from deltaci.storage.resources import matches
from deltaci.storage.sql import group_name

ReadyKey = tuple[int, int, str]
NO_END = 2**63 - 1  # A group that is held by a live lease becomes free at no known time.
QueueName = tuple[str, str]  # Tenant and queue key.


class _Row(msgspec.Struct, frozen=True):
    """The columns of a record, as in a database table. `version` is 0 for a finished record."""

    id: str
    kind: int
    tenant: str
    run_id: str
    version: int
    due_at: int | None
    ready: tuple[QueueName, ReadyKey] | None
    ended_at: int
    body: bytes
    group: str = ""
    group_fence: int | None = None

    @property
    def held_until(self) -> int | None:
        """Until when the record holds its concurrency group, or None if it does not hold one."""
        if not self.group:
            return None
        if self.due_at is not None:
            return NO_END
        return self.ready[1][1] if self.ready is not None else self.group_fence


class MemoryStore:
    """Stores everything in dictionaries. A transaction runs in the caller's event loop, without interruption."""

    max_concurrent_transactions = 1

    def __init__(self, clock: Callable[[], int] = wall_clock) -> None:
        self._clock = clock
        self._rows: dict[str, _Row] = {}
        self._resource_ids: dict[str, None] = {}
        self._finished_rows: dict[str, _Row] = {}
        self._events: list[Event] = []
        self._pruned = 0
        self._job_ids_by_run: dict[str, dict[str, None]] = {}
        self._ready_keys: dict[QueueName, list[ReadyKey]] = {}
        self._due_times: list[tuple[int, str]] = []
        self._live_lease_counts: dict[str, int] = {}  # The number of live leases per tenant.
        self._group_holders: dict[tuple[str, str], list[tuple[int, str]]] = {}  # (held until, id), sorted.
        self._lists = MemoryListIndex(self.find_all)
        self._documents = MemoryDocuments()
        self._moved_requests: dict[tuple[str, str], list[MovedRequest]] = {}  # By their keys.
        self._claim_grants: dict[tuple[str, str, str], list[ClaimGrant]] = {}
        self._job_results: dict[ResultKey, JobResult] = {}
        self._rows_to_restore: list[tuple[str, _Row | None, _Row | None]] = []
        self._list_changes_to_undo: list[ListChange] = []
        self._requests_to_undo: list[MovedRequest] = []
        self._grants_to_undo: list[ClaimGrant] = []
        self._results_to_restore: list[tuple[ResultKey, JobResult | None]] = []
        self.commit_hints = CommitHints()

    async def open(self) -> None:
        """Do nothing: the store needs no connection."""

    async def close(self) -> None:
        """Do nothing: the store has no connection."""

    async def transact(self, work: Callable[[], Transaction[T]]) -> T:
        """Run the transaction and return its result. If it raises, undo its writes."""
        event_count = len(self._events)
        try:
            result, became_ready = run_transaction(work(), self._answer)
        except BaseException:
            del self._events[event_count:]
            for id, row, finished_row in reversed(self._rows_to_restore):
                self._replace(id, row, finished_row)
            for change in reversed(self._list_changes_to_undo):
                self._lists.apply(change)
            for moved in self._requests_to_undo:
                self._moved_requests[moved.key].remove(moved)
            for grant in self._grants_to_undo:
                self._claim_grants[grant.key].remove(grant)
            for key, result_before in reversed(self._results_to_restore):
                self._replace_result(key, result_before)
            raise
        finally:
            self._rows_to_restore.clear()
            self._results_to_restore.clear()
            self._list_changes_to_undo.clear()
            self._requests_to_undo, self._grants_to_undo = [], []
        if became_ready is not None:
            self.commit_hints.publish(became_ready)
        return result

    def _answer(self, request: Request) -> Any:
        if isinstance(request, Begin):
            return self._clock(), self._load(request.ids)
        if isinstance(request, BeginClaim):
            now = self._clock()
            return now, self._find_ready(
                FindReady(request.tenant, request.labels, now + request.clock_lead, request.limit, request.only_ids)
            )
        if isinstance(request, Load):
            return self._load(request.ids)
        if isinstance(request, LoadJobs):
            return self._load(tuple(self._job_ids_by_run.get(request.run_id, ())))
        if isinstance(request, LoadList):
            return self._load(self._lists.ids(request.tenant, request.list))
        if isinstance(request, FindReady):
            return self._find_ready(request)
        if isinstance(request, FindDue):
            return self._find_due(request)
        if isinstance(request, CountLiveLeases):
            return min(request.limit, self._live_lease_counts.get(request.tenant, 0))
        if isinstance(request, LockGroup):
            return self._holder(request.tenant, request.group, request.now)
        if isinstance(request, Postpone):
            return self._postpone(request)
        if isinstance(request, FindRequests):
            return [moved for key in request.keys for moved in self._moved_requests.get(key, ())]
        if isinstance(request, FindClaim):
            return list(self._claim_grants.get((request.tenant, request.worker_id, request.request_id), ()))
        return self._write(request)

    def _load(self, ids: tuple[str, ...]) -> list[StoredRecord]:
        rows = [self._rows.get(id) or self._finished_rows.get(id) for id in ids]
        return [_stored_record(row) for row in rows if row is not None]

    def _find_ready(self, request: FindReady) -> list[StoredRecord]:
        if request.only_ids:
            return self._find_among_ids(request)
        ready_keys: list[ReadyKey] = []
        keys = [key for tenant, key in self._ready_keys if tenant == request.tenant]
        for key in matching_queue_keys(keys, request.labels):
            match_count = 0
            for entry in self._ready_keys[request.tenant, key]:
                if entry[1] <= request.now and (request.excluded_groups is None or self._is_free(entry[2], request)):
                    ready_keys.append(entry)
                    match_count += 1
                    if match_count == request.limit:
                        break
        ready_keys.sort()
        return [_stored_record(self._rows[entry[2]]) for entry in ready_keys[: request.limit]]

    def _is_free(self, id: str, request: FindReady) -> bool:
        row = self._rows[id]
        return not row.group or (
            row.group not in (request.excluded_groups or ()) and not self._holder(row.tenant, row.group, request.now)
        )

    def _holder(self, tenant: str, group: str, now: int) -> str:
        holders = self._group_holders.get((tenant, group))
        return holders[-1][1] if holders and holders[-1][0] > now else ""

    def _find_among_ids(self, request: FindReady) -> list[StoredRecord]:
        """Return the claimable attempts among `only_ids`, in the order in which they are claimed."""
        matches: list[tuple[ReadyKey, StoredRecord]] = []
        for row in filter(None, map(self._rows.get, dict.fromkeys(request.only_ids))):
            if row.ready is not None and row.ready[0][0] == request.tenant and row.ready[1][1] <= request.now:
                stored_record = _stored_record(row)
                if matches_labels(stored_record, request.labels):
                    matches.append((row.ready[1], stored_record))
        matches.sort(key=lambda key_and_record: key_and_record[0])
        return [stored_record for _, stored_record in matches[: request.limit]]

    def _find_due(self, request: FindDue) -> list[StoredRecord]:
        due_records: list[StoredRecord] = []
        for due_at, id in self._due_times:
            if due_at > request.now or len(due_records) == request.limit:
                break
            due_records.append(_stored_record(self._rows[id]))
        return due_records

    def _postpone(self, request: Postpone) -> None:
        for id in request.ids:
            row = self._rows[id]
            ready = row.ready and (row.ready[0], (row.ready[1][0], request.until, id))
            due_at = None if row.due_at is None else request.until
            self._set_rows(id, msgspec.structs.replace(row, ready=ready, due_at=due_at), None)

    def _write(self, write: Write) -> int:
        stale_ids = tuple(put.record.id for put in write.puts if self._version(put.record.id) != put.version)
        stale_ids += tuple(grant.attempt_id for grant in write.claim_grants if self._claim_grants.get(grant.key))
        if stale_ids:
            raise Conflict(stale_ids)
        for moved in write.moved_requests:
            self._moved_requests.setdefault(moved.key, []).append(moved)
            self._requests_to_undo.append(moved)
        for grant in write.claim_grants:
            self._claim_grants.setdefault(grant.key, []).append(grant)
            self._grants_to_undo.append(grant)
        for put in write.puts:
            row = _row(put)
            self._set_rows(row.id, None if put.is_terminal else row, row if put.is_terminal else None)
        self._list_changes_to_undo += [self._lists.apply(change) for change in write.list_changes]
        for result in write.job_results:
            result_before = self._job_results.get(result.key)
            if result_before is None or result_before.at <= result.at:
                self._results_to_restore.append((result.key, result_before))
                self._replace_result(result.key, result)
        for event in write.events:
            self._events.append(with_seq(event, self._pruned + len(self._events) + 1))
        return self._pruned + len(self._events)

    def _replace_result(self, key: ResultKey, result: JobResult | None) -> None:
        if result is None:
            del self._job_results[key]
        else:
            self._job_results[key] = result

    def _version(self, id: str) -> int:
        """Return the version that a write of this record must have read: 0 if there is no record.

        It is -1 for a finished record, which cannot be written.
        """
        row = self._rows.get(id)
        return row.version if row else -1 if id in self._finished_rows else 0

    def _set_rows(self, id: str, row: _Row | None, finished: _Row | None) -> None:
        self._rows_to_restore.append((id, self._rows.get(id), self._finished_rows.get(id)))
        self._replace(id, row, finished)

    def _replace(self, id: str, row: _Row | None, finished: _Row | None) -> None:
        """Replace the record's live row and its finished row, and update the indexes of live rows and of jobs."""
        old_row = self._rows.pop(id, None)
        any_old_row = old_row or self._finished_rows.pop(id, None)
        if old_row is not None and old_row.ready is not None:
            queue, entry = old_row.ready
            entries = self._ready_keys[queue]
            del entries[bisect_left(entries, entry)]
            if not entries:
                del self._ready_keys[queue]
        if old_row is not None and old_row.due_at is not None:
            del self._due_times[bisect_left(self._due_times, (old_row.due_at, id))]
            self._count_lease(old_row, -1)
        if any_old_row is not None and any_old_row.held_until is not None:
            holders = self._group_holders[any_old_row.tenant, any_old_row.group]
            del holders[bisect_left(holders, (any_old_row.held_until, id))]
            if not holders:
                del self._group_holders[any_old_row.tenant, any_old_row.group]
        if row is not None:
            self._rows[id] = row
            if row.ready is not None:
                insort(self._ready_keys.setdefault(row.ready[0], []), row.ready[1])
            if row.due_at is not None:
                insort(self._due_times, (row.due_at, id))
                self._count_lease(row, 1)
        if finished is not None:
            self._finished_rows[id] = finished
        new_row = row or finished
        if new_row is not None and new_row.held_until is not None:
            insort(self._group_holders.setdefault((new_row.tenant, new_row.group), []), (new_row.held_until, id))
        self._update_job_index(id, any_old_row, new_row)
        if new_row is not None and new_row.kind == RESOURCE_KIND:
            self._resource_ids[id] = None
        else:
            self._resource_ids.pop(id, None)

    def _count_lease(self, row: _Row, increment: int) -> None:
        if row.kind == ATTEMPT_KIND:
            self._live_lease_counts[row.tenant] = self._live_lease_counts.get(row.tenant, 0) + increment

    def _update_job_index(self, id: str, old_row: _Row | None, new_row: _Row | None) -> None:
        if new_row is not None and new_row.kind == JOB_KIND:
            self._job_ids_by_run.setdefault(new_row.run_id, {})[id] = None
        elif old_row is not None and old_row.kind == JOB_KIND:
            self._job_ids_by_run[old_row.run_id].pop(id, None)

    async def read(self, work: Callable[[], ReadTransaction[T]]) -> T:
        """Run the read-only transaction and return its result."""
        return run_transaction(work(), self._answer)[0]

    async def find(self, id: str) -> Record | None:
        """Return the record, also if it is finished, or None."""
        stored_records = self._load((id,))
        return stored_records[0].record if stored_records else None

    async def find_all(self, ids: Sequence[str]) -> list[Record]:
        """Return these records, also finished ones, in this order, without ids that do not exist."""
        return [stored_record.record for stored_record in self._load(tuple(dict.fromkeys(ids)))]

    async def page(self, query: ListQuery) -> RecordPage:
        """Return one page of the records that are on all lists of the query, newest first."""
        return await self._lists.page(query)

    async def count(self, tenant: str, list: str, limit: int) -> int:
        """Return how many records are on this list, up to `limit`."""
        return await self._lists.count(tenant, list, limit)

    async def find_api_key(self, name: str) -> Record | None:
        """Return the API key with this name, of any tenant, or None."""
        keys = (resource for resource in self._resources() if (resource.kind, resource.name) == (API_KEY, name))
        return next(keys, None)

    async def list_resources(self, query: ResourceQuery) -> list[Resource]:
        """Return one page of resources. Resources that cannot be decoded are left out."""
        matching = {
            (resource.tenant, resource.name): resource
            for resource in self._resources()
            if (resource.kind, resource.state) == (query.kind, PRESENT) and matches(query, resource)
        }
        after = query.after if query.tenant is None else (query.tenant, query.after[1])
        return [matching[key] for key in sorted(matching) if key > after][: query.limit]

    def _resources(self) -> list[Resource]:
        records = (stored_record.record for stored_record in self._load(tuple(self._resource_ids)))
        return [record for record in records if isinstance(record, Resource)]

    async def administrative_events(self, tenant: str, before: int, limit: int) -> list[Event]:
        """Return up to `limit` of the tenant's administrative events with a `seq` below `before`, the newest first."""
        matching = (
            event
            for event in reversed(self._events)
            if event.seq < before and event.tenant == tenant and is_administrative(event)
        )
        return list(islice(matching, limit))

    async def find_document(self, kind: str, name: str, tenant: str) -> Document | None:
        """Return the document with this name, or None."""
        return self._documents.find(kind, name, tenant)

    async def first_documents(self, kind: str, limit: int) -> list[Document]:
        """Return up to `limit` documents of this kind, of all tenants, by tenant and name."""
        return self._documents.first(kind, limit)

    async def put_documents(self, documents: Sequence[Document]) -> None:
        """Write all documents. Raises `Conflict` and writes none if the stored version of one is not its `version`."""
        self._documents.put(documents, self._clock())

    async def list_documents(
        self, kind: str, tenant: str, *, after: str = "", limit: int = 100, prefix: str = ""
    ) -> list[Document]:
        """Return up to `limit` of the tenant's documents with this name prefix, by name, after the name `after`."""
        return self._documents.list_documents(kind, tenant, after, limit, prefix)

    async def delete_document(self, kind: str, tenant: str, name: str, version: int) -> bool:
        """Delete the document if it still has this version. Return whether it was deleted."""
        return self._documents.delete(kind, tenant, name, version)

    async def now(self) -> int:
        """Return the time of the store's clock, in microseconds."""
        return self._clock()

    async def events(self, after: int, limit: int, *, entity_id: str = "", run_id: str = "") -> list[Event]:
        """Return up to `limit` committed events with a `seq` above `after`, in order.

        Without an entity or run, the events of all records.
        """
        candidates = self._events[max(0, after - self._pruned) :] if not (entity_id or run_id) else self._events
        matching = (
            event
            for event in candidates
            if event.seq > after and entity_id in ("", event.entity_id) and run_id in ("", event.run_id)
        )
        return [event for _, event in zip(range(limit), matching, strict=False)]

    async def ready_attempts(self, before: int, limit: int) -> list[ReadyAttempt]:
        """Return up to `limit` claimable attempts of each queue of each tenant that became ready by `before`."""
        attempts: list[ReadyAttempt] = []
        for (tenant, queue_key), entries in self._ready_keys.items():
            query = FindReady(tenant, (), before, limit)
            ready_times_and_ids = (
                (ready_at, id) for _, ready_at, id in entries if ready_at <= before and self._is_free(id, query)
            )
            attempts += [
                ReadyAttempt(tenant, queue_key, id, ready_at) for ready_at, id in islice(ready_times_and_ids, limit)
            ]
        return attempts

    async def queued_attempts(self, tenant: str, limit: int, queues: int) -> list[ReadyAttempt]:
        """Return up to `limit` attempts of each of the tenant's first `queues` queues, also those not yet claimable."""
        queue_keys = sorted(queue_key for owner, queue_key in self._ready_keys if owner == tenant)[:queues]
        return [
            ReadyAttempt(tenant, queue_key, id, ready_at)
            for queue_key in queue_keys
            for _, ready_at, id in self._ready_keys[tenant, queue_key][:limit]
        ]

    async def group_holder(self, tenant: str, group: str) -> str:
        """Return the id of the attempt that holds this concurrency group, or an empty string if none does."""
        return self._holder(tenant, group, self._clock())

    async def last_seq(self) -> int:
        """Return the `seq` of the newest committed event, 0 if there is none."""
        return self._pruned + len(self._events)

    async def find_job_results(self, keys: Sequence[ResultKey]) -> list[JobResult]:
        """Return the stored results with these keys, without keys that have none."""
        return [self._job_results[key] for key in dict.fromkeys(keys) if key in self._job_results]

    async def delete_job_results(self, before: int, limit: int) -> int:
        """Delete up to `limit` results of jobs that ended before this time. Return how many."""
        old_keys = [key for key, result in self._job_results.items() if result.at < before][:limit]
        for key in old_keys:
            del self._job_results[key]
        return len(old_keys)

    async def prune(self, *, finished_before: int, events_before: int, limit: int) -> int:
        """Delete records that finished, and events that happened, before these times; up to `limit` of each.

        Return how many.
        """
        old_ids = [row.id for row in self._finished_rows.values() if row.ended_at < finished_before][:limit]
        for change in removals(stored_record.record for stored_record in self._load(tuple(old_ids))):
            self._lists.apply(change)
        for id in old_ids:
            self._replace(id, None, None)
        for requests in self._moved_requests.values():
            requests[:] = [moved for moved in requests if moved.record_id not in old_ids]
        for grants in self._claim_grants.values():
            grants[:] = [grant for grant in grants if grant.attempt_id not in old_ids]
        event_count = 0
        while event_count < min(limit, len(self._events)) and self._events[event_count].at < events_before:
            event_count += 1
        del self._events[:event_count]
        self._pruned += event_count
        return len(old_ids) + event_count


def _row(put: Put) -> _Row:
    record, ready = put.record, None
    if put.ready_at is not None and isinstance(record, Attempt) and not put.is_terminal:
        ready = ((record.tenant, record.queue_key), (-record.priority, put.ready_at, record.id))
    return _Row(
        record.id,
        KIND_OF[type(record)],
        record.tenant,
        record.run_id,
        0 if put.is_terminal else put.version + 1,
        None if put.is_terminal else put.due_at,
        ready,
        record.updated_at,
        encode(record),
        group_name(record) or "",
        group_fence(record) if put.is_terminal else None,
    )


def _stored_record(row: _Row) -> StoredRecord:
    return StoredRecord(decode_record(row.id, row.kind, row.body), row.version, row.due_at)
