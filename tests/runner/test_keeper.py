"""The fence of the lease keeper, with a clock that tests move, and what becomes of a log when its runner is gone."""

from __future__ import annotations

import asyncio
import select
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from deltaci.core.errors import Refused
from deltaci.protocol.messages import HeartbeatAck, Problem, Progress, RunnerMessage, ServerMessage
from deltaci.runner.client import RunnerClient, Unreachable
from deltaci.runner.lease.keeper import Confirmed, Hold, KeeperEvent, LeaseKeeper, Lost, Release
from deltaci.runner.lease.log_recovery import NO_FILE, UnsentLog, open_log, send_unsent_logs
from deltaci.runner.log.stream import LogStream
from deltaci.runner.sandbox.process_tree import JobHandle
from deltaci.storage.blobs.logs import LogStore

TTL_SECONDS = 10
FENCE = 7.5  # A quarter of it before its end.
SECONDS = 20.0


class Line(RunnerClient):
    """A server that answers when it is told to, and counts who asked."""

    def __init__(self) -> None:
        super().__init__("http://127.0.0.1:1")
        self.asked = threading.Event()
        self.answer = threading.Event()

    def send_batch(self, said: Sequence[RunnerMessage], timeout: float) -> list[ServerMessage | Problem]:
        """Hang, as a name server that is out of reach does, whatever the timeout is."""
        self.asked.set()
        assert self.answer.wait(SECONDS)
        return [
            HeartbeatAck(lease_id=each.lease_id, extend_lease=True, new_lease_ttl_seconds=TTL_SECONDS) for each in said
        ]


class Bench:
    """A keeper, its lines, what it says, and its clock."""

    def __init__(self) -> None:
        self.now = 0.0
        self.lines: list[Line] = []
        self.news: list[KeeperEvent] = []
        self.keeper = LeaseKeeper(self.connect, self.news.append, lambda: self.now)

    def connect(self) -> RunnerClient:
        """One more line."""
        self.lines.append(Line())
        return self.lines[-1]

    def hold(
        self, lease_id: str = "l1", confirmed_at: float = 0.0, interval: float = 1, progress: Progress | None = None
    ) -> None:
        """Keep a lease of a job that has no processes."""
        nobody = JobHandle(marker="nobody-carries-this")
        self.keeper.execute(
            Hold(
                lease_id=lease_id,
                runner_id="r1",
                ttl_seconds=TTL_SECONDS,
                interval_seconds=interval,
                handle=nobody,
                confirmed_at=confirmed_at,
                progress=progress,
            )
        )

    def at(self, now: float) -> None:
        """It is so late; the keeper takes its turn."""
        self.now = now
        self.keeper.advance()

    def answered(self) -> None:
        """Let the last line answer, and the keeper hear it."""
        self.lines[-1].answer.set()
        assert select.select([self.keeper], [], [], SECONDS)[0]
        self.keeper.advance()

    def lost(self) -> list[str]:
        """The leases that it gave up."""
        return [each.lease_id for each in self.news if isinstance(each, Lost)]

    def close(self) -> None:
        """Let everybody go."""
        for line in self.lines:
            line.answer.set()
        self.keeper.stop_all()


@pytest.fixture
def bench() -> Bench:
    """A keeper at time 0."""
    return Bench()


def test_an_answer_moves_the_fence(bench: Bench) -> None:
    """From when the heartbeat was said, not from when its answer was heard."""
    bench.hold()
    bench.at(1.0)
    bench.now = 3.0
    bench.answered()

    bench.hold()  # Whoever asks is told.

    assert bench.news[-1] == Confirmed(lease_id="l1", until=1.0 + FENCE)
    bench.close()


def test_that_the_steps_began_is_said_soon(bench: Bench) -> None:
    """People see that a job runs, not only at the next beat. What is over at once costs no message more."""
    bench.hold("long", interval=5)
    bench.hold("short", interval=5)
    for lease_id in ("long", "short"):
        bench.hold(lease_id, interval=5, progress=Progress(step_index=0))
    bench.at(0.9)
    assert not bench.lines[0].asked.is_set()
    bench.keeper.execute(Release(lease_id="short"))

    bench.at(1.1)
    bench.answered()
    bench.hold("long", interval=5, progress=Progress(step_index=1))
    bench.lines[0].asked.clear()
    bench.at(3.0)

    assert not bench.lines[0].asked.is_set()
    assert bench.lost() == []
    bench.close()


