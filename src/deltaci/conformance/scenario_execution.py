"""Runs scenarios against a runner, several concurrently, each with its own server and runner process."""

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

MAX_CONCURRENT: Final = 6  # Scenarios mostly wait.
MAX_STARTS: Final = 5
RESTART_SECONDS: Final = 0.2

Progress = Callable[[str, str], None]  # Called with a scenario's name and what happened to it.


class _ScenarioExecution:
    """One scenario with its server and the processes of the runner."""

    def __init__(self, scenario: Scenario, command: Sequence[str], folder: Path) -> None:
        folder.mkdir()
        self.server = ScriptedOrchestrator(scenario.name, folder, scenario.credential_seconds)
        self._scenario = scenario
        self._command = command
        self._folder = folder
        self._start_count = 0
        self._processes: list[RunnerProcess] = []
        self._exits: asyncio.Queue[str] = asyncio.Queue()

    async def run(self, patience: Patience) -> Transcript:
        """Start server and runner, run the scenario and return its transcript.

        All processes are ended, also after an error.
        """
        try:
            async with HttpServer(self.server.handle) as http_server:
                runner_task = asyncio.create_task(self._keep_runner_running(http_server.url))
                scenario_task = asyncio.ensure_future(self._scenario.run(self.server, patience))
                try:
                    await asyncio.wait({runner_task, scenario_task}, return_when=asyncio.FIRST_COMPLETED)
                    if scenario_task.done():
                        scenario_task.result()
                    else:
                        runner_task.result()
                finally:
                    for task in (runner_task, scenario_task):
                        task.cancel()
                    await asyncio.gather(runner_task, scenario_task, return_exceptions=True)
                    self.server.end()
                    await asyncio.gather(*(process.stop() for process in self._processes))
        finally:
            transcript = self.server.close()
        transcript.output = (self._folder / "output").read_text(errors="replace")
        return transcript

    async def _keep_runner_running(self, server_url: str) -> None:
        """Start the runner, and again whenever it exits, up to `MAX_STARTS` times: it may exit after each job."""
        while self._start_count < MAX_STARTS:
            self._start_count += 1
            process = RunnerProcess(self._command, self._folder / "output", self._exits.put_nowait)
            self._processes.append(process)
            self.server.note("began", note=f"start {self._start_count}")
            await process.start(server_url, self.server.token(), self._folder / f"work-{self._start_count}")
            exit_text = await self._exits.get()
            self.server.note("exited", note=f"the runner {exit_text}")
            await asyncio.sleep(RESTART_SECONDS)


async def run_scenarios(
    runner_command: Sequence[str], scenario_names: Collection[str], patience_seconds: float, on_progress: Progress
) -> dict[str, Transcript]:
    """Run the named scenarios against the runner that this command starts; return their transcripts by name."""
    transcripts: dict[str, Transcript] = {}
    semaphore = asyncio.Semaphore(MAX_CONCURRENT)

    async def run_one(scenario: Scenario, folder: Path) -> None:
        async with semaphore:
            on_progress(scenario.name, "begins")
            transcript = await _ScenarioExecution(scenario, runner_command, folder).run(Patience(patience_seconds))
            transcripts[scenario.name] = transcript
            on_progress(scenario.name, f"ended after {transcript.entries[-1].at:.1f} s")

    with TemporaryDirectory(prefix="deltaci-conformance-", ignore_cleanup_errors=True) as root_path:
        async with asyncio.TaskGroup() as group:
            for scenario in SCENARIOS:
                if scenario.name in scenario_names:
                    group.create_task(run_one(scenario, Path(root_path, scenario.name)))
    return {scenario.name: transcripts[scenario.name] for scenario in SCENARIOS if scenario.name in transcripts}
