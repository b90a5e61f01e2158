"""Templates: reusable plans. Each save creates a version; a run keeps the version with which it was started.

A template is one resource with the number of its newest version, and one for each version, which never changes. A save
writes both atomically.
"""

from __future__ import annotations

from typing import Final

import msgspec

from deltaci.api.schemas import records as api
from deltaci.api.schemas.inputs import InputRule, PlanInput, TemplateInput
from deltaci.core.errors import Refused
from deltaci.engine.resources import Resources
from deltaci.server.rest import job_specs
from deltaci.server.rest.http.cursors import decode_cursor, encode_cursor
from deltaci.server.rest.http.request import Call, Handler, not_found
from deltaci.server.rest.serializers import to_datetime

HEAD: Final = "template"
VERSION: Final = "template-version"


class TemplateHead(msgspec.Struct, frozen=True, kw_only=True):
    """The newest version of a template."""

    version: int
    description: str
    created_at: int
    created_by: str


class TemplateVersion(msgspec.Struct, frozen=True, kw_only=True):
    """One version of a template. It is kept when the template is removed, so that no version number is used twice."""

    version: int
    description: str
    inputs: dict[str, InputRule]
    plan: PlanInput
    created_at: int
    created_by: str


def _heads(call: Call) -> Resources[TemplateHead]:
    return Resources(call.app.engine, call.app.store, HEAD, TemplateHead)


def _versions(call: Call) -> Resources[TemplateVersion]:
    return Resources(call.app.engine, call.app.store, VERSION, TemplateVersion)


def version_name(template: str, version: int) -> str:
    """Return the name of the resource with this version."""
    return f"{template}/{version:010d}"  # Names have no slashes, so no other template's versions have this prefix.


async def get_template(call: Call, template_name: str, version: int | None = None) -> api.Template:
    """Return a version of a template, by default the newest. Raise Refused if it does not exist or was removed."""
    template_head, _ = await _find_head(call, template_name)
    version_number = version if version is not None else template_head.version
    stored_version = await _versions(call).find(call.caller.tenant, version_name(template_name, version_number))
    if stored_version is None:
        raise not_found("version of this template:", str(version_number))
    return api.Template(
        name=template_name,
        version=stored_version.version,
        description=stored_version.description,
        inputs=stored_version.inputs,
        plan=stored_version.plan,
        created_at=to_datetime(stored_version.created_at),
        created_by=stored_version.created_by,
    )


async def _find_head(call: Call, template_name: str) -> tuple[TemplateHead, int]:
    """Return a template and its `rev`. Raise Refused if it does not exist or was removed."""
    template_head, rev = await _heads(call).read(call.caller.tenant, template_name)
    if template_head is None:
        raise not_found("template", template_name)
    return template_head, rev


async def _last_version(call: Call, template_name: str) -> int:
    """Return the number of the last version of a template that was removed, 0 if there never was one."""
    version_numbers = [
        stored.value.version async for stored in _versions(call).iterate(call.caller.tenant, f"{template_name}/")
    ]
    return version_numbers[-1] if version_numbers else 0


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
    template_head, rev = await _heads(call).read(tenant, template_name)
    current_version = template_head.version if template_head is not None else 0
    if template_input.expected_version is not None and template_input.expected_version != current_version:
        raise Refused(
            "stale_version",
            f"template {template_name!r} is at version {current_version}, not {template_input.expected_version}",
        )
    version = (current_version or await _last_version(call, template_name)) + 1
    now = call.app.keys.now()
    new_version = TemplateVersion(
        version=version,
        description=template_input.description,
        inputs=template_input.inputs,
        plan=template_input.plan,
        created_at=now,
        created_by=call.caller.person,
    )
    new_head = TemplateHead(
        version=version, description=template_input.description, created_at=now, created_by=call.caller.person
    )
    commands = [
        _heads(call).put_command(tenant, template_name, new_head, actor=call.actor, rev=rev),
        _versions(call).put_command(tenant, version_name(template_name, version), new_version, actor=call.actor, rev=0),
    ]
    await _heads(call).put_all(commands)
    return await get_template(call, template_name, version)


async def remove_template(call: Call) -> api.TemplateSummary:
    """Remove a template. Runs that were started from it continue."""
    template_name = str(call.params["template"])
    template_head, rev = await _find_head(call, template_name)
    await _heads(call).delete(call.caller.tenant, template_name, actor=call.actor, rev=rev)
    return _serialize_summary(template_name, template_head)


async def read_template(call: Call) -> api.Template:
    """Return the version in the path, by default the newest."""
    return await get_template(call, str(call.params["template"]), call.params.get("version"))


async def list_templates(call: Call) -> api.TemplatePage:
    """Return a page of templates, ordered by name."""
    query = call.query
    after_name = decode_cursor(query.cursor) if query.cursor else ""
    page = await _heads(call).page(call.caller.tenant, after=after_name, limit=query.limit)
    return api.TemplatePage(
        templates=[_serialize_summary(stored.name, stored.value) for stored in page],
        next=encode_cursor(page[-1].name) if len(page) == query.limit else None,
    )


async def list_versions(call: Call) -> api.TemplatePage:
    """Return a page of the versions of a template, the oldest first."""
    query, template_name = call.query, str(call.params["template"])
    await _find_head(call, template_name)
    after_name = decode_cursor(query.cursor) if query.cursor else ""
    page = await _versions(call).page(
        call.caller.tenant, after=after_name, limit=query.limit, prefix=f"{template_name}/"
    )
    return api.TemplatePage(
        templates=[_serialize_summary(template_name, stored.value) for stored in page],
        next=encode_cursor(page[-1].name) if len(page) == query.limit else None,
    )


def _serialize_summary(template_name: str, version_summary: TemplateHead | TemplateVersion) -> api.TemplateSummary:
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
