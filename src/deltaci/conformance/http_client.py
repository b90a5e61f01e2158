"""Requests to a server under test, including malformed ones that no runner sends."""

from __future__ import annotations

import http.client
import json
from contextlib import suppress
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from deltaci.core.errors import Unreachable
from deltaci.protocol.routes import ROOT

TIMEOUT_SECONDS: Final = 15.0


class Reply(NamedTuple):
    """Status and body of a response; the body is decoded if it is JSON."""

    status: int
    body: Any

    @property
    def code(self) -> str:
        """The error code, the reason of a `StaleLease`, or the type of another message."""
        if not isinstance(self.body, dict):
            return type(self.body).__name__
        message_type = str(self.body.get("type", ""))
        return str(
            self.body.get("reason", "") if message_type == "StaleLease" else message_type or self.body.get("code", "")
        )

    def __str__(self) -> str:
        return f"{self.status} {self.code}".strip()


class HttpClient:
    """Sends requests to one server. Each request has its own connection, so that a broken one affects no other."""

    def __init__(self, url: str) -> None:
        url_parts = urlsplit(url)
        if url_parts.scheme not in ("http", "https") or not url_parts.hostname:
            raise ValueError(f"the server's address is {url!r}; give one like http://host:8080")
        self._host, self._port, self._root = url_parts.hostname, url_parts.port, url_parts.path.rstrip("/") + ROOT
        self._is_secure = url_parts.scheme == "https"

    def request(self, method: str, route_name: str, body: Any = b"", credential: str = "", **headers: str) -> Reply:
        """Send one request to a route of the protocol.

        A body that is not bytes is sent as JSON; `Delta_Lease` becomes the header `Delta-Lease`.
        """
        sent_headers = {header_name.replace("_", "-"): header_value for header_name, header_value in headers.items()}
        if credential:
            sent_headers["Authorization"] = f"Bearer {credential}"
        encoded_body = body if isinstance(body, bytes) else json.dumps(body).encode()
        connection_class = http.client.HTTPSConnection if self._is_secure else http.client.HTTPConnection
        connection = connection_class(self._host, self._port, timeout=TIMEOUT_SECONDS)
        try:
            connection.connect()
            # A server may refuse a large body before it has read all of it; its response can be read all the same.
            with suppress(BrokenPipeError, ConnectionResetError):
                connection.request(method, self._root + route_name, encoded_body, sent_headers)
            with connection.getresponse() as response:
                return Reply(response.status, _decode_body(response.read()))
        except (OSError, http.client.HTTPException) as error:
            raise Unreachable(f"no answer to {method} {route_name}: {type(error).__name__}: {error}") from error
        finally:
            connection.close()


def _decode_body(response_body: bytes) -> Any:
    """Return the JSON value of a body, or its text if it is not JSON."""
    try:
        return json.loads(response_body)
    except ValueError:
        return response_body.decode(errors="replace")
