"""A process that commits as much as it can and writes its transitions live. Made to be killed."""

from __future__ import annotations

import asyncio
import itertools
import secrets
from multiprocessing.connection import Connection
from pathlib import Path

from deltaci.controllers import transitions
from deltaci.controllers.transitions import TransitionWriter
from deltaci.core import run
from deltaci.core.decide import StartRun
from deltaci.core.job import JobSpec
from deltaci.core.plan import plan_hash
from deltaci.core.run import Run
from deltaci.engine.engine import Engine
from deltaci.server.follower import Follower
from deltaci.storage import open_store
from deltaci.storage.port import Store

PLAN = (JobSpec(name="a"), JobSpec(name="b", needs=("a",)))


async def commit_runs(engine: Engine, count: int = 0) -> None:
    """So many runs that are planned and cancelled, or runs for ever."""
    for _ in range(count) if count else itertools.count():
        id = f"r{secrets.token_hex(8)}"
        record = Run(id=id, run_id=id, tenant="acme")
        await engine.do(StartRun(id=id, record=record, jobs=PLAN, plan_hash=plan_hash(PLAN)))
        await engine.do(run.Cancel(id=id, actor="user:ada"))


async def write(store: Store, folder: Path, count: int = 0) -> None:
    """Commit and write, as a server does."""
    engine, follower, live = Engine(store), Follower(store), TransitionWriter(store, folder)
    follower.subscribe(live.on_events)
    await store.open()
    await engine.start()
    await follower.start()
    live.start()
    try:
        await commit_runs(engine, count)
    finally:
        await follower.stop()
        await engine.stop()
        await live.stop()
        await store.close()


async def _work(url: str, folder: Path, connection: Connection) -> None:
    store = open_store(url)
    connection.send("ready")
    await write(store, folder)


def main(url: str, folder: Path, connection: Connection) -> None:
    """Where the child begins. It writes down what it knows often: that, too, must survive being killed."""
    transitions.SAVE_EVENTS = 40  # type: ignore[misc]
    asyncio.run(_work(url, folder, connection))
