"""The runner's client of the server: the runner protocol over HTTP, with one persistent connection for each thread.

A call raises `Unreachable` if it can be repeated, and `Refused` if the server understood it and refused it.
"""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar
from urllib.parse import quote, urlsplit

import msgspec

from deltaci.core.errors import CODES, Refused, Unreachable
from deltaci.core.text import plain_line
from deltaci.protocol import messages as wire
from deltaci.protocol.messages import LeaseGranted, Problem, Registered, Registration, RunnerMessage, ServerMessage
from deltaci.protocol.responses import (
    CacheMatch,
    ControlResponse,
    EndedStreams,
    LeaseResponse,
    LeaveResponse,
    LogSize,
    NeededJob,
    SharedArtifact,
    SourceCredential,
    WorktreeStart,
)
from deltaci.protocol.routes import LEASE_HEADER, OFFSET_HEADER, ROOT, SHA256_HEADER
from deltaci.runner.tls import InvalidTlsFiles, TlsConfig, explain_error

TIMEOUT_SECONDS: Final = 10.0
LEAVE_SECONDS: Final = 3.0  # A runner that leaves does not wait long.
TRANSFER_SECONDS: Final = 300.0  # Without a byte: the server responds only after it has stored a large body.
PART_BYTES: Final = 1024 * 1024
MAX_RESPONSE_BYTES: Final = 128 * 1024**2  # A thousand leases with their job specs.
MAX_MESSAGE: Final = 2000

T = TypeVar("T")


class Uploaded(msgspec.Struct, frozen=True):
    """The server's confirmation of an upload.

    `uri` is set for an artifact; `stored` is false for an existing cache key.
    """

    bytes: int
    sha256: str
    uri: str = ""
    stored: bool = True


def _body_decoder(body_type: type[T]) -> Callable[[bytes], T]:
    """Return a function that decodes a response body.

    It raises `Unreachable` for an unreadable body, which a proxy may have sent.
    """
    decode = wire.decoder(body_type)

    def decode_body(body: bytes) -> T:
        try:
            return decode(body)
        except msgspec.DecodeError as error:
            raise Unreachable(f"the server's response cannot be read: {error}") from None

    return decode_body


_read_uploaded = _body_decoder(Uploaded)
_read_leases = _body_decoder(LeaseResponse)
_read_control = _body_decoder(ControlResponse)
_read_leave = _body_decoder(LeaveResponse)
_read_log_size = _body_decoder(LogSize)
_read_registered = _body_decoder(Registered)
_read_job_spec = _body_decoder(wire.JobSpec)
_read_secrets = _body_decoder(dict[str, str])
_read_needs = _body_decoder(dict[str, NeededJob])
_read_shared_artifacts = _body_decoder(list[SharedArtifact])
_read_cache_match = _body_decoder(CacheMatch)
_read_worktree_start = _body_decoder(WorktreeStart)
_read_ended_streams = _body_decoder(EndedStreams)
_read_source_credential = _body_decoder(SourceCredential)
_read_stale_lease = _body_decoder(wire.StaleLease)
_read_batch = _body_decoder(list[msgspec.Raw])
_read_message: Callable[[bytes], ServerMessage] = _body_decoder(ServerMessage)  # type: ignore[arg-type]
_read_problem = _body_decoder(Problem)
_decode_problem = wire.decoder(Problem)


