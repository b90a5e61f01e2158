"""Runs that are started by direct calls, without HTTP, and the physical limit of that: the store's statements alone."""

from __future__ import annotations

import asyncio
import secrets
import time
from pathlib import Path
from typing import Final

import msgspec

from bench import limits
from bench.bench_queue import all_heard, make_tables, outcome
from bench.places import POSTGRES, SQLITE, Place, Yard
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
    """What is sent to start a run of so many jobs, one after the other."""
    names = ["build", *(f"test-{n}" for n in range(1, jobs))]
    plan = {"jobs": [{"name": name, "work": {"steps": ["make deps", f"make {name}"]}} for name in names]}
    about = {"project": "shop", "branch": "main", "commit": "5f0c" * 10, "title": "Change the colour of the door"}
    return msgspec.json.encode({"plan": plan, **about})


def order(asked: RunInput) -> StartRun:
    """The command that the server makes of it."""
    assert asked.plan is not None
    id = f"r{secrets.token_hex(10)}"
    specs = job_specs.specs(asked.plan)
    origin = Origin(project=asked.project, branch=asked.branch, commit=asked.commit, title=asked.title)
    record = Run(id=id, run_id=id, tenant=TENANT, started_by=PERSON, origin=origin)
    hashed = plan_hash(specs, is_fail_fast=False, timeout_seconds=record.timeout_seconds)
    return StartRun(id=id, actor=f"user:{PERSON}", record=record, jobs=specs, plan_hash=hashed, has_random_id=True)


async def start(place: Place, callers: int, jobs: int, runs: int) -> float:
    """So many callers, each one run after the other; the seconds that it took."""
    asked = msgspec.json.decode(body(jobs), type=RunInput)
    store = place.store()
    await store.open()
    engine = Engine(store)
    await engine.start()

    async def calls() -> None:
        for _ in range(runs // callers):
            all_heard(await engine.do_all([order(asked)]))

    try:
        began = time.perf_counter()
        await asyncio.gather(*(calls() for _ in range(callers)))
        return time.perf_counter() - began
    finally:
        await engine.stop()
        await store.close()


def limit(yard: Yard, kind: str, callers: int, jobs: int, runs: int) -> float:
    """The seconds that the store alone takes for it: the same statements in the same transactions, each durable."""
    recorded, again = yard.new(kind), yard.new(kind)
    try:
        if kind == SQLITE:
            with limits.recorded_sqlite() as tapes:
                event_loop.run(start(recorded, callers, jobs, runs))
            spent = limits.replay_sqlite(Path(again.url), tapes[0])  # The writer opens first.
        else:
            tape = asyncio.run(_taped(recorded, yard.folder, callers, jobs, runs))
            asyncio.run(make_tables(again))
            spent = limits.replay(again.url, tape)
        assert asyncio.run(outcome(again)) == asyncio.run(outcome(recorded)), "the replay did something else"
        return spent
    finally:
        yard.drop(recorded)
        yard.drop(again)


async def _taped(place: Place, folder: Path, callers: int, jobs: int, runs: int) -> limits.Tape:
    await make_tables(place)
    async with limits.Recorder(place.url, folder) as recorder:
        await start(Place(POSTGRES, recorder.dsn), callers, jobs, runs)
    return recorder.tape
