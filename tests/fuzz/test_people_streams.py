"""Streams of events and logs that are followed, over a real socket: asked for in any way, and left at any moment."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pytest
from hypothesis import strategies as st

from deltaci.api.routes import ROOT
from tests.fuzz.people import Directory, settle
from tests.fuzz.prey import prey
from tests.fuzz.profile import fuzzed

PATIENCE_SECONDS: Final = 15.0
STREAM: Final = b"accept: text/event-stream\r\n"
NUMBERS: Final = st.sampled_from((b"", b"0", b"1", b"-1", b"7", b"9" * 15, b"9" * 40, b"x", b"1.5", b"\xff", b"%00"))
BEFORE: Final = st.sampled_from(("/events", "/runs/{run}/events"))
LOGS: Final = st.sampled_from(("/runs/{run}/jobs/{job}/log", "/runs/{run}/jobs/{job}/attempts/1/log"))


class Server(NamedTuple):
    """Where it is, who asks, and what there is."""

    port: int
    token: str
    there: Directory

    def ask(self, which: int, path: str, query: bytes, headers: bytes, *, is_patient: bool) -> int:
        """The status of the answer; 0 for one who does not wait for it. Either way the line is cut then."""
        run = self.there.runs[which % len(self.there.runs)]
        address = f"{ROOT}{path.format(run=run.id, job=run.jobs[0][0])}".encode()
        with socket.create_connection(("127.0.0.1", self.port), PATIENCE_SECONDS) as line:
            line.sendall(b"GET %s?%s HTTP/1.1\r\nhost: x\r\n" % (address, query))
            line.sendall(b"authorization: Bearer %s\r\n%s\r\n" % (self.token.encode(), headers))
            head = b""
            while is_patient and b"\r\n\r\n" not in head:
                part = line.recv(65536)
                assert part, head
                head += part
        return int(head.split(b" ")[1]) if head else 0


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """A server process, which must be well at the end, whoever still follows something."""
    with prey(tmp_path, has_work=False) as here:
        people = settle(here)
        there = Directory(here.url, people.admin)
        there.read()
        yield Server(int(here.url.rpartition(":")[2]), people.reader, there)
        there.read()
        there.close()
    assert not here.complaints()
    assert here.verified().is_legal


@fuzzed(40, which=st.integers(0, 20), path=BEFORE, last=NUMBERS, after=NUMBERS, is_patient=st.booleans())
def test_a_stream_of_events_begins_or_is_refused(
    server: Server, which: int, path: str, last: bytes, after: bytes, is_patient: bool
) -> None:
    """Wherever it should begin; and it costs nothing when nobody reads it any more."""
    told = STREAM + b"last-event-id: " + last + b"\r\n"

    status = server.ask(which, path, b"after=" + after if after else b"", told, is_patient=is_patient)

    assert status in ((200, 400, 422) if is_patient else (0,))


@fuzzed(
    25,
    which=st.integers(0, 20),
    path=LOGS,
    follow=st.sampled_from((b"0", b"1", b"1.5", b"-1", b"3601", b"x", b"3600")),
    span=st.sampled_from((b"bytes=0-", b"bytes=5-9", b"bytes=-3", b"bytes=999-", b"bytes=9-1", b"x", b"\xff", b"")),
    lease=st.sampled_from((b"0", b"1", b"2", b"9" * 30)),
)
def test_a_log_is_followed_for_as_long_as_it_was_asked_for(
    server: Server, which: int, path: str, follow: bytes, span: bytes, lease: bytes
) -> None:
    """Whatever part of it; and who leaves is not waited for."""
    query, told = b"follow=%s&lease=%s" % (follow, lease), b"range: " + span + b"\r\n"

    status = server.ask(which, path, query, told, is_patient=follow != b"3600")

    assert status in ((200, 206, 404, 416, 422) if follow != b"3600" else (0,))
