"""A server and a runner in this process, for as long as somebody waits for a run: the same parts as everywhere."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final

from deltaci.app import KEY_FILE, HttpListener, Server, registration_token
from deltaci.core import run, worker
from deltaci.core.decide import StartRun
from deltaci.core.errors import Refused
from deltaci.core.events import WORKER
from deltaci.core.job import Job, JobSpec
from deltaci.core.listing import RUNS
from deltaci.core.run import Origin, Run
from deltaci.engine import feed
from deltaci.engine.event_loop import cancel_and_wait
from deltaci.pipeline.planning.plan import Plan
from deltaci.runner.agent import Agent
from deltaci.runner.registration import CREDENTIAL_FILE, REQUEST_FILE, CredentialProvider
from deltaci.runner.runtime import Runtime
from deltaci.runner.sandbox import Executors
from deltaci.runner.workspace.git import KNOWN_PROTOCOLS
from deltaci.server.auth.credentials import server_key
from deltaci.server.secrets import Secrets
from deltaci.storage.port import ListQuery, Store

TENANT: Final = "default"
TOKEN_SECONDS: Final = 60
STOP_SECONDS: Final = 20.0
MAX_LEFT_OVER: Final = 100
PERSON: Final = "user:you"


class Here(Runtime):
    """This machine, for its own user: jobs that ask for no walls get none, as if their commands were typed here."""

    def executors(self) -> Executors:
        """Plain processes first."""
        return Executors(defaults=("process",))

    def git_protocols(self) -> tuple[str, ...]:
        """Also from a folder: the sources are this machine's own."""
        return KNOWN_PROTOCOLS


class Engine:
    """What runs pipelines here. Its folder keeps the runs, so that a later one can go on where one failed."""

    def __init__(self, service: Server, folder: Path) -> None:
        self.service = service
        self.folder = folder
        self.secrets = Secrets(service.blobs, server_key(folder / KEY_FILE))

    @property
    def store(self) -> Store:
        """Where all is kept."""
        return self.service.store

    async def start(self, plan: Plan, origin: Origin, *, rerun_of: str = "") -> str:
        """Start a run of this plan, under the first name that is free. Returns its id."""
        number = 1 + await self.store.count(TENANT, RUNS, 1_000_000)
        while await self.store.find(f"run-{number}") is not None:
            number += 1
        id = f"run-{number}"
        record = Run(
            id=id,
            run_id=id,
            tenant=TENANT,
            started_by="you",
            origin=origin,
            rerun_of=rerun_of,
            is_fail_fast=plan.is_fail_fast,
            timeout_seconds=plan.timeout_seconds,
        )
        specs: tuple[JobSpec, ...] = tuple(each.spec for each in plan.jobs)
        await self.service.engine.do(StartRun(id=id, record=record, jobs=specs, plan_hash=plan.hash, actor=PERSON))
        return id

    async def cancel(self, run_id: str, reason: str) -> None:
        """Stop a run and everything of it."""
        with suppress(Refused):  # It is over by now.
            await self.service.engine.do(run.Cancel(id=run_id, reason=reason, actor=PERSON))

    async def jobs(self, run_id: str, names: Sequence[str]) -> list[Job]:
        """The jobs of a run."""
        found = await self.store.find_all([f"{run_id}/{name}" for name in names])
        return [each for each in found if isinstance(each, Job)]


@asynccontextmanager
async def engine(folder: Path, store: Store, *, labels: Sequence[str], slots: int) -> AsyncIterator[Engine]:
    """Everything that a run needs, until the block ends. One at a time in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Refused(
                "wrong_state", f"another run is under way here ({folder}); wait for its end, or stop it"
            ) from None
        _log_to(folder / "engine.log")
        async with Server(store, folder, profile="local") as service:
            listener = HttpListener(service, "127.0.0.1", 0)
            serving = asyncio.create_task(listener.serve())
            try:
                made = Engine(service, folder)
                await _end_left_over(made)
                trusting = asyncio.create_task(_trust(service, await store.last_seq()))
                try:
                    async with _runner(folder, listener.url, labels, slots):
                        yield made
                finally:
                    await cancel_and_wait(trusting)
            finally:
                listener.stop()
                await serving


async def _trust(service: Server, since: int) -> None:
    """Whatever fails here, there is nobody who would do better: who is no longer trusted is let go on at once."""
    async for event in feed.follow(service.store, since):
        if event.entity == WORKER and event.trigger == "quarantined":
            with suppress(Refused):
                await service.engine.do(worker.Resume(id=event.entity_id))


@asynccontextmanager
async def _runner(folder: Path, url: str, labels: Sequence[str], slots: int) -> AsyncIterator[None]:
    work = folder / "runner"
    work.mkdir(mode=0o700, exist_ok=True)
    for left in (CREDENTIAL_FILE, REQUEST_FILE):
        (work / left).unlink(missing_ok=True)
    name = f"here-{secrets.token_hex(4)}"
    token = registration_token(folder, name, TENANT, TOKEN_SECONDS)
    entrance = CredentialProvider(url, work, labels=labels, slots=slots, token=token, runtime=Here(url))
    credential = await asyncio.to_thread(entrance.obtain)
    agent = Agent(entrance, credential, labels=labels, slots=slots, folder=work)
    working = asyncio.create_task(agent.run())
    try:
        yield
    finally:
        agent.stop()
        agent.stop()  # Whatever still runs is nobody's any more.
        with suppress(asyncio.CancelledError, TimeoutError):
            await asyncio.wait_for(working, STOP_SECONDS)


async def _end_left_over(made: Engine) -> None:
    """Runs of a command that was killed: nobody waits for them."""
    page = await made.store.page(ListQuery(tenant=TENANT, lists=[RUNS], limit=MAX_LEFT_OVER))
    for record in page.records:
        if isinstance(record, Run) and not run.is_over(record):
            await made.cancel(record.id, "the command that started it ended")


def _log_to(path: Path) -> None:
    """What the parts say of themselves is for a file: the terminal is for the run."""
    root = logging.getLogger()
    for handler in root.handlers[:]:
        root.removeHandler(handler)
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    root.addHandler(handler)
    root.setLevel(logging.INFO)
