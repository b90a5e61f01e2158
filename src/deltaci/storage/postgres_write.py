"""Writes a batch to PostgreSQL with one statement over arrays."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import asyncpg
from msgspec.structs import astuple

from deltaci.core.resource import Resource
from deltaci.storage import resources
from deltaci.storage.codec import KIND_OF, EventChunk, encode, pack_events
from deltaci.storage.document_backends import sorted_for_write
from deltaci.storage.list_index import added_rows, removed_rows
from deltaci.storage.port import Conflict, Document, ListChange, Write, group_fences
from deltaci.storage.sql import JOB_RESULT_CONFLICT, PUT_GROUP_FENCE, insert_values, job_result_row

CLOCK: Final = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
# One statement writes a whole batch. Each part counts the rows that had the expected version; if the sum is too small,
# the statement fails. The head of the log is locked last, after the rows, and until the commit: so a reader that sees a
# seq also sees every smaller one.
_WRITE_TEMPLATE: Final = """
    WITH new AS (
        INSERT INTO records
        SELECT u.id, u.kind, 1, u.run_id, u.queue_key, u.priority, u.ready_at, u.due_at, u.body, u.tenant, u.group_name
        FROM unnest($1::text[], $2::smallint[], $3::text[], $4::text[], $5::int[], $6::bigint[], $7::bigint[],
                    $8::bytea[], $9::text[], ${groups}::text[])
            AS u (id, kind, run_id, queue_key, priority, ready_at, due_at, body, tenant, group_name)
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
    {lists}), found AS (
        SELECT (SELECT count(*) FROM new) + (SELECT count(*) FROM old) + (SELECT count(*) FROM over) {listed} AS count
    ), head AS (
        UPDATE log_head SET seq = seq + $19 WHERE $19 > 0 AND (SELECT count FROM found) >= 0 RETURNING seq
    ), scoped AS (
        INSERT INTO chunk_scopes SELECT s, head.seq FROM unnest($22::text[]) AS s, head
    ), logged AS (
        INSERT INTO chunks SELECT head.seq, $19, $20, $21 FROM head RETURNING last_seq
    )
    SELECT CASE WHEN (SELECT count FROM found) = $23 THEN (SELECT last_seq FROM logged) ELSE deltaci_conflict() END
"""
# A record that was created and finished in the same batch goes directly to the history.
_INSERT_FINISHED: Final = (
    "INSERT INTO history SELECT u.* FROM unnest($1::text[], $2::smallint[], $3::text[], $4::bigint[], $5::bytea[]) "
    "AS u (id, kind, run_id, ended_at, body) "
    "WHERE NOT EXISTS (SELECT FROM records r WHERE r.id = u.id) ON CONFLICT DO NOTHING"
)
_DELETE_LISTED: Final = """
    DELETE FROM listed l USING unnest({0}::text[], {1}::text[], {2}::bigint[], {3}::text[]) AS u (tenant, list, at, id)
    WHERE l.tenant = u.tenant AND l.list = u.list AND l.at = u.at AND l.id = u.id
"""
# Lists are written after the rows are locked and before the head of the log.
_LISTS: Final = f"""), joined AS (
        INSERT INTO listed SELECT * FROM unnest($24::text[], $25::text[], $26::bigint[], $27::text[])
        WHERE (SELECT count(*) FROM new) + (SELECT count(*) FROM old) + (SELECT count(*) FROM over) >= 0
        ON CONFLICT DO NOTHING RETURNING 1
    ), departed AS (
        {_DELETE_LISTED.format("$28", "$29", "$30", "$31")} RETURNING 1
    """
_WRITE: Final = _WRITE_TEMPLATE.format(lists="", listed="", groups=24)
_WRITE_LISTED: Final = _WRITE_TEMPLATE.format(
    lists=_LISTS, listed="+ 0 * ((SELECT count(*) FROM joined) + (SELECT count(*) FROM departed))", groups=32
)
_DELETE_LISTED_ONLY: Final = _DELETE_LISTED.format("$1", "$2", "$3", "$4")
PUT_DOCUMENTS: Final = f"""
    WITH given AS (
        SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::bigint[], $5::bytea[])
            AS u (kind, tenant, name, version, body)
    ), new AS (
        INSERT INTO documents
        SELECT u.kind, u.tenant, u.name, 1, {CLOCK} + $6::bigint, u.body FROM given u WHERE u.version = 0
        ON CONFLICT DO NOTHING RETURNING 1
    ), old AS (
        UPDATE documents d SET version = d.version + 1, at = {CLOCK} + $6::bigint, body = u.body FROM given u
        WHERE d.kind = u.kind AND d.tenant = u.tenant AND d.name = u.name AND d.version = u.version RETURNING 1
    )
    SELECT CASE WHEN (SELECT count(*) FROM new) + (SELECT count(*) FROM old) = $7 THEN 0 ELSE deltaci_conflict() END
