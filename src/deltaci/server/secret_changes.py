"""Changes of secrets by people: each is an event with the name, scope and version of the secret, never its value.

The value is in the blob store, so that it cannot be written in one transaction with its event. The event comes first: a
secret never changes without one. If the value cannot be stored then, a second event takes the change back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from deltaci.core.events import ORCHESTRATOR
from deltaci.engine.engine import Engine
from deltaci.engine.resources import Resources
from deltaci.server.disk import DiskThreads
from deltaci.server.secrets import SecretMetadata, Secrets, SecretScope
from deltaci.storage.port import Store

KIND: Final = "secret"


def resource_name(name: str, scope: SecretScope) -> str:
    """Return the name of a secret's resource: name, project and branch, separated by spaces.

    Spaces in the project are escaped, so that no two secrets have one name.
    """
    project = scope.project.replace("%", "%25").replace(" ", "%20")
    return f"{name} {project} {scope.branch}".rstrip(" ") if project else name


class SecretChanges:
    """Sets and removes secrets for people."""

    def __init__(self, engine: Engine, store: Store, secrets: Secrets, disk: DiskThreads) -> None:
        self._secrets = secrets
        self._disk = disk
        self._resources = Resources(engine, store, KIND, SecretMetadata)
        self._lock = asyncio.Lock()  # Another request must not find the event of a value that is being stored.

    async def set(
        self, tenant: str, name: str, value: str, scope: SecretScope, *, person: str, actor: str, at: int
    ) -> SecretMetadata:
        """Encrypt and store a secret, and return its metadata. Raises `Refused` if it is invalid."""
        async with self._lock:
            sealed = await self._disk.run(lambda: self._secrets.seal(tenant, name, value, scope, by=person, at=at))
            before, rev = await self._read(tenant, name, scope)
            id = resource_name(name, scope)
            await self._resources.put(tenant, id, sealed.metadata, actor=actor, rev=rev)
            await self._store_value(tenant, id, before, lambda: self._secrets.put(sealed))
        return sealed.metadata

    async def remove(self, tenant: str, name: str, scope: SecretScope, *, actor: str) -> SecretMetadata | None:
        """Remove the secret with exactly this scope. Return its metadata, None if it does not exist."""
        scope.check()
        async with self._lock:
            before, rev = await self._read(tenant, name, scope)
            if before is None:
                return None
            id = resource_name(name, scope)
            await self._resources.delete(tenant, id, actor=actor, rev=rev)
            await self._store_value(tenant, id, before, lambda: self._secrets.remove(tenant, name, scope))
        return before

    async def _read(self, tenant: str, name: str, scope: SecretScope) -> tuple[SecretMetadata | None, int]:
        """Return the metadata of the stored secret, None if there is none, and the `rev` of its resource.

        Record it first if it has no such resource: an earlier version set it, or a server stopped between the two
        writes.
        """
        stored = await self._disk.run(lambda: self._secrets.find(tenant, name, scope))
        recorded, rev = await self._resources.read(tenant, resource_name(name, scope))
        if stored == recorded:
            return stored, rev
        await self._restore(tenant, resource_name(name, scope), stored, rev)
        return stored, (await self._resources.read(tenant, resource_name(name, scope)))[1]

    async def _restore(self, tenant: str, id: str, metadata: SecretMetadata | None, rev: int | None = None) -> None:
        if metadata is None:
            await self._resources.delete(tenant, id, actor=ORCHESTRATOR, rev=rev)
        else:
            await self._resources.put(tenant, id, metadata, actor=ORCHESTRATOR, rev=rev)

    async def _store_value(
        self, tenant: str, id: str, before: SecretMetadata | None, write: Callable[[], object]
    ) -> None:
        """Write to the blob store in a thread; take the recorded change back if that fails."""
        try:
            await self._disk.run(write)
        except Exception:
            await self._restore(tenant, id, before)
            raise
