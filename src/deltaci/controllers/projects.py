"""Projects: the repositories that a tenant has added. The server fetches no other repository."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Final

import msgspec

from deltaci.api.schemas.projects import Policies, ProjectInput
from deltaci.core.errors import Refused
from deltaci.core.listing import ALL_TENANTS
from deltaci.storage.port import Conflict, Document, Store

KIND: Final = "project"
# What goes on by itself looks through all tenants: their projects are kept together. No tenant has this in its name.
BETWEEN: Final = "\n"
MAX_PROJECTS: Final = 10_000  # Of one tenant.
PAGE: Final = 200


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
    version: int = 0  # Of the document, as it was read.


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Project).decode


def of(tenant: str, name: str) -> str:
    """Return the document name of a tenant's project. The documents of all tenants are stored together."""
    return f"{tenant}{BETWEEN}{name}"


class Projects:
    """Stores projects as documents."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def find(self, tenant: str, name: str) -> Project | None:
        """Return the tenant's project with this name, or None."""
        return _read(await self._store.find_document(KIND, of(tenant, name), ALL_TENANTS))

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
        prefix = of(tenant, "")
        documents = await self._store.list_documents(
            KIND, ALL_TENANTS, after=f"{prefix}{after}" if after else "", limit=limit, prefix=prefix
        )
        return [each for each in map(_read, documents) if each is not None]

    async def each(self, tenant: str | None = None) -> AsyncIterator[Project]:
        """Yield every project of the tenant, or of all tenants."""
        after, prefix = "", of(tenant, "") if tenant is not None else ""
        while True:
            documents = await self._store.list_documents(KIND, ALL_TENANTS, after=after, limit=PAGE, prefix=prefix)
            for document in documents:
                found = _read(document)
                if found is not None:
                    yield found
            if len(documents) < PAGE:
                return
            after = documents[-1].name

    async def is_full(self, tenant: str) -> bool:
        """Return whether the tenant has as many projects as it may have."""
        count = 0
        async for _ in self.each(tenant):
            count += 1
        return count >= MAX_PROJECTS

    async def put(self, project: Project) -> Project:
        """Store a project in place of the version that was read. Return it with its new version.

        Raises `Refused` with the code `stale_version` if the project was changed since.
        """
        body = _encode(msgspec.structs.replace(project, version=0))
        name = of(project.tenant, project.name)
        document = Document(kind=KIND, tenant=ALL_TENANTS, name=name, version=project.version, at=0, body=body)
        try:
            await self._store.put_documents([document])
        except Conflict:
            raise Refused(
                "stale_version", f"somebody else changed project {project.name!r} at the same moment"
            ) from None
        return msgspec.structs.replace(project, version=project.version + 1)

    async def drop(self, project: Project) -> None:
        """Delete a project. Raises `Refused` with the code `stale_version` if it was changed since it was read."""
        if not await self._store.delete_document(KIND, ALL_TENANTS, of(project.tenant, project.name), project.version):
            raise Refused("stale_version", f"somebody else changed project {project.name!r} at the same moment")


def _read(document: Document | None) -> Project | None:
    if document is None:
        return None
    return msgspec.structs.replace(_decode(document.body), version=document.version)


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
