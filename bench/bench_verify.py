"""Measure how fast a log is verified: a million events of random histories, on one core.

The upper bound is to read and decode the same lines without checks; for comparison, `json.loads` decodes them.
"""

from __future__ import annotations

import json
import re
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import msgspec

from bench.figures import Figure
from deltaci.audit.verify import verify
from deltaci.audit.verify.log_lines import AnyEventLine
from tests.support.histories import History

EVENTS = 1_000_000
SEEDS = range(40)
GOAL = 100_000

_IDS = re.compile(rb'"((?:worker:)?)((?:r|q|w)\d+|good)(?=["/.#])')
_SEQ = re.compile(rb'^\{"seq":\d+')


def run() -> list[Figure]:
    """Write the log and return the figures."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "events.jsonl"
        lines = write_log(path)
        verify_seconds = timed(path, verify)
        decode_seconds = timed(path, decode_all)
        json_seconds = timed(path, load_all)
        small, large = peak_memory(path, lines // 10), peak_memory(path, lines // 2)
    rate = lines / verify_seconds
    return [
        Figure(
            "events verified per second",
            rate,
            "events/s",
            {
                "the goal of 100,000/s": rate / GOAL,
                "decoding alone (msgspec)": decode_seconds / verify_seconds,
                "decoding alone (json.loads)": json_seconds / verify_seconds,
            },
        ),
        Figure("events in the log", lines, "events"),
        Figure("time", verify_seconds, "s"),
        Figure("peak memory, half of the log", large / 1e6, "MB", {"a tenth of the log": large / small}),
    ]


def write_log(path: Path) -> int:
    """Write a legal log of a million events: random histories, copied with new ids. Return the number of lines."""
    histories = [History(Random(seed)).go(150).calm().leave().lab.canonical() for seed in SEEDS]
    written = seq = copy = 0
    with path.open("wb") as out:
        while written < EVENTS:
            copy += 1
            for line in renamed(histories[copy % len(histories)], b"h%d-" % copy):
                seq += b'"entity":"lease"' not in line  # A lease's line has its attempt's seq.
                out.write(_SEQ.sub(b'{"seq":%d' % seq, line) + b"\n")
                written += 1
    with path.open("rb") as lines:
        assert verify(lines).is_legal
    return written


def renamed(lines: list[bytes], prefix: bytes) -> Iterator[bytes]:
    """Return the lines with a prefix added to the ids of runs and workers."""
    return (_IDS.sub(lambda match: b'"' + match[1] + prefix + match[2], line) for line in lines)


def timed(path: Path, use: Callable[[Iterator[bytes]], object]) -> float:
    """Return the CPU seconds to read the file and process every line: the best of three measurements."""
    measured_seconds = []
    for _ in range(3):
        with path.open("rb") as lines:
            started = time.process_time()
            use(iter(lines))
            measured_seconds.append(time.process_time() - started)
    return min(measured_seconds)


def decode_all(lines: Iterator[bytes]) -> None:
    """Decode every line into the verifier's types without checks."""
    decode = msgspec.json.Decoder(AnyEventLine).decode
    for line in lines:
        decode(line)


def load_all(lines: Iterator[bytes]) -> None:
    """Decode every line with the standard library."""
    for line in lines:
        json.loads(line)


def peak_memory(path: Path, count: int) -> int:
    """Return the peak memory in bytes of verifying the first `count` lines."""
    with path.open("rb") as lines:
        tracemalloc.start()
        verify(line for _, line in zip(range(count), lines, strict=False))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    return peak
