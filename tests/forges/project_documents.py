"""Projects and changes in documents, for tests of webhooks and statuses."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

import httpx
import msgspec

from deltaci.forges.projects import AcceptedChange, ForgeProject
from deltaci.pipeline.change import Change
from deltaci.server.webhooks import WebhookApp
from deltaci.storage.port import Conflict, Document, Store
from tests.forges.payloads import NOW, SECRET, WebhookRequest

TENANT: Final = "acme"
PROJECTS: Final = "test-project"
CHANGES: Final = "test-change"


class ProjectDocuments:
    """Stores projects and changes in documents; implements `ForgeProjects` and `ChangeIntake`."""

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

    async def accept(self, tenant: str, project: str, change: Change, delivery: str) -> AcceptedChange:
        """Store the change once for each delivery."""
        name = f"{project}/{delivery}"
        try:
            await self.store.put_documents([Document(CHANGES, tenant, name, 0, 0, msgspec.json.encode(change))])
        except Conflict:
            return AcceptedChange(name, is_new=False)
        return AcceptedChange(name, is_new=True)

    async def changes(self, tenant: str = TENANT) -> list[Change]:
        """Return all changes of a tenant."""
        documents = await self.store.list_documents(CHANGES, tenant)
        return [msgspec.json.decode(document.body, type=Change) for document in documents]


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
    hooks: Any = WebhookApp(store, project_documents, project_documents, clock)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=hooks), base_url="http://here") as http:
        yield WebhookSender(http, project_documents)
