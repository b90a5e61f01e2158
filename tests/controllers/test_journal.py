"""The file of transitions: each line once, wherever its writer was interrupted."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from deltaci.audit.verify import verify
from deltaci.controllers.journal import FILE, SNAPSHOT, FileLockedError, MissingEventsError, TransitionJournal
from deltaci.core.events import Event
from tests.controllers.logs import checked, one_run, whole
from tests.support.histories import History


def go_on(folder: Path, events: list[Event]) -> bytes:
    """Somebody opens the file and writes what is missing."""
    journal = TransitionJournal(folder)
    try:
        found = journal.open()
        assert found.is_ours
        journal.append(events[found.snapshot.seq :])
    finally:
        journal.close()
    return (folder / FILE).read_bytes()


def test_a_second_writer_of_the_same_file_is_sent_away(tmp_path: Path) -> None:
    """Two servers over one folder would write everything twice."""
    first, second = TransitionJournal(tmp_path), TransitionJournal(tmp_path)
    first.open()

    with pytest.raises(FileLockedError):
        second.open()

    first.close()
    second.open()
    second.close()


def test_events_that_do_not_follow_are_not_written(tmp_path: Path) -> None:
    """A gap is never papered over; what comes before it is written."""
    events, journal = one_run(), TransitionJournal(tmp_path)
    journal.open()

    journal.append([*events[:5], *events[6:]])
    with pytest.raises(MissingEventsError):
        journal.append(events[6:])
    journal.close()

    assert journal.seen == events[4].seq
    assert (tmp_path / FILE).read_bytes() == whole(events[:5])


@pytest.mark.parametrize("has_snapshot", [True, False])
def test_a_file_that_ends_anywhere_goes_on_without_a_gap_or_a_double(tmp_path: Path, *, has_snapshot: bool) -> None:
    """Cut off at every single byte, as a crash may leave it."""
    events = one_run()
    expected, half = whole(events), len(events) // 2
    start = len(whole(events[:half])) if has_snapshot else 0
    journal = TransitionJournal(tmp_path)
    journal.open()
    journal.append(events[:half])
    if has_snapshot:
        journal.save()
    journal.close()
    kept = (tmp_path / SNAPSHOT).read_bytes() if has_snapshot else b""

    for end in range(start, len(expected) + 1):
        (tmp_path / FILE).write_bytes(expected[:end])
        assert go_on(tmp_path, events) == expected
        if has_snapshot:
            assert (tmp_path / SNAPSHOT).read_bytes() == kept
    checked(tmp_path / FILE)


def test_a_snapshot_that_counts_on_lost_lines_is_not_believed(tmp_path: Path) -> None:
    """The power went away, and the end of the file with it."""
    events = one_run()
    journal = TransitionJournal(tmp_path)
    journal.open()
    journal.append(events)
    journal.save()
    journal.close()
    expected = whole(events)

    for end in (0, len(expected) // 3, len(expected) - 1):
        (tmp_path / FILE).write_bytes(expected[:end])
        assert go_on(tmp_path, events) == expected


@pytest.mark.parametrize("snapshot", [b"", b"{", b'{"version":99}', b"[1,2]"])
def test_a_snapshot_that_makes_no_sense_is_as_good_as_none(tmp_path: Path, snapshot: bytes) -> None:
    """The log itself says everything."""
    events = one_run()
    (tmp_path / SNAPSHOT).write_bytes(snapshot)
    (tmp_path / FILE).write_bytes(whole(events[:-3]))

    assert go_on(tmp_path, events) == whole(events)


@pytest.mark.parametrize("line", [b"hello\n", b'{"entity_id":"a","metadata":{}}\n', b"\x00\x00\n"])
def test_a_file_that_nobody_here_wrote_is_not_taken_for_ours(tmp_path: Path, line: bytes) -> None:
    """Without a seq nobody knows where it belongs."""
    (tmp_path / FILE).write_bytes(line)
    journal = TransitionJournal(tmp_path)

    assert not journal.open().is_ours
    kept = journal.begin_anew(0)
    journal.close()

    assert kept is not None
    assert kept.read_bytes() == line
    assert (tmp_path / FILE).read_bytes() == b""


@pytest.mark.parametrize("seed", range(12))
def test_random_histories_written_in_pieces_by_many_are_the_same_file(tmp_path: Path, seed: int) -> None:
    """Whoever goes on knows all that the one before knew: open tasks, needs, times, what was said last."""
    draw = Random(seed)
    history = History(draw).go(60)
    events, journal = history.lab.log, TransitionJournal(tmp_path)

    while journal.seen < len(events):
        found = journal.open()
        at = found.snapshot.seq
        for _ in range(draw.randint(1, 4)):
            page = events[at : at + draw.randint(1, 30)]
            if page:
                journal.append(page)
            at += len(page)
            if draw.random() < 0.6:
                journal.save()
    journal.close()

    assert (tmp_path / FILE).read_bytes() == whole(events)
    checked(tmp_path / FILE)


@pytest.mark.parametrize("seed", range(6))
def test_a_file_that_begins_anywhere_is_legal_on_its_own(seed: int) -> None:
    """What was born before is left out: the file says nothing that it cannot show from its beginning."""
    events = History(Random(seed)).go(60).lab.log

    for start in range(0, len(events), max(1, len(events) // 25)):
        if told := whole(events[start:]):
            report = verify(told.splitlines(keepends=True), "transitions")
            assert report.is_legal, (start, report.violations[0])
