"""A program that enqueues jobs without end and prints what was acknowledged: `python -m chaos.enqueuer URL NAME`.

It prints one line for each acknowledgement: the ids, as JSON. It ends when its store fails.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

import msgspec

from chaos.speaker import LABEL
from chaos.workload import TENANT
from deltaci.engine.queue import AsyncQueue, NewJob
from deltaci.storage import open_store

BATCH: Final = 2
PAUSE_SECONDS: Final = 0.02


async def ask(url: str, name: str) -> None:
    """Enqueue jobs until the process is killed or fails."""
    number = 0
    async with AsyncQueue(open_store(url), tenant=TENANT, has_timers=False) as queue:
        while True:
            names = [f"{name}-{number + n}" for n in range(BATCH)]
            number += BATCH
            jobs = [NewJob(payload={"steps": ["true"]}, labels=[LABEL], request_id=name) for name in names]
            found = await queue.enqueue_all(jobs)
            print(msgspec.json.encode([each.id for each in found]).decode(), flush=True)
            await asyncio.sleep(PAUSE_SECONDS)


class Enqueuer:
    """Collects the acknowledged ids of such a process."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.acknowledged_ids: list[str] = []
        self._process = process
        self._hearing = threading.Thread(target=self._hear, daemon=True)
        self._hearing.start()

    def _hear(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.endswith(b"\n"):
                self.acknowledged_ids += msgspec.json.decode(line, type=list[str])

    def kill(self) -> None:
        """Kill the process; everything that it printed before is read."""
        self._process.kill()
        self._process.wait()
        self._hearing.join(10)


@contextmanager
def running_enqueuer(url: str, name: str, environment: Mapping[str, str]) -> Iterator[Enqueuer]:
    """Run an enqueuer until the block ends."""
    command = [sys.executable, "-m", "chaos.enqueuer", url, name]
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        enqueuer = Enqueuer(process)
        try:
            yield enqueuer
        finally:
            enqueuer.kill()


if __name__ == "__main__":
    asyncio.run(ask(sys.argv[1], sys.argv[2]))
