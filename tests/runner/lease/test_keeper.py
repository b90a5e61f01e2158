"""The deadlines of the lease keeper, with a clock that tests move, and the log upload after a runner's death."""

from __future__ import annotations

import asyncio
import select
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from deltaci.core.errors import Refused, Unreachable
from deltaci.protocol.messages import HeartbeatAck, Problem, Progress, RunnerMessage, ServerMessage
from deltaci.runner.client import RunnerClient
from deltaci.runner.lease.keeper import Confirmed, Hold, KeeperEvent, LeaseKeeper, Lost, Release
from deltaci.runner.lease.log_recovery import NO_FILE, UnsentLog, open_log, send_unsent_logs
from deltaci.runner.log.stream import LogStream
from deltaci.runner.sandbox.process_tree import JobHandle
from deltaci.storage.blobs.logs import LogStore

TTL_SECONDS = 10
DEADLINE = 7.5  # A quarter of it before its end.
SECONDS = 20.0


class HangingClient(RunnerClient):
    """A client whose calls return when the test allows it."""

    def __init__(self) -> None:
        super().__init__("http://127.0.0.1:1")
        self.was_called = threading.Event()
        self.answer = threading.Event()
        self.sent: list[RunnerMessage] = []

    def send_batch(self, messages: Sequence[RunnerMessage], timeout: float) -> list[ServerMessage | Problem]:
        """Hang, whatever the timeout is, as with an unreachable name server."""
        self.sent += messages
        self.was_called.set()
        assert self.answer.wait(SECONDS)
        return [
            HeartbeatAck(lease_id=heartbeat.lease_id, extend_lease=True, new_lease_ttl_seconds=TTL_SECONDS)
            for heartbeat in messages
        ]


class KeeperBench:
    """A keeper with its clients, its events and its clock."""

    def __init__(self) -> None:
        self.now = 0.0
        self.clients: list[HangingClient] = []
        self.events: list[KeeperEvent] = []
        self.keeper = LeaseKeeper(self.connect, self.events.append, lambda: self.now)

    def connect(self) -> RunnerClient:
        """Return a new client."""
        self.clients.append(HangingClient())
        return self.clients[-1]

    def hold(
        self, lease_id: str = "l1", confirmed_at: float = 0.0, interval: float = 1, progress: Progress | None = None
    ) -> None:
        """Keep a lease of a job without processes."""
        handle = JobHandle(marker="nobody-carries-this")
        self.keeper.execute(
            Hold(
                lease_id=lease_id,
                runner_id="r1",
                ttl_seconds=TTL_SECONDS,
                interval_seconds=interval,
                handle=handle,
                confirmed_at=confirmed_at,
                progress=progress,
            )
        )

    def advance_to(self, now: float) -> None:
        """Set the clock and let the keeper do what is due."""
        self.now = now
        self.keeper.advance()

    def answer(self) -> None:
        """Let the last call return, and the keeper process it."""
        self.clients[-1].answer.set()
        assert select.select([self.keeper], [], [], SECONDS)[0]
        self.keeper.advance()

    def lost(self) -> list[str]:
        """Return the leases that the keeper reported as lost."""
        return [heartbeat.lease_id for heartbeat in self.events if isinstance(heartbeat, Lost)]

    def close(self) -> None:
        """Let all calls return and stop the keeper."""
        for client in self.clients:
            client.answer.set()
        self.keeper.stop_all()


@pytest.fixture
def bench() -> KeeperBench:
    """Return a keeper at time 0."""
    return KeeperBench()


def test_an_answer_extends_the_lease_from_the_time_of_sending(bench: KeeperBench) -> None:
    """The time of receiving would make the lease longer than the server's."""
    bench.hold()
    bench.advance_to(1.0)
    bench.now = 3.0
    bench.answer()

    bench.hold()  # Whoever asks is told.

    assert bench.events[-1] == Confirmed(lease_id="l1", until=1.0 + DEADLINE)
    bench.close()


@pytest.mark.proves("ORC-I4")
def test_the_numbers_of_heartbeats_grow_from_one_keeper_to_the_next(bench: KeeperBench) -> None:
    """They come from the boot clock of the machine, and grow even while that stands still."""
    successor = KeeperBench()
    for keeper, start in ((bench, 1.0), (successor, 2.0)):
        keeper.hold()
        keeper.advance_to(start)
        keeper.answer()
        keeper.hold("l2", confirmed_at=start, interval=0)
        keeper.advance_to(start)
        keeper.answer()
        keeper.close()

    numbers = [message.sequence_no or 0 for keeper in (bench, successor) for message in keeper.clients[0].sent]

    assert numbers == sorted(set(numbers))
    assert len(numbers) >= 4


