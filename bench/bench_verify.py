"""How fast a log is verified: a million events of random histories, on one core.

The physical limit is to read and decode the same lines and check nothing; the peer is `json.loads`.
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
from tests.histories import History

EVENTS = 1_000_000
SEEDS = range(40)
GOAL = 100_000

_IDS = re.compile(rb'"((?:worker:)?)((?:r|q|w)\d+|good)(?=["/.#])')
_SEQ = re.compile(rb'^\{"seq":\d+')


def run() -> list[Figure]:
    """Write the log, verify it, and compare."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "events.jsonl"
        lines = write_log(path)
        checked = timed(path, verify)
        decoded = timed(path, decode_all)
        loaded = timed(path, load_all)
        small, large = peak_memory(path, lines // 10), peak_memory(path, lines // 2)
    rate = lines / checked
    return [
        Figure(
            "events verified per second",
            rate,
            "events/s",
            {
                "the goal of 100,000/s": rate / GOAL,
                "decoding alone (msgspec)": decoded / checked,
                "decoding alone (json.loads)": loaded / checked,
            },
        ),
        Figure("events in the log", lines, "events"),
        Figure("time", checked, "s"),
        Figure("peak memory, half of the log", large / 1e6, "MB", {"a tenth of the log": large / small}),
    ]


def write_log(path: Path) -> int:
    """A legal log of a million events: random histories, copied under new names until it is long enough."""
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
    """The same history of other runs and workers."""
    return (_IDS.sub(lambda found: b'"' + found[1] + prefix + found[2], line) for line in lines)


def timed(path: Path, use: Callable[[Iterator[bytes]], object]) -> float:
    """CPU seconds to read the file and use every line: the best of three, since other work disturbs."""
    spent = []
    for _ in range(3):
        with path.open("rb") as lines:
            started = time.process_time()
            use(iter(lines))
            spent.append(time.process_time() - started)
    return min(spent)


def decode_all(lines: Iterator[bytes]) -> None:
    """What nobody can be faster than: decode into the same types, check nothing."""
    decode = msgspec.json.Decoder(AnyEventLine).decode
    for line in lines:
        decode(line)


def load_all(lines: Iterator[bytes]) -> None:
    """The standard library's way to decode."""
    for line in lines:
        json.loads(line)


def peak_memory(path: Path, count: int) -> int:
    """The most memory that verifying so many lines takes."""
    with path.open("rb") as lines:
        tracemalloc.start()
        verify(line for _, line in zip(range(count), lines, strict=False))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    return peak
