"""GitHub Apps: exchange an App's private key for a token that is valid for an hour. Only an App may create check runs.

The API token of such a project is `app:ID:INSTALLATION` with the App's private key in PEM. The key signs a JSON Web
Token that is valid for a few minutes; GitHub exchanges it for a token of one installation, which is cached in memory
until shortly before it expires.
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

from deltaci.core.errors import Unreachable
from deltaci.forges.http import ForgeHttpClient, NotAllowed
from deltaci.forges.projects import ForgeProject
from deltaci.forges.status_decisions import ForgeRequest, is_refusal

API: Final = "https://api.github.com"
CLOCK_SKEW_SECONDS: Final = 60.0  # GitHub refuses a JWT that was issued in the future by its own clock.
JWT_SECONDS: Final = 540.0  # GitHub refuses a JWT that is valid for more than ten minutes.
CACHE_SECONDS: Final = 50 * 60.0  # A token is valid for an hour.
MAX_CACHED: Final = 1000
MISSING_PACKAGE: Final = "GitHub Apps need a package that is not installed; run: pip install 'deltaci[secrets]'"


class _TokenResponse(msgspec.Struct, frozen=True):
    token: str


class AppTokens:
    """Requests tokens of App installations and caches them in memory."""

    def __init__(self, client: ForgeHttpClient, clock: Callable[[], float] = time.time) -> None:
        self._client = client
        self._clock = clock
        self._cache: dict[tuple[str, str, str, str], tuple[str, float]] = {}

    async def with_token(self, project: ForgeProject) -> ForgeProject:
        """Return the project with a token of its App's installation as `api_token`.

        Return a project without an App unchanged. Raises `NotAllowed` or `Unreachable`.
        """
        if not project.app_id:
            return project
        cache_key = (project.tenant, project.api_url, project.app_id, project.installation_id)
        token, expires_at = self._cache.get(cache_key, ("", 0.0))
        now = self._clock()
        if expires_at <= now:
            token = await self._request_token(project, now)
            if len(self._cache) >= MAX_CACHED:
                self._cache.clear()
            self._cache[cache_key] = (token, now + CACHE_SECONDS)
        return replace(project, api_token=token)

    def forget(self, project: ForgeProject) -> None:
        """Drop the cached token of a project's installation, because GitHub did not accept it."""
        self._cache.pop((project.tenant, project.api_url, project.app_id, project.installation_id), None)

    async def _request_token(self, project: ForgeProject, now: float) -> str:
        request_headers = {
            "Authorization": f"Bearer {app_jwt(project.app_id, project.api_token, now)}",
            "Accept": "application/vnd.github+json",
        }
        quoted_installation_id = quote(project.installation_id, safe="")
        url = f"{project.api_root(API)}/app/installations/{quoted_installation_id}/access_tokens"
        response, response_body = await self._client.send_and_read(ForgeRequest("POST", url, request_headers, {}))
        try:
            if 200 <= response.status < 300:
                return msgspec.json.decode(response_body, type=_TokenResponse).token
        except msgspec.DecodeError:
            raise Unreachable("the response has no token for the installation of the App") from None
        problem = f"no token for the installation of the App: {response.status}: {response.text}"
        raise NotAllowed(problem) if is_refusal(response) else Unreachable(problem)


def app_jwt(app_id: str, private_key_pem: str, now: float) -> str:
    """Return a JSON Web Token that authenticates as the App. Raise `NotAllowed` for an invalid private key."""
    claims = {"iat": int(now - CLOCK_SKEW_SECONDS), "exp": int(now + JWT_SECONDS), "iss": app_id}
    signing_input = f"{_base64_json({'alg': 'RS256', 'typ': 'JWT'})}.{_base64_json(claims)}"
    try:
        serialization = import_module("cryptography.hazmat.primitives.serialization")
        padding = import_module("cryptography.hazmat.primitives.asymmetric.padding")
        hashes = import_module("cryptography.hazmat.primitives.hashes")
    except ModuleNotFoundError:
        raise NotAllowed(MISSING_PACKAGE) from None
    try:
        private_key: Any = serialization.load_pem_private_key(private_key_pem.encode(), password=None)
        signature: bytes = private_key.sign(signing_input.encode(), padding.PKCS1v15(), hashes.SHA256())
    except (ValueError, TypeError, AttributeError):
        raise NotAllowed(
            "the token of a project with an App must be the App's private key in PEM; the stored one is not"
        ) from None
    return f"{signing_input}.{_base64(signature)}"


def _base64_json(json_value: dict[str, Any]) -> str:
    return _base64(msgspec.json.encode(json_value))


def _base64(raw: bytes) -> str:
    """Encode as URL-safe base64 without padding."""
    return urlsafe_b64encode(raw).rstrip(b"=").decode()
