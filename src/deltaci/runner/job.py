"""The job runner: acknowledges a lease, runs the job, sends its log and reports its result.

However the job ends, the order is the same: first all processes of the job are ended; then the rest of the log is sent,
as far as possible; then, only while the lease is still valid, the result is sent until the server acknowledges it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Final

from deltaci.core.backoff import Backoff
from deltaci.core.errors import Refused, Unreachable
from deltaci.core.text import plain_line
from deltaci.protocol import messages as wire
from deltaci.protocol.messages import (
    AckLease,
    Artifact,
    CancelAck,
    Complete,
    Heartbeat,
    HeartbeatAck,
    LeaseGranted,
    LogCursor,
    Progress,
    RunnerMessage,
    ServerMessage,
    Timings,
)
from deltaci.runner.client import RunnerClient
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
    supervisor_deadline,
)
from deltaci.runner.log.job_log import JobLog
from deltaci.runner.log.stream import LogStream
from deltaci.runner.result import JobResult, error_code_of, resource_usage, shrink_to_limit
from deltaci.runner.runtime import Runtime
from deltaci.runner.sandbox import Cell, CellFailed, Exit
from deltaci.runner.sandbox.cell_pool import CellPool, JobDir
from deltaci.runner.transfers import TRANSFER_THREADS, JobStopped, Transfers

LOGGER: Final = logging.getLogger(__name__)

RETRY_SECONDS: Final = 0.5
MAX_RETRY_SECONDS: Final = 5.0  # Less than the margin by which a lease is given up before its end.
GRACE_SECONDS: Final = 10.0
STOP_MARGIN_SECONDS: Final = 5
LOG_SECONDS: Final = 60.0
LOST_LOG_SECONDS: Final = 5.0  # After the lease is lost: the server may still accept the rest of the log.
KEEPER_SECONDS: Final = 5.0  # For a response of the keeper process.
TIMED_OUT: Final = 124  # The exit code of timeout(1).


class JobRunner:
    """Runs the job of one lease, from the grant to the end of the lease."""

    def __init__(
        self, client: RunnerClient, runner_id: str, granted: LeaseGranted, cell_pool: CellPool, runtime: Runtime
    ) -> None:
        self._client = client
        self._runner_id = runner_id
        self._granted = granted
        self._cell_pool = cell_pool
        self._clock, self._now = runtime.clock, runtime.now
        self._nonce = runtime.nonce
        self._protocols = runtime.git_protocols()
        self._granted_at = self._clock()
        # The lease is valid for its TTL, minus a margin, from the request that the server acknowledged last.
        self._sent_at = self._confirmed_at = self._granted_at
        self._confirmed_until = 0.0
        self._has_keeper_answered = asyncio.Event()
        self._progress: Progress | None = None
        self._log: LogStream | None = None
        self._accept_time = self._now()
        self._steps_start_time: datetime | None = None
        self._steps_end_time: datetime | None = None
        self._spec = granted.job_spec
        self._cell: Cell | None = None
        self._renewals_path: Path | None = None
        self._worktree_path = ""
        self._cancel: Cancel | None = None
        self._stop_task: asyncio.Task[bool] | None = None
        self._is_lost = False
        self._is_executed = False
        self._is_handed_back = False
        self._is_cell_empty = True
        self._stop_runner_work: Callable[[], None] | None = None
        self._send_to_keeper: Callable[[KeeperCommand], None] = lambda _: None

    async def run(self, send_to_keeper: Callable[[KeeperCommand], None]) -> str:
        """Run the job. Return its outcome in a word or two, for the runner's log."""
        self._send_to_keeper = send_to_keeper
        answer = await self._send_until_acknowledged(
            AckLease(
                lease_id=self._granted.lease_id,
                runner_id=self._runner_id,
                job_id=self._granted.job_id,
                accepted_at=self._accept_time,
            )
        )
        if not isinstance(answer, HeartbeatAck):
            return "stale"
        self._record_confirmation(answer)
        job_dir, start_error = await self._acquire_job_dir()
        self._cell = job_dir.cell
        if job_dir.slot is not None and self._spec is not None and self._spec.tree is not None:
            self._worktree_path = str(job_dir.slot.path)[:2000] if self._spec.tree.is_committed else ""
        log = self._log = LogStream(self._client, self._granted.lease_id, job_dir.folder / "log")
        send_task = asyncio.create_task(log.send())
        try:
            if answer.cancel_requested:
                self.on_keeper_message(
                    Cancel(lease_id="", deadline_seconds=answer.cancel_deadline_seconds, reason="CANCELED")
                )
            result = (
                await self._execute(job_dir, log) if job_dir.cell is not None else self._cannot_run(start_error, log)
            )
            return await self._report_result(result, log)
        finally:
            self._send_to_keeper(Release(lease_id=self._granted.lease_id))
            send_task.cancel()
            await asyncio.gather(send_task, return_exceptions=True)
            log.close()
            await job_dir.release()

    async def _acquire_job_dir(self) -> tuple[JobDir, Exception | None]:
        """Return the folders and the cell for the job; or folders without a cell, and why the job cannot run here."""
        try:
            if self._spec is None:
                spec_ref = self._granted.job_spec_ref or ""
                self._spec = await asyncio.to_thread(self._client.spec, spec_ref, self._granted.lease_id)
            return self._cell_pool.acquire(self._spec), None
        except (Refused, Unreachable, CellFailed, OSError) as error:
            return self._cell_pool.without_cell(), error

    @staticmethod
    def _cannot_run(error: Exception | None, log: LogStream) -> JobResult:
        log.write(f"the job cannot run here: {error}\n".encode())
        summary = f"cannot run here: {error}"
        return JobResult(exit=Exit(None, None, 0.0), steps=[], error_code=error_code_of(error), summary=summary)

    def on_keeper_message(self, message: KeeperEvent) -> None:
        """Apply the keeper's message about this lease: record until when it is valid, or stop the job."""
        if isinstance(message, Confirmed):
            self._confirmed_until = message.until
            self._has_keeper_answered.set()
            return
        if isinstance(message, Ready):
            return
        if isinstance(message, Lost):
            self._is_lost = True
            self._has_keeper_answered.set()
            if self._log is not None:
                self._log.limit_wait(LOST_LOG_SECONDS)
            grace_seconds = 0.0
        else:
            self._cancel = message
            grace_seconds = float(max(0, min(GRACE_SECONDS, message.deadline_seconds - STOP_MARGIN_SECONDS)))
        self._stop(grace_seconds)

    def hand_back(self) -> None:
        """Stop the job and hand the lease back, unless the steps have ended: then the result is reported as usual."""
        if not self._is_executed:
            self._is_handed_back = True
            self._stop(GRACE_SECONDS)

    def _stop(self, grace_seconds: float) -> None:
        if self._stop_runner_work is not None:
            self._stop_runner_work()
        if self._cell is not None and self._stop_task is None:
            self._stop_task = asyncio.create_task(self._cell.stop(grace_seconds))

    async def _execute(self, job_dir: JobDir, log: LogStream) -> JobResult:
        """Run the steps in the cell and collect the outputs, unless the job is stopped. Close the cell in any case."""
        cell, spec = job_dir.cell, self._spec
        assert cell is not None
        assert spec is not None
        self._renewals_path = job_dir.folder / "renewals"
        os.mkfifo(self._renewals_path, 0o600)
        deadline = supervisor_deadline(self._confirmed_until, self._granted.lease_ttl_seconds)
        await cell.bind_lease(deadline, self._renewals_path)  # It opens the FIFO, so that the keeper can.
        self._update_keeper(None, log)
        job_log = JobLog(log, self._nonce())
        job_log.write_line(cell.description)
        transfers = Transfers(self._client, self._granted.lease_id, self._is_stopped, TRANSFER_THREADS)
        execution = JobExecution(spec, job_dir, cell, job_log, transfers, self._runner_id, self._protocols)
        try:
            if self._is_stopped():  # Before the job started.
                raise JobStopped
            result = await execution.run(
                lambda index, name: self._may_start_step(index, name, log), self._seconds_left, self._set_stop
            )
            self._steps_end_time = self._now()
        except JobStopped:
            return self._failed("", "stopped", job_log)
        finally:
            self._is_executed = True
            if self._stop_task is not None:
                self._is_cell_empty = await self._stop_task
            self._is_cell_empty = await cell.close() and self._is_cell_empty
            await execution.close()
        return result if self._is_stopped() else await execution.collect(result, partial(self._report_upload, log))

    async def _report_upload(self, log: LogStream) -> None:
        """Tell the server, once, that the uploads begin. If the report is lost, the result implies it."""
        report = Heartbeat(
            lease_id=self._granted.lease_id,
            runner_id=self._runner_id,
            ts=self._now(),
            progress=Progress(phase="uploading"),
            log_cursor=LogCursor(bytes_sent=log.bytes_sent),
        )
        with suppress(Unreachable, Refused):
            await asyncio.to_thread(self._client.send, report)

    def _set_stop(self, stop: Callable[[], None] | None) -> None:
        """Set the function that stops the work that the runner itself does for the job; None while it does nothing."""
        self._stop_runner_work = stop

    def _is_stopped(self) -> bool:
        return self._is_lost or self._is_handed_back or self._cancel is not None

    @staticmethod
    def _failed(code: str, reason: str, job_log: JobLog) -> JobResult:
        job_log.write_line(reason)
        return JobResult(exit=Exit(None, None, 0.0), steps=[], error_code=code, summary=job_log.masked_line(reason))

    async def _may_start_step(self, index: int, name: str, log: LogStream) -> bool:
        """Report the progress, and record the time of the first step.

        Return whether the step may start: the job is not stopped and the lease is valid.
        """
        self._steps_start_time = self._steps_start_time or self._now()
        self._update_keeper(Progress(step_index=index, current_step=name), log)
        return not self._is_stopped() and await self._confirm_lease(log)

    def _seconds_left(self) -> float:
        return self._granted_at + self._granted.max_runtime_seconds - self._clock()

    def _update_keeper(self, progress: Progress | None, log: LogStream) -> None:
        """Let the keeper send heartbeats for the lease, and kill the cell if the lease is lost.

        The heartbeats have this progress, None before the first step, and how many bytes of the log were sent.
        """
        assert self._cell is not None
        self._progress = progress
        granted = self._granted
        self._send_to_keeper(
            Hold(
                lease_id=granted.lease_id,
                runner_id=self._runner_id,
                ttl_seconds=granted.lease_ttl_seconds,
                interval_seconds=granted.heartbeat_interval_seconds,
                handle=self._cell.handle,
                confirmed_at=self._confirmed_at,
                progress=progress,
                bytes_sent=log.bytes_sent,
                log_path=str(log.path),
                renewals=str(self._renewals_path),
            )
        )

    async def _confirm_lease(self, log: LogStream) -> bool:
        """Return whether the lease is still held.

        If it has ended by this machine's clock, first ask the keeper for a renewal; without one, mark the lease as
        lost, because another runner may hold the job.
        """
        if self._cell is not None and self._cell.is_lease_over:
            self._is_lost = True
        if self._cell is not None and not self._is_lost and self._clock() >= self._confirmed_until:
            # Ask the keeper: its messages may not have been read yet, for example after this process was suspended.
            self._has_keeper_answered.clear()
            self._update_keeper(self._progress, log)
            with suppress(TimeoutError):
                async with asyncio.timeout(KEEPER_SECONDS):
                    await self._has_keeper_answered.wait()
            if self._clock() >= self._confirmed_until:
                self._is_lost = True
        return not self._is_lost

    def _record_confirmation(self, answer: HeartbeatAck) -> None:
        """Record until when the lease is valid: its TTL counts from the acknowledgement that the server accepted first.

        That may have been an earlier one whose response was lost: then the server returns a shorter remaining TTL.
        """
        ttl_seconds = self._granted.lease_ttl_seconds
        self._confirmed_at = self._sent_at + min(0, answer.new_lease_ttl_seconds - ttl_seconds)
        self._confirmed_until = self._confirmed_at + ttl_seconds - stop_margin_seconds(ttl_seconds)

    async def _report_result(self, result: JobResult, log: LogStream) -> str:
        """Send the rest of the log, then the result, a `CancelAck` or the hand-back. Return the outcome."""
        await log.finish(LOG_SECONDS)
        if not await self._confirm_lease(log):
            return "lost"
        uri = f"log:{self._granted.job_id}"
        artifacts = [Artifact(type="log", uri=uri, bytes=log.bytes_sent), *result.collected.artifacts]
        if self._cancel is not None:
            if not self._is_cell_empty:
                return "still running"  # A CancelAck would claim that the job stopped; the server's deadline decides.
            message: RunnerMessage = CancelAck(
                lease_id=self._granted.lease_id,
                runner_id=self._runner_id,
                final_status="CANCELED",
                ts=self._now(),
                artifacts=artifacts,
                summary=f"stopped: {self._cancel.reason}",
            )
        elif self._is_handed_back:
            return await self._hand_lease_back()
        else:
            message = self._complete(result, artifacts, log)
        answer = await self._send_until_acknowledged(message)
        if isinstance(answer, Refused) and isinstance(message, Complete):
            # Without any accepted result, the job would be run again and again.
            message = self._complete_without_result(answer)
            answer = await self._send_until_acknowledged(message)
        return "canceled" if isinstance(message, CancelAck) else _outcome(answer, message)

    async def _hand_lease_back(self) -> str:
        """Hand the lease back with a single request: if it fails, the lease expires."""
        if self._is_cell_empty:
            with suppress(Unreachable, Refused):
                await asyncio.to_thread(self._client.hand_back, self._granted.lease_id)
                return "handed back"
        return "left to expire"

    def _complete(self, result: JobResult, artifacts: list[Artifact], log: LogStream) -> Complete:
        """Return the message with the result of the job, shortened to the size that the server accepts."""
        is_success, collected = result.is_success, result.collected
        exit_code = TIMED_OUT if result.exit.is_timed_out else result.exit.exit_code
        timings = Timings(
            started_at=self._steps_start_time or self._accept_time, finished_at=self._steps_end_time or self._now()
        )
        complete = Complete(
            lease_id=self._granted.lease_id,
            runner_id=self._runner_id,
            status="SUCCEEDED" if is_success else "FAILED",
            exit_code=exit_code if is_success or exit_code != 0 else None,
            signal=result.exit.signal,
            error_code=result.error_code or None,
            timings=timings,
            artifacts=artifacts,
            summary=result.summary[:2000],
            log_tail=[] if is_success else [plain_line(log_line, 2000) for log_line in result.log_tail or log.tail()],
            steps=result.steps,
            tests=collected.tests,
            output=collected.output,
            is_skipped=result.is_skipped and is_success,
            verdicts=result.verdicts if is_success else None,
            head=result.head if is_success else "",
            worktree_path=self._worktree_path,
            cost=resource_usage(self._clock() - self._granted_at, result.exit, log.bytes_sent, collected.bytes),
        )
        return shrink_to_limit(complete)

    def _complete_without_result(self, refused: Refused) -> Complete:
        """Return a message that fails the attempt because the server refused its result."""
        return Complete(
            lease_id=self._granted.lease_id,
            runner_id=self._runner_id,
            status="FAILED",
            error_code="BAD_RESULT",
            summary=plain_line(f"the server refused the result: {refused.message}", 2000),
        )

    async def _send_until_acknowledged(self, message: RunnerMessage) -> ServerMessage | Refused | None:
        """Send the message until the server answers or the lease is lost.

        Return the answer or the refusal; None if the lease was lost or, before the job has a cell, would have ended.
        """
        backoff = Backoff(RETRY_SECONDS, MAX_RETRY_SECONDS)
        while not self._is_lost:
            self._sent_at = self._clock()
            try:
                return await asyncio.to_thread(self._client.send, message)
            except Unreachable:
                await asyncio.sleep(backoff.next(random.random()))
            except Refused as refused:
                LOGGER.warning("job %s: %s was refused: %s", self._granted.job_id, type(message).__name__, refused)
                return refused
            if self._clock() > self._granted_at + self._granted.lease_ttl_seconds and self._cell is None:
                return None
        return None


def _outcome(answer: ServerMessage | Refused | None, message: RunnerMessage) -> str:
    if isinstance(answer, wire.CompleteAck) and isinstance(message, Complete):
        return message.status.lower() if answer.accepted else "not accepted"
    return "stale"
