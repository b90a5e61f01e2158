"""Run scenarios in the test process, many concurrently, against real runner processes."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, ParamSpec

from deltaci.conformance.scenario_execution import run_scenarios
from deltaci.conformance.transcript import Transcript
from tests.contract.backends import within

SMALL: Final = (sys.executable, "-I", str(Path(__file__).parent / "runners" / "small.py"))
OURS: Final = (sys.executable, "-m", "deltaci", "runner")
PATIENCE_SECONDS: Final = 30.0
MAX_CONCURRENT: Final = 12
MAX_SECONDS: Final = 600.0

P = ParamSpec("P")


def with_long_timeout(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run an asynchronous test with a generous timeout, because real processes are slow on a busy machine."""
    return within(MAX_SECONDS)(test)


def transcripts_of(
    commands: Mapping[str, tuple[Sequence[str], Sequence[str]]], patience_seconds: float = PATIENCE_SECONDS
) -> dict[str, dict[str, Transcript]]:
    """Run each command with its scenarios. Return the transcripts by name of the command and scenario."""

    async def run_all() -> dict[str, dict[str, Transcript]]:
        semaphore = asyncio.Semaphore(MAX_CONCURRENT)

        async def run_one(command: Sequence[str], scenarios: Sequence[str]) -> dict[str, Transcript]:
            async with semaphore:
                return await run_scenarios(command, scenarios, patience_seconds, lambda *_: None)

        transcripts = await asyncio.gather(*(run_one(*command) for command in commands.values()))
        return dict(zip(commands, transcripts, strict=True))

    return asyncio.run(run_all())
