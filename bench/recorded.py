"""The same uvicorn with recorded responses: the difference to a real page is the cost of our code.

python -m bench.recorded reads a line of JSON with the responses: {"/runs": [[["name", "value"], …], "…"]}
"""

from __future__ import annotations

import sys
from base64 import b64decode
from typing import Any

import msgspec

from bench.serving import listen
from deltaci.engine import event_loop

Headers = list[tuple[str, str]]


class Recorded:
    """An application that returns recorded bytes by path."""

    protocol: Any

    def __init__(self, answers: dict[str, tuple[Headers, str]]) -> None:
        self.protocol = self
        self._answers = {
            path: ([(name.encode(), value.encode()) for name, value in headers], b64decode(body))
            for path, (headers, body) in answers.items()
        }

    def stop_waiting(self) -> None:
        """Do nothing: no request waits."""

    async def app(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        """Read the request and respond."""
        while (await receive()).get("more_body"):
            pass
        headers, body = self._answers.get(scope["path"], ([(b"content-type", b"text/plain")], b""))
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})


def main() -> int:
    """Serve until SIGTERM."""
    answers = msgspec.json.decode(sys.stdin.readline(), type=dict[str, tuple[Headers, str]])

    async def serve() -> None:
        await listen(Recorded(answers))

    event_loop.run(serve())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
