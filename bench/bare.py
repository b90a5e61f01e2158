"""The same uvicorn with almost nothing behind it: a request's body is decoded by its type, a response is encoded.

There is no routing, authentication, check, decision or storage: no API in Python behind this uvicorn can be faster.

python -m bench.bare reads a line of JSON with the responses: {"POST /runs": "…", …}
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Final

import msgspec

from bench.serving import listen
from deltaci.api.routes import ROOT
from deltaci.api.schemas import records as api
from deltaci.api.schemas.inputs import RunInput
from deltaci.engine import event_loop
from deltaci.protocol import messages as wire

HEADERS: Final = [
    (b"content-type", b"application/json"),
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
    (b"delta-request-id", b"0123456789abcdef"),
]


class Bare:
    """An application that returns prepared values."""

    protocol: Any

    def __init__(self, answers: dict[str, str]) -> None:
        self._decode: Callable[[bytes], Any] = wire.decoder(RunInput)
        self._answers: dict[tuple[str, str], Any] = {}
        for name, text in answers.items():
            method, path = name.split(" ")
            kind = api.Run if method == "POST" else api.RunWithJobs
            self._answers[method, f"{ROOT}{path}"] = msgspec.json.decode(text, type=kind)

    def stop_waiting(self) -> None:
        """Do nothing: no request waits."""

    async def app(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        """Read the request and respond."""
        parts, is_more = [], True
        while is_more:
            message = await receive()
            parts.append(message.get("body", b""))
            is_more = message.get("more_body", False)
        status = 200
        if scope["method"] == "POST":
            status = 201
            self._decode(b"".join(parts))
        body = wire.encode(self._answers[scope["method"], scope["path"]])
        headers = [*HEADERS, (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})


def main() -> int:
    """Serve until SIGTERM."""
    answers: dict[str, str] = msgspec.json.decode(sys.stdin.readline())

    async def serve() -> None:
        await listen(Bare(answers))

    event_loop.run(serve())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
