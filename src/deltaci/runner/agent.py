"""The runner itself: asks for work, as much as it has slots for, and keeps everything it was given until its end."""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from deltaci.core.errors import Refused
from deltaci.runner.client import Client, Unreachable
from deltaci.runner.job import Job
from deltaci.runner.keeper import Lost, NewToken, Order, Ready, decode_news
from deltaci.runner.places import Places
from deltaci.wire import messages as wire
from deltaci.wire.messages import LeaseGranted, Registered

WAIT_SECONDS: Final = 20.0
RETRY_SECONDS: Final = 1.0
STOP_SECONDS: Final = 15.0  # For the jobs of a runner that lost its keeper.
THREADS: Final = 8  # For calls that wait, beside those of the jobs.
THREADS_PER_JOB: Final = 3  # One sends the log, one says things, one stops it: none may wait for another.

LOGGER: Final = logging.getLogger(__name__)


class KeeperGone(Exception):
    """Without its keeper a runner cannot prove its leases."""


class Agent:
    """One runner process with some slots."""

    def __init__(
        self, url: str, credential: Registered, *, labels: Sequence[str], slots: int, folder: Path, once: bool = False
    ) -> None:
        self._url = url
        self._client = Client(url, credential.credential)
        self._asking = Client(url, credential.credential)  # A line of its own, on which it waits.
        self._credential = credential
        self._renew_at = time.monotonic() + credential.expires_in_seconds / 2
        self._labels = list(labels)
        self._slots = slots
        self._folder = folder
        self._once = once
        self._jobs: dict[str, Job] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_stopping = asyncio.Event()
        self._has_room = asyncio.Event()
        self._is_kept = asyncio.Event()
        self._places: Places | None = None
        self._keeper: asyncio.subprocess.Process | None = None
        self.finished = 0

    def stop(self) -> None:
        """Take nothing new; finish what runs."""
        self._is_stopping.set()
        self._has_room.set()
        self._is_kept.set()

    async def run(self) -> None:
        """Work until stopped."""
        offered = f", labels {', '.join(self._labels)}" if self._labels else ""
        LOGGER.info(
            "runner %s: waits for work at %s, %d at a time%s",
            self._credential.runner_id,
            self._url,
            self._slots,
            offered,
        )
        asyncio.get_running_loop().set_default_executor(
            ThreadPoolExecutor(THREADS + THREADS_PER_JOB * self._slots, "calls")
        )
        self._places = Places(self._folder)
        self._keeper = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "deltaci.runner.keeper",
            self._url,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for the runner; the keeper leaves when the runner has.
        )
        self._tell(NewToken(token=self._client.token))
        hearing = asyncio.create_task(self._hear())
        renewing = asyncio.create_task(self._renew())
        asking = asyncio.create_task(self._ask())
        try:
            await asyncio.wait({hearing, asking}, return_when=asyncio.FIRST_COMPLETED)
            while asking.done() and self._tasks and not hearing.done():
                await asyncio.wait({hearing, *self._tasks}, return_when=asyncio.FIRST_COMPLETED)
            if hearing.done():
                await self._stop_jobs()
                raise KeeperGone("the lease keeper ended; the jobs of this runner were stopped")
            await asking
        finally:
            self._asking.abort()  # A thread that still waits for work would be given some.
            for task in (hearing, renewing, asking, *self._tasks):
                task.cancel()
            await asyncio.gather(hearing, renewing, asking, *self._tasks, return_exceptions=True)
            await self._places.close()
            if self._keeper.stdin is not None:
                self._keeper.stdin.close()
            await self._keeper.wait()

    async def _stop_jobs(self) -> None:
        """Nobody proves their leases any more: they end now, and what they said is sent."""
        self.stop()
        for lease_id, job in self._jobs.items():
            job.hear(Lost(lease_id=lease_id, reason="KEEPER_GONE", left=[]))
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=STOP_SECONDS)

    def _tell(self, order: Order) -> None:
        if self._keeper is not None and self._keeper.stdin is not None:
            self._keeper.stdin.write(msgspec.json.encode(order) + b"\n")

    async def _hear(self) -> None:
        """What the keeper says, until it is gone."""
        assert self._keeper is not None
        assert self._keeper.stdout is not None
        while line := await self._keeper.stdout.readline():
            news = decode_news(line)
            if isinstance(news, Ready):
                self._is_kept.set()
            job = self._jobs.get(news.lease_id)
            if job is not None:
                job.hear(news)

    async def _renew(self) -> None:
        """Have a fresh credential long before the old one is over."""
        while True:
            await asyncio.sleep(max(0.0, self._renew_at - time.monotonic()))
            try:
                fresh = await asyncio.to_thread(self._client.renew)
            except (Unreachable, Refused) as error:
                LOGGER.warning("the credential cannot be renewed: %s", error)
                self._renew_at = time.monotonic() + RETRY_SECONDS
                continue
            self._client.token = self._asking.token = fresh.credential
            self._tell(NewToken(token=fresh.credential))
            self._renew_at = time.monotonic() + fresh.expires_in_seconds / 2

    async def _ask(self) -> None:
        """Ask for as much as there is room for, again and again; but not before somebody keeps what is given."""
        await self._is_kept.wait()
        while not self._is_stopping.is_set():
            free = self._slots - len(self._tasks)
            if free <= 0:
                self._has_room.clear()
                await self._has_room.wait()
                continue
            asked = wire.Lease(
                runner_id=self._credential.runner_id,
                capabilities=self._labels,
                slots=1 if self._once else free,
                wait_seconds=WAIT_SECONDS,
            )
            asking = asyncio.create_task(asyncio.to_thread(self._asking.lease, asked))
            stopping = asyncio.create_task(self._is_stopping.wait())
            await asyncio.wait({asking, stopping}, return_when=asyncio.FIRST_COMPLETED)
            stopping.cancel()
            if not asking.done():
                # What it may still be given is never acknowledged, and goes back to others.
                self._asking.abort()
                await asyncio.gather(asking, return_exceptions=True)
                return
            try:
                granted = asking.result()
            except Unreachable as error:
                LOGGER.warning("%s; trying again", error)
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._is_stopping.wait(), RETRY_SECONDS)
                continue
            for each in granted:
                task = asyncio.create_task(self._work(each))
                self._tasks.add(task)
                task.add_done_callback(self._ended)
            if granted and self._once:
                return

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._has_room.set()

    async def _work(self, granted: LeaseGranted) -> None:
        assert self._places is not None
        job = Job(self._client, self._credential.runner_id, granted, self._places)
        self._jobs[granted.lease_id] = job
        started = time.monotonic()
        try:
            outcome = await job.run(self._tell)
            self.finished += 1
            LOGGER.info("job %s: %s in %.2f s", granted.job_id, outcome, time.monotonic() - started)
        except Exception:
            LOGGER.exception("job %s: an error of ours; its lease will run out", granted.job_id)
        finally:
            self._jobs.pop(granted.lease_id, None)
