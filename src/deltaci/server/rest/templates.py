"""Templates: reusable plans. Each save creates a version; a run keeps the version with which it was started.

A template is one document with the number of its newest version, and one immutable document for each version. A save
writes both atomically.
"""

from __future__ import annotations

from typing import Final

import msgspec

from deltaci.api.schemas import records as api
from deltaci.api.schemas.inputs import InputRule, PlanInput, TemplateInput
from deltaci.core.errors import Refused
from deltaci.server.rest import job_specs
from deltaci.server.rest.http.cursors import decode_cursor, encode_cursor
from deltaci.server.rest.http.request import Call, Handler, not_found
from deltaci.server.rest.serializers import to_datetime
from deltaci.storage.port import Conflict, Document

HEAD: Final = "template"
VERSION: Final = "template-version"


class _Head(msgspec.Struct, frozen=True, kw_only=True):
    """The newest version of a template.

    It is kept when the template is removed, so that no version number is used twice.
    """

    version: int
    description: str
    created_at: int
    created_by: str
    is_removed: bool = False


class _Version(msgspec.Struct, frozen=True, kw_only=True):
    version: int
    description: str
    inputs: dict[str, InputRule]
    plan: PlanInput
    created_at: int
    created_by: str


_encode = msgspec.json.Encoder().encode
_decode_head = msgspec.json.Decoder(_Head).decode
_decode_version = msgspec.json.Decoder(_Version).decode


def _document_name(template: str, version: int) -> str:
    return f"{template} {version:010d}"  # Names have no spaces, so no other template's versions have this prefix.


async def get_template(call: Call, template_name: str, version: int | None = None) -> api.Template:
    """Return a version of a template, by default the newest. Raise Refused if it does not exist or was removed."""
    _, template_head = await _find_head(call, template_name)
    if template_head is None or template_head.is_removed:
        raise not_found("template", template_name)
    version_number = version if version is not None else template_head.version
    stored_document = await call.app.store.find_document(
        VERSION, _document_name(template_name, version_number), call.caller.tenant
    )
    if stored_document is None:
        raise not_found("version of this template:", str(version_number))
    stored_version = _decode_version(stored_document.body)
    return api.Template(
        name=template_name,
        version=stored_version.version,
        description=stored_version.description,
        inputs=stored_version.inputs,
        plan=stored_version.plan,
        created_at=to_datetime(stored_version.created_at),
        created_by=stored_version.created_by,
    )


async def _find_head(call: Call, template_name: str) -> tuple[int, _Head | None]:
    """Return the version of the head document, 0 if there is none, and its content."""
    stored_document = await call.app.store.find_document(HEAD, template_name, call.caller.tenant)
    return (stored_document.version, _decode_head(stored_document.body)) if stored_document is not None else (0, None)


async def save_template(call: Call) -> api.Template:
    """Store a new version of a template. Raise Refused if its plan or its inputs are invalid."""
    template_input: TemplateInput = call.body
    template_name, tenant = str(call.params["template"]), call.caller.tenant
    job_specs.specs(template_input.plan)
    for input_name, rule in template_input.inputs.items():
        if rule.default and rule.choices and rule.default not in rule.choices:
            raise Refused("bad_request", f"the default of input {input_name!r} is none of its choices")
    if len(job_specs.as_env(dict.fromkeys(template_input.inputs, ""))) < len(template_input.inputs):
        raise Refused("bad_request", "two inputs differ only in case; rename one of them")
    document_version, old_head = await _find_head(call, template_name)
    current_version = old_head.version if old_head is not None and not old_head.is_removed else 0
    if template_input.expected_version is not None and template_input.expected_version != current_version:
        raise Refused(
            "stale_version",
            f"template {template_name!r} is at version {current_version}, not {template_input.expected_version}",
        )
    version_number = (old_head.version if old_head is not None else 0) + 1
    now = call.app.keys.now()
    template_version = _Version(
        version=version_number,
        description=template_input.description,
        inputs=template_input.inputs,
        plan=template_input.plan,
        created_at=now,
        created_by=call.caller.person,
    )
    new_head = _Head(
        version=version_number, description=template_input.description, created_at=now, created_by=call.caller.person
    )
    try:
        await call.app.store.put_documents(
            [
                Document(
                    kind=VERSION,
                    tenant=tenant,
                    name=_document_name(template_name, version_number),
                    version=0,
                    at=0,
                    body=_encode(template_version),
                ),
                Document(
                    kind=HEAD, tenant=tenant, name=template_name, version=document_version, at=0, body=_encode(new_head)
                ),
            ]
        )
    except Conflict:
        raise Refused(
            "stale_version", f"another request saved template {template_name!r} at the same moment; read it again"
        ) from None
    return await get_template(call, template_name, version_number)


async def remove_template(call: Call) -> api.TemplateSummary:
    """Remove a template. Runs that were started from it continue."""
    template_name = str(call.params["template"])
    document_version, template_head = await _find_head(call, template_name)
    if template_head is None or template_head.is_removed:
        raise not_found("template", template_name)
    removed_head = msgspec.structs.replace(template_head, is_removed=True)
    try:
        await call.app.store.put_documents(
            [
                Document(
                    kind=HEAD,
                    tenant=call.caller.tenant,
                    name=template_name,
                    version=document_version,
                    at=0,
                    body=_encode(removed_head),
                )
            ]
        )
    except Conflict:
        raise Refused(
            "stale_version", f"another request changed template {template_name!r} at the same moment; read it again"
        ) from None
    return _serialize_summary(template_name, template_head)


async def read_template(call: Call) -> api.Template:
    """Return the version in the path, by default the newest."""
    return await get_template(call, str(call.params["template"]), call.params.get("version"))


async def list_templates(call: Call) -> api.TemplatePage:
    """Return a page of templates, ordered by name."""
    query = call.query
    after_name = decode_cursor(query.cursor) if query.cursor else ""
    documents = await call.app.store.list_documents(HEAD, call.caller.tenant, after=after_name, limit=query.limit)
    heads = [(document.name, _decode_head(document.body)) for document in documents]
    return api.TemplatePage(
        templates=[
            _serialize_summary(template_name, template_head)
            for template_name, template_head in heads
            if not template_head.is_removed
        ],
        next=encode_cursor(documents[-1].name) if len(documents) == query.limit else None,
    )


async def list_versions(call: Call) -> api.TemplatePage:
    """Return a page of the versions of a template, the oldest first."""
    query, template_name = call.query, str(call.params["template"])
    _, template_head = await _find_head(call, template_name)
    if template_head is None or template_head.is_removed:
        raise not_found("template", template_name)
    after_name = decode_cursor(query.cursor) if query.cursor else ""
    documents = await call.app.store.list_documents(
        VERSION, call.caller.tenant, after=after_name, limit=query.limit, prefix=f"{template_name} "
    )
    versions = [_decode_version(document.body) for document in documents]
    return api.TemplatePage(
        templates=[_serialize_summary(template_name, version) for version in versions],
        next=encode_cursor(documents[-1].name) if len(documents) == query.limit else None,
    )


def _serialize_summary(template_name: str, version_summary: _Head | _Version) -> api.TemplateSummary:
    return api.TemplateSummary(
        name=template_name,
        version=version_summary.version,
        description=version_summary.description,
        created_at=to_datetime(version_summary.created_at),
        created_by=version_summary.created_by,
    )


HANDLERS: Final[dict[str, Handler]] = {
    "listTemplates": list_templates,
    "saveTemplate": save_template,
    "readTemplate": read_template,
    "removeTemplate": remove_template,
    "listVersions": list_versions,
    "readVersion": read_template,
}
