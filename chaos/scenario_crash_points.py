"""A server that is killed between every two writes to its database: strace ends it at the N-th write, N from 1 on.

After each death the file is copied and looked at: the log must be legal, all that was acknowledged must stand, and to
recover it twice must give the same as once. Then the next server goes on with it.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Final

from chaos.deployment import Deployment, deployed
from chaos.parts import ManagedProcess
from chaos.rows import NotRun, Row, measured
from chaos.speaker import Speakers
from chaos.stage import Stage, TimedOut, wait_until
from deltaci.audit.projections.canonical import canonical_lines
from deltaci.audit.verify import verify
from deltaci.core.attempt import Attempt
from deltaci.core.events import Event, to_json_line
from deltaci.engine import feed
from deltaci.storage import open_store

FAULT: Final = "server killed between every two writes"
TTL_SECONDS: Final = 3
POINT_SECONDS: Final = 4.0  # Longer than it takes to do all the work there is.
BIRTH_WRITES: Final = 37  # Of a server that finds no database, before it listens.
FILES: Final = ("deltaci.db", "deltaci.db-wal", "deltaci.db-shm")


def fatal(point: int) -> tuple[str, ...]:
    """The command for a tracer that ends what it traces at its N-th write."""
    kill = f"inject=pwrite64:signal=KILL:when={point}"
    return ("strace", "-f", "-qq", "-o", "/dev/null", "-e", "trace=pwrite64", "-e", "signal=none", "-e", kill)


def check_strace() -> None:
    """Whether it is here and may do it."""
    if shutil.which("strace") is None:
        raise NotRun("strace is not installed")
    tried = subprocess.run([*fatal(1), "true"], capture_output=True, check=False)
    if tried.returncode != 0:
        raise NotRun(f"strace may not trace here: {tried.stderr.decode(errors='replace').strip()[:200]}")


@asynccontextmanager
async def tracing(pid: int, point: int) -> AsyncIterator[None]:
    """A tracer that has every thread of this process in its hands."""

    def is_traced() -> bool:
        try:
            tasks = list(Path(f"/proc/{pid}/task").iterdir())
            return all("TracerPid:\t0\n" not in (task / "status").read_text() for task in tasks)
        except OSError:
            return True  # It is dead already.

    tracer = subprocess.Popen([*fatal(point), "-p", str(pid)], stderr=subprocess.DEVNULL)
    try:
        await wait_until(is_traced, "the tracer is there")
        yield
    finally:
        tracer.terminate()  # It lets go of what is not dead yet.
        await asyncio.to_thread(tracer.wait, 10)


async def run(stage: Stage) -> AsyncIterator[Row]:
    """Point after point, in one deployment that goes on."""
    check_strace()
    points = stage.size(64, 4)
    wrong: list[str] = []
    died = 0
    async with deployed(stage, "points", servers=0, ttl_seconds=TTL_SECONDS) as deployment:
        server = deployment.add_server()
        await deployment.start(server)
        speakers = Speakers(deployment, 1)
        async with speakers.speaking():
            await Speakers.enqueue_recorded(deployment.work, 1, "first")
            await wait_until(speakers.completed, "the first job is done")
            deployment.load_balancer.is_open = False
            await server.stop()
            for point in range(1, points + 1):
                await Speakers.enqueue_recorded(deployment.work, 1, f"point{point}")
                died += await died_at(deployment, server, point)
                wrong += [f"point {point}: {each}" for each in await examined(stage, deployment, speakers, point)]
                if point % 10 == 0:
                    stage.log(f"point {point} of {points}: {died} deaths, {len(speakers.acknowledged)} acknowledged")
            await deployment.start(server)
            deployment.load_balancer.is_open = True
            found = await deployment.verdict(all_succeed=True)
        wrong += speakers.broken(found.records)
        births = list(range(1, BIRTH_WRITES, stage.size(9, 20)))
        wrong += await born_dead(stage, deployment, births)
    injected = f"SIGKILL at the N-th pwrite64, N = 1 … {points} (strace); one server, SQLite"
    heard = f"{len(speakers.acknowledged)} answers to a runner acknowledged something"
    note = "; ".join([f"{died} deaths at work, {len(births)} while it made its database", heard, *wrong[:3]])
    invariant = "what was acknowledged survives, the log is legal, recovery is idempotent, at every point"
    yield measured(FAULT, injected, "crash points", died + len(births), "points")
    yield measured(FAULT, injected, invariant, len(wrong), "violations", 0, note)
    yield found.row(FAULT, injected)


async def died_at(deployment: Deployment, server: ManagedProcess, point: int) -> bool:
    """Start a server that is to die at this write. It may have too little to do to come so far."""
    await deployment.start(server)
    async with tracing(server.pid, point):
        deployment.load_balancer.is_open = True
        try:
            await server.ended(POINT_SECONDS)
        except TimedOut:
            await server.kill()
            return False
        finally:
            deployment.load_balancer.is_open = False
    return True


async def born_dead(stage: Stage, deployment: Deployment, points: list[int]) -> list[str]:
    """The same for a server that makes its database: whoever comes after it must be able to."""
    wrong = []
    for point in points:
        data = stage.make_folder(f"birth{point}")
        url = f"sqlite:{data / FILES[0]}"
        words = ("server", "--store", url, "--data", str(data), "--port", "0")
        part = ManagedProcess(f"birth{point}", deployment.folder, words, deployment.environment, (*fatal(point), "-D"))
        part.start()
        await part.ended()
        log, _ = await recovered(data)
        if log or "listening" in part.output:
            wrong.append(f"birth at write {point}: {len(log)} events, {part.output[-200:]}")
        shutil.rmtree(data)
    return wrong


async def examined(stage: Stage, deployment: Deployment, speakers: Speakers, point: int) -> list[str]:
    """Look at a copy of what the dead left."""
    copy = stage.make_folder(f"copy{point}")
    promised = list(speakers.acknowledged)
    # Not by this process: to close a file takes all its locks from whoever has it open, and we have.
    there = [str(deployment.data / name) for name in FILES if (deployment.data / name).exists()]
    subprocess.run(["cp", *there, str(copy)], check=True)
    once = await recovered(copy)
    twice = await recovered(copy)
    wrong = [] if digest(*once) == digest(*twice) else ["a second recovery gives something else"]
    report = verify(canonical_lines(once[0]))
    if not report.is_legal:
        wrong.append(report.summary())
    seen = Speakers(deployment, 0)
    seen.acknowledged = promised
    shutil.rmtree(copy)
    return wrong + seen.broken(once[1])


async def recovered(folder: Path) -> tuple[list[Event], dict[str, Attempt]]:
    """All that the file says after SQLite has recovered it."""
    store = open_store(f"sqlite:{folder / FILES[0]}")
    await store.open()
    try:
        log = await feed.read(store, 0, 1_000_000)
        records = [await store.find(id) for id in {event.entity_id for event in log if event.entity == "attempt"}]
    finally:
        await store.close()
    return log, {record.id: record for record in records if isinstance(record, Attempt)}


def digest(log: list[Event], records: dict[str, Attempt]) -> str:
    """The same for the same."""
    text = b"".join(map(to_json_line, log)) + repr(sorted(records.items())).encode()
    return blake2b(text).hexdigest()
