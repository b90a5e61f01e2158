"""A claim that knows its rivals: what a worker lost is theirs where they fit, and nothing behind it waits for that."""

from __future__ import annotations

import asyncio

import pytest

from deltaci.core import attempt, worker
from deltaci.core.failures import Facts
from deltaci.engine.engine import Claim, ClaimResult
from tests.contract.backends import Backend, Server, on_loop
from tests.contract.test_groups import start
from tests.contract.test_waiters import Hall, ids
from tests.support.lab import TENANT, task

WIDE = ("gpu", "linux")


def asked(by: str, limit: int = 1, *, only: tuple[str, ...] = (), **rivals: tuple[str, ...]) -> Claim:
    """This worker asks, and names who else could take work."""
    return Claim(
        tenant=TENANT,
        worker_id=by,
        labels=("linux",),
        limit=limit,
        ttl_seconds=120,
        accept_seconds=30,
        only_ids=only,
        other_worker_labels=tuple(rivals.values()),
        other_worker_ids=tuple(rivals),
    )


async def look(server: Server, claim: Claim) -> ClaimResult:
    return await server.engine.try_claim(claim)


async def lost(backend: Backend, server: Server, *names: str, **fields: object) -> None:
    """Runs whose jobs w1 was granted and never took."""
    for id in ("w1", "w2"):
        await server.register(id, labels=("linux",), slots=20)
    for name in names:
        await server.do(start(task("build", queue_key="linux", **fields), id=name))
        [_] = await server.claim("w1", labels=("linux",), only_ids=(f"{name}/build.1",))
        backend.after(31)
        await server.do(attempt.RevokeUnaccepted(id=f"{name}/build.1"))
        await server.do(worker.Resume(id="w1"))
        backend.after(1)


@pytest.mark.proves("WST-KH5")
@on_loop
async def test_what_a_worker_lost_is_left_to_a_rival_that_fits(backend: Backend) -> None:
    """Whoever is woken for it is told that there was something, so that somebody else looks."""
    async with backend.server() as server:
        await lost(backend, server, "r1")

        passed = await look(server, asked("w1", w2=WIDE))
        unfit = await look(server, asked("w1", w2=("gpu",)))

        assert (passed.claimed, passed.has_skipped) == ([], True)
        assert ids(unfit.claimed) == ["r1/build.1"]
        await server.verified()


@pytest.mark.proves("WST-KH5")
@on_loop
async def test_a_rival_gets_it_and_so_does_who_lost_it_where_there_is_none(backend: Backend) -> None:
    """A fleet of one must go on."""
    async with backend.server() as server:
        await lost(backend, server, "r1", "r2")

        assert ids((await look(server, asked("w2", w1=WIDE))).claimed) == ["r1/build.1"]
        assert ids((await look(server, asked("w1"))).claimed) == ["r2/build.1"]
        await server.verified()


@pytest.mark.proves("WST-KH5")
@on_loop
async def test_what_is_behind_is_handed_out_all_the_same(backend: Backend) -> None:
    """One who waits for a rival must not keep others waiting, or itself from other work."""
    async with backend.server() as server:
        await lost(backend, server, "r1", "r2", "r3")
        await server.do(start(task("new", queue_key="linux"), task("newer", queue_key="linux"), id="r4"))

        first = await look(server, asked("w1", w2=WIDE))
        rest = await look(server, asked("w1", 9, w2=WIDE))
        named = await look(server, asked("w1", only_ids=("r2/build.1",), w2=WIDE))

        assert (ids(first.claimed), first.has_skipped) == (["r4/new.1"], True)
        assert ids(rest.claimed) == ["r4/newer.1"]
        assert named == ClaimResult([], True, ("linux",))
        assert ids((await look(server, asked("w2", 9, w1=WIDE))).claimed) == [f"r{n}/build.1" for n in (1, 2, 3)]
        await server.verified()


@pytest.mark.proves("WST-KH5")
@on_loop
async def test_claims_of_one_batch_share_what_one_of_them_leaves(backend: Backend) -> None:
    """Each gets what it may have, whoever comes first."""
    async with backend.server() as server:
        await lost(backend, server, "r1")
        await server.do(start(task("new", queue_key="linux"), id="r2"))

        one, two = await asyncio.gather(look(server, asked("w1", w2=WIDE)), look(server, asked("w2", w1=WIDE)))

        if backend.name != "postgres":  # There lanes may dispute it: then somebody finds it the next time.
            assert (ids(one.claimed), ids(two.claimed)) == (["r2/new.1"], ["r1/build.1"])
        assert ids(one.claimed) != ["r1/build.1"]
        await server.verified()


@pytest.mark.proves("WST-KH5")
@on_loop
async def test_a_group_is_not_taken_by_who_leaves_its_job_to_a_rival(backend: Backend) -> None:
    """The next of the group goes on with another worker, and the first when that is over."""
    async with backend.server() as server:
        await lost(backend, server, "r1", group="deploy")
        await server.do(start(task("build", queue_key="linux", group="deploy"), id="r2"))

        got = await look(server, asked("w1", w2=WIDE))

        assert ids(got.claimed) == ["r2/build.1"]
        assert ids((await look(server, asked("w2", 9, w1=WIDE))).claimed) == []
        await server.verified()


@pytest.mark.proves("WST-KH5")
@on_loop
async def test_the_next_attempt_is_left_to_a_rival_too(backend: Backend) -> None:
    """It is another attempt, but the same job and the same broken machine."""
    async with backend.server() as server:
        await server.register("w1", labels=("linux",))
        await server.do(start(task("build", queue_key="linux", max_attempts=2, base_delay_seconds=1), id="r1"))
        held = await server.take("w1", labels=("linux",))
        broken = Facts(error_code="RUNNER_STARTUP")
        await server.send(attempt.Complete, held, is_success=False, exit_code=1, facts=broken)
        backend.after(60)
        await server.tick()

        assert (await look(server, asked("w1", w2=WIDE))).claimed == []
        assert ids((await look(server, asked("w1"))).claimed) == ["r1/build.2"]
        await server.verified()


@pytest.mark.proves("WST-KH1")
@on_loop
async def test_a_held_worker_gets_nothing_and_another_one_in_line_is_woken(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the other one has other labels, and stands in another line."""
    async with backend.server() as server:
        await server.register("w1", labels=("linux",))
        await server.register("w2", labels=WIDE)
        hall = Hall(server, monkeypatch)
        first = await hall.joined("w1", "linux")
        second = await hall.joined("w2", *WIDE)
        await server.do(worker.Drain(id="w1", actor="user:ada", reason="new disk"))

        await server.do(start(task("build", queue_key="linux"), id="r1"))

        assert ids(await second) == ["r1/build.1"]
        hall.line.close()
        assert await first == []
