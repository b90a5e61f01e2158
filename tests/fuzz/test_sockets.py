"""Bytes on the server's socket that are nearly HTTP: each is answered or hung up on, and nobody else notices."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from hypothesis import strategies as st

from deltaci.api.routes import REFUSALS as API_REFUSALS
from deltaci.protocol.routes import REFUSALS
from deltaci.runner.client import RunnerClient
from tests.fuzz.prey import Prey, prey
from tests.fuzz.profile import fuzzed

PATIENCE_SECONDS: Final = 10.0
REFUSED: Final = {refusal.status for refusal in REFUSALS.values()} | {
    refusal.status for refusal in API_REFUSALS.values()
}


def request(line: bytes, token: bytes, body: bytes) -> bytes:
    """A good one."""
    return (
        b"%s HTTP/1.1\r\nhost: x\r\nauthorization: Bearer %s\r\ncontent-type: application/json\r\n"
        b"content-length: %d\r\nconnection: close\r\n\r\n%s" % (line, token, len(body), body)
    )


WHOLE: Final = (
    request(b"POST /runner/v1/lease", b"RUNNER", b'{"type": "Lease", "runner_id": "w1"}'),
    request(b"POST /api/v1/runs?x=1", b"OPERATOR", b'{"plan": {"jobs": [{"name": "a", "work": {}}]}}'),
    request(b"GET /api/v1/runs?limit=1&since=2026-01-01T00:00:00Z", b"OPERATOR", b""),
)
ODD: Final = st.sampled_from(
    (
        *(
            b"\r\n",
            b"\n",
            b"\r",
            b"\0",
            b"\xff",
            b" ",
            b"\t",
            b":",
            b";",
            b"%00",
            b"%",
            b"%ff",
            b"\x80" * 9,
            b"HTTP/2.0",
        ),
        *(
            b"content-length: 5\r\n",
            b"content-length: -1\r\n",
            b"transfer-encoding: chunked\r\n",
            b"expect: 100-continue\r\n",
        ),
        *(
            b"upgrade: h2c\r\nconnection: upgrade\r\n",
            b"x: " + b"y" * 9000 + b"\r\n",
            b"//",
            b"/../",
            b"?a=b",
            b"#",
            b"*",
        ),
    )
)


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    """A good request in which a few places are not."""
    raw = draw(st.sampled_from(WHOLE))
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(raw)))
        raw = raw[:at] + draw(ODD | st.binary(max_size=3)) + raw[at + draw(st.integers(0, 4)) :]
    return raw[: draw(st.integers(0, len(raw)))] if draw(st.integers(0, 5)) == 0 else raw


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Prey]:
    """A server process, which must have nothing to complain about at the end."""
    with prey(tmp_path) as here:
        yield here
        client = RunnerClient(here.url, here.credential)
        assert client.renew().runner_id == "w1"
        client.close()
    assert not here.complaints()
    assert here.verified().is_legal


@fuzzed(250, raw=requests() | st.binary(max_size=80))
def test_what_is_nearly_http_is_answered_or_left(server: Prey, raw: bytes) -> None:
    """Scanners, proxies and clients of any kind find every open port."""
    address = ("127.0.0.1", int(server.url.rpartition(":")[2]))
    with socket.create_connection(address, PATIENCE_SECONDS) as line:
        line.sendall(
            raw.replace(b"RUNNER", server.credential.encode()).replace(b"OPERATOR", server.operator().encode())
        )
        line.shutdown(socket.SHUT_WR)
        answer = b""
        while part := line.recv(65536):
            answer += part

    if answer:
        head, _, body = answer.partition(b"\r\n\r\n")
        status = int(head.split(b" ")[1])
        assert status in (100, 200, 201, *REFUSED), answer
        assert status < 500, answer
        if status >= 400 and body:
            assert json.loads(body)["code"] in (*REFUSALS, *API_REFUSALS)
