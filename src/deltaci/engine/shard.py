"""One lane of the write path: commands are gathered, decided in one go, and written in one transaction.

Deciding is pure; the events are written together with the records. There is no tick: an idle lane takes a
command at once, a busy one takes whatever has gathered meanwhile. Nobody is answered before the commit. Live
records are kept in memory between batches; the version guard on every write finds out when somebody else was
faster, and then everything is loaded and decided again.
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
from deltaci.core.errors import InvariantBroken, NotLoaded, Refused
from deltaci.core.events import Event, worker_actor
from deltaci.core.instants import SECOND
from deltaci.core.machine import Command, Record
from deltaci.core.timers import Due, is_over, next_due, ready_at
from deltaci.core.unit_of_work import UnitOfWork
from deltaci.engine.batch_effects import batch_list_changes, freed_tenants, skipped_queue_keys
from deltaci.engine.clock import MonotonicClock
from deltaci.engine.concurrency_groups import ConcurrencyGroups
from deltaci.engine.related import is_cacheable, is_queue_attempt, related_ids
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
from deltaci.engine.unreadable_records import UnreadableRecordReporter, unreadable_refusal
from deltaci.storage.port import (
    Begin,
    BeginClaim,
    Conflict,
    CountLiveLeases,
    FindDue,
    FindReady,
    Load,
    LoadJobs,
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
MAX_CHAIN_LOADS: Final = (
    10  # Of a chain in which each job blocks the next; then all jobs of the run are loaded at once.
)
SECRET_BYTES: Final = 16
SALT_CHARS: Final = 16
STUCK_SECONDS: Final = 60  # When to look again at a record whose deadline could not be carried out.

LOGGER: Final = logging.getLogger(__name__)


class Shard:
    """One sequence of batches, with the records that it keeps in memory."""

    def __init__(
        self,
        store: Store,
        clock: MonotonicClock,
        reports: UnreadableRecordReporter,
        mint: DeriveLeaseSecret | None,
        limited: set[str],
    ) -> None:
        self._store = store
        self._mint = mint
        self._clock = clock
        self._reports = reports
        self._world = UnitOfWork()
        self._stored: dict[str, tuple[int, int | None]] = {}
        self._absent: list[str] = []
        self._fresh: set[str] = set()
        self._given = 0
        self._asked: dict[PoolKey, int] = {}
        self._limited = limited  # Tenants whose claims had a limit when they last came by, in whatever lane.
        self._held: dict[str, int] = {}
        self._groups = ConcurrencyGroups()
        self._pools: dict[PoolKey, list[StoredRecord]] = {}
        self._inbox: deque[PendingRequests] = deque()
        self._size = 0
        self._is_filled = asyncio.Event()
        self._is_stopped = False

    def keeps(self, id: str) -> bool:
        """Whether this lane has the record in its memory: then it is the one to decide about it."""
        return id in self._stored

    def put(self, waiting: PendingRequests) -> None:
        if self._size >= MAX_WAITING:
            raise Overloaded(f"{MAX_WAITING} commands wait already; try again later")
        self._inbox.append(waiting)
        self._size += len(waiting.items)
        self._is_filled.set()

    def _take_batch(self) -> list[PendingRequests]:
        """Whoever came first, up to the limit; a caller with more than that goes alone."""
        batch: list[PendingRequests] = []
        size = 0
        while self._inbox and (not batch or size + len(self._inbox[0].items) <= MAX_BATCH):
            batch.append(self._inbox.popleft())
            size += len(batch[-1].items)
        self._size -= size
        if not self._inbox:
            self._is_filled.clear()
        return batch

    async def run(self) -> None:
        """Take what has gathered, apply it, answer it; until it is stopped."""
        while not self._is_stopped:
            await self._is_filled.wait()
            batch = self._take_batch()
            try:
                answers = iter(await self.apply([item for waiting in batch for item in waiting.items]))
            except asyncio.CancelledError:
                self._fail(batch, asyncio.CancelledError())
                raise
            except Exception as error:
                await self._isolate(batch, error)
                continue
            for waiting in batch:
                own = list(islice(answers, len(waiting.items)))
                if not waiting.answer.done():
                    waiting.answer.set_result(own)

    async def _isolate(self, batch: list[PendingRequests], error: Exception) -> None:
        """One poisonous command must not take its neighbours down: try each caller on its own, and go on."""
        if len(batch) == 1 or isinstance(error, Unavailable):
            self._fail(batch, error)
            return
        for waiting in batch:
            try:
                own = await self.apply(waiting.items)
            except Exception as mine:
                self._fail([waiting], mine)
            else:
                if not waiting.answer.done():
                    waiting.answer.set_result(own)

    @staticmethod
    def _fail(batch: Iterable[PendingRequests], error: BaseException) -> None:
        for waiting in batch:
            if not waiting.answer.done():
                waiting.answer.set_exception(error)

    def stop(self) -> None:
        """Take nothing more. A cancel alone may get lost in a library that was just about to answer."""
        self._is_stopped = True
        self._is_filled.set()

    def dismiss(self) -> None:
        """Whoever still waits is told."""
        self._fail(self._inbox, asyncio.CancelledError())
        self._inbox.clear()

    async def apply(self, items: Sequence[Request]) -> list[Response]:
        """One batch, decided again from what is stored whenever somebody else was faster."""
        broken = 0
        for _ in range(MAX_CONFLICTS):
            try:
                return await self._store.transact(lambda: self._batch(items))
            except Conflict:
                self._forget()
            except InvariantBroken:
                # Two records may have been read at different times, with another server's commit in between.
                self._forget()
                broken += 1
                if broken == MAX_INVARIANT_FAILURES:
                    raise
            except BaseException:
                self._forget()  # Whether it was written is unknown: believe only what is stored.
                raise
        raise Conflict(tuple(item.id for item in items if isinstance(item, Command)))

    def _forget(self) -> None:
        latest = self._world.latest_at
        self._world, self._stored, self._absent = UnitOfWork(), {}, []
        self._world.latest_at = latest

    def _batch(self, items: Sequence[Request]) -> Transaction[list[Response]]:
        if len(self._stored) > MAX_CACHED:
            self._forget()
        self._fresh.clear()
        self._given, self._asked, self._pools = 0, {}, {}
        self._groups.clear()
        wanted: set[str] = set()
        drawn: set[str] = set()
        claims: list[Claim] = []
        for item in items:
            if isinstance(item, NewRecord | StartRun) and item.has_random_id:
                drawn.add(item.id)
            elif isinstance(item, Command):
                wanted.update(related_ids(item))
            elif isinstance(item, Claim):
                name = item.pool_key
                self._asked[name] = self._asked.get(name, 0) + item.limit
                claims.append(item)
        yield from self._count_held(claims)
        ready: list[StoredRecord] | None = None
        if len(items) == 1 and isinstance(item := items[0], Claim) and (limit := self._limit(item)):
            stored, ready = yield BeginClaim(item.tenant, item.labels, limit, item.only_ids, self._clock.lead)
        else:
            stored, held = yield Begin(tuple(id for id in wanted if id not in self._stored))
            self._take(held, wanted | drawn)
        now = self._clock.read(stored)
        events: list[Event] = []
        changed: dict[str, Record] = {}
        rearmed: dict[str, int | None] = {}
        answers: list[Response] = []
        for item in items:
            if isinstance(item, Claim):
                answers.append((yield from self._claim(item, now, ready, changed, events)))
            elif isinstance(item, Tick):
                answers.append((yield from self._tick(item, now, changed, events, rearmed)))
            else:
                decision = self._decide_at_once(item, now, changed, events)
                answers.append(decision or (yield from self._decide(item, now, changed, events)))
        puts = [self._put(record, rearmed) for record in changed.values()]
        puts += [self._rearm(id, due) for id, due in rearmed.items() if id not in changed]
        if puts:
            yield Write(
                puts, events, True, batch_list_changes(changed, events), freed_tenants(changed.values(), self._limited)
            )
            for put in puts:
                self._written(put)
        self._tidy()
        self._clock.advance_to(self._world.latest_at)
        return answers

    def _take(self, held: list[StoredRecord], wanted: Iterable[str] = ()) -> list[StoredRecord]:
        """Believe what was loaded; what was asked for and is not there does not exist."""
        for each in held:
            id = each.record.id
            self._fresh.add(id)
            if id not in self._stored or self._stored[id][0] < each.version:
                self._world.records[id] = each.record
                self._stored[id] = (each.version, each.due_at)
            if isinstance(each.record, UnreadableRecord):
                self._reports.tell(each.record)
        for id in wanted:
            if id not in self._world.records:
                self._fresh.add(id)
                self._world.records[id] = None
                self._absent.append(id)
        return held

    def _tidy(self) -> None:
        """Keep only what nobody else is likely to change. What did not exist may by now."""
        for id in (*self._absent, *self._fresh):
            if not is_cacheable(self._world.records.get(id)):
                self._world.records.pop(id, None)
                self._stored.pop(id, None)
        self._absent.clear()
        self._world.job_ids.clear()

    def _decide_at_once(
        self, command: Command, now: int, changed: dict[str, Record], events: list[Event]
    ) -> Decision | None:
        """The common case, without a detour: everything is loaded, and something changes. None: look closer."""
        try:
            decision = decide(self._world, command, now)
        except (NotLoaded, Refused, InvariantBroken):
            return None
        if not decision.changed:
            return None
        changed.update(decision.changed)
        events += decision.events
        return decision

    def _decide(
        self, command: Command, now: int, changed: dict[str, Record], events: list[Event]
    ) -> Transaction[Decision | Refused]:
        loads = 0
        while True:
            try:
                decision = decide(self._world, command, now)
            except NotLoaded as missing:
                loads += 1
                of = self._world.records.get(command.id)
                yield from self._load(missing, of.run_id if of is not None and loads == MAX_CHAIN_LOADS else "")
                continue
            except Refused as refused:
                if self._doubt(command.id, changed):
                    continue
                return unreadable_refusal(self._world.records.get(command.id)) or refused
            except InvariantBroken:
                # Records that another server changed meanwhile do not fit those that were just loaded.
                if self._doubt("", changed):
                    continue
                raise
            if not decision.changed:
                if self._doubt(command.id, changed):
                    continue
                return unreadable_refusal(decision.record) or decision
            changed.update(decision.changed)
            events += decision.events
            return decision

    def _doubt(self, id: str, changed: dict[str, Record]) -> bool:
        """Whether an answer that writes nothing may rest on what another server has changed since.

        A write is guarded by its version; a refusal and a repeat are not. So what was only remembered is
        forgotten, and the command is decided once more from what is stored.
        """
        record = self._world.records.get(id)
        if is_queue_attempt(record):
            remembered = [id] if id not in self._fresh and id not in changed else []
        else:
            remembered = [each for each in self._stored if each not in self._fresh and each not in changed]
        for each in remembered:
            self._world.records.pop(each, None)
            self._stored.pop(each, None)
        return bool(remembered)

    def _load(self, missing: NotLoaded, whole_run: str = "") -> Transaction[None]:
        if jobs_of := whole_run or missing.jobs_of:
            held = yield LoadJobs(jobs_of)
            self._take(held)
            self._world.job_ids[jobs_of] = tuple(each.record.id for each in held)
        else:
            held = yield Load(missing.ids)
            self._take(held, missing.ids)

    def _count_held(self, claims: Iterable[Claim]) -> Transaction[None]:
        """How many live leases they have whose claims have a limit; before anything else, see `CountHeld`."""
        self._held.clear()
        limits: dict[str, int] = {}
        for claim in claims:
            if claim.tenant_limit:
                limits[claim.tenant] = max(claim.tenant_limit, limits.get(claim.tenant, 0))
            elif self._limited:
                self._limited.discard(claim.tenant)
        for tenant in sorted(limits):
            self._limited.add(tenant)
            self._held[tenant] = yield CountLiveLeases(tenant, limits[tenant])

    def _limit(self, claim: Claim) -> int:
        """How many it may have now, by what is stored and what this batch gave already."""
        if not claim.tenant_limit:
            return claim.limit
        return max(0, min(claim.limit, claim.tenant_limit - self._held[claim.tenant]))

    def _pool(self, claim: Claim, now: int, ready: list[StoredRecord] | None) -> Transaction[list[StoredRecord]]:
        """What is ready for all claims of this batch that may take the same; found once, by the first of them."""
        name = claim.pool_key
        if ready is not None and not any(isinstance(each.record, UnreadableRecord) for each in ready):
            self._pools[name] = self._take(ready)
        taken = self._given
        while name not in self._pools:
            # What this batch already took is still ready in the store: ask for that many more. Not for more than that:
            # what is found is nobody else's until the commit.
            limit, without = self._asked[name] + taken, self._groups.without(claim.tenant)
            wanted = FindReady(claim.tenant, claim.labels, now, limit, claim.only_ids, without)
            held: list[StoredRecord] = yield from self._reports.readable(wanted, now + STUCK_SECONDS * SECOND)
            found = sum(not self._is_ready(each) for each in held)
            if found <= taken or len(held) < wanted.limit:
                self._pools[name] = self._take(held)
            taken = found
        return self._pools[name]

    def _is_ready(self, held: StoredRecord) -> bool:
        """Whether it is still ready by what this batch has decided."""
        current = self._world.records.get(held.record.id, held.record)
        return isinstance(current, Attempt) and ready_at(current) is not None

    def _claim(
        self, claim: Claim, now: int, ready: list[StoredRecord] | None, changed: dict[str, Record], events: list[Event]
    ) -> Transaction[ClaimResult]:
        limit = self._limit(claim)
        if not limit:
            return ClaimResult([])
        pool = yield from self._pool(claim, now, ready)
        secret = secrets.token_hex(SECRET_BYTES * min(limit, len(pool)))
        found: list[ClaimedAttempt] = []
        refused: list[StoredRecord] = []
        seen, is_behind = 0, False
        while len(found) < limit:
            if seen == len(pool):
                if not is_behind or claim.only_ids:
                    break
                # What is behind was not asked for yet. Each time there is one group, or one attempt, less to find.
                pool, seen, is_behind = (yield from self._pool_behind(claim, now, refused)), 0, False
                secret += secrets.token_hex(SECRET_BYTES * min(limit, len(pool)))
                continue
            each = pool[seen]
            seen += 1
            current = self._world.records.get(each.record.id)
            if not isinstance(current, Attempt) or not self._is_ready(each):
                continue
            if current.avoid and attempt.should_yield(
                current, claim.worker_id, claim.other_worker_labels, claim.other_worker_ids
            ):
                self._asked[claim.pool_key] += 1  # A rival's turn with this one: look behind it as well.
                refused.append(each)
                is_behind = True
                continue
            if current.group and not (yield from self._groups.may_give(current, now)):
                is_behind = True
                continue
            own = secret[len(found) * SECRET_BYTES * 2 : (len(found) + 1) * SECRET_BYTES * 2]
            given = yield from self._give(current, claim, own, now, changed, events)
            if given is None:
                refused.append(each)
                continue
            found.append(given)
            self._given += 1
            if current.group:
                self._groups.gave(current)
        if claim.tenant in self._held:
            self._held[claim.tenant] += len(found)
        self._pools[claim.pool_key] = refused + pool[seen:]
        return ClaimResult(found, bool(refused), skipped_queue_keys(refused))

    def _pool_behind(self, claim: Claim, now: int, refused: list[StoredRecord]) -> Transaction[list[StoredRecord]]:
        """What else is ready, without the groups that are somebody's by now."""
        del self._pools[claim.pool_key]
        known = {each.record.id for each in refused}
        return [each for each in (yield from self._pool(claim, now, None)) if each.record.id not in known]

    def _give(
        self, what: Attempt, claim: Claim, own: str, now: int, changed: dict[str, Record], events: list[Event]
    ) -> Transaction[ClaimedAttempt | None]:
        """Grant it under a lease with this secret of its own; None: this worker may not have it."""
        actor = worker_actor(claim.worker_id)
        salt = ""
        number = what.claims + 1
        if self._mint is not None:
            salt = own[:SALT_CHARS]
            own = self._mint(what.id, number, salt)
        token = ids.lease_id(what.id, number, own)
        ref = ids.LeaseRef(what.id, number, ids.lease_fingerprint(token))
        grant = attempt.Grant(
            id=what.id,
            actor=actor,
            request_id=claim.request_id,
            fingerprint=ref.fingerprint,
            labels=claim.labels,
            ttl_seconds=claim.ttl_seconds,
            accept_seconds=claim.accept_seconds,
            salt=salt,
        )
        decision: Decision | Refused | None = self._decide_at_once(grant, now, changed, events)
        if decision is None:
            decision = yield from self._decide(grant, now, changed, events)
        if claim.start_immediately and isinstance(decision, Decision):
            start = attempt.Start(id=what.id, actor=actor, lease=ref)
            decision = self._decide_at_once(start, now, changed, events)
            if decision is None:
                decision = yield from self._decide(start, now, changed, events)
        if isinstance(decision, Decision) and isinstance(decision.record, Attempt):
            return ClaimedAttempt(decision.record, token)
        return None

    def _tick(
        self, tick: Tick, now: int, changed: dict[str, Record], events: list[Event], rearmed: dict[str, int | None]
    ) -> Transaction[int]:
        held = yield from self._reports.readable(FindDue(now, tick.limit), now + STUCK_SECONDS * SECOND)
        self._take(held)
        for each in held:
            id = each.record.id
            due = self._due(id)
            if due is not None and due[0] <= now:
                try:
                    yield from self._decide(due[1](id=id), now, changed, events)
                except InvariantBroken:
                    # Our bug, but only this record's: the others' deadlines go on.
                    LOGGER.exception("what is due for %s cannot be carried out; it is tried again later", id)
                due = self._due(id)
            # The stored time was early on purpose: a heartbeat does not move it. Set it right now.
            due_at = due[0] if due is not None else None
            rearmed[id] = max(due_at, now + STUCK_SECONDS * SECOND) if due_at is not None and due_at <= now else due_at
        return len(held)

    def _due(self, id: str) -> Due | None:
        record = self._world.records.get(id)
        return next_due(record) if record is not None else None

    def _put(self, record: Record, rearmed: dict[str, int | None]) -> Put:
        version, old_due = self._stored.get(record.id, (0, None))
        due = next_due(record)
        due_at = due[0] if due is not None else None
        if record.id not in rearmed and due_at is not None and old_due is not None:
            # Only an earlier deadline is written: a renewed lease then costs no change of the index.
            due_at = min(due_at, old_due)
        return Put(record, version, ready_at(record), due_at, is_over(record))

    def _rearm(self, id: str, due_at: int | None) -> Put:
        record = self._world.records[id]
        assert record is not None
        return Put(record, self._stored[id][0], ready_at(record), due_at, is_over(record))

    def _written(self, put: Put) -> None:
        id = put.record.id
        if put.is_terminal or not is_cacheable(put.record):
            self._world.records.pop(id, None)
            self._stored.pop(id, None)
        else:
            self._stored[id] = (put.version + 1, put.due_at)
