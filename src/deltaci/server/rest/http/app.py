"""The API as an ASGI application: find the address, know the caller, read what was sent, answer or refuse.

Every refusal has the same shape, whatever it is about (RFC 9457). An address, an id and a body that make no sense are
refused before anything is done.
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
    changes,
    explain,
    failures,
    files,
    history,
    jobs,
    keys,
    live,
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
from deltaci.server.rest.http.request import Call, Handler, Made, Parts, Sent
from deltaci.server.rest.http.validation_errors import explained

LOGGER: Final = logging.getLogger(__name__)
MAX_SHOWN: Final = 200
MAX_MESSAGE: Final = 2000  # It may repeat what was sent, e.g. the name of a field that is not known.

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
    **failures.HANDLERS,
    **projects.HANDLERS,
    **changes.HANDLERS,
    **workstreams.HANDLERS,
}


class _Node:
    """One part of an address: what it may be followed by, and what can be asked here."""

    __slots__ = ("any", "named", "rest", "routes")

    def __init__(self) -> None:
        self.named: dict[str, _Node] = {}
        self.any: _Node | None = None
        self.rest: dict[str, Route] = {}
        self.routes: dict[str, Route] = {}


def _tree() -> _Node:
    root = _Node()
    for route in ROUTES:
        node = root
        for part in route.path.strip("/").split("/"):
            if part.endswith("*}"):
                node.rest[route.method] = route
                break
            if part.startswith("{"):
                node.any = node.any or _Node()
                node = node.any
            else:
                node = node.named.setdefault(part, _Node())
        else:
            node.routes[route.method] = route
    return root


_TREE: Final = _tree()
_ROUTES: Final = {route.id: route for route in ROUTES}
_NAMES: Final = {route.id: route.path_parameters for route in ROUTES}
_DECODERS: Final = {route.id: wire.decoder(route.body) for route in ROUTES if route.body is not None}


def _found(path: str) -> dict[str, tuple[Route, list[str]]]:
    """What can be asked at this address, by method, with the parts that the address leaves open."""
    found: dict[str, tuple[Route, list[str]]] = {}
    _collect(_TREE, path.split("/")[1:], [], found)
    return found


def _collect(node: _Node, parts: list[str], open: list[str], found: dict[str, tuple[Route, list[str]]]) -> None:
    """What is named hides what is left open, for every method: each address is one thing."""
    if not parts:
        found.update({method: (route, open) for method, route in node.routes.items()})
        return
    if (named := node.named.get(parts[0])) is not None:
        _collect(named, parts[1:], open, found)
    if not found and node.any is not None:
        _collect(node.any, parts[1:], [*open, parts[0]], found)
    if not found:
        found.update({method: (route, [*open, "/".join(parts)]) for method, route in node.rest.items()})


Visitor = Callable[[Request], Awaitable[Caller | None]]


class ApiApp:
    """The addresses under /api/v1."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self.visitor: Visitor | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        request = Request(scope, receive)
        # Only a name, and nobody's secret: to ask the system for randomness would hand the interpreter to who computes.
        request.id = request_id = f"{random.getrandbits(64):016x}"
        try:
            answer = await self._answer(request, scope.get("query_string", b""))
        except Exception as error:
            await _send_problem(send, request_id, http_error(error, request_id, allowed_methods(request.path)))
            return
        if isinstance(answer, Sent):
            await answer.send(send)
            return
        headers = {REQUEST_ID_HEADER: request_id, **answer.headers}
        await _send(send, answer.status or 200, wire.encode(answer.value), "application/json", headers)

    async def ask(
        self,
        who: Caller,
        id: str,
        request: Request,
        *,
        params: Mapping[str, Any],
        query: Mapping[str, Any],
        body: Mapping[str, Any],
        once: str = "",
    ) -> Any:
        """Answer somebody of this process, who has let this caller in: allowed and refused as everybody is.

        `once` is the idempotency key, where there is one."""
        route = _ROUTES[id]
        who.check(route.required_scope)
        call = Call(
            route=route,
            who=who,
            params=_params(route, [str(params[name]) for name in _NAMES[id]]),
            query=_converted(query, route.query),
            body=_converted(body, route.body),
            request=request,
            parts=self._parts,
            again=partial(self._caller, request),
            once=once,
        )
        answer = await self._handled(call)
        return answer.value if isinstance(answer, Made) else answer

    async def _answer(self, request: Request, query: bytes) -> Made | Sent:
        route, open = _route(request)
        who = await self._caller(request)
        await self._parts.tenants.admit(who.tenant)
        who.check(route.required_scope)
        call = Call(
            route=route,
            who=who,
            params=_params(route, open),
            query=_query(route, query),
            body=await _body(route, request),
            request=request,
            parts=self._parts,
            again=partial(self._caller, request),
        )
        return await self._handled(call)

    async def _caller(self, request: Request) -> Caller:
        """Whoever shows a key; a page of ours may read with the session of the one who looks at it."""
        if self.visitor is not None and (who := await self.visitor(request)) is not None:
            return who
        return await self._parts.keys.caller(request.token())

    async def _handled(self, call: Call) -> Made | Sent:
        route = call.route
        async with self._parts.tenants.turns.turn(call.who.tenant):
            answer = await HANDLERS[route.id](call)
        if isinstance(answer, Sent):
            return answer
        if not isinstance(answer, Made):
            return Made(value=answer, status=route.status)
        return answer if answer.status else msgspec.structs.replace(answer, status=route.status)