"""
_INSERT_MOVED: Final = (
    "INSERT INTO moved_requests SELECT * FROM unnest($1::text[], $2::text[], $3::text[]) ON CONFLICT DO NOTHING"
)
# Another transaction that stores the same claim waits here until this one ends.
_INSERT_GRANTS: Final = (
    "INSERT INTO claim_grants SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::int[], $5::text[], "
    "$6::int[]) ON CONFLICT DO NOTHING"
)
_PUT_JOB_RESULTS: Final = (
    "INSERT INTO job_results SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], "
    f"$6::text[], $7::text[], $8::text[], $9::bigint[]) {JOB_RESULT_CONFLICT}"
)
_INSERT_RESOURCE, _UPDATE_RESOURCE = (sql.format(m="$") for sql in (resources.INSERT, resources.UPDATE))
_PUT_GROUP_FENCE: Final = PUT_GROUP_FENCE.format("$1", "$2", "$3", "$4")
_NO_CHUNK: Final = EventChunk(0, 0, b"", frozenset())


def is_single_statement(write: Write) -> bool:
    """Return whether `write_batch` writes this with a single statement, so that it needs no BEGIN and COMMIT."""
    return (
        not (write.moved_requests or write.claim_grants or write.job_results)
        and all(type(put.record) is not Resource and (put.version or not put.is_terminal) for put in write.puts)
        and not group_fences(write)
    )


async def remove_from_lists(connection: Any, changes: list[ListChange]) -> None:
    """Delete the index rows of deleted records."""
    if changes:
        await connection.execute(_DELETE_LISTED_ONLY, *_columns(removed_rows(changes), 4))


def document_columns(documents: Sequence[Document]) -> Iterable[Sequence[Any]]:
    """Return the first parameters of PUT_DOCUMENTS, which are the columns of these documents."""
    rows = [
        (document.kind, document.tenant, document.name, document.version, document.body)
        for document in sorted_for_write(documents)
    ]
    return _columns(rows, 5)


async def write_batch(connection: Any, write: Write) -> int:
    """Write records, lists and events. Return the `seq` of the last event, 0 if there is none."""
    puts, resource_puts = resources.split_puts(write.puts)
    for put in resource_puts:
        sql, values = resources.statement_of(put, _INSERT_RESOURCE, _UPDATE_RESOURCE)
        if not (await connection.execute(sql, *values)).endswith(" 1"):
            raise Conflict((put.record.id,))
    new_rows = [insert_values(put) for put in puts if put.version == 0 and not put.is_terminal]
    *new_columns, group_names = _columns(new_rows, 10)
    changed_rows = [
        (put.record.id, put.version, put.ready_at, put.due_at, encode(put.record))
        for put in puts
        if put.version and not put.is_terminal
    ]
    finished_rows = [
        (put.record.id, put.version, encode(put.record)) for put in puts if put.version and put.is_terminal
    ]
    new_finished_records = [put.record for put in puts if put.version == 0 and put.is_terminal]
    if new_finished_records:
        finished_values = [
            (record.id, KIND_OF[type(record)], record.run_id, record.updated_at, encode(record))
            for record in new_finished_records
        ]
        status: str = await connection.execute(_INSERT_FINISHED, *zip(*finished_values, strict=True))
        if int(status.rpartition(" ")[2]) != len(finished_values):
            raise Conflict(tuple(record.id for record in new_finished_records))
    if write.moved_requests:
        await connection.execute(
            _INSERT_MOVED, *_columns([(*moved.key, moved.request) for moved in write.moved_requests], 3)
        )
    if write.claim_grants:
        inserted = await connection.execute(_INSERT_GRANTS, *_columns(sorted(map(astuple, write.claim_grants)), 6))
        if int(inserted.rpartition(" ")[2]) != len(write.claim_grants):
            raise Conflict(tuple(grant.attempt_id for grant in write.claim_grants))
    if write.job_results:
        await connection.execute(_PUT_JOB_RESULTS, *_columns(list(map(job_result_row, write.job_results)), 9))
    if fences := group_fences(write):
        await connection.executemany(_PUT_GROUP_FENCE, fences)
    chunk = pack_events(write.events) if write.events else _NO_CHUNK
    ended_at = max((put.record.updated_at for put in puts), default=0)
    try:
        last_seq = await connection.fetchval(
            _WRITE_LISTED if write.list_changes else _WRITE,
            *new_columns,
            *_columns(changed_rows, 5),
            *_columns(finished_rows, 3),
            ended_at,
            chunk.count,
            chunk.at,
            chunk.body,
            list(chunk.scopes),
            len(puts) - len(new_finished_records),
            *_list_columns(write.list_changes),
            group_names,
        )
    except asyncpg.SerializationError as error:
        raise Conflict(tuple(put.record.id for put in puts)) from error
    return int(last_seq or 0)


def _list_columns(changes: list[ListChange]) -> Iterable[Sequence[Any]]:
    return (*_columns(added_rows(changes), 4), *_columns(removed_rows(changes), 4)) if changes else ()


def _columns(rows: Sequence[tuple[Any, ...]], width: int) -> Iterable[Sequence[Any]]:
    return zip(*rows, strict=True) if rows else ((),) * width
