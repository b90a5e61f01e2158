"""Projects: tell the server of a repository, look at it, change it, forget it; and hear from its hook."""

from __future__ import annotations

from typing import Final

import msgspec

from deltaci.api.schemas import projects as wire
from deltaci.controllers import projects
from deltaci.controllers.poller import push
from deltaci.controllers.projects import Project
from deltaci.core.errors import Refused
from deltaci.git import url_policy
from deltaci.server.rest.http.cursors import read, written
from deltaci.server.rest.http.request import Call, Handler, missing
from deltaci.server.rest.serializers import moment


async def project_of(call: Call, name: str | None = None) -> Project:
    """The project that the address names."""
    wanted = name if name is not None else str(call.params["project"])
    found = await call.parts.repositories.projects.find(call.who.tenant, wanted)
    if found is None:
        raise missing("project", wanted)
    return found


async def save_project(call: Call) -> wire.Project:
    """A new project, or another version of one. What makes no sense, or is not allowed, is refused before."""
    asked: wire.ProjectInput = call.body
    name, repositories = str(call.params["project"]), call.parts.repositories
    url_policy.parse_url(asked.url, repositories.url_policy)
    if asked.api_url and not asked.api_url.startswith(("https://", "http://")):
        raise Refused("bad_request", f"{asked.api_url[:200]!r} is no address of an API; it begins with https://")
    known = await repositories.projects.find(call.who.tenant, name)
    current = known.version if known is not None else 0
    if asked.expected_version is not None and asked.expected_version != current:
        raise Refused("stale_version", f"project {name!r} is at version {current}, not {asked.expected_version}")
    if known is None and await repositories.projects.is_full(call.who.tenant):
        raise Refused("over_quota", f"a tenant has at most {projects.MAX_PROJECTS:,} projects")
    made = projects.made(call.who.tenant, name, asked, by=call.who.person, now=call.parts.keys.now())
    if known is not None:
        made = msgspec.structs.replace(
            made, version=known.version, created_at=known.created_at, created_by=known.created_by
        )
    return shown(await repositories.projects.put(made))


async def read_project(call: Call) -> wire.Project:
    """One of them."""
    return shown(await project_of(call))


async def remove_project(call: Call) -> wire.Project:
    """Nothing of it is fetched any more; what was started goes on."""
    found = await project_of(call)
    await call.parts.repositories.projects.drop(found)
    await call.parts.repositories.forget(found)
    return shown(found)


async def list_projects(call: Call) -> wire.ProjectPage:
    """By name."""
    query = call.query
    after = read(query.cursor) if query.cursor else ""
    found = await call.parts.repositories.projects.page(call.who.tenant, after, query.limit)
    return wire.ProjectPage(
        projects=[shown(each) for each in found],
        next=written(found[-1].name) if len(found) == query.limit else None,
    )


async def report_push(call: Call) -> wire.AcceptedChanges:
    """Every ref is a change of its own."""
    asked: wire.PushInput = call.body
    project, changes = await project_of(call), call.parts.repositories.changes
    accepted: list[wire.AcceptedChange] = []
    for each in asked.refs:
        change = push(each.ref, each.before, each.after, actor=asked.pusher, default_branch=project.default_branch)
        delivery = f"push {asked.delivery} {each.ref}"
        made = await changes.accept(project.tenant, project.name, change, delivery)
        accepted.append(wire.AcceptedChange(id=made.id, is_new=made.is_new, ref=each.ref))
    return wire.AcceptedChanges(changes=accepted)


def shown(project: Project) -> wire.Project:
    """A project as people see it: of secrets only their names."""
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
        created_at=moment(project.created_at),
        created_by=project.created_by,
    )


HANDLERS: Final[dict[str, Handler]] = {
    "listProjects": list_projects,
    "saveProject": save_project,
    "readProject": read_project,
    "removeProject": remove_project,
    "reportPush": report_push,
}
