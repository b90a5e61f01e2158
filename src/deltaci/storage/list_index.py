"""Pages of lists: how they are read from tables that know on which lists a record is, and how memory keeps them."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import islice
from typing import Any, Final

from deltaci.core.listing import ListKey, lists_of
from deltaci.core.machine import Record
from deltaci.storage.port import ListChange, ListPosition, ListQuery, RecordPage, UnreadableRecord, is_storable_text

NEWEST: Final = ListPosition(2**63 - 1, "")  # Later than everything: where a list begins.
MAX_SCAN_GROWTH: Final = 4  # How many times as much is looked at in the next step at most, when one was not enough.
MIN_FILTERED_SCAN: Final = 100

Row = tuple[str, str, int, str]  # Of the table: tenant, list, at, id.
# What was found on the driving list, and whether it is on the others too.
ScannedRow = tuple[int, str, bool]

# One walk along the key, backwards, with a probe of the same key for every other list. Not with EXISTS: a database may
# answer that by reading all of the other list.
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


def scan_sql(mark: str, others: int) -> str:
    """The statement that walks along one list and looks at so many others. A value is written as the mark and n."""
    probes = [PROBE.format(m=mark, n=7 + n) for n in range(others)]
    return SCAN.format(" AND ".join(probes) or "true", m=mark)


def added_rows(entries: Iterable[ListChange]) -> list[Row]:
    """The rows that are new."""
    return sorted((tenant, name, entry.created_at, entry.id) for entry in entries for tenant, name in entry.added)


def removed_rows(entries: Iterable[ListChange]) -> list[Row]:
    """The rows that are no longer."""
    return sorted((tenant, name, entry.created_at, entry.id) for entry in entries for tenant, name in entry.removed)


def removals(records: Iterable[Record]) -> list[ListChange]:
    """What records that are dropped leave. Where one that cannot be read is listed nobody knows; pages pass over it."""
    readable = (record for record in records if not isinstance(record, UnreadableRecord))
    return [ListChange(record.id, record.created_at, frozenset(), lists_of(record)) for record in readable]


def start_position(before: ListPosition | None, until: int) -> ListPosition:
    """Where a page begins: behind this place. A place that no page gave is as good as any, if a store can name it."""
    given = (
        NEWEST if before is None else ListPosition(before.created_at, before.id if is_storable_text(before.id) else "")
    )
    return max(ListPosition(0, ""), min(given, ListPosition(until, "") if until else NEWEST))


def _next_scan_size(size: int, seen: int, found: int, limit: int) -> int:
    """How much to look at next: what is likely to hold the rest of the page, and one more, by what was seen so far."""
    likely = (limit + 1 - found) * seen // max(found, 1)
    return max(MIN_FILTERED_SCAN, min(size * MAX_SCAN_GROWTH, likely))


class ListReader:
    """Reads pages, over any way to walk along a list and to load what was found."""

    def __init__(
        self,
        scan_sql: Callable[[str, Sequence[str], ListPosition, int, int], Awaitable[Sequence[ScannedRow]]],
        load: Callable[[Sequence[str]], Awaitable[list[Record]]],
    ) -> None:
        self._walk = scan_sql
        self._load = load

    async def page(self, search: ListQuery) -> RecordPage:
        """One page. One entry more than fits is looked at: only then nobody is sent to a page with nothing on it."""
        tenant, lists, limit, budget = search.tenant, search.lists, search.limit, search.scan_limit
        if not lists:
            raise ValueError("a page is of one list at least; name one")
        place, found, seen = start_position(search.before, search.until), list[str](), 0
        since = min(max(search.since, 0), NEWEST.created_at)
        size = limit + 1 if len(lists) == 1 else max(limit + 1, MIN_FILTERED_SCAN)
        while budget > 0:
            rows = await self._walk(tenant, lists, place, since, min(size, budget))
            for at, id, is_wanted in rows:
                if len(found) == limit:
                    return RecordPage(await self._load(found), place)
                place = ListPosition(at, id)
                if is_wanted:
                    found.append(id)
            if len(rows) < min(size, budget):
                return RecordPage(await self._load(found), None)
            budget -= len(rows)
            seen += len(rows)
            size = _next_scan_size(size, seen, len(found), limit)
        return RecordPage(await self._load(found), place)


class SqlListReader(ListReader):
    """The same over a database's own `fetch`; its values are written as `mark` and a number."""

    def __init__(
        self,
        fetch: Callable[..., Awaitable[Sequence[Any]]],
        mark: str,
        load: Callable[[Sequence[str]], Awaitable[list[Record]]],
    ) -> None:
        super().__init__(self._walked, load)
        self._fetch = fetch
        self._mark = mark
        self._count = COUNT.format(m=mark)

    async def _walked(
        self, tenant: str, lists: Sequence[str], place: ListPosition, since: int, size: int
    ) -> Sequence[ScannedRow]:
        first, *others = lists
        rows: Sequence[ScannedRow] = await self._fetch(
            scan_sql(self._mark, len(others)), tenant, first, place.created_at, place.id, since, size, *others
        )
        return rows

    async def count(self, tenant: str, list: str, limit: int) -> int:
        """How many there are, up to the limit."""
        return int((await self._fetch(self._count, tenant, list, limit))[0][0])


class MemoryListIndex:
    """Every list as a sorted one."""

    def __init__(self, load: Callable[[Sequence[str]], Awaitable[list[Record]]]) -> None:
        self._lists: dict[ListKey, list[tuple[int, str]]] = {}
        self._pages = ListReader(self._walked, load)
        self.page = self._pages.page

    def apply(self, entry: ListChange) -> ListChange:
        """Put it on its lists and take it off others; the entry that would take this back."""
        place = (entry.created_at, entry.id)
        added_rows = frozenset(name for name in entry.added if not self._holds(name, place))
        removed_rows = frozenset(name for name in entry.removed if self._holds(name, place))
        for name in added_rows:
            insort(self._lists.setdefault(name, []), place)
        for name in removed_rows:
            entries = self._lists[name]
            del entries[bisect_left(entries, place)]
            if not entries:
                del self._lists[name]
        return ListChange(entry.id, entry.created_at, removed_rows, added_rows)

    def _holds(self, name: ListKey, place: tuple[int, str]) -> bool:
        entries = self._lists.get(name, [])
        index = bisect_left(entries, place)
        return index < len(entries) and entries[index] == place

    async def _walked(
        self, tenant: str, lists: Sequence[str], place: ListPosition, since: int, size: int
    ) -> Sequence[ScannedRow]:
        entries = self._lists.get((tenant, lists[0]), [])
        low, high = bisect_left(entries, (since, "")), bisect_left(entries, (place.created_at, place.id))
        some = islice((entries[n] for n in range(high - 1, low - 1, -1)), size)
        return [(*each, all(self._holds((tenant, name), each) for name in lists[1:])) for each in some]

    async def count(self, tenant: str, list: str, limit: int) -> int:
        """How many there are, up to the limit."""
        return min(limit, len(self._lists.get((tenant, list), ())))
