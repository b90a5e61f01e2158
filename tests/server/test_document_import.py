"""Databases of earlier versions: what they stored as documents becomes resources when a server starts."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final

import msgspec
import pytest

from deltaci.core.ids import resource_id
from deltaci.core.resource import API_KEY, Resource
from deltaci.server.document_import import IMPORTS, import_documents
from deltaci.storage.port import Document, Store
from tests.contract.backends import Backend, on_loop

KEY: Final = {
    **{"id": "5f3a9c0b1d2e4f60", "tenant": "acme", "person": "ada", "scopes": ["run"], "roles": [], "description": ""},
    **{"digest": "d" * 64, "created_at": 5, "created_by": "root", "expires_at": 0, "revoked_at": 0, "revoked_by": ""},
}
PROJECT: Final = {"name": "shop", "tenant": "acme", "url": "https://example.org/shop.git", "version": 0}
TEMPLATE: Final = {"version": 2, "description": "", "created_at": 3, "created_by": "ada", "is_removed": False}
RULES: Final = {"text": "rules: []", "by": "ada", "at": 7}
QUOTAS: Final = {"running_jobs": 3}


async def write(store: Store, kind: str, tenant: str, name: str, *bodies: dict[str, Any]) -> None:
    """Store a document with one write for each body, as earlier versions did."""
    for version, body in enumerate(bodies):
        await store.put_documents([Document(kind, tenant, name, version, 0, msgspec.json.encode(body))])


async def write_all(store: Store) -> None:
    await write(store, "key", "acme", str(KEY["id"]), KEY)
    await write(store, "project", "", "acme\nshop", PROJECT, PROJECT)
    await write(store, "template", "acme", "build", TEMPLATE)
    await write(store, "template", "acme", "gone", {**TEMPLATE, "is_removed": True})
    for name in ("build 0000000001", "build 0000000002", "gone 0000000007"):
        await write(store, "template-version", "acme", name, {"version": int(name[-10:]), "plan": {"jobs": []}})
    await write(store, "quotas", "acme", "quotas", {"running_jobs": 1}, QUOTAS)
    await write(store, "failure-rules", "acme", "failure-rules", RULES, RULES, RULES)


async def remaining(store: Store) -> list[Document]:
    return [document for kind in IMPORTS for document in await store.first_documents(kind, 100)]


@on_loop
async def test_documents_of_an_earlier_version_become_resources(backend: Backend) -> None:
    """Each with an event of the server, and then there are no documents."""
    async with backend.server() as server:
        await write_all(server.store)
        await import_documents(server.engine, server.store)

        key = await server.store.find_api_key(str(KEY["id"]))
        assert isinstance(key, Resource)
        assert (key.kind, key.tenant, key.sealed) == (API_KEY, "acme", KEY["digest"])
        assert key.body == {name: value for name, value in KEY.items() if name != "digest"}
        quotas = await server.find(resource_id("acme", "quotas", "quotas"), Resource)
        rules = await server.find(resource_id("acme", "failure-rules", "failure-rules"), Resource)
        project = await server.find(resource_id("acme", "project", "shop"), Resource)
        assert project.body == {**PROJECT, "version": 2}
        template = await server.find(resource_id("acme", "template", "build"), Resource)
        assert template.body == {name: value for name, value in TEMPLATE.items() if name != "is_removed"}
        assert await server.store.find(resource_id("acme", "template", "gone")) is None
        for name, version in (("build", 1), ("build", 2), ("gone", 7)):
            id = resource_id("acme", "template-version", f"{name}/{version:010d}")
            assert (await server.find(id, Resource)).body == {"version": version, "plan": {"jobs": []}}
        assert (quotas.body, rules.body) == (QUOTAS, {**RULES, "version": 3})
        events = await server.verified()
        assert {(event.trigger, event.actor) for event in events} == {("imported", "orchestrator")}
        assert str(KEY["digest"]) not in str(events)
        assert not await remaining(server.store)


@on_loop
async def test_servers_that_start_together_import_each_document_once(backend: Backend) -> None:
    """Also a server that stopped before it could delete the documents."""
    async with backend.server() as here, backend.server() as there:
        await write_all(here.store)
        await asyncio.gather(*(import_documents(server.engine, server.store) for server in (here, there)))
        events = await here.verified()
        await write_all(here.store)  # As if they had not been deleted.
        await import_documents(there.engine, there.store)

        assert len(events) == 8
        assert await here.verified() == events
        assert not await remaining(here.store)


@on_loop
async def test_a_document_that_cannot_be_read_is_left_alone(backend: Backend, caplog: pytest.LogCaptureFixture) -> None:
    """The others are imported, and the server starts."""
    async with backend.server() as server:
        await write_all(server.store)
        await server.store.put_documents([Document("quotas", "acme", "a", 0, 0, b"{")])

        with caplog.at_level(logging.ERROR):
            await import_documents(server.engine, server.store)

        assert [document.body for document in await remaining(server.store)] == [b"{"]
        assert "quotas a is left alone" in caplog.text
        assert len(await server.verified()) == 8