class RunnerClient:
    """Calls the server for one runner, from any thread. `token`, its credential, may be changed at any time."""

    def __init__(self, url: str, token: str = "", tls: TlsConfig | None = None) -> None:
        url_parts = urlsplit(url)
        if url_parts.scheme not in ("http", "https") or not url_parts.hostname:
            raise Refused("bad_request", f"the server's address is {url!r}; give one like http://host:8080")
        self._host, self._port = url_parts.hostname, url_parts.port
        self._tls = (tls or TlsConfig()) if url_parts.scheme == "https" else None
        self._root = url_parts.path.rstrip("/") + ROOT
        self._local = threading.local()  # The connection of each thread, and the TLS context that it uses.
        self._connections: set[http.client.HTTPConnection] = set()
        self._is_aborted = False
        self.token = token

    def register(self, token: str, capabilities: Sequence[str], slots: int, request_id: str = "") -> Registered:
        """Exchange a registration token for a credential: once, or again with the same `request_id`."""
        registration = Registration(token=token, capabilities=list(capabilities), slots=slots, request_id=request_id)
        return _read_registered(self._call("POST", "register", wire.encode(registration)))

    def renew(self, capabilities: Sequence[str] | None = None, slots: int | None = None) -> Registered:
        """Exchange a valid credential, or the client certificate, for a new credential; update labels and slots."""
        labels = list(capabilities) if capabilities is not None else None
        renewal = wire.Renewal(capabilities=labels, slots=slots)
        return _read_registered(self._call("POST", "renew", wire.encode(renewal)))

    def lease(self, request: wire.LeaseRequest) -> list[LeaseGranted]:
        """Request leases like `request_leases`; return the granted leases without the unclaimable attempts."""
        return self.request_leases(request).leases

    def request_leases(self, request: wire.LeaseRequest) -> LeaseResponse:
        """Request leases and wait up to `request.wait_seconds` for work. Return the whole response."""
        response_body = self._call(
            "POST", "lease", wire.encode(request), timeout=request.wait_seconds + TIMEOUT_SECONDS
        )
        return _read_leases(response_body)

    def leave(self, runner_id: str) -> bool:
        """Report that this runner takes no more work. Return whether the server has shut it down already."""
        encoded_request = wire.encode(wire.LeaveRequest(runner_id=runner_id))
        return _read_leave(self._call("POST", "leave", encoded_request, timeout=LEAVE_SECONDS)).is_shut_down

    def wait_for_cancels(self, request: wire.ControlRequest) -> list[wire.CancelRequested]:
        """Return the cancels of the leases in the request; wait for the first up to `request.wait_seconds`."""
        response_body = self._call(
            "POST", "control", wire.encode(request), timeout=request.wait_seconds + TIMEOUT_SECONDS
        )
        return _read_control(response_body).cancels

    def send(self, message: RunnerMessage, timeout: float = TIMEOUT_SECONDS) -> ServerMessage:
        """Send one message under a lease and return the server's answer."""
        return _read_message(self._call("POST", "messages", wire.encode(message), timeout=timeout))

    def send_batch(self, messages: Sequence[RunnerMessage], timeout: float) -> list[ServerMessage | Problem]:
        """Send many messages in one request and return their answers in the same order."""
        response_body = self._call("POST", "batch", msgspec.json.encode(list(messages)), timeout=timeout)
        return [_read_batch_response(bytes(encoded_response)) for encoded_response in _read_batch(response_body)]

    def spec(self, spec_path: str, lease_id: str) -> wire.JobSpec:
        """Return a job spec that was too large for the lease, read from its path, which the lease has."""
        return _read_job_spec(self._call_with_lease(lease_id, "GET", spec_path.removeprefix(ROOT)))

    def hand_back(self, lease_id: str) -> None:
        """End the lease so that another runner can run the job.

        Call it only when no process of the job is left here.
        """
        self._call_with_lease(lease_id, "POST", "hand-back")

    def log_size(self, lease_id: str, timeout: float = TIMEOUT_SECONDS) -> int:
        """Return how many bytes of the log the server has."""
        return _read_log_size(self._call_with_lease(lease_id, "GET", "log", timeout=timeout)).size

    def append_log(self, lease_id: str, offset: int, log_bytes: bytes, timeout: float = TIMEOUT_SECONDS) -> int:
        """Append to the log at `offset` and return its new size. Raise `Refused` with `log_gap` beyond its end."""
        headers = {OFFSET_HEADER: str(offset)}
        return _read_log_size(self._call_with_lease(lease_id, "POST", "log", log_bytes, headers, timeout)).size

    def secrets(self, lease_id: str) -> dict[str, str]:
        """Return the secrets that the job requires, by name."""
        return _read_secrets(self._call_with_lease(lease_id, "GET", "secrets"))

    def optional_secrets(self, lease_id: str) -> dict[str, str]:
        """Return those optional secrets of the job that exist and that it may have, by name."""
        return _read_secrets(self._call_with_lease(lease_id, "GET", "optional-secrets"))

    def source_credential(self, lease_id: str) -> str:
        """Return the credential with which the job's sources are fetched."""
        return _read_source_credential(self._call_with_lease(lease_id, "GET", "source-credential")).value

    def needs(self, lease_id: str) -> dict[str, NeededJob]:
        """Return the results of the jobs that this job needs, by name."""
        return _read_needs(self._call_with_lease(lease_id, "GET", "needs"))

    def worktree_start(self, lease_id: str) -> WorktreeStart:
        """Return the base commit and the first commit of the job's worktree."""
        return _read_worktree_start(self._call_with_lease(lease_id, "GET", "tree", timeout=TRANSFER_SECONDS))

    def ended_streams(self, ids: Sequence[str]) -> list[str]:
        """Return which of these workstreams have ended, so that this runner can remove their worktrees."""
        encoded_request = wire.encode(wire.EndedStreamsRequest(ids=list(ids)))
        return _read_ended_streams(self._call("POST", "streams", encoded_request)).ended

    def shared_artifacts(self, lease_id: str) -> list[SharedArtifact]:
        """Return the artifacts of this job and of the ended jobs of its run."""
        return _read_shared_artifacts(self._call_with_lease(lease_id, "GET", "run-artifacts"))

    def newest_cache(self, lease_id: str, prefix: str) -> str:
        """Return the key of the newest cache entry whose key starts with the prefix; empty if there is none."""
        return _read_cache_match(self._call_with_lease(lease_id, "GET", f"cache-keys/{quote(prefix, safe='')}")).key

    def upload(self, lease_id: str, url_path: str, body_parts: Iterable[bytes], size: int) -> Uploaded:
        """Upload a body of `size` bytes, given in parts, to a path of the protocol.

        Return the server's confirmation.
        """
        headers = {"Content-Length": str(size)}
        return _read_uploaded(
            self._call_with_lease(lease_id, "PUT", url_path, body_parts, headers, timeout=TRANSFER_SECONDS)
        )

    def download(self, lease_id: str, url_path: str, write: Callable[[bytes], object]) -> str:
        """Download a body from a path of the protocol, and call `write` with each part of it.

        Return the SHA-256 that the server sent with it.
        """
        return self._call_with_lease(lease_id, "GET", url_path, timeout=TRANSFER_SECONDS, write=write).decode()

    def _call_with_lease(
        self,
        lease_id: str,
        method: str,
        url_path: str,
        body: bytes | Iterable[bytes] = b"",
        headers: dict[str, str] | None = None,
        timeout: float = TIMEOUT_SECONDS,
        write: Callable[[bytes], object] | None = None,
    ) -> bytes:
        """Send a request under a lease and return the response body.

        Raise `Refused` with `stale_lease` if it is stale.
        """
        response_body = self._call(method, url_path, body, {LEASE_HEADER: lease_id, **(headers or {})}, timeout, write)
        if b'"StaleLease"' in response_body[:40]:
            reason = _read_stale_lease(response_body).reason
            raise Refused("stale_lease", f"the lease is no longer valid: {reason}")
        return response_body

    def close(self) -> None:
        """Close the connection of the calling thread."""
        connection: http.client.HTTPConnection | None = getattr(self._local, "connection", None)
        if connection is not None:
            self._connections.discard(connection)
            connection.close()
            self._local.connection = None

    def close_all(self) -> None:
        """Close the connections of all threads. No thread may use the client after that."""
        while self._connections:
            self._connections.pop().close()

    def abort(self) -> None:
        """Shut down all connections, from any thread. Calls in progress and all later ones raise `Unreachable`."""
        self._is_aborted = True
        for connection in list(self._connections):
            if connection.sock is not None:
                with suppress(OSError):
                    connection.sock.shutdown(socket.SHUT_RDWR)

    def _call(
        self,
        method: str,
        url_path: str,
        body: bytes | Iterable[bytes] = b"",
        headers: dict[str, str] | None = None,
        timeout: float = TIMEOUT_SECONDS,
        write: Callable[[bytes], object] | None = None,
    ) -> bytes:
        """Send a request and return the body of its response.

        With `write`, pass the body of a success to it in parts, and return the SHA-256 in the response's header.
        """
        all_headers = {"Content-Type": "application/json", **(headers or {})}
        if self.token:
            all_headers["Authorization"] = f"Bearer {self.token}"
        is_new_connection = False
        try:
            connection = self._connection(timeout)
            if connection.sock is None:
                is_new_connection = True
                connection.connect()
            if self._is_aborted:
                raise OSError("aborted")
            with suppress(BrokenPipeError):  # A server that refuses a body may stop reading it: read its response.
                connection.request(method, self._root + url_path, body, all_headers)
            with connection.getresponse() as response:  # Close it even if the connection is kept.
                if write is not None and response.status == 200:
                    while chunk := response.read(PART_BYTES):
                        write(chunk)
                    if response.length:
                        raise http.client.IncompleteRead(b"", response.length)
                    return response.headers.get(SHA256_HEADER, "").encode()
                response_body = _read_body(response)
        except (OSError, http.client.HTTPException, InvalidTlsFiles) as error:
            self.close()
            raise Unreachable(
                f"the server does not answer: {explain_error(error, self._tls, is_new_connection=is_new_connection)}"
            ) from error
        except ValueError:
            self.close()
            # The value and the original error are left out: they may contain a secret.
            raise Refused("bad_request", "an address or a lease id has characters that HTTP does not allow") from None
        except BaseException:
            self.close()  # A request is half sent, or a response half read.
            raise
        return self._check_status(response.status, response_body)

    @staticmethod
    def _check_status(status: int, body: bytes) -> bytes:
        """Return the body of a success or a stale lease; raise `Unreachable` or `Refused` for other statuses."""
        if status < 300:
            return body
        if status == 409 and b'"StaleLease"' in body[:40]:
            return body
        try:
            problem = _decode_problem(body)
        except msgspec.DecodeError:
            problem = Problem("unavailable", f"the server answered {status}")
        message = plain_line(problem.message, MAX_MESSAGE)
        if status >= 500:
            raise Unreachable(message)
        # A proxy or another version of the server may use codes that this version does not know.
        default_code = "not_found" if status == 404 else "bad_request"
        raise Refused(problem.code if problem.code in CODES else default_code, message)

    def _connection(self, timeout: float) -> http.client.HTTPConnection:
        """Return the connection of the calling thread, a new one if it has none or the TLS files have changed."""
        connection: http.client.HTTPConnection | None = getattr(self._local, "connection", None)
        tls_context = self._tls.context() if self._tls is not None else None
        if connection is not None and getattr(self._local, "context", None) is not tls_context:
            self.close()
            connection = None
        if connection is None:
            new_connection: Any = (
                http.client.HTTPSConnection(self._host, self._port, timeout=timeout, context=tls_context)
                if tls_context is not None
                else http.client.HTTPConnection(self._host, self._port, timeout=timeout)
            )
            connection, self._local.context = new_connection, tls_context
            self._local.connection = new_connection
            self._connections.add(new_connection)
        connection.timeout = timeout
        if connection.sock is not None:
            connection.sock.settimeout(timeout)
        return connection


def _read_body(response: http.client.HTTPResponse) -> bytes:
    """Return the body of a response. Raise `OSError` if it has more than `MAX_RESPONSE_BYTES`."""
    chunks: list[bytes] = []
    remaining = MAX_RESPONSE_BYTES
    while chunk := response.read(PART_BYTES):
        chunks.append(chunk)
        remaining -= len(chunk)
        if remaining < 0:
            raise OSError(f"the response has more than {MAX_RESPONSE_BYTES} bytes")
    if response.length:
        raise http.client.IncompleteRead(b"", response.length)
    return b"".join(chunks)


def _read_batch_response(encoded_response: bytes) -> ServerMessage | Problem:
    """Decode one response of a batch: a message or a problem."""
    try:
        message: ServerMessage = wire.decode_answer(encoded_response)
    except msgspec.ValidationError:
        return _read_problem(encoded_response)
    except msgspec.DecodeError as error:
        raise Unreachable(f"the server's response cannot be read: {error}") from None
    return message
