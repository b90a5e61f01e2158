"""A running server that may clone local folders, and a project on it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import httpx

from deltaci.app import HttpListener, Server
from deltaci.controllers.repositories.poller import push
from deltaci.forges.projects import AcceptedChange, ChangeSource
from deltaci.git.url_policy import UrlPolicy
from deltaci.pipeline.change import Change
from tests.contract.backends import Backend, legal
from tests.server.rest.site import TENANT, WAIT_SECONDS, ApiSite, Caller
from tests.support.plain_http import NO_TLS

LOCAL: Final = UrlPolicy(frozenset({"file"}))
PROJECT: Final = "shop"


class RepositorySite(ApiSite):
    """A running server, with shortcuts for projects and changes."""

    async def project(self, url: str, caller: Caller | None = None, **fields: Any) -> Caller:
        """Create or update the project; return the caller."""
        caller = caller or self.operator()
        reply = await caller.ask("PUT", f"/projects/{PROJECT}", {"url": url, "default_branch": "main", **fields})
        assert reply.status == 200, reply
        return caller

    async def pushed(self, commit: str, before: str = "", branch: str = "main", delivery: str = "") -> AcceptedChange:
        """Report a push."""
        return await self.happened(push(f"refs/heads/{branch}", before, commit), delivery or f"{branch} {commit}")

    async def happened(self, change: Change, delivery: str, source: ChangeSource = "push") -> AcceptedChange:
        """Report a change and wait until it is planned."""
        changes = self.service.control_plane.repositories.changes
        accepted = await changes.accept(TENANT, PROJECT, change, delivery, source=source)
        await self.settled()
        return accepted

    async def settled(self) -> None:
        """Wait until everything that can be done now is done."""
        async with asyncio.timeout(WAIT_SECONDS):
            await self.service.control_plane.repositories.settled()

    async def change(self, id: str, caller: Caller | None = None) -> Any:
        """Return a change as the API shows it."""
        reply = await (caller or self.operator()).get(f"/changes/{id}")
        assert reply.status == 200, reply
        return reply.body

    async def runs(self) -> list[Any]:
        """Return all runs, newest first."""
        return list((await self.operator().get("/runs?limit=200")).body["runs"])


@asynccontextmanager
async def opened(backend: Backend, folder: Path, url_policy: UrlPolicy = LOCAL) -> AsyncIterator[RepositorySite]:
    """Run a server. When it stops, verify its log."""
    folder.mkdir(parents=True, exist_ok=True)
    async with Server(backend.store(), folder, url_policy=url_policy) as service:
        listener = HttpListener(service, "127.0.0.1", 0)
        serving = asyncio.create_task(listener.serve())
        try:
            async with httpx.AsyncClient(verify=NO_TLS, base_url=listener.url, timeout=WAIT_SECONDS) as http:
                site = RepositorySite(backend, service, listener.url, folder, http)
                yield site
                legal(await site.log())
        finally:
            listener.stop()
            await serving
