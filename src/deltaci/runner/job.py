"""One job on this runner: take the lease, run the steps, send the log, say how it ended.

Whatever happens, in this order: nothing of the job runs any more; all of its log that can be sent is sent; then, and
only under a lease that still stands, the result is said, again and again until it is heard.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec

from deltaci.core.errors import Refused
from deltaci.runner.client import Client, Unreachable
from deltaci.runner.executors import Cell, CellFailed, Exit
from deltaci.runner.keeper import Cancel, Hold, Lost, News, Order, Proved, Ready, Release, margin_of
from deltaci.runner.logstream import LogStream
from deltaci.runner.masking import Mask
from deltaci.runner.places import Place, Places
from deltaci.runner.sections import Writer, new_nonce
from deltaci.wire import messages as wire
from deltaci.wire.messages import (
    AckLease,
    Artifact,
    CancelAck,
    Complete,
    HeartbeatAck,
    JobSpec,
    LeaseGranted,
    Progress,
    RunnerMessage,
    ServerMessage,
    Step,
    StepResult,
    Timings,
)

RETRY_SECONDS: Final = 0.5
GRACE_SECONDS: Final = 10.0
STOP_MARGIN_SECONDS: Final = 5
LOG_SECONDS: Final = 60.0
LOST_LOG_SECONDS: Final = 5.0  # The lease is gone for us, but the server may still take what the job had said.
KEEPER_SECONDS: Final = 5.0  # For an answer of our own keeper.
TIMED_OUT: Final = 124  # What `timeout` answers; people know it.


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """How the steps ended, before anybody was told."""

    exit: Exit
    steps: list[StepResult]
    error_code: str = ""
    summary: str = ""


class Job:
    """One lease, from its grant to its end."""

    def __init__(self, client: Client, runner_id: str, granted: LeaseGranted, places: Places) -> None:
        self._client = client
        self._runner_id = runner_id
        self._granted = granted
        self._places = places
        self._granted_at = time.monotonic()
        self._said_at = self._proved_at = self._granted_at
        self._proved_until = 0.0
        self._is_told = asyncio.Event()
        self._progress: Progress | None = None
        self._log: LogStream | None = None
        self._started_at = datetime.now(UTC)
        self._spec = granted.job_spec
        self._cell: Cell | None = None
        self._cancel: Cancel | None = None
        self._stopping: asyncio.Task[bool] | None = None
        self._is_lost = False
        self._is_proved_gone = True
        self._keep: Callable[[Order], None] = lambda _: None

    async def run(self, keep: Callable[[Order], None]) -> str:
        """Do it all. Returns one word for this runner's own log."""
        self._keep = keep
        answer = await self._insist(
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
        log = self._log = LogStream(self._client, self._granted.lease_id, place.folder / "log")
        sending = asyncio.create_task(log.send())
        try:
            if answer.cancel_requested:
                self.hear(Cancel(lease_id="", deadline_seconds=answer.cancel_deadline_seconds, reason="CANCELED"))
            ended = await self._execute(place, log) if place.cell is not None else self._refuse(trouble, log)
            return await self._tell(ended, log)
        finally:
            self._keep(Release(lease_id=self._granted.lease_id))
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
            log.close()
            await place.leave()

    async def _place(self) -> tuple[Place, str]:
        """Where it runs; or a bare one, and why it cannot run here."""
        try:
            if self._spec is None:
                ref = self._granted.job_spec_ref or ""
                self._spec = await asyncio.to_thread(self._client.spec, ref, self._granted.lease_id)
            return self._places.take(self._spec), ""
        except (Refused, Unreachable, CellFailed, OSError) as error:
            return self._places.bare(), str(error)

    @staticmethod
    def _refuse(trouble: str, log: LogStream) -> Ended:
        log.write(f"the job cannot be run here: {trouble}\n".encode())
        summary = f"cannot run here: {trouble}"
        return Ended(exit=Exit(None, None, 0.0), steps=[], error_code="RUNNER_ERROR", summary=summary)

    def hear(self, news: News) -> None:
        """What the keeper learned about this lease."""
        if isinstance(news, Proved):
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
        if self._cell is not None and self._stopping is None:
            self._stopping = asyncio.create_task(self._cell.stop(grace))

    async def _execute(self, place: Place, log: LogStream) -> Ended:
        cell, spec = place.cell, self._spec
        assert cell is not None
        assert spec is not None
        self._hold(None, log)
        sections = Writer(new_nonce())
        mask = Mask([sections.nonce])  # A job that reads its own log must not be able to forge its sections.
        log.write(sections.header() + sections.output(f"{cell.describe}\n".encode()))
        try:
            return await self._run_steps(spec, cell, place.workspace, log, sections, mask)
        finally:
            if self._stopping is not None:
                self._is_proved_gone = await self._stopping
            self._is_proved_gone = await cell.close() and self._is_proved_gone

    async def _run_steps(
        self, spec: JobSpec, cell: Cell, workspace: Path, log: LogStream, sections: Writer, mask: Mask
    ) -> Ended:
        results: list[StepResult] = []
        last = Exit(0, None, 0.0)
        ends_at = self._granted_at + self._granted.max_runtime_seconds
        for index, each in enumerate(spec.steps):
            step = each if isinstance(each, Step) else Step(run=each)
            name = step.name or step.run.strip().partition("\n")[0]
            self._hold(Progress(step_index=index, current_step=name[:2000]), log)
            if self._cancel is not None or not await self._is_proved(log):
                break
            log.write(sections.begin(index, name))
            left = max(0.1, ends_at - time.monotonic())
            try:
                last = await cell.run(
                    step.run,
                    env={**spec.env, **step.env},
                    workdir=_inside(workspace, step.workdir or spec.workdir),
                    timeout_seconds=min(left, step.timeout_seconds or left),
                    on_output=lambda data: log.write(sections.output(mask.feed(data))),
                )
            except (Refused, CellFailed, OSError) as error:
                return Ended(exit=last, steps=results, error_code="RUNNER_ERROR", summary=f"{name}: {error}")
            log.write(sections.output(mask.flush()) + sections.end(index, last.exit_code, last.seconds))
            results.append(
                StepResult(
                    index=index,
                    name=name[:2000],
                    exit_code=last.exit_code,
                    seconds=round(last.seconds, 3),
                    is_timed_out=last.is_timed_out,
                )
            )
            if (last.exit_code != 0 or last.is_timed_out) and not step.continue_on_error:
                return Ended(exit=last, steps=results, summary=_why(name, last))
        return Ended(exit=Exit(0, None, last.seconds), steps=results, summary=f"{len(results)} steps succeeded")

    def _hold(self, progress: Progress | None, log: LogStream) -> None:
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
                proved_at=self._proved_at,
                progress=progress,
                bytes_sent=log.bytes_sent,
                log_path=str(log.path),
            )
        )

    async def _is_proved(self, log: LogStream) -> bool:
        """Whether the lease stands, by our own clock: nothing is begun or said under one that may be another's."""
        if self._cell is not None and not self._is_lost and time.monotonic() >= self._proved_until:
            # We may have slept while the keeper did not, so it is asked.
            self._is_told.clear()
            self._hold(self._progress, log)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._is_told.wait(), KEEPER_SECONDS)
            if time.monotonic() >= self._proved_until:
                self._is_lost = True
        return not self._is_lost

    def _prove(self, answer: HeartbeatAck) -> None:
        """The acknowledgement was heard: the lease runs from when it was said, or from a first try that was heard."""
        ttl_seconds = self._granted.lease_ttl_seconds
        self._proved_at = self._said_at + min(0, answer.new_lease_ttl_seconds - ttl_seconds)
        self._proved_until = self._proved_at + ttl_seconds - margin_of(ttl_seconds)

    async def _tell(self, ended: Ended, log: LogStream) -> str:
        await log.finish(LOG_SECONDS)
        if not await self._is_proved(log):
            return "lost"
        uri = f"log:{self._granted.job_id}"
        kept = [Artifact(type="log", uri=uri, bytes=log.bytes_sent)]
        if self._cancel is not None:
            if not self._is_proved_gone:
                return "still there"  # No proof, no word: the server's deadline will decide.
            said: RunnerMessage = CancelAck(
                lease_id=self._granted.lease_id,
                runner_id=self._runner_id,
                final_status="CANCELED",
                ts=datetime.now(UTC),
                artifacts=kept,
                summary=f"stopped: {self._cancel.reason}",
            )
        else:
            said = self._complete(ended, kept, log)
        answer = await self._insist(said)
        return "canceled" if isinstance(said, CancelAck) else _outcome(answer, said)

    def _complete(self, ended: Ended, kept: list[Artifact], log: LogStream) -> Complete:
        is_success = ended.exit.exit_code == 0 and not ended.error_code
        exit_code = TIMED_OUT if ended.exit.is_timed_out else ended.exit.exit_code
        return Complete(
            lease_id=self._granted.lease_id,
            runner_id=self._runner_id,
            status="SUCCEEDED" if is_success else "FAILED",
            exit_code=exit_code,
            signal=ended.exit.signal,
            error_code=ended.error_code or None,
            timings=Timings(started_at=self._started_at, finished_at=datetime.now(UTC)),
            artifacts=kept,
            summary=ended.summary[:2000],
            log_tail=[] if is_success else [line[:2000] for line in log.tail()],
            steps=ended.steps,
        )

    async def _insist(self, message: RunnerMessage) -> ServerMessage | None:
        """Say it until it is heard, or until the lease is gone."""
        while not self._is_lost:
            self._said_at = time.monotonic()
            try:
                return await asyncio.to_thread(self._client.say, message)
            except Unreachable:
                await asyncio.sleep(RETRY_SECONDS)
            except Refused:
                return None
            if time.monotonic() > self._granted_at + self._granted.lease_ttl_seconds and self._cell is None:
                return None
        return None


def _outcome(answer: ServerMessage | None, said: RunnerMessage) -> str:
    if isinstance(answer, wire.CompleteAck) and isinstance(said, Complete):
        return said.status.lower() if answer.accepted else "not accepted"
    return "stale"


def _why(name: str, last: Exit) -> str:
    if last.is_timed_out:
        return f"{name}: took too long and was stopped after {last.seconds:.1f} s"
    if last.signal is not None:
        return f"{name}: killed by signal {last.signal}"
    return f"{name}: exit code {last.exit_code}"


def _inside(workspace: Path, workdir: str) -> Path:
    """The folder in which a step runs; never one outside."""
    found = (workspace / workdir).resolve()
    if not found.is_relative_to(workspace.resolve()):
        raise Refused("bad_spec", f"workdir {workdir!r} leads outside of the workspace; name a folder inside")
    if not found.is_dir():
        raise Refused("bad_spec", f"workdir {workdir!r} does not exist in the workspace")
    return found
