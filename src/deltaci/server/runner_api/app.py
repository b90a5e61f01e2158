"""The runner protocol over HTTP, as a plain ASGI application: the hot path has no framework in it.

Every answer is JSON. A refusal has a stable `code` and says what was found and what to do. Tokens and lease ids come in
headers and bodies only, so that no access log ever shows one.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

import msgspec

from deltaci.core import ids
from deltaci.core.errors import Refused, StaleLease
from deltaci.engine.requests import Overloaded
from deltaci.fleet.heartbeats import Heartbeats
from deltaci.protocol import messages as wire
from deltaci.protocol.messages import Problem
from deltaci.protocol.responses import (
    ControlResponse,
    EndedStreams,
    HandBackResponse,
    LeaseResponse,
    LeaveResponse,
    LogSize,
)
from deltaci.protocol.routes import (
    LEASE_HEADER,
    MAX_LEASE_CHARS,
    MAX_OFFSET_DIGITS,
    OFFSET_HEADER,
    OPENAPI_PATH,
    PROTOCOL_ROUTES,
    ROOT,
    SHA256_HEADER,
    status_of,
)
from deltaci.server.connection import PEER
from deltaci.server.runner_api.control_channel import ControlHub
from deltaci.server.runner_api.message_handlers import Protocol, Runner, job_spec, stale_lease
from deltaci.server.runner_api.registration import Registry
from deltaci.server.runner_api.uploads import NAMES, Streamed, Uploads
from deltaci.server.runner_api.worktrees import NAMES as TREE_NAMES
from deltaci.server.runner_api.worktrees import Trees
from deltaci.server.tls import Peer
from deltaci.storage.blobs.logs import LogStore
from deltaci.storage.blobs.store import BlobStoreUnavailable
from deltaci.storage.port import Conflict, Unavailable

MAX_DIGITS: Final = 15
MAX_SHOWN: Final = 200
RETRY_SECONDS: Final = 1
JSON: Final = "application/json"
DIGEST: Final = re.compile("[0-9a-fA-F]{64}")
BODY_SECONDS: Final = 20.0  # Without a single byte.

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]

_METHODS: Final[dict[str, list[str]]] = {}
for _each in PROTOCOL_ROUTES:
    _METHODS.setdefault(_each.name, []).append(_each.method)
_LEASE: Final = LEASE_HEADER.lower().encode()
_SHA256: Final = SHA256_HEADER.lower().encode()
_OFFSET: Final = OFFSET_HEADER.lower().encode()
_SPEAKS_JSON: Final = frozenset(each.name for each in PROTOCOL_ROUTES if "wrong_media_type" in each.codes)
_NESTED: Final = frozenset(each.name for each in PROTOCOL_ROUTES if each.path_parameter)

_decode_batch = wire.decoder(list[msgspec.Raw])
_decode_lease = wire.decoder(wire.LeaseRequest)
_decode_leave = wire.decoder(wire.LeaveRequest)
_decode_control = wire.decoder(wire.ControlRequest)
_decode_registration = wire.decoder(wire.Registration)
_decode_streams = wire.decoder(wire.EndedStreamsRequest)
_decode_renewal = wire.decoder(wire.Renewal)


class Request:
    """What came in: the headers that are asked for, and the body, read up to a limit."""

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self.path: str = scope["path"]
        self.method: str = scope["method"]
        self.is_tls: bool = scope.get("scheme") == "https"
        self._headers: list[tuple[bytes, bytes]] = scope["headers"]
        self.peer: Peer | None = scope.get("state", {}).get(PEER)
        self._receive = receive
        self.id = ""  # Names it in the log of the server, where it was given a name.

    def header(self, wanted: bytes) -> str:
        """What a header says, by its lower-case name; of many the last one."""
        found = b""
        for name, value in self._headers:
            if name == wanted:
                found = value
        return found.decode("utf-8", "replace")

    def has(self, wanted: bytes) -> bool:
        """Whether there is such a header, even an empty one."""
        return any(name == wanted for name, _ in self._headers)

    async def body(self, limit: int) -> bytes:
        """All of it, or a refusal as soon as it is too much."""
        return b"".join([part async for part in self.parts(limit)])

    async def parts(self, limit: int) -> AsyncIterator[bytes]:
        """The body as it comes, or a refusal as soon as it is too much."""
        size = 0
        told = self.header(b"content-length")
        if told.isascii() and told.isdecimal() and (len(told) > MAX_DIGITS or int(told) > limit):
            raise _too_large(limit)
        while True:
            try:
                async with asyncio.timeout(BODY_SECONDS):
                    message = await self._receive()
            except TimeoutError:
                raise Refused("too_slow", f"no byte of the body came for {BODY_SECONDS:.0f} s; send it again") from None
            if message["type"] == "http.disconnect":
                raise Refused("bad_request", "the request broke off")
            part = message.get("body", b"")
            size += len(part)
            if size > limit:
                raise _too_large(limit)
            yield part
            if not message.get("more_body"):
                return

    def check_is_json(self) -> None:
        """Refuse a body that says of itself that it is something else. One that says nothing is taken for JSON."""
        told = self.header(b"content-type")
        kind = told.partition(";")[0].strip().lower()
        if kind not in ("", JSON) and not kind.endswith("+json"):
            raise Refused("wrong_media_type", f"the Content-Type is {told[:MAX_SHOWN]!r}; send {JSON}")

    def token(self) -> str:
        """The bearer token; empty only when there is a client certificate instead."""
        told = self.header(b"authorization")
        if self.peer is not None and not told:
            return ""
        kind, _, token = told.partition(" ")
        if kind.lower() != "bearer" or not token:
            raise Refused("bad_credential", "no credential; send 'Authorization: Bearer …'")
        return token

    def lease_id(self) -> str:
        """The lease under which it is sent."""
        lease_id = self.header(_LEASE)
        if not 0 < len(lease_id) <= MAX_LEASE_CHARS:
            raise Refused("bad_request", f"{LEASE_HEADER} has {len(lease_id)} characters; send the lease id in it")
        return lease_id

    def offset(self) -> int:
        """The byte at which this part of a log begins."""
        offset = self.header(_OFFSET)
        if not (offset.isascii() and offset.isdecimal()) or len(offset) > MAX_OFFSET_DIGITS:
            raise Refused("bad_request", f"{OFFSET_HEADER} is {offset[:20]!r}; give the byte at which this part begins")
        return int(offset)

    def digest(self) -> str | None:
        """What the body is said to be, if that is said."""
        if not self.has(_SHA256):
            return None
        told = self.header(_SHA256)
        if not DIGEST.fullmatch(told):
            raise Refused("bad_request", f"{SHA256_HEADER} is {told[:20]!r}; give 64 digits in hex, or leave it out")
        return told

    async def gone(self) -> None:
        """Wait until nobody waits for the answer any more. Only after the body was read."""
        while (await self._receive())["type"] != "http.disconnect":
            pass


class RunnerApp:
    """The addresses under /runner/v1/, and the one that describes them."""

    def __init__(
        self,
        protocol: Protocol,
        registry: Registry,
        logs: LogStore,
        control: ControlHub,
        uploads: Uploads,
        trees: Trees | None = None,
        heartbeats: Heartbeats | None = None,
    ) -> None:
        self._protocol = protocol
        self._control = control
        self._registry = registry
        self._logs = logs
        self._uploads = uploads
        self._trees = trees
        self._heartbeats = heartbeats

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        request = Request(scope, receive)
        try:
            status, answer = 200, await self._route(request)
        except StaleLease as refused:
            status, answer = 409, stale_lease(request.lease_id(), refused)
        except Refused as refused:
            status, answer = status_of(refused.code), _problem(refused)
        except msgspec.ValidationError as error:
            status, answer = 422, _problem(error)
        except msgspec.DecodeError as error:
            status, answer = 400, Problem("bad_json", f"the body is not JSON: {error}")
        except Overloaded as error:
            status, answer = 503, Problem("overloaded", str(error))
        except (Unavailable, Conflict, BlobStoreUnavailable) as error:
            status, answer = 503, Problem("unavailable", f"{error}; try again")
        if isinstance(answer, Streamed):
            await answer.send(send)
            return
        if isinstance(answer, wire.StaleLease):
            status = 409
        await _send(send, status, wire.encode(answer), _told_with(status, request))

    async def _route(self, request: Request) -> Any:
        name, rest = _address(request)
        if name in _SPEAKS_JSON:
            request.check_is_json()
        if name == OPENAPI_PATH:
            from deltaci.api.openapi import openapi_bytes  # Few ask, and it needs much that nobody else does.

            return msgspec.Raw(openapi_bytes())
        if name == "register":
            known = await self._registry.register(_decode_registration(await request.body(wire.MAX_MESSAGE_BYTES)))
            self._heard(known.tenant, ids.worker_name(known.runner_id))
            return known
        token = request.token()
        who = await self._registry.who(token, request.peer)
        self._heard(who.tenant, who.id)
        match name:
            case "renew":
                body = await request.body(wire.MAX_MESSAGE_BYTES)
                return await self._registry.renew(who, _decode_renewal(body) if body else None, has_token=bool(token))
            case "lease":
                return await self._lease(who, request)
            case "control":
                return ControlResponse(await self._cancels(who, request))
            case "leave":
                return LeaveResponse(
                    await self._protocol.leave(who, _decode_leave(await request.body(wire.MAX_MESSAGE_BYTES)))
                )
            case "messages":
                message = wire.decode_message(await request.body(wire.MAX_MESSAGE_BYTES))
                [answer] = await self._protocol.say(who, [message])
                if isinstance(answer, Refused):
                    raise answer
                if isinstance(answer, wire.CompleteAck):
                    await self._uploads.forget_lost(who, message.lease_id)
                return answer
            case "batch":
                return await self._batch(who, request)
            case "hand-back":
                await self._protocol.hand_back(who, request.lease_id())
                return HandBackResponse()
            case "specs":
                held = await self._protocol.held(who, request.lease_id())
                if rest != held.id:
                    raise Refused("not_found", "the lease is for another specification; use the job_spec_ref you got")
                return job_spec(held)
        if name in NAMES:
            return await self._uploads.answer(who, name, rest, request)
        if name in TREE_NAMES or name == "streams":
            return await self._tree(who, name, request)
        assert name == "log", name
        return await self._log(who, request)

    async def _lease(self, who: Runner, request: Request) -> LeaseResponse:
        asked = _decode_lease(await request.body(wire.MAX_MESSAGE_BYTES))
        with self._present(who):
            granted = await self._protocol.lease(who, asked, request.gone)
        if not asked.attempts:
            return LeaseResponse(granted)
        return LeaseResponse(granted, await self._protocol.gone(who, asked.attempts))

    async def _tree(self, who: Runner, name: str, request: Request) -> Any:
        """About worktrees."""
        if name == "streams":
            asked = _decode_streams(await request.body(wire.MAX_MESSAGE_BYTES))
            return await self._trees.over(who, asked.ids) if self._trees is not None else EndedStreams([])
        held = await self._protocol.held(who, request.lease_id())
        if self._trees is None:
            raise Refused("not_found", "this server has no repositories, and so no trees")
        return await self._trees.answer(held, name)

    async def _cancels(self, who: Runner, request: Request) -> list[wire.CancelRequested]:
        asked = _decode_control(await request.body(wire.MAX_MESSAGE_BYTES))
        gone = asyncio.create_task(request.gone())
        try:
            with self._present(who):
                return await self._control.wait(who, asked, gone)
        finally:
            gone.cancel()

    def _heard(self, tenant: str, name: str) -> None:
        if self._heartbeats is not None:
            self._heartbeats.record(tenant, name)

    def _present(self, who: Runner) -> AbstractContextManager[None]:
        """While it waits for its answer, it is there."""
        return self._heartbeats.connected(who.tenant, who.id) if self._heartbeats is not None else nullcontext()

    async def _batch(self, who: Runner, request: Request) -> list[wire.ServerMessage | Problem]:
        """Each message is read, accepted or refused on its own: one bad one does not hold up the others."""
        parts = _decode_batch(await request.body(wire.MAX_BATCH_BYTES))
        if len(parts) > wire.MAX_BATCH:
            raise Refused("too_large", f"{len(parts)} messages at once; at most {wire.MAX_BATCH}")
        answers: dict[int, wire.ServerMessage | Problem] = {}
        said: dict[int, wire.RunnerMessage] = {}
        for place, part in enumerate(parts):
            try:
                said[place] = wire.decode_message(bytes(part))
            except msgspec.DecodeError as error:
                answers[place] = _problem(error)
        for place, answer in zip(said, await self._protocol.say(who, list(said.values())), strict=True):
            answers[place] = _problem(answer) if isinstance(answer, Refused) else answer
        return [answers[place] for place in range(len(parts))]

    async def _log(self, who: Runner, request: Request) -> LogSize:
        """Append to the log of a live lease, or tell how far it is."""
        offset = request.offset() if request.method == "POST" else 0
        ref = ids.lease_ref(request.lease_id())
        await self._protocol.held(who, request.lease_id())  # Refuses a lease that is not this runner's, or not live.
        if request.method == "GET":
            return LogSize(self._logs.size(ref.attempt_id, ref.number))
        data = await request.body(wire.MAX_CHUNK_BYTES)
        await self._protocol.held(who, request.lease_id())  # The body may have taken longer than the lease.
        try:
            # Waiting for the disk is no work for the loop on which everybody else is answered.
            return LogSize(await asyncio.to_thread(self._logs.append, ref.attempt_id, ref.number, offset, data))
        except OSError as error:
            raise BlobStoreUnavailable(f"the log cannot be kept now: {error.strerror or error}") from error


def _address(request: Request) -> tuple[str, str]:
    """What the address names, and what follows it, if there is such an address and it takes this method."""
    methods = _methods(request.path)
    if not methods:
        raise Refused("not_found", f"there is no {request.path[:MAX_SHOWN]}; see docs/protocol.md")
    if request.method not in methods:
        said = f"{request.path[:MAX_SHOWN]} takes {' or '.join(methods)}, not {request.method[:MAX_SHOWN]}"
        raise Refused("wrong_method", said)
    if request.path == OPENAPI_PATH:
        return OPENAPI_PATH, ""
    name, _, rest = request.path.removeprefix(ROOT).partition("/")
    return name, rest


def _methods(path: str) -> Sequence[str]:
    """What can be asked at this address; nothing where there is none."""
    if path == OPENAPI_PATH:
        return ("GET",)
    if not path.startswith(ROOT):
        return ()
    name, slash, rest = path.removeprefix(ROOT).partition("/")
    return _METHODS.get(name, ()) if (bool(rest) if name in _NESTED else not slash) else ()


def _problem(error: Refused | msgspec.DecodeError) -> Problem:
    if isinstance(error, Refused):
        return Problem(error.code, error.message)
    return Problem("bad_message", f"{error}; see docs/protocol.md")


def _too_large(limit: int) -> Refused:
    return Refused("too_large", f"the body has more than {limit} bytes; send less at once")


def _told_with(status: int, request: Request) -> list[tuple[bytes, bytes]]:
    """The headers that HTTP itself asks for with this status."""
    if status == 401:
        return [(b"www-authenticate", b"Bearer")]
    if status == 408:
        return [(b"connection", b"close")]
    if status == 405:
        return [(b"allow", ", ".join(_methods(request.path)).encode())]
    if status == 503:
        return [(b"retry-after", str(RETRY_SECONDS).encode())]
    return []


async def _send(send: Send, status: int, body: bytes, more: list[tuple[bytes, bytes]]) -> None:
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"cache-control", b"no-store"),
        *more,
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