def test_the_start_of_the_steps_is_reported_early(bench: KeeperBench) -> None:
    """Users see soon that a job runs. A job that ends at once costs no extra message."""
    bench.hold("long", interval=5)
    bench.hold("short", interval=5)
    for lease_id in ("long", "short"):
        bench.hold(lease_id, interval=5, progress=Progress(step_index=0))
    bench.advance_to(0.9)
    assert not bench.clients[0].was_called.is_set()
    bench.keeper.execute(Release(lease_id="short"))

    bench.advance_to(1.1)
    bench.answer()
    bench.hold("long", interval=5, progress=Progress(step_index=1))
    bench.clients[0].was_called.clear()
    bench.advance_to(3.0)

    assert not bench.clients[0].was_called.is_set()
    assert bench.lost() == []
    bench.close()


def test_a_hanging_call_delays_neither_deadlines_nor_heartbeats(bench: KeeperBench) -> None:
    """The next heartbeat uses a new connection."""
    bench.hold("early")
    bench.advance_to(1.0)
    assert bench.clients[0].was_called.wait(SECONDS)
    bench.advance_to(1.9)
    assert len(bench.clients) == 1

    bench.advance_to(2.1)  # A second is enough for an answer, unless the line is slow.
    bench.advance_to(3.2)
    assert bench.clients[1].was_called.wait(SECONDS)
    bench.advance_to(5.1)
    assert len(bench.clients) == 2
    bench.advance_to(5.3)  # And two are, when one was not.
    assert len(bench.clients) == 3
    bench.advance_to(DEADLINE)

    assert bench.lost() == ["early"]
    bench.close()


def test_the_timeout_adapts_to_a_slow_server(bench: KeeperBench) -> None:
    """Otherwise every answer of a slow server would come after its timeout."""
    bench.hold()
    bench.advance_to(1.0)
    bench.now = 1.9
    bench.answer()
    bench.clients[0].answer.clear()

    bench.advance_to(2.1)
    bench.advance_to(5.6)  # Four times as long as the last one took.
    assert len(bench.clients) == 1
    bench.advance_to(5.8)

    assert len(bench.clients) == 2
    bench.close()


def test_a_delayed_command_does_not_extend_the_lease(bench: KeeperBench) -> None:
    """It contains the time of confirmation, not an age, as it may wait in the pipe."""
    bench.now = 60.0

    bench.hold(confirmed_at=0.0)
    bench.advance_to(60.0)

    assert bench.events[0] == Confirmed(lease_id="l1", until=DEADLINE)
    assert bench.lost() == ["l1"]
    bench.close()


def test_an_answer_for_a_released_lease_is_ignored(bench: KeeperBench) -> None:
    """The job ended while its heartbeat was on the way."""
    bench.hold()
    bench.advance_to(1.0)
    bench.keeper.execute(Release(lease_id="l1"))

    bench.answer()
    bench.advance_to(100.0)

    assert bench.lost() == []
    bench.close()


class LogServer(RunnerClient):
    """Stores logs as the server does, and can be unreachable."""

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


def test_an_unsent_log_is_continued_at_the_servers_size(tmp_path: Path) -> None:
    """However much was sent before, and however often a call fails."""
    server = LogServer(tmp_path / "logs")
    said = bytes(range(256)) * 8192
    (tmp_path / "log").write_bytes(said)
    server.append_log("l1", 0, said[:1000])
    server.failures = 2

    send_unsent_logs(server, [UnsentLog("l1", open_log(str(tmp_path / "log")), time.monotonic() + SECONDS)])

    assert server.logs.read("l1", 1, limit=len(said) + 1) == said
    assert open_log(str(tmp_path / "none")) == open_log("") == NO_FILE


def test_sending_a_log_ends_with_its_lease(tmp_path: Path) -> None:
    """The keeper exits if the server is unreachable or refuses the log."""
    server = LogServer(tmp_path / "logs")
    (tmp_path / "log").write_bytes(b"words")
    server.failures = 1_000_000
    began = time.monotonic()
    send_unsent_logs(server, [UnsentLog("l1", open_log(str(tmp_path / "log")), began + 0.2)])
    server.failures, server.is_stale = 0, True
    send_unsent_logs(server, [UnsentLog("l1", open_log(str(tmp_path / "log")), began + SECONDS)])

    assert time.monotonic() - began < SECONDS / 2
    assert server.logs.size("l1", 1) == 0


def test_a_log_can_be_written_and_sent_at_the_same_time(tmp_path: Path) -> None:
    """Two threads use the same file."""
    server = LogServer(tmp_path / "logs")
    clients = [f"{number} {'x' * (number % 90)}\n".encode() for number in range(20_000)]

    async def story() -> None:
        log = LogStream(server, "l1", tmp_path / "log")
        sending = asyncio.create_task(log.send())
        for number, client in enumerate(clients):
            log.write(client)
            if number % 20 == 0:
                await asyncio.wait({sending}, timeout=0)
        assert await log.finish(SECONDS)
        await sending
        log.close()

    asyncio.run(story())

    whole = b"".join(clients)
    assert (tmp_path / "log").read_bytes() == whole
    assert server.logs.read("l1", 1, limit=len(whole) + 1) == whole
