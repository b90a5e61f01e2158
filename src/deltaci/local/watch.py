"""Shows a local run: its jobs' state changes and their logs, until it ends."""

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
from deltaci.local.engine import LOCAL_USER, LocalEngine
from deltaci.runner.log.sections import log_nonce, parse_marker
from deltaci.storage.blobs.logs import LogStore

MAX_LINE: Final = 2000
TAIL_LINES: Final = 30
CHUNK_BYTES: Final = 256 * 1024
CLOSE_SECONDS: Final = 10.0

DecideApproval = Callable[[Job], Awaitable[bool]]


class Screen(Protocol):
    """Where a run is shown."""

    def job_changed(self, job: Job, last_lines: list[str]) -> None:
        """A job changed its state. `last_lines` are the last lines of the log of a failed job."""

    def step_started(self, job_name: str, step_name: str) -> None:
        """A step of this job started."""

    def output_line(self, job_name: str, line: str) -> None:
        """A job printed a line."""


class RunWatcher:
    """Shows one run."""

    def __init__(self, engine: LocalEngine, run_id: str, screen: Screen, decide: DecideApproval) -> None:
        self._engine = engine
        self._run_id = run_id
        self._screen = screen
        self._decide = decide
        self._logs: dict[str, LogFollower] = {}
        self._decisions: set[asyncio.Task[None]] = set()

    async def watch(self) -> Run:
        """Show the run until it ends, and return it."""
        try:
            async for event in feed.follow(self._engine.store, 0, run_id=self._run_id):
                if event.from_ == event.to:
                    continue
                if event.entity == ATTEMPT:
                    await self._on_attempt(event)
                if event.entity == JOB:
                    await self._on_job(event)
                if event.entity == RUN and event.to in run.TERMINAL:
                    break
        finally:
            for decision_task in self._decisions:
                decision_task.cancel()
            await asyncio.gather(
                *self._decisions, *(log.close() for log in self._logs.values()), return_exceptions=True
            )
        record = await self._engine.store.find(self._run_id)
        assert isinstance(record, Run)
        return record

    async def _on_attempt(self, event: Event) -> None:
        """Follow the log of the attempt once its lease is accepted; each lease has its own log."""
        if not attempt.MACHINE.changes(event.to, attempt.Ack):
            return
        record = await self._engine.store.find(event.entity_id)
        lease = isinstance(record, Attempt) and (record.lease or record.ended_lease)
        if isinstance(record, Attempt) and lease:
            if earlier := self._logs.pop(record.job_id, None):
                await earlier.close()
            run_folder = self._engine.folder / "runs" / self._run_id
            self._logs[record.job_id] = LogFollower(
                self._engine.server.logs,
                record.id,
                lease.number,
                record.job_id.partition("/")[2],
                self._screen,
                run_folder,
            )

    async def _on_job(self, event: Event) -> None:
        """Show a job's new state, with the end of its log if it failed, and ask for a decision if it needs approval."""
        record = await self._engine.store.find(event.entity_id)
        assert isinstance(record, Job)
        if record.state != event.to:
            return  # It has changed again, which a later event shows.
        log_tail: list[str] = []
        if event.to in job.TERMINAL and (log := self._logs.get(record.id)):
            await log.close()
            log_tail = list(log.tail) if not job.satisfies(record) else []
        self._screen.job_changed(record, log_tail)
        if job.MACHINE.changes(event.to, Approve):
            decision_task = asyncio.create_task(self._decide_approval(record))
            self._decisions.add(decision_task)
            decision_task.add_done_callback(self._decisions.discard)

    async def _decide_approval(self, waiting_job: Job) -> None:
        """Ask for a decision and apply it, for as many approvers as the gate requires."""
        is_approved = await self._decide(waiting_job)
        command_type = Approve if is_approved else Reject
        # The local user stands for as many approvers as the gate requires.
        for approver_index in range(waiting_job.spec.gate.approvers):
            actor = LOCAL_USER if not approver_index else f"{LOCAL_USER}-{approver_index + 1}"
            roles = (waiting_job.spec.gate.role,) if waiting_job.spec.gate.role else ()
            await self._engine.server.engine.do(command_type(id=waiting_job.id, actor=actor, roles=roles))
            if not is_approved:
                return


class LogFollower:
    """Shows the log of one lease line by line, and copies it to a file without section markers."""

    def __init__(
        self, logs: LogStore, attempt_id: str, number: int, job_name: str, screen: Screen, folder: Path
    ) -> None:
        self._logs, self._attempt_id, self._number = logs, attempt_id, number
        self._name, self._screen = job_name, screen
        self._offset, self._partial_line, self._nonce = 0, b"", ""
        self.tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._has_data = asyncio.Event()
        self._is_closing = False
        folder.mkdir(parents=True, exist_ok=True)
        self._copy = (folder / f"{quote(job_name, safe=' (),=')}.log").open("ab")
        self._task = asyncio.create_task(self._follow())

    async def close(self) -> None:
        """Show the rest of the log, and stop."""
        self._is_closing = True
        self._has_data.set()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._task, CLOSE_SECONDS)
        self._copy.close()

    async def _follow(self) -> None:
        """Copy the log while it grows, until `close` is called and its end is reached."""
        loop = asyncio.get_running_loop()

        def wake() -> None:
            loop.call_soon_threadsafe(self._has_data.set)

        with self._logs.subscribe(self._attempt_id, self._number, wake):
            while True:
                self._has_data.clear()
                is_last = self._is_closing
                while chunk := self._logs.read(self._attempt_id, self._number, self._offset, CHUNK_BYTES):
                    self._offset += len(chunk)
                    self._add_chunk(chunk)
                    await asyncio.sleep(0)
                if is_last:
                    if self._partial_line:
                        self._add_chunk(b"\n")
                    return
                await self._has_data.wait()

    def _add_chunk(self, chunk: bytes) -> None:
        """Show the complete lines, and copy them to the log file, without section markers."""
        *complete_lines, self._partial_line = (self._partial_line + chunk).split(b"\n")
        for line in complete_lines:
            full_line = line + b"\n"
            if not self._nonce and (nonce := log_nonce(full_line)):
                self._nonce = nonce
                continue
            marker = parse_marker(full_line, self._nonce)
            if marker is not None:
                if marker.name is not None:
                    self._screen.step_started(self._name, marker.name)
                continue
            self._copy.write(full_line)
            plain_text = plain_line(line.decode("utf-8", "replace"), MAX_LINE)
            self.tail.append(plain_text)
            self._screen.output_line(self._name, plain_text)
