"""What a runner hears from its server: any bytes. Its client says `Unreachable` or `Refused`, and nothing else."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final

import pytest
from hypothesis import strategies as st

from deltaci.core.errors import Refused, Unreachable
from deltaci.protocol import messages as wire
from deltaci.protocol.examples import DOCUMENT_EXAMPLES, OWN_EXAMPLES
from deltaci.runner.client import RunnerClient
from tests.fuzz.json_texts import mutated
from tests.fuzz.profile import fuzzed

NOW: Final = datetime.now(UTC)
BEAT: Final = wire.Heartbeat(lease_id="a.1.b", runner_id="w1", ts=NOW)
PATIENCE_SECONDS: Final = 20.0

CALLS: Final[dict[str, Callable[[RunnerClient], object]]] = {
    "register": lambda client: client.register("token", [], 1),
    "renew": lambda client: client.renew(),
    "request_leases": lambda client: client.request_leases(wire.LeaseRequest(runner_id="w1")),
    "control": lambda client: client.wait_for_cancels(wire.ControlRequest(runner_id="w1")),
    "leave": lambda client: client.leave("w1"),
    "send": lambda client: client.send(BEAT),
    "send_batch": lambda client: client.send_batch([BEAT, BEAT], 5.0),
    "spec": lambda client: client.spec("/runner/v1/specs/a", "a.1.b"),
    "hand_back": lambda client: client.hand_back("a.1.b"),
    "log_size": lambda client: client.log_size("a.1.b"),
    "append_log": lambda client: client.append_log("a.1.b", 0, b"x"),
    "secrets": lambda client: client.secrets("a.1.b"),
    "upload": lambda client: client.upload("a.1.b", "artifacts/x", [b"xy"], 2),
    "download": lambda client: client.download("a.1.b", "caches/x", lambda _: None),
}
GOOD: Final[list[Any]] = [
    *(json.loads(text) for text in (DOCUMENT_EXAMPLES | OWN_EXAMPLES).values()),
    {"leases": [json.loads(DOCUMENT_EXAMPLES["LeaseGranted"])], "gone": ["a"]},
    {"cancels": [json.loads(DOCUMENT_EXAMPLES["CancelRequested"])]},
    [json.loads(DOCUMENT_EXAMPLES["HeartbeatAck"]), json.loads(OWN_EXAMPLES["Problem"])],
    {"size": 5},
    {"uri": "u", "bytes": 2, "sha256": "0" * 64, "stored": False},
    {"A": "secret"},
    json.loads(DOCUMENT_EXAMPLES["LeaseGranted"])["job_spec"],
]
STATUSES: Final = (200, 200, 200, 204, 100, 199, 301, 400, 401, 404, 409, 409, 422, 500, 503, 999)


class Liar:
    """A server that answers whatever it is asked with the same bytes, and hangs up."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self.answer = b""
        self._is_over = False
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def close(self) -> None:
        """Take one more, and end."""
        self._is_over = True
        with socket.create_connection(self._socket.getsockname(), PATIENCE_SECONDS):
            self._thread.join(PATIENCE_SECONDS)
        self._socket.close()

    def _serve(self) -> None:
        while True:
            peer, _ = self._socket.accept()
            with peer, suppress(OSError):
                peer.settimeout(PATIENCE_SECONDS)
                if self._is_over:
                    return
                if not self._has_asked(peer):
                    continue
                peer.sendall(self.answer)
                peer.shutdown(socket.SHUT_WR)
                while peer.recv(65536):
                    pass

    @staticmethod
    def _has_asked(peer: socket.socket) -> bool:
        head = b""
        while b"\r\n\r\n" not in head:
            part = peer.recv(65536)
            if not part:
                return False
            head += part
        return True


@pytest.fixture
def liar() -> Iterator[Liar]:
    """One for all examples of a test."""
    found = Liar()
    yield found
    found.close()


def http(status: int, body: bytes, length: bytes | None = None, more: bytes = b"") -> bytes:
    """An answer that is HTTP."""
    size = b"%d" % len(body) if length is None else length
    return b"HTTP/1.1 %d Odd\r\ncontent-length: %s\r\n%s\r\n%s" % (status, size, more, body)


def outcome(liar: Liar, call: str, answer: bytes) -> None:
    """Ask, and get an answer, or one of the two errors that every caller knows."""
    liar.answer = answer
    client = RunnerClient(liar.url, "token")
    try:
        with suppress(Unreachable, Refused):
            CALLS[call](client)
    finally:
        client.close_all()


@fuzzed(
    120,
    call=st.sampled_from(sorted(CALLS)),
    body=st.sampled_from(GOOD).flatmap(mutated),
    status=st.sampled_from(STATUSES),
)
def test_an_answer_that_is_nearly_right(liar: Liar, call: str, body: bytes, status: int) -> None:
    """A proxy, a newer server, a broken one: the runner says the same again later, or gives up in order."""
    outcome(liar, call, http(status, body))


@fuzzed(
    80,
    call=st.sampled_from(sorted(CALLS)),
    answer=st.binary(max_size=60)
    | st.builds(
        http,
        st.sampled_from(STATUSES),
        st.binary(max_size=30),
        st.sampled_from((None, b"", b"-1", b"x", b"5", b"99999999999999999999", b"4611686018427387904", b"1, 2")),
        st.sampled_from(
            (
                b"",
                b"transfer-encoding: chunked\r\n",
                b"x: " + b"y" * 70_000 + b"\r\n",
                b"a: b\r\n" * 200,
                b"content-encoding: gzip\r\n",
                b"delta-sha256: \xff\r\n",
                b": \r\n",
            )
        ),
    )
    | st.sampled_from(
        (b"ffffffffffffffff\r\nx", b"-5\r\n", b"zz\r\n", b"0\r\n\r\n", b"5;x=y\r\nabcde\r\n0\r\n\r\n")
    ).map(lambda chunks: b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + chunks),
)
def test_an_answer_that_is_hardly_http(liar: Liar, call: str, answer: bytes) -> None:
    """Sizes that are lies must not become memory."""
    outcome(liar, call, answer)


@fuzzed(
    40, text=st.text(max_size=8) | st.sampled_from(("a\r\nHost: evil", "\n", "a b", "☃", "\0", "%", "?", "#", "../x"))
)
def test_what_a_lease_may_be_called(liar: Liar, text: str) -> None:
    """Lease ids and references come from the server and go into headers and addresses: none may smuggle another."""
    liar.answer = http(200, b'{"size": 1}')
    client = RunnerClient(liar.url, "token")
    try:
        for call in (lambda: client.log_size(text), lambda: client.spec(text, "a.1.b")):
            with suppress(Unreachable, Refused):
                call()
    finally:
        client.close_all()
