"""The REST API as an ASGI application.

In this order: find the route, authenticate the caller, check the rate limit and the scope, validate the path, the query
and the body, and call the handler. Every error is a problem document (RFC 9457).
"""

from __future__ import annotations

import logging
import random
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Final

import msgspec

from deltaci.api.routes import PARAMETERS, REFUSALS, REQUEST_ID_HEADER, ROOT, ROUTES, Route
from deltaci.api.schemas.inputs import MAX_BODY_BYTES, RequestSchema
from deltaci.api.schemas.records import ApiProblem
from deltaci.core.errors import Refused
from deltaci.protocol import messages as wire
from deltaci.server.auth.callers import Caller
from deltaci.server.errors import HttpError, http_error
from deltaci.server.request import Receive, Request, Scope, Send
from deltaci.server.rest import (
    audit,
    changes,
    explain,
    failures,
    files,
    history,
    jobs,
    keys,
    projects,
    queue,
    runs,
    secrets,
    templates,
    tests,
    timeline,
    workers,
    workstreams,
)
from deltaci.server.rest.http import query_parameters
from deltaci.server.rest.http.request import AppState, Call, Handler, JsonResponse, StreamingResponse
from deltaci.server.rest.http.validation_errors import explain as explain_error
from deltaci.server.rest.streams import live

LOGGER: Final = logging.getLogger(__name__)
MAX_QUOTED_CHARS: Final = 200
MAX_MESSAGE_CHARS: Final = 2000  # A message may quote the request, e.g. the name of an unknown field.

HANDLERS: Final[Mapping[str, Handler]] = {
    **runs.HANDLERS,
    **jobs.HANDLERS,
    **explain.HANDLERS,
    **timeline.HANDLERS,
    **live.HANDLERS,
    **files.HANDLERS,
    **history.HANDLERS,
    **tests.HANDLERS,
    **templates.HANDLERS,
    **queue.HANDLERS,
    **workers.HANDLERS,
    **keys.HANDLERS,
    **secrets.HANDLERS,
    **audit.HANDLERS,
    **failures.HANDLERS,
    **projects.HANDLERS,
    **changes.HANDLERS,
    **workstreams.HANDLERS,
}


class _Node:
    """A node of the tree of paths: the routes that end here, and the nodes of the next segment.

    `literals` are segments with a fixed text, `parameter` matches any one segment, and the routes in `remainders` match
    all remaining segments.
    """

    __slots__ = ("literals", "parameter", "remainders", "routes")

    def __init__(self) -> None:
        self.literals: dict[str, _Node] = {}
        self.parameter: _Node | None = None
        self.remainders: dict[str, Route] = {}
        self.routes: dict[str, Route] = {}


def _build_tree() -> _Node:
    root_node = _Node()
    for route in ROUTES:
        node = root_node
        for segment in route.path.strip("/").split("/"):
            if segment.endswith("*}"):
                node.remainders[route.method] = route
                break
            if segment.startswith("{"):
                node.parameter = node.parameter or _Node()
                node = node.parameter
            else:
                node = node.literals.setdefault(segment, _Node())
        else:
            node.routes[route.method] = route
    return root_node


_TREE: Final = _build_tree()
_ROUTES: Final = {route.id: route for route in ROUTES}
_PARAMETER_NAMES: Final = {route.id: route.path_parameters for route in ROUTES}
_DECODERS: Final = {route.id: wire.decoder(route.body) for route in ROUTES if route.body is not None}


def _matches(url_path: str) -> dict[str, tuple[Route, list[str]]]:
    """Return the routes that match a path, by method, each with the values of its path parameters."""
    match_by_method: dict[str, tuple[Route, list[str]]] = {}
    _add_matches(_TREE, url_path.split("/")[1:], [], match_by_method)
    return match_by_method


