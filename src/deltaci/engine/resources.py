"""The resources of one kind as values of one type: read from the store, and changed by commands with an event."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Final, Generic, TypeVar

import msgspec

from deltaci.core.errors import Refused
from deltaci.core.ids import resource_id
from deltaci.core.machine import Command, Record
from deltaci.core.resource import PRESENT, DeleteResource, PutResource, PutResources, Resource
from deltaci.engine.engine import Engine
from deltaci.engine.unreadable_records import unreadable_refusal
from deltaci.storage.port import ResourceQuery, Store, is_storable_text

PAGE: Final = 200

T = TypeVar("T", bound=msgspec.Struct)


class Stored(msgspec.Struct, Generic[T], frozen=True):
    """The value of a resource. `rev` counts the changes of the resource."""

    tenant: str
    name: str
    value: T
    rev: int


class Resources(Generic[T]):
    """Reads and changes the resources of one kind as values of type `T`.

    The field `sealed`, a text, is stored but never shown in events. `actor` is the person or part of the server that
    changes a resource.
    """

    def __init__(self, engine: Engine, store: Store, kind: str, type: type[T], *, sealed: str = "") -> None:
        self._engine = engine
        self._store = store
        self._kind = kind
        self._type = type
        self._sealed = sealed

    async def find(self, tenant: str, name: str) -> T | None:
        """Return the tenant's resource with this name, or None."""
        return (await self.read(tenant, name))[0]

    async def read(self, tenant: str, name: str) -> tuple[T | None, int]:
        """Return the tenant's resource with this name, or None, and the `rev` that the next change expects."""
        record = await self._store.find(resource_id(tenant, self._kind, name)) if is_storable_text(name) else None
        return self.value(record), record.rev if record is not None else 0

    def value(self, record: Record | None) -> T | None:
        """Return the value of a resource, or None if it does not exist. Refuse a record that cannot be decoded."""
        if (refusal := unreadable_refusal(record)) is not None:
            raise refusal
        if not isinstance(record, Resource) or record.state != PRESENT:
            return None
        return msgspec.convert(
            {**record.body, self._sealed: record.sealed} if self._sealed else record.body, self._type
        )

    async def page(self, tenant: str, *, after: str = "", limit: int = PAGE, prefix: str = "") -> list[Stored[T]]:
        """Return up to `limit` of the tenant's resources whose name has the prefix, by name, after the name `after`."""
        query = ResourceQuery(kind=self._kind, tenant=tenant, after=("", after), prefix=prefix, limit=limit)
        return await self._list(query)

    async def iterate(self, tenant: str | None = None, prefix: str = "") -> AsyncIterator[Stored[T]]:
        """Yield all resources of the tenant, or of all tenants, by tenant and name."""
        query = ResourceQuery(kind=self._kind, tenant=tenant, prefix=prefix, limit=PAGE)
        while True:
            page = await self._list(query)
            for resource in page:
                yield resource
            if not page:  # A shorter page may lack resources that cannot be decoded.
                return
            query = msgspec.structs.replace(query, after=(page[-1].tenant, page[-1].name))

    async def _list(self, query: ResourceQuery) -> list[Stored[T]]:
        page = await self._store.list_resources(query)
        values = ((resource, self.value(resource)) for resource in page)
        return [
            Stored(resource.tenant, resource.name, value, resource.rev)
            for resource, value in values
            if value is not None
        ]

    async def put(self, tenant: str, name: str, value: T, *, actor: str, rev: int | None = None) -> None:
        """Create or change a resource.

        Raises `Refused` with the code `stale_version` unless its `rev` is the given one, as `read` returns it.
        """
        await self._apply(self.put_command(tenant, name, value, actor=actor, rev=rev))

    async def put_all(self, commands: list[PutResource]) -> None:
        """Apply the commands in one transaction, all or none. Raises `Refused` with the code `stale_version`."""
        first = commands[0]
        await self._apply(PutResources(id=first.id, actor=first.actor, puts=tuple(commands)))

    def put_command(self, tenant: str, name: str, value: T, *, actor: str, rev: int | None = None) -> PutResource:
        """Return the command that creates or changes a resource."""
        body, sealed = self.split(value)
        id = resource_id(tenant, self._kind, name)
        return PutResource(
            id=id, tenant=tenant, kind=self._kind, name=name, body=body, sealed=sealed, actor=actor, expected_rev=rev
        )

    def split(self, value: T) -> tuple[dict[str, Any], str]:
        """Return the part of a value that events show, and the sealed part."""
        # As it is read from the store again: to_builtins would keep tuples, which equal no list.
        body: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(value))
        return body, body.pop(self._sealed) if self._sealed else ""

    async def delete(self, tenant: str, name: str, *, actor: str, rev: int | None = None) -> None:
        """Delete a resource. Raises `Refused` with the code `stale_version` unless its `rev` is the given one."""
        id = resource_id(tenant, self._kind, name)
        await self._apply(
            DeleteResource(id=id, tenant=tenant, kind=self._kind, name=name, actor=actor, expected_rev=rev)
        )

    async def _apply(self, command: Command) -> None:
        try:
            await self._engine.do(command)
        except Refused as refused:
            if refused.code != "stale_rev":
                raise
            raise Refused(
                "stale_version", f"another request changed this {self._kind} at the same moment; read it again"
            ) from None
