"""Resources: administrative objects such as API keys, projects and quotas, which people create, change and delete.

A resource is found by tenant, kind and name. Its events show the body before and after the change. The sealed part,
such as the hash of a key, is stored but never shown: an event says only that it changed. The events of all resources of
a tenant are numbered, so that a log in which one is missing is recognised.
"""

from __future__ import annotations

from typing import Any, ClassVar, Final

import msgspec

from deltaci.core.events import ORCHESTRATOR, RESOURCE, USER
from deltaci.core.machine import ABSENT, Command, Machine, Record, Rule, Target, Transition, no_change

PRESENT: Final = "PRESENT"
DELETED: Final = "DELETED"

API_KEY: Final = "key"  # The name of such a resource is unique among all tenants.


class Resource(Record, frozen=True, kw_only=True):
    """The record of a resource. A deleted one keeps its `rev`, and its name may be used again.

    The record with the id `ids.administration_id` is no resource: it has the number of the tenant's latest event.
    """

    kind: str = ""
    name: str = ""
    body: dict[str, Any] = msgspec.field(default_factory=dict)
    sealed: str = ""
    number: int = 0


class ResourceCommand(Command, frozen=True, kw_only=True):
    """A command to the resource with this tenant, kind and name. `id` is its `ids.resource_id`."""

    by: ClassVar[frozenset[str]] = frozenset({ORCHESTRATOR, USER})
    is_unordered: ClassVar[bool] = True

    tenant: str
    kind: str
    name: str


class PutResource(ResourceCommand, frozen=True, kw_only=True):
    """Create the resource, or replace its body. An equal body changes nothing."""

    body: dict[str, Any]
    sealed: str = ""


class ImportResource(ResourceCommand, frozen=True, kw_only=True):
    """Create the resource from what an earlier version stored, unless there is or was one with this name."""

    by: ClassVar[frozenset[str]] = frozenset({ORCHESTRATOR})

    body: dict[str, Any]
    sealed: str = ""


class DeleteResource(ResourceCommand, frozen=True, kw_only=True):
    """Delete the resource. Its name may be used again."""


class PutResources(Command, frozen=True, kw_only=True):
    """Put several resources of one tenant, all or none. `id` is that of one of them."""

    by: ClassVar[frozenset[str]] = ResourceCommand.by
    is_unordered: ClassVar[bool] = True

    puts: tuple[PutResource, ...]


def absent(command: ResourceCommand) -> Resource:
    """Return the record, in no state yet, of a resource that does not exist."""
    return Resource(id=command.id, tenant=command.tenant, kind=command.kind, name=command.name)


def _create(resource: Resource, command: PutResource | ImportResource, at: int) -> Transition:
    changes = {"body": command.body, "sealed": command.sealed, "created_at": at}
    return PRESENT, changes, _metadata(resource, None, command.body, is_sealed_changed=bool(command.sealed))


def _replace(resource: Resource, command: PutResource, _at: int) -> Transition | None:
    if (command.body, command.sealed) == (resource.body, resource.sealed):
        return None
    changes = {"body": command.body, "sealed": command.sealed}
    is_sealed_changed = command.sealed != resource.sealed
    return PRESENT, changes, _metadata(resource, resource.body, command.body, is_sealed_changed=is_sealed_changed)


def _delete(resource: Resource, _command: DeleteResource, _at: int) -> Transition:
    metadata = _metadata(resource, resource.body, None, is_sealed_changed=bool(resource.sealed))
    return DELETED, {"body": {}, "sealed": ""}, metadata


def _metadata(
    resource: Resource, before: dict[str, Any] | None, after: dict[str, Any] | None, *, is_sealed_changed: bool
) -> dict[str, Any]:
    metadata = {"kind": resource.kind, "name": resource.name, "before": before, "after": after}
    return {**metadata, "is_sealed_changed": True} if is_sealed_changed else metadata


_CREATED: Final = (Target(PRESENT, "created"),)
_IMPORTED_BEFORE: Final = "another server imported it before, or it was changed since"

# fmt: off
MACHINE: Final[Machine[Resource]] = Machine(
    RESOURCE,
    Rule(ABSENT, PutResource, _CREATED, _create, ORCHESTRATOR, "a person created it", ("MOD-14",)),
    Rule(PRESENT, PutResource, (Target(PRESENT, "updated"),), _replace,
         ORCHESTRATOR, "a person changed it", ("MOD-14",)),
    Rule(PRESENT, DeleteResource, (Target(DELETED, "deleted"),), _delete,
         ORCHESTRATOR, "a person deleted it", ("MOD-14",)),
    Rule(DELETED, PutResource, _CREATED, _create, ORCHESTRATOR, "its name is used again", ("MOD-14",)),
    Rule(DELETED, DeleteResource, (), no_change, ORCHESTRATOR, "it is deleted already", ("MOD-14",)),
    Rule(ABSENT, ImportResource, (Target(PRESENT, "imported"),), _create,
         ORCHESTRATOR, "an earlier version stored it without an event", ("MOD-14",)),
    *(Rule(state, ImportResource, (), no_change, ORCHESTRATOR, _IMPORTED_BEFORE, ("MOD-14",))
      for state in (PRESENT, DELETED)),
    initial=PRESENT,
)
# fmt: on