def _add_matches(
    node: _Node, segments: list[str], parameter_values: list[str], match_by_method: dict[str, tuple[Route, list[str]]]
) -> None:
    """Add to `match_by_method` the routes below `node` that match the segments.

    `parameter_values` are the parameters so far.

    A literal segment takes precedence over a parameter, for all methods alike.
    """
    if not segments:
        match_by_method.update({method: (route, parameter_values) for method, route in node.routes.items()})
        return
    if (literal := node.literals.get(segments[0])) is not None:
        _add_matches(literal, segments[1:], parameter_values, match_by_method)
    if not match_by_method and node.parameter is not None:
        _add_matches(node.parameter, segments[1:], [*parameter_values, segments[0]], match_by_method)
    if not match_by_method:
        match_by_method.update(
            {method: (route, [*parameter_values, "/".join(segments)]) for method, route in node.remainders.items()}
        )


SessionLookup = Callable[[Request], Awaitable[Caller | None]]


class ApiApp:
    """The ASGI application for /api/v1.

    `session_caller` returns the caller of a request with a session of the web interface, or None for any other request.
    """

    def __init__(self, app_state: AppState) -> None:
        self._app_state = app_state
        self.session_caller: SessionLookup | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one HTTP request and send the response. An exception becomes a problem document."""
        request = Request(scope, receive)
        # Not a secret: reading system randomness would release the interpreter lock and let a computing thread take it.
        request.id = request_id = f"{random.getrandbits(64):016x}"
        try:
            response = await self._respond(request, scope.get("query_string", b""))
        except Exception as error:
            await _send_problem(send, request_id, http_error(error, request_id, allowed_methods(request.path)))
            return
        if isinstance(response, StreamingResponse):
            await response.send(send)
            return
        response_headers = {REQUEST_ID_HEADER: request_id, **response.headers}
        await _send_response(
            send, response.status or 200, wire.encode(response.value), "application/json", response_headers
        )

    async def call_handler(
        self,
        caller: Caller,
        operation_id: str,
        request: Request,
        *,
        params: Mapping[str, Any],
        query: Mapping[str, Any],
        body: Mapping[str, Any],
        idempotency_key: str = "",
    ) -> Any:
        """Handle a request of the web interface, which has authenticated `caller`, and return the response object.

        Permissions and validation are those of an HTTP request; the web interface applies the rate limit itself.
        """
        route = _ROUTES[operation_id]
        caller.check(route.required_scope)
        call = Call(
            route=route,
            caller=caller,
            params=_path_parameters(
                route, [str(params[parameter_name]) for parameter_name in _PARAMETER_NAMES[operation_id]]
            ),
            query=_convert_fields(query, route.query),
            body=_convert_fields(body, route.body),
            request=request,
            app=self._app_state,
            reauthenticate=partial(self._authenticate, request),
            idempotency_key=idempotency_key,
        )
        response = await self._handle_call(call)
        return response.value if isinstance(response, JsonResponse) else response

    async def _respond(self, request: Request, query: bytes) -> JsonResponse | StreamingResponse:
        route, path_values = _find_route(request)
        caller = await self._authenticate(request)
        await self._app_state.tenants.check_rate(caller.tenant)
        caller.check(route.required_scope)
        call = Call(
            route=route,
            caller=caller,
            params=_path_parameters(route, path_values),
            query=_parse_query(route, query),
            body=await _decode_body(route, request),
            request=request,
            app=self._app_state,
            reauthenticate=partial(self._authenticate, request),
        )
        return await self._handle_call(call)

    async def _authenticate(self, request: Request) -> Caller:
        """Return the caller: the user of a session of the web interface, else the owner of the API key."""
        if self.session_caller is not None and (caller := await self.session_caller(request)) is not None:
            return caller
        return await self._app_state.keys.caller(request.token())

    async def _handle_call(self, call: Call) -> JsonResponse | StreamingResponse:
        route = call.route
        async with self._app_state.tenants.request_slots.slot(call.caller.tenant):
            handler_result = await HANDLERS[route.id](call)
        if isinstance(handler_result, StreamingResponse):
            return handler_result
        if not isinstance(handler_result, JsonResponse):
            return JsonResponse(value=handler_result, status=route.status)
        return handler_result if handler_result.status else msgspec.structs.replace(handler_result, status=route.status)


def _find_route(request: Request) -> tuple[Route, list[str]]:
    match_by_method = _matches(request.path.removeprefix(ROOT))
    if not match_by_method:
        raise Refused("not_found", f"there is no path {request.path[:MAX_QUOTED_CHARS]!r}; see /openapi.json")
    if request.method not in match_by_method:
        listed_methods = " or ".join(match_by_method)
        raise Refused(
            "wrong_method",
            f"{request.path[:MAX_QUOTED_CHARS]!r} takes {listed_methods}, not {request.method[:MAX_QUOTED_CHARS]}",
        )
    return match_by_method[request.method]


def _path_parameters(route: Route, parameter_values: list[str]) -> dict[str, Any]:
    """Return the path parameters by name. Raise `not_found` for a malformed one, as for an unknown id."""
    path_params: dict[str, Any] = {}
    for parameter_name, value_text in zip(_PARAMETER_NAMES[route.id], parameter_values, strict=True):
        parameter_type = PARAMETERS[parameter_name]
        try:
            path_params[parameter_name] = msgspec.convert(
                query_parameters.parse_number(value_text) if parameter_type.__origin__ is int else value_text,
                parameter_type,
            )
        except msgspec.ValidationError:
            raise Refused("not_found", f"there is no {parameter_name} {value_text[:MAX_QUOTED_CHARS]!r}") from None
    return path_params


def _parse_query(route: Route, query_string: bytes) -> Any:
    if route.query is None:
        return None
    try:
        return query_parameters.parse_query(query_string, route.query)
    except msgspec.ValidationError as error:
        raise msgspec.ValidationError(explain_error(error, route.query)) from None


def _convert_fields(value_by_field: Mapping[str, Any], schema: type[RequestSchema] | None) -> Any:
    if schema is None:
        return None
    try:
        return msgspec.convert(value_by_field, schema)
    except msgspec.ValidationError as error:
        raise msgspec.ValidationError(explain_error(error, schema)) from None


async def _decode_body(route: Route, request: Request) -> Any:
    if route.body is None:
        return None
    request.check_is_json()
    body_bytes = await request.body(MAX_BODY_BYTES)
    if not body_bytes and route.is_body_optional:
        return route.body()
    try:
        return _DECODERS[route.id](body_bytes)
    except msgspec.ValidationError as error:
        raise msgspec.ValidationError(explain_error(error, route.body)) from None


def allowed_methods(url_path: str) -> list[str]:
    """Return the methods for which this path of the API has a route."""
    return list(_matches(url_path.removeprefix(ROOT)))


async def _send_problem(send: Send, request_id: str, error: HttpError) -> None:
    code, message, error_headers = error
    refusal = REFUSALS.get(code) or REFUSALS["wrong_state"]
    if len(message) > MAX_MESSAGE_CHARS:
        message = f"{message[:MAX_MESSAGE_CHARS]}…"
    problem = ApiProblem(
        type=f"urn:deltaci:problem:{code}",
        title=refusal.title,
        status=refusal.status,
        code=code,
        message=message,
        hint=refusal.hint,
        request_id=request_id,
        detail=message,
    )
    response_headers = {REQUEST_ID_HEADER: request_id, **error_headers}
    with suppress(ConnectionError):
        await _send_response(send, refusal.status, wire.encode(problem), "application/problem+json", response_headers)


async def _send_response(
    send: Send, http_status: int, body: bytes, content_type: str, extra_headers: Mapping[str, str]
) -> None:
    response_headers = [
        (b"content-type", content_type.encode()),
        (b"content-length", str(len(body)).encode()),
        (b"cache-control", b"no-store"),
        (b"x-content-type-options", b"nosniff"),
        *(
            (header_name.lower().encode(), header_value.encode("latin-1", "replace"))
            for header_name, header_value in extra_headers.items()
        ),
    ]
    await send({"type": "http.response.start", "status": http_status, "headers": response_headers})
    await send({"type": "http.response.body", "body": body})
