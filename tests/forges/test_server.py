"""A whole server: a signed push comes in by a socket, a run is told to the forge, and the API says how."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import httpx

from deltaci.core import attempt, run
from deltaci.core.decide import Plan
from deltaci.core.reactions import Birth
from deltaci.core.run import Origin, Run
from deltaci.engine import feed
from deltaci.engine.applier import Claim
from deltaci.server.service import Listener, Service
from tests.contract.places import Place, on_loop, saying
from tests.forges.notebook import TENANT, Notebook
from tests.forges.payloads import NEW, Sent, github, github_push
from tests.forges.playing import PlayedForge
from tests.lab import Lease, task

Site = tuple[Service, Notebook, httpx.AsyncClient]


@asynccontextmanager
async def serving(
    place: Place, folder: Path, *allowed: str
) -> AsyncIterator[tuple[Service, Notebook, httpx.AsyncClient]]:
    """A server that listens."""
    folder.mkdir(parents=True, exist_ok=True)
    store = place.store()
    notebook = Notebook(store)
    service = Service(
        store, folder, projects=notebook, intake=notebook, allowed_forges=allowed, public_url="https://ci.example.org/"
    )
    async with service:
        listener = Listener(service, "127.0.0.1", 0)
        task = asyncio.create_task(listener.serve())
        try:
            async with httpx.AsyncClient(base_url=listener.url, trust_env=False) as http:
                yield service, notebook, http
        finally:
            listener.stop()
            await task


async def build(service: Service, commit: str) -> None:
    """What the planner and a runner do with a change."""
    do = service.applier.do
    record = Run(id="r1", run_id="r1", tenant=TENANT, origin=Origin(project="p", commit=commit))
    await do(Birth(id="r1", record=record))
    await do(run.BeginPlanning(id="r1"))
    await do(Plan(id="r1", jobs=(task("test"),), plan_hash="hash"))
    asked = Claim(worker_id="w1", limit=1, tenant=TENANT, labels=(), ttl_seconds=120, accept_seconds=30)
    [claimed] = await service.applier.claim(asked)
    lease = Lease("w1", claimed.lease_id)
    await do(saying(attempt.Start, lease))
    await do(saying(attempt.Complete, lease, is_success=True, exit_code=0))


@on_loop
async def test_a_push_comes_in_and_its_outcome_goes_out(memory: Place, tmp_path: Path) -> None:
    sent = github("push", github_push())
    async with PlayedForge() as forge, serving(memory, tmp_path / "data", forge.host) as (service, notebook, http):
        await notebook.write("p", "github", repository="octo/hello", api_url=forge.url, api_token="hush")

        answers = [await http.post(f"/hooks/{TENANT}/p", content=sent.body, headers=sent.headers) for _ in range(2)]
        altered = Sent(sent.headers, sent.body.replace(b"ada", b"eve"))
        forged = await http.post(f"/hooks/{TENANT}/p", content=altered.body, headers=altered.headers)
        [change] = await notebook.changes()
        await build(service, change.commit)
        await forge.until(lambda: any(each.body["state"] == "success" for each in forge.kept))
        async for page in feed.pages(service.store, 0):
            last = page[-1]
            if last.to == run.REPORTED:
                break

        assert [each.json()["result"] for each in answers] == ["accepted", "duplicate"]
        assert (forged.status_code, forged.json()["result"]) == (401, "refused")
        assert forge.kept[-1].path == f"/repos/octo/hello/statuses/{NEW}"
        assert forge.kept[-1].body == {
            "state": "success",
            "context": "deltaci",
            "description": "succeeded",
            "target_url": "https://ci.example.org/runs/r1",
        }
        assert last.metadata["told"] == "success"


@on_loop
async def test_a_body_that_never_ends_is_hung_up_on(memory: Place, tmp_path: Path) -> None:
    """By its size, whatever it says of it."""

    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b"x" * 1_000_000

    async with serving(memory, tmp_path / "data") as (_, notebook, http):
        await notebook.write("p", "github")
        with suppress(httpx.NetworkError):  # It may be hung up on while it still writes, and cannot read why.
            assert (await http.post(f"/hooks/{TENANT}/p", content=endless())).status_code == 413
        assert not await notebook.changes()


@on_loop
async def test_without_projects_there_are_no_hooks(memory: Place, tmp_path: Path) -> None:
    async with Service(memory.store(), tmp_path) as service:
        transport = httpx.ASGITransport(app=service.app)  # type: ignore[arg-type]
        async with httpx.AsyncClient(transport=transport, base_url="http://here") as http:
            assert (await http.post("/hooks/p")).status_code == 404
