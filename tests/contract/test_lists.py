"""Lists: runs and workers are listed by their properties, newest first, page by page."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from random import Random
from typing import Any, Final

import msgspec
import pytest

from deltaci.core import listing, run
from deltaci.core.attempt import Attempt
from deltaci.core.cascade import NewRecord
from deltaci.core.decide import Decision
from deltaci.core.events import RUN, WORKER
from deltaci.core.listing import ListKey, lists_of
from deltaci.core.machine import Command, Record
from deltaci.core.run import Origin, Run
from deltaci.core.status import steps
from deltaci.core.worker import Worker
from deltaci.storage.codec import KIND_OF, decode_record, encode
from deltaci.storage.port import (
    Conflict,
    ListChange,
    ListPosition,
    ListQuery,
    LoadJobs,
    Put,
    ReadTransaction,
    RecordPage,
    Store,
    UnreadableRecord,
    Write,
)
from tests.contract.backends import Backend, Server, ask, on_loop, put
from tests.support.histories import History
from tests.support.lab import START, TENANT, Lab

SEEDS: Final = range(3)
STEPS: Final = 250
NONSENSE: Final[Any] = {"tally": "nonsense"}


def runs(**more: Any) -> ListQuery:
    """All runs of the tenant."""
    return ListQuery(**{"tenant": TENANT, "lists": [listing.RUNS], "limit": 9, **more})


def names(page: RecordPage) -> list[str]:
    """The ids on a page."""
    return [record.id for record in page.records]


def born(id: str, at: int, **origin: Any) -> tuple[Put, ListChange]:
    """A run that was created then, and its place on its lists."""
    record = Run(id=id, run_id=id, tenant=TENANT, created_at=at, state=run.CREATED, origin=Origin(**origin))
    return put(record), ListChange(id, at, lists_of(record))


async def keep(store: Store, *made: tuple[Put, ListChange]) -> None:
    """Write these in one go."""
    puts, entries = [each[0] for each in made], [each[1] for each in made]
    await ask(store, Write(puts, [], True, entries))


def jobs_of(run_id: str) -> ReadTransaction[list[Record]]:
    """Every job of a run."""
    return [held.record for held in (yield LoadJobs(run_id))]


async def walk(store: Store, named: Sequence[str], limit: int, **chosen: Any) -> list[str]:
    """Everything on these lists, page by page."""
    found: list[str] = []
    position: ListPosition | None = None
    for _ in range(1000):
        page = await store.page(ListQuery(tenant=TENANT, lists=named, before=position, limit=limit, **chosen))
        assert len(page.records) <= limit
        found += names(page)
        position = page.next
        if position is None:
            return found
    raise AssertionError("the list has no end")


# -- what is listed follows from the records


class Recording(Lab):
    """A lab that records its commands and their times."""

    def __init__(self) -> None:
        super().__init__()
        self.done: list[tuple[int, Command]] = []

    def do(self, command: Command) -> Decision:
        decision = super().do(command)
        self.done.append((self.now, command))
        return decision


def history(seed: int) -> list[tuple[int, Command]]:
    """Return the commands of a random history."""
    told = History(Random(seed))
    told.lab, workers = Recording(), [record for record in told.lab.unit.records.values() if isinstance(record, Worker)]
    for worker_record in workers:
        told.lab.register(worker_record.id, worker_record.max_concurrent_tasks, worker_record.labels)
    told.go(STEPS).calm()
    assert isinstance(told.lab, Recording)
    return told.lab.done


async def check_lists(store: Store, ids: Iterable[str]) -> int:
    """Check that every list has exactly the records that belong on it; return the number of lists."""
    expected: dict[ListKey, list[tuple[int, str]]] = defaultdict(list)
    for record in await store.find_all(list(ids)):
        for listed in lists_of(record):
            expected[listed].append((record.created_at, record.id))
    known = [(TENANT, listing.runs_in_state(state)) for state in run.MACHINE.states]
    known += [(TENANT, listing.runs_with_status(status)) for status in steps.RUN_VIEW.states]
    known += [(TENANT, listing.WORKERS), (TENANT, listing.GONE_WORKERS), (listing.ALL_TENANTS, listing.UNREPORTED)]
    for tenant, name in {*known, *expected}:
        page = await store.page(ListQuery(tenant=tenant, lists=[name], limit=1000))
        places = sorted(expected[tenant, name], reverse=True)
        assert names(page) == [id for _, id in places], (tenant, name)
        assert await store.count(tenant, name, 1000) == len(places)
    return sum(map(bool, expected.values()))


@on_loop
async def test_a_cancel_that_an_older_version_requested_ends_on_the_right_lists(backend: Backend) -> None:
    """That version stored neither the state before the request nor, while the jobs stopped, any list but CANCELED."""
    stopping = Run(id="r1", run_id="r1", tenant=TENANT, created_at=START, state=run.CANCEL_REQUESTED)
    old_fields = msgspec.msgpack.decode(encode(stopping))[: Run.__struct_fields__.index("state_before_cancel")]
    old_record = decode_record("r1", KIND_OF[Run], encode(old_fields))
    assert isinstance(old_record, Run)
    assert steps.run_status(old_record) == steps.RUNNING
    names_of_old_lists = (listing.RUNS, "run/state=CANCEL_REQUESTED", "run/status=CANCELED")
    old_lists = frozenset((TENANT, name) for name in names_of_old_lists)

    async with backend.server() as server:
        await keep(server.store, (put(old_record), ListChange("r1", START, old_lists)))
        await server.do(run.FinishCancel(id="r1"))

        await check_lists(server.store, ["r1"])


@pytest.mark.parametrize("seed", SEEDS)
@on_loop
async def test_lists_follow_the_machines(backend: Backend, seed: int) -> None:
    """In any batches, a record is on the lists that follow from it, and on no other."""
    done, draw = history(seed), Random(seed)
    async with backend.server() as server:
        checked = 0
        while done:
            size = draw.randint(1, 30)
            batch, done = done[:size], done[size:]
            backend.shift = batch[-1][0] - START
            await server.engine.do_all([command for _, command in batch])
            if draw.random() < 0.2 or not done:
                ids = {event.entity_id for event in await server.log() if event.entity in (RUN, WORKER)}
                checked = await check_lists(server.store, ids)
        assert checked > 3


@on_loop
async def test_a_run_is_listed_by_its_origin(backend: Backend) -> None:
    """Project, branch, person, template, labels; not for another tenant."""
    origin = Origin(project="shop", branch="main", labels=("nightly", "x" * 5000), template="build")
    record = Run(id="r1", run_id="r1", tenant=TENANT, origin=origin, started_by="ada")
    async with backend.server() as server:
        await server.do(NewRecord(id="r1", record=record))
        await server.do(NewRecord(id="r2", record=Run(id="r2", run_id="r2", tenant=TENANT)))

        for name in (
            listing.runs_of_project("shop"),
            listing.runs_of_branch("main"),
            listing.runs_started_by("ada"),
            listing.runs_of_template("build"),
            listing.runs_with_label("nightly"),
            listing.runs_with_label("x" * 5000),
        ):
            assert names(await server.store.page(ListQuery(tenant=TENANT, lists=[name], limit=9))) == ["r1"]
            assert names(await server.store.page(ListQuery(tenant="other", lists=[name], limit=9))) == []
        assert (
            names(await server.store.page(ListQuery(tenant=TENANT, lists=[listing.runs_of_branch("dev")], limit=9)))
            == []
        )
        await check_lists(server.store, ["r1", "r2"])


@on_loop
async def test_a_refused_write_leaves_the_lists_alone(backend: Backend) -> None:
    """A list must not show a record that was never stored."""
    async with backend.opened() as store:
        await keep(store, born("a", START))

        with pytest.raises(Conflict):
            await keep(store, born("b", START), born("a", START + 5))

        assert await walk(store, [listing.RUNS], 10) == ["a"]


@on_loop
async def test_a_transaction_that_fails_later_rolls_back_its_lists(backend: Backend) -> None:
    """Also after the first write of the transaction succeeded."""
    moved = ListChange("a", START, frozenset({(TENANT, "new")}), frozenset({(TENANT, listing.RUNS)}))
    again, _ = born("a", START)
    async with backend.opened() as store:
        await keep(store, born("a", START))

        with pytest.raises(Conflict):
            await ask(store, Write([], [], False, [moved]), Write([again], [], True))

        assert await walk(store, [listing.RUNS], 10) == ["a"]
        assert await walk(store, ["new"], 10) == []


# -- pages


@on_loop
async def test_pages_are_newest_first_and_leave_nothing_out(backend: Backend) -> None:
    """Also where many were created at the same moment."""
    made = [born(f"r{n:02}", START + n // 4) for n in range(30)]
    expected = [f"r{n:02}" for n in reversed(range(30))]
    async with backend.opened() as store:
        await keep(store, *made)

        for limit in (1, 3, 10, 29, 30, 31):
            assert await walk(store, [listing.RUNS], limit) == expected
        page = await store.page(runs(limit=30))
        assert page.next is None


@on_loop
async def test_a_page_does_not_shift_while_runs_are_created(backend: Backend) -> None:
    """Paging shows every run once, also on a busy server."""
    async with backend.opened() as store:
        await keep(store, *(born(f"r{n:02}", START + n) for n in range(20)))
        found: list[str] = []
        page = await store.page(runs(limit=6))
        for n in range(20, 60):
            found += names(page)
            await keep(store, born(f"r{n:02}", START + n))
            if page.next is None:
                break
            page = await store.page(runs(before=page.next, limit=6))

        assert found == [f"r{n:02}" for n in reversed(range(20))]


@on_loop
async def test_a_page_has_the_records_that_are_on_all_lists(backend: Backend) -> None:
    """Which list is read affects only the cost."""
    made = [
        born(f"r{n:03}", START + n, branch=("main", "dev")[n % 2], labels=("slow",) if n % 5 == 0 else ())
        for n in range(200)
    ]
    both = [f"r{n:03}" for n in reversed(range(0, 200, 10))]
    main, slow = listing.runs_of_branch("main"), listing.runs_with_label("slow")
    async with backend.opened() as store:
        await keep(store, *made)

        for named in ([main, slow], [slow, main], [listing.RUNS, slow, main], [slow, main, slow]):
            assert await walk(store, named, 7) == both
        assert await walk(store, [slow, listing.runs_of_branch("none")], 7) == []
        with pytest.raises(ValueError, match="name one"):
            await store.page(ListQuery(tenant=TENANT, lists=[], limit=1))


@on_loop
async def test_a_page_of_a_time(backend: Backend) -> None:
    """From the first moment on, up to the last one, which is not in it."""
    async with backend.opened() as store:
        await keep(store, *(born(f"r{n}", START + n) for n in range(8)))

        assert await walk(store, [listing.RUNS], 2, since=START + 2, until=START + 6) == ["r5", "r4", "r3", "r2"]
        assert await walk(store, [listing.RUNS], 2, since=START + 6) == ["r7", "r6"]
        assert await walk(store, [listing.RUNS], 2, until=START + 2) == ["r1", "r0"]
        page = await store.page(runs(before=ListPosition(START + 1, "r1"), until=START + 6, limit=5))
        assert names(page) == ["r0"]


@on_loop
async def test_a_page_reads_no_more_than_its_budget(backend: Backend) -> None:
    """If few records match, a page is short or empty and continues: its cost is bounded."""
    made = [born(f"r{n:03}", START + n, labels=("rare",) if n in (0, 150) else ()) for n in range(300)]
    rare = [listing.RUNS, listing.runs_with_label("rare")]
    async with backend.opened() as store:
        await keep(store, *made)

        first = await store.page(ListQuery(tenant=TENANT, lists=rare, limit=5, scan_limit=100))
        second = await store.page(ListQuery(tenant=TENANT, lists=rare, before=first.next, limit=5, scan_limit=100))
        third = await store.page(ListQuery(tenant=TENANT, lists=rare, before=second.next, limit=5, scan_limit=101))

        assert (names(first), first.next) == ([], ListPosition(START + 200, "r200"))
        assert (names(second), second.next) == (["r150"], ListPosition(START + 100, "r100"))
        assert (names(third), third.next) == (["r000"], None)
        assert await walk(store, rare, 5, scan_limit=7) == ["r150", "r000"]
        assert await walk(store, [listing.RUNS], 5, scan_limit=3) == [f"r{n:03}" for n in reversed(range(300))]


@on_loop
async def test_an_invented_position_is_harmless(backend: Backend) -> None:
    """The result is a page or an empty one, never an error."""
    async with backend.opened() as store:
        await keep(store, born("r0", START), born("r1", START + 1))

        for before, expected in (
            (ListPosition(2**70, "x"), ["r1", "r0"]),
            (ListPosition(-(2**70), ""), []),
            (ListPosition(START + 1, "\x00"), ["r0"]),
            (ListPosition(START + 1, "\ud800"), ["r0"]),
        ):
            assert names(await store.page(runs(before=before))) == expected
        assert names(await store.page(runs(since=-(2**70), until=2**70))) == ["r1", "r0"]
        assert names(await store.page(runs(since=2**70))) == []
        assert names(await store.page(runs(until=-5))) == []


@on_loop
async def test_an_unreadable_record_does_not_break_a_page(backend: Backend) -> None:
    """It is listed as unreadable; a record that no longer exists is left out."""
    bad, entry = put(Run(id="r1", run_id="r1", tenant=TENANT, **NONSENSE)), born("r1", START + 1)[1]
    async with backend.opened() as store:
        await keep(store, born("r0", START), (bad, entry), born("r2", START + 2))
        await ask(store, Write([], [], True, [born("gone", START + 3)[1]]))

        page = await store.page(runs(limit=10))

        assert names(page) == ["r2", "r1", "r0"]
        assert [isinstance(record, UnreadableRecord) for record in page.records] == [False, True, False]
        assert await walk(store, [listing.RUNS], 1) == ["r2", "r1", "r0"]


@on_loop
async def test_a_count_stops_at_its_limit(backend: Backend) -> None:
    """Whether there are more than a hundred costs a hundred reads, not a million."""
    async with backend.opened() as store:
        await keep(store, *(born(f"r{n}", START) for n in range(9)))

        assert [await store.count(TENANT, listing.RUNS, limit) for limit in (1, 8, 9, 10)] == [1, 8, 9, 9]
        assert await store.count(TENANT, "none", 5) == 0


# -- retention


@on_loop
async def test_a_pruned_record_is_on_no_list(backend: Backend) -> None:
    """Otherwise lists of old runs would keep dead entries for ever."""
    async with backend.server() as server:
        for n in range(3):
            await server.do(NewRecord(id=f"r{n}", record=Run(id=f"r{n}", run_id=f"r{n}", tenant=TENANT)))
        await server.register("w1")
        await server.enqueue("q")
        for n in range(2):
            await server.do(run.BeginPlanning(id=f"r{n}"))
            await server.do(run.PlanFailed(id=f"r{n}", error="no plan"))
            await server.do(run.Report(id=f"r{n}", actor="reporter"))
        await _shut_down(server)

        dropped = await server.store.prune(finished_before=backend.now() + 10**9, events_before=0, limit=100)

        assert dropped == 3
        assert await walk(server.store, [listing.RUNS], 10) == ["r2"]
        assert await server.store.count(TENANT, listing.GONE_WORKERS, 9) == 0
        await check_lists(server.store, ["r0", "r1", "r2", "w1"])


async def _shut_down(server: Server) -> None:
    from deltaci.core import worker

    await server.do(worker.Shutdown(id="w1"))
    assert names(await server.store.page(ListQuery(tenant=TENANT, lists=[listing.GONE_WORKERS], limit=9))) == ["w1"]


@on_loop
async def test_prune_deletes_unreadable_records(backend: Backend) -> None:
    """Its list entries are unknown and stay; pages leave them out."""
    bad = put(Run(id="r1", run_id="r1", tenant=TENANT, updated_at=START, **NONSENSE), is_terminal=True)
    async with backend.opened() as store:
        await keep(store, (bad, born("r1", START)[1]), born("r2", START))

        assert await store.prune(finished_before=START + 1, events_before=0, limit=9) == 1

        assert await walk(store, [listing.RUNS], 10) == ["r2"]


# -- reading many


@on_loop
async def test_many_records_are_returned_in_the_requested_order(backend: Backend) -> None:
    """Live or finished; unknown ids are left out, repeated ones returned once."""
    async with backend.opened() as store:
        await ask(store, Write([put(Attempt(id=f"a{n}"), is_terminal=n % 2 == 0) for n in range(1200)], [], True))
        await ask(store, Write([put(Run(id="bad", **NONSENSE))], [], True))

        wanted = [f"a{n}" for n in reversed(range(1200))]
        assert [each.id for each in await store.find_all(wanted)] == wanted
        assert [each.id for each in await store.find_all(["a3", "no", "bad", "a2", "a3"])] == ["a3", "bad", "a2"]
        assert await store.find_all([]) == []


@on_loop
async def test_all_jobs_of_a_run_are_found(backend: Backend) -> None:
    """Finished and unfinished ones: the page of a run shows all."""
    from tests.contract.test_runs import finish, planned
    from tests.support.lab import task

    async with backend.server() as server:
        await planned(server, *(task(name) for name in "cab"))
        await planned(server, task("other"), id="r2")
        await finish(server, await server.take())

        found = await server.store.read(lambda: jobs_of("r1"))

        assert sorted(each.id for each in found) == ["r1/a", "r1/b", "r1/c"]
        assert found == await server.store.find_all([each.id for each in found])
        assert await server.store.read(lambda: jobs_of("none")) == []
