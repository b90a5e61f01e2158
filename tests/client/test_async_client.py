"""The client for asyncio: the same calls, awaited."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from deltaci.client import ApiError, AsyncClient, Patience, Unreachable
from tests.client.hosted import QUICK, Hosted, Player, plan, task
from tests.contract.backends import on_loop


def opened(hosted: Hosted) -> AsyncClient:
    """Who operates it."""
    return AsyncClient(hosted.url, hosted.token(), patience=QUICK)


def test_many_runs_at_once(hosted: Hosted) -> None:
    """That is what it is for."""

    @on_loop
    async def case() -> None:
        async with opened(hosted) as client:
            started = await asyncio.gather(*(client.start(plan=plan(task("a")), project="many") for _ in range(20)))
            found = [run.id async for run in client.iter_runs(project="many")]

            assert sorted(found) == sorted(run.id for run in started)
            await asyncio.gather(*(client.cancel(run.id) for run in started))

    case()


def test_a_run_is_waited_for_and_its_file_kept(hosted: Hosted, player: Player, tmp_path: Path) -> None:
    """The talks are the same as the other client's."""

    @on_loop
    async def case() -> None:
        async with opened(hosted) as client:
            run = await client.start(plan=plan(task("a")))
            waiting = asyncio.create_task(client.wait(run.id))
            lease = await asyncio.to_thread(player.take)
            await asyncio.to_thread(player.log, lease, b"hello\n")
            kept = await asyncio.to_thread(player.keep, lease, "out.txt", b"data" * 1000)
            await asyncio.to_thread(player.finish, lease, artifacts=[kept])

            assert (await waiting).status == "SUCCEEDED"
            assert b"".join([part.data async for part in client.follow_log(run.id, "a")]) == b"hello\n"
            assert {event.entity async for event in client.follow(run.id)} >= {"run", "job", "attempt"}
            await client.download(run.id, "a", 1, "out.txt", tmp_path / "out")
            assert (tmp_path / "out").read_bytes() == b"data" * 1000

    case()


def test_troubles_are_the_same(hosted: Hosted) -> None:
    """Refused is refused, gone is gone."""

    @on_loop
    async def case() -> None:
        async with opened(hosted) as client:
            with pytest.raises(ApiError, match="not_found"):
                await client.explain("nothing")
            run = await client.start(plan=plan(task("a")))
            with pytest.raises(TimeoutError):
                await client.wait(run.id, timeout_seconds=0.05)
            await client.cancel(run.id)
        patience = Patience(first_seconds=0.001, give_up_seconds=0.01)
        async with AsyncClient("http://127.0.0.1:9", "key", patience=patience) as client:
            with pytest.raises(Unreachable):
                await client.me()

    case()
