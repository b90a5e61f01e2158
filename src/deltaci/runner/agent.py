"""The runner itself: asks for work, as much as it has slots for, and keeps everything it was given until its end."""

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
from deltaci.core.errors import Refused
from deltaci.protocol import messages as wire
from deltaci.protocol.messages import CancelRequested, LeaseGranted, Registered
from deltaci.protocol.nats_client import NatsAddress
from deltaci.protocol.responses import LeaseResponse
from deltaci.runner.client import Unreachable
from deltaci.runner.control_channel import ControlChannel
from deltaci.runner.job import JobRunner
from deltaci.runner.lease.keeper import Cancel, KeeperCommand, Lost, NewToken, Ready
from deltaci.runner.nats_dispatch import DispatchPuller
from deltaci.runner.registration import CredentialProvider
from deltaci.runner.runtime import KeeperConnection
from deltaci.runner.sandbox.cell_pool import CellPool

WAIT_SECONDS: Final = 20.0
SWEEP_SECONDS: Final = 15.0
UNLINKED_SECONDS: Final = 5.0  # While NATS is away: not so long that its return goes unnoticed.
RETRY_SECONDS: Final = 1.0
MAX_RETRY_SECONDS: Final = 20.0
REFUSED_SECONDS: Final = 30.0
STOP_SECONDS: Final = 15.0  # For the jobs of a runner that lost its keeper.
THREADS: Final = 8  # For calls that wait, beside those of the jobs.
THREADS_PER_JOB: Final = 3  # One sends the log, one says things, one stops it: none may wait for another.

LOGGER: Final = logging.getLogger(__name__)


class KeeperDied(Exception):
    """Without its keeper a runner cannot prove its leases."""


class RunnerRemoved(Exception):
    """Somebody took this runner out of the fleet: it may not come back by itself."""


