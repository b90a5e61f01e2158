"""How a runner reaches its server: HTTP with the standard library, one kept connection for each thread."""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar
from urllib.parse import quote, urlsplit

import msgspec

from deltaci.core.errors import CODES, Refused
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
from deltaci.runner.tls import InvalidTlsFiles, TlsConfig, explained

TIMEOUT_SECONDS: Final = 10.0
LEAVE_SECONDS: Final = 3.0  # Who leaves does not wait for long to be heard.
TRANSFER_SECONDS: Final = 300.0  # Of silence: a large body has to be kept before it is answered.
PART_BYTES: Final = 1024 * 1024
MAX_ANSWER_BYTES: Final = 128 * 1024**2  # A thousand leases with their specifications in them.
MAX_MESSAGE: Final = 2000

T = TypeVar("T")


class Unreachable(Exception):
    """The server did not answer. Whether it heard is unknown: say it again."""


class Uploaded(msgspec.Struct, frozen=True):
    """What the server has of a body. `uri` is an artifact's; `stored` is false for a cache that was there before."""

    bytes: int
    sha256: str
    uri: str = ""
    stored: bool = True


def _reader(kind: type[T]) -> Callable[[bytes], T]:
    """Reads one kind of answer. What cannot be read is no answer: it may be a proxy's, or another version's."""
    decode = wire.decoder(kind)

    def read(body: bytes) -> T:
        try:
            return decode(body)
        except msgspec.DecodeError as error:
            raise Unreachable(f"the server's answer cannot be read: {error}") from None

    return read


_uploaded = _reader(Uploaded)
_granted = _reader(LeaseResponse)
_wanted = _reader(ControlResponse)
_gone = _reader(LeaveResponse)
_size = _reader(LogSize)
_registered = _reader(Registered)
_spec = _reader(wire.JobSpec)
_secrets = _reader(dict[str, str])
_needs = _reader(dict[str, NeededJob])
_shared = _reader(list[SharedArtifact])
_found_cache = _reader(CacheMatch)
_tree_start = _reader(WorktreeStart)
_streams_over = _reader(EndedStreams)
_source_credential = _reader(SourceCredential)
_stale = _reader(wire.StaleLease)
_raw = _reader(list[msgspec.Raw])
_heard: Callable[[bytes], ServerMessage] = _reader(ServerMessage)  # type: ignore[arg-type]
_problem = _reader(Problem)
_decode_problem = wire.decoder(Problem)


