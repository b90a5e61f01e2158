"""Logs: nothing is lost, nothing is doubled, whatever is sent again."""

from __future__ import annotations

import fcntl
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltaci.core.errors import Refused
from deltaci.storage.blobs.logs import LogStore

LOG = ("r1/job/1", 1)


@pytest.fixture
def logs(tmp_path: Path) -> LogStore:
    return LogStore(tmp_path / "logs", max_bytes=100)


def test_a_gap_is_refused_with_the_true_end(logs: LogStore) -> None:
    """The writer goes on from there."""
    logs.append(*LOG, 0, b"abc")

    with pytest.raises(Refused, match="ends at byte 3, not at 4") as refused:
        logs.append(*LOG, 4, b"x")

    assert refused.value.code == "log_gap"
    assert logs.read(*LOG) == b"abc"


@pytest.mark.parametrize(("offset", "size"), [(0, 101), (90, 11)])
def test_a_full_log_is_refused_and_stays_as_it_is(logs: LogStore, offset: int, size: int) -> None:
    """A job that prints for ever must not fill the disk."""
    logs.append(*LOG, 0, b"x" * 90)

    with pytest.raises(Refused) as refused:
        logs.append(*LOG, offset, b"x" * size)

    assert refused.value.code == "log_full"
    assert logs.size(*LOG) == 90
    assert logs.append(*LOG, 90, b"x" * 10) == 100


def test_what_is_not_there_is_empty(logs: LogStore) -> None:
    """A job may write nothing."""
    assert (logs.size(*LOG), logs.read(*LOG)) == (0, b"")
    assert logs.append(*LOG, 0, b"") == 0


@pytest.mark.parametrize(
    ("offset", "data", "content"),
    [
        (3, b"def", b"abcdef"),
        (0, b"abc", b"abc"),
        (1, b"b", b"abc"),
        (1, b"bcde", b"abcde"),
        (0, b"abcX", b"abcX"),
        (3, b"", b"abc"),
    ],
)
def test_only_what_is_new_is_kept(logs: LogStore, offset: int, data: bytes, content: bytes) -> None:
    """Appended, repeated, overlapping: the bytes that are kept already are skipped."""
    logs.append(*LOG, 0, b"abc")

    assert logs.append(*LOG, offset, data) == len(content)
    assert logs.read(*LOG) == content


@given(st.data())
def test_however_parts_are_repeated_the_log_is_the_text(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """A writer that loses answers, and starts again from anywhere that it knows."""
    logs = LogStore(tmp_path_factory.mktemp("logs"))
    text = data.draw(st.binary(max_size=60))

    while (end := logs.size(*LOG)) < len(text):
        start = data.draw(st.integers(0, end))
        stop = data.draw(st.integers(min(end + 1, len(text)), len(text)))
        assert logs.append(*LOG, start, text[start:stop]) == stop

    assert logs.read(*LOG) == text


def test_a_part_is_read_by_offset_and_limit(logs: LogStore) -> None:
    """A viewer loads what it shows."""
    logs.append(*LOG, 0, b"0123456789")

    assert (logs.read(*LOG, 3, 4), logs.read(*LOG, 8), logs.read(*LOG, 10)) == (b"3456", b"89", b"")


def test_every_lease_has_a_log_of_its_own(logs: LogStore) -> None:
    """Whoever lost a lease can only spoil its own log; names with a slash do not meet."""
    leases = [("a/1", 1), ("a/1", 2), ("a", 1), ("a%2F1", 1)]

    for number, lease in enumerate(leases):
        logs.append(*lease, 0, b"%d" % number)

    assert [logs.read(*lease) for lease in leases] == [b"0", b"1", b"2", b"3"]


def test_an_append_waits_for_one_that_is_under_way(tmp_path: Path) -> None:
    """A repeat may arrive while the first try is still under way, even at another server: kept once all the same."""
    logs = LogStore(tmp_path)
    logs.append("a", 1, 0, b"")
    with ThreadPoolExecutor(1) as pool, (tmp_path / "a" / "1.log").open("ab") as first:
        fcntl.flock(first, fcntl.LOCK_EX)
        repeat = pool.submit(logs.append, "a", 1, 0, b"abc")
        with pytest.raises(TimeoutError):
            repeat.result(timeout=0.2)
        first.write(b"abc")
        first.close()

        assert repeat.result() == 3

    assert logs.read("a", 1) == b"abc"


def test_the_same_bytes_from_many_are_kept_once(logs: LogStore) -> None:
    """Whoever comes first."""
    with ThreadPoolExecutor(8) as pool:
        ends = list(pool.map(lambda _: logs.append(*LOG, 0, b"0123456789"), range(40)))

    assert set(ends) == {10}
    assert logs.read(*LOG) == b"0123456789"


def test_readers_see_a_beginning_of_the_log_while_it_grows(tmp_path: Path) -> None:
    """Never bytes that are not there in the end."""
    logs = LogStore(tmp_path)
    text = bytes(range(256)) * 4

    with ThreadPoolExecutor(4) as pool:
        reading = [pool.submit(lambda: [logs.read(*LOG) for _ in range(50)]) for _ in range(3)]
        for at in range(0, len(text), 64):
            logs.append(*LOG, at, text[at : at + 64])
        seen = [part for each in reading for part in each.result()]

    assert all(text.startswith(part) for part in seen)
    assert logs.read(*LOG) == text


def test_a_log_goes_on_after_a_restart(tmp_path: Path) -> None:
    """The writer asks how far it is, and sends the rest."""
    LogStore(tmp_path).append(*LOG, 0, b"abc")

    again = LogStore(tmp_path)

    assert again.size(*LOG) == 3
    assert again.append(*LOG, 2, b"cd") == 4
    assert again.read(*LOG) == b"abcd"


@pytest.mark.parametrize("id", ["..", ".", "../up", "x" * 5000, "run/" + "é" * 300])
def test_no_id_leads_out_of_the_folder_or_breaks_it(tmp_path: Path, id: str) -> None:
    """Ids of runs will come from people."""
    logs = LogStore(tmp_path / "logs")

    assert logs.append(id, 1, 0, b"line\n") == 5
    assert logs.read(id, 1) == b"line\n"
    assert [path.name for path in tmp_path.iterdir()] == ["logs"]
    assert len(list((tmp_path / "logs").iterdir())) == 1
