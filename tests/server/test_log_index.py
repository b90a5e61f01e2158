"""The index of a log says what a naive reading of all of it would."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltaci.runner.log.sections import SectionWriter, new_nonce, sections
from deltaci.server.log_index import BLOCK_BYTES, MAX_MARKER_BYTES, MAX_SECTIONS, LogIndex, LogIndexes
from deltaci.storage.blobs.logs import LogStore

NONCE = "0123456789abcdef" * 2
HOSTILE = [b"::step " + NONCE.encode()[:-1], b"::step x begin", b"\n\n", b"::log 1 nonce=" + b"0" * 32, b"\r", b"\xff"]
OUTPUT = st.lists(st.sampled_from([*HOSTILE, b"a line\n", b"open", b"\n", b"x" * 300]), max_size=6).map(b"".join)
STEPS = st.lists(st.tuples(st.text(max_size=8), OUTPUT, st.sampled_from([0, 1, None])), max_size=4)
CUTS = st.lists(st.integers(1, 400), max_size=20)


def laid_out(steps: list[tuple[str, bytes, int | None]], *, is_ended: bool) -> bytes:
    """A log as a runner writes it; one that died writes no end."""
    writer = SectionWriter(NONCE)
    parts = [writer.header()]
    for index, (name, output, exit_code) in enumerate(steps):
        parts += [writer.begin(index, name), writer.output(output)]
        if is_ended or index + 2 < len(steps):
            parts.append(writer.end(index, exit_code, 1.5))
    return b"".join(parts)


def fed(log: bytes, cuts: list[int]) -> LogIndex:
    """The index of a log that came in pieces."""
    index, at = LogIndex(), 0
    for cut in [*cuts, len(log)]:
        index.feed(log[at : at + cut])
        at += cut
    return index


def check(index: LogIndex, log: bytes) -> None:
    """All of it, against the whole log."""
    assert index.size == len(log)
    assert index.newlines == log.count(b"\n")
    assert index.lines == len(log.split(b"\n")) - (1 if log.endswith(b"\n") or not log else 0)
    blocks = range(0, len(log) + 1, BLOCK_BYTES)
    assert index.blocks.tolist() == [log[:at].count(b"\n") for at in blocks]
    wanted = [
        (each.index, each.name, log[: each.start].count(b"\n"), each.is_over, each.exit_code, each.seconds)
        for each in sections(log)
    ]
    found = [
        (each.index, each.name, each.first_line, each.is_over, each.exit_code, each.seconds) for each in index.sections
    ]
    assert found == wanted
    lines = log.split(b"\n")
    for section in index.sections:
        assert lines[section.first_line - 1].startswith(b"::step " + NONCE.encode() + b" begin")
        if section.seconds is not None and section.last_line is not None:
            assert lines[section.last_line - 1].startswith(b"::step " + NONCE.encode() + b" end")


@given(steps=STEPS, is_ended=st.booleans(), cuts=CUTS)
def test_the_index_does_not_depend_on_how_a_log_is_cut_into_chunks(
    steps: list[tuple[str, bytes, int | None]], is_ended: bool, cuts: list[int]
) -> None:
    """Chunks end within markers, within the header, and at and around newlines."""
    log = laid_out(steps, is_ended=is_ended)

    check(fed(log, cuts), log)


@pytest.mark.parametrize("log", [b"", b"no header\n", b"::log 1 nonce=no\n::step x", b"\n::log 1 nonce=" + b"0" * 32])
def test_a_log_without_the_runners_header_has_lines_and_no_steps(log: bytes) -> None:
    """It can be shown nevertheless."""
    index = fed(log, [1] * len(log))

    assert (index.lines, index.sections) == (len(log.splitlines()), [])


def test_a_very_long_line_uses_little_memory_and_is_no_marker() -> None:
    """Also one that ends like a marker; the real marker after it counts."""
    log = SectionWriter(NONCE).header() + b"x" * (3 * MAX_MARKER_BYTES)
    log += f'::step {NONCE} begin index=7 name="no"\n::step {NONCE} begin index=0 name="yes"\n'.encode()

    index = fed(log, [1000] * (len(log) // 1000))

    assert [(section.name, section.first_line) for section in index.sections] == [("yes", 3)]
    check(index, log)


def test_the_number_of_steps_is_limited() -> None:
    """A log may consist of markers only."""
    log = laid_out([("", b"", 0)] * (MAX_SECTIONS + 10), is_ended=True)

    assert len(fed(log, []).sections) == MAX_SECTIONS


def test_appended_bytes_are_counted_once(tmp_path: Path) -> None:
    """A log that was deleted and restarted is counted anew; the least recently read logs are evicted first."""
    logs, indexes = LogStore(tmp_path), LogIndexes(max_cached=2)
    log = laid_out([("one", b"hello\n" * 30_000, 0), ("two", b"open", None)], is_ended=False)
    at = 0
    for size in (1, 40, 70_000, 65_536, 1, len(log)):
        at = logs.append("a", 1, at, log[at : at + size])
        seen = indexes.snapshot(logs, "a", 1)
        assert (seen.size, seen.newlines) == (at, log[:at].count(b"\n"))
    assert indexes.snapshot(logs, "a", 1, first_block=2).blocks == [log[: 2 * BLOCK_BYTES].count(b"\n")]
    assert [section.name for section in indexes.snapshot(logs, "a", 1).sections] == ["one", "two"]

    logs.path("a", 1).write_bytes(b"anew\n")
    assert (indexes.snapshot(logs, "a", 1).lines, indexes.snapshot(logs, "b", 1).lines) == (1, 0)


def test_a_hundred_megabytes_are_indexed_fast_and_only_once(tmp_path: Path) -> None:
    """Measured in CPU time of this thread, with room for a busy machine."""
    logs, indexes = LogStore(tmp_path), LogIndexes()
    line = b"2026-01-01T00:00:00Z  compiling module 0123456 of the largest program in the world ........ ok\n"
    place = logs.path("a", 1)
    place.parent.mkdir()
    place.write_bytes(SectionWriter(new_nonce()).header() + line * (100 * 1024 * 1024 // len(line)))

    began = time.thread_time()
    first = indexes.snapshot(logs, "a", 1)
    between = time.thread_time()
    indexes.snapshot(logs, "a", 1)
    ended = time.thread_time()

    assert first.lines == 1 + 100 * 1024 * 1024 // len(line)
    assert between - began < 0.6, f"{between - began:.3f} s"
    assert ended - between < 0.02, f"{ended - between:.3f} s"
