"""The log on its way to the server: whatever is written while other parts are sent arrives whole and in order."""

from __future__ import annotations

import asyncio
from pathlib import Path

from deltaci.core.errors import Refused, Unreachable
from deltaci.runner.client import RunnerClient
from deltaci.runner.log.sections import SectionWriter, new_nonce
from deltaci.runner.log.stream import CHUNK_BYTES, TAIL_LINES, LogStream
from tests.contract.backends import on_loop

PARTS = 1000


class Kept(RunnerClient):
    """A server's end that keeps what it gets; now and then an answer is lost, or it has lost some of it itself."""

    def __init__(self) -> None:
        super().__init__("http://127.0.0.1:1")
        self.log = b""
        self.calls = 0

    def append_log(self, lease_id: str, offset: int, data: bytes, timeout: float = 0.0) -> int:
        self.calls += 1
        if offset > len(self.log):
            raise Refused("log_gap", "send it from there")
        self.log += data[len(self.log) - offset :]
        if self.calls % 7 == 0:
            raise Unreachable("the answer was lost")
        if self.calls % 5 == 0:
            self.log = self.log[:-1]
        return offset + len(data)

    def log_size(self, lease_id: str, timeout: float = 0.0) -> int:
        return len(self.log)


@on_loop
async def test_what_is_written_while_it_is_sent_arrives_whole_and_in_order(tmp_path: Path) -> None:
    """The sender reads in a thread of its own: it must never move the place at which the job's output is written."""
    server = Kept()
    stream = LogStream(server, "lease", tmp_path / "log")
    sending = asyncio.create_task(stream.send())
    written = b""
    turn = asyncio.Event()
    for number in range(PARTS):
        line = f"line {number}\n".encode()
        written += line
        stream.write(line)
        if number % 50 == 0:  # Let the others go on.
            asyncio.get_running_loop().call_soon(turn.set)
            await turn.wait()
            turn.clear()

    assert await stream.finish(20)
    await sending

    assert server.log in (written, written[:-1])  # The very last answer may have been a lie.
    assert stream.tail() == written.decode().splitlines()[-TAIL_LINES:]
    assert (tmp_path / "log").read_bytes() == written
    stream.close()


class Thin(Kept):
    """A line that takes a few bytes and no more: what is larger never arrives, and is heard of late."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most

    def append_log(self, lease_id: str, offset: int, data: bytes, timeout: float = 0.0) -> int:
        self.calls += 1
        if len(data) > self.most:
            raise Unreachable("the line is too thin for that much at once")
        self.log += data[len(self.log) - offset :]
        return len(self.log)


@on_loop
async def test_a_thin_line_is_sent_less_at_once(tmp_path: Path) -> None:
    """A part that is too large for the line would be sent again for ever, and keep heartbeats waiting."""
    server = Thin(4096)
    stream = LogStream(server, "lease", tmp_path / "log")
    stream.write(b"x" * 10_000)

    sending = asyncio.create_task(stream.send())
    is_whole = await stream.finish(20)
    await sending

    assert is_whole
    assert server.log == b"x" * 10_000
    stream.close()


@on_loop
async def test_a_wide_line_is_sent_more_at_once(tmp_path: Path) -> None:
    """Ten megabytes take few calls."""
    server = Thin(CHUNK_BYTES)
    stream = LogStream(server, "lease", tmp_path / "log")
    stream.write(b"x" * 10 * CHUNK_BYTES)

    sending = asyncio.create_task(stream.send())
    assert await stream.finish(20)
    await sending

    assert len(server.log) == 10 * CHUNK_BYTES
    assert server.calls < 40
    stream.close()


@on_loop
async def test_a_log_ends_where_it_is_full(tmp_path: Path) -> None:
    """On this disk as on the server's; the last lines are still known, because they tell why a job failed."""
    server = Thin(CHUNK_BYTES)
    stream = LogStream(server, "lease", tmp_path / "log", max_bytes=1000)
    for number in range(500):
        stream.write(f"line {number}\n".encode())

    sending = asyncio.create_task(stream.send())
    assert await stream.finish(20)
    await sending

    assert len(server.log) == 1000
    assert server.log.endswith(b"the rest of the output was dropped]\n")
    assert server.log == (tmp_path / "log").read_bytes()
    assert stream.tail()[-2:] == ["line 498", "line 499"]
    stream.close()


@on_loop
async def test_the_last_lines_are_the_jobs_own(tmp_path: Path) -> None:
    """A marker quotes the step's command: what that mentions is not what happened, and must not class a failure."""
    stream = LogStream(Thin(CHUNK_BYTES), "lease", tmp_path / "log")
    marks = SectionWriter(new_nonce())
    stream.write(marks.header() + marks.begin(0, "grep 'Connection reset by peer' log"))
    stream.write(marks.output(b"nothing found\n") + marks.end(0, 1, 0.1))

    assert stream.tail() == ["nothing found"]
    stream.close()


@on_loop
async def test_a_disk_that_is_full_costs_the_log_and_nothing_else(tmp_path: Path) -> None:
    """The job goes on; what it says is lost."""
    stream = LogStream(Thin(CHUNK_BYTES), "lease", Path("/dev/full"))

    stream.write(b"first\n")
    stream.write(b"last\n")

    assert "No space left" in stream.failure
    assert stream.tail() == ["first", "last"]
    stream.close()
