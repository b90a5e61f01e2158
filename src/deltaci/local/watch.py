"""A run as it happens here: its jobs' changes and everything that they say, told to whoever shows it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol
from urllib.parse import quote

from deltaci.core import attempt, job, run
from deltaci.core.attempt import Attempt
from deltaci.core.events import ATTEMPT, JOB, RUN, Event
from deltaci.core.job import Approve, Job, Reject
from deltaci.core.run import Run
from deltaci.core.text import plain_line
from deltaci.engine import feed
from deltaci.local.engine import PERSON, Engine
from deltaci.runner.log.sections import log_nonce, parse_marker
from deltaci.storage.blobs.logs import LogStore

MAX_LINE: Final = 2000
TAIL_LINES: Final = 30
PART_BYTES: Final = 256 * 1024
LAST_WORDS_SECONDS: Final = 10.0

Decide = Callable[[Job], Awaitable[bool]]


class Screen(Protocol):
    """Where a run is shown."""

    def changed(self, job: Job, tail: list[str]) -> None:
        """A job is in another state; of one that failed, the last lines that it said."""

    def step(self, name: str, step: str) -> None:
        """A step of this job begins."""

    def said(self, name: str, line: str) -> None:
        """A job said something."""


class Watch:
    """One run, until it is reported."""

    def __init__(self, engine: Engine, run_id: str, screen: Screen, decide: Decide) -> None:
        self._engine = engine
        self._run_id = run_id
        self._screen = screen
        self._decide = decide
        self._logs: dict[str, Log] = {}
        self._asking: set[asyncio.Task[None]] = set()

    async def until_over(self) -> Run:
        """Show everything until the end, and say what it is."""
        try:
            async for event in feed.follow(self._engine.store, 0, run_id=self._run_id):
                if event.from_ == event.to:
                    continue
                if event.entity == ATTEMPT:
                    await self._attempt(event)
                if event.entity == JOB:
                    await self._job(event)
                if event.entity == RUN and event.to in run.TERMINAL:
                    break
        finally:
            for task in self._asking:
                task.cancel()
            await asyncio.gather(*self._asking, *(log.close() for log in self._logs.values()), return_exceptions=True)
        record = await self._engine.store.find(self._run_id)
        assert isinstance(record, Run)
        return record

    async def _attempt(self, event: Event) -> None:
        """Whoever takes an attempt says something from then on; each lease has a log of its own."""
        if not attempt.MACHINE.changes(event.to, attempt.Ack):
            return
        record = await self._engine.store.find(event.entity_id)
        held = isinstance(record, Attempt) and (record.lease or record.ended_lease)
        if isinstance(record, Attempt) and held:
            if before := self._logs.pop(record.job_id, None):
                await before.close()
            folder = self._engine.folder / "runs" / self._run_id
            self._logs[record.job_id] = Log(
                self._engine.service.logs, record.id, held.number, record.job_id.partition("/")[2], self._screen, folder
            )

    async def _job(self, event: Event) -> None:
        record = await self._engine.store.find(event.entity_id)
        assert isinstance(record, Job)
        if record.state != event.to:
            return  # It is further by now, and that is told next.
        tail: list[str] = []
        if event.to in job.TERMINAL and (log := self._logs.get(record.id)):
            await log.close()
            tail = list(log.tail) if not job.satisfies(record) else []
        self._screen.changed(record, tail)
        if job.MACHINE.changes(event.to, Approve):
            asking = asyncio.create_task(self._ask(record))
            self._asking.add(asking)
            asking.add_done_callback(self._asking.discard)

    async def _ask(self, waiting: Job) -> None:
        answer = await self._decide(waiting)
        order = Approve if answer else Reject
        # Here one person is everybody: as many as the gate wants say the same.
        for number in range(waiting.spec.gate.approvers):
            actor = PERSON if not number else f"{PERSON}-{number + 1}"
            roles = (waiting.spec.gate.role,) if waiting.spec.gate.role else ()
            await self._engine.service.engine.do(order(id=waiting.id, actor=actor, roles=roles))
            if not answer:
                return


class Log:
    """What the holder of one lease says, line by line, while it is said; a copy without marks is left in a file."""

    def __init__(self, logs: LogStore, attempt_id: str, number: int, name: str, screen: Screen, folder: Path) -> None:
        self._logs, self._attempt_id, self._number = logs, attempt_id, number
        self._name, self._screen = name, screen
        self._offset, self._rest, self._nonce = 0, b"", ""
        self.tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._is_more = asyncio.Event()
        self._is_over = False
        folder.mkdir(parents=True, exist_ok=True)
        self._copy = (folder / f"{quote(name, safe=' (),=')}.log").open("ab")
        self._task = asyncio.create_task(self._follow())

    async def close(self) -> None:
        """Tell what is left, and end."""
        self._is_over = True
        self._is_more.set()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._task, LAST_WORDS_SECONDS)
        self._copy.close()

    async def _follow(self) -> None:
        loop = asyncio.get_running_loop()

        def wake() -> None:
            loop.call_soon_threadsafe(self._is_more.set)

        with self._logs.subscribe(self._attempt_id, self._number, wake):
            while True:
                self._is_more.clear()
                is_last = self._is_over
                while part := self._logs.read(self._attempt_id, self._number, self._offset, PART_BYTES):
                    self._offset += len(part)
                    self._add(part)
                    await asyncio.sleep(0)
                if is_last:
                    if self._rest:
                        self._add(b"\n")
                    return
                await self._is_more.wait()

    def _add(self, part: bytes) -> None:
        *lines, self._rest = (self._rest + part).split(b"\n")
        for line in lines:
            whole = line + b"\n"
            if not self._nonce and (nonce := log_nonce(whole)):
                self._nonce = nonce
                continue
            mark = parse_marker(whole, self._nonce)
            if mark is not None:
                if mark.name is not None:
                    self._screen.step(self._name, mark.name)
                continue
            self._copy.write(whole)
            text = plain_line(line.decode("utf-8", "replace"), MAX_LINE)
            self.tail.append(text)
            self._screen.said(self._name, text)