def test_a_call_that_hangs_keeps_nobody_waiting(bench: Bench) -> None:
    """Neither the fence nor the next beat, on a new line."""
    bench.hold("early")
    bench.at(1.0)
    assert bench.lines[0].asked.wait(SECONDS)
    bench.at(1.9)
    assert len(bench.lines) == 1

    bench.at(2.1)  # A second is enough for an answer, unless the line is slow.
    bench.at(3.2)
    assert bench.lines[1].asked.wait(SECONDS)
    bench.at(5.1)
    assert len(bench.lines) == 2
    bench.at(5.3)  # And two are, when one was not.
    assert len(bench.lines) == 3
    bench.at(FENCE)

    assert bench.lost() == ["early"]
    bench.close()


def test_a_slow_line_is_given_the_time_that_it_needs(bench: Bench) -> None:
    """Whoever hangs up on every answer that is late never hears one."""
    bench.hold()
    bench.at(1.0)
    bench.now = 1.9
    bench.answered()
    bench.lines[0].answer.clear()

    bench.at(2.1)
    bench.at(5.6)  # Four times as long as the last one took.
    assert len(bench.lines) == 1
    bench.at(5.8)

    assert len(bench.lines) == 2
    bench.close()


def test_an_order_that_waited_makes_no_lease_longer(bench: Bench) -> None:
    """It says when the lease was proved: nobody knows how long it lay in the pipe."""
    bench.now = 60.0

    bench.hold(confirmed_at=0.0)
    bench.at(60.0)

    assert bench.news[0] == Confirmed(lease_id="l1", until=FENCE)
    assert bench.lost() == ["l1"]
    bench.close()


def test_an_answer_for_a_lease_that_was_released_is_nobodys(bench: Bench) -> None:
    """The job ended while its heartbeat was on the way."""
    bench.hold()
    bench.at(1.0)
    bench.keeper.execute(Release(lease_id="l1"))

    bench.answered()
    bench.at(100.0)

    assert bench.lost() == []
    bench.close()


class Shelf(RunnerClient):
    """Keeps logs as the server does, and can be out of reach."""

    def __init__(self, folder: Path) -> None:
        super().__init__("http://127.0.0.1:1")
        self.logs = LogStore(folder)
        self.failures = 0
        self.is_stale = False

    def log_size(self, lease_id: str, timeout: float = 0.0) -> int:
        """As the server answers."""
        self._check()
        return self.logs.size(lease_id, 1)

    def append_log(self, lease_id: str, offset: int, data: bytes, timeout: float = 0.0) -> int:
        """As the server answers."""
        self._check()
        return self.logs.append(lease_id, 1, offset, data)

    def _check(self) -> None:
        if self.is_stale:
            raise Refused("stale_lease", "over")
        if self.failures:
            self.failures -= 1
            raise Unreachable("not now")


def test_the_rest_of_a_log_is_sent_from_where_the_server_has_it(tmp_path: Path) -> None:
    """Whatever was sent before, and however often it has to be said."""
    shelf = Shelf(tmp_path / "logs")
    said = bytes(range(256)) * 8192
    (tmp_path / "log").write_bytes(said)
    shelf.append_log("l1", 0, said[:1000])
    shelf.failures = 2

    send_unsent_logs(shelf, [UnsentLog("l1", open_log(str(tmp_path / "log")), time.monotonic() + SECONDS)])

    assert shelf.logs.read("l1", 1, limit=len(said) + 1) == said
    assert open_log(str(tmp_path / "none")) == open_log("") == NO_FILE


def test_the_rest_of_a_log_is_not_sent_for_ever(tmp_path: Path) -> None:
    """Nobody answers, or nobody wants it any more: the keeper leaves."""
    shelf = Shelf(tmp_path / "logs")
    (tmp_path / "log").write_bytes(b"words")
    shelf.failures = 1_000_000
    began = time.monotonic()
    send_unsent_logs(shelf, [UnsentLog("l1", open_log(str(tmp_path / "log")), began + 0.2)])
    shelf.failures, shelf.is_stale = 0, True
    send_unsent_logs(shelf, [UnsentLog("l1", open_log(str(tmp_path / "log")), began + SECONDS)])

    assert time.monotonic() - began < SECONDS / 2
    assert shelf.logs.size("l1", 1) == 0


def test_a_log_that_is_written_while_it_is_sent_stays_whole(tmp_path: Path) -> None:
    """The one who writes and the one who reads are two threads on one file."""
    shelf = Shelf(tmp_path / "logs")
    lines = [f"{number} {'x' * (number % 90)}\n".encode() for number in range(20_000)]

    async def story() -> None:
        log = LogStream(shelf, "l1", tmp_path / "log")
        sending = asyncio.create_task(log.send())
        for number, line in enumerate(lines):
            log.write(line)
            if number % 20 == 0:
                await asyncio.wait({sending}, timeout=0)
        assert await log.finish(SECONDS)
        await sending
        log.close()

    asyncio.run(story())

    whole = b"".join(lines)
    assert (tmp_path / "log").read_bytes() == whole
    assert shelf.logs.read("l1", 1, limit=len(whole) + 1) == whole
