"""A deployment of real processes: servers, any number of runners, and this test as the one who asks for work."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final, ParamSpec

from deltaci.app import registration_token
from deltaci.audit.projections.canonical import canonical_lines
from deltaci.audit.verify import verify
from deltaci.core import attempt, run
from deltaci.core.attempt import Attempt
from deltaci.core.cascade import NewRecord
from deltaci.core.decide import Plan
from deltaci.core.events import Event
from deltaci.core.job import JobSpec
from deltaci.core.run import Run
from deltaci.core.worker import Worker
from deltaci.engine import feed
from deltaci.engine.engine import Engine
from deltaci.engine.queue import AsyncQueue
from deltaci.runner.sandbox import process_tree
from deltaci.runner.sandbox.process_tree import JobHandle
from deltaci.storage import open_store
from deltaci.storage.blobs.logs import LogStore
from tests.contract.backends import within
from tests.e2e.proxy import Proxy
from tests.support.fork_server import Deltaci
from tests.support.ports import ReservedPort

TTL_SECONDS: Final = 5  # For leases that are to be lost, but not by a machine that is only busy.
LONG_TTL_SECONDS: Final = 11  # For those that are not; the longest with a heartbeat every second.
PATIENCE_SECONDS: Final = 120.0

P = ParamSpec("P")


def on_loop(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """A plain test of real processes, which take their time on a busy machine."""
    return within(PATIENCE_SECONDS)(test)


class Deployment:
    """Starts, kills and restarts them; stops only what it started."""

    interpreter_words: tuple[str, ...] = ()  # Where set, Python is started with these instead of a fork of the program.

    def __init__(self, folder: Path, *words: str, ttl_seconds: int, store: str) -> None:
        self.folder = folder
        self.words = words
        self.url = ""
        self.ttl_seconds = ttl_seconds
        self.store_url = store or f"sqlite:{folder / 'deltaci.db'}"
        self.store = open_store(self.store_url)
        self.queue = AsyncQueue(self.store, has_timers=False)
        self.engine = Engine(self.store)
        self.logs = LogStore(folder / "logs")
        self.servers: list[subprocess.Popen[bytes]] = []
        self.ports: list[int] = []
        self._reserved: list[ReservedPort] = []
        self.host = "127.0.0.1"
        self.under: Sequence[str] = ()
        self.runners: list[subprocess.Popen[bytes]] = []
        self._ways = AsyncExitStack()

    def _start(self, *words: str, name: str, under: Sequence[str] = (), **environment: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("ab") as log:
            options: dict[str, Any] = {
                "cwd": self.folder,
                "env": {**os.environ, **environment},
                "stdout": subprocess.PIPE if name.startswith("server") else log,
                "stderr": log,
                "start_new_session": True,
            }
            if under or self.interpreter_words:
                program = self.interpreter_words or ("-m", "deltaci")
                return subprocess.Popen([*under, sys.executable, *program, *words], **options)
            return Deltaci(words, **options)

    @property
    def port(self) -> int:
        """Where the first server listens."""
        return self.ports[0]

    @property
    def server(self) -> subprocess.Popen[bytes]:
        """The first one."""
        return self.servers[0]

    def start_server(self, number: int = 0) -> None:
        """Start it, on the port that it had before, and wait until it listens."""
        is_new = number == len(self.servers)
        if is_new and not self.under:
            self._reserved.append(ReservedPort(self.host))
            self.ports.append(self._reserved[-1].number)
        elif is_new:
            self.ports.append(0)
        server = self._start(
            *("server", "--store", self.store_url, "--data", str(self.folder), "--host", self.host),
            *("--port", str(self.ports[number]), "--lease-ttl", str(self.ttl_seconds), *self.words),
            name=f"server{number}",
            under=self.under,
        )
        if is_new:
            self.servers.append(server)
        else:
            _close(self.servers[number])
            self.servers[number] = server
        assert server.stdout is not None
        line = server.stdout.readline().decode()
        told = (self.folder / f"server{number}.log").read_text()
        assert "listening on" in line, f"the server did not start: {told}"
        self.ports[number] = int(line.rpartition(":")[2])
        if number == 0:
            self.url = line.split()[-1]

    def kill_server(self, number: int = 0) -> None:
        """SIGKILL, as a crash."""
        self.servers[number].kill()
        self.servers[number].wait()

    async def way(self) -> Proxy:
        """A way to the servers on which things can go wrong."""
        return await self._ways.enter_async_context(Proxy(lambda: self.ports))

    def start_runner(
        self,
        name: str,
        *words: str,
        way: Proxy | None = None,
        under: Sequence[str] = (),
        token: str | None = None,
        **more: str,
    ) -> subprocess.Popen[bytes]:
        """Start a runner, over this way and under this command.

        It registers by itself, with a new token unless another is given; an empty one is none.
        """
        if token is None:
            token = registration_token(self.folder, name, "default")
        url = way.url if way is not None else self.url
        runner = self._start(
            *("runner", "--server", url, "--work", str(self.folder / name), *words),
            name=name,
            under=under,
            **({"DELTACI_TOKEN": token} if token else {}),
            **more,
        )
        self.runners.append(runner)
        return runner

    async def ended(self, runner: subprocess.Popen[bytes]) -> int:
        """Wait until a runner left by itself; its exit code."""
        return await asyncio.to_thread(runner.wait, PATIENCE_SECONDS)

    async def enqueue(self, *steps: str | dict[str, Any], executor: str = "process", **fields: Any) -> str:
        """Ask for a job of these steps."""
        return (await self.queue.enqueue({"steps": list(steps), "executor": executor}, **fields)).id

    async def enqueue_in_run(self, run_id: str, *steps: str, **work: str) -> str:
        """Ask for a run with one job of these steps; the id of its first attempt."""
        spec = JobSpec(name="job", work={"steps": list(steps), **(work or {"executor": "process"})})
        await self.engine.do(NewRecord(id=run_id, record=Run(id=run_id, run_id=run_id, tenant="default")))
        await self.engine.do(run.BeginPlanning(id=run_id))
        await self.engine.do(Plan(id=run_id, jobs=(spec,), plan_hash="hash"))
        return f"{run_id}/job.1"

    async def worker(self, id: str) -> Worker:
        """A runner as the fleet sees it."""
        found = await self.store.find(id)
        assert isinstance(found, Worker), found
        return found

    async def cancel(self, id: str, deadline_seconds: int) -> None:
        """Ask for a stop, with less patience than people have."""
        await self.engine.do(attempt.Cancel(id=id, reason="CANCELED", deadline_seconds=deadline_seconds))

    async def until(self, id: str, is_it: Callable[[Event], bool]) -> Event:
        """Wait for the first event of this job that is so."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            async for event in feed.follow(self.store, 0, entity_id=id):
                if is_it(event):
                    return event
        raise AssertionError("the feed ended")

    async def outcome(self, id: str) -> Attempt:
        """Wait until the job is over; the whole log must be legal then, and tell of one end only."""
        await self.until(id, lambda event: event.to in attempt.TERMINAL)
        log = await feed.read(self.store, 0, 1_000_000)
        report = verify(canonical_lines(log))
        assert report.is_legal, report.summary()
        assert len([event for event in log if event.entity_id == id and event.to in attempt.TERMINAL]) == 1
        record = await self.store.find(id)
        assert isinstance(record, Attempt)
        return record

    async def settled(self, id: str, *marks: str) -> Attempt:
        """What must be true after every fault: one outcome, a legal log, nobody left, and no worker that holds it."""
        record = await self.outcome(id)
        assert record.lease is None
        for mark in marks:
            assert process_tree.members(JobHandle(marker=mark)) == []
        for event in await feed.read(self.store, 0, 1_000_000):
            if event.entity == "worker":
                assert id not in (await self.worker(event.entity_id)).tasks
        return record

    def log_of(self, record: Attempt) -> str:
        """What the last holder of the lease sent."""
        assert record.ended_lease is not None
        return self.logs.read(record.id, record.ended_lease.number).decode()

    def numbers(self, id: str, lease: int) -> list[int]:
        """The lines of a lease's log that are numbers: the output of `seq`, in the order in which it was kept."""
        return [int(line) for line in self.logs.read(id, lease).decode().splitlines() if line.isdecimal()]

    async def until_logged(self, id: str, word: str, way: Proxy, lease: int = 1) -> str:
        """Wait until the server has this word of a job's log, which comes over this way; all that it has then."""
        while True:
            seen = len([each for each in way.came("log") if each.answered_at is not None])
            text = self.logs.read(id, lease).decode()
            if word in text:
                return text
            await way.until("log", seen + 1)

    async def stop(self) -> None:
        """Everything that was started here ends here: runners first, as they have something to say until their end."""
        for processes in (self.runners, self.servers):
            for process in processes:
                if process.poll() is None:
                    process.send_signal(signal.SIGCONT)
                    process.terminate()
                    if processes is self.runners:  # Asked twice, it does not wait for what still runs.
                        process.send_signal(signal.SIGINT)
            for process in processes:
                try:
                    await asyncio.to_thread(process.wait, 15)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
                _close(process)
        await self._ways.aclose()
        for port in self._reserved:
            port.close()


def assert_ran_once(file: Path) -> None:
    """Fail unless the job that appends "ran" to this file was executed exactly once."""
    lines = file.read_text().splitlines() if file.exists() else []
    assert lines == ["ran"], f"{'doubled' if len(lines) > 1 else 'lost'} job: it ran {len(lines)} times"


def _close(process: subprocess.Popen[bytes]) -> None:
    if process.stdout is not None:
        process.stdout.close()


@asynccontextmanager
async def deployed(
    folder: Path,
    *words: str,
    ttl_seconds: int = TTL_SECONDS,
    store: str = "",
    servers: int = 1,
    host: str = "127.0.0.1",
    under: Sequence[str] = (),
) -> AsyncIterator[Deployment]:
    """A deployment with its servers running, under this command; they are told these words too."""
    made = Deployment(folder, *words, ttl_seconds=ttl_seconds, store=store)
    made.host, made.under = host, under
    try:
        for number in range(servers):
            made.start_server(number)
        async with made.queue:
            await made.engine.start()
            try:
                yield made
            finally:
                await made.engine.stop()
    finally:
        await made.stop()


def is_alive(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
