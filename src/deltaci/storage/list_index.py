"""The index of lists: which records are on which list, and how a page of a list is read.

To read a page, one list is scanned backwards along its key (tenant, list, created_at, id). For each entry, every other
list of the query is probed for the same key. Stores add and remove the index rows together with the records.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import islice
from typing import Any, Final

from deltaci.core.listing import ListKey, lists_of
from deltaci.core.machine import Record
from deltaci.storage.port import ListChange, ListPosition, ListQuery, RecordPage, UnreadableRecord, is_storable_text

NEWEST: Final = ListPosition(2**63 - 1, "")  # The position before the newest record, where a list begins.
MAX_SCAN_GROWTH: Final = 4  # How much larger the next scan of one page may be.
MIN_FILTERED_SCAN: Final = 100

Row = tuple[str, str, int, str]  # Tenant, list, created_at, id.
# created_at and id of an entry of the scanned list, and whether the record is on the other lists too.
ScannedRow = tuple[int, str, bool]

# Probes are scalar subqueries, not EXISTS, which a database may answer by reading all of the other list.
SCAN: Final = (
    "SELECT d.at, d.id, {0} FROM listed d WHERE d.tenant = {m}1 AND d.list = {m}2 AND (d.at, d.id) < ({m}3, {m}4) "
    "AND d.at >= {m}5 ORDER BY d.at DESC, d.id DESC LIMIT {m}6"
)
PROBE: Final = (
    "(SELECT 1 FROM listed o WHERE o.tenant = {m}1 AND o.list = {m}{n} AND o.at = d.at AND o.id = d.id) IS NOT NULL"
)
COUNT: Final = (
    "SELECT count(*) FROM (SELECT 1 FROM listed WHERE tenant = {m}1 AND list = {m}2 ORDER BY at LIMIT {m}3) AS found"
)


def scan_sql(mark: str, other_count: int) -> str:
    """Return the SQL that scans one list and probes `other_count` more lists for each entry.

    `mark` is the character before the number of a query parameter: `$` or `?`.
    """
    probes = [PROBE.format(m=mark, n=7 + probe_number) for probe_number in range(other_count)]
    return SCAN.format(" AND ".join(probes) or "true", m=mark)


def added_rows(changes: Iterable[ListChange]) -> list[Row]:
    """Return the index rows that these changes insert, sorted."""
    return sorted(
        (tenant, list_name, change.created_at, change.id) for change in changes for tenant, list_name in change.added
    )


def removed_rows(changes: Iterable[ListChange]) -> list[Row]:
    """Return the index rows that these changes delete, sorted."""
    return sorted(
        (tenant, list_name, change.created_at, change.id) for change in changes for tenant, list_name in change.removed
    )


def removals(records: Iterable[Record]) -> list[ListChange]:
    """Return the changes that remove deleted records from all of their lists.

    The lists of an unreadable record are unknown; pages skip its remaining entries.
    """
    readable_records = (record for record in records if not isinstance(record, UnreadableRecord))
    return [ListChange(record.id, record.created_at, frozenset(), lists_of(record)) for record in readable_records]


def start_position(before: ListPosition | None, until: int) -> ListPosition:
    """Return the position after which a page begins, given the query's `before` and `until`.

    `before` need not be the end of a page.
    """
    requested_position = (
        NEWEST if before is None else ListPosition(before.created_at, before.id if is_storable_text(before.id) else "")
    )
    return max(ListPosition(0, ""), min(requested_position, ListPosition(until, "") if until else NEWEST))


def _next_scan_size(scan_size: int, scanned_count: int, match_count: int, page_size: int) -> int:
    """Return how many entries to scan next, estimated from the matches so far.

    They should suffice to fill the page and find one more match.
    """
    likely_size = (page_size + 1 - match_count) * scanned_count // max(match_count, 1)
    return max(MIN_FILTERED_SCAN, min(scan_size * MAX_SCAN_GROWTH, likely_size))


class ListReader:
    """Reads pages of lists by means of two functions: one scans a list, the other loads records."""

    def __init__(
        self,
        scan: Callable[[str, Sequence[str], ListPosition, int, int], Awaitable[Sequence[ScannedRow]]],
        load: Callable[[Sequence[str]], Awaitable[list[Record]]],
    ) -> None:
        self._scan_list = scan
        self._load = load

    async def page(self, query: ListQuery) -> RecordPage:
        """Return one page of the records that are on all lists of the query.

        It looks for one match more than fits on the page, so that `next` is never followed by an empty page.
        """
        tenant, lists, limit, scan_limit = query.tenant, query.lists, query.limit, query.scan_limit
        if not lists:
            raise ValueError("a page is of one list at least; name one")
        position, matching_ids, scanned_count = start_position(query.before, query.until), list[str](), 0
        since = min(max(query.since, 0), NEWEST.created_at)
        scan_size = limit + 1 if len(lists) == 1 else max(limit + 1, MIN_FILTERED_SCAN)
        while scan_limit > 0:
            scanned_rows = await self._scan_list(tenant, lists, position, since, min(scan_size, scan_limit))
            for created_at, record_id, is_match in scanned_rows:
                if len(matching_ids) == limit:
                    return RecordPage(await self._load(matching_ids), position)
                position = ListPosition(created_at, record_id)
                if is_match:
                    matching_ids.append(record_id)
            if len(scanned_rows) < min(scan_size, scan_limit):
                return RecordPage(await self._load(matching_ids), None)
            scan_limit -= len(scanned_rows)
            scanned_count += len(scanned_rows)
            scan_size = _next_scan_size(scan_size, scanned_count, len(matching_ids), limit)
        return RecordPage(await self._load(matching_ids), position)


class SqlListReader(ListReader):
    """Reads pages of lists from a database through `fetch`, which runs a query.

    `mark` is the character before the number of a query parameter: `$` or `?`.
    """

    def __init__(
        self,
        fetch: Callable[..., Awaitable[Sequence[Any]]],
        mark: str,
        load: Callable[[Sequence[str]], Awaitable[list[Record]]],
    ) -> None:
        super().__init__(self._scan, load)
        self._fetch = fetch
        self._mark = mark
        self._count = COUNT.format(m=mark)

    async def _scan(
        self, tenant: str, lists: Sequence[str], position: ListPosition, since: int, scan_size: int
    ) -> Sequence[ScannedRow]:
        scanned_list, *other_lists = lists
        rows: Sequence[ScannedRow] = await self._fetch(
            scan_sql(self._mark, len(other_lists)),
            tenant,
            scanned_list,
            position.created_at,
            position.id,
            since,
            scan_size,
            *other_lists,
        )
        return rows

    async def count(self, tenant: str, list: str, limit: int) -> int:
        """Return how many records are on the list, up to `limit`."""
        return int((await self._fetch(self._count, tenant, list, limit))[0][0])


class MemoryListIndex:
    """Stores every list as a sorted Python list of (created_at, id)."""

    def __init__(self, load: Callable[[Sequence[str]], Awaitable[list[Record]]]) -> None:
        self._lists: dict[ListKey, list[tuple[int, str]]] = {}
        self._reader = ListReader(self._scan, load)
        self.page = self._reader.page

    def apply(self, change: ListChange) -> ListChange:
        """Add the record to some lists and remove it from others. Return the change that undoes this."""
        position = (change.created_at, change.id)
        added_keys = frozenset(list_key for list_key in change.added if not self._contains(list_key, position))
        removed_keys = frozenset(list_key for list_key in change.removed if self._contains(list_key, position))
        for list_key in added_keys:
            insort(self._lists.setdefault(list_key, []), position)
        for list_key in removed_keys:
            positions = self._lists[list_key]
            del positions[bisect_left(positions, position)]
            if not positions:
                del self._lists[list_key]
        return ListChange(change.id, change.created_at, removed_keys, added_keys)

    def _contains(self, list_key: ListKey, position: tuple[int, str]) -> bool:
        positions = self._lists.get(list_key, [])
        index = bisect_left(positions, position)
        return index < len(positions) and positions[index] == position

    async def _scan(
        self, tenant: str, lists: Sequence[str], before: ListPosition, since: int, scan_size: int
    ) -> Sequence[ScannedRow]:
        positions = self._lists.get((tenant, lists[0]), [])
        low_index, high_index = (
            bisect_left(positions, (since, "")),
            bisect_left(positions, (before.created_at, before.id)),
        )
        scanned_positions = islice((positions[index] for index in range(high_index - 1, low_index - 1, -1)), scan_size)
        return [
            (*position, all(self._contains((tenant, other_name), position) for other_name in lists[1:]))
            for position in scanned_positions
        ]

    def ids(self, tenant: str, list: str) -> tuple[str, ...]:
        """Return the ids of all records on the list, oldest first."""
        return tuple(id for _, id in self._lists.get((tenant, list), ()))

    async def count(self, tenant: str, list: str, limit: int) -> int:
        """Return how many records are on the list, up to `limit`."""
        return min(limit, len(self._lists.get((tenant, list), ())))
