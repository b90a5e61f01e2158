"""Projects: create, read, change and remove them, and report pushes to their repositories."""

from __future__ import annotations

from typing import Final

import msgspec

from deltaci.api.schemas import projects as wire
from deltaci.controllers import projects
from deltaci.controllers.projects import Project
from deltaci.controllers.repositories.poller import push
from deltaci.core.errors import Refused
from deltaci.git import url_policy
from deltaci.server.rest.http.cursors import decode_cursor, encode_cursor
from deltaci.server.rest.http.request import Call, Handler, not_found
from deltaci.server.rest.serializers import to_datetime


async def get_project(call: Call, name: str | None = None) -> Project:
    """Return a project, by default the one in the path. Raise Refused if it does not exist."""
    project_name = name if name is not None else str(call.params["project"])
    project = await call.app.repositories.projects.find(call.caller.tenant, project_name)
    if project is None:
        raise not_found("project", project_name)
    return project


async def save_project(call: Call) -> wire.Project:
    """Create a project, or store a new version of it. Raise Refused if it is invalid or not allowed."""
    project_input: wire.ProjectInput = call.body
    project_name, repositories = str(call.params["project"]), call.app.repositories
    url_policy.parse_url(project_input.url, repositories.url_policy)
    if project_input.api_url and not project_input.api_url.startswith(("https://", "http://")):
        raise Refused(
            "bad_request", f"{project_input.api_url[:200]!r} is no URL of an API; it must start with https://"
        )
    existing_project = await repositories.projects.find(call.caller.tenant, project_name)
    current_version = existing_project.version if existing_project is not None else 0
    if project_input.expected_version is not None and project_input.expected_version != current_version:
        raise Refused(
            "stale_version",
            f"project {project_name!r} is at version {current_version}, not {project_input.expected_version}",
        )
    if existing_project is None and await repositories.projects.is_full(call.caller.tenant):
        raise Refused("over_quota", f"a tenant has at most {projects.MAX_PROJECTS:,} projects")
    project = projects.made(
        call.caller.tenant, project_name, project_input, by=call.caller.person, now=call.app.keys.now()
    )
    if existing_project is not None:
        project = msgspec.structs.replace(
            project,
            version=existing_project.version,
            created_at=existing_project.created_at,
            created_by=existing_project.created_by,
        )
    return serialize_project(await repositories.projects.put(project, actor=call.actor))


async def read_project(call: Call) -> wire.Project:
    return serialize_project(await get_project(call))


async def remove_project(call: Call) -> wire.Project:
    """Remove a project and its mirror. Runs that were started continue."""
    project = await get_project(call)
    await call.app.repositories.projects.drop(project, actor=call.actor)
    await call.app.repositories.forget(project)
    return serialize_project(project)


async def list_projects(call: Call) -> wire.ProjectPage:
    """Return a page of projects, ordered by name."""
    query = call.query
    after_name = decode_cursor(query.cursor) if query.cursor else ""
    page = await call.app.repositories.projects.page(call.caller.tenant, after_name, query.limit)
    return wire.ProjectPage(
        projects=[serialize_project(project) for project in page],
        next=encode_cursor(page[-1].name) if len(page) == query.limit else None,
    )


async def report_push(call: Call) -> wire.AcceptedChanges:
    """Create one change for each pushed ref. A repeated delivery creates none."""
    push_input: wire.PushInput = call.body
    project, change_records = await get_project(call), call.app.repositories.changes
    accepted_changes: list[wire.AcceptedChange] = []
    for ref_change in push_input.refs:
        change = push(
            ref_change.ref,
            ref_change.before,
            ref_change.after,
            actor=push_input.pusher,
            default_branch=project.default_branch,
        )
        delivery = f"{push_input.delivery} {ref_change.ref}"
        accepted_change = await change_records.accept(project.tenant, project.name, change, delivery, source="push")
        accepted_changes.append(
            wire.AcceptedChange(id=accepted_change.id, is_new=accepted_change.is_new, ref=ref_change.ref)
        )
    return wire.AcceptedChanges(changes=accepted_changes)


def serialize_project(project: Project) -> wire.Project:
    """Return a project as the API shows it, with the names of its secrets but not their values."""
    return wire.Project(
        name=project.name,
        version=project.version,
        url=project.url,
        forge=project.forge,
        default_branch=project.default_branch,
        credential=project.credential,
        webhook_secret=project.webhook_secret,
        api_url=project.api_url,
        api_token=project.api_token,
        reports=project.reports,
        policies=project.policies,
        description=project.description,
        created_at=to_datetime(project.created_at),
        created_by=project.created_by,
    )


HANDLERS: Final[dict[str, Handler]] = {
    "listProjects": list_projects,
    "saveProject": save_project,
    "readProject": read_project,
    "removeProject": remove_project,
    "reportPush": report_push,
}
