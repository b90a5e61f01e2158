"""Recognize the repository of a webhook event by its name, and follow it by the forge's id when it is renamed.

The id is learned from an event with the name of the project's repository. An event with the same id and another name
means that the repository was renamed. The project's URL is then changed, if the forge's API confirms the new name: a
webhook alone, whose secret more people may know, must not lead the server to another repository.
"""

from __future__ import annotations

import logging
from typing import Final

import msgspec

from deltaci.controllers.projects import Projects, of
from deltaci.core.errors import Refused, Unreachable
from deltaci.core.events import ORCHESTRATOR
from deltaci.core.listing import ALL_TENANTS
from deltaci.core.text import plain_line
from deltaci.forges import STATUS_APIS
from deltaci.forges.github_app import AppTokens
from deltaci.forges.http import ForgeHttpClient, NotAllowed
from deltaci.forges.projects import ForgeProject
from deltaci.forges.webhook_event import WebhookEvent, decode_payload
from deltaci.storage.documents import TypedDocuments
from deltaci.storage.port import Store

KIND: Final = "repository-id"
MAX_QUOTED_CHARS: Final = 200

LOGGER: Final = logging.getLogger(__name__)


class RepositoryIdentity(msgspec.Struct, frozen=True):
    """The forge's id for the repository of a project, with the name that it had in the forge's events.

    It is valid while the project's repository is `repository`.
    """

    repository: str
    id: str
    full_name: str


class _RepositoryResponse(msgspec.Struct, frozen=True):
    """The forge's name of a repository: `full_name` of GitHub and Gitea, `path_with_namespace` of GitLab."""

    full_name: str = ""
    path_with_namespace: str = ""


class RepositoryRenames:
    """Decides whether an event is about a project's repository, and follows renames."""

    def __init__(self, store: Store, projects: Projects, client: ForgeHttpClient) -> None:
        self._identities = TypedDocuments(store, KIND, RepositoryIdentity)
        self._projects = projects
        self._client = client
        self._app_tokens = AppTokens(client)

    async def is_about_project(self, project: ForgeProject, event: WebhookEvent) -> bool:
        """Return whether the event is about the project's repository: one webhook may serve many repositories."""
        name = event.change.repository
        if not name or not project.repository:
            return True
        # The project may name the repository by a longer path, if the forge is served below a path prefix.
        is_named = f"/{project.repository.casefold()}".endswith(f"/{name.casefold()}")
        if not event.repository_id:
            return is_named
        document_name = of(project.tenant, project.name)
        current = RepositoryIdentity(project.repository, event.repository_id, name)
        if is_named:
            await self._identities.update(ALL_TENANTS, document_name, lambda _: current)
            return True
        known = await self._identities.find(ALL_TENANTS, document_name)
        if known is None or (known.repository, known.id) != (current.repository, current.id):
            return False
        await self._follow(project, known, name)
        return True

    async def _follow(self, project: ForgeProject, known: RepositoryIdentity, name: str) -> None:
        """Change the project's URL to the repository's new name, if the forge confirms it. Else log why not."""
        quoted_name = plain_line(name, MAX_QUOTED_CHARS)
        try:
            confirmed_name = await self._current_name(project, known.id)
        except (NotAllowed, Unreachable, msgspec.DecodeError) as error:
            LOGGER.warning("project %s: its repository is now %r: %s", project.name, quoted_name, error)
            return
        if confirmed_name != name:
            LOGGER.warning(
                "project %s: its repository is now %r, which its forge does not confirm; change its URL",
                project.name,
                quoted_name,
            )
            return
        stored_project = await self._projects.find(project.tenant, project.name)
        start = stored_project.url.casefold().rfind(known.full_name.casefold()) if stored_project is not None else -1
        if stored_project is None or start < 0:
            return
        url = stored_project.url[:start] + name + stored_project.url[start + len(known.full_name) :]
        try:
            await self._projects.put(msgspec.structs.replace(stored_project, url=url), actor=ORCHESTRATOR)
        except Refused as refused:  # Somebody changes the project at this moment; the next event tries again.
            LOGGER.warning("project %s: %s", project.name, refused.message)
        else:
            LOGGER.info("project %s: its repository was renamed to %r", project.name, quoted_name)

    async def _current_name(self, project: ForgeProject, repository_id: str) -> str:
        """Return the present name of the repository with this id, or an empty string without access to the API.

        Raises `NotAllowed`, `Unreachable` or `msgspec.DecodeError`.
        """
        forge_api = STATUS_APIS.get(project.forge)
        if forge_api is None or not project.api_token:
            return ""
        project = await self._app_tokens.with_token(project)
        response, body = await self._client.send_and_read(forge_api.repository_request(project, repository_id))
        if response.status != 200:
            raise Unreachable(f"the forge answered {response.status}: {response.text}")
        repository = decode_payload(body, _RepositoryResponse)
        return repository.full_name or repository.path_with_namespace
