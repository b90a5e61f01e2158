"""Changes of secrets are events, also when the blob store fails or a server stops between the two writes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import BinaryIO, Final

import pytest

from deltaci.core.errors import Refused
from deltaci.core.events import Event
from deltaci.server.disk import DiskThreads
from deltaci.server.secret_changes import SecretChanges, resource_name
from deltaci.server.secrets import TENANT_WIDE, Secrets, SecretScope
from deltaci.storage.blobs.memory import MemoryBlobStore
from deltaci.storage.blobs.store import BlobStat, BlobStoreUnavailable
from tests.contract.backends import Backend, Server, in_memory, on_loop

TENANT: Final = "acme"
ADA: Final = "user:ada"
SHOP: Final = SecretScope("shop", "rel/*")


class FailingBlobs(MemoryBlobStore):
    """A blob store whose disk is full while `is_full`."""

    is_full = False

    def put(self, key: str, source: BinaryIO | bytes) -> BlobStat:
        if self.is_full:
            raise OSError("the disk is full")
        return super().put(key, source)

    def delete(self, key: str) -> bool:
        if self.is_full:
            raise OSError("the disk is full")
        return super().delete(key)


class Site:
    """The secrets of one server."""

    def __init__(self, server: Server, disk: DiskThreads) -> None:
        self.server = server
        self.blobs = FailingBlobs()
        self.secrets = Secrets(self.blobs, b"k" * 32)
        self.changes = SecretChanges(server.engine, server.store, self.secrets, disk)

    async def set(self, value: str, scope: SecretScope = TENANT_WIDE, actor: str = ADA) -> None:
        await self.changes.set(TENANT, "TOKEN", value, scope, person="ada", actor=actor, at=5)

    async def events(self) -> list[tuple[str, str, str, int, int]]:
        """Return trigger, actor, name, and version before and after of each event, which must be legal."""
        return [
            (event.trigger, event.actor, event.metadata["name"], version(event, "before"), version(event, "after"))
            for event in await self.server.verified()
        ]


def version(event: Event, side: str) -> int:
    return int((event.metadata[side] or {}).get("version", 0))


@asynccontextmanager
async def opened(backend: Backend) -> AsyncIterator[Site]:
    disk = DiskThreads("test")
    async with backend.server() as server:
        yield Site(server, disk)
    disk.close()


@in_memory
@on_loop
async def test_a_refused_secret_leaves_no_event(backend: Backend) -> None:
    """Neither an invalid one nor one that does not exist."""
    async with opened(backend) as here:
        with pytest.raises(Refused, match="at least 4"):
            await here.set("abc")
        with pytest.raises(Refused, match="name the project"):
            await here.set("hunter2", SecretScope("", "main"))
        assert await here.changes.remove(TENANT, "TOKEN", TENANT_WIDE, actor=ADA) is None

        assert await here.events() == []


@in_memory
@on_loop
async def test_each_change_of_a_secret_is_an_event_without_its_value(backend: Backend) -> None:
    """Of exactly the scope that was changed."""
    async with opened(backend) as here:
        await here.set("hunter2", SHOP)
        await here.set("hunter3", SHOP)
        await here.set("hunter4")
        removed = await here.changes.remove(TENANT, "TOKEN", SHOP, actor="user:bob")

        assert removed is not None
        assert await here.events() == [
            ("created", ADA, "TOKEN shop rel/*", 0, 1),
            ("updated", ADA, "TOKEN shop rel/*", 1, 2),
            ("created", ADA, "TOKEN", 0, 1),
            ("deleted", "user:bob", "TOKEN shop rel/*", 2, 0),
        ]
        assert "hunter" not in str(await here.server.log())
        assert here.secrets.decrypt(TENANT, ["TOKEN"]) == {"TOKEN": "hunter4"}


@in_memory
@on_loop
async def test_a_change_that_cannot_be_stored_is_taken_back(backend: Backend) -> None:
    """By the server, not in the person's name. A secret never changes without an event."""
    async with opened(backend) as here:
        here.blobs.is_full = True
        with pytest.raises(BlobStoreUnavailable):
            await here.set("hunter2")
        here.blobs.is_full = False
        await here.set("hunter3")
        here.blobs.is_full = True
        with pytest.raises(BlobStoreUnavailable):
            await here.set("hunter4")
        with pytest.raises(BlobStoreUnavailable):
            await here.changes.remove(TENANT, "TOKEN", TENANT_WIDE, actor=ADA)

        assert [event[:2] + event[3:] for event in await here.events()] == [
            *(("created", ADA, 0, 1), ("deleted", "orchestrator", 1, 0), ("created", ADA, 0, 1)),
            *(("updated", ADA, 1, 2), ("updated", "orchestrator", 2, 1)),
            *(("deleted", ADA, 1, 0), ("created", "orchestrator", 0, 1)),
        ]
        assert here.secrets.decrypt(TENANT, ["TOKEN"]) == {"TOKEN": "hunter3"}


@in_memory
@on_loop
async def test_the_log_follows_the_store_after_a_crash_and_after_an_update(backend: Backend) -> None:
    """A secret of an earlier version has no event yet; one whose value was not stored in time has one too many."""
    async with opened(backend) as here:
        here.secrets.set(TENANT, "TOKEN", "hunter1", by="eve", at=1)
        await here.set("hunter2")
        here.secrets.remove(TENANT, "TOKEN")  # As if a server had stopped before it stored the second one.
        here.secrets.set(TENANT, "TOKEN", "hunter1", by="eve", at=1)
        await here.set("hunter3")

        assert [event[:2] + event[3:] for event in await here.events()] == [
            *(("created", "orchestrator", 0, 1), ("updated", ADA, 1, 2)),
            *(("updated", "orchestrator", 2, 1), ("updated", ADA, 1, 2)),
        ]


def test_no_two_secrets_have_one_name() -> None:
    """The parts of a scope may contain spaces."""
    scopes = [
        *(TENANT_WIDE, SecretScope("a"), SecretScope("a", "b"), SecretScope("a b"), SecretScope("a%20b")),
        *(SecretScope("a", "b c"), SecretScope("a b", "c")),
    ]

    assert len({resource_name("A", scope) for scope in scopes}) == len(scopes)
