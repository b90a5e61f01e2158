"""The runner protocol over HTTP, as a plain ASGI application: claims and heartbeats are too frequent for a framework.

Every response is JSON. An error has a stable `code`, and its message states the problem and the remedy. Tokens and
lease ids are sent in headers and bodies only, so that they do not appear in access logs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
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
from deltaci.server.runner_api.job_data import ROUTE_NAMES as JOB_RESOURCE_ROUTES
from deltaci.server.runner_api.job_data import JobResourceHandlers, StreamedResponse
from deltaci.server.runner_api.message_handlers import MessageHandlers, Runner, job_spec, stale_lease
from deltaci.server.runner_api.registration import RunnerRegistry
from deltaci.server.runner_api.worktrees import ROUTE_NAMES as WORKTREE_ROUTES
from deltaci.server.runner_api.worktrees import WorktreeHandlers
from deltaci.storage.blobs.logs import LogStore
from deltaci.storage.blobs.store import BlobStoreUnavailable
from deltaci.storage.port import Conflict, Unavailable

_METHODS: Final[dict[str, list[str]]] = {}
for _route in PROTOCOL_ROUTES:
    _METHODS.setdefault(_route.name, []).append(_route.method)
# Errors with a response of their own. Any other one is an internal error and ends the request with status 500.
EXPECTED_ERRORS: Final = (Refused, msgspec.DecodeError, Overloaded, Unavailable, Conflict, BlobStoreUnavailable)
HINTS: Final = {"bad_message": "; see docs/protocol.md", "unavailable": "; try again"}
_JSON_ROUTES: Final = frozenset(route.name for route in PROTOCOL_ROUTES if "wrong_media_type" in route.codes)
_ROUTES_WITH_PARAMETER: Final = frozenset(route.name for route in PROTOCOL_ROUTES if route.path_parameter)

# Answers a request, or returns False if there is no such path.
ServeOther = Callable[[Scope, Receive, Send], Awaitable[bool]]

_decode_batch = wire.decoder(list[msgspec.Raw])
_decode_lease = wire.decoder(wire.LeaseRequest)
_decode_leave = wire.decoder(wire.LeaveRequest)
_decode_control = wire.decoder(wire.ControlRequest)
_decode_registration = wire.decoder(wire.Registration)
_decode_streams = wire.decoder(wire.EndedStreamsRequest)
_decode_renewal = wire.decoder(wire.Renewal)


class RunnerApp:
    """The ASGI application for the routes under /runner/v1/ and the server's OpenAPI description.

    Requests with other paths are passed to `serve_other`.
    """

    def __init__(
        self,
        message_handlers: MessageHandlers,
        registry: RunnerRegistry,
        logs: LogStore,
        control: ControlHub,
        job_resource_handlers: JobResourceHandlers,
        worktrees: WorktreeHandlers | None = None,
        heartbeats: Heartbeats | None = None,
        serve_other: ServeOther | None = None,
    ) -> None:
        self._message_handlers = message_handlers
        self._control = control
        self._registry = registry
        self._logs = logs
        self._job_resource_handlers = job_resource_handlers
        self._worktrees = worktrees
        self._heartbeats = heartbeats
        self._serve_other = serve_other

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Process one request and send the response. An expected error becomes an error response.

        The paths of the runner protocol are checked first, because claims and heartbeats are most of the load.
        """
        if scope["type"] != "http":
            return
        path: str = scope["path"]
        is_ours = path.startswith(ROOT) or path == OPENAPI_PATH
        if not is_ours and self._serve_other is not None and await self._serve_other(scope, receive, send):
            return
        request = Request(scope, receive)
        http_status, error_headers = 200, list[tuple[bytes, bytes]]()
        try:
            response = await self._route(request)
        except StaleLease as refused:
            response = stale_lease(request.lease_id(), refused)
        except EXPECTED_ERRORS as error:
            reported_error = http_error(error, "", _methods(request.path))
            http_status, error_headers = status_of(reported_error.code), reported_error.raw_headers()
            response = Problem(reported_error.code, f"{reported_error.message}{HINTS.get(reported_error.code, '')}")
        if isinstance(response, StreamedResponse):
            await response.send(send)
            return
        if isinstance(response, wire.StaleLease):
            http_status = 409
        await _send_response(send, http_status, wire.encode(response), error_headers)

    async def _route(self, request: Request) -> Any:
        route_name, path_rest = _parse_path(request)
        if route_name in _JSON_ROUTES:
            request.check_is_json()
        if route_name == OPENAPI_PATH:
            from deltaci.api.openapi import (
                openapi_bytes,  # Imported on demand: few requests need its many dependencies.
            )

            return msgspec.Raw(openapi_bytes())
        if route_name == "register":
            registration = await self._registry.register(
                _decode_registration(await request.body(wire.MAX_MESSAGE_BYTES))
            )
            self._record_heartbeat(registration.tenant, ids.worker_name(registration.runner_id))
            return registration
        token = request.token()
        runner = await self._registry.authenticate(token, request.peer)
        self._record_heartbeat(runner.tenant, runner.id)
        match route_name:
            case "renew":
                body = await request.body(wire.MAX_MESSAGE_BYTES)
                return await self._registry.renew(
                    runner, _decode_renewal(body) if body else None, has_token=bool(token)
                )
            case "lease":
                return await self._handle_lease(runner, request)
            case "control":
                return ControlResponse(await self._wait_for_cancels(runner, request))
            case "leave":
                return LeaveResponse(
                    await self._message_handlers.leave(
                        runner, _decode_leave(await request.body(wire.MAX_MESSAGE_BYTES))
                    )
                )
            case "messages":
                message = wire.decode_message(await request.body(wire.MAX_MESSAGE_BYTES))
                [response] = await self._message_handlers.submit(runner, [message])
                if isinstance(response, Refused):
                    raise response
                if isinstance(response, wire.CompleteAck) and (lease_ref := ids.lease_ref(message.lease_id)).number > 1:
                    await self._job_resource_handlers.remove_lost_uploads(runner, lease_ref)
                return response
            case "batch":
                return await self._handle_batch(runner, request)
            case "hand-back":
                await self._message_handlers.hand_back(runner, request.lease_id())
                return HandBackResponse()
            case "specs":
                attempt = await self._message_handlers.leased_attempt(runner, request.lease_id())
                if path_rest != attempt.id:
                    raise Refused("not_found", "the lease is for another specification; use the job_spec_ref you got")
                return job_spec(attempt)
        if route_name in JOB_RESOURCE_ROUTES:
            return await self._job_resource_handlers.handle(runner, route_name, path_rest, request)
        if route_name in WORKTREE_ROUTES or route_name == "streams":
            return await self._handle_worktree(runner, route_name, request)
        assert route_name == "log", route_name
        return await self._handle_log(runner, request)

    async def _handle_lease(self, runner: Runner, request: Request) -> LeaseResponse:
        """Lease attempts to the runner, and return which of the attempts that it named cannot be claimed."""
        lease_request = _decode_lease(await request.body(wire.MAX_MESSAGE_BYTES))
        with self._connected(runner):
            granted_leases = await self._message_handlers.lease(runner, lease_request, request.wait_for_disconnect)
        if not lease_request.attempts:
            return LeaseResponse(granted_leases)
        return LeaseResponse(granted_leases, await self._message_handlers.unclaimable(runner, lease_request.attempts))

    async def _handle_worktree(self, runner: Runner, route_name: str, request: Request) -> Any:
        """Answer a request for the ended workstreams, the start of a worktree, or the bundle of its commits."""
        if route_name == "streams":
            streams_request = _decode_streams(await request.body(wire.MAX_MESSAGE_BYTES))
            return (
                await self._worktrees.ended_streams(runner, streams_request.ids)
                if self._worktrees is not None
                else EndedStreams([])
            )
        attempt = await self._message_handlers.leased_attempt(runner, request.lease_id())
        if self._worktrees is None:
            raise Refused("not_found", "this server has no repositories, so no worktrees")
        return await self._worktrees.handle(attempt, route_name)

    async def _wait_for_cancels(self, runner: Runner, request: Request) -> list[wire.CancelRequested]:
        """Return the cancel requests for the runner's leases as soon as there are any."""
        control_request = _decode_control(await request.body(wire.MAX_MESSAGE_BYTES))
        disconnect_task = asyncio.create_task(request.wait_for_disconnect())
        try:
            with self._connected(runner):
                return await self._control.wait(runner, control_request, disconnect_task)
        finally:
            disconnect_task.cancel()

    def _record_heartbeat(self, tenant: str, runner_name: str) -> None:
        if self._heartbeats is not None:
            self._heartbeats.record(tenant, runner_name)

    def _connected(self, runner: Runner) -> AbstractContextManager[None]:
        """Count the runner as connected while its long poll is open."""
        return self._heartbeats.connected(runner.tenant, runner.id) if self._heartbeats is not None else nullcontext()

    async def _handle_batch(self, runner: Runner, request: Request) -> list[wire.ServerMessage | Problem]:
        """Decode and handle each message of a batch on its own, so that a bad one does not affect the others."""
        raw_messages = _decode_batch(await request.body(wire.MAX_BATCH_BYTES))
        if len(raw_messages) > wire.MAX_BATCH:
            raise Refused("too_large", f"{len(raw_messages)} messages at once; at most {wire.MAX_BATCH}")
        response_by_index: dict[int, wire.ServerMessage | Problem] = {}
        message_by_index: dict[int, wire.RunnerMessage] = {}
        for message_index, raw_message in enumerate(raw_messages):
            try:
                message_by_index[message_index] = wire.decode_message(bytes(raw_message))
            except msgspec.DecodeError as error:
                response_by_index[message_index] = _problem(error)
        for message_index, response in zip(
            message_by_index, await self._message_handlers.submit(runner, list(message_by_index.values())), strict=True
        ):
            response_by_index[message_index] = _problem(response) if isinstance(response, Refused) else response
        return [response_by_index[message_index] for message_index in range(len(raw_messages))]

    async def _handle_log(self, runner: Runner, request: Request) -> LogSize:
        """Append to the log of a live lease, or return its size."""
        offset = request.offset() if request.method == "POST" else 0
        lease_ref = ids.lease_ref(request.lease_id())
        await self._message_handlers.leased_attempt(runner, request.lease_id())  # Raises if the lease is stale.
        if request.method == "GET":
            return LogSize(self._logs.size(lease_ref.attempt_id, lease_ref.number))
        chunk = await request.body(wire.MAX_CHUNK_BYTES)
        # The body may have taken longer than the lease.
        await self._message_handlers.leased_attempt(runner, request.lease_id())
        try:
            # In a thread: waiting for the disk would block the event loop.
            return LogSize(
                await asyncio.to_thread(self._logs.append, lease_ref.attempt_id, lease_ref.number, offset, chunk)
            )
        except OSError as error:
            raise BlobStoreUnavailable(f"cannot write the log: {error.strerror or error}") from error


