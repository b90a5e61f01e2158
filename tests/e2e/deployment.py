"""A deployment of real processes: one server, any number of runners, and this test as the one who asks for work."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import wraps
from pathlib import Path
from typing import Any, Final, ParamSpec

from deltaci.blobs.logs import Logs
from deltaci.core.attempt import Attempt
from deltaci.core.events import Event
from deltaci.core.verify import verify
from deltaci.core.views.canonical import lines
from deltaci.engine import feed
from deltaci.engine.queue import AsyncQueue
from deltaci.server.service import registration_token
from deltaci.store.sqlite import SqliteStore

P = ParamSpec("P")

TTL_SECONDS: Final = 3
PATIENCE_SECONDS: Final = 60.0


class Deployment:
    """Starts, kills and restarts them; stops only what it started."""

    program: tuple[str, ...] = ("-m", "deltaci.main")

    def __init__(self, folder: Path, *server_words: str) -> None:
        self.folder = folder
        self.server_words = server_words
        self.url = ""
        self.store = SqliteStore(str(folder / "deltaci.db"))
        self.queue = AsyncQueue(self.store, has_timers=False)
        self.logs = Logs(folder / "logs")
        self.server: subprocess.Popen[bytes] | None = None
        self.port = 0
        self.runners: list[subprocess.Popen[bytes]] = []

    def _start(self, *words: str, name: str, **environment: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, *self.program, *words],
                cwd=self.folder,
                env={**os.environ, **environment},
                stdout=subprocess.PIPE if name == "server" else log,
                stderr=log,
                start_new_session=True,
            )

    def start_server(self) -> None:
        """Start it, on the port that it had before, and wait until it listens."""
        if self.server is not None and self.server.stdout is not None:
            self.server.stdout.close()
        self.server = self._start(
            *("server", "--store", f"sqlite:{self.folder / 'deltaci.db'}", "--data", str(self.folder)),
            *("--port", str(self.port), "--lease-ttl", str(TTL_SECONDS), *self.server_words),
            name="server",
        )
        assert self.server.stdout is not None
        line = self.server.stdout.readline().decode()
        assert "listening on" in line, f"the server did not start: {(self.folder / 'server.log').read_text()}"
        self.url = line.split()[-1]
        self.port = int(line.rpartition(":")[2])

    def start_runner(self, name: str, *words: str, token: str | None = None, **more: str) -> subprocess.Popen[bytes]:
        """Start a runner that registers by itself, with a new token unless another is given; an empty one is none."""
        if token is None:
            token = registration_token(self.folder, name, "default")
        runner = self._start(
            *("runner", "--server", self.url, "--work", str(self.folder / name), *words),
            name=name,
            **({"DELTACI_TOKEN": token} if token else {}),
            **more,
        )
        self.runners.append(runner)
        return runner

    async def enqueue(self, *steps: str, **fields: Any) -> str:
        """Ask for a job of these steps."""
        return (await self.queue.enqueue({"steps": list(steps), "executor": "process"}, **fields)).id

    async def until(self, id: str, is_it: Callable[[Event], bool]) -> Event:
        """Wait for the first event of this job that is so."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            async for event in feed.follow(self.store, 0, entity_id=id):
                if is_it(event):
                    return event
        raise AssertionError("the feed ended")

    async def outcome(self, id: str) -> Attempt:
        """Wait until the job is over; the whole log must be legal then, and tell of one end only."""
        await self.until(id, lambda event: event.to in ("SUCCEEDED", "FAILED", "CANCELED", "TIMED_OUT"))
        log = await feed.read(self.store, 0, 1_000_000)
        report = verify(lines(log))
        assert report.is_legal, report.summary()
        record = await self.store.find(id)
        assert isinstance(record, Attempt)
        return record

    def log_of(self, record: Attempt) -> str:
        """What the last holder of the lease sent."""
        assert record.ended_lease is not None
        return self.logs.read(record.id, record.ended_lease.number).decode()

    def stop(self) -> None:
        """Everything that was started here ends here."""
        for process in (*self.runners, self.server):
            if process is not None and process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.terminate()
        for process in (*self.runners, self.server):
            if process is None:
                continue
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stdout is not None:
                process.stdout.close()


@asynccontextmanager
async def deployed(folder: Path, *server_words: str) -> AsyncIterator[Deployment]:
    """A deployment with its server running."""
    made = Deployment(folder, *server_words)
    made.start_server()
    try:
        async with made.queue:
            yield made
    finally:
        made.stop()


def patiently(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """A plain test that runs this coroutine to its end. Many programs start in it: that may take long."""

    @wraps(test)
    def plain(*args: P.args, **kwargs: P.kwargs) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(2 * PATIENCE_SECONDS):
                await test(*args, **kwargs)

        asyncio.run(bounded())

    return plain


def is_alive(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
