"""One job on this runner: take the lease, run the steps, send the log, say how it ended.

Whatever happens, in this order: nothing of the job runs any more; all of its log that can be sent is sent; then, and
only under a lease that still stands, the result is said, again and again until it is heard.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from typing import Final

from deltaci.core.backoff import Backoff
from deltaci.core.errors import Refused
from deltaci.core.text import plain_line
from deltaci.protocol import messages as wire
from deltaci.protocol.messages import (
    AckLease,
    Artifact,
    CancelAck,
    Complete,
    HeartbeatAck,
    LeaseGranted,
    Progress,
    RunnerMessage,
    ServerMessage,
    Timings,
)
from deltaci.runner.client import RunnerClient, Unreachable
from deltaci.runner.execution import JobExecution
from deltaci.runner.lease.keeper import (
    Cancel,
    Confirmed,
    Hold,
    KeeperCommand,
    KeeperEvent,
    Lost,
    Ready,
    Release,
    stop_margin_seconds,
)
from deltaci.runner.log.job_log import JobLog
from deltaci.runner.log.stream import LogStream
from deltaci.runner.result import JobResult, cost, fitting
from deltaci.runner.runtime import Runtime
from deltaci.runner.sandbox import Cell, CellFailed, Exit
from deltaci.runner.sandbox.cell_pool import CellPool, JobDir
from deltaci.runner.transfers import THREADS, JobStopped, Transfers

LOGGER: Final = logging.getLogger(__name__)

RETRY_SECONDS: Final = 0.5
MAX_RETRY_SECONDS: Final = 5.0  # A part of the margin that a lease is given up before its end.
GRACE_SECONDS: Final = 10.0
STOP_MARGIN_SECONDS: Final = 5
LOG_SECONDS: Final = 60.0
LOST_LOG_SECONDS: Final = 5.0  # The lease is gone for us, but the server may still take what the job had said.
KEEPER_SECONDS: Final = 5.0  # For an answer of our own keeper.
TIMED_OUT: Final = 124  # What `timeout` answers; people know it.


class JobRunner:
    """One lease, from its grant to its end."""

    def __init__(
        self, client: RunnerClient, runner_id: str, granted: LeaseGranted, places: CellPool, runtime: Runtime
    ) -> None:
        self._client = client
        self._runner_id = runner_id
        self._granted = granted
        self._places = places
        self._clock, self._now = runtime.clock, runtime.now
        self._nonce = runtime.nonce
        self._protocols = runtime.git_protocols()
        self._granted_at = self._clock()
        self._said_at = self._proved_at = self._granted_at
        self._proved_until = 0.0
        self._is_told = asyncio.Event()
        self._progress: Progress | None = None
        self._log: LogStream | None = None
        self._started_at = self._now()
        self._began_at: datetime | None = None  # The first step.
        self._ended_at: datetime | None = None  # The last one.
        self._spec = granted.job_spec
        self._cell: Cell | None = None
        self._tree_place = ""
        self._cancel: Cancel | None = None
        self._stopping: asyncio.Task[bool] | None = None
        self._is_lost = False
        self._is_executed = False
        self._is_handed_back = False
        self._is_proved_gone = True
        self._end_work: Callable[[], None] | None = None
        self._keep: Callable[[KeeperCommand], None] = lambda _: None

    async def run(self, keep: Callable[[KeeperCommand], None]) -> str:
        """Do it all. Returns one word for this runner's own log."""
        self._keep = keep
        answer = await self._send_until_acknowledged(
            AckLease(
                lease_id=self._granted.lease_id,
                runner_id=self._runner_id,
                job_id=self._granted.job_id,
                accepted_at=self._started_at,
            )
        )
        if not isinstance(answer, HeartbeatAck):
            return "stale"
        self._prove(answer)
        place, trouble = await self._place()
        self._cell = place.cell
        if place.slot is not None and self._spec is not None and self._spec.tree is not None:
            self._tree_place = str(place.slot.path)[:2000] if self._spec.tree.is_committed else ""
        log = self._log = LogStream(self._client, self._granted.lease_id, place.folder / "log")
        sending = asyncio.create_task(log.send())
        try:
            if answer.cancel_requested:
                self.on_keeper_message(
                    Cancel(lease_id="", deadline_seconds=answer.cancel_deadline_seconds, reason="CANCELED")
                )
            ended = await self._execute(place, log) if place.cell is not None else self._refuse(trouble, log)
            return await self._report_result(ended, log)
        finally:
            self._keep(Release(lease_id=self._granted.lease_id))
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
            log.close()
            await place.release()

    async def _place(self) -> tuple[JobDir, Exception | None]:
        """Where it runs; or a bare one, and why it cannot run here."""
        try:
            if self._spec is None:
                ref = self._granted.job_spec_ref or ""
                self._spec = await asyncio.to_thread(self._client.spec, ref, self._granted.lease_id)
            return self._places.acquire(self._spec), None
        except (Refused, Unreachable, CellFailed, OSError) as error:
            return self._places.without_cell(), error

    @staticmethod
    def _refuse(trouble: Exception | None, log: LogStream) -> JobResult:
        log.write(f"the job cannot be run here: {trouble}\n".encode())
        summary = f"cannot run here: {trouble}"
        return JobResult(exit=Exit(None, None, 0.0), steps=[], error_code=_error_code(trouble), summary=summary)

    def on_keeper_message(self, news: KeeperEvent) -> None:
        """What the keeper learned about this lease."""
        if isinstance(news, Confirmed):
            self._proved_until = news.until
            self._is_told.set()
            return
        if isinstance(news, Ready):
            return
        if isinstance(news, Lost):
            self._is_lost = True
            self._is_told.set()
            if self._log is not None:
                self._log.hurry(LOST_LOG_SECONDS)
            grace = 0.0
        else:
            self._cancel = news
            grace = float(max(0, min(GRACE_SECONDS, news.deadline_seconds - STOP_MARGIN_SECONDS)))
        self._stop(grace)

    def hand_back(self) -> None:
        """The runner leaves: stop the job and let others have it. What is over but for the telling is told."""
        if not self._is_executed:
            self._is_handed_back = True
            self._stop(GRACE_SECONDS)

    def _stop(self, grace: float) -> None:
        if self._end_work is not None:
            self._end_work()
        if self._cell is not None and self._stopping is None:
            self._stopping = asyncio.create_task(self._cell.stop(grace))

    async def _execute(self, place: JobDir, log: LogStream) -> JobResult:
        cell, spec = place.cell, self._spec
        assert cell is not None
        assert spec is not None
        self._update_keeper(None, log)
        told = JobLog(log, self._nonce())
        told.write_line(cell.description)
        transfers = Transfers(self._client, self._granted.lease_id, self._is_over, THREADS)
        work = JobExecution(spec, place, cell, told, transfers, self._runner_id, self._protocols)
        try:
            if self._is_over():  # Before it began.
                raise JobStopped
            ended = await work.run(lambda index, name: self._go_on(index, name, log), self._left, self._working)
            self._ended_at = self._now()
        except JobStopped:
            return self._failed("", "stopped", told)
        finally:
            self._is_executed = True
            if self._stopping is not None:
                self._is_proved_gone = await self._stopping
            self._is_proved_gone = await cell.close() and self._is_proved_gone
            await work.close()
        return ended if self._is_over() else await work.bring_back(ended)

    def _working(self, stop: Callable[[], None] | None) -> None:
        """How to end what the runner itself does for the job, while it does something."""
        self._end_work = stop

    def _is_over(self) -> bool:
        return self._is_lost or self._is_handed_back or self._cancel is not None

    @staticmethod
    def _failed(code: str, why: str, told: JobLog) -> JobResult:
        told.write_line(why)
        return JobResult(exit=Exit(None, None, 0.0), steps=[], error_code=code, summary=told.masked_line(why))

    async def _go_on(self, index: int, name: str, log: LogStream) -> bool:
        """A step is about to begin."""
        self._began_at = self._began_at or self._now()
        self._update_keeper(Progress(step_index=index, current_step=name), log)
        return not self._is_over() and await self._is_proved(log)

    def _left(self) -> float:
        """How many seconds the job may still take."""
        return self._granted_at + self._granted.max_runtime_seconds - self._clock()

    def _update_keeper(self, progress: Progress | None, log: LogStream) -> None:
        assert self._cell is not None
        self._progress = progress
        granted = self._granted
        self._keep(
            Hold(
                lease_id=granted.lease_id,
                runner_id=self._runner_id,
                ttl_seconds=granted.lease_ttl_seconds,
                interval_seconds=granted.heartbeat_interval_seconds,
                handle=self._cell.handle,
                confirmed_at=self._proved_at,
                progress=progress,
                bytes_sent=log.bytes_sent,
                log_path=str(log.path),
            )
        )

    async def _is_proved(self, log: LogStream) -> bool:
        """Whether the lease stands, by our own clock: nothing is begun or said under one that may be another's."""
        if self._cell is not None and not self._is_lost and self._clock() >= self._proved_until:
            # We may have slept while the keeper did not, so it is asked.
            self._is_told.clear()
            self._update_keeper(self._progress, log)
            with suppress(TimeoutError):
                async with asyncio.timeout(KEEPER_SECONDS):
                    await self._is_told.wait()
            if self._clock() >= self._proved_until:
                self._is_lost = True
        return not self._is_lost

    def _prove(self, answer: HeartbeatAck) -> None:
        """The acknowledgement was heard: the lease runs from when it was said, or from a first try that was heard."""
        ttl_seconds = self._granted.lease_ttl_seconds
        self._proved_at = self._said_at + min(0, answer.new_lease_ttl_seconds - ttl_seconds)
        self._proved_until = self._proved_at + ttl_seconds - stop_margin_seconds(ttl_seconds)

    async def _report_result(self, ended: JobResult, log: LogStream) -> str:
        await log.finish(LOG_SECONDS)
        if not await self._is_proved(log):
            return "lost"
        uri = f"log:{self._granted.job_id}"
        kept = [Artifact(type="log", uri=uri, bytes=log.bytes_sent), *ended.brought.artifacts]
        if self._cancel is not None:
            if not self._is_proved_gone:
                return "still there"  # No proof, no word: the server's deadline will decide.
            said: RunnerMessage = CancelAck(
                lease_id=self._granted.lease_id,
                runner_id=self._runner_id,
                final_status="CANCELED",
                ts=self._now(),
                artifacts=kept,
                summary=f"stopped: {self._cancel.reason}",
            )
        elif self._is_handed_back:
            return await self._give_back()
        else:
            said = self._complete(ended, kept, log)
        answer = await self._send_until_acknowledged(said)
        if isinstance(answer, Refused) and isinstance(said, Complete):
            # A result that is never accepted would be computed again and again: tell that there is none, and why.
            said = self._without_result(answer)
            answer = await self._send_until_acknowledged(said)
        return "canceled" if isinstance(said, CancelAck) else _outcome(answer, said)

    async def _give_back(self) -> str:
        """Say so, once: whoever does not hear it will see the lease run out."""
        if self._is_proved_gone:
            with suppress(Unreachable, Refused):
                await asyncio.to_thread(self._client.hand_back, self._granted.lease_id)
                return "handed back"
        return "left to run out"

    def _complete(self, ended: JobResult, kept: list[Artifact], log: LogStream) -> Complete:
        is_success, brought = ended.is_success, ended.brought
        exit_code = TIMED_OUT if ended.exit.is_timed_out else ended.exit.exit_code
        said = Complete(
            lease_id=self._granted.lease_id,
            runner_id=self._runner_id,
            status="SUCCEEDED" if is_success else "FAILED",
            exit_code=exit_code if is_success or exit_code != 0 else None,
            signal=ended.exit.signal,
            error_code=ended.error_code or None,
            timings=Timings(started_at=self._began_at or self._started_at, finished_at=self._ended_at or self._now()),
            artifacts=kept,
            summary=ended.summary[:2000],
            log_tail=[] if is_success else [plain_line(line, 2000) for line in log.tail()],
            steps=ended.steps,
            tests=brought.tests,
            output=brought.output,
            is_skipped=ended.is_skipped and is_success,
            verdicts=ended.verdicts if is_success else None,
            head=ended.head if is_success else "",
            worktree_path=self._tree_place,
            cost=cost(self._clock() - self._granted_at, ended.exit, log.bytes_sent, brought.bytes),
        )
        return fitting(said)

    def _without_result(self, refused: Refused) -> Complete:
        return Complete(
            lease_id=self._granted.lease_id,
            runner_id=self._runner_id,
            status="FAILED",
            error_code="BAD_RESULT",
            summary=plain_line(f"the server refused the result: {refused.message}", 2000),
        )

    async def _send_until_acknowledged(self, message: RunnerMessage) -> ServerMessage | Refused | None:
        """Say it until it is heard, or until the lease is gone."""
        backoff = Backoff(RETRY_SECONDS, MAX_RETRY_SECONDS)
        while not self._is_lost:
            self._said_at = self._clock()
            try:
                return await asyncio.to_thread(self._client.send, message)
            except Unreachable:
                await asyncio.sleep(backoff.next(random.random()))
            except Refused as refused:
                LOGGER.warning("job %s: %s is refused: %s", self._granted.job_id, type(message).__name__, refused)
                return refused
            if self._clock() > self._granted_at + self._granted.lease_ttl_seconds and self._cell is None:
                return None
        return None


def _error_code(error: Exception | None) -> str:
    """Whose fault it is that it did not run: the job's, or this runner's, so that another may try."""
    return "BAD_SPEC" if isinstance(error, Refused) and error.code == "bad_spec" else "RUNNER_STARTUP"


def _outcome(answer: ServerMessage | Refused | None, said: RunnerMessage) -> str:
    if isinstance(answer, wire.CompleteAck) and isinstance(said, Complete):
        return said.status.lower() if answer.accepted else "not accepted"
    return "stale"
