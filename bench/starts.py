"""Starts of runs by direct calls, without HTTP, and the physical limit: the statements of the store alone."""

from __future__ import annotations

import asyncio
import secrets
import time
from pathlib import Path
from typing import Final

import msgspec

from bench import limits
from bench.bench_queue import all_heard, make_tables, outcome
from bench.databases import POSTGRES, SQLITE, BenchDatabase, DatabaseFactory
from deltaci.api.schemas.inputs import RunInput
from deltaci.core.decide import StartRun
from deltaci.core.plan import plan_hash
from deltaci.core.run import Origin, Run
from deltaci.engine import event_loop
from deltaci.engine.engine import Engine
from deltaci.server.rest import job_specs

TENANT: Final = "default"
PERSON: Final = "ada"


def body(jobs: int) -> bytes:
    """Return the request body that starts a run with so many jobs in sequence."""
    names = ["build", *(f"test-{n}" for n in range(1, jobs))]
    plan = {"jobs": [{"name": name, "work": {"steps": ["make deps", f"make {name}"]}} for name in names]}
    about = {"project": "shop", "branch": "main", "commit": "5f0c" * 10, "title": "Change the colour of the door"}
    return msgspec.json.encode({"plan": plan, **about})


def start_command(run_input: RunInput) -> StartRun:
    """Return the command that the server would create for it."""
    assert run_input.plan is not None
    id = f"r{secrets.token_hex(10)}"
    specs = job_specs.specs(run_input.plan)
    origin = Origin(project=run_input.project, branch=run_input.branch, commit=run_input.commit, title=run_input.title)
    record = Run(id=id, run_id=id, tenant=TENANT, started_by=PERSON, origin=origin)
    hash = plan_hash(specs, is_fail_fast=False, timeout_seconds=record.timeout_seconds)
    return StartRun(id=id, actor=f"user:{PERSON}", record=record, jobs=specs, plan_hash=hash, has_random_id=True)


async def start(database: BenchDatabase, callers: int, jobs: int, runs: int) -> float:
    """Start runs from so many concurrent callers. Returns the seconds that this took."""
    run_input = msgspec.json.decode(body(jobs), type=RunInput)
    store = database.store()
    await store.open()
    engine = Engine(store)
    await engine.start()

    async def calls() -> None:
        for _ in range(runs // callers):
            all_heard(await engine.do_all([start_command(run_input)]))

    try:
        began = time.perf_counter()
        await asyncio.gather(*(calls() for _ in range(callers)))
        return time.perf_counter() - began
    finally:
        await engine.stop()
        await store.close()


def limit(factory: DatabaseFactory, kind: str, callers: int, jobs: int, runs: int) -> float:
    """Return the seconds that the store alone needs for the same statements in the same durable transactions."""
    recorded, again = factory.new(kind), factory.new(kind)
    try:
        if kind == SQLITE:
            with limits.recorded_sqlite() as tapes:
                event_loop.run(start(recorded, callers, jobs, runs))
            spent = limits.replay_sqlite(Path(again.url), tapes[0])  # The writer opens first.
        else:
            tape = asyncio.run(_record(recorded, factory.folder, callers, jobs, runs))
            asyncio.run(make_tables(again))
            spent = limits.replay(again.url, tape)
        assert asyncio.run(outcome(again)) == asyncio.run(outcome(recorded)), "the replay did something else"
        return spent
    finally:
        factory.drop(recorded)
        factory.drop(again)


async def _record(database: BenchDatabase, folder: Path, callers: int, jobs: int, runs: int) -> limits.Tape:
    await make_tables(database)
    async with limits.Recorder(database.url, folder) as recorder:
        await start(BenchDatabase(POSTGRES, recorder.dsn), callers, jobs, runs)
    return recorder.tape
