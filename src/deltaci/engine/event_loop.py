"""Event loops (uvloop if it is installed with `pip install deltaci[fast]`) and reliable cancellation of tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

CANCEL_SECONDS: Final = 0.1

T = TypeVar("T")


def new_loop() -> asyncio.AbstractEventLoop:
    """Return a new uvloop event loop, or an asyncio one if uvloop is not installed."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run the coroutine in a new event loop and return its result: `asyncio.run`, with uvloop if it is installed."""
    with asyncio.Runner(loop_factory=new_loop) as runner:
        return runner.run(main)


async def cancel_and_wait(task: asyncio.Task[None]) -> None:
    """Cancel the task repeatedly until it has ended.

    A single cancellation may get lost if it arrives just when a wait inside the task ends.
    """
    while not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=CANCEL_SECONDS)
