"""Look up a project with the values of its forge secrets: webhook secret and API token.

The values are cached in memory for a few seconds, because every webhook request and every status needs them. A secret
that cannot be read does not keep the other one from being used; the API token's error is stored in `problem`.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable
from typing import Final, Protocol
from urllib.parse import urlsplit

import msgspec

from deltaci.core.errors import Refused
from deltaci.forges.projects import ForgeProject
from deltaci.storage.blobs.store import BlobStoreUnavailable

CACHE_SECONDS: Final = 10.0
MAX_CACHED: Final = 1000
_SCP_URL: Final = re.compile(r"(?:[^@/:]+@)?([^:/@]+):(?!//)(.+)")  # git@example.org:owner/name.git
# A GitHub App in place of a token: the ids of the App and its installation, and the App's private key.
_APP: Final = re.compile(r"app:([\w.-]{1,100}):(\d{1,20})\s+(-----BEGIN .+)", re.DOTALL)

LOGGER: Final = logging.getLogger(__name__)

ReadSecret = Callable[[str, str, str], str]  # Returns a secret's value by tenant, project and name; may block.


class StoredProject(Protocol):
    """A project as stored, with the names of its secrets instead of their values."""

    @property
    def name(self) -> str: ...

    @property
    def url(self) -> str:
        """The clone URL."""
        ...

    @property
    def forge(self) -> str:
        """The kind of forge."""
        ...

    @property
    def webhook_secret(self) -> str:
        """The name of the secret that signs webhook requests."""
        ...

    @property
    def api_url(self) -> str:
        """The URL of the forge's API; empty for the default one."""
        ...

    @property
    def api_token(self) -> str:
        """The name of the secret with the API token."""
        ...

    @property
    def reports(self) -> str:
        """How results are reported to the forge: `statuses`, `checks` or `nothing`."""
        ...


FindProject = Callable[[str, str], Awaitable[StoredProject | None]]


class CachedForgeProjects:
    """Looks up projects and reads their secrets; implements `ForgeProjects`."""

    def __init__(
        self, find_project: FindProject, read_secret: ReadSecret, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._find_project = find_project
        self._read_secret = read_secret
        self._clock = clock
        self._cache: dict[tuple[str, str], tuple[float, StoredProject, ForgeProject]] = {}

    async def find(self, tenant: str, project: str) -> ForgeProject | None:
        """Return the project with the values of its secrets, or None if it does not exist."""
        stored_project = await self._find_project(tenant, project)
        if stored_project is None:
            return None
        expires_at, cached_stored_project, cached_project = self._cache.get((tenant, project), (0.0, None, None))
        now = self._clock()
        if cached_project is not None and cached_stored_project == stored_project and now < expires_at:
            return cached_project
        loaded_project = await asyncio.to_thread(self._load_project, tenant, stored_project)
        if len(self._cache) >= MAX_CACHED:
            self._cache.clear()
        self._cache[tenant, project] = (now + CACHE_SECONDS, stored_project, loaded_project)
        return loaded_project

    def _load_project(self, tenant: str, stored_project: StoredProject) -> ForgeProject:
        """Return the project with its secrets and defaults.

        A secret that cannot be read is empty, and `problem` says why.
        """
        webhook_secret, _ = self._secret_or_problem(tenant, stored_project, stored_project.webhook_secret)
        api_token, problem = self._secret_or_problem(tenant, stored_project, stored_project.api_token)
        app_id, installation_id, api_token = (
            app_match.groups() if (app_match := _APP.fullmatch(api_token)) else ("", "", api_token)
        )
        project_fields = {
            "tenant": tenant,
            "name": stored_project.name,
            "forge": stored_project.forge,
            "repository": getattr(stored_project, "repository", "") or repository_path(stored_project.url),
            "webhook_secret": webhook_secret,
            "api_url": stored_project.api_url or default_api_url(stored_project.forge, stored_project.url),
            "api_token": api_token,
            "problem": problem,
            "reports": stored_project.reports,
            "app_id": app_id,
            "installation_id": installation_id,
        }
        return msgspec.convert(project_fields, ForgeProject)

    def _secret_or_problem(self, tenant: str, stored_project: StoredProject, secret_name: str) -> tuple[str, str]:
        """Return a secret's value without surrounding white space and "", or "" and why it cannot be used."""
        if not secret_name:
            return "", ""
        try:
            return self._read_secret(tenant, stored_project.name, secret_name).strip(), ""
        except Refused as refused:
            LOGGER.warning("project %s: %s", stored_project.name, refused.message)
            return "", refused.message
        except BlobStoreUnavailable:
            raise
        except OSError as error:
            raise BlobStoreUnavailable(f"a secret cannot be read now: {error.strerror or error}") from error


def _scheme_host_path(clone_url: str) -> tuple[str, str, str]:
    """Return scheme, host (with the port of a web URL) and path of a clone URL, also of one in scp form.

    Return empty strings for an invalid URL.
    """
    if (scp_url := _SCP_URL.fullmatch(clone_url)) is not None and "://" not in clone_url:
        return "ssh", scp_url[1], scp_url[2]
    try:
        url_parts = urlsplit(clone_url)
        host, port = url_parts.hostname or "", url_parts.port
    except ValueError:
        return "", "", ""
    is_web = url_parts.scheme in ("http", "https")
    return url_parts.scheme, f"{host}:{port}" if port and is_web else host, url_parts.path


def repository_path(clone_url: str) -> str:
    """Return the path of a clone URL without `.git`, e.g. `owner/name` or `group/subgroup/name`."""
    return _scheme_host_path(clone_url)[2].strip("/").removesuffix(".git")


def default_api_url(forge: str, clone_url: str) -> str:
    """Return the usual URL of the forge's API for a clone URL, or an empty string for a forge without one."""
    scheme, host, _ = _scheme_host_path(clone_url)
    if not host:
        return ""
    host_url = f"{'http' if scheme == 'http' else 'https'}://{host}"
    match forge:
        case "github":
            return "https://api.github.com" if host.lower() == "github.com" else f"{host_url}/api/v3"
        case "gitlab":
            return f"{host_url}/api/v4"
        case "gitea" | "forgejo":
            return f"{host_url}/api/v1"
    return ""
