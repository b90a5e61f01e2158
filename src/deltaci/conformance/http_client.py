"""Requests as a runner sends them, and as no runner should: raw bodies, missing credentials, other people's leases."""

from __future__ import annotations

import http.client
import json
from contextlib import suppress
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from deltaci.protocol.routes import ROOT

TIMEOUT_SECONDS: Final = 15.0


class ServerUnreachable(Exception):
    """Nobody answered."""


class Reply(NamedTuple):
    """What came back."""

    status: int
    body: Any

    @property
    def word(self) -> str:
        """A refusal's code, a stale lease's reason, or the type of the message."""
        if not isinstance(self.body, dict):
            return type(self.body).__name__
        kind = str(self.body.get("type", ""))
        return str(self.body.get("reason", "") if kind == "StaleLease" else kind or self.body.get("code", ""))

    def __str__(self) -> str:
        return f"{self.status} {self.word}".strip()


class HttpClient:
    """One address. Every request is a connection of its own: a broken one harms no other."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"the server's address is {url!r}; give one like http://host:8080")
        self._host, self._port, self._root = parts.hostname, parts.port, parts.path.rstrip("/") + ROOT
        self._is_secure = parts.scheme == "https"

    def ask(self, method: str, name: str, body: Any = b"", credential: str = "", **headers: str) -> Reply:
        """Ask once. A body that is no bytes is sent as JSON; `delta_lease` becomes the header Delta-Lease."""
        sent = {key.replace("_", "-"): value for key, value in headers.items()}
        if credential:
            sent["Authorization"] = f"Bearer {credential}"
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        made = http.client.HTTPSConnection if self._is_secure else http.client.HTTPConnection
        connection = made(self._host, self._port, timeout=TIMEOUT_SECONDS)
        try:
            connection.connect()
            # A server may refuse a body that is too large before it has read it all; the answer is there nevertheless.
            with suppress(BrokenPipeError, ConnectionResetError):
                connection.request(method, self._root + name, data, sent)
            with connection.getresponse() as answer:
                return Reply(answer.status, _read(answer.read()))
        except (OSError, http.client.HTTPException) as error:
            raise ServerUnreachable(f"no answer to {method} {name}: {type(error).__name__}: {error}") from error
        finally:
            connection.close()


def _read(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return body.decode(errors="replace")
