"""Projects as their forges know them: what people wrote, with the secrets opened that it names.

What was opened is kept in memory for a few seconds, since every delivery and every step of a run asks for it. A secret
that does not open is no reason to be silent about the other one.
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

KEPT_SECONDS: Final = 10.0
MAX_KEPT: Final = 1000
_SCP: Final = re.compile(r"(?:[^@/:]+@)?([^:/@]+):(?!//)(.+)")  # git@example.org:owner/name.git
# A GitHub App instead of a token: who it is, where it is installed, and its private key.
_APP: Final = re.compile(r"app:([\w.-]{1,100}):(\d{1,20})\s+(-----BEGIN .+)", re.DOTALL)

LOGGER: Final = logging.getLogger(__name__)

SecretOf = Callable[[str, str, str], str]  # The value of a secret, by tenant, project and name; it may take a while.


class Written(Protocol):
    """A project as people wrote it: of secrets it has the names."""

    @property
    def name(self) -> str:
        """What it is called."""
        ...

    @property
    def url(self) -> str:
        """Where it is cloned from."""
        ...

    @property
    def forge(self) -> str:
        """What kind of forge it is on."""
        ...

    @property
    def webhook_secret(self) -> str:
        """The name of a secret."""
        ...

    @property
    def api_url(self) -> str:
        """The forge's API, if it is not where it usually is."""
        ...

    @property
    def api_token(self) -> str:
        """The name of a secret."""
        ...

    @property
    def reports(self) -> str:
        """How the forge is told what came of a commit."""
        ...


Find = Callable[[str, str], Awaitable[Written | None]]


class OpenedProjects:
    """Looks projects up, and opens their secrets."""

    def __init__(self, find: Find, secret_of: SecretOf, clock: Callable[[], float] = time.monotonic) -> None:
        self._find = find
        self._secret_of = secret_of
        self._clock = clock
        self._kept: dict[tuple[str, str], tuple[float, Written, ForgeProject]] = {}

    async def forge_of(self, tenant: str, project: str) -> ForgeProject | None:
        """The project with its secrets opened; None: there is no such project."""
        written = await self._find(tenant, project)
        if written is None:
            return None
        until, known, opened = self._kept.get((tenant, project), (0.0, None, None))
        now = self._clock()
        if opened is not None and known == written and now < until:
            return opened
        opened = await asyncio.to_thread(self._opened, tenant, written)
        if len(self._kept) >= MAX_KEPT:
            self._kept.clear()
        self._kept[tenant, project] = (now + KEPT_SECONDS, written, opened)
        return opened

    def _opened(self, tenant: str, written: Written) -> ForgeProject:
        webhook_secret, _ = self._secret(tenant, written, written.webhook_secret)
        api_token, problem = self._secret(tenant, written, written.api_token)
        app_id, installation_id, api_token = app.groups() if (app := _APP.fullmatch(api_token)) else ("", "", api_token)
        told = {
            "tenant": tenant,
            "name": written.name,
            "forge": written.forge,
            "repository": getattr(written, "repository", "") or repository_of(written.url),
            "webhook_secret": webhook_secret,
            "api_url": written.api_url or api_of(written.forge, written.url),
            "api_token": api_token,
            "problem": problem,
            "reports": written.reports,
            "app_id": app_id,
            "installation_id": installation_id,
        }
        return msgspec.convert(told, ForgeProject)

    def _secret(self, tenant: str, written: Written, name: str) -> tuple[str, str]:
        """Its value without a newline at its end, or what is wrong with it."""
        if not name:
            return "", ""
        try:
            return self._secret_of(tenant, written.name, name).strip(), ""
        except Refused as refused:
            LOGGER.warning("project %s: %s", written.name, refused.message)
            return "", refused.message
        except BlobStoreUnavailable:
            raise
        except OSError as error:
            raise BlobStoreUnavailable(f"a secret cannot be read now: {error.strerror or error}") from error


def _host_and_path(url: str) -> tuple[str, str, str]:
    """Scheme, host and path of an address, also of one as ssh writes it."""
    if (short := _SCP.fullmatch(url)) is not None and "://" not in url:
        return "ssh", short[1], short[2]
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return "", "", ""
    is_web = parts.scheme in ("http", "https")
    return parts.scheme, f"{host}:{port}" if port and is_web else host, parts.path


def repository_of(url: str) -> str:
    """What a forge calls the repository: all of its path, e.g. `group/part/name`."""
    return _host_and_path(url)[2].strip("/").removesuffix(".git")


def api_of(forge: str, url: str) -> str:
    """Where the API of the forge usually is; empty: there is none."""
    scheme, host, _ = _host_and_path(url)
    if not host:
        return ""
    at = f"{'http' if scheme == 'http' else 'https'}://{host}"
    match forge:
        case "github":
            return "https://api.github.com" if host.lower() == "github.com" else f"{at}/api/v3"
        case "gitlab":
            return f"{at}/api/v4"
        case "gitea" | "forgejo":
            return f"{at}/api/v1"
    return ""
