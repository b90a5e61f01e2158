"""Event loops, uvloop where it is installed (`pip install deltaci[fast]`), and the end of what runs on them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

CANCEL_SECONDS: Final = 0.1

T = TypeVar("T")


def new_loop() -> asyncio.AbstractEventLoop:
    """The fastest loop that there is."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def run(main: Coroutine[Any, Any, T]) -> T:
    """Like `asyncio.run`, on the fastest loop that there is."""
    with asyncio.Runner(loop_factory=new_loop) as runner:
        return runner.run(main)


async def cancel_and_wait(task: asyncio.Task[None]) -> None:
    """Cancel it until it has heard: one that comes just when a wait is over may get lost."""
    while not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=CANCEL_SECONDS)
