"""The runner protocol over HTTP, as a plain ASGI application: the hot path has no framework in it.

Every answer is JSON. A refusal has a stable `code` and says what was found and what to do. Tokens and lease ids come in
headers and bodies only, so that no access log ever shows one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec

from deltaci.blobs.logs import Logs
from deltaci.core import ids
from deltaci.core.errors import Refused, StaleLease
from deltaci.engine.lane import Overloaded
from deltaci.server.protocol import Protocol, Runner
from deltaci.server.registry import Registered, Registration, Registry
from deltaci.store.port import Conflict, Unavailable
from deltaci.wire import messages as wire

ROOT: Final = "/runner/v1/"
MAX_BATCH: Final = 1000
MAX_CHUNK_BYTES: Final = 4 * 1024 * 1024

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]

_STATUS: Final = {
    "bad_request": 400,
    "bad_credential": 401,
    "expired_credential": 401,
    "wrong_runner": 403,
    "not_found": 404,
    "too_large": 413,
    "overloaded": 503,
    "unavailable": 503,
}
_decode_batch = msgspec.json.Decoder(list[wire.RunnerMessage]).decode
_decode_message = msgspec.json.Decoder(wire.RunnerMessage).decode
_decode_lease = msgspec.json.Decoder(wire.Lease).decode
_decode_registration = msgspec.json.Decoder(Registration).decode


class Problem(msgspec.Struct, frozen=True):
    """Why a request was refused."""

    code: str
    message: str


class Request:
    """What came in: headers by lower-case name, and the body, read up to a limit."""

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self.path: str = scope["path"]
        self.method: str = scope["method"]
        self.headers: dict[str, str] = {
            name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]
        }
        self._receive = receive

    async def body(self, limit: int) -> bytes:
        """All of it, or a refusal as soon as it is too much."""
        parts: list[bytes] = []
        size = 0
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise Refused("bad_request", "the request broke off")
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > limit:
                raise Refused("too_large", f"the body has more than {limit} bytes; send less at once")
            if not message.get("more_body"):
                return b"".join(parts)

    def token(self) -> str:
        """The bearer token."""
        kind, _, token = self.headers.get("authorization", "").partition(" ")
        if kind.lower() != "bearer" or not token:
            raise Refused("bad_credential", "no credential; send 'Authorization: Bearer …'")
        return token

    def lease_id(self) -> str:
        """The lease under which it is sent."""
        return self.headers.get("delta-lease", "")


class RunnerApp:
    """The addresses under /runner/v1/."""

    def __init__(self, protocol: Protocol, registry: Registry, logs: Logs) -> None:
        self._protocol = protocol
        self._registry = registry
        self._logs = logs

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        request = Request(scope, receive)
        try:
            status, answer = 200, await self._route(request)
        except StaleLease as refused:
            status, answer = 409, Problem(refused.reason, refused.message)
        except Refused as refused:
            status, answer = _STATUS.get(refused.code, 409), Problem(refused.code, refused.message)
        except msgspec.ValidationError as error:
            status, answer = 422, Problem("bad_message", f"{error}; see docs/protocol.md")
        except msgspec.DecodeError as error:
            status, answer = 400, Problem("bad_json", f"the body is not JSON: {error}")
        except Overloaded as error:
            status, answer = 503, Problem("overloaded", str(error))
        except (Unavailable, Conflict) as error:
            status, answer = 503, Problem("unavailable", f"{error}; try again")
        if isinstance(answer, wire.StaleLease):
            status = 409
        await _send(send, status, msgspec.json.encode(answer))

    async def _route(self, request: Request) -> Any:
        path = request.path.removeprefix(ROOT)
        if request.method == "POST" and path == "register":
            return await self._registry.register(_decode_registration(await request.body(wire.MAX_MESSAGE_BYTES)))
        who = self._registry.who(request.token())
        match request.method, path.partition("/")[0]:
            case "POST", "renew":
                return self._renew(who)
            case "POST", "lease":
                asked = _decode_lease(await request.body(wire.MAX_MESSAGE_BYTES))
                return {"leases": await self._protocol.lease(who, asked)}
            case "POST", "messages":
                message = _decode_message(await request.body(wire.MAX_MESSAGE_BYTES))
                [answer] = await self._protocol.say(who, [message])
                if isinstance(answer, Refused):
                    raise answer
                return answer
            case "POST", "batch":
                said = _decode_batch(await request.body(MAX_BATCH * 1024))
                if len(said) > MAX_BATCH:
                    raise Refused("too_large", f"{len(said)} messages at once; at most {MAX_BATCH}")
                return [_plain(answer) for answer in await self._protocol.say(who, said)]
            case "GET", "specs":
                return await self._protocol.spec(who, request.lease_id())
            case "GET" | "POST", "log":
                return await self._log(who, request)
        raise Refused("not_found", f"there is no {request.method} {request.path}; see docs/protocol.md")

    def _renew(self, who: Runner) -> Registered:
        return self._registry.renew(who)

    async def _log(self, who: Runner, request: Request) -> dict[str, int]:
        """Append to the log of a live lease, or tell how far it is."""
        await self._protocol.spec(who, request.lease_id())  # Refuses a lease that is not this runner's, or not live.
        ref = ids.lease_ref(request.lease_id())
        if request.method == "GET":
            return {"size": self._logs.size(ref.attempt_id, ref.number)}
        offset = request.headers.get("delta-offset", "")
        if not offset.isdecimal() or len(offset) > 15:
            raise Refused("bad_request", f"Delta-Offset is {offset[:20]!r}; give the byte at which this part begins")
        data = await request.body(MAX_CHUNK_BYTES)
        return {"size": self._logs.append(ref.attempt_id, ref.number, int(offset), data)}


def _plain(answer: wire.ServerMessage | Refused) -> wire.ServerMessage | Problem:
    return Problem(answer.code, answer.message) if isinstance(answer, Refused) else answer


async def _send(send: Send, status: int, body: bytes) -> None:
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"cache-control", b"no-store"),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