class Agent:
    """One runner process with some slots."""

    def __init__(
        self,
        entrance: CredentialProvider,
        credential: Registered,
        *,
        labels: Sequence[str],
        slots: int,
        folder: Path,
        once: bool = False,
        drain_seconds: float = 0.0,
        nats: NatsAddress | None = None,
        wait_seconds: float = WAIT_SECONDS,
    ) -> None:
        self._entrance = entrance
        self._runtime = runtime = entrance.runtime
        self._client = runtime.connect(credential.credential)
        self._asking = runtime.connect(credential.credential)  # A line of its own, on which it waits.
        self._listening = runtime.connect(credential.credential)  # And one on which it is told.
        self._wait_seconds = wait_seconds
        self._dispatches: DispatchPuller | None = None
        self._nats = nats
        self._is_behind = False
        self._credential = credential
        self._renew_at = self._runtime.clock() + credential.expires_in_seconds / 2
        self._labels = list(labels)
        self._slots = slots
        self._folder = folder
        self._once = once
        self._drain_seconds = drain_seconds
        self._jobs: dict[str, JobRunner] = {}
        self._ear = ControlChannel(self._listening, credential.runner_id, self._jobs.keys, self._heed)
        self._held: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_stopping = asyncio.Event()
        self._has_room = asyncio.Event()
        self._is_kept = asyncio.Event()
        self._places: CellPool | None = None
        self._keeper: KeeperConnection | None = None
        self._renewing = asyncio.Lock()
        self._leaving: asyncio.Task[None] | None = None

    def stop(self) -> None:
        """Take nothing new; finish what runs, as long as that may take. Asked again: hand it back at once."""
        if self._is_stopping.is_set():
            self._hand_back()
            return
        if self._jobs:
            LOGGER.info("leaving when the %d that run are over; ask again to hand them back", len(self._jobs))
        self._is_stopping.set()
        self._leaving = asyncio.create_task(self._leave())
        self._has_room.set()
        self._is_kept.set()
        if self._dispatches is not None:
            self._dispatches.wake()
        if self._drain_seconds:
            asyncio.get_running_loop().call_later(self._drain_seconds, self._hand_back)

    def _hand_back(self) -> None:
        for job in self._jobs.values():
            job.hand_back()

    async def _leave(self) -> None:
        """Say that it leaves, so that nobody waits for it. Who does not hear of that will miss it."""
        with suppress(Unreachable, Refused):
            await asyncio.to_thread(self._client.leave, self._credential.runner_id)

    async def run(self) -> None:
        """Work until stopped."""
        offered = f", labels {', '.join(self._labels)}" if self._labels else ""
        LOGGER.info(
            "runner %s: waits for work at %s, %d at a time%s",
            self._credential.runner_id,
            self._entrance.url,
            self._slots,
            offered,
        )
        asyncio.get_running_loop().set_default_executor(
            ThreadPoolExecutor(THREADS + THREADS_PER_JOB * self._slots, "calls")
        )
        self._places = CellPool(self._folder, self._runtime.executors())
        self._keeper = await self._runtime.start_keeper()
        self._tell(NewToken(token=self._client.token))
        hearing = asyncio.create_task(self._hear())
        renewing = asyncio.create_task(self._renew())
        listening = asyncio.create_task(self._ear.run())
        linked = self._link()
        linked.append(asyncio.create_task(self._places.worktrees.run_cleanup(self._streams_over)))
        asking = asyncio.create_task(self._ask())
        try:
            await asyncio.wait({hearing, asking}, return_when=asyncio.FIRST_COMPLETED)
            while asking.done() and self._tasks and not hearing.done():
                await asyncio.wait({hearing, *self._tasks}, return_when=asyncio.FIRST_COMPLETED)
            if hearing.done():
                await self._stop_jobs()
                raise KeeperDied("the lease keeper ended; the jobs of this runner were stopped")
            await asking
            await (self._leaving or self._leave())
        finally:
            self._asking.abort()  # A thread that still waits for work would be given some.
            leaving = [self._leaving] if self._leaving is not None else []
            left = (hearing, renewing, listening, *linked, asking, *leaving, *self._tasks)
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)
            await self._places.close()
            self._client.close_all()
            self._asking.close_all()
            self._listening.close_all()
            await self._keeper.close()

    def _link(self) -> list[asyncio.Task[None]]:
        """Have dispatches and cancels from NATS, if there is one."""
        if self._nats is None or not self._credential.tenant:
            return []
        self._dispatches = DispatchPuller(
            self._nats,
            self._credential.tenant,
            self._credential.runner_id,
            self._labels,
            hear=self._ear.tell,
            on_link=self._ear.relieve,
        )
        return [asyncio.create_task(self._dispatches.run())]

    async def _stop_jobs(self) -> None:
        """Nobody proves their leases any more: they end now, and what they said is sent."""
        self._is_stopping.set()
        for lease_id, job in self._jobs.items():
            job.on_keeper_message(Lost(lease_id=lease_id, reason="KEEPER_GONE"))
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=STOP_SECONDS)

    def _tell(self, order: KeeperCommand) -> None:
        if self._keeper is not None:
            self._keeper.send(order)

    async def _hear(self) -> None:
        """What the keeper says, until it is gone."""
        assert self._keeper is not None
        while (news := await self._keeper.receive()) is not None:
            if isinstance(news, Ready):
                self._is_kept.set()
            job = self._jobs.get(news.lease_id)
            if job is not None:
                job.on_keeper_message(news)

    def _heed(self, wanted: CancelRequested) -> None:
        """A cancel that came before the heartbeat's answer, which will say the same."""
        told = Cancel(lease_id=wanted.lease_id, deadline_seconds=wanted.deadline_seconds, reason=wanted.reason)
        self._jobs[wanted.lease_id].on_keeper_message(told)

    async def _renew(self) -> None:
        """Have a fresh credential long before the old one is over."""
        backoff = Backoff(RETRY_SECONDS, MAX_RETRY_SECONDS)
        while True:
            await asyncio.sleep(max(0.0, self._renew_at - self._runtime.clock()))
            try:
                await self._refresh()
                backoff.reset()
            except (Unreachable, Refused) as error:
                LOGGER.warning("the credential cannot be renewed: %s", error)
                again = backoff.next(random.random()) if isinstance(error, Unreachable) else REFUSED_SECONDS
                self._renew_at = self._runtime.clock() + again

    async def _refresh(self) -> None:
        async with self._renewing:
            fresh = await asyncio.to_thread(self._entrance.renew)
        if fresh.runner_id != self._credential.runner_id:
            LOGGER.info("the server had given this runner up; it goes on as %s", fresh.runner_id)
            self._ear.runner_id = fresh.runner_id
        is_new, self._credential = fresh.runner_id != self._credential.runner_id, fresh
        if is_new and self._is_stopping.is_set():
            self._leaving = asyncio.create_task(self._leave())  # Of this life, too.
        self._client.token = self._asking.token = self._listening.token = fresh.credential
        self._tell(NewToken(token=fresh.credential))
        self._renew_at = self._runtime.clock() + fresh.expires_in_seconds / 2

    async def _ask(self) -> None:
        """Ask for as much as there is room for, again and again; but not before somebody keeps what is given."""
        await self._is_kept.wait()
        if self._dispatches is not None:
            await self._dispatches.wait_up(RETRY_SECONDS)
        backoff = Backoff(RETRY_SECONDS, MAX_RETRY_SECONDS)
        while not self._is_stopping.is_set():
            free = self._slots - len(self._tasks)
            if free <= 0:
                self._has_room.clear()
                await self._has_room.wait()
                continue
            free = 1 if self._once else free
            is_linked = self._dispatches is not None and self._dispatches.is_up
            told = await self._told_of(free)
            asked = wire.LeaseRequest(
                runner_id=self._credential.runner_id,
                capabilities=self._labels,
                slots=free,
                wait_seconds=0.0 if is_linked else UNLINKED_SECONDS if self._dispatches else self._wait_seconds,
                attempts=list(told),
            )
            asking = await self._said(asked)
            if not asking.done():
                await asyncio.gather(asking, return_exceptions=True)
                await self._settle(told, ())
                return
            try:
                answer = await self._read_response(asking)
            except Unreachable as error:
                LOGGER.warning("%s; trying again", error)
                await self._settle(told, ())
                with suppress(TimeoutError):
                    async with asyncio.timeout(backoff.next(random.random())):
                        await self._is_stopping.wait()
                continue
            backoff.reset()
            granted = answer.leases
            await self._settle(told, answer.unclaimable)
            if self._is_stopping.is_set():
                await self._return(granted)
                return
            self._is_behind = bool(granted) and not told
            for each in granted:
                if each.lease_id in self._held:
                    continue  # A lease that is delivered twice is one right to run, not two.
                self._held.add(each.lease_id)
                task = asyncio.create_task(self._work(each))
                self._tasks.add(task)
                task.add_done_callback(self._on_job_done)
            if granted and self._once:
                return

    async def _said(self, asked: wire.LeaseRequest) -> asyncio.Task[LeaseResponse]:
        """Ask. The task is done, unless the runner shall leave while it waits for work: then it hung up."""
        asking = asyncio.create_task(asyncio.to_thread(self._asking.request_leases, asked))
        stopping = asyncio.create_task(self._is_stopping.wait())
        try:
            await asyncio.wait({asking, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not asking.done() and asked.wait_seconds:
                # What it may still be given is never acknowledged, and goes back to others when the lease is over.
                self._asking.abort()
            else:
                await asyncio.wait({asking})  # One that does not wait for work is answered soon.
        except asyncio.CancelledError:
            asking.cancel()  # Nobody will look at what comes of it.
            raise
        finally:
            stopping.cancel()
        return asking

    async def _return(self, granted: Sequence[LeaseGranted]) -> None:
        """What was given to one that leaves is another's at once; if that cannot be said, when the lease is over."""
        for each in granted:
            if each.lease_id not in self._held:
                with suppress(Unreachable, Refused):
                    await asyncio.to_thread(self._client.hand_back, each.lease_id)

    async def _told_of(self, most: int) -> dict[str, Any]:
        """Wait for dispatches, if they come. What they may have missed is asked for every now and then."""
        if self._dispatches is None or self._is_behind:
            return {}
        return await self._dispatches.take(most, SWEEP_SECONDS * random.uniform(0.8, 1.2))

    async def _settle(self, told: dict[str, Any], gone: Collection[str]) -> None:
        if self._dispatches is not None:
            await self._dispatches.settle(told, gone)

    async def _read_response(self, asking: asyncio.Task[LeaseResponse]) -> LeaseResponse:
        """What was granted. A machine that slept finds its credential too old, and may be able to get another.

        Or it finds that it was given up meanwhile: then it comes back in a new life, unless somebody removed it.
        """
        try:
            return asking.result()
        except Refused as refused:
            if refused.code not in ("expired_credential", "shut_down"):
                raise
            try:
                await self._refresh()
            except Refused as kept_out:
                if refused.code == "shut_down":
                    raise RunnerRemoved(f"this runner was removed from the fleet: {kept_out.message}") from kept_out
                raise
            return LeaseResponse([])

    def _on_job_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._has_room.set()

    async def _streams_over(self, ids: list[str]) -> list[str]:
        return await asyncio.to_thread(self._client.ended_streams, ids)

    async def _work(self, granted: LeaseGranted) -> None:
        assert self._places is not None
        job = JobRunner(self._client, self._credential.runner_id, granted, self._places, self._runtime)
        self._jobs[granted.lease_id] = job
        self._ear.leases_changed()
        started = self._runtime.clock()
        try:
            outcome = await job.run(self._tell)
            LOGGER.info("job %s: %s in %.2f s", granted.job_id, outcome, self._runtime.clock() - started)
        except Exception:
            LOGGER.exception("job %s: an error of ours; its lease will run out", granted.job_id)
        finally:
            self._jobs.pop(granted.lease_id, None)
            self._ear.leases_changed()
            self._held.discard(granted.lease_id)
