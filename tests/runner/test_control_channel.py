"""The line on which a runner is told of cancels: what counts, what does not, and what happens without one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from deltaci.protocol import messages as wire
from deltaci.protocol.messages import CancelRequested, ControlRequest
from deltaci.runner import control_channel
from deltaci.runner.client import RunnerClient
from deltaci.runner.control_channel import ControlChannel
from tests.contract.backends import on_loop


def cancel(lease_id: str) -> CancelRequested:
    """What a server says."""
    return CancelRequested(
        lease_id=lease_id, job_id="q1", reason="ENOUGH", deadline_seconds=30, ts=datetime(2026, 1, 4, tzinfo=UTC)
    )


class Answers:
    """A server that answers each request with the next of these; the last one again and again."""

    def __init__(self, *answers: tuple[int, bytes]) -> None:
        self.left = list(answers)
        self.asked: list[ControlRequest] = []

    def next(self, body: bytes) -> tuple[int, bytes]:
        """The answer to this."""
        self.asked.append(wire.decoder(ControlRequest)(body))
        return self.left.pop(0) if len(self.left) > 1 else self.left[0]


@contextmanager
def serving(answers: Answers) -> Iterator[str]:
    """Its address."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            status, body = answers.next(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        server.block_on_close = False
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


def told(*lease_ids: str) -> tuple[int, bytes]:
    """An answer that asks for these to stop."""
    return 200, wire.encode({"cancels": [cancel(each) for each in lease_ids]})


@pytest.mark.parametrize("body", [b'{"code": "not_found", "message": "no such address"}', b"<html>not here</html>"])
@on_loop
async def test_a_server_without_such_a_line_is_left_alone(body: bytes) -> None:
    """An older server, or somebody else's: heartbeats are enough."""
    answers = Answers((404, body))
    with serving(answers) as url:
        listening = ControlChannel(RunnerClient(url), "w1", lambda: {"l1"}, lambda _: None)
        listening.leases_changed()

        await listening.run()

    assert len(answers.asked) == 1


@pytest.mark.proves("PRO-X1")
@on_loop
async def test_a_cancel_counts_once_and_only_for_a_lease_that_is_held() -> None:
    """Whatever comes in, twice or for somebody else, stops nobody's job by mistake."""
    heard: list[str] = []
    held = {"l1": None, "l2": None}
    listening = ControlChannel(
        RunnerClient("http://127.0.0.1:1"), "w1", held.keys, lambda each: heard.append(each.lease_id)
    )

    for lease_id in ("l1", "l3", "l1", "l2"):
        listening.deliver(cancel(lease_id))
    del held["l1"]
    listening.leases_changed()
    listening.deliver(cancel("l1"))
    listening.stop()

    assert heard == ["l1", "l2"]


@on_loop
async def test_what_was_told_is_not_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a job that takes its time to stop would be told so without end."""
    monkeypatch.setattr(control_channel, "RETRY_SECONDS", 0.01)
    answers = Answers(told("l1"), (503, b"{}"), told("l2"), told())
    heard = asyncio.Queue[str]()
    with serving(answers) as url:
        listening = ControlChannel(
            RunnerClient(url), "w1", lambda: ["l1", "l2"], lambda each: heard.put_nowait(each.lease_id)
        )
        listening.leases_changed()
        running = asyncio.create_task(listening.run())

        found = [await heard.get(), await heard.get()]
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    assert found == ["l1", "l2"]
    assert [each.lease_ids for each in answers.asked[:3]] == [["l1", "l2"], ["l2"], ["l2"]]


@on_loop
async def test_without_a_lease_or_with_another_way_nobody_is_asked() -> None:
    """An idle fleet must not keep lines open."""
    held: dict[str, None] = {}
    answers = Answers(told())
    with serving(answers) as url:
        listening = ControlChannel(RunnerClient(url), "w1", held.keys, lambda _: None)
        running = asyncio.create_task(listening.run())
        listening.leases_changed()
        held["l1"] = None
        listening.set_replaced(True)
        await asyncio.wait({running}, timeout=0.05)
        assert answers.asked == []

        listening.set_replaced(False)
        while not answers.asked:
            await asyncio.wait({running}, timeout=0.01)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
