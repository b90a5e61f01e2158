"""The HTTP settings and the conversion of errors that both clients share."""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import urlsplit

import httpx

from deltaci.client import server_address
from deltaci.client.calls import Call
from deltaci.client.errors import ClientError, Unreachable
from deltaci.core.text import plain_line

CONNECT_SECONDS: Final = 5.0
ANSWER_SECONDS: Final = 60.0
MAX_CONNECTIONS: Final = 100
HTTP_ERRORS: Final = (httpx.HTTPError, httpx.StreamError, httpx.InvalidURL)
_NEVER_CONNECTED: Final = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)


Key = str | Callable[[], str]  # A function is asked for each request: what it makes may be short-lived.


class _BearerAuth(httpx.Auth):
    """Adds the API key to each request."""

    def __init__(self, key: Callable[[], str]) -> None:
        self._key = key

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        """Add the key to the request. httpx calls this."""
        request.headers["Authorization"] = f"Bearer {self._key()}"
        yield request


class ConnectionSettings:
    """The validated server URL and API key, as arguments for httpx."""

    def __init__(self, server: str | None, key: Key | None, ca: str | Path | None) -> None:
        self.url = server_address.checked_url(server_address.server_url() if server is None else server)
        self._key: Callable[[], str] | None = None
        if callable(key):
            self._key = key
        elif shown := server_address.checked_key(
            os.environ.get(server_address.KEY_VARIABLE, "") if key is None else key
        ):
            self._key = lambda: shown
        self._ca = ca

    def options(self, timeout_seconds: float) -> dict[str, Any]:
        """Return the arguments of `httpx.Client` and `httpx.AsyncClient`. No proxy is used for this machine."""
        headers = {"User-Agent": "deltaci", "Accept": "application/json"}
        url = urlsplit(self.url)
        return {
            "base_url": self.url,
            "headers": headers,
            "auth": None if self._key is None else _BearerAuth(self._key),
            "timeout": httpx.Timeout(timeout_seconds, connect=min(CONNECT_SECONDS, timeout_seconds)),
            "limits": httpx.Limits(max_connections=MAX_CONNECTIONS),
            "trust_env": not server_address.is_this_machine(url.hostname or ""),
            "verify": self._tls(url.scheme),
            "follow_redirects": False,
        }

    def _tls(self, scheme: str) -> ssl.SSLContext | Literal[True]:
        """Return which certificates are valid. Without TLS, no authorities are read, which would take 20 ms of CPU."""
        if self._ca is not None:
            return ssl.create_default_context(cafile=str(self._ca))
        return True if scheme == "https" else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def request_of(call: Call[Any]) -> dict[str, Any]:
    """Return the arguments of `httpx` for a request."""
    headers = dict(call.headers)
    if call.body is not None:
        headers["Content-Type"] = "application/json"
    return {
        "method": call.method,
        "url": call.path,
        "params": list(call.query) or None,
        "headers": headers,
        "content": call.body,
    }


def stream_of(call: Call[Any], silence_seconds: float) -> dict[str, Any]:
    """Return the arguments of `httpx` for a streamed response, uncompressed because its bytes are counted."""
    request = request_of(call)
    request["headers"].setdefault("Accept", "*/*")
    request["headers"]["Accept-Encoding"] = "identity"
    return {**request, "timeout": httpx.Timeout(silence_seconds, connect=CONNECT_SECONDS)}


def check_open(http: httpx.Client | httpx.AsyncClient) -> None:
    """Raise an error if the client was closed."""
    if http.is_closed:
        raise ClientError("the client was closed")


def connection_error(url: str, error: Exception) -> Unreachable:
    """Return the `Unreachable` error for a failed connection, as one line."""
    if isinstance(error, httpx.ConnectTimeout):
        found = f"no connection within {CONNECT_SECONDS:.0f} s"
    elif isinstance(error, httpx.TimeoutException):
        found = "no answer in time"
    else:
        found = plain_line(str(error), 200) or type(error).__name__
    return Unreachable(
        f"the server {url} cannot be reached: {found}; check that it is running and that the URL is correct",
        is_unheard=isinstance(error, _NEVER_CONNECTED),
    )
