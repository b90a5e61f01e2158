"""A client that enqueues work and remembers what was acknowledged."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar

from chaos.stage import TIMEOUT_SECONDS, TimedOut
from chaos.witness import Witness
from deltaci.core import run
from deltaci.core.attempt import Attempt
from deltaci.core.cascade import NewRecord
from deltaci.core.decide import Plan
from deltaci.core.errors import Refused
from deltaci.core.job import JobSpec
from deltaci.core.machine import Command
from deltaci.core.run import Run
from deltaci.engine.engine import Engine
from deltaci.engine.queue import AsyncQueue, NewJob, QueueJob
from deltaci.storage import open_store
from deltaci.storage.port import Store, Unavailable

RETRY_SECONDS: Final = 0.05
TENANT: Final = "default"

T = TypeVar("T")


class Workload:
    """Enqueues through the library, directly into the store. Requests without an answer are repeated."""

    def __init__(self, url: str, witness: Witness) -> None:
        self._url = url
        self.witness = witness
        self.acknowledged: dict[str, str] = {}  # Attempt id: the job's name in the recorded executions.
        self.runs: list[str] = []
        self.asked_at: dict[str, float] = {}
        self.failures: list[str] = []
        self.longest_seconds = 0.0
        self._store: Store | None = None
        self._queue: AsyncQueue | None = None
        self._engine: Engine | None = None
        self._count = 0

    @property
    def store(self) -> Store:
        assert self._store is not None, "the workload is not open"
        return self._store

    async def open(self) -> None:
        """Connect to the store; possible again after `close`."""
        self._store = open_store(self._url)
        self._queue = AsyncQueue(self._store, tenant=TENANT, has_timers=False)
        await self._queue.__aenter__()
        self._engine = Engine(self._store)
        await self._engine.start()

    async def close(self) -> None:
        """Disconnect from the store."""
        if self._queue is not None and self._engine is not None:
            await self._engine.stop()
            await self._queue.__aexit__()
        self._store = self._queue = self._engine = None

    async def enqueue_recorded(self, count: int, seconds: float = 0.2, **fields: Any) -> list[str]:
        """Enqueue jobs that record their execution, until that is acknowledged. Returns their ids."""
        names = [f"j{self._count + n + 1}" for n in range(count)]
        self._count += count
        extra = {key: fields.pop(key) for key in ("artifacts", "env", "executor") if key in fields}
        jobs = [
            NewJob(
                payload={"executor": "process", "steps": [self.witness.step(name, seconds)], **extra},
                request_id=name,
                **fields,
            )
            for name in names
        ]
        return [each.id for each in await self.enqueue(jobs)]

    async def enqueue(self, jobs: list[NewJob]) -> list[QueueJob]:
        """Enqueue these jobs until that is acknowledged. A job's request id is its name in the recorded executions."""
        queue, began = self._queue, time.time()
        assert queue is not None, "the workload is not open"
        found = await self.retry_until_answered(lambda: queue.enqueue_all(jobs))
        for each, job in zip(found, jobs, strict=True):
            self.acknowledged[each.id] = job.request_id
            self.asked_at[each.id] = began
        return found

    async def ask(self, payload: Any, **fields: Any) -> str:
        """Enqueue one job of any kind, whose execution is not recorded. Returns its id."""
        self._count += 1
        name, queue = f"a{self._count}", self._queue
        assert queue is not None
        return (await self.retry_until_answered(lambda: queue.enqueue(payload, request_id=name, **fields))).id

    async def cancel(self, id: str) -> None:
        queue = self._queue
        assert queue is not None
        await self.retry_until_answered(lambda: queue.cancel(id))

    async def start_run(self, jobs: int = 3, seconds: float = 0.2) -> str:
        """Start a run of one job and others that need it."""
        self._count += 1
        id = f"run{self._count}"
        names = [f"{id}-{n}" for n in range(jobs)]
        specs = tuple(
            JobSpec(
                name=f"job{n}",
                needs=("job0",) if n else (),
                max_attempts=2,
                work={"executor": "process", "steps": [self.witness.step(name, seconds)]},
            )
            for n, name in enumerate(names)
        )
        engine = self._engine
        assert engine is not None
        for command in (
            NewRecord(id=id, record=Run(id=id, run_id=id, tenant=TENANT), request_id=f"{id}-birth"),
            run.BeginPlanning(id=id, request_id=f"{id}-plan"),
            Plan(id=id, jobs=specs, plan_hash="chaos", request_id=f"{id}-planned"),
        ):
            await self._submit_once(engine, command)
        self.runs.append(id)
        self.acknowledged |= {f"{id}/job{n}.1": name for n, name in enumerate(names)}
        return id

    async def _submit_once(self, engine: Engine, command: Command) -> None:
        """Submit a command; a refusal after a lost answer means that it had been done."""
        before = len(self.failures)
        try:
            await self.retry_until_answered(lambda: engine.do(command))
        except Refused:
            if len(self.failures) == before:
                raise

    async def retry_until_answered(self, ask: Callable[[], Awaitable[T]], seconds: float = TIMEOUT_SECONDS) -> T:
        """Call `ask` until it returns. Request ids make it safe to repeat after a lost answer."""
        began = time.monotonic()
        while True:
            try:
                answer = await ask()
                self.longest_seconds = max(self.longest_seconds, time.monotonic() - began)
                return answer
            except (Unavailable, OSError) as error:
                self.failures.append(f"{type(error).__name__}: {error}")
                if time.monotonic() - began > seconds:
                    raise TimedOut(f"no answer for {seconds:.0f} s: {error}") from error
                await asyncio.sleep(RETRY_SECONDS)

    @asynccontextmanager
    async def steady_load(self, each_seconds: float, batch: int = 1, seconds: float = 0.2) -> AsyncIterator[None]:
        """Enqueue new jobs again and again until the block ends."""
        is_over = asyncio.Event()

        async def flow() -> None:
            while not is_over.is_set():
                await self.enqueue_recorded(batch, seconds)
                try:
                    await asyncio.wait_for(is_over.wait(), each_seconds)
                except TimeoutError:
                    continue

        flow_task = asyncio.create_task(flow())
        try:
            yield
        finally:
            is_over.set()
            await flow_task

    async def attempt(self, id: str) -> Attempt | None:
        record = await self.retry_until_answered(lambda: self.store.find(id))
        return record if isinstance(record, Attempt) else None
