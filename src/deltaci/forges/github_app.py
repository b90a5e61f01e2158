"""GitHub Apps: a private key in, a token that is good for an hour out. Only an App may make check runs.

The token of a project that names an App is the App's private key, in PEM. From it follows a word of a few minutes that
proves who we are, and for that GitHub gives a token for one installation, which is kept in memory until it is almost
over.
"""

from __future__ import annotations

import time
from base64 import urlsafe_b64encode
from collections.abc import Callable
from importlib import import_module
from typing import Any, Final
from urllib.parse import quote

import msgspec
from msgspec.structs import replace

from deltaci.forges.http import NotAllowed, Outlet, Unreachable
from deltaci.forges.projects import ForgeProject
from deltaci.forges.status_state import Call, is_refusal

API: Final = "https://api.github.com"
EARLIER_SECONDS: Final = 60.0  # Clocks differ: GitHub takes no word from its future.
WORD_SECONDS: Final = 540.0  # GitHub takes none that is good for more than ten minutes.
KEPT_SECONDS: Final = 50 * 60.0  # Of the hour that a token is good.
MAX_KEPT: Final = 1000
MISSING: Final = "GitHub Apps need a part that is not installed; run: pip install 'deltaci[secrets]'"


class _Given(msgspec.Struct, frozen=True):
    """What GitHub answers."""

    token: str


class Apps:
    """Tokens of installations."""

    def __init__(self, outlet: Outlet, clock: Callable[[], float] = time.time) -> None:
        self._outlet = outlet
        self._clock = clock
        self._kept: dict[tuple[str, str, str, str], tuple[str, float]] = {}

    async def opened(self, project: ForgeProject) -> ForgeProject:
        """The project with a token that it can speak with. Raises `NotAllowed` or `Unreachable`."""
        if not project.app_id:
            return project
        key = (project.tenant, project.api_url, project.app_id, project.installation_id)
        token, until = self._kept.get(key, ("", 0.0))
        now = self._clock()
        if until <= now:
            token = await self._asked(project, now)
            if len(self._kept) >= MAX_KEPT:
                self._kept.clear()
            self._kept[key] = (token, now + KEPT_SECONDS)
        return replace(project, api_token=token)

    def forget(self, project: ForgeProject) -> None:
        """The token was not taken: ask for another one next time."""
        self._kept.pop((project.tenant, project.api_url, project.app_id, project.installation_id), None)

    async def _asked(self, project: ForgeProject, now: float) -> str:
        headers = {
            "Authorization": f"Bearer {app_word(project.app_id, project.api_token, now)}",
            "Accept": "application/vnd.github+json",
        }
        installation = quote(project.installation_id, safe="")
        url = f"{project.api(API)}/app/installations/{installation}/access_tokens"
        answer, body = await self._outlet.ask(Call("POST", url, headers, {}))
        try:
            if 200 <= answer.status < 300:
                return msgspec.json.decode(body, type=_Given).token
        except msgspec.DecodeError:
            raise Unreachable("the forge gave no token for the installation of the App") from None
        problem = f"no token for the installation of the App: {answer.status}: {answer.text}"
        raise NotAllowed(problem) if is_refusal(answer) else Unreachable(problem)


def app_word(app_id: str, pem: str, now: float) -> str:
    """A JSON Web Token by which an App proves who it is. A key that is none is not allowed."""
    claims = {"iat": int(now - EARLIER_SECONDS), "exp": int(now + WORD_SECONDS), "iss": app_id}
    text = f"{_packed({'alg': 'RS256', 'typ': 'JWT'})}.{_packed(claims)}"
    try:
        serialization = import_module("cryptography.hazmat.primitives.serialization")
        padding = import_module("cryptography.hazmat.primitives.asymmetric.padding")
        hashes = import_module("cryptography.hazmat.primitives.hashes")
    except ModuleNotFoundError:
        raise NotAllowed(MISSING) from None
    try:
        key: Any = serialization.load_pem_private_key(pem.encode(), password=None)
        signature: bytes = key.sign(text.encode(), padding.PKCS1v15(), hashes.SHA256())
    except (ValueError, TypeError, AttributeError):
        raise NotAllowed("the token of a project with an App is the App's private key, in PEM; this is none") from None
    return f"{text}.{_unpadded(signature)}"


def _packed(value: dict[str, Any]) -> str:
    return _unpadded(msgspec.json.encode(value))


def _unpadded(raw: bytes) -> str:
    return urlsafe_b64encode(raw).rstrip(b"=").decode()