def _parse_path(request: Request) -> tuple[str, str]:
    """Return the name of the route and the rest of the path. Raises `Refused` if there is no such route or method."""
    methods = _methods(request.path)
    if not methods:
        raise Refused("not_found", f"there is no {request.path[:MAX_QUOTED_CHARS]}; see docs/protocol.md")
    if request.method not in methods:
        problem_text = (
            f"{request.path[:MAX_QUOTED_CHARS]} takes {' or '.join(methods)}, not {request.method[:MAX_QUOTED_CHARS]}"
        )
        raise Refused("wrong_method", problem_text)
    if request.path == OPENAPI_PATH:
        return OPENAPI_PATH, ""
    route_name, _, path_rest = request.path.removeprefix(ROOT).partition("/")
    return route_name, path_rest


def _methods(url_path: str) -> Sequence[str]:
    """Return the methods of the route at this path, none if there is no such route."""
    if url_path == OPENAPI_PATH:
        return ("GET",)
    if not url_path.startswith(ROOT):
        return ()
    route_name, separator, path_rest = url_path.removeprefix(ROOT).partition("/")
    return (
        _METHODS.get(route_name, ())
        if (bool(path_rest) if route_name in _ROUTES_WITH_PARAMETER else not separator)
        else ()
    )


def _problem(error: Refused | msgspec.DecodeError) -> Problem:
    if isinstance(error, Refused):
        return Problem(error.code, error.message)
    return Problem("bad_message", f"{error}; see docs/protocol.md")


async def _send_response(send: Send, http_status: int, body: bytes, error_headers: list[tuple[bytes, bytes]]) -> None:
    response_headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"cache-control", b"no-store"),
        *error_headers,
    ]
    await send({"type": "http.response.start", "status": http_status, "headers": response_headers})
    await send({"type": "http.response.body", "body": body})
