"""Logs by offset, over HTTP and beside each other: what is kept is always a beginning of what was written."""

from __future__ import annotations

import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest
from hypothesis import strategies as st

from deltaci.core.errors import Refused
from deltaci.storage.blobs.logs import LogStore
from tests.fuzz.profile import fuzzed

LIMIT: Final = 300
WRITTEN: Final = bytes(range(250)) * 2
PARTS: Final = st.lists(st.tuples(st.integers(0, len(WRITTEN)), st.integers(0, 120)), max_size=20)


@fuzzed(200, parts=PARTS, attempt_id=st.text(min_size=1, max_size=10) | st.sampled_from(("..", "a/b", "_x", "x" * 300)))
def test_parts_in_any_order_leave_a_beginning_of_what_was_written(
    parts: list[tuple[int, int]], attempt_id: str
) -> None:
    """Repeats, overlaps, gaps and too much: the model is one counter."""
    with tempfile.TemporaryDirectory() as folder:
        logs = LogStore(Path(folder), max_bytes=LIMIT)
        size = 0
        for offset, length in parts:
            data = WRITTEN[offset : offset + length]
            code = "log_gap" if offset > size else "log_full" if max(size, offset + len(data)) > LIMIT else ""
            if code:
                with pytest.raises(Refused, match=code):
                    logs.append(attempt_id, 1, offset, data)
            else:
                size = max(size, offset + len(data))
                assert logs.append(attempt_id, 1, offset, data) == size

        assert logs.size(attempt_id, 1) == size
        assert logs.read(attempt_id, 1) == WRITTEN[:size]
        assert all(path.resolve().is_relative_to(folder) for path in Path(folder).rglob("*"))


@fuzzed(40, parts=PARTS)
def test_parts_at_the_same_time_leave_a_beginning_of_what_was_written(parts: list[tuple[int, int]]) -> None:
    """A repeat may be under way beside its first try."""
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(4) as threads:
        logs = LogStore(Path(folder), max_bytes=LIMIT)

        def append(part: tuple[int, int]) -> None:
            with suppress(Refused):
                logs.append("a", 1, part[0], WRITTEN[part[0] : sum(part)])

        list(threads.map(append, parts))

        kept = logs.read("a", 1)
        assert kept == WRITTEN[: len(kept)]
        assert len(kept) <= LIMIT
