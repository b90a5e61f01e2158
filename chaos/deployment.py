"""A deployment of real processes in a folder: servers over one store, runners, and one who asks for work.

async with deployed(stage, "case", servers=2, store=database.create_database()) as place:
    place.add_runner("r1", slots=2)
    await place.work.give(10)
    await place.servers[0].kill()
    await place.start(place.servers[0])
    rows = [(await place.verdict()).row("server killed", "SIGKILL")]
"""

from __future__ import annotations

import os
import secrets
import signal
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

from chaos.front import Front
from chaos.parts import ROOT, TOKEN, Part, carrying
from chaos.stage import Stage, TooLate, in_time, until
from chaos.verdict import Verdict, unfinished, verdict
from chaos.witness import Witness
from chaos.workload import TENANT, Workload
from deltaci.app import registration_token
from deltaci.core.events import Event
from deltaci.engine import feed
from deltaci.runner.sandbox.process_tree import MARKER_VARIABLE
from tests.support.ports import ReservedPort
from tests.support.processes import command_line

TTL_SECONDS: Final = 5  # Short enough to be lost in a scenario, long enough for a machine that is only busy.
LISTENING: Final = "listening on"


class Deployment:
    """Made by `deployed`. Stops only what it started."""

    def __init__(self, folder: Path, *, store: str, ttl_seconds: int, words: Sequence[str], data: Path | None) -> None:
        self.folder = folder
        self.data = data or folder / "data"
        self.data.mkdir(exist_ok=True)
        self.store_url = store or f"sqlite:{self.data / 'deltaci.db'}"
        self.ttl_seconds = ttl_seconds
        self.token = secrets.token_hex(8)
        self.servers: list[Part] = []
        self.runners: dict[str, Part] = {}
        self.work = Workload(self.store_url, Witness(folder / "witness"))
        self.front = Front(self.ports)
        self._words = tuple(words)
        self._ports: dict[str, int] = {}
        self._reserved: list[ReservedPort] = []

    @property
    def environment(self) -> dict[str, str]:
        """For what is started here."""
        folders = [str(ROOT / "src"), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        return {**os.environ, "PYTHONPATH": os.pathsep.join(folders), TOKEN: self.token}

    def ports(self) -> list[int]:
        """Where servers listen, or did."""
        return [self._ports[each.name] for each in self.servers if each.name in self._ports]

    # -- servers

    def add_server(self, *words: str, under: Sequence[str] = (), host: str = "127.0.0.1", **env: str) -> Part:
        """One more server, not started yet."""
        name = f"server{len(self.servers)}"
        told = ("server", "--store", self.store_url, "--data", str(self.data), "--host", host)
        ttl = ("--lease-ttl", str(self.ttl_seconds))
        part = Part(name, self.folder, (*told, *ttl, *self._words, *words), {TOKEN: self.token, **env}, under)
        self.servers.append(part)
        return part

    async def start(self, part: Part) -> Part:
        """Start a server, on the port that it had before, and wait until it listens; or a runner, and go on."""
        if part not in self.servers:
            part.start()
            return part
        words = part.words
        if part.name not in self._ports and not part.under:
            self._reserved.append(ReservedPort())
            self._ports[part.name] = self._reserved[-1].number
        part.words = (*words, "--port", str(self._ports.get(part.name, 0)))
        try:
            part.start()
        finally:
            part.words = words
        line = await part.heard(LISTENING)
        self._ports[part.name] = int(line.rpartition(":")[2])
        return part

    async def restart(self, part: Part) -> Part:
        """SIGTERM, wait, start again."""
        await part.stop()
        return await self.start(part)

    # -- runners

    def add_runner(
        self, name: str, *words: str, slots: int = 1, url: str = "", under: Sequence[str] = (), **env: str
    ) -> Part:
        """Start a runner with a token of its own. It goes through the front unless another way is given.

        Start it again with `part.start()`: it has its credential in its folder by then.
        """
        told = ("runner", "--server", url or self.front.url, "--work", str(self.folder / name), "--slots", str(slots))
        token = {"DELTACI_TOKEN": registration_token(self.data, name, TENANT)}
        part = Part(name, self.folder, (*told, *words), {TOKEN: self.token, **token, **env}, under)
        self.runners[name] = part
        part.start()
        return part

    def keeper(self, runner: Part) -> int:
        """The process that proves the leases of a runner."""
        children = Path(f"/proc/{runner.pid}/task/{runner.pid}/children").read_text().split()
        found = [int(pid) for pid in children if b"deltaci.runner.lease.keeper" in command_line(int(pid))]
        assert len(found) == 1, f"{runner.name} has {len(found)} keepers"
        return found[0]

    # -- waiting

    async def event(self, is_it: Callable[[Event], bool], what: str, after: int = 0, seconds: float = 60.0) -> Event:
        """Wait for the first event in the log that is so."""

        async def look() -> Event:
            async for event in feed.follow(self.work.store, after):
                if is_it(event):
                    return event
            raise AssertionError("the feed ended")

        return await in_time(look(), what, seconds)

    async def begun(self, count: int, seconds: float = 60.0) -> None:
        """Wait until so many jobs have told that they began."""
        await until(lambda: len(self.work.witness.marks()) >= count, f"{count} jobs have begun", seconds)

    async def execution_over(self, count: int, seconds: float = 60.0) -> None:
        """Wait until so many executions have told that they came to their end."""

        def ends() -> int:
            return sum(each.ends for found in self.work.witness.executions().values() for each in found)

        await until(lambda: ends() >= count, f"{count} executions came to their end", seconds)

    async def work_over(self, seconds: float = 60.0, ids: Iterable[str] | None = None) -> None:
        """Wait until these, or all that was acknowledged so far, are over."""
        left = await unfinished(self.work, seconds, ids)
        if left:
            raise TooLate(f"after {seconds:.0f} s not over: {', '.join(left[:5])}")

    async def verdict(self, seconds: float = 60.0, overlap_limit: float = 0.0, *, all_succeed: bool = False) -> Verdict:
        """Wait until everything is over, and look at everything.

        Only who freezes a whole machine, with its job, may allow it a moment to notice what time it is. Where every
        job is a good one, say that all succeed.
        """
        return await verdict(self, seconds, overlap_limit, all_succeed=all_succeed)

    # -- the end

    async def stop(self) -> None:
        """Runners first, as they have something to say until their end; then whatever is left of them."""
        for part in self.runners.values():
            if part.is_running:
                part.resume()
                part.send(signal.SIGTERM)
        for part in [*self.runners.values(), *self.servers]:
            await part.stop()
        for pid in [*carrying(TOKEN, {self.token}), *carrying(MARKER_VARIABLE, self.work.witness.marks())]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for port in self._reserved:
            port.close()


@asynccontextmanager
async def deployed(
    stage: Stage,
    case: str,
    *words: str,
    servers: int = 1,
    store: str = "",
    ttl_seconds: int = TTL_SECONDS,
    data: Path | None = None,
    is_open: bool = True,
    **server: Any,
) -> AsyncIterator[Deployment]:
    """So many servers, running, over SQLite or the store that is named; they are told these words too.

    Unless it is open, nobody asks for work yet, and this process has nothing to do with the store.
    """
    made = Deployment(stage.place(case), store=store, ttl_seconds=ttl_seconds, words=words, data=data)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(made.stop)
        await stack.enter_async_context(made.front)
        for _ in range(servers):
            await made.start(made.add_server(**server))
        stack.push_async_callback(made.work.close)
        if is_open:
            await made.work.open()
        yield made
