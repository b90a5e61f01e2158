"""A deployment of real processes in a folder: servers over one store, runners, and a client that enqueues work.

async with deployed(stage, "case", servers=2, store=database.create_database()) as deployment:
        deployment.add_runner("r1", slots=2)
        await deployment.work.enqueue_recorded(10)
        await deployment.servers[0].kill()
        await deployment.start(deployment.servers[0])
        rows = [(await deployment.verdict()).row("server killed", "SIGKILL")]
"""

from __future__ import annotations

import os
import secrets
import signal
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

from chaos.load_balancer import LoadBalancer
from chaos.parts import ROOT, TOKEN, ManagedProcess, processes_with
from chaos.stage import Stage, TimedOut, wait_until, with_time_limit
from chaos.verdict import Verdict, unfinished, verdict
from chaos.witness import Witness
from chaos.workload import TENANT, Workload
from deltaci.app import registration_token
from deltaci.core.events import Event
from deltaci.engine import feed
from deltaci.runner.sandbox.process_tree import MARKER_VARIABLE
from tests.support.ports import ReservedPort
from tests.support.processes import command_line

TTL_SECONDS: Final = 5  # Short enough to expire in a scenario, long enough for a busy machine.
LISTENING: Final = "listening on"


class Deployment:
    """Created by `deployed`. Stops only what it started."""

    def __init__(
        self, folder: Path, *, store: str, ttl_seconds: int, arguments: Sequence[str], data: Path | None
    ) -> None:
        self.folder = folder
        self.data = data or folder / "data"
        self.data.mkdir(exist_ok=True)
        self.store_url = store or f"sqlite:{self.data / 'deltaci.db'}"
        self.ttl_seconds = ttl_seconds
        self.token = secrets.token_hex(8)
        self.servers: list[ManagedProcess] = []
        self.runners: dict[str, ManagedProcess] = {}
        self.work = Workload(self.store_url, Witness(folder / "witness"))
        self.load_balancer = LoadBalancer(self.ports)
        self._server_arguments = tuple(arguments)
        self._ports: dict[str, int] = {}
        self._reserved: list[ReservedPort] = []

    @property
    def environment(self) -> dict[str, str]:
        """The environment of processes that are started here."""
        folders = [str(ROOT / "src"), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        return {**os.environ, "PYTHONPATH": os.pathsep.join(folders), TOKEN: self.token}

    def ports(self) -> list[int]:
        """Return the ports of all servers that were ever started."""
        return [self._ports[server.name] for server in self.servers if server.name in self._ports]

    # -- servers

    def add_server(
        self, *arguments: str, wrapper: Sequence[str] = (), host: str = "127.0.0.1", **env: str
    ) -> ManagedProcess:
        """Add a server without starting it."""
        name = f"server{len(self.servers)}"
        options = ("server", "--store", self.store_url, "--data", str(self.data), "--host", host)
        ttl = ("--lease-ttl", str(self.ttl_seconds))
        part = ManagedProcess(
            name,
            self.folder,
            (*options, *ttl, *self._server_arguments, *arguments),
            {TOKEN: self.token, **env},
            wrapper,
        )
        self.servers.append(part)
        return part

    async def start(self, part: ManagedProcess) -> ManagedProcess:
        """Start a server on its previous port and wait until it listens; or start a runner without waiting."""
        if part not in self.servers:
            part.start()
            return part
        arguments = part.arguments
        if part.name not in self._ports and not part.wrapper:
            self._reserved.append(ReservedPort())
            self._ports[part.name] = self._reserved[-1].number
        part.arguments = (*arguments, "--port", str(self._ports.get(part.name, 0)))
        try:
            part.start()
        finally:
            part.arguments = arguments
        line = await part.wait_for_output(LISTENING)
        self._ports[part.name] = int(line.rpartition(":")[2])
        return part

    async def restart(self, part: ManagedProcess) -> ManagedProcess:
        """Stop a process with SIGTERM, wait, and start it again."""
        await part.stop()
        return await self.start(part)

    # -- runners

    def add_runner(
        self, name: str, *arguments: str, slots: int = 1, url: str = "", wrapper: Sequence[str] = (), **env: str
    ) -> ManagedProcess:
        """Start a runner with a token of its own. It connects through the load balancer unless `url` is given.

        Restart it with `part.start()`: by then its credential is in its folder.
        """
        options = (
            "runner",
            "--server",
            url or self.load_balancer.url,
            "--work",
            str(self.folder / name),
            "--slots",
            str(slots),
        )
        token = {"DELTACI_TOKEN": registration_token(self.data, name, TENANT)}
        part = ManagedProcess(name, self.folder, (*options, *arguments), {TOKEN: self.token, **token, **env}, wrapper)
        self.runners[name] = part
        part.start()
        return part

    def keeper(self, runner: ManagedProcess) -> int:
        """Return the pid of the runner's lease keeper."""
        children = Path(f"/proc/{runner.pid}/task/{runner.pid}/children").read_text().split()
        pids = [int(pid) for pid in children if b"deltaci.runner.lease.keeper" in command_line(int(pid))]
        assert len(pids) == 1, f"{runner.name} has {len(pids)} keepers"
        return pids[0]

    # -- waiting

    async def event(
        self, matches: Callable[[Event], bool], description: str, after: int = 0, seconds: float = 60.0
    ) -> Event:
        """Wait for the first event in the log that matches."""

        async def find() -> Event:
            async for event in feed.follow(self.work.store, after):
                if matches(event):
                    return event
            raise AssertionError("the feed ended")

        return await with_time_limit(find(), description, seconds)

    async def wait_for_starts(self, count: int, seconds: float = 60.0) -> None:
        """Wait until so many executions have started."""
        await wait_until(lambda: len(self.work.witness.marks()) >= count, f"{count} jobs have begun", seconds)

    async def wait_for_executions(self, count: int, seconds: float = 60.0) -> None:
        """Wait until so many executions have ended by themselves."""

        def ends() -> int:
            return sum(server.ends for pids in self.work.witness.executions().values() for server in pids)

        await wait_until(lambda: ends() >= count, f"{count} executions came to their end", seconds)

    async def wait_for_work(self, seconds: float = 60.0, ids: Iterable[str] | None = None) -> None:
        """Wait until these jobs, or everything that was acknowledged so far, have ended."""
        unfinished_ids = await unfinished(self.work, seconds, ids)
        if unfinished_ids:
            raise TimedOut(f"after {seconds:.0f} s not over: {', '.join(unfinished_ids[:5])}")

    async def verdict(self, seconds: float = 60.0, overlap_limit: float = 0.0, *, all_succeed: bool = False) -> Verdict:
        """Wait until all work has ended, and check everything.

        `overlap_limit` is only for scenarios that freeze a whole machine with its jobs: it needs a moment to notice the
        time. Set `all_succeed` where no job may fail by itself.
        """
        return await verdict(self, seconds, overlap_limit, all_succeed=all_succeed)

    # -- the end

    async def stop(self) -> None:
        """Stop the runners, then the servers; then kill whatever processes are left."""
        for part in self.runners.values():
            if part.is_running:
                part.resume()
                part.send(signal.SIGTERM)
        for part in [*self.runners.values(), *self.servers]:
            await part.stop()
        for pid in [*processes_with(TOKEN, {self.token}), *processes_with(MARKER_VARIABLE, self.work.witness.marks())]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for port in self._reserved:
            port.close()


@asynccontextmanager
async def deployed(
    stage: Stage,
    case: str,
    *arguments: str,
    servers: int = 1,
    store: str = "",
    ttl_seconds: int = TTL_SECONDS,
    data: Path | None = None,
    is_open: bool = True,
    **server: Any,
) -> AsyncIterator[Deployment]:
    """Run servers over SQLite or the given store until the block ends; `arguments` are passed to each server.

    Unless `is_open` is set, the workload is not connected to the store yet.
    """
    deployment = Deployment(
        stage.make_folder(case), store=store, ttl_seconds=ttl_seconds, arguments=arguments, data=data
    )
    async with AsyncExitStack() as stack:
        stack.push_async_callback(deployment.stop)
        await stack.enter_async_context(deployment.load_balancer)
        for _ in range(servers):
            await deployment.start(deployment.add_server(**server))
        stack.push_async_callback(deployment.work.close)
        if is_open:
            await deployment.work.open()
        yield deployment
