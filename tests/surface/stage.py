"""Play scenarios on a running server, over the REST API and the runner protocol, and record what every action changed.

A `Stage` sends the requests of one scenario. After every action it applies the timers that are due. At the end it reads
the transitions of its run in each vocabulary, so that a test can ask which transitions an action caused.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from typer.testing import CliRunner

from deltaci.cli.app import app
from deltaci.cli.commands.events import FORMATS
from deltaci.controllers.journal import FILE
from deltaci.storage.memory import MemoryStore
from tests.contract.backends import MAX_SECONDS, Backend
from tests.server.rest.site import TIME, ApiSite, Caller, ScriptedRunner, opened

T = TypeVar("T")

VIEWS: Final = ("canonical", "orchestration", "steps", "workstreams", "queue")
REPORT: Final = "report"  # The action of the status reporter, which runs by itself when a run is over.
TTL_SECONDS: Final = 120
JOB_SECONDS: Final = 150


class Change(NamedTuple):
    """One transition as `GET /runs/{run}/transitions` shows it."""

    kind: str
    job: str
    source: str | None
    target: str
    trigger: str
    body: dict[str, Any]

    def __str__(self) -> str:
        name = f"{self.kind} {self.job}".strip()
        return f"{name}: {self.source or '-'} → {self.target}"


class History:
    """What a scenario showed: its transitions in each vocabulary by action, responses, and `transitions.jsonl`."""

    def __init__(self) -> None:
        self.ends: dict[str, int] = {}
        self.run_id = ""
        self.final: Any = None
        self.pages: dict[str, list[dict[str, Any]]] = {}
        self.replies: dict[str, Any] = {}
        self.runs: dict[str, Any] = {}
        self.workers: dict[str, dict[str, Any]] = {}
        self.lines: list[dict[str, Any]] = []
        self.exports: dict[str, list[bytes]] = {}

    def _positions(self, action: str) -> tuple[int, int]:
        """Return the positions in the log before and after an action; all of the log for no action."""
        if action in ("", REPORT):
            return 0, 1 << 60
        names = list(self.ends)
        index = names.index(action)
        return self.ends[names[index - 1]] if index else 0, self.ends[action]

    def changes(self, view: str, action: str = "", kind: str = "") -> list[Change]:
        """Return the transitions that an action caused, or all if it is empty, in this vocabulary."""
        first, last = self._positions(action)
        return [
            Change(body["kind"], body["job"], body["from"], body["to"], body["trigger"], body)
            for body in self.pages[view]
            if first < body["seq"] <= last
            and (not kind or body["kind"] == kind)
            and (not action or (body["to"] == "REPORTED") == (action == REPORT))
        ]

    def shown(self, view: str, action: str = "", kind: str = "") -> list[str]:
        """Return the transitions of an action as texts such as `attempt build: LEASED → STARTING`."""
        return [str(change) for change in self.changes(view, action, kind)]

    def exported(self, action: str = "", kind: str = "") -> list[dict[str, Any]]:
        """Return the lines of `transitions.jsonl` that an action caused, of one kind of machine."""
        first, last = self._positions(action)
        return [
            line
            for line in self.lines
            if first < line["metadata"]["seq"] <= last and line["event_type"].startswith(kind)
        ]

    def job(self, action: str, name: str) -> Any:
        """Return a job as the run showed it after an action."""
        return next(job for job in self.runs[action]["jobs"] if job["name"] == name)

    def attempt(self, action: str, name: str) -> Any:
        """Return the latest attempt of a job as the run showed it after an action."""
        return self.job(action, name)["tries"][-1]


class Stage:
    """A running server, a person and a runner; `act` records what an action changed."""

    def __init__(self, site: ApiSite, ada: Caller, runner: ScriptedRunner) -> None:
        self.site = site
        self.ada = ada
        self.runner = runner
        self.history = History()

    # -- actions

    async def act(self, name: str, action: Awaitable[T]) -> T:
        """Await an action, apply what is due, and record the run, the workers and the end of the log."""
        assert name not in self.history.ends, f"two actions have the name {name}"
        response = await action
        while await self.site.service.engine.tick():
            pass
        if not self.history.run_id and isinstance(response, str):
            self.history.run_id = response
        self.history.ends[name] = await self.site.store.last_seq()
        # A runner has a connection, which cannot be stored with the history.
        self.history.replies[name] = response.name if isinstance(response, ScriptedRunner) else response
        self.history.runs[name] = await self.ada.run(self.history.run_id)
        workers = (await self.ada.get("/workers")).body["workers"]
        self.history.workers[name] = {worker["id"]: worker for worker in workers}
        return response

    async def start(self, *jobs: dict[str, Any], **fields: Any) -> str:
        """Start the run."""
        return await self.act("start", self.ada.start(*jobs, **fields))

    async def claim(self, name: str = "claim", by: ScriptedRunner | None = None) -> Any:
        """Claim one job."""
        [lease] = await self.act(name, (by or self.runner).lease())
        return lease

    async def ack(self, lease: Any, name: str = "AckLease", by: ScriptedRunner | None = None) -> Any:
        """Acknowledge a lease."""
        message = (by or self.runner).send(lease, "AckLease", job_id=lease["job_id"], accepted_at=TIME)
        return await self.act(name, message)

    async def beat(self, lease: Any, name: str = "Heartbeat", by: ScriptedRunner | None = None, **fields: Any) -> Any:
        """Send a heartbeat."""
        return await self.act(name, (by or self.runner).send(lease, "Heartbeat", **{"ts": TIME, **fields}))

    async def running(self, name: str = "", by: ScriptedRunner | None = None) -> Any:
        """Claim a job, acknowledge it and send the first heartbeat."""
        lease = await self.claim(f"{name} claim".strip(), by)
        await self.ack(lease, f"{name} AckLease".strip(), by)
        await self.beat(lease, f"{name} Heartbeat".strip(), by)
        return lease

    async def complete(
        self, lease: Any, name: str = "Complete", *, ok: bool = True, by: ScriptedRunner | None = None, **fields: Any
    ) -> Any:
        """Send the result."""
        outcome = {"status": "SUCCEEDED", "exit_code": 0} if ok else {"status": "FAILED", "exit_code": 1}
        return await self.act(name, (by or self.runner).send(lease, "Complete", **{**outcome, **fields}))

    async def cancel_ack(self, lease: Any, name: str = "CancelAck", by: ScriptedRunner | None = None) -> Any:
        """Confirm a cancellation."""
        return await self.act(name, (by or self.runner).send(lease, "CancelAck", final_status="CANCELED", ts=TIME))

    async def cancel(self, name: str = "cancel", job: str = "") -> Any:
        """Cancel the run, or one job."""
        path = f"/runs/{self.history.run_id}" + (f"/jobs/{job}" if job else "")
        return await self.act(name, self.ada.post(f"{path}/cancel"))

    async def decide(self, verb: str, name: str = "", **body: Any) -> Any:
        """Approve or reject."""
        return await self.act(name or verb, self.ada.post(f"/runs/{self.history.run_id}/{verb}", body or None))

    async def wait(self, seconds: float, name: str) -> None:
        """Move the clock."""

        async def move() -> None:
            self.site.backend.after(seconds)

        await self.act(name, move())

    async def reported(self) -> Any:
        """Wait until the outcome is reported, and return the run."""
        return await self.site.until(self.ada, self.history.run_id, "REPORTED")

    # -- the end

    async def _page(self, view: str) -> list[dict[str, Any]]:
        if not self.history.run_id:
            return []
        reply = await self.ada.get(f"/runs/{self.history.run_id}/transitions?view={view}&limit=1000")
        assert reply.status == 200, reply
        return list(reply.body["transitions"])

    async def finish(self) -> None:
        """Read the transitions in each vocabulary and the run, and export the log with the command line."""
        self.history.pages = {view: await self._page(view) for view in VIEWS}
        self.history.final = await self.ada.run(self.history.run_id)
        for name in FORMATS:
            words = ("events", "export", "--server", self.site.url, "--data", str(self.site.folder), "--format", name)
            result = await asyncio.to_thread(CliRunner().invoke, app, words)
            assert result.exit_code == 0, result.output
            self.history.exports[name] = result.stdout_bytes.splitlines()


Scenario = Callable[[Stage], Awaitable[None]]


@asynccontextmanager
async def staged(folder: Path) -> AsyncIterator[Stage]:
    """Open a server over a memory store."""
    backend = Backend("memory", lambda _: store)
    store = MemoryStore(clock=backend.now)
    async with opened(backend, folder) as site:
        ada = await site.key("ada", "run", "approve", "runner", expires_seconds=90 * 86_400)
        yield Stage(site, ada, await site.register_runner("linux"))


def play(scenario: Scenario, folder: Path) -> History:
    """Play a scenario on a server of its own."""

    async def played() -> History:
        async with asyncio.timeout(MAX_SECONDS):
            async with staged(folder) as stage:
                await scenario(stage)
                await stage.finish()
            history = stage.history
            history.lines = [json.loads(line) for line in (folder / FILE).read_bytes().splitlines()]
            return history

    return asyncio.run(played())
