"""One shard of the write path: it gathers requests, decides them in order and writes them in one transaction.

1. An idle shard takes a request at once; a busy one takes everything that has gathered when its transaction ends.
2. One transaction loads the records that the commands name, finds ready attempts for the claims and due records for the
   ticks, decides each request with pure functions, and writes the changed records together with their events.
3. Callers are answered after the commit, never before.

Leased attempts of the plain queue stay in memory between batches. Every write is guarded by the version that was read:
if another server was faster, the store raises `Conflict`, the cache is cleared, and the batch is decided again.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Final

from deltaci.core import attempt, ids
from deltaci.core.attempt import Attempt
from deltaci.core.cascade import NewRecord
from deltaci.core.decide import Decision, StartRun, decide
from deltaci.core.errors import InvariantBroken, NotLoaded, Refused, StaleLease
from deltaci.core.events import RUN, RUNNER, WORKER, Event, worker_actor
from deltaci.core.instants import SECOND
from deltaci.core.job import Job
from deltaci.core.listing import WORKERS, list_changes
from deltaci.core.machine import ABSENT, REQUESTS_IN_RECORD, Command, Record
from deltaci.core.results import ended_job_results
from deltaci.core.timers import Due, is_over, next_due, ready_at
from deltaci.core.unit_of_work import UnitOfWork
from deltaci.engine.clock import MonotonicClock
from deltaci.engine.concurrency_groups import ConcurrencyGroups
from deltaci.engine.repeats import Repeats, granted_again
from deltaci.engine.requests import (
    MAX_BATCH,
    Claim,
    ClaimedAttempt,
    ClaimResult,
    DeriveLeaseSecret,
    Overloaded,
    PendingRequests,
    PoolKey,
    Request,
    Response,
    Tick,
)
from deltaci.engine.unreadable_records import UnreadableRecordHandler, unreadable_refusal
from deltaci.storage.port import (
    Begin,
    BeginClaim,
    ClaimGrant,
    Conflict,
    CountLiveLeases,
    FindDue,
    FindReady,
    ListChange,
    Load,
    LoadJobs,
    LoadList,
    Put,
    Store,
    StoredRecord,
    Transaction,
    Unavailable,
    UnreadableRecord,
    Write,
)

MAX_WAITING: Final = 100_000
MAX_CACHED: Final = 50_000
MAX_CONFLICTS: Final = 50
MAX_INVARIANT_FAILURES: Final = 3
MAX_CHAIN_LOADS: Final = 10  # After so many single loads for one command, all jobs of its run are loaded at once.
SECRET_BYTES: Final = 16
SALT_CHARS: Final = 16
STUCK_SECONDS: Final = 60  # Delay before a record is due again whose deadline could not be carried out.

NO_TENANTS: Final[frozenset[str]] = frozenset()

LOGGER: Final = logging.getLogger(__name__)


class Shard:
    """Decides and writes requests in batches, one batch after the other, and caches records between them."""

    def __init__(
        self,
        store: Store,
        clock: MonotonicClock,
        unreadable_handler: UnreadableRecordHandler,
        derive_lease_secret: DeriveLeaseSecret | None,
        limited_tenants: set[str],
    ) -> None:
        self._store = store
        self._derive_lease_secret = derive_lease_secret
        self._clock = clock
        self._unreadable_handler = unreadable_handler
        self._unit_of_work = UnitOfWork()
        self._stored_columns: dict[str, tuple[int, int | None]] = {}  # Version and due time of each cached record.
        self._loaded_ids: set[str] = set()  # Read from the store during this batch.
        self._changed: dict[str, Record] = {}  # The records that this batch has changed so far, by id.
        self._granted_count = 0
        self._requested_counts: dict[PoolKey, int] = {}
        self._limited_tenants = limited_tenants  # Tenants whose last claim had a limit; shared by all shards.
        self._live_lease_counts: dict[str, int] = {}
        self._concurrency_groups = ConcurrencyGroups()
        self._repeats = Repeats()
        self._pools: dict[PoolKey, list[StoredRecord]] = {}
        self._inbox: deque[PendingRequests] = deque()
        self._inbox_size = 0
        self._has_requests = asyncio.Event()
        self._is_stopped = False

    def caches(self, id: str) -> bool:
        """Return whether this shard caches the record with this id; then it should decide commands for it."""
        return id in self._stored_columns

    def submit(self, pending: PendingRequests) -> None:
        """Add requests to the inbox, for the next batch. Raises `Overloaded` if too many wait already."""
        if self._inbox_size >= MAX_WAITING:
            raise Overloaded(f"{MAX_WAITING} commands wait already; try again later")
        self._inbox.append(pending)
        self._inbox_size += len(pending.requests)
        self._has_requests.set()

    def _take_batch(self) -> list[PendingRequests]:
        """Remove the requests of one or more callers from the inbox, in order, and return them.

        They are up to MAX_BATCH requests. A caller with more requests than that forms its own batch.
        """
        batch: list[PendingRequests] = []
        request_count = 0
        while self._inbox and (not batch or request_count + len(self._inbox[0].requests) <= MAX_BATCH):
            batch.append(self._inbox.popleft())
            request_count += len(batch[-1].requests)
        self._inbox_size -= request_count
        if not self._inbox:
            self._has_requests.clear()
        return batch

    async def run(self) -> None:
        """Apply batches of requests and answer their callers, until the shard is stopped."""
        while not self._is_stopped:
            await self._has_requests.wait()
            batch = self._take_batch()
            try:
                responses = iter(await self.apply([request for pending in batch for request in pending.requests]))
            except asyncio.CancelledError:
                self._fail_batch(batch, asyncio.CancelledError())
                raise
            except Exception as error:
                await self._apply_separately(batch, error)
                continue
            for pending in batch:
                caller_responses = list(islice(responses, len(pending.requests)))
                if not pending.responses_future.done():
                    pending.responses_future.set_result(caller_responses)

    async def _apply_separately(self, batch: list[PendingRequests], error: Exception) -> None:
        """Apply the requests of each caller in a batch of their own, after the whole batch failed with `error`.

        Thus one failing request does not fail the others. Fail all callers if there is only one or the store is
        unavailable.
        """
        if len(batch) == 1 or isinstance(error, Unavailable):
            self._fail_batch(batch, error)
            return
        for pending in batch:
            try:
                caller_responses = await self.apply(pending.requests)
            except Exception as caller_error:
                self._fail_batch([pending], caller_error)
            else:
                if not pending.responses_future.done():
                    pending.responses_future.set_result(caller_responses)

    @staticmethod
    def _fail_batch(batch: Iterable[PendingRequests], error: BaseException) -> None:
        """Raise the error in each caller of the batch that still waits."""
        for pending in batch:
            if not pending.responses_future.done():
                pending.responses_future.set_exception(error)

    def stop(self) -> None:
        """Start no further batch.

        Cancelling the task is not enough: a library that is about to return may lose the cancellation.
        """
        self._is_stopped = True
        self._has_requests.set()

    def cancel_pending(self) -> None:
        """Cancel all requests in the inbox."""
        self._fail_batch(self._inbox, asyncio.CancelledError())
        self._inbox.clear()

    async def apply(self, requests: Sequence[Request]) -> list[Response]:
        """Apply one batch in one transaction and return the responses.

        After a conflict with another server, decide the batch again from the records as they are stored now.
        """
        invariant_failure_count = 0
        for _ in range(MAX_CONFLICTS):
            try:
                return await self._store.transact(lambda: self._process_batch(requests))
            except Conflict:
                self._clear_cache()
            except InvariantBroken:
                # Two records may have been read at different times, with another server's commit in between.
                self._clear_cache()
                invariant_failure_count += 1
                if invariant_failure_count == MAX_INVARIANT_FAILURES:
                    raise
            except BaseException:
                self._clear_cache()  # It is unknown whether the batch was written; only the store knows.
                raise
        raise Conflict(tuple(request.id for request in requests if isinstance(request, Command)))

    def _clear_cache(self) -> None:
        latest_at = self._unit_of_work.latest_at
        self._unit_of_work, self._stored_columns = UnitOfWork(), {}
        self._unit_of_work.latest_at = latest_at

    def _process_batch(self, requests: Sequence[Request]) -> Transaction[list[Response]]:
        if len(self._stored_columns) > MAX_CACHED:
            self._clear_cache()
        self._loaded_ids.clear()
        self._changed = {}
        self._repeats = Repeats()
        self._granted_count, self._requested_counts, self._pools = 0, {}, {}
        required_ids: set[str] = set()
        random_ids: set[str] = set()
        identified: list[Command] = []
        claims: list[Claim] = []
        for request in requests:
            if isinstance(request, (NewRecord, StartRun)) and request.has_random_id:
                random_ids.add(request.id)
            elif isinstance(request, Command):
                required_ids.update(related_ids(request.id, request.actor))
                if request.request_id:
                    identified.append(request)
            elif isinstance(request, Claim):
                pool_key = request.pool_key
                self._requested_counts[pool_key] = self._requested_counts.get(pool_key, 0) + request.limit
                claims.append(request)
        if claims:
            self._concurrency_groups = ConcurrencyGroups()
            yield from self._count_live_leases(claims)
        ready: list[StoredRecord] | None = None
        if len(requests) == 1 and isinstance(claim := requests[0], Claim) and (limit := self._remaining_limit(claim)):
            store_now, ready = yield BeginClaim(claim.tenant, claim.labels, limit, claim.only_ids, self._clock.lead)
        else:
            store_now, stored_records = yield Begin(tuple(id for id in required_ids if id not in self._stored_columns))
            self._cache_loaded(stored_records, required_ids | random_ids)
            yield from self._load_waiting_jobs(requests, stored_records)
        if identified:
            yield from self._repeats.recall(identified, self._unit_of_work)
        now = self._clock.read(store_now)
        events: list[Event] = []
        due_times: dict[str, int | None] = {}
        responses: list[Response] = []
        for request in requests:
            if isinstance(request, Command):
                decision = self._try_decide(request, now, events)
                responses.append(decision or (yield from self._decide(request, now, events)))
            elif isinstance(request, Claim):
                responses.append((yield from self._claim(request, now, ready, events)))
            else:
                responses.append((yield from self._run_due(request, now, events, due_times)))
        puts = [self._put_changed(record, due_times) for record in self._changed.values()]
        puts += [self._put_due_time(id, due_at) for id, due_at in due_times.items() if id not in self._changed]
        if puts:
            yield self._write_of(puts, events)
            for put in puts:
                self._update_cache(put)
        self._evict_uncacheable()
        self._clock.advance_to(self._unit_of_work.latest_at)
        return responses

    def _write_of(self, puts: list[Put], events: list[Event]) -> Write:
        """Return the request that writes a batch, with all that follows from its changed records."""
        others = [record for record in self._changed.values() if type(record) is not Attempt]
        return Write(
            puts,
            events,
            is_last=True,
            list_changes=batch_list_changes(others, events),
            freed_tenants=freed_tenants(self._changed.values(), self._limited_tenants),
            moved_requests=self._repeats.moved_requests,
            claim_grants=self._repeats.claim_grants,
            job_results=ended_job_results(others, self._unit_of_work.records),
        )

    def _cache_loaded(self, stored_records: list[StoredRecord], required_ids: Iterable[str] = ()) -> list[StoredRecord]:
        """Cache the records that were loaded from the store, and return them.

        Remember, for this batch, that the ids in `required_ids` that were not loaded have no record. Raises `Conflict`
        if this batch has changed one of the records from an older version: with the loaded version, the guard of the
        write would no longer notice that.
        """
        records = self._unit_of_work.records
        for stored_record in stored_records:
            id = stored_record.record.id
            self._loaded_ids.add(id)
            if id not in self._stored_columns or self._stored_columns[id][0] < stored_record.version:
                if id in self._changed:
                    raise Conflict((id,))
                records[id] = stored_record.record
                self._stored_columns[id] = (stored_record.version, stored_record.due_at)
            if isinstance(stored_record.record, UnreadableRecord):
                self._unreadable_handler.report(stored_record.record)
        for id in required_ids:
            if id not in records:
                self._loaded_ids.add(id)
                records[id] = None
        return stored_records

    def _evict_uncacheable(self) -> None:
        """Evict the records that other servers may change, and forget which ids have no record.

        Done after each batch.
        """
        records = self._unit_of_work.records
        for id in self._loaded_ids:
            if not is_cacheable(records.get(id)):
                records.pop(id, None)
                self._stored_columns.pop(id, None)
        self._unit_of_work.job_ids.clear()
        self._unit_of_work.tenants_with_workers.clear()

    def _try_decide(self, command: Command, now: int, events: list[Event]) -> Decision | None:
        """Return the decision in the common case: all records are loaded and the command changes something.

        Otherwise return None; `_decide` then handles the command.
        """
        try:
            decision = decide(self._unit_of_work, command, now)
        except (NotLoaded, Refused, InvariantBroken):
            return None
        if not decision.changed:
            return None
        self._changed.update(decision.changed)
        events += decision.events
        return decision

    def _decide(self, command: Command, now: int, events: list[Event]) -> Transaction[Decision | Refused]:
        """Decide a command and return the decision or the refusal.

        Load the records that it turns out to need. Before a refusal, or a decision without changes, read stale cached
        records again.
        """
        load_count = 0
        while True:
            if command.request_id:
                yield from self._repeats.recall((command,), self._unit_of_work)
            try:
                decision = decide(self._unit_of_work, command, now)
            except NotLoaded as not_loaded:
                load_count += 1
                record = self._unit_of_work.records.get(command.id)
                run_id = record.run_id if record is not None and load_count == MAX_CHAIN_LOADS else ""
                yield from self._load_missing(not_loaded, run_id)
                continue
            except Refused as refused:
                if self._evict_stale(command.id):
                    continue
                return unreadable_refusal(self._unit_of_work.records.get(command.id)) or refused
            except InvariantBroken:
                # Cached records that another server has changed do not fit those that were just loaded.
                if self._evict_stale(""):
                    continue
                raise
            if not decision.changed:
                if self._evict_stale(command.id):
                    continue
                return unreadable_refusal(decision.record) or decision
            self._changed.update(decision.changed)
            events += decision.events
            return decision

    def _evict_stale(self, id: str) -> bool:
        """Evict cached records that were not read from the store in this batch. Return whether there were any.

        If so, the caller decides again. A write is guarded by its version. A refusal or a repeat writes nothing, so it
        must not rest on a cached record that another server may have changed.
        """
        record = self._unit_of_work.records.get(id)
        if is_queue_attempt(record):
            stale_ids = [id] if id not in self._loaded_ids and id not in self._changed else []
        else:
            stale_ids = [
                cached_id
                for cached_id in self._stored_columns
                if cached_id not in self._loaded_ids and cached_id not in self._changed
            ]
        for stale_id in stale_ids:
            self._unit_of_work.records.pop(stale_id, None)
            self._stored_columns.pop(stale_id, None)
        return bool(stale_ids)

    def _load_missing(self, not_loaded: NotLoaded, whole_run_id: str = "") -> Transaction[None]:
        if run_id := whole_run_id or not_loaded.jobs_of:
            stored_records = yield LoadJobs(run_id)
            self._cache_loaded(stored_records)
            self._unit_of_work.job_ids[run_id] = tuple(stored_record.record.id for stored_record in stored_records)
        elif (tenant := not_loaded.workers_of) is not None:
            self._cache_loaded((yield LoadList(tenant, WORKERS)))
            self._unit_of_work.tenants_with_workers.add(tenant)
        else:
            yield from self._load_uncached(not_loaded.ids)

    def _load_uncached(self, ids: Iterable[str]) -> Transaction[None]:
        """Load those of these records that are not cached, with one query."""
        uncached_ids = tuple(dict.fromkeys(id for id in ids if id not in self._unit_of_work.records))
        if uncached_ids:
            self._cache_loaded((yield Load(uncached_ids)), uncached_ids)

    def _load_waiting_jobs(
        self, requests: Sequence[Request], stored_records: Iterable[StoredRecord]
    ) -> Transaction[None]:
        """Load the jobs that wait for a job that a request of this batch probably ends, and their first attempts.

        `stored_records` were loaded for the requests.
        """
        jobs = [stored_record.record for stored_record in stored_records if isinstance(stored_record.record, Job)]
        if jobs:
            finished_ids = {request.id for request in requests if isinstance(request, attempt.Outcome)}
            finished_jobs = [job for job in jobs if job.attempt_id in finished_ids]
            waiting_ids = [id for job in finished_jobs for id in (*job.dependents, *job.followers)]
            yield from self._load_uncached((*waiting_ids, *(ids.attempt_id(id, 1) for id in waiting_ids)))

    def _cache_ready(self, claim: Claim, stored_records: list[StoredRecord]) -> Transaction[list[StoredRecord]]:
        """Cache ready attempts, return them, and load what granting them to the claiming worker probably needs."""
        actor = worker_actor(claim.worker_id)
        yield from self._load_uncached(
            related_id
            for stored_record in self._cache_loaded(stored_records)
            if stored_record.record.run_id
            for related_id in related_ids(stored_record.record.id, actor)
        )
        return stored_records

    def _count_live_leases(self, claims: Iterable[Claim]) -> Transaction[None]:
        """Count the live leases of each tenant whose claims have a limit.

        This must be the first query of the transaction, see `CountLiveLeases`.
        """
        self._live_lease_counts.clear()
        limit_by_tenant: dict[str, int] = {}
        for claim in claims:
            if claim.tenant_limit:
                limit_by_tenant[claim.tenant] = max(claim.tenant_limit, limit_by_tenant.get(claim.tenant, 0))
            elif self._limited_tenants:
                self._limited_tenants.discard(claim.tenant)
        for tenant in sorted(limit_by_tenant):
            self._limited_tenants.add(tenant)
            self._live_lease_counts[tenant] = yield CountLiveLeases(tenant, limit_by_tenant[tenant])

    def _remaining_limit(self, claim: Claim) -> int:
        """Return how many attempts the claim may get, given its own limit and the tenant's limit on live leases."""
        if not claim.tenant_limit:
            return claim.limit
        return max(0, min(claim.limit, claim.tenant_limit - self._live_lease_counts[claim.tenant]))

    def _ready_pool(self, claim: Claim, now: int, ready: list[StoredRecord] | None) -> Transaction[list[StoredRecord]]:
        """Return the ready attempts that this claim may choose from.

        All claims of the batch with the same pool key share them, so they are queried only once. `ready` has
        the attempts that were loaded already, if any.
        """
        pool_key = claim.pool_key
        if ready is not None and not any(isinstance(stored_record.record, UnreadableRecord) for stored_record in ready):
            self._pools[pool_key] = yield from self._cache_ready(claim, ready)
        granted_count = self._granted_count
        while pool_key not in self._pools:
            # Attempts that this batch granted are still ready in the store, so ask for that many more. Not for more:
            # the query locks what it finds until the commit.
            pool_size, excluded_groups = (
                self._requested_counts[pool_key] + granted_count,
                self._concurrency_groups.held_groups(claim.tenant),
            )
            query = FindReady(claim.tenant, claim.labels, now, pool_size, claim.only_ids, excluded_groups)
            stored_records: list[StoredRecord] = yield from self._unreadable_handler.find_readable(
                query, now + STUCK_SECONDS * SECOND
            )
            granted_in_result_count = sum(not self._is_still_ready(stored_record) for stored_record in stored_records)
            if granted_in_result_count <= granted_count or len(stored_records) < query.limit:
                self._pools[pool_key] = yield from self._cache_ready(claim, stored_records)
            granted_count = granted_in_result_count
        return self._pools[pool_key]

    def _is_still_ready(self, stored_record: StoredRecord) -> bool:
        """Return whether the attempt is still ready to be claimed after the decisions of this batch so far."""
        record = self._unit_of_work.records.get(stored_record.record.id, stored_record.record)
        return isinstance(record, Attempt) and ready_at(record) is not None

    def _claim(
        self, claim: Claim, now: int, ready: list[StoredRecord] | None, events: list[Event]
    ) -> Transaction[ClaimResult | Refused]:
        """Grant ready attempts for the claim, up to its limit. Return them, and the skipped attempts.

        For a repeated claim, return the response to the first one.
        """
        if claim.request_id and (grants := (yield from self._repeats.find_grants(claim))):
            return (yield from self._repeat_claim(claim, grants, now))
        limit = self._remaining_limit(claim)
        if not limit:
            return ClaimResult([])
        pool = yield from self._ready_pool(claim, now, ready)
        secret_hex = secrets.token_hex(SECRET_BYTES * min(limit, len(pool)))
        claimed: list[ClaimedAttempt] = []
        skipped_attempts: list[StoredRecord] = []
        next_index, may_have_more = 0, False
        while len(claimed) < limit:
            if next_index == len(pool):
                if not may_have_more or claim.only_ids:
                    break
                # The query stopped at its limit. Each repetition excludes one more group or one more attempt.
                pool, next_index, may_have_more = (yield from self._next_pool(claim, now, skipped_attempts)), 0, False
                secret_hex += secrets.token_hex(SECRET_BYTES * min(limit, len(pool)))
                continue
            stored_record = pool[next_index]
            next_index += 1
            record = self._unit_of_work.records.get(stored_record.record.id)
            if not isinstance(record, Attempt) or not self._is_still_ready(stored_record):
                continue
            if record.avoid and attempt.should_yield(
                record, claim.worker_id, claim.other_worker_labels, claim.other_worker_ids
            ):
                self._requested_counts[claim.pool_key] += 1  # Left to another worker: the query must return one more.
                skipped_attempts.append(stored_record)
                may_have_more = True
                continue
            if record.group and not (yield from self._concurrency_groups.try_lock(record, now)):
                may_have_more = True
                continue
            lease_secret = secret_hex[len(claimed) * SECRET_BYTES * 2 : (len(claimed) + 1) * SECRET_BYTES * 2]
            claimed_attempt = yield from self._grant(record, claim, lease_secret, now, events)
            if claimed_attempt is None:
                skipped_attempts.append(stored_record)
                continue
            claimed.append(claimed_attempt)
            self._granted_count += 1
            if record.group:
                self._concurrency_groups.mark_held(record)
        if claim.tenant in self._live_lease_counts:
            self._live_lease_counts[claim.tenant] += len(claimed)
        self._pools[claim.pool_key] = skipped_attempts + pool[next_index:]
        if claim.request_id and claimed:
            self._repeats.add_grants(claim, claimed)
        return ClaimResult(claimed, bool(skipped_attempts), skipped_queue_keys(skipped_attempts))

    def _repeat_claim(self, claim: Claim, grants: Sequence[ClaimGrant], now: int) -> Transaction[ClaimResult | Refused]:
        """Return those of the leases that are still live. If none is, return why not."""
        refusal: Refused = StaleLease(
            "UNKNOWN_LEASE", f"claim {claim.request_id!r} cannot be repeated; use a new request_id"
        )
        derive_lease_secret = claim.derive_lease_secret or self._derive_lease_secret
        if derive_lease_secret is None:
            return refusal
        attempt_ids = tuple(grant.attempt_id for grant in grants if grant.attempt_id not in self._changed)
        for id in attempt_ids:  # Another server may have changed them.
            self._unit_of_work.records.pop(id, None)
            self._stored_columns.pop(id, None)
        if attempt_ids:
            self._cache_loaded((yield Load(attempt_ids)), attempt_ids)
        claimed: list[ClaimedAttempt] = []
        for grant in grants:
            try:
                attempt_record = self._unit_of_work.records[grant.attempt_id]
                claimed.append(granted_again(attempt_record, grant, derive_lease_secret, now))
            except StaleLease as stale:
                refusal = unreadable_refusal(attempt_record) or stale
        return ClaimResult(claimed) if claimed else refusal

    def _next_pool(
        self, claim: Claim, now: int, skipped_attempts: list[StoredRecord]
    ) -> Transaction[list[StoredRecord]]:
        """Query the ready attempts again, and return them without the attempts that were skipped.

        The new query leaves out concurrency groups that are known to be held now.
        """
        del self._pools[claim.pool_key]
        skipped_ids = {stored_record.record.id for stored_record in skipped_attempts}
        pool = yield from self._ready_pool(claim, now, None)
        return [stored_record for stored_record in pool if stored_record.record.id not in skipped_ids]

    def _grant(
        self,
        attempt_record: Attempt,
        claim: Claim,
        secret: str,
        now: int,
        events: list[Event],
    ) -> Transaction[ClaimedAttempt | None]:
        """Grant a lease of the attempt to the claiming worker, and start the attempt if the claim asks for it.

        Return None if that is refused.
        """
        actor = worker_actor(claim.worker_id)
        salt = ""
        lease_number = attempt_record.claims + 1
        derive_lease_secret = claim.derive_lease_secret or self._derive_lease_secret
        if derive_lease_secret is not None:
            salt = secret[:SALT_CHARS]
            secret = derive_lease_secret(attempt_record.id, lease_number, salt)
        lease_id = ids.lease_id(attempt_record.id, lease_number, secret)
        grant_command = attempt.Grant(
            id=attempt_record.id,
            actor=actor,
            request_id=claim.request_id,
            fingerprint=ids.lease_fingerprint(lease_id),
            labels=claim.labels,
            ttl_seconds=claim.ttl_seconds,
            accept_seconds=claim.accept_seconds,
            salt=salt,
            starts=claim.start_immediately,
        )
        decision: Decision | Refused | None = self._try_decide(grant_command, now, events)
        if decision is None:
            decision = yield from self._decide(grant_command, now, events)
        if isinstance(decision, Decision) and isinstance(decision.record, Attempt):
            return ClaimedAttempt(decision.record, lease_id)
        return None

    def _run_due(
        self,
        tick: Tick,
        now: int,
        events: list[Event],
        due_times: dict[str, int | None],
    ) -> Transaction[int]:
        """Apply the command of each record whose deadline is due. Return how many records the store found due."""
        retry_at = now + STUCK_SECONDS * SECOND
        stored_records = yield from self._unreadable_handler.find_readable(FindDue(now, tick.limit), retry_at)
        self._cache_loaded(stored_records)
        for stored_record in stored_records:
            id = stored_record.record.id
            next_deadline = self._next_due(id)
            if next_deadline is not None and next_deadline[0] <= now:
                try:
                    yield from self._decide(next_deadline[1](id=id), now, events)
                except InvariantBroken:
                    # An internal error of this record only: the deadlines of the others are still carried out.
                    LOGGER.exception("what is due for %s cannot be carried out; it is tried again later", id)
                next_deadline = self._next_due(id)
            # A heartbeat does not move the stored due time, so it may be too early. Correct it now.
            due_at = next_deadline[0] if next_deadline is not None else None
            due_times[id] = max(due_at, retry_at) if due_at is not None and due_at <= now else due_at
        return len(stored_records)

    def _next_due(self, id: str) -> Due | None:
        record = self._unit_of_work.records.get(id)
        return next_due(record) if record is not None else None

    def _put_changed(self, record: Record, due_times: dict[str, int | None]) -> Put:
        """Return the `Put` that writes a changed record with its ready time and its due time."""
        if len(record.requests) > REQUESTS_IN_RECORD:
            record = self._unit_of_work.records[record.id] = self._repeats.move(record)
        version, old_due_at = self._stored_columns.get(record.id, (0, None))
        next_deadline = next_due(record)
        due_at = next_deadline[0] if next_deadline is not None else None
        if due_at is not None and old_due_at is not None and record.id not in due_times:
            # Store only an earlier deadline, so that a renewed lease does not change the index.
            due_at = min(due_at, old_due_at)
        return Put(record, version, ready_at(record), due_at, is_over(record))

    def _put_due_time(self, id: str, due_at: int | None) -> Put:
        """Return the `Put` that changes only the stored due time of a record."""
        record = self._unit_of_work.records[id]
        assert record is not None
        return Put(record, self._stored_columns[id][0], ready_at(record), due_at, is_over(record))

    def _update_cache(self, put: Put) -> None:
        """Store the new version of a written record, or evict the record if it must not stay cached."""
        id = put.record.id
        if put.is_terminal or not is_cacheable(put.record):
            self._unit_of_work.records.pop(id, None)
            self._stored_columns.pop(id, None)
        else:
            self._stored_columns[id] = (put.version + 1, put.due_at)


