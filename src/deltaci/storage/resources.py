"""How stores read and write resources: the SQL that SQLite and PostgreSQL share, and the values of its columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import takewhile
from typing import Any, Final

from deltaci.core.ids import RESOURCE_PREFIX
from deltaci.core.resource import API_KEY, PRESENT, Resource
from deltaci.storage.codec import RESOURCE_KIND, decode_record, encode
from deltaci.storage.port import Put, ResourceQuery, is_storable_text

# The columns of a `StoredRecord`. Resources are never due.
_COLUMNS: Final = f"id, {RESOURCE_KIND}, version, NULL, body"
SELECT: Final = f"SELECT {_COLUMNS} FROM resources"
FIND_KEY: Final = f"{SELECT} WHERE kind = '{API_KEY}' AND name = {{m}}1"
# Names with one prefix are adjacent, so the query starts at the prefix and the reader stops after it.
LIST: Final = (
    f"{SELECT} WHERE kind = {{m}}1 AND (tenant, name) > ({{m}}2, {{m}}3) AND (tenant, name) >= ({{m}}2, {{m}}4) "
    f"AND state = '{PRESENT}' ORDER BY tenant, name LIMIT {{m}}5"
)
INSERT: Final = (
    "INSERT INTO resources (id, kind, tenant, name, version, state, updated_at, body) "
    "VALUES ({m}1, {m}2, {m}3, {m}4, 1, {m}5, {m}6, {m}7) ON CONFLICT DO NOTHING"
)
UPDATE: Final = (
    "UPDATE resources SET version = version + 1, state = {m}1, updated_at = {m}2, body = {m}3 "
    "WHERE id = {m}4 AND version = {m}5"
)


def select_by_ids(count: int) -> str:
    """Return the SQL that selects `count` resources by id, in SQLite."""
    return f"{SELECT} WHERE id IN ({', '.join('?' * count)})"


def split_ids(ids: Iterable[str]) -> tuple[list[str], list[str]]:
    """Return the ids of other records, and those of resources."""
    all_ids = list(ids)
    resource_ids = [id for id in all_ids if id.startswith(RESOURCE_PREFIX)]
    return [id for id in all_ids if not id.startswith(RESOURCE_PREFIX)] if resource_ids else all_ids, resource_ids


def split_puts(puts: Sequence[Put]) -> tuple[list[Put], list[Put]]:
    """Return the writes of other records, and those of resources in the order in which every writer locks them."""
    resource_puts = [put for put in puts if type(put.record) is Resource]
    if not resource_puts:
        return list(puts), resource_puts
    other_puts = [put for put in puts if type(put.record) is not Resource]
    return other_puts, sorted(resource_puts, key=lambda put: put.record.id)


def statement_of(put: Put, insert: str, update: str) -> tuple[str, tuple[Any, ...]]:
    """Return the statement that writes this resource, `insert` or `update`, with its parameters."""
    record = put.record
    assert isinstance(record, Resource)
    if put.version:
        return update, (record.state, record.updated_at, encode(record), record.id, put.version)
    names = (record.id, record.kind, record.tenant, record.name)
    return insert, (*names, record.state, record.updated_at, encode(record))


def list_parameters(query: ResourceQuery) -> tuple[Any, ...] | None:
    """Return the parameters of LIST, or None if no resource can match."""
    after_tenant, after_name = query.after
    tenant = query.tenant if query.tenant is not None else after_tenant
    if not (is_storable_text(query.prefix) and is_storable_text(tenant)):
        return None
    return query.kind, tenant, after_name if is_storable_text(after_name) else "", query.prefix, query.limit


def select_page(query: ResourceQuery, rows: Iterable[Sequence[Any]]) -> list[Resource]:
    """Return the resources of the rows of LIST that match the query."""
    records = (decode_record(row[0], RESOURCE_KIND, row[-1]) for row in rows)
    resources = (record for record in records if isinstance(record, Resource))
    return list(takewhile(lambda resource: matches(query, resource), resources))


def matches(query: ResourceQuery, resource: Resource) -> bool:
    """Return whether the resource has the tenant and the prefix of the query."""
    return query.tenant in (None, resource.tenant) and resource.name.startswith(query.prefix)
