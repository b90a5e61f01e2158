"""Projects in documents, for tests of webhooks and statuses."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

import httpx
import msgspec

from deltaci.controllers.projects import Projects
from deltaci.controllers.repositories.change_records import ChangeRecords
from deltaci.controllers.repositories.renames import RepositoryRenames
from deltaci.engine.engine import Engine
from deltaci.forges.http import ForgeHttpClient
from deltaci.forges.projects import ForgeProject
from deltaci.pipeline.change import Change
from deltaci.server.webhooks import WebhookApp
from deltaci.storage.port import Document, Store
from tests.forges.payloads import NOW, SECRET, WebhookRequest

TENANT: Final = "acme"
PROJECTS: Final = "test-project"


class ProjectDocuments:
    """Stores projects with their secrets in documents; implements `ForgeProjects`."""

    def __init__(self, store: Store) -> None:
        self.store = store

    async def add(self, name: str, forge: str, tenant: str = TENANT, **fields: Any) -> None:
        """Store a project."""
        all_fields = {"tenant": tenant, "name": name, "forge": forge, "webhook_secret": SECRET, **fields}
        project = msgspec.convert(all_fields, ForgeProject)
        await self.store.put_documents([Document(PROJECTS, tenant, name, 0, 0, msgspec.json.encode(project))])

    async def find(self, tenant: str, project: str) -> ForgeProject | None:
        """Return the project, or None if it does not exist."""
        document = await self.store.find_document(PROJECTS, project, tenant)
        return msgspec.json.decode(document.body, type=ForgeProject) if document is not None else None

    async def changes(self, tenant: str = TENANT) -> list[Change]:
        """Return all changes of a tenant."""
        page = await ChangeRecords(self.store).page(tenant, "", 100)
        return [record.change for _, record in page]


class WebhookSender:
    """Sends webhook requests."""

    def __init__(self, http: httpx.AsyncClient, project_documents: ProjectDocuments) -> None:
        self.http = http
        self.project_documents = project_documents

    async def send(self, sent: WebhookRequest, project: str = "p", tenant: str = TENANT) -> tuple[int, dict[str, Any]]:
        """Send one request; return status and body of the response."""
        headers = [(name.encode(), value.encode("latin-1")) for name, value in sent.headers.items()]
        response = await self.http.post(f"/hooks/{tenant}/{project}", content=sent.body, headers=headers)
        assert response.text.count("\n") == 1, "one line"
        return response.status_code, response.json()


@asynccontextmanager
async def webhook_sender(store: Store, clock: Callable[[], float] = lambda: NOW) -> AsyncIterator[WebhookSender]:
    """Open a sender for the webhook endpoint over this store."""
    project_documents = ProjectDocuments(store)
    client = ForgeHttpClient()
    engine = Engine(store)
    await engine.start()
    renames = RepositoryRenames(store, Projects(engine, store), client)
    hooks: Any = WebhookApp(store, project_documents, ChangeRecords(store), renames, clock)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=hooks), base_url="http://here") as http:
        yield WebhookSender(http, project_documents)
    await engine.stop()
    await client.close()
