"""Plays scenarios against a runner: a server and a process of its own for each, some of them at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from deltaci.conformance.http_server import HttpServer
from deltaci.conformance.orchestrator import ScriptedOrchestrator
from deltaci.conformance.runner_process import RunnerProcess
from deltaci.conformance.scenarios import SCENARIOS, Patience, Scenario
from deltaci.conformance.transcript import Transcript

AT_ONCE: Final = 6  # They mostly wait.
MAX_STARTS: Final = 5
RESTART_SECONDS: Final = 0.2

Progress = Callable[[str, str], None]  # A scenario's name, and what became of it.


class _Stage:
    """One scenario's server, and the runner that plays in it."""

    def __init__(self, scenario: Scenario, command: Sequence[str], folder: Path) -> None:
        folder.mkdir()
        self.server = ScriptedOrchestrator(scenario.name, folder, scenario.credential_seconds)
        self._scenario = scenario
        self._command = command
        self._folder = folder
        self._starts = 0
        self._subjects: list[RunnerProcess] = []
        self._exits: asyncio.Queue[str] = asyncio.Queue()

    async def run(self, patience: Patience) -> Transcript:
        """From the runner's start to its end; whatever happens, nothing of it is left."""
        try:
            async with HttpServer(self.server.handle) as listening:
                following = asyncio.create_task(self._follow(listening.url))
                playing = asyncio.ensure_future(self._scenario.play(self.server, patience))
                try:
                    await asyncio.wait({following, playing}, return_when=asyncio.FIRST_COMPLETED)
                    if playing.done():
                        playing.result()
                    else:
                        following.result()
                finally:
                    for task in (following, playing):
                        task.cancel()
                    await asyncio.gather(following, playing, return_exceptions=True)
                    self.server.end()
                    await asyncio.gather(*(subject.stop() for subject in self._subjects))
        finally:
            transcript = self.server.close()
        transcript.output = (self._folder / "output").read_text(errors="replace")
        return transcript

    async def _follow(self, url: str) -> None:
        """Start the runner. One that leaves after a job, as it may, is started again, but not for ever."""
        while self._starts < MAX_STARTS:
            self._starts += 1
            subject = RunnerProcess(self._command, self._folder / "output", self._exits.put_nowait)
            self._subjects.append(subject)
            self.server.note("began", note=f"start {self._starts}")
            await subject.start(url, self.server.token(), self._folder / f"work-{self._starts}")
            told = await self._exits.get()
            self.server.note("exited", note=f"the runner {told}")
            await asyncio.sleep(RESTART_SECONDS)


async def run_scenarios(
    command: Sequence[str], names: Collection[str], patience_seconds: float, tell: Progress
) -> dict[str, Transcript]:
    """Play these scenarios against this command."""
    found: dict[str, Transcript] = {}
    places = asyncio.Semaphore(AT_ONCE)

    async def one(scenario: Scenario, folder: Path) -> None:
        async with places:
            tell(scenario.name, "begins")
            found[scenario.name] = await _Stage(scenario, command, folder).run(Patience(patience_seconds))
            tell(scenario.name, f"ended after {found[scenario.name].entries[-1].at:.1f} s")

    with TemporaryDirectory(prefix="deltaci-conformance-", ignore_cleanup_errors=True) as root:
        async with asyncio.TaskGroup() as group:
            for each in SCENARIOS:
                if each.name in names:
                    group.create_task(one(each, Path(root, each.name)))
    return {each.name: found[each.name] for each in SCENARIOS if each.name in found}
