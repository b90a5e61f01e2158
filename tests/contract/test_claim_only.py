"""Claims of certain attempts by id follow the same rules as any other claim."""

from __future__ import annotations

import asyncio

import pytest

from deltaci.core import attempt
from deltaci.core.instants import SECOND
from deltaci.storage.port import BeginClaim, FindReady, ReadyAttempt
from tests.contract.backends import Backend, ask, new_attempt, on_loop, write
from tests.contract.test_store_port import waiting
from tests.contract.test_unreadable import poisoned
from tests.support.lab import START, TENANT


async def ready_ids(
    backend: Backend, *only: str, labels: tuple[str, ...] = (), limit: int = 100, tenant: str = TENANT
) -> str:
    """Return the ids of the matching ready attempts, in order."""
    async with backend.opened() as store:
        [stored] = await ask(store, FindReady(tenant, labels, backend.now(), limit, only))
        [(_, opened)] = await ask(store, BeginClaim(tenant, labels, limit, only))
    assert [each.record.id for each in opened] == [each.record.id for each in stored]
    return " ".join(each.record.id for each in stored)


@on_loop
async def test_only_named_ready_and_matching_attempts_are_found(backend: Backend) -> None:
    """A name does not bypass the tenant, the labels or the ready time."""
    async with backend.opened() as store:
        await write(
            store,
            waiting("a", START - 1),
            waiting("b", START - 2, priority=5),
            waiting("c", START - 3),
            waiting("later", backend.now() + 100 * SECOND),
            waiting("arm", START, labels="arm"),
            waiting("theirs", START, tenant="other"),
        )

    assert await ready_ids(backend, "a", "c", "b") == "b c a"
    assert await ready_ids(backend, "a", "c", "b", limit=2) == "b c"
    assert await ready_ids(backend, "a", "a", "nobody") == "a"
    assert await ready_ids(backend, "later", "arm", "theirs") == ""
    assert await ready_ids(backend, "arm", "a", labels=("arm", "x64")) == "a arm"
    assert await ready_ids(backend, "theirs", "a", tenant="other") == "theirs"
    assert await ready_ids(backend, *(f"n{n}" for n in range(1200)), "c") == "c"


@pytest.mark.proves("PRO-F3", "PRO-K3")
@on_loop
async def test_of_many_claims_of_one_attempt_one_succeeds(backend: Backend) -> None:
    """A dispatch message may arrive twice and at several runners: the store decides."""
    async with backend.server() as one, backend.server() as two:
        await one.engine.do_all([new_attempt(f"a{n}") for n in range(5)])

        claims = [server.claim(f"w{n}", 5, only_ids=("a1", "a3")) for n in range(4) for server in (one, two)]
        granted = [each.attempt.id for claimed in await asyncio.gather(*claims) for each in claimed]

        assert sorted(granted) == ["a1", "a3"]
        assert await two.claim("w9", only_ids=("a1", "a3")) == []
        assert {await one.state(f"a{n}") for n in (0, 2, 4)} == {attempt.QUEUED}
        await one.verified()


@on_loop
async def test_finished_and_leased_attempts_are_not_claimed_by_name(backend: Backend) -> None:
    """An old dispatch message does not say what has happened since."""
    async with backend.server() as server:
        for id in ("done", "held", "canceled"):
            await server.enqueue(id)
        lease = await server.take(only_ids=("done",))
        await server.send(attempt.Complete, lease, is_success=True, exit_code=0)
        await server.take("w2", only_ids=("held",))
        await server.do(attempt.Cancel(id="canceled", reason="ENOUGH"))

        assert await server.claim("w3", 9, only_ids=("done", "held", "canceled", "never")) == []
        await server.verified()


@on_loop
async def test_one_that_cannot_be_read_does_not_hold_up_the_others(backend: Backend) -> None:
    """It is put aside like everywhere else."""
    async with backend.server() as server:
        await server.enqueue("good")
        await poisoned(server.store, 1)

        assert [claimed.attempt.id for claimed in await server.claim("w1", 9, only_ids=("bad0", "good"))] == ["good"]


@on_loop
async def test_waiting_attempts_are_listed_by_queue(backend: Backend) -> None:
    """The dispatcher must find all queues of all tenants, and the head of a long queue."""
    async with backend.opened() as store:
        assert await store.ready_attempts(START, 10) == []
        await write(
            store,
            *(waiting(f"a{n}", START + n, priority=n % 2) for n in range(6)),
            waiting("arm", START, labels="arm,x64"),
            waiting("theirs", START - 7, tenant="other"),
            waiting("later", START + 100),
        )

        listed = await store.ready_attempts(START + 50, 3)

    assert sorted(listed, key=lambda each: (each.tenant, each.queue_key)) == [
        ReadyAttempt(TENANT, "", "a1", START + 1),
        ReadyAttempt(TENANT, "", "a3", START + 3),
        ReadyAttempt(TENANT, "", "a5", START + 5),
        ReadyAttempt(TENANT, "arm,x64", "arm", START),
        ReadyAttempt("other", "", "theirs", START - 7),
    ]


@on_loop
async def test_the_waiting_attempts_of_a_tenant_are_listed(backend: Backend) -> None:
    """The list includes attempts that cannot be claimed yet; it has the first of many queues and the head of a long
    one.
    """
    async with backend.opened() as store:
        assert await store.queued_attempts(TENANT, 10, 10) == []
        await write(
            store,
            *(waiting(f"a{n}", START + n, priority=n % 2) for n in range(4)),
            waiting("later", START + 100, labels="arm,x64"),
            waiting("gpu", START, labels="gpu"),
            waiting("theirs", START - 7, tenant="other"),
        )

        listed = await store.queued_attempts(TENANT, 3, 10)
        some = await store.queued_attempts(TENANT, 9, 2)
        theirs = await store.queued_attempts("other", 9, 9)

    assert listed == [
        *(
            ReadyAttempt(TENANT, "", "a1", START + 1),
            ReadyAttempt(TENANT, "", "a3", START + 3),
            ReadyAttempt(TENANT, "", "a0", START),
        ),
        ReadyAttempt(TENANT, "arm,x64", "later", START + 100),
        ReadyAttempt(TENANT, "gpu", "gpu", START),
    ]
    assert [each.id for each in some] == ["a1", "a3", "a0", "a2", "later"]
    assert theirs == [ReadyAttempt("other", "", "theirs", START - 7)]
