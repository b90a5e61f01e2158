"""Templates: plans to be used again. Every save is a new version; runs keep the one that they started with.

A template is one document that names its newest version, and one document for each version, which never changes. Both
are written together or not at all.
"""

from __future__ import annotations

from typing import Final

import msgspec

from deltaci.api.schemas import records as api
from deltaci.api.schemas.inputs import InputRule, PlanInput, TemplateInput
from deltaci.core.errors import Refused
from deltaci.server.rest import job_specs
from deltaci.server.rest.http.cursors import read, written
from deltaci.server.rest.http.request import Call, Handler, missing
from deltaci.server.rest.serializers import moment
from deltaci.storage.port import Conflict, Document

HEAD: Final = "template"
VERSION: Final = "template-version"


class _Head(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a template. One that was removed keeps its count, so that no version is given twice."""

    version: int
    description: str
    created_at: int
    created_by: str
    is_removed: bool = False


class _Version(msgspec.Struct, frozen=True, kw_only=True):
    """One version, as it is kept."""

    version: int
    description: str
    inputs: dict[str, InputRule]
    plan: PlanInput
    created_at: int
    created_by: str


_encode = msgspec.json.Encoder().encode
_decode_head = msgspec.json.Decoder(_Head).decode
_decode_version = msgspec.json.Decoder(_Version).decode


def _name(template: str, version: int) -> str:
    return f"{template} {version:010d}"  # A template's name has no space: nobody else's versions begin like that.


async def template_of(call: Call, name: str, version: int | None = None) -> api.Template:
    """A version of a template that can be used, the newest unless another is named."""
    _, head = await _head(call, name)
    if head is None or head.is_removed:
        raise missing("template", name)
    wanted = version if version is not None else head.version
    found = await call.parts.store.find_document(VERSION, _name(name, wanted), call.who.tenant)
    if found is None:
        raise missing("version of this template:", str(wanted))
    kept = _decode_version(found.body)
    return api.Template(
        name=name,
        version=kept.version,
        description=kept.description,
        inputs=kept.inputs,
        plan=kept.plan,
        created_at=moment(kept.created_at),
        created_by=kept.created_by,
    )


async def _head(call: Call, name: str) -> tuple[int, _Head | None]:
    found = await call.parts.store.find_document(HEAD, name, call.who.tenant)
    return (found.version, _decode_head(found.body)) if found is not None else (0, None)


async def save_template(call: Call) -> api.Template:
    """A new version. Refused, before anything is kept, when its plan makes no sense."""
    asked: TemplateInput = call.body
    name, tenant = str(call.params["template"]), call.who.tenant
    job_specs.specs(asked.plan)
    for each, rule in asked.inputs.items():
        if rule.default and rule.choices and rule.default not in rule.choices:
            raise Refused("bad_request", f"the default of input {each!r} is none of its choices")
    if len(job_specs.as_env(dict.fromkeys(asked.inputs, ""))) < len(asked.inputs):
        raise Refused("bad_request", "two inputs differ only in upper and lower case; name them otherwise")
    document, head = await _head(call, name)
    current = head.version if head is not None and not head.is_removed else 0
    if asked.expected_version is not None and asked.expected_version != current:
        raise Refused("stale_version", f"template {name!r} is at version {current}, not {asked.expected_version}")
    version = (head.version if head is not None else 0) + 1
    now = call.parts.keys.now()
    made = _Version(
        version=version,
        description=asked.description,
        inputs=asked.inputs,
        plan=asked.plan,
        created_at=now,
        created_by=call.who.person,
    )
    newest = _Head(version=version, description=asked.description, created_at=now, created_by=call.who.person)
    try:
        await call.parts.store.put_documents(
            [
                Document(kind=VERSION, tenant=tenant, name=_name(name, version), version=0, at=0, body=_encode(made)),
                Document(kind=HEAD, tenant=tenant, name=name, version=document, at=0, body=_encode(newest)),
            ]
        )
    except Conflict:
        raise Refused("stale_version", f"somebody else saved template {name!r} at the same moment") from None
    return await template_of(call, name, version)


async def remove_template(call: Call) -> api.TemplateSummary:
    """Nobody starts runs from it any more; what was started goes on."""
    name = str(call.params["template"])
    document, head = await _head(call, name)
    if head is None or head.is_removed:
        raise missing("template", name)
    gone = msgspec.structs.replace(head, is_removed=True)
    try:
        await call.parts.store.put_documents(
            [Document(kind=HEAD, tenant=call.who.tenant, name=name, version=document, at=0, body=_encode(gone))]
        )
    except Conflict:
        raise Refused("stale_version", f"somebody else changed template {name!r} at the same moment") from None
    return _line(name, head)


async def read_template(call: Call) -> api.Template:
    """The newest version, or the one that the address names."""
    return await template_of(call, str(call.params["template"]), call.params.get("version"))


async def list_templates(call: Call) -> api.TemplatePage:
    """By name."""
    query = call.query
    after = read(query.cursor) if query.cursor else ""
    found = await call.parts.store.list_documents(HEAD, call.who.tenant, after=after, limit=query.limit)
    heads = [(each.name, _decode_head(each.body)) for each in found]
    return api.TemplatePage(
        templates=[_line(name, head) for name, head in heads if not head.is_removed],
        next=written(found[-1].name) if len(found) == query.limit else None,
    )


async def list_versions(call: Call) -> api.TemplatePage:
    """The oldest first."""
    query, name = call.query, str(call.params["template"])
    _, head = await _head(call, name)
    if head is None or head.is_removed:
        raise missing("template", name)
    after = read(query.cursor) if query.cursor else ""
    found = await call.parts.store.list_documents(
        VERSION, call.who.tenant, after=after, limit=query.limit, prefix=f"{name} "
    )
    kept = [_decode_version(each.body) for each in found]
    return api.TemplatePage(
        templates=[_line(name, each) for each in kept],
        next=written(found[-1].name) if len(found) == query.limit else None,
    )


def _line(name: str, head: _Head | _Version) -> api.TemplateSummary:
    return api.TemplateSummary(
        name=name,
        version=head.version,
        description=head.description,
        created_at=moment(head.created_at),
        created_by=head.created_by,
    )


HANDLERS: Final[dict[str, Handler]] = {
    "listTemplates": list_templates,
    "saveTemplate": save_template,
    "readTemplate": read_template,
    "removeTemplate": remove_template,
    "listVersions": list_versions,
    "readVersion": read_template,
}