def related_ids(id: str, actor: str) -> tuple[str, ...]:
    """Return the ids of the records that a command to this record by this actor probably needs.

    These are the record itself and, for one of a run, its run and its job, and the worker that sends the command.
    """
    run_id, separator, name_in_run = id.partition("/")
    if not separator:
        return (id,)
    job_id = f"{run_id}/{name_in_run.rpartition('.')[0] or name_in_run}"
    sender_kind, _, worker_id = actor.partition(":")
    return (id, run_id, job_id, worker_id) if sender_kind == RUNNER else (id, run_id, job_id)


def is_queue_attempt(record: Record | None) -> bool:
    """Return whether the record is an attempt of the plain queue, which has no job and no run."""
    return type(record) is Attempt and not record.job_id


def is_cacheable(record: Record | None) -> bool:
    """Return whether the record may stay cached after a batch: a leased attempt of the plain queue.

    Its worker will send a command soon, and other servers hardly ever change it.
    """
    return type(record) is Attempt and not record.job_id and record.lease is not None


def batch_list_changes(changed: Iterable[Record], events: Sequence[Event]) -> list[ListChange]:
    """Return which lists the changed runs and workers join and leave. `changed` has no attempts.

    The first event of a record tells its state before the batch.
    """
    runs_and_workers = [record for record in changed if type(record) is not Job]
    if not runs_and_workers:
        return []
    states_before: dict[str, str] = {}
    for event in events:
        if event.entity in (RUN, WORKER):
            states_before.setdefault(event.entity_id, event.from_ or ABSENT)
    list_changes_of_batch: list[ListChange] = []
    for record in runs_and_workers:
        if record.id in states_before:
            joined, left = list_changes(record, states_before[record.id])
            if joined or left:
                list_changes_of_batch.append(ListChange(record.id, record.created_at, joined, left))
    return list_changes_of_batch


def freed_tenants(changed: Iterable[Record], limited_tenants: set[str]) -> frozenset[str]:
    """Return the tenants that may claim more now, because one of their leases ended.

    Only tenants with a limit, and attempts with a concurrency group, count. This is only a hint: some of these leases
    may have ended in an earlier batch.
    """
    tenants: set[str] | None = None
    for record in changed:
        if (
            type(record) is Attempt
            and record.lease is None
            and record.ended_lease is not None
            and (record.group or record.tenant in limited_tenants)
        ):
            tenants = tenants or set()
            tenants.add(record.tenant)
    return frozenset(tenants) if tenants is not None else NO_TENANTS


def skipped_queue_keys(skipped_attempts: Iterable[StoredRecord]) -> tuple[str, ...]:
    """Return the queue keys of the attempts that a claim skipped, without duplicates, in order."""
    return tuple(
        {
            stored_record.record.queue_key: None
            for stored_record in skipped_attempts
            if isinstance(stored_record.record, Attempt)
        }
    )
