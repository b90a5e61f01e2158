"""Jobs that ask for odd things: each ends with a result, and never with an error of the runner's own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import strategies as st

from deltaci.core.attempt import TERMINAL, Attempt
from deltaci.core.cascade import NewRecord
from deltaci.protocol.messages import LeaseRequest
from deltaci.runner.client import RunnerClient
from deltaci.runner.job import JobRunner
from deltaci.runner.lease.keeper import Confirmed, Hold, KeeperCommand
from deltaci.runner.runtime import Runtime
from deltaci.runner.sandbox.cell_pool import CellPool
from tests.fuzz.profile import fuzzed
from tests.server.live import LiveServer, run_server

MAX_SECONDS: Final = 60.0
TEXTS: Final = (
    "",
    ".",
    "..",
    "/",
    "a",
    "a/b",
    "loop",
    "\0",
    "é\n",
    "x" * 1900,
    "~/x",
    "**",
    "[",
    "{lock_hash}",
    "\x1b[31m",
    "-",
)
NAMES: Final = ("A", "A=B", "=", "PATH", "HOME", "LD_PRELOAD", "a b", "~", "x" * 200, "DELTACI_TOKEN")
STEPS: Final = (
    *(
        "true",
        "exit 3",
        "",
        "\0",
        "kill -9 $$",
        "printf '\\377\\0\\033[31m'",
        "exec 1>&- 2>&-",
        "(",
        "env",
        "x" * 99_000,
    ),
    *(
        "ln -s loop loop; mkfifo fifo; mkdir -p a/b",
        "printf '[[[' > a; echo '{\"x\": 1e999}' > b",
        "rm -rf ../workspace",
    ),
)

TEXT: Final = st.sampled_from(TEXTS)
SOME: Final = st.lists(TEXT, max_size=2)
ENV: Final = st.dictionaries(st.sampled_from(NAMES), st.sampled_from(("", "x", "\0", "é" * 50_000)), max_size=2)
SPECS: Final = st.fixed_dictionaries(
    {"steps": st.lists(st.sampled_from(STEPS) | st.fixed_dictionaries({"run": st.sampled_from(STEPS)}, optional={
        "name": TEXT, "env": ENV, "workdir": TEXT, "timeout_seconds": st.sampled_from((0, 1, 2**31 - 1)),
        "continue_on_error": st.booleans(),
    }), max_size=3)},
    optional={
        "name": TEXT,
        "workdir": TEXT,
        "image": TEXT,
        "env": ENV,
        "artifacts": st.lists(st.fixed_dictionaries({"path_glob": TEXT, "type": st.just("junit")}), max_size=2),
        "caches": st.lists(
            st.fixed_dictionaries({"key": TEXT, "paths": SOME}, optional={"lock_files": SOME}), max_size=2
        ),
        "executor": st.sampled_from(("process", "process", None, "container", "sandbox", "magic")),
        "network": st.booleans(),
        "limits": st.fixed_dictionaries({}, optional={
            "memory_bytes": st.sampled_from((0, 1, 2**53)), "processes": st.sampled_from((0, 1, 2**53)),
            "cpus": st.sampled_from((0.0, 1e-9, 1e15)),
        }),
        "output_path": TEXT,
        "secrets": st.lists(st.sampled_from(NAMES), max_size=1),
        "cache_scope": TEXT,
    },
)  # fmt: skip


class Shop:
    """A server and a runner's parts, for many jobs."""

    def __init__(
        self, loop: asyncio.Runner, live: LiveServer, client: RunnerClient, places: CellPool, machine: Runtime
    ) -> None:
        self._loop = loop
        self._live = live
        self._client = client
        self._places = places
        self._machine = machine
        self._numbers = count(1)

    def work(self, spec: dict[str, Any]) -> Attempt:
        """One job from its birth to its end."""
        return self._loop.run(asyncio.wait_for(self._work(spec), MAX_SECONDS))

    async def _work(self, spec: dict[str, Any]) -> Attempt:
        id = f"q{next(self._numbers)}"
        record = Attempt(id=id, tenant="default", spec=spec, max_lost_leases=0)
        await self._live.server.engine.do(NewRecord(id=id, record=record))
        for granted in await asyncio.to_thread(self._client.lease, LeaseRequest(runner_id="w1")):
            job = JobRunner(self._client, "w1", granted, self._places, self._machine)

            def keep(order: KeeperCommand, job: JobRunner = job) -> None:
                if isinstance(order, Hold):
                    job.on_keeper_message(Confirmed(lease_id=order.lease_id, until=time.monotonic() + MAX_SECONDS))

            await job.run(keep)
        found = await self._live.record(id)
        assert isinstance(found, Attempt)
        return found


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    """For all examples of a test."""

    @asynccontextmanager
    async def whole() -> AsyncIterator[tuple[LiveServer, RunnerClient, CellPool, Runtime]]:
        async with run_server(tmp_path / "server") as live:
            client = RunnerClient(live.url)
            told = await asyncio.to_thread(client.register, live.token(), [], 1)
            client.token = told.credential
            (tmp_path / "work").mkdir()
            machine = Runtime(live.url)
            places = CellPool(tmp_path / "work", machine.executors())
            try:
                yield live, client, places, machine
            finally:
                await places.close()
                client.close_all()

    with asyncio.Runner() as loop:
        entered = whole()
        parts = loop.run(entered.__aenter__())
        yield Shop(loop, *parts)
        loop.run(entered.__aexit__(None, None, None))


@fuzzed(12, spec=SPECS)
def test_a_job_that_asks_for_odd_things_ends_with_a_result(shop: Shop, spec: dict[str, Any]) -> None:
    """No other runner could do better; a lease that runs out would only make others try."""
    record = shop.work(spec)

    assert record.state in TERMINAL, (spec, record)
