"""Imports what earlier versions stored as documents, which had no events, as resources.

It runs when a server starts and may run on several servers at once: a document is imported once, and deleted then.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from deltaci.controllers import projects
from deltaci.core.errors import Refused
from deltaci.core.ids import resource_id
from deltaci.core.resource import API_KEY, ImportResource
from deltaci.engine.engine import Engine
from deltaci.server import failure_rules, tenants
from deltaci.server.rest import templates
from deltaci.storage.port import Document, Store

PAGE: Final = 200

LOGGER: Final = logging.getLogger(__name__)


def _command(document: Document, tenant: str, kind: str, name: str, sealed: str = "", **changes: Any) -> ImportResource:
    """Return the command that imports a document, without its field `sealed` and with the changed fields."""
    body = {**msgspec.json.decode(document.body, type=dict[str, Any]), **changes}
    sealed_value = body.pop(sealed) if sealed else ""
    id = resource_id(tenant, kind, name)
    return ImportResource(id=id, tenant=tenant, kind=kind, name=name, body=body, sealed=sealed_value)


def _import_key(document: Document) -> ImportResource:
    return _command(document, document.tenant, API_KEY, document.name, sealed="digest")


def _import_project(document: Document) -> ImportResource:
    tenant, _, name = document.name.partition(projects.BETWEEN)
    return _command(document, tenant, projects.KIND, name, version=document.version)


def _import_template(document: Document) -> ImportResource | None:
    """Return the command that imports a template, None if it was removed: only its versions are kept then."""
    command = _command(document, document.tenant, templates.HEAD, document.name)
    return None if command.body.pop("is_removed", False) else command


def _import_template_version(document: Document) -> ImportResource:
    name, _, version = document.name.partition(" ")
    return _command(document, document.tenant, templates.VERSION, templates.version_name(name, int(version)))


def _import_quotas(document: Document) -> ImportResource:
    return _command(document, document.tenant, tenants.QUOTAS, document.name)


def _import_failure_rules(document: Document) -> ImportResource:
    return _command(document, document.tenant, failure_rules.KIND, document.name, version=document.version)


# The kinds of documents, in the order of their import.
IMPORTS: Final[dict[str, Callable[[Document], ImportResource | None]]] = {
    "key": _import_key,
    "project": _import_project,
    "template-version": _import_template_version,
    "template": _import_template,
    "quotas": _import_quotas,
    "failure-rules": _import_failure_rules,
}


async def import_documents(engine: Engine, store: Store) -> None:
    """Import all documents whose kind is now a resource, and delete them."""
    for kind in IMPORTS:
        unreadable: set[tuple[str, str]] = set()
        while documents := [
            document
            for document in await store.first_documents(kind, PAGE + len(unreadable))
            if (document.tenant, document.name) not in unreadable
        ]:
            unreadable |= await _import_page(engine, store, documents)
            LOGGER.info("imported %d documents of the kind %s", len(documents), kind)


async def _import_page(engine: Engine, store: Store, documents: Sequence[Document]) -> set[tuple[str, str]]:
    """Import these documents and delete them. Return the tenant and name of each that cannot be read."""
    commands: list[ImportResource] = []
    unreadable: set[tuple[str, str]] = set()
    for document in documents:
        try:
            command = IMPORTS[document.kind](document)
        except ValueError:
            LOGGER.exception("the document %s %s is left alone: it cannot be read", document.kind, document.name)
            unreadable.add((document.tenant, document.name))
            continue
        commands += [command] if command is not None else []
    for decision in await engine.do_all(commands):
        if isinstance(decision, Refused):
            raise decision
    for document in documents:
        if (document.tenant, document.name) not in unreadable:
            await store.delete_document(document.kind, document.tenant, document.name, document.version)
    return unreadable
