"""How the tests play scenarios: in this process, many at a time, against real processes."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, ParamSpec

from deltaci.conformance.scenario_execution import run_scenarios
from deltaci.conformance.transcript import Transcript
from tests.contract.places import within

SMALL: Final = (sys.executable, "-I", str(Path(__file__).parent / "runners" / "small.py"))
OURS: Final = (sys.executable, "-m", "deltaci", "runner")
PATIENCE_SECONDS: Final = 30.0
AT_ONCE: Final = 12
MAX_SECONDS: Final = 600.0

P = ParamSpec("P")


def patiently(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """A plain test of real processes, which take their time on a busy machine."""
    return within(MAX_SECONDS)(test)


def played(
    commands: Mapping[str, tuple[Sequence[str], Sequence[str]]], patience_seconds: float = PATIENCE_SECONDS
) -> dict[str, dict[str, Transcript]]:
    """What was observed, for each name of a command and its scenarios."""

    async def all_of_them() -> dict[str, dict[str, Transcript]]:
        places = asyncio.Semaphore(AT_ONCE)

        async def one(command: Sequence[str], scenarios: Sequence[str]) -> dict[str, Transcript]:
            async with places:
                return await run_scenarios(command, scenarios, patience_seconds, lambda *_: None)

        found = await asyncio.gather(*(one(*each) for each in commands.values()))
        return dict(zip(commands, found, strict=True))

    return asyncio.run(all_of_them())
