"""Runs a server and a runner in this process, from the same parts as everywhere, until the local runs have ended."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import secrets
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final

from deltaci.app import KEY_FILE, HttpListener, Server, registration_token
from deltaci.core import run, worker
from deltaci.core.decide import StartRun
from deltaci.core.errors import Refused
from deltaci.core.events import WORKER, Event
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
from deltaci.runner.workspace.source_policy import KNOWN_PROTOCOLS
from deltaci.server.auth.credentials import load_server_key
from deltaci.server.secrets import Secrets
from deltaci.storage.port import ListQuery, Store

TENANT: Final = "default"
TOKEN_SECONDS: Final = 60
STOP_SECONDS: Final = 20.0
MAX_ABANDONED_RUNS: Final = 100
LOCAL_USER: Final = "user:you"


class LocalRuntime(Runtime):
    """The runtime of the local runner: jobs that request no sandbox get none, as if their commands were typed here."""

    def executors(self) -> Executors:
        """Return the executors, with plain processes as the default."""
        return Executors(defaults=("process",))

    def git_protocols(self) -> tuple[str, ...]:
        """Allow all protocols, also local folders: the sources are this machine's own."""
        return KNOWN_PROTOCOLS


class LocalEngine:
    """The local server. Its folder keeps the runs, so that a later one can continue where one failed."""

    def __init__(self, server: Server, folder: Path) -> None:
        self.server = server
        self.folder = folder
        self.secrets = Secrets(server.blobs, load_server_key(folder / KEY_FILE))

    @property
    def store(self) -> Store:
        return self.server.store

    async def start(self, plan: Plan, origin: Origin, *, rerun_of: str = "") -> str:
        """Start a run of this plan under the next free `run-N`. Returns its id."""
        run_number = 1 + await self.store.count(TENANT, RUNS, 1_000_000)
        while await self.store.find(f"run-{run_number}") is not None:
            run_number += 1
        run_id = f"run-{run_number}"
        run_record = Run(
            id=run_id,
            run_id=run_id,
            tenant=TENANT,
            started_by="you",
            origin=origin,
            rerun_of=rerun_of,
            is_fail_fast=plan.is_fail_fast,
            timeout_seconds=plan.timeout_seconds,
            optional_wait_seconds=plan.optional_wait_seconds,
        )
        job_specs: tuple[JobSpec, ...] = tuple(job.spec for job in plan.jobs)
        await self.server.engine.do(
            StartRun(id=run_id, record=run_record, jobs=job_specs, plan_hash=plan.hash, actor=LOCAL_USER)
        )
        return run_id

    async def cancel(self, run_id: str, reason: str) -> None:
        """Cancel a run; does nothing if it has ended."""
        with suppress(Refused):  # It has ended.
            await self.server.engine.do(run.Cancel(id=run_id, reason=reason, actor=LOCAL_USER))

    async def events(self, run_id: str) -> list[Event]:
        """Return all events of a run."""
        return await feed.read(self.store, 0, sys.maxsize, tenant=TENANT, run_id=run_id)

    async def jobs(self, run_id: str, job_names: Sequence[str]) -> list[Job]:
        """Return the run's jobs with these names, as far as they exist."""
        records = await self.store.find_all([f"{run_id}/{name}" for name in job_names])
        return [record for record in records if isinstance(record, Job)]


@asynccontextmanager
async def open_engine(folder: Path, store: Store, *, labels: Sequence[str], slots: int) -> AsyncIterator[LocalEngine]:
    """Run a server and a runner until the block ends. Raises `Refused` if the folder is in use by another run."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Refused(
                "wrong_state", f"another run is active here ({folder}); wait for its end, or stop it"
            ) from None
        _log_to(folder / "engine.log")
        async with Server(store, folder, profile="local") as server:
            listener = HttpListener(server, "127.0.0.1", 0)
            listen_task = asyncio.create_task(listener.serve())
            try:
                local_engine = LocalEngine(server, folder)
                await _cancel_abandoned_runs(local_engine)
                resume_task = asyncio.create_task(_resume_quarantined(server, await store.last_seq()))
                try:
                    async with _runner(folder, listener.url, labels, slots):
                        yield local_engine
                finally:
                    await cancel_and_wait(resume_task)
            finally:
                listener.stop()
                await listen_task


async def _resume_quarantined(server: Server, since: int) -> None:
    """Resume the runner whenever it is quarantined: there is no other runner that could do better."""
    async for event in feed.follow(server.store, since):
        if event.entity == WORKER and event.trigger == "quarantined":
            with suppress(Refused):
                await server.engine.do(worker.Resume(id=event.entity_id))


@asynccontextmanager
async def _runner(folder: Path, server_url: str, labels: Sequence[str], slots: int) -> AsyncIterator[None]:
    """Run a newly registered runner in this process while the context is open."""
    runner_folder = folder / "runner"
    runner_folder.mkdir(mode=0o700, exist_ok=True)
    for file_name in (CREDENTIAL_FILE, REQUEST_FILE):
        (runner_folder / file_name).unlink(missing_ok=True)
    runner_name = f"here-{secrets.token_hex(4)}"
    token = registration_token(folder, runner_name, TENANT, TOKEN_SECONDS)
    credential_provider = CredentialProvider(
        server_url, runner_folder, labels=labels, slots=slots, token=token, runtime=LocalRuntime(server_url)
    )
    credential = await asyncio.to_thread(credential_provider.obtain)
    agent = Agent(credential_provider, credential, labels=labels, slots=slots, folder=runner_folder)
    agent_task = asyncio.create_task(agent.run())
    try:
        yield
    finally:
        agent.stop()
        agent.stop()  # The second call ends running jobs at once: nobody waits for them.
        with suppress(asyncio.CancelledError, TimeoutError):
            await asyncio.wait_for(agent_task, STOP_SECONDS)


async def _cancel_abandoned_runs(local_engine: LocalEngine) -> None:
    """Cancel the runs of a command that was killed: nobody waits for them."""
    page = await local_engine.store.page(ListQuery(tenant=TENANT, lists=[RUNS], limit=MAX_ABANDONED_RUNS))
    for record in page.records:
        if isinstance(record, Run) and not run.is_over(record):
            await local_engine.cancel(record.id, "the command that started it ended")


def _log_to(path: Path) -> None:
    """Log to this file only: the terminal is for the run."""
    root_logger = logging.getLogger()
    for handler in root_logger.handlers[:]:
        root_logger.removeHandler(handler)
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    root_logger.addHandler(handler)
    root_logger.setLevel(logging.INFO)
