"""Pages of lists: how they are read from tables that know on which lists a record is, and how memory keeps them."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import islice
from typing import Any, Final

from deltaci.core.listing import ListKey, lists_of
from deltaci.core.machine import Record
from deltaci.storage.port import Entry, Page, Place, Search, Unreadable, storable

START: Final = Place(2**63 - 1, "")  # Later than everything: where a list begins.
STEP: Final = 4  # How many times as much is looked at in the next step at most, when one was not enough.
FIRST_STEP: Final = 100

Row = tuple[str, str, int, str]  # Of the table: tenant, list, at, id.
# What was found on the driving list, and whether it is on the others too.
Walked = tuple[int, str, bool]

# One walk along the key, backwards, with a probe of the same key for every other list. Not with EXISTS: a database may
# answer that by reading all of the other list.
WALK: Final = (
    "SELECT d.at, d.id, {0} FROM listed d WHERE d.tenant = {m}1 AND d.list = {m}2 AND (d.at, d.id) < ({m}3, {m}4) "
    "AND d.at >= {m}5 ORDER BY d.at DESC, d.id DESC LIMIT {m}6"
)
PROBE: Final = (
    "(SELECT 1 FROM listed o WHERE o.tenant = {m}1 AND o.list = {m}{n} AND o.at = d.at AND o.id = d.id) IS NOT NULL"
)
COUNT: Final = (
    "SELECT count(*) FROM (SELECT 1 FROM listed WHERE tenant = {m}1 AND list = {m}2 ORDER BY at LIMIT {m}3) AS found"
)


def walk(mark: str, others: int) -> str:
    """The statement that walks along one list and looks at so many others. A value is written as the mark and n."""
    probes = [PROBE.format(m=mark, n=7 + n) for n in range(others)]
    return WALK.format(" AND ".join(probes) or "true", m=mark)


def joined(entries: Iterable[Entry]) -> list[Row]:
    """The rows that are new."""
    return sorted((tenant, name, entry.at, entry.id) for entry in entries for tenant, name in entry.joined)


def left(entries: Iterable[Entry]) -> list[Row]:
    """The rows that are no longer."""
    return sorted((tenant, name, entry.at, entry.id) for entry in entries for tenant, name in entry.left)


def dropped(records: Iterable[Record]) -> list[Entry]:
    """What records that are dropped leave. Where one that cannot be read is listed nobody knows; pages pass over it."""
    readable = (record for record in records if not isinstance(record, Unreadable))
    return [Entry(record.id, record.created_at, frozenset(), lists_of(record)) for record in readable]


def start(before: Place | None, until: int) -> Place:
    """Where a page begins: behind this place. A place that no page gave is as good as any, if a store can name it."""
    given = START if before is None else Place(before.at, before.id if storable(before.id) else "")
    return max(Place(0, ""), min(given, Place(until, "") if until else START))


def _next_size(size: int, seen: int, found: int, limit: int) -> int:
    """How much to look at next: what is likely to hold the rest of the page, and one more, by what was seen so far."""
    likely = (limit + 1 - found) * seen // max(found, 1)
    return max(FIRST_STEP, min(size * STEP, likely))


class Pages:
    """Reads pages, over any way to walk along a list and to load what was found."""

    def __init__(
        self,
        walk: Callable[[str, Sequence[str], Place, int, int], Awaitable[Sequence[Walked]]],
        load: Callable[[Sequence[str]], Awaitable[list[Record]]],
    ) -> None:
        self._walk = walk
        self._load = load

    async def page(self, search: Search) -> Page:
        """One page. One entry more than fits is looked at: only then nobody is sent to a page with nothing on it."""
        tenant, lists, limit, budget = search.tenant, search.lists, search.limit, search.budget
        if not lists:
            raise ValueError("a page is of one list at least; name one")
        place, found, seen = start(search.before, search.until), list[str](), 0
        since = min(max(search.since, 0), START.at)
        size = limit + 1 if len(lists) == 1 else max(limit + 1, FIRST_STEP)
        while budget > 0:
            rows = await self._walk(tenant, lists, place, since, min(size, budget))
            for at, id, is_wanted in rows:
                if len(found) == limit:
                    return Page(await self._load(found), place)
                place = Place(at, id)
                if is_wanted:
                    found.append(id)
            if len(rows) < min(size, budget):
                return Page(await self._load(found), None)
            budget -= len(rows)
            seen += len(rows)
            size = _next_size(size, seen, len(found), limit)
        return Page(await self._load(found), place)


class SqlPages(Pages):
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

    async def _walked(self, tenant: str, lists: Sequence[str], place: Place, since: int, size: int) -> Sequence[Walked]:
        first, *others = lists
        rows: Sequence[Walked] = await self._fetch(
            walk(self._mark, len(others)), tenant, first, place.at, place.id, since, size, *others
        )
        return rows

    async def count(self, tenant: str, list: str, limit: int) -> int:
        """How many there are, up to the limit."""
        return int((await self._fetch(self._count, tenant, list, limit))[0][0])


class MemoryLists:
    """Every list as a sorted one."""

    def __init__(self, load: Callable[[Sequence[str]], Awaitable[list[Record]]]) -> None:
        self._lists: dict[ListKey, list[tuple[int, str]]] = {}
        self._pages = Pages(self._walked, load)
        self.page = self._pages.page

    def apply(self, entry: Entry) -> Entry:
        """Put it on its lists and take it off others; the entry that would take this back."""
        place = (entry.at, entry.id)
        joined = frozenset(name for name in entry.joined if not self._holds(name, place))
        left = frozenset(name for name in entry.left if self._holds(name, place))
        for name in joined:
            insort(self._lists.setdefault(name, []), place)
        for name in left:
            entries = self._lists[name]
            del entries[bisect_left(entries, place)]
            if not entries:
                del self._lists[name]
        return Entry(entry.id, entry.at, left, joined)

    def _holds(self, name: ListKey, place: tuple[int, str]) -> bool:
        entries = self._lists.get(name, [])
        index = bisect_left(entries, place)
        return index < len(entries) and entries[index] == place

    async def _walked(self, tenant: str, lists: Sequence[str], place: Place, since: int, size: int) -> Sequence[Walked]:
        entries = self._lists.get((tenant, lists[0]), [])
        low, high = bisect_left(entries, (since, "")), bisect_left(entries, (place.at, place.id))
        some = islice((entries[n] for n in range(high - 1, low - 1, -1)), size)
        return [(*each, all(self._holds((tenant, name), each) for name in lists[1:])) for each in some]

    async def count(self, tenant: str, list: str, limit: int) -> int:
        """How many there are, up to the limit."""
        return min(limit, len(self._lists.get((tenant, list), ())))
