"""A tenant's limit of live leases: it holds on all servers, and a waiting claim is woken when a lease ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

import pytest

from deltaci.core import attempt
from deltaci.core.attempt import Attempt
from deltaci.core.cascade import NewRecord
from deltaci.core.events import Event
from deltaci.engine.engine import ClaimedAttempt
from deltaci.storage.port import CountLiveLeases, Request, Store, Transaction
from tests.contract.backends import Backend, Server, T, Wrapped, ask, new_attempt, on_loop, put, write
from tests.contract.conftest import make_backend
from tests.contract.test_postgres_notify import LISTENERS, until
from tests.contract.test_waiters import WaitingRoom, all_ids, ids
from tests.support.lab import START, TENANT, Lease

JOBS: Final = 60
LIMIT: Final = 4


async def enqueue(server: Server, count: int) -> None:
    """So many attempts that wait."""
    await server.engine.do_all([new_attempt(f"a{n:02}") for n in range(count)])


async def end(server: Server, claimed: ClaimedAttempt, by: str = "w1") -> None:
    """It is done."""
    await server.send(attempt.Complete, Lease(by, claimed.lease_id), is_success=True, exit_code=0)


def max_live_leases(events: Iterable[Event]) -> int:
    """Return how many attempts had a live lease at the same time, by the log, which has the order of commits."""
    held: set[str] = set()
    most = 0
    for event in events:
        if event.trigger == "claimed":
            held.add(event.entity_id)
        elif event.to in (attempt.SUCCEEDED, attempt.QUEUED):
            held.discard(event.entity_id)
        most = max(most, len(held))
    return most


@on_loop
async def test_no_attempt_is_granted_beyond_the_limit(backend: Backend) -> None:
    """For any worker, and any number of claims at once."""
    async with backend.server() as server:
        await enqueue(server, 10)

        first = await server.claim("w1", 2, tenant_limit=3)
        second = await server.claim("w2", 9, tenant_limit=3)
        assert [len(first), len(second)] == [2, 1]
        assert await server.claim("w3", 1, tenant_limit=3) == []
        await end(server, first[0])

        assert len(await server.claim("w3", 5, tenant_limit=3)) == 1
        assert len(await server.claim("w3", 5, tenant_limit=5)) == 2  # A limit that was raised counts at once,
        assert await server.claim("w3", 5, tenant_limit=1) == []  # and one that was lowered takes nothing away.
        assert len(await server.claim("w3", 5)) == 4
        await server.verified()


@on_loop
async def test_claims_of_one_batch_share_the_limit(backend: Backend) -> None:
    """A grant of the batch counts although it is not written yet."""
    async with backend.server() as server:
        await enqueue(server, 20)

        claimed = await asyncio.gather(*(server.claim(f"w{n}", 2, tenant_limit=5) for n in range(8)))

        assert sum(map(len, claimed)) == 5
        assert max_live_leases(await server.verified()) == 5


@on_loop
async def test_another_tenant_has_its_own_limit(backend: Backend) -> None:
    """A tenant at its limit does not keep others from working."""
    async with backend.server() as server:
        await enqueue(server, 3)
        for n in range(3):
            await server.do(NewRecord(id=f"b{n}", record=Attempt(id=f"b{n}", tenant="other")))

        claimed = await asyncio.gather(
            server.claim("w1", 3, tenant_limit=1),
            server.claim("w2", 3, tenant_limit=2, tenant="other"),
            server.claim("w3", 3, tenant_limit=1),
            server.claim("w4", 3, tenant="third"),
        )

        w1, w2, w3, w4 = map(len, claimed)
        assert (w1 + w3, w2, w4) == (1, 2, 0)  # Which of the first tenant's two was counted first, nobody can say.


@on_loop
async def test_a_lost_lease_no_longer_counts(backend: Backend) -> None:
    """Only live leases count: a dead runner uses no quota for ever."""
    async with backend.server() as server:
        await enqueue(server, 3)
        await server.take("w1", tenant_limit=1)
        assert await server.claim("w2", tenant_limit=1) == []

        backend.after(200)
        await server.tick()

        assert len(await server.claim("w2", 5, tenant_limit=1)) == 1
        await server.verified()


@on_loop
async def test_only_live_leases_are_counted(backend: Backend) -> None:
    """Deadlines of runs and jobs and waiting or finished attempts do not count; an unreadable record may."""
    nonsense: Any = {"claims": "nonsense"}
    async with backend.opened() as store:
        await write(
            store,
            *(put(Attempt(id=f"held{n}", tenant=TENANT), due_at=START) for n in range(3)),
            put(Attempt(id="bad", tenant=TENANT, **nonsense), due_at=START),
            put(Attempt(id="waits", tenant=TENANT), ready_at=START),
            put(Attempt(id="over", tenant=TENANT), is_terminal=True),
            put(Attempt(id="theirs", tenant="other"), due_at=START),
        )
        assert await ask(store, *(CountLiveLeases(TENANT, limit) for limit in (1, 4, 9))) == [1, 4, 4]

        await write(store, put(Attempt(id="held0", tenant=TENANT), 1), put(Attempt(id="held1"), 1, is_terminal=True))

        assert await ask(store, CountLiveLeases(TENANT, 9), CountLiveLeases("nobody", 9)) == [2, 0]


class Recorded(Wrapped):
    """A store that records its requests."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.asked: list[type[Request]] = []

    async def transact(self, work: Callable[[], Transaction[T]]) -> T:
        def recorded() -> Transaction[T]:
            transaction, answer = work(), None
            try:
                while True:
                    request = transaction.send(answer)
                    self.asked.append(type(request))
                    answer = yield request
            except StopIteration as end:
                result: T = end.value
                return result

        return await self.inner.transact(recorded)


