"""A job's log on its way: from a real process through a real runner to the file of a real server.

How many megabytes a second, beside writing the same bytes to a file with an fsync for each part and beside a plain
socket; what a megabyte costs runner and server; and how soon a line that a job writes can be read at the server.
"""

from __future__ import annotations

import os
import shlex
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from bench.databases import log_progress
from bench.figures import Figure
from bench.processes import Process, address, started
from deltaci.app import registration_token
from deltaci.runner.log.masking import Mask
from deltaci.runner.log.stream import CHUNK_BYTES

MEGABYTES = 200
LINES = 400
PAUSE_SECONDS: Final = 0.01
GIVE_UP_SECONDS: Final = 60.0
MILLION: Final = 1_000_000
TEXT: Final = "compiling a module of middling size, nothing to see here, going on with the next"
SECRETS: Final = tuple(f"hunter2-{n:04}-correct-horse-battery-staple" for n in range(20))

STAMPS: Final = """
import sys, time
for _ in range({lines}):
    sys.stdout.write(f"{{time.perf_counter()}} a line like any other\\n")
    sys.stdout.flush()
    time.sleep({pause})
"""


def run() -> list[Figure]:
    """The limits, then the whole way."""
    size = MEGABYTES * MILLION
    with tempfile.TemporaryDirectory() as folder:
        to_file, through_socket = _file(Path(folder) / "plain", size), _socket(size)
        with _site(Path(folder)) as (server, runner):
            figures = _throughput(server, runner, Path(folder), size, to_file, through_socket)
            figures += _latency(server, Path(folder))
    return figures + _masking()


@contextmanager
def _site(folder: Path) -> Iterator[tuple[Process, Process]]:
    with started("-m", "bench.serving", "server", f"sqlite:{folder}/log.db", str(folder)) as server:
        url = address(server)
        token = registration_token(folder, "logger", "default")
        command = ("-m", "deltaci", "runner", "--server", url, "--work", str(folder / "work"))
        with started(*command, env={"DELTACI_TOKEN": token}) as runner:
            yield server, runner


def _throughput(
    server: Process, runner: Process, folder: Path, size: int, to_file: float, through_socket: float
) -> list[Figure]:
    _written(server, folder, "warm", "true")
    before = server.cpu(), runner.cpu()
    seconds = _written(server, folder, "large", f"yes '{TEXT}' | head -c {size} || true")
    there, here = server.cpu() - before[0], runner.cpu() - before[1]
    rate = MEGABYTES / seconds
    log_progress(
        f"a log of {MEGABYTES} MB: {rate:.0f} MB/s; CPU: runner {here / seconds:.0%}, server {there / seconds:.0%}"
    )
    ratios = {"a file with fsync": rate * to_file / MEGABYTES, "a plain socket": rate * through_socket / MEGABYTES}
    return [
        Figure("a job's log, end to end", rate, "MB/s", ratios),
        Figure("a job's log: CPU of the runner", here / MEGABYTES * 1e3, "ms/MB"),
        Figure("a job's log: CPU of the server", there / MEGABYTES * 1e3, "ms/MB"),
        Figure(f"a file, an fsync for each {CHUNK_BYTES >> 10} KiB", MEGABYTES / to_file, "MB/s"),
        Figure("a plain socket", MEGABYTES / through_socket, "MB/s"),
    ]


def _log(folder: Path, job: str) -> Path:
    return folder / "logs" / job / "1.log"


def _enqueue(server: Process, name: str, step: str) -> Path:
    spec: dict[str, Any] = {"steps": [step], "executor": "process"}
    server.send([name, 1, spec])
    server.receive()
    return Path(f"{name}-0")


def _written(server: Process, folder: Path, name: str, step: str) -> float:
    """Seconds from the step's first byte to all of it in the server's file. It begins when it is told to."""
    word = folder / f"{name}.go"
    os.mkfifo(word)
    path = _log(folder, str(_enqueue(server, name, f"read -r go < {shlex.quote(str(word))}; {step}")))
    _until(lambda: _size(path) > 0 and _told(word))
    began = time.perf_counter()
    _until(lambda: _is_whole(path))
    return time.perf_counter() - began


