"""Projects: the repositories that a tenant has added. The server fetches no other repository."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Final

import msgspec

from deltaci.api.schemas.projects import Policies, ProjectInput
from deltaci.core.errors import Refused
from deltaci.engine.engine import Engine
from deltaci.engine.resources import Resources
from deltaci.storage.port import Store

KIND: Final = "project"
BETWEEN: Final = "\n"  # In names of documents about a project: after the tenant, which never contains it.
MAX_PROJECTS: Final = 10_000  # Of one tenant.


class Project(msgspec.Struct, frozen=True, kw_only=True):
    """A repository that a tenant has added, with its settings. It contains names of secrets, never their values."""

    name: str
    tenant: str
    url: str
    forge: str = "git"
    default_branch: str = ""
    credential: str = ""
    webhook_secret: str = ""
    api_url: str = ""
    api_token: str = ""
    policies: Policies = Policies()
    description: str = ""
    created_at: int = 0
    created_by: str = ""
    reports: str = "statuses"
    version: int = 0  # How many times it was saved.


def of(tenant: str, name: str) -> str:
    """Return the name of a document about a tenant's project. The documents of all tenants are stored together."""
    return f"{tenant}{BETWEEN}{name}"


class Projects:
    """Stores the projects of all tenants."""

    def __init__(self, engine: Engine, store: Store) -> None:
        self._resources = Resources(engine, store, KIND, Project)

    async def find(self, tenant: str, name: str) -> Project | None:
        """Return the tenant's project with this name, or None."""
        return await self._resources.find(tenant, name)

    async def named(self, tenant: str, text: str) -> Project | None:
        """Return the tenant's project with this name, else the one with this URL, or None."""
        if (found := await self.find(tenant, text)) is not None:
            return found
        async for each in self.each(tenant):
            if plain_url(each.url) == plain_url(text):
                return each
        return None

    async def page(self, tenant: str, after: str, limit: int) -> list[Project]:
        """Return up to `limit` projects of the tenant, ordered by name, that come after the name `after`."""
        return [stored.value for stored in await self._resources.page(tenant, after=after, limit=limit)]

    async def each(self, tenant: str | None = None) -> AsyncIterator[Project]:
        """Yield every project of the tenant, or of all tenants."""
        async for stored in self._resources.iterate(tenant):
            yield stored.value

    async def is_full(self, tenant: str) -> bool:
        """Return whether the tenant has as many projects as it may have."""
        count = 0
        async for _ in self.each(tenant):
            count += 1
        return count >= MAX_PROJECTS

    async def put(self, project: Project, *, actor: str) -> Project:
        """Store a project in place of the version that was read. Return it with its new version.

        Raises `Refused` with the code `stale_version` if the project was changed since.
        """
        rev = await self._check_version(project)
        saved = msgspec.structs.replace(project, version=project.version + 1)
        await self._resources.put(project.tenant, project.name, saved, actor=actor, rev=rev)
        return saved

    async def drop(self, project: Project, *, actor: str) -> None:
        """Delete a project. Raises `Refused` with the code `stale_version` if it was changed since it was read."""
        rev = await self._check_version(project)
        await self._resources.delete(project.tenant, project.name, actor=actor, rev=rev)

    async def _check_version(self, project: Project) -> int:
        """Return the `rev` of the stored project. Raises `Refused` unless it has the same version."""
        current, rev = await self._resources.read(project.tenant, project.name)
        if (current.version if current is not None else 0) != project.version:
            raise Refused("stale_version", f"another request changed project {project.name!r}; read it again")
        return rev


def made(tenant: str, name: str, asked: ProjectInput, *, by: str, now: int) -> Project:
    """Return a new project with the fields of the request."""
    fields = {
        each: getattr(asked, each) for each in ProjectInput.__struct_fields__ if each in Project.__struct_fields__
    }
    return Project(**{**fields, "name": name, "tenant": tenant, "created_by": by, "created_at": now})


def plain_url(url: str) -> str:
    """Return the host and the path of a repository URL in lower case: equal for different notations of one URL."""
    return _bare(url).lower()


def _bare(url: str) -> str:
    """Return the host and the path of a URL without scheme, user, trailing slash and `.git`."""
    short = re.fullmatch(r"(?:[^@/]+@)?([^:/]+):([^/].*)", url)
    text = f"{short[1]}/{short[2]}" if short else re.sub(r"^[a-z+]+://(?:[^@/]+@)?", "", url)
    return text.rstrip("/").removesuffix(".git")