@on_loop
async def test_without_a_limit_a_claim_costs_no_more(backend: Backend) -> None:
    """One request and one write as before; the end of a lease wakes no waiter."""
    recorded: list[Recorded] = []

    def wrap(store: Store) -> Store:
        recorded.append(Recorded(store))
        return recorded[0]

    async with backend.server(wrap) as server:
        await enqueue(server, 2)
        heard: list[Any] = []
        server.store.commit_hints.add_listener(heard.append)
        recorded[0].asked.clear()

        [claimed] = await server.claim()
        assert [each.__name__ for each in recorded[0].asked] == ["BeginClaim", "Write"]
        await end(server, claimed)
        assert not [each for each in heard if each is not None]

        [claimed] = await server.claim(tenant_limit=1)
        assert [each.__name__ for each in recorded[0].asked][-3:] == ["CountLiveLeases", "BeginClaim", "Write"]
        await server.claim()  # Its limit was taken away.
        await end(server, claimed)
        assert not [each for each in heard if each is not None]
        server.store.commit_hints.remove_listener(heard.append)


# -- many at once


async def claim_and_finish_all(server: Server, by: str, done: set[str], enough: asyncio.Event) -> None:
    """Claim and finish attempts, with all workers together, until all are finished."""
    while not enough.is_set():
        for claimed in await server.claim(by, 3, tenant_limit=LIMIT):
            await end(server, claimed, by)
            done.add(claimed.attempt.id)
        if len(done) == JOBS:
            enough.set()


@on_loop
async def test_two_servers_never_exceed_the_limit_together(backend: Backend) -> None:
    """Two that count at the same moment would each see the same room."""
    async with backend.server() as one, backend.server() as two:
        await enqueue(one, JOBS)
        done, enough = set[str](), asyncio.Event()

        await asyncio.gather(*(claim_and_finish_all((one, two)[n % 2], f"w{n}", done, enough) for n in range(8)))

        events = await two.verified()
        assert len(done) == JOBS
        assert 1 < max_live_leases(events) <= LIMIT
        assert await ask(one.store, CountLiveLeases(TENANT, 9)) == [0]


# -- who waits


@on_loop
async def test_a_claim_that_waits_at_the_limit_is_woken_when_a_lease_ends(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a poll: the commit that ends the lease sends a hint to each kind of worker."""
    async with backend.server() as server:
        for n in range(4):
            await server.enqueue(f"a{n}", queue_key="gpu" if n == 1 else "")
        held = await server.claim("w0", 1, tenant_limit=1)
        room = WaitingRoom(server, monkeypatch)
        tasks = {name: await room.add_waiter(name, *labels, tenant_limit=1) for name, labels in WAITING}

        await end(server, held[0], "w0")
        done, _ = await asyncio.wait(tasks.values(), return_when=asyncio.FIRST_COMPLETED)
        while tasks:
            assert len(done) == 1
            name = next(name for name, each in tasks.items() if each in done)
            [claimed] = await tasks.pop(name)
            await end(server, claimed, name)
            if tasks:
                done, _ = await asyncio.wait(tasks.values(), return_when=asyncio.FIRST_COMPLETED)

        assert max_live_leases(await server.verified()) == 1


WAITING: Final = (("plain", ()), ("gpu", ("gpu",)), ("late", ()))


@on_loop
async def test_many_ended_leases_wake_many_claims(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """One batch may end many leases: a waiter that finds work wakes others."""
    async with backend.server() as server:
        await enqueue(server, 8)
        claimed = await server.claim("w0", 4, tenant_limit=4)
        room = WaitingRoom(server, monkeypatch)
        tasks = [await room.add_waiter(f"w{n}", tenant_limit=4) for n in range(4)]

        await asyncio.gather(*(end(server, each, "w0") for each in claimed))

        results = all_ids(await asyncio.gather(*tasks))
        assert sorted([*results, *ids(claimed)]) == [f"a{n:02}" for n in range(8)]


@pytest.fixture
def shared(request: pytest.FixtureRequest, tmp_path: Path) -> Backend:
    """A database that servers share."""
    return make_backend("postgres", tmp_path, request)


@on_loop
async def test_another_server_is_woken_when_a_lease_ends(
    shared: Backend, contract_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Servers on one database share the quota and its hints."""
    import asyncpg

    async with shared.server() as one, shared.server() as two:
        asking = await asyncpg.connect(contract_dsn)
        await until(asking, LISTENERS, 2)
        await asking.close()
        await enqueue(one, 2)
        [claimed] = await one.claim("w1", tenant_limit=1)
        room = WaitingRoom(two, monkeypatch)
        waiting = await room.add_waiter("w2", tenant_limit=1)

        await end(one, claimed)

        assert all_ids([[claimed], await waiting]) == ["a00", "a01"]