def _told(word: Path) -> bool:
    """Say that it may begin; False if nobody listens yet."""
    try:
        way = os.open(word, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return False
    os.write(way, b"go\n")
    os.close(way)
    return True


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _is_whole(path: Path) -> bool:
    """Whether the last step's end is in it."""
    with path.open("rb") as file:
        file.seek(max(0, _size(path) - 200))
        return b" end index=0 " in file.read()


def _until(is_so: Callable[[], bool]) -> None:
    give_up = time.monotonic() + GIVE_UP_SECONDS
    while not is_so():
        assert time.monotonic() < give_up, "the log did not come"
        time.sleep(0.0005)


def _latency(server: Process, folder: Path) -> list[Figure]:
    """A line every few milliseconds: how long after it was written can it be read in the server's file?"""
    script = STAMPS.format(lines=LINES, pause=PAUSE_SECONDS)
    path = _log(folder, str(_enqueue(server, "lines", f"{sys.executable} -c '{script}'")))
    _until(lambda: _size(path) > 0)
    took: list[float] = []
    give_up = time.monotonic() + GIVE_UP_SECONDS
    with path.open("rb", buffering=0) as file:
        rest = b""
        while len(took) < LINES:
            assert time.monotonic() < give_up, f"{len(took)} of {LINES} lines came"
            if not (data := file.read(1 << 16)):
                time.sleep(0.0002)
                continue
            now = time.perf_counter()
            *lines, rest = (rest + data).split(b"\n")
            took += [now - float(line.split()[0]) for line in lines if line.endswith(b" a line like any other")]
    took.sort()
    p50, p99 = took[len(took) // 2] * 1e3, took[len(took) * 99 // 100] * 1e3
    log_progress(f"a line, written to readable at the server: p50 {p50:.1f} ms, p99 {p99:.1f} ms")
    return [
        Figure("a line, written to readable at the server, p50", p50, "ms"),
        Figure("a line, written to readable at the server, p99", p99, "ms"),
    ]


def _file(path: Path, size: int) -> float:
    """Seconds that the same bytes take to the disk."""
    part = (f"{TEXT}\n".encode() * (CHUNK_BYTES // len(TEXT)))[:CHUNK_BYTES]
    began = time.perf_counter()
    with path.open("wb", buffering=0) as file:
        for start in range(0, size, CHUNK_BYTES):
            file.write(part[: size - start])
            os.fsync(file.fileno())
    seconds = time.perf_counter() - began
    path.unlink()
    return seconds


def _socket(size: int) -> float:
    """Seconds that the same bytes take from one thread to another through the loopback device."""
    part = bytes(CHUNK_BYTES)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ours = socket.create_connection(listener.getsockname())
        theirs, _ = listener.accept()
        began = time.perf_counter()

        def send() -> None:
            for start in range(0, size, CHUNK_BYTES):
                ours.sendall(part[: size - start])

        sender = threading.Thread(target=send)
        sender.start()
        left = size
        while left:
            left -= len(theirs.recv(CHUNK_BYTES))
        seconds = time.perf_counter() - began
        sender.join()
        ours.close()
        theirs.close()
    return seconds


def _masking() -> list[Figure]:
    """What looking for secrets alone would allow, by the time of the processor."""
    part = (f"{TEXT}\n".encode() * 1000)[:65536]
    figures = []
    for count in (1, len(SECRETS)):
        mask = Mask(SECRETS[:count])
        began = time.process_time()
        for _ in range(16 * 20):
            mask.feed(part)
        rate = 16 * 20 * len(part) / MILLION / (time.process_time() - began)
        figures.append(Figure(f"masking {count} secret{'s' if count > 1 else ''}, alone", rate, "MB/s"))
    return figures
