"""The store for any number of servers: PostgreSQL, bulk statements over arrays, guards in SQL and policy never.

Every batch is one transaction on one connection. Rows are found with `SKIP LOCKED`, so that servers side by
side take different work; every write is guarded by the version that was read. The events of a batch are one
row, appended under a lock that is held until the commit: so seq grows in the order of commits, and a reader
who saw one seq has seen all before it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final, cast

import asyncpg

from deltaci.core.attempt import Attempt
from deltaci.core.events import Event
from deltaci.core.machine import Record
from deltaci.core.timers import ready_at
from deltaci.store.codec import JOB_KIND, KIND_OF, Chunk, decode_record, encode, pack
from deltaci.store.migrate import migrations, missing
from deltaci.store.notify import Notifier
from deltaci.store.port import (
    Conflict,
    FindDue,
    FindReady,
    Held,
    Load,
    LoadJobs,
    Open,
    OpenReady,
    PutAside,
    Ready,
    Request,
    T,
    Transaction,
    Unavailable,
    Write,
    fits,
    fitting,
    made_ready,
)
from deltaci.store.sql import PUT_ASIDE, QUEUE_KEYS, LogReader, ReadyReader, new_row
from deltaci.store.wake import Arrived, Wakers

LANES: Final = 3
READERS: Final = 4
COMMAND_SECONDS: Final = 30.0

# What the driver raises when the database is not there, goes, or has no room: a statement may also meet the farewell of
# a server that is shut down, which the driver calls an error of its own.
AWAY: Final = (
    OSError,
    TimeoutError,
    asyncpg.PostgresConnectionError,
    asyncpg.OperatorInterventionError,
    asyncpg.InsufficientResourcesError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
)
MIGRATE_LOCK: Final = 0x0DE17AC1_0001  # A number that nobody else is likely to lock.
# Our statements have one good plan each: along an index, in its order. Statistics that lag behind must not hide it.
PLANS: Final = {
    "plan_cache_mode": "force_generic_plan",
    "enable_bitmapscan": "off",
    "enable_sort": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
}

_CLOCK: Final = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
_COLUMNS: Final = "id, kind, version, due_at, body"
_OPEN: Final = (
    f"SELECT {_CLOCK}, r.id, r.kind, r.version, r.due_at, r.body "
    "FROM (SELECT 1) one LEFT JOIN records r ON r.id = ANY($1)"
)
_LOAD: Final = f"SELECT {_COLUMNS} FROM records WHERE id = ANY($1)"
_LOAD_OVER: Final = "SELECT id, kind, 0::bigint, NULL::bigint, body FROM history WHERE id = ANY($1)"
_LOAD_JOBS: Final = (
    f"SELECT {_COLUMNS} FROM records WHERE run_id = $1 AND kind = $2 "
    "UNION ALL SELECT id, kind, 0::bigint, NULL::bigint, body FROM history WHERE run_id = $1 AND kind = $2"
)
_KEYS: Final = QUEUE_KEYS.format("$1")
_READY: Final = (
    f"SELECT {_COLUMNS} FROM records WHERE tenant = $1 AND queue_key = $2 AND ready_at <= $3 "
    "ORDER BY priority DESC, ready_at, id LIMIT $4 FOR UPDATE SKIP LOCKED"
)
# The same for the queue without labels, by the time that is read on the way: a claim then takes one question less.
_OPEN_READY: Final = (
    f"SELECT c.now, r.* FROM (SELECT {_CLOCK} + $2::bigint AS now) c LEFT JOIN LATERAL ("
    f"SELECT {_COLUMNS} FROM records WHERE tenant = $1 AND queue_key = '' AND ready_at <= c.now "
    "ORDER BY priority DESC, ready_at, id LIMIT $3 FOR UPDATE SKIP LOCKED) r ON true"
)
# The ids lead to the rows: a bare `tenant` might lead along the index of all that is ready.
_ONLY: Final = (
    f"SELECT {_COLUMNS} FROM records WHERE id = ANY($1) AND tenant || '' = $2 AND ready_at + 0 <= $3 "
    "FOR UPDATE SKIP LOCKED"
)
_DUE: Final = f"SELECT {_COLUMNS} FROM records WHERE due_at <= $1 ORDER BY due_at LIMIT $2 FOR UPDATE SKIP LOCKED"
# One statement writes a whole batch. Each part counts what it found as expected; the head of the log is taken last,
# once the rows are ours, and held until the commit: whoever reads a seq has every smaller one before its eyes.
_WRITE: Final = """
    WITH new AS (
        INSERT INTO records
        SELECT u.id, u.kind, 1, u.run_id, u.queue_key, u.priority, u.ready_at, u.due_at, u.body, u.tenant
        FROM unnest($1::text[], $2::smallint[], $3::text[], $4::text[], $5::int[], $6::bigint[], $7::bigint[],
                    $8::bytea[], $9::text[])
            AS u (id, kind, run_id, queue_key, priority, ready_at, due_at, body, tenant)
        WHERE NOT EXISTS (SELECT FROM history h WHERE h.id = u.id)
        ON CONFLICT DO NOTHING RETURNING 1
    ), old AS (
        UPDATE records r SET version = r.version + 1, ready_at = u.ready_at, due_at = u.due_at, body = u.body
        FROM unnest($10::text[], $11::bigint[], $12::bigint[], $13::bigint[], $14::bytea[])
            AS u (id, version, ready_at, due_at, body)
        WHERE r.id = u.id AND r.version = u.version RETURNING 1
    ), gone AS (
        DELETE FROM records r USING unnest($15::text[], $16::bigint[], $17::bytea[]) AS u (id, version, body)
        WHERE r.id = u.id AND r.version = u.version RETURNING r.id, r.kind, r.run_id, u.body
    ), over AS (
        INSERT INTO history SELECT id, kind, run_id, $18, body FROM gone RETURNING 1
    ), found AS (
        SELECT (SELECT count(*) FROM new) + (SELECT count(*) FROM old) + (SELECT count(*) FROM over) AS count
    ), head AS (
        UPDATE log_head SET seq = seq + $19 WHERE $19 > 0 AND (SELECT count FROM found) >= 0 RETURNING seq
    ), scoped AS (
        INSERT INTO chunk_scopes SELECT s, head.seq FROM unnest($22::text[]) AS s, head
    ), logged AS (
        INSERT INTO chunks SELECT head.seq, $19, $20, $21 FROM head RETURNING last_seq
    )
    SELECT CASE WHEN (SELECT count FROM found) = $23 THEN (SELECT last_seq FROM logged) ELSE deltaci_conflict() END