class RunnerClient:
    """Speaks for one runner. `token` may be changed at any time, from any thread."""

    def __init__(self, url: str, token: str = "", tls: TlsConfig | None = None) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise Refused("bad_request", f"the server's address is {url!r}; give one like http://host:8080")
        self._host, self._port = parts.hostname, parts.port
        self._tls = (tls or TlsConfig()) if parts.scheme == "https" else None
        self._root = parts.path.rstrip("/") + ROOT
        self._kept = threading.local()
        self._open: set[http.client.HTTPConnection] = set()
        self._is_aborted = False
        self.token = token

    def register(self, token: str, capabilities: Sequence[str], slots: int, request_id: str = "") -> Registered:
        """Exchange a registration token for a credential: once, or again with the same `request_id`."""
        asked = Registration(token=token, capabilities=list(capabilities), slots=slots, request_id=request_id)
        return _registered(self._call("POST", "register", wire.encode(asked)))

    def renew(self, capabilities: Sequence[str] | None = None, slots: int | None = None) -> Registered:
        """A fresh credential for the one that is still good, or for the certificate; and what it offers now."""
        offered = list(capabilities) if capabilities is not None else None
        return _registered(self._call("POST", "renew", wire.encode(wire.Renewal(capabilities=offered, slots=slots))))

    def lease(self, asked: wire.LeaseRequest) -> list[LeaseGranted]:
        """Ask for work, and wait for it."""
        return self.request_leases(asked).leases

    def request_leases(self, asked: wire.LeaseRequest) -> LeaseResponse:
        """The same, with all that is answered."""
        body = self._call("POST", "lease", wire.encode(asked), timeout=asked.wait_seconds + TIMEOUT_SECONDS)
        return _granted(body)

    def leave(self, runner_id: str) -> bool:
        """Say that this runner takes nothing new and goes; whether it is gone already."""
        said = wire.encode(wire.LeaveRequest(runner_id=runner_id))
        return _gone(self._call("POST", "leave", said, timeout=LEAVE_SECONDS)).is_shut_down

    def wait_for_cancels(self, asked: wire.ControlRequest) -> list[wire.CancelRequested]:
        """Wait to be told what is wanted of the leases that this runner has."""
        body = self._call("POST", "control", wire.encode(asked), timeout=asked.wait_seconds + TIMEOUT_SECONDS)
        return _wanted(body).cancels

    def send(self, message: RunnerMessage, timeout: float = TIMEOUT_SECONDS) -> ServerMessage:
        """Say one thing."""
        return _heard(self._call("POST", "messages", wire.encode(message), timeout=timeout))

    def send_batch(self, said: Sequence[RunnerMessage], timeout: float) -> list[ServerMessage | Problem]:
        """Say many things at once; each is answered in its place."""
        body = self._call("POST", "batch", msgspec.json.encode(list(said)), timeout=timeout)
        return [_answer(bytes(raw)) for raw in _raw(body)]

    def spec(self, ref: str, lease_id: str) -> wire.JobSpec:
        """The specification that was too large for the lease, from where the lease says it is."""
        return _spec(self._under(lease_id, "GET", ref.removeprefix(ROOT)))

    def hand_back(self, lease_id: str) -> None:
        """Give a job back of which nothing runs any more."""
        self._under(lease_id, "POST", "hand-back")

    def log_size(self, lease_id: str, timeout: float = TIMEOUT_SECONDS) -> int:
        """How much of the log the server has."""
        return _size(self._under(lease_id, "GET", "log", timeout=timeout)).size

    def append_log(self, lease_id: str, offset: int, data: bytes, timeout: float = TIMEOUT_SECONDS) -> int:
        """Send a part of the log; where it ends now."""
        return _size(self._under(lease_id, "POST", "log", data, {OFFSET_HEADER: str(offset)}, timeout)).size

    def secrets(self, lease_id: str) -> dict[str, str]:
        """The secrets that the lease's job names."""
        return _secrets(self._under(lease_id, "GET", "secrets"))

    def optional_secrets(self, lease_id: str) -> dict[str, str]:
        """Those that the lease's job may have, and that there are."""
        return _secrets(self._under(lease_id, "GET", "optional-secrets"))

    def source_credential(self, lease_id: str) -> str:
        """With what the sources of the lease's job are fetched."""
        return _source_credential(self._under(lease_id, "GET", "source-credential")).value

    def needs(self, lease_id: str) -> dict[str, NeededJob]:
        """How the jobs ended that the lease's job needs."""
        return _needs(self._under(lease_id, "GET", "needs"))

    def worktree_start(self, lease_id: str) -> WorktreeStart:
        """What the tree of the lease's job begins with."""
        return _tree_start(self._under(lease_id, "GET", "tree", timeout=TRANSFER_SECONDS))

    def ended_streams(self, ids: Sequence[str]) -> list[str]:
        """Which of these streams need no tree any more."""
        return _streams_over(self._call("POST", "streams", wire.encode(wire.EndedStreamsRequest(ids=list(ids))))).ended

    def shared_artifacts(self, lease_id: str) -> list[SharedArtifact]:
        """Artifacts with a name, of jobs of the same run."""
        return _shared(self._under(lease_id, "GET", "run-artifacts"))

    def newest_cache(self, lease_id: str, prefix: str) -> str:
        """The key of the newest cache that begins so."""
        return _found_cache(self._under(lease_id, "GET", f"cache-keys/{quote(prefix, safe='')}")).key

    def upload(self, lease_id: str, path: str, parts: Iterable[bytes], size: int) -> Uploaded:
        """Send a body of so many bytes, part by part."""
        headers = {"Content-Length": str(size)}
        return _uploaded(self._under(lease_id, "PUT", path, parts, headers, timeout=TRANSFER_SECONDS))

    def download(self, lease_id: str, path: str, write: Callable[[bytes], object]) -> str:
        """Hand over a body part by part; returns its SHA-256 as the server says it."""
        return self._under(lease_id, "GET", path, timeout=TRANSFER_SECONDS, write=write).decode()

    def _under(
        self,
        lease_id: str,
        method: str,
        path: str,
        body: bytes | Iterable[bytes] = b"",
        headers: dict[str, str] | None = None,
        timeout: float = TIMEOUT_SECONDS,
        write: Callable[[bytes], object] | None = None,
    ) -> bytes:
        """Ask for something under a lease. One that is stale is a refusal."""
        found = self._call(method, path, body, {LEASE_HEADER: lease_id, **(headers or {})}, timeout, write)
        if b'"StaleLease"' in found[:40]:
            reason = _stale(found).reason
            raise Refused("stale_lease", f"the lease is no longer good: {reason}")
        return found

    def close(self) -> None:
        """Hang up this thread's connection."""
        kept: http.client.HTTPConnection | None = getattr(self._kept, "connection", None)
        if kept is not None:
            self._open.discard(kept)
            kept.close()
            self._kept.connection = None

    def close_all(self) -> None:
        """Hang up every thread's connection, when none of them says anything any more."""
        while self._open:
            self._open.pop().close()

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
        body: bytes | Iterable[bytes] = b"",
        headers: dict[str, str] | None = None,
        timeout: float = TIMEOUT_SECONDS,
        write: Callable[[bytes], object] | None = None,
    ) -> bytes:
        sent = {"Content-Type": "application/json", **(headers or {})}
        if self.token:
            sent["Authorization"] = f"Bearer {self.token}"
        is_fresh = False
        try:
            connection = self._connection(timeout)
            if connection.sock is None:
                is_fresh = True
                connection.connect()
            if self._is_aborted:
                raise OSError("hung up")
            with suppress(BrokenPipeError):  # Who refuses a body may not listen to its end: hear why.
                connection.request(method, self._root + path, body, sent)
            with connection.getresponse() as answer:  # It may outlive its connection.
                if write is not None and answer.status == 200:
                    while part := answer.read(PART_BYTES):
                        write(part)
                    if answer.length:
                        raise http.client.IncompleteRead(b"", answer.length)
                    return answer.headers.get(SHA256_HEADER, "").encode()
                found = _whole(answer)
        except (OSError, http.client.HTTPException, InvalidTlsFiles) as error:
            self.close()
            raise Unreachable(
                f"the server does not answer: {explained(error, self._tls, is_fresh=is_fresh)}"
            ) from error
        except ValueError:
            self.close()
            # Not with what it was, nor with the error that says so: it may be a secret.
            raise Refused("bad_request", "an address or a lease id has characters that HTTP does not take") from None
        except BaseException:
            self.close()  # It was in the middle of something.
            raise
        return self._accepted(answer.status, found)

    @staticmethod
    def _accepted(status: int, body: bytes) -> bytes:
        if status < 300:
            return body
        if status == 409 and b'"StaleLease"' in body[:40]:
            return body
        try:
            problem = _decode_problem(body)
        except msgspec.DecodeError:
            problem = Problem("unavailable", f"the server answered {status}")
        said = plain_line(problem.message, MAX_MESSAGE)
        if status >= 500:
            raise Unreachable(said)
        # Whoever answers may be a proxy, or a server that has other codes than ours.
        otherwise = "not_found" if status == 404 else "bad_request"
        raise Refused(problem.code if problem.code in CODES else otherwise, said)

    def _connection(self, timeout: float) -> http.client.HTTPConnection:
        kept: http.client.HTTPConnection | None = getattr(self._kept, "connection", None)
        context = self._tls.context() if self._tls is not None else None
        if kept is not None and getattr(self._kept, "context", None) is not context:
            self.close()  # The certificate was renewed: from now on that one is shown.
            kept = None
        if kept is None:
            made: Any = (
                http.client.HTTPSConnection(self._host, self._port, timeout=timeout, context=context)
                if context is not None
                else http.client.HTTPConnection(self._host, self._port, timeout=timeout)
            )
            kept, self._kept.context = made, context
            self._kept.connection = made
            self._open.add(made)
        kept.timeout = timeout
        if kept.sock is not None:
            kept.sock.settimeout(timeout)
        return kept


def _whole(answer: http.client.HTTPResponse) -> bytes:
    """All of an answer, but not more than one can be: whoever answers may say any size."""
    parts: list[bytes] = []
    left = MAX_ANSWER_BYTES
    while part := answer.read(PART_BYTES):
        parts.append(part)
        left -= len(part)
        if left < 0:
            raise OSError(f"it answers with more than {MAX_ANSWER_BYTES} bytes")
    if answer.length:
        raise http.client.IncompleteRead(b"", answer.length)
    return b"".join(parts)


def _answer(raw: bytes) -> ServerMessage | Problem:
    try:
        answer: ServerMessage = wire.decode_answer(raw)
    except msgspec.ValidationError:
        return _problem(raw)
    except msgspec.DecodeError as error:
        raise Unreachable(f"the server's answer cannot be read: {error}") from None
    return answer
