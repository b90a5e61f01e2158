"""The agent: a runner process that leases up to one job per slot and runs each until it ends.

These tasks run side by side: one requests leases and starts a `JobRunner` for each; one reads the messages of the lease
keeper, a separate process that sends the heartbeats; one renews the credential; one waits for cancels (see
`control_channel`). With NATS, another one receives dispatches, and leases are requested only for the attempts that they
announce.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from deltaci.core.backoff import Backoff
from deltaci.core.errors import Refused, Unreachable
from deltaci.protocol import messages as wire
from deltaci.protocol.messages import CancelRequested, LeaseGranted, Registered
from deltaci.protocol.nats_client import NatsAddress
from deltaci.protocol.responses import LeaseResponse
from deltaci.runner.control_channel import ControlChannel
from deltaci.runner.job import JobRunner
from deltaci.runner.lease.keeper import Cancel, KeeperCommand, Lost, NewToken, Ready
from deltaci.runner.nats_dispatch import DispatchPuller
from deltaci.runner.registration import CredentialProvider
from deltaci.runner.runtime import KeeperConnection
from deltaci.runner.sandbox.cell_pool import CellPool

WAIT_SECONDS: Final = 20.0
SWEEP_SECONDS: Final = 15.0
DISCONNECTED_WAIT_SECONDS: Final = 5.0  # While NATS is disconnected: short, so that its return is used soon.
RETRY_SECONDS: Final = 1.0
MAX_RETRY_SECONDS: Final = 20.0
REFUSED_SECONDS: Final = 30.0
STOP_SECONDS: Final = 15.0  # For stopping the jobs of a runner whose keeper died.
THREADS: Final = 8  # For blocking calls of the agent itself.
THREADS_PER_JOB: Final = 3  # One sends the log, one sends messages, one stops the job: none may wait for another.

LOGGER: Final = logging.getLogger(__name__)


class KeeperDied(Exception):
    """The lease keeper ended: without its heartbeats the runner cannot prove that it still holds its leases."""


class RunnerRemoved(Exception):
    """An operator removed this runner from the fleet: it must not register again by itself."""


class Agent:
    """One runner process with a number of slots."""

    def __init__(
        self,
        credentials: CredentialProvider,
        registration: Registered,
        *,
        labels: Sequence[str],
        slots: int,
        folder: Path,
        once: bool = False,
        drain_seconds: float = 0.0,
        nats: NatsAddress | None = None,
        wait_seconds: float = WAIT_SECONDS,
    ) -> None:
        self._credentials = credentials
        self._runtime = runtime = credentials.runtime
        self._client = runtime.connect(registration.credential)
        # Two more clients for long polls: aborting one of them must not abort other calls.
        self._lease_client = runtime.connect(registration.credential)
        self._control_client = runtime.connect(registration.credential)
        self._wait_seconds = wait_seconds
        self._dispatches: DispatchPuller | None = None
        self._nats = nats
        self._has_backlog = False
        self._registration = registration
        self._renew_at = self._runtime.clock() + registration.expires_in_seconds / 2
        self._labels = list(labels)
        self._slots = slots
        self._folder = folder
        self._once = once
        self._drain_seconds = drain_seconds
        self._job_runners: dict[str, JobRunner] = {}
        self._control_channel = ControlChannel(
            self._control_client, registration.runner_id, self._job_runners.keys, self._cancel_job
        )
        self._lease_ids: set[str] = set()
        self._job_tasks: set[asyncio.Task[None]] = set()
        self._is_stopping = asyncio.Event()
        self._has_free_slot = asyncio.Event()
        self._is_keeper_ready = asyncio.Event()
        self._cell_pool: CellPool | None = None
        self._keeper: KeeperConnection | None = None
        self._renew_lock = asyncio.Lock()
        self._sign_off_task: asyncio.Task[None] | None = None

    def stop(self) -> None:
        """Request no more work and run until all current jobs have ended. Called again: hand the jobs back at once."""
        if self._is_stopping.is_set():
            self._hand_back()
            return
        if self._job_runners:
            LOGGER.info("leaving after %d running jobs; stop again to hand them back", len(self._job_runners))
        self._is_stopping.set()
        self._sign_off_task = asyncio.create_task(self._sign_off())
        self._has_free_slot.set()
        self._is_keeper_ready.set()
        if self._dispatches is not None:
            self._dispatches.wake()
        if self._drain_seconds:
            asyncio.get_running_loop().call_later(self._drain_seconds, self._hand_back)

    def _hand_back(self) -> None:
        """Hand back the leases of all jobs whose runner may still do so."""
        for job_runner in self._job_runners.values():
            job_runner.hand_back()

    async def _sign_off(self) -> None:
        """Tell the server that this runner leaves. If that fails, the server notices when the heartbeats stop."""
        with suppress(Unreachable, Refused):
            await asyncio.to_thread(self._client.leave, self._registration.runner_id)

    async def run(self) -> None:
        """Run jobs until stopped. Raises `KeeperDied` or `RunnerRemoved`."""
        label_suffix = f", labels {', '.join(self._labels)}" if self._labels else ""
        LOGGER.info(
            "runner %s: waiting for work from %s, %d slots%s",
            self._registration.runner_id,
            self._credentials.url,
            self._slots,
            label_suffix,
        )
        asyncio.get_running_loop().set_default_executor(
            ThreadPoolExecutor(THREADS + THREADS_PER_JOB * self._slots, "calls")
        )
        self._cell_pool = CellPool(self._folder, self._runtime.executors())
        self._keeper = await self._runtime.start_keeper()
        self._send_to_keeper(NewToken(token=self._client.token))
        keeper_task = asyncio.create_task(self._read_keeper_messages())
        renew_task = asyncio.create_task(self._renew())
        control_task = asyncio.create_task(self._control_channel.run())
        background_tasks = self._start_dispatches()
        background_tasks.append(asyncio.create_task(self._cell_pool.worktrees.run_cleanup(self._ended_streams)))
        lease_task = asyncio.create_task(self._lease_jobs())
        try:
            await asyncio.wait({keeper_task, lease_task}, return_when=asyncio.FIRST_COMPLETED)
            while lease_task.done() and self._job_tasks and not keeper_task.done():
                await asyncio.wait({keeper_task, *self._job_tasks}, return_when=asyncio.FIRST_COMPLETED)
            if keeper_task.done():
                await self._stop_jobs()
                raise KeeperDied("the lease keeper ended; the jobs of this runner were stopped")
            await lease_task
            await (self._sign_off_task or self._sign_off())
        finally:
            self._lease_client.abort()  # A thread that still waits for work could be granted a lease.
            sign_off_tasks = [self._sign_off_task] if self._sign_off_task is not None else []
            unfinished = (
                keeper_task,
                renew_task,
                control_task,
                *background_tasks,
                lease_task,
                *sign_off_tasks,
                *self._job_tasks,
            )
            for job_task in unfinished:
                job_task.cancel()
            await asyncio.gather(*unfinished, return_exceptions=True)
            await self._cell_pool.close()
            self._client.close_all()
            self._lease_client.close_all()
            self._control_client.close_all()
            await self._keeper.close()

    def _start_dispatches(self) -> list[asyncio.Task[None]]:
        """Start receiving dispatches and cancels from NATS, if it is configured. Return the task, or no task."""
        if self._nats is None or not self._registration.tenant:
            return []
        self._dispatches = DispatchPuller(
            self._nats,
            self._registration.tenant,
            self._registration.runner_id,
            self._labels,
            on_cancel=self._control_channel.deliver,
            on_connection_change=self._control_channel.set_replaced,
        )
        return [asyncio.create_task(self._dispatches.run())]

    async def _stop_jobs(self) -> None:
        """Stop all jobs because nothing proves their leases any more, and give them time to send their logs."""
        self._is_stopping.set()
        for lease_id, job_runner in self._job_runners.items():
            job_runner.on_keeper_message(Lost(lease_id=lease_id, reason="KEEPER_GONE"))
        if self._job_tasks:
            await asyncio.wait(self._job_tasks, timeout=STOP_SECONDS)

    def _send_to_keeper(self, command: KeeperCommand) -> None:
        if self._keeper is not None:
            self._keeper.send(command)

    async def _read_keeper_messages(self) -> None:
        """Pass the keeper's messages on to their jobs until the keeper ends."""
        assert self._keeper is not None
        while (message := await self._keeper.receive()) is not None:
            if isinstance(message, Ready):
                self._is_keeper_ready.set()
            job_runner = self._job_runners.get(message.lease_id)
            if job_runner is not None:
                job_runner.on_keeper_message(message)

    def _cancel_job(self, request: CancelRequested) -> None:
        """Cancel a job as if the keeper had received the cancel in a heartbeat response, which repeats it later."""
        cancel_message = Cancel(
            lease_id=request.lease_id, deadline_seconds=request.deadline_seconds, reason=request.reason
        )
        self._job_runners[request.lease_id].on_keeper_message(cancel_message)

    async def _renew(self) -> None:
        """Renew the credential whenever half of its lifetime has passed."""
        backoff = Backoff(RETRY_SECONDS, MAX_RETRY_SECONDS)
        while True:
            await asyncio.sleep(max(0.0, self._renew_at - self._runtime.clock()))
            try:
                await self._refresh()
                backoff.reset()
            except (Unreachable, Refused) as error:
                LOGGER.warning("cannot renew the credential: %s", error)
                delay_seconds = backoff.next(random.random()) if isinstance(error, Unreachable) else REFUSED_SECONDS
                self._renew_at = self._runtime.clock() + delay_seconds

    async def _refresh(self) -> None:
        """Renew the credential and use it from now on.

        If the server assigned a new runner id, continue under that id.
        """
        async with self._renew_lock:
            new_registration = await asyncio.to_thread(self._credentials.renew)
        if new_registration.runner_id != self._registration.runner_id:
            LOGGER.info("the server had declared this runner lost; continuing as %s", new_registration.runner_id)
            self._control_channel.runner_id = new_registration.runner_id
        is_new, self._registration = new_registration.runner_id != self._registration.runner_id, new_registration
        if is_new and self._is_stopping.is_set():
            self._sign_off_task = asyncio.create_task(self._sign_off())  # The new incarnation must be signed off, too.
        self._client.token = self._lease_client.token = self._control_client.token = new_registration.credential
        self._send_to_keeper(NewToken(token=new_registration.credential))
        self._renew_at = self._runtime.clock() + new_registration.expires_in_seconds / 2

    async def _lease_jobs(self) -> None:
        """Request leases for all free slots and start their jobs, until stopped. Starts when the keeper is ready."""
        await self._is_keeper_ready.wait()
        if self._dispatches is not None:
            await self._dispatches.wait_until_connected(RETRY_SECONDS)
        backoff = Backoff(RETRY_SECONDS, MAX_RETRY_SECONDS)
        while not self._is_stopping.is_set():
            free_slots = self._slots - len(self._job_tasks)
            if free_slots <= 0:
                self._has_free_slot.clear()
                await self._has_free_slot.wait()
                continue
            free_slots = 1 if self._once else free_slots
            is_connected = self._dispatches is not None and self._dispatches.is_connected
            dispatches = await self._take_dispatches(free_slots)
            lease_request = wire.LeaseRequest(
                runner_id=self._registration.runner_id,
                capabilities=self._labels,
                slots=free_slots,
                wait_seconds=self._lease_wait_seconds(is_connected),
                attempts=list(dispatches),
            )
            request_task = await self._request_leases(lease_request)
            if not request_task.done():
                await asyncio.gather(request_task, return_exceptions=True)
                await self._settle(dispatches, ())
                return
            try:
                response = await self._read_response(request_task)
            except Unreachable as error:
                LOGGER.warning("%s; retrying", error)
                await self._settle(dispatches, ())
                with suppress(TimeoutError):
                    async with asyncio.timeout(backoff.next(random.random())):
                        await self._is_stopping.wait()
                continue
            backoff.reset()
            leases = response.leases
            await self._settle(dispatches, response.unclaimable)
            if self._is_stopping.is_set():
                await self._hand_back_unstarted(leases)
                return
            self._has_backlog = bool(leases) and not dispatches
            for granted_lease in leases:
                if granted_lease.lease_id in self._lease_ids:
                    continue  # The same lease, delivered twice.
                self._lease_ids.add(granted_lease.lease_id)
                job_task = asyncio.create_task(self._run_job(granted_lease))
                self._job_tasks.add(job_task)
                job_task.add_done_callback(self._on_job_done)
            if leases and self._once:
                return

    def _lease_wait_seconds(self, is_connected: bool) -> float:
        """Return how long the server may hold a request for leases; not at all while dispatches announce the work."""
        if is_connected:
            return 0.0
        return DISCONNECTED_WAIT_SECONDS if self._dispatches else self._wait_seconds

    async def _request_leases(self, request: wire.LeaseRequest) -> asyncio.Task[LeaseResponse]:
        """Request leases. The returned task is done unless the agent was stopped, which aborts a long poll."""
        request_task = asyncio.create_task(asyncio.to_thread(self._lease_client.request_leases, request))
        stop_task = asyncio.create_task(self._is_stopping.wait())
        try:
            await asyncio.wait({request_task, stop_task}, return_when=asyncio.FIRST_COMPLETED)
            if not request_task.done() and request.wait_seconds:
                # A lease that is granted nevertheless is never acknowledged, so the job goes to another runner.
                self._lease_client.abort()
            else:
                await asyncio.wait({request_task})  # Without a long poll the response comes soon.
        except asyncio.CancelledError:
            request_task.cancel()  # Its result is not used.
            raise
        finally:
            stop_task.cancel()
        return request_task

    async def _hand_back_unstarted(self, leases: Sequence[LeaseGranted]) -> None:
        """Hand back leases that arrived after `stop`. Where that fails, the job is requeued when its lease ends."""
        for granted_lease in leases:
            if granted_lease.lease_id not in self._lease_ids:
                with suppress(Unreachable, Refused):
                    await asyncio.to_thread(self._client.hand_back, granted_lease.lease_id)

    async def _take_dispatches(self, max_count: int) -> dict[str, Any]:
        """Wait for dispatches and return them by attempt id. If the result is empty, request leases of any attempts.

        It is empty without NATS, if the previous request without dispatches was granted leases, and after about
        `SWEEP_SECONDS`, because a dispatch may get lost.
        """
        if self._dispatches is None or self._has_backlog:
            return {}
        return await self._dispatches.take(max_count, SWEEP_SECONDS * random.uniform(0.8, 1.2))

    async def _settle(self, dispatch_by_attempt: dict[str, Any], unclaimable: Collection[str]) -> None:
        """Settle dispatches if this runner uses NATS; see `DispatchPuller.settle`."""
        if self._dispatches is not None:
            await self._dispatches.settle(dispatch_by_attempt, unclaimable)

    async def _read_response(self, request_task: asyncio.Task[LeaseResponse]) -> LeaseResponse:
        """Return the response to a request for leases; an empty one if the credential had to be renewed first.

        After the machine slept, the credential may have expired, or the server may have declared the runner lost: then
        it registers anew. Raises `RunnerRemoved` if an operator removed it from the fleet.
        """
        try:
            return request_task.result()
        except Refused as refused:
            if refused.code not in ("expired_credential", "shut_down"):
                raise
            try:
                await self._refresh()
            except Refused as renewal_refused:
                if refused.code == "shut_down":
                    message = f"this runner was removed from the fleet: {renewal_refused.message}"
                    raise RunnerRemoved(message) from renewal_refused
                raise
            return LeaseResponse([])

    def _on_job_done(self, job_task: asyncio.Task[None]) -> None:
        self._job_tasks.discard(job_task)
        self._has_free_slot.set()

    async def _ended_streams(self, workstream_ids: list[str]) -> list[str]:
        return await asyncio.to_thread(self._client.ended_streams, workstream_ids)

    async def _run_job(self, granted_lease: LeaseGranted) -> None:
        assert self._cell_pool is not None
        job_runner = JobRunner(
            self._client, self._registration.runner_id, granted_lease, self._cell_pool, self._runtime
        )
        self._job_runners[granted_lease.lease_id] = job_runner
        self._control_channel.leases_changed()
        started_at = self._runtime.clock()
        try:
            outcome = await job_runner.run(self._send_to_keeper)
            LOGGER.info("job %s: %s in %.2f s", granted_lease.job_id, outcome, self._runtime.clock() - started_at)
        except Exception:
            LOGGER.exception("job %s: internal error; its lease will expire", granted_lease.job_id)
        finally:
            self._job_runners.pop(granted_lease.lease_id, None)
            self._control_channel.leases_changed()
            self._lease_ids.discard(granted_lease.lease_id)