def _route(request: Request) -> tuple[Route, list[str]]:
    found = _found(request.path.removeprefix(ROOT))
    if not found:
        raise Refused("not_found", f"there is no address {request.path[:MAX_SHOWN]!r}; see /openapi.json")
    if request.method not in found:
        methods = " or ".join(found)
        raise Refused("wrong_method", f"{request.path[:MAX_SHOWN]!r} takes {methods}, not {request.method[:MAX_SHOWN]}")
    return found[request.method]


def _params(route: Route, open: list[str]) -> dict[str, Any]:
    """The parts of the address by name. One that cannot be an id names nothing, like one that is not there."""
    found: dict[str, Any] = {}
    for name, text in zip(_NAMES[route.id], open, strict=True):
        kind = PARAMETERS[name]
        try:
            found[name] = msgspec.convert(query_parameters.number(text) if kind.__origin__ is int else text, kind)
        except msgspec.ValidationError:
            raise Refused("not_found", f"there is no {name} {text[:MAX_SHOWN]!r}") from None
    return found


def _query(route: Route, query: bytes) -> Any:
    if route.query is None:
        return None
    try:
        return query_parameters.read(query, route.query)
    except msgspec.ValidationError as error:
        raise msgspec.ValidationError(explained(error, route.query)) from None


def _converted(given: Mapping[str, Any], kind: type[RequestSchema] | None) -> Any:
    if kind is None:
        return None
    try:
        return msgspec.convert(given, kind)
    except msgspec.ValidationError as error:
        raise msgspec.ValidationError(explained(error, kind)) from None


async def _body(route: Route, request: Request) -> Any:
    if route.body is None:
        return None
    request.check_is_json()
    data = await request.body(MAX_BODY_BYTES)
    if not data and route.is_body_optional:
        return route.body()
    try:
        return _DECODERS[route.id](data)
    except msgspec.ValidationError as error:
        raise msgspec.ValidationError(explained(error, route.body)) from None


def allowed_methods(path: str) -> list[str]:
    """Return the methods of this path of the API."""
    return list(_found(path.removeprefix(ROOT)))


async def _send_problem(send: Send, request_id: str, error: HttpError) -> None:
    code, message, more = error
    known = REFUSALS.get(code) or REFUSALS["wrong_state"]
    if len(message) > MAX_MESSAGE:
        message = f"{message[:MAX_MESSAGE]}…"
    problem = ApiProblem(
        type=f"urn:deltaci:problem:{code}",
        title=known.title,
        status=known.status,
        code=code,
        message=message,
        hint=known.hint,
        request_id=request_id,
        detail=message,
    )
    headers = {REQUEST_ID_HEADER: request_id, **more}
    with suppress(ConnectionError):
        await _send(send, known.status, wire.encode(problem), "application/problem+json", headers)


async def _send(send: Send, status: int, body: bytes, kind: str, more: Mapping[str, str]) -> None:
    headers = [
        (b"content-type", kind.encode()),
        (b"content-length", str(len(body)).encode()),
        (b"cache-control", b"no-store"),
        (b"x-content-type-options", b"nosniff"),
        *((name.lower().encode(), value.encode("latin-1", "replace")) for name, value in more.items()),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