"""
# A record that was born and ended in the same batch was never among the live ones.
_BORN_OVER: Final = (
    "INSERT INTO history SELECT u.* FROM unnest($1::text[], $2::smallint[], $3::text[], $4::bigint[], $5::bytea[]) "
    "AS u (id, kind, run_id, ended_at, body) "
    "WHERE NOT EXISTS (SELECT FROM records r WHERE r.id = u.id) ON CONFLICT DO NOTHING"
)
_PUT_ASIDE: Final = PUT_ASIDE.format("$1::bigint", "$2")
_NO_CHUNK: Final = Chunk(0, 0, b"", frozenset())


class PostgresStore:
    """One database, shared by any number of servers."""

    lanes = LANES

    def __init__(self, dsn: str, *, shift: Callable[[], int] = lambda: 0) -> None:
        self._dsn = dsn
        self._shift = shift  # Microseconds that tests move the database's clock by.
        self._pool: asyncpg.Pool[asyncpg.Record] | None = None
        self._log = LogReader(self._fetch, ("$1", "$2", "$3"))
        self._ready = ReadyReader(self._fetch, ("$1", "$2", "$3", "$4"))
        self.wakers = Wakers()
        self._notifier = Notifier(self._connect, self.wakers)

    def _connect(self) -> Awaitable[Any]:
        return asyncpg.connect(self._dsn, command_timeout=COMMAND_SECONDS)

    async def open(self) -> None:
        """Connect, and bring the tables up to date; one server does it, the others wait for it."""
        try:
            self._pool = await asyncpg.create_pool(
                self._dsn,
                min_size=1,
                max_size=LANES + READERS,
                command_timeout=COMMAND_SECONDS,
                server_settings=PLANS,
                reset=_stays_as_it_is,
            )
            async with self._pool.acquire() as connection, connection.transaction():
                await connection.execute("SELECT pg_advisory_xact_lock($1)", MIGRATE_LOCK)
                await connection.execute(
                    "CREATE TABLE IF NOT EXISTS migrations (number integer PRIMARY KEY, checksum text NOT NULL)"
                )
                applied = await connection.fetch("SELECT number, checksum FROM migrations")
                for migration in missing(migrations("postgres"), [(row[0], row[1]) for row in applied]):
                    await connection.execute(migration.text)
                    await connection.execute(
                        "INSERT INTO migrations VALUES ($1, $2)", migration.number, migration.checksum
                    )
        except AWAY as error:
            raise Unavailable(f"PostgreSQL cannot be reached: {error}") from error
        self._notifier.start()

    async def close(self) -> None:
        """Close every connection."""
        await self._notifier.stop()
        if self._pool is not None:
            await self._pool.close()

    def _connected(self) -> asyncpg.Pool[asyncpg.Record]:
        if self._pool is None:
            raise Unavailable("the store is not open; call open() first")
        return self._pool

    async def transact(self, work: Callable[[], Transaction[T]]) -> T:
        """Run it on one connection. A connection that breaks leaves the outcome unknown: `Unavailable`."""
        try:
            async with self._connected().acquire() as connection:
                result, ready = await self._drive(connection, work())
        except AWAY as error:
            raise Unavailable(f"PostgreSQL: {error}") from error
        except (asyncpg.SerializationError, asyncpg.DeadlockDetectedError, asyncpg.UniqueViolationError) as error:
            raise Conflict(()) from error
        if ready is not None:
            self.wakers.hint(ready)
            self._notifier.announce(ready)
        return result

    async def _drive(self, connection: Any, transaction: Transaction[T]) -> tuple[T, Arrived | None]:
        """Ask and answer. What only reads, and then writes with one statement, needs no BEGIN and no COMMIT."""
        begun: Any = None
        ready: Arrived | None = None
        try:
            request, result = _next(transaction, None)
            while request is not None:
                if begun is None and not _stands_alone(request):
                    begun = connection.transaction()
                    await begun.start()
                if isinstance(request, Write):
                    ready = {**(ready or {}), **made_ready(request)}
                request, result = _next(transaction, await self._answer(connection, request))
            if begun is not None:
                await begun.commit()
        except asyncio.CancelledError:
            connection.terminate()  # Nobody waits for it any more; asking it to roll back could hide that.
            raise
        except BaseException:
            if begun is not None and not connection.is_closed() and connection.is_in_transaction():
                await begun.rollback()
            raise
        finally:
            transaction.close()
        return cast(T, result), ready

    async def _answer(self, connection: Any, request: Request) -> Any:
        if isinstance(request, Open):
            return await self._open_batch(connection, request.ids)
        if isinstance(request, Write):
            return await self._write(connection, request)
        if isinstance(request, Load):
            found = _held(await connection.fetch(_LOAD, request.ids))
            return found + await self._load_over(connection, request.ids, found)
        if isinstance(request, LoadJobs):
            return _held(await connection.fetch(_LOAD_JOBS, request.run_id, JOB_KIND))
        if isinstance(request, FindDue):
            return _held(await connection.fetch(_DUE, request.now, request.limit))
        if isinstance(request, PutAside):
            return await connection.executemany(_PUT_ASIDE, [(request.until, id) for id in request.ids])
        if isinstance(request, OpenReady):
            return await self._open_ready(connection, request)
        assert isinstance(request, FindReady)
        return await self._find_ready(connection, request)

    async def _open_ready(self, connection: Any, request: OpenReady) -> tuple[int, list[Held]]:
        if request.labels or request.only:
            now, _ = await self._open_batch(connection, ())
            return now, await self._find_ready(
                connection, FindReady(request.tenant, request.labels, now + request.lead, request.limit, request.only)
            )
        shift = self._shift() + request.lead
        rows = await connection.fetch(_OPEN_READY, request.tenant, shift, request.limit)
        return int(rows[0][0]) - request.lead, _held([row[1:] for row in rows if row[1] is not None])

    @staticmethod
    async def _find_ready(connection: Any, request: FindReady) -> list[Held]:
        best: list[Held] = []
        if request.only:
            rows = await connection.fetch(_ONLY, list(request.only), request.tenant, request.now)
            best = [held for held in _held(rows) if fits(held, request.labels)]
            best.sort(key=_claim_order)
            return best[: request.limit]
        keys = [row[0] for row in await connection.fetch(_KEYS, request.tenant)] if request.labels else [""]
        chosen = fitting(keys, request.labels)
        for key in chosen:
            best += _held(await connection.fetch(_READY, request.tenant, key, request.now, request.limit))
        if len(chosen) > 1:
            best.sort(key=_claim_order)
        return best[: request.limit]

    async def _open_batch(self, connection: Any, ids: tuple[str, ...]) -> tuple[int, list[Held]]:
        rows = await connection.fetch(_OPEN, ids)
        found = _held([row[1:] for row in rows if row[1] is not None])
        return int(rows[0][0]) + self._shift(), found + await self._load_over(connection, ids, found)

    @staticmethod
    async def _load_over(connection: Any, ids: tuple[str, ...], found: list[Held]) -> list[Held]:
        known = {held.record.id for held in found}
        wanted = [id for id in ids if id not in known]
        return _held(await connection.fetch(_LOAD_OVER, wanted)) if wanted else []

    @staticmethod
    async def _write(connection: Any, write: Write) -> int:
        puts = write.puts
        new = [new_row(put) for put in puts if put.version == 0 and not put.is_over]
        old = [
            (put.record.id, put.version, put.ready_at, put.due_at, encode(put.record))
            for put in puts
            if put.version and not put.is_over
        ]
        over = [(put.record.id, put.version, encode(put.record)) for put in puts if put.version and put.is_over]
        born_over = [put.record for put in puts if put.version == 0 and put.is_over]
        if born_over:
            rows = [(each.id, KIND_OF[type(each)], each.run_id, each.updated_at, encode(each)) for each in born_over]
            status: str = await connection.execute(_BORN_OVER, *zip(*rows, strict=True))
            if int(status.rpartition(" ")[2]) != len(rows):
                raise Conflict(tuple(record.id for record in born_over))
        chunk = pack(write.events) if write.events else _NO_CHUNK
        ended_at = max((put.record.updated_at for put in puts), default=0)
        try:
            last_seq = await connection.fetchval(
                _WRITE,
                *_columns(new, 9),
                *_columns(old, 5),
                *_columns(over, 3),
                ended_at,
                chunk.count,
                chunk.at,
                chunk.body,
                list(chunk.scopes),
                len(puts) - len(born_over),
            )
        except asyncpg.SerializationError as error:
            raise Conflict(tuple(put.record.id for put in puts)) from error
        return int(last_seq or 0)

    async def find(self, id: str) -> Record | None:
        """The record as it is now."""
        for sql in (_LOAD, _LOAD_OVER):
            for held in _held(await self._fetch(sql, [id])):
                return held.record
        return None

    async def _fetch(self, sql: str, *values: Any) -> list[Any]:
        try:
            rows: list[Any] = await self._connected().fetch(sql, *values)
        except AWAY as error:
            raise Unavailable(f"PostgreSQL: {error}") from error
        return rows

    async def events(self, after: int, limit: int, *, entity_id: str = "", run_id: str = "") -> list[Event]:
        """Committed events, in order."""
        return await self._log.events(after, limit, entity_id, run_id, self.find)

    async def waiting(self, before: int, limit: int) -> list[Ready]:
        """What waits since before then."""
        return await self._ready.waiting(before, limit)

    async def last_seq(self) -> int:
        """The newest seq."""
        return int((await self._fetch("SELECT seq FROM log_head"))[0][0])

    async def prune(self, *, finished_before: int, events_before: int, limit: int) -> int:
        """Drop finished records and old events."""
        finished = await self._deleted(
            "DELETE FROM history WHERE id IN (SELECT id FROM history WHERE ended_at < $1 LIMIT $2)",
            finished_before,
            limit,
        )
        chunks = await self._deleted(
            "WITH old AS (SELECT last_seq FROM chunks WHERE at < $1 ORDER BY last_seq LIMIT $2), "
            "scoped AS (DELETE FROM chunk_scopes s USING old WHERE s.last_seq = old.last_seq) "
            "DELETE FROM chunks c USING old WHERE c.last_seq = old.last_seq",
            events_before,
            limit,
        )
        return finished + chunks

    async def _deleted(self, sql: str, *values: Any) -> int:
        status: str = await self._connected().execute(sql, *values)
        return int(status.rpartition(" ")[2])


def _held(rows: list[Any]) -> list[Held]:
    return [Held(decode_record(id, kind, body), version, due_at) for id, kind, version, due_at, body in rows]


def _claim_order(held: Held) -> tuple[int, int, str]:
    record = held.record
    if not isinstance(record, Attempt):
        return -(2**63), 0, record.id  # It cannot be read: whoever looks at it next puts it aside.
    return -record.priority, ready_at(record) or 0, record.id


def _next(transaction: Transaction[T], answer: Any) -> tuple[Request | None, T | None]:
    """What it asks next; or, when it has ended, its result."""
    try:
        return transaction.send(answer), None
    except StopIteration as end:
        return None, end.value


def _stands_alone(request: Request) -> bool:
    """Whether it takes no lock that must be held until later, and is one statement."""
    if isinstance(request, Write):
        return request.is_last and all(put.version or not put.is_over for put in request.puts)
    return isinstance(request, Open | Load | LoadJobs)


def _columns(rows: list[tuple[Any, ...]], width: int) -> Iterable[Sequence[Any]]:
    return zip(*rows, strict=True) if rows else ((),) * width


async def _stays_as_it_is(_connection: object) -> None:
    """Our sessions change nothing that the next user of the connection would have to undo."""
