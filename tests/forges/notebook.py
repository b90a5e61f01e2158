"""Projects and changes in documents, for tests of webhooks and statuses."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

import httpx
import msgspec

from deltaci.controllers.change_records import Accepted
from deltaci.forges.projects import ForgeProject
from deltaci.pipeline.change import Change
from deltaci.server.webhooks import Hooks
from deltaci.storage.port import Conflict, Document, Store
from tests.forges.payloads import NOW, SECRET, Sent

TENANT: Final = "acme"
PROJECTS: Final = "test-project"
CHANGES: Final = "test-change"


class Notebook:
    """Knows projects and takes changes."""

    def __init__(self, store: Store) -> None:
        self.store = store

    async def write(self, name: str, forge: str, tenant: str = TENANT, **fields: Any) -> None:
        """A project."""
        told = {"tenant": tenant, "name": name, "forge": forge, "webhook_secret": SECRET, **fields}
        project = msgspec.convert(told, ForgeProject)
        await self.store.put_documents([Document(PROJECTS, tenant, name, 0, 0, msgspec.json.encode(project))])

    async def find(self, tenant: str, project: str) -> ForgeProject | None:
        """As it was written."""
        found = await self.store.find_document(PROJECTS, project, tenant)
        return msgspec.json.decode(found.body, type=ForgeProject) if found is not None else None

    async def accept(self, tenant: str, project: str, change: Change, delivery: str) -> Accepted:
        """One document for each delivery."""
        name = f"{project}/{delivery}"
        try:
            await self.store.put_documents([Document(CHANGES, tenant, name, 0, 0, msgspec.json.encode(change))])
        except Conflict:
            return Accepted(name, is_new=False)
        return Accepted(name, is_new=True)

    async def changes(self, tenant: str = TENANT) -> list[Change]:
        """All of them."""
        found = await self.store.list_documents(CHANGES, tenant)
        return [msgspec.json.decode(each.body, type=Change) for each in found]


class Post:
    """Brings deliveries to the hooks."""

    def __init__(self, http: httpx.AsyncClient, notebook: Notebook) -> None:
        self.http = http
        self.notebook = notebook

    async def send(self, sent: Sent, project: str = "p", tenant: str = TENANT) -> tuple[int, dict[str, Any]]:
        """One delivery; the status and what was answered."""
        headers = [(name.encode(), value.encode("latin-1")) for name, value in sent.headers.items()]
        answer = await self.http.post(f"/hooks/{tenant}/{project}", content=sent.body, headers=headers)
        assert answer.text.count("\n") == 1, "one line"
        return answer.status_code, answer.json()


@asynccontextmanager
async def post_office(store: Store, clock: Callable[[], float] = lambda: NOW) -> AsyncIterator[Post]:
    """The hooks over this store, spoken to as by HTTP."""
    notebook = Notebook(store)
    hooks: Any = Hooks(store, notebook, notebook, clock)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=hooks), base_url="http://here") as http:
        yield Post(http, notebook)
