"""A running server that may clone from folders, with a project."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import httpx

from deltaci.app import HttpListener, Server
from deltaci.controllers.change_records import Accepted
from deltaci.controllers.poller import push
from deltaci.git.url_policy import UrlPolicy
from deltaci.pipeline.change import Change
from tests.api.site import TENANT, WAIT_SECONDS, ApiSite, Caller
from tests.contract.places import Place, legal

LOCAL: Final = UrlPolicy(frozenset({"file"}))
PROJECT: Final = "shop"


class RepositorySite(ApiSite):
    """One server that runs, and what cases often do with it."""

    async def project(self, url: str, caller: Caller | None = None, **fields: Any) -> Caller:
        """Tell it of a repository; who did."""
        caller = caller or self.operator()
        reply = await caller.ask("PUT", f"/projects/{PROJECT}", {"url": url, "default_branch": "main", **fields})
        assert reply.status == 200, reply
        return caller

    async def pushed(self, commit: str, before: str = "", branch: str = "main", delivery: str = "") -> Accepted:
        """A push that somebody told of."""
        return await self.happened(push(f"refs/heads/{branch}", before, commit), delivery or f"{branch} {commit}")

    async def happened(self, change: Change, delivery: str) -> Accepted:
        """A change that somebody told of, handled and planned."""
        accepted = await self.service.control_plane.repositories.changes.accept(TENANT, PROJECT, change, delivery)
        await self.settled()
        return accepted

    async def settled(self) -> None:
        """Everything that can be done now is done."""
        async with asyncio.timeout(WAIT_SECONDS):
            await self.service.control_plane.repositories.settled()

    async def change(self, id: str, caller: Caller | None = None) -> Any:
        """What came of a change."""
        reply = await (caller or self.operator()).get(f"/changes/{id}")
        assert reply.status == 200, reply
        return reply.body

    async def runs(self) -> list[Any]:
        """All runs, the newest first."""
        return list((await self.operator().get("/runs?limit=200")).body["runs"])


@asynccontextmanager
async def opened(place: Place, folder: Path, url_policy: UrlPolicy = LOCAL) -> AsyncIterator[RepositorySite]:
    """The server, listening. When it closes its log must be legal."""
    folder.mkdir(parents=True, exist_ok=True)
    async with Server(place.store(), folder, url_policy=url_policy) as service:
        listener = HttpListener(service, "127.0.0.1", 0)
        serving = asyncio.create_task(listener.serve())
        try:
            async with httpx.AsyncClient(base_url=listener.url, timeout=WAIT_SECONDS) as http:
                site = RepositorySite(place, service, listener.url, folder, http)
                yield site
                legal(await site.log())
        finally:
            listener.stop()
            await serving
