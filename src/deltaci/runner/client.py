"""How a runner reaches its server: HTTP with the standard library, one kept connection for each thread."""

from __future__ import annotations

import http.client
import socket
import ssl
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from deltaci.core.errors import Refused
from deltaci.wire import messages as wire
from deltaci.wire.addresses import ROOT
from deltaci.wire.messages import LeaseGranted, Problem, Registered, Registration, RunnerMessage, ServerMessage

TIMEOUT_SECONDS: Final = 10.0


class Unreachable(Exception):
    """The server did not answer. Whether it heard is unknown: say it again."""


class Granted(msgspec.Struct, frozen=True):
    """The answer to a request for work."""

    leases: list[LeaseGranted]


class Size(msgspec.Struct, frozen=True):
    """How far a log is."""

    size: int


_granted = msgspec.json.Decoder(Granted).decode
_size = msgspec.json.Decoder(Size).decode
_registered = msgspec.json.Decoder(Registered).decode
_problem = msgspec.json.Decoder(Problem).decode


class Client:
    """Speaks for one runner. `token` may be changed at any time, from any thread."""

    def __init__(self, url: str, token: str = "", context: ssl.SSLContext | None = None) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise Refused("bad_request", f"the server's address is {url!r}; give one like http://host:8080")
        self._host, self._port = parts.hostname, parts.port
        self._is_secure, self._context = parts.scheme == "https", context
        self._root = parts.path.rstrip("/") + ROOT
        self._kept = threading.local()
        self._open: set[http.client.HTTPConnection] = set()
        self._is_aborted = False
        self.token = token

    def register(
        self, token: str, capabilities: Sequence[str], slots: int, request_id: str | None = None
    ) -> Registered:
        """Exchange a registration token, once, for a credential. With a request id it may be said again."""
        asked = Registration(token=token, capabilities=list(capabilities), slots=slots, request_id=request_id)
        return _registered(self._call("POST", "register", wire.encode(asked)))

    def renew(self) -> Registered:
        """A fresh credential for the one that is still good."""
        return _registered(self._call("POST", "renew"))

    def lease(self, asked: wire.Lease) -> list[LeaseGranted]:
        """Ask for work, and wait for it."""
        body = self._call("POST", "lease", wire.encode(asked), timeout=asked.wait_seconds + TIMEOUT_SECONDS)
        return _granted(body).leases

    def say(self, message: RunnerMessage, timeout: float = TIMEOUT_SECONDS) -> ServerMessage:
        """Say one thing."""
        answer: ServerMessage = wire.decode_answer(
            self._call("POST", "messages", wire.encode(message), timeout=timeout)
        )
        return answer

    def say_all(self, said: Sequence[RunnerMessage], timeout: float) -> list[ServerMessage | Problem]:
        """Say many things at once; each is answered in its place."""
        body = self._call("POST", "batch", msgspec.json.encode(list(said)), timeout=timeout)
        return [_answer(raw) for raw in msgspec.json.decode(body, type=list[msgspec.Raw])]

    def spec(self, ref: str, lease_id: str) -> wire.JobSpec:
        """The specification that was too large for the lease, from where the lease says it is."""
        found = self._call("GET", ref.removeprefix(ROOT), headers={"Delta-Lease": lease_id})
        return msgspec.json.decode(found, type=wire.JobSpec)

    def log_size(self, lease_id: str, timeout: float = TIMEOUT_SECONDS) -> int:
        """How much of the log the server has."""
        return _size(self._call("GET", "log", headers={"Delta-Lease": lease_id}, timeout=timeout)).size

    def append_log(self, lease_id: str, offset: int, data: bytes, timeout: float = TIMEOUT_SECONDS) -> int:
        """Send a part of the log; where it ends now."""
        headers = {"Delta-Lease": lease_id, "Delta-Offset": str(offset)}
        return _size(self._call("POST", "log", data, headers, timeout)).size

    def close(self) -> None:
        """Hang up this thread's connection."""
        kept: http.client.HTTPConnection | None = getattr(self._kept, "connection", None)
        if kept is not None:
            self._open.discard(kept)
            kept.close()
            self._kept.connection = None

    def abort(self) -> None:
        """Hang up for good, in the middle of whatever is said, from any thread: those who wait hear `Unreachable`."""
        self._is_aborted = True
        for connection in list(self._open):
            if connection.sock is not None:
                with suppress(OSError):
                    connection.sock.shutdown(socket.SHUT_RDWR)

    def _call(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        headers: dict[str, str] | None = None,
        timeout: float = TIMEOUT_SECONDS,
    ) -> bytes:
        sent = {"Content-Type": "application/json", **(headers or {})}
        if self.token:
            sent["Authorization"] = f"Bearer {self.token}"
        try:
            connection = self._connection(timeout)
            if connection.sock is None:
                connection.connect()
            if self._is_aborted:
                raise OSError("hung up")
            connection.request(method, self._root + path, body, sent)
            answer = connection.getresponse()
            found = answer.read()
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise Unreachable(f"the server does not answer: {type(error).__name__}: {error}") from error
        return self._accepted(path, answer.status, found)

    @staticmethod
    def _accepted(path: str, status: int, body: bytes) -> bytes:
        if status < 300:
            return body
        if status == 409 and b'"StaleLease"' in body[:40]:
            if path == "messages":
                return body
            # Who sends a log or fetches a specification asks for something else, and would not know what this is.
            raise Refused("stale_lease", "the lease is no longer good; stop this attempt")
        try:
            problem = _problem(body)
        except msgspec.DecodeError:
            problem = Problem("unavailable", f"the server answered {status}")
        if status >= 500:
            raise Unreachable(problem.message)
        raise Refused(problem.code, problem.message)

    def _connection(self, timeout: float) -> http.client.HTTPConnection:
        kept: http.client.HTTPConnection | None = getattr(self._kept, "connection", None)
        if kept is None:
            made: Any = (
                http.client.HTTPSConnection(self._host, self._port, timeout=timeout, context=self._context)
                if self._is_secure
                else http.client.HTTPConnection(self._host, self._port, timeout=timeout)
            )
            kept = self._kept.connection = made
            self._open.add(made)
        kept.timeout = timeout
        if kept.sock is not None:
            kept.sock.settimeout(timeout)
        return kept


def _answer(raw: bytes) -> ServerMessage | Problem:
    try:
        answer: ServerMessage = wire.decode_answer(raw)
    except msgspec.ValidationError:
        return _problem(raw)
    return answer
