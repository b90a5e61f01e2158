"""The runner protocol over HTTP, as a plain ASGI application: the hot path has no framework in it.

Every answer is JSON. A refusal has a stable `code` and says what was found and what to do. Tokens and lease ids come in
headers and bodies only, so that no access log ever shows one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
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
    OPENAPI_PATH,
    PROTOCOL_ROUTES,
    ROOT,
    status_of,
)
from deltaci.server.errors import http_error
from deltaci.server.request import MAX_QUOTED_CHARS, Receive, Request, Scope, Send
from deltaci.server.runner_api.control_channel import ControlHub
from deltaci.server.runner_api.message_handlers import Protocol, Runner, job_spec, stale_lease
from deltaci.server.runner_api.registration import Registry
from deltaci.server.runner_api.uploads import NAMES, Streamed, Uploads
from deltaci.server.runner_api.worktrees import NAMES as TREE_NAMES
from deltaci.server.runner_api.worktrees import Trees
from deltaci.storage.blobs.logs import LogStore
from deltaci.storage.blobs.store import BlobStoreUnavailable
from deltaci.storage.port import Conflict, Unavailable

_METHODS: Final[dict[str, list[str]]] = {}
for _each in PROTOCOL_ROUTES:
    _METHODS.setdefault(_each.name, []).append(_each.method)
# Errors that are answered; any other one is a mistake of the program and ends the request with 500.
EXPECTED_ERRORS: Final = (Refused, msgspec.DecodeError, Overloaded, Unavailable, Conflict, BlobStoreUnavailable)
HINTS: Final = {"bad_message": "; see docs/protocol.md", "unavailable": "; try again"}
_SPEAKS_JSON: Final = frozenset(each.name for each in PROTOCOL_ROUTES if "wrong_media_type" in each.codes)
_NESTED: Final = frozenset(each.name for each in PROTOCOL_ROUTES if each.path_parameter)

_decode_batch = wire.decoder(list[msgspec.Raw])
_decode_lease = wire.decoder(wire.LeaseRequest)
_decode_leave = wire.decoder(wire.LeaveRequest)
_decode_control = wire.decoder(wire.ControlRequest)
_decode_registration = wire.decoder(wire.Registration)
_decode_streams = wire.decoder(wire.EndedStreamsRequest)
_decode_renewal = wire.decoder(wire.Renewal)


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
        status, headers = 200, list[tuple[bytes, bytes]]()
        try:
            answer = await self._route(request)
        except StaleLease as refused:
            answer = stale_lease(request.lease_id(), refused)
        except EXPECTED_ERRORS as error:
            refusal = http_error(error, "", _methods(request.path))
            status, headers = status_of(refusal.code), refusal.raw_headers()
            answer = Problem(refusal.code, f"{refusal.message}{HINTS.get(refusal.code, '')}")
        if isinstance(answer, Streamed):
            await answer.send(send)
            return
        if isinstance(answer, wire.StaleLease):
            status = 409
        await _send(send, status, wire.encode(answer), headers)

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
            granted = await self._protocol.lease(who, asked, request.disconnected)
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
        gone = asyncio.create_task(request.disconnected())
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
        raise Refused("not_found", f"there is no {request.path[:MAX_QUOTED_CHARS]}; see docs/protocol.md")
    if request.method not in methods:
        said = (
            f"{request.path[:MAX_QUOTED_CHARS]} takes {' or '.join(methods)}, not {request.method[:MAX_QUOTED_CHARS]}"
        )
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


async def _send(send: Send, status: int, body: bytes, more: list[tuple[bytes, bytes]]) -> None:
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"cache-control", b"no-store"),
        *more,
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
