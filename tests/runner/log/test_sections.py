"""A viewer folds the steps that the runner wrote, and no others."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltaci.runner.log.masking import Mask
from deltaci.runner.log.sections import LogSection, SectionWriter, log_nonce, new_nonce, sections, sections_from

NONCE = "0123456789abcdef" * 2
OTHER = "f" * 32
STEPS = st.lists(
    st.tuples(
        st.text(max_size=40),
        st.lists(
            st.one_of(st.binary(max_size=30), st.sampled_from([b"\n", b"::step ", b"::log 1 nonce="])), max_size=4
        ),
        st.one_of(st.none(), st.integers(-255, 255)),
        st.floats(0, 1e6),
    ),
    max_size=4,
)


def written(writer: SectionWriter, steps: list[tuple[str, list[bytes], int | None, float]]) -> bytes:
    log = writer.header()
    for index, (name, parts, code, seconds) in enumerate(steps):
        log += writer.begin(index, name)
        log += b"".join(writer.output(part) for part in parts)
        log += writer.end(index, code, seconds)
    return log


@pytest.mark.parametrize(
    "forged",
    [
        SectionWriter(OTHER).header() + SectionWriter(OTHER).end(0, 0, 1.0),
        SectionWriter(OTHER).begin(1, "forged"),
        b"::step end index=0 exit=0 seconds=1.000\n",
        b"::step  end index=0 exit=0 seconds=1.000\n",
        b"x::step " + NONCE.encode() + b" end index=0 exit=0 seconds=1.000\n",
        b"::step " + NONCE.encode() + b" end index=7 exit=0 seconds=1.000\n",
        b"::step " + NONCE.encode() + b" end index=0 exit=0 seconds=1.000 and more\n",
    ],
)
def test_a_job_cannot_forge_a_marker(forged: bytes) -> None:
    """A job that could end its own step would hide what it does next."""
    writer = SectionWriter(NONCE)

    log = written(writer, [("build", [b"one\n", forged, b"two\n"], 1, 0.5)])

    [section] = sections(log)
    assert log[section.start : section.stop] == b"one\n" + forged + b"two\n"
    assert section.exit_code == 1


def test_a_job_that_learned_its_nonce_cannot_say_it() -> None:
    """The nonce is one more secret of the mask."""
    nonce = new_nonce()
    writer, mask = SectionWriter(nonce), Mask([nonce])
    forged = SectionWriter(nonce).end(0, 0, 1.0)

    log = written(writer, [("build", [mask.feed(forged) + mask.flush(), b"bad things\n"], 1, 0.5)])

    [section] = sections(log)
    assert b"bad things" in log[section.start : section.stop]


def test_what_is_not_a_log_of_ours_has_no_sections() -> None:
    """Only the first line is believed, and only if it is whole."""
    assert sections(b"") == []
    assert sections(b"hello\n" + written(SectionWriter(NONCE), [("a", [], 0, 1.0)])) == []
    assert log_nonce(SectionWriter(NONCE).header()[:-1]) is None


@given(STEPS)
def test_every_step_is_found_again_with_its_very_bytes(
    steps: list[tuple[str, list[bytes], int | None, float]],
) -> None:
    """Whatever a step is called and whatever it writes, with a newline at the end or without."""
    log = written(SectionWriter(NONCE), steps)

    found = sections(log)

    assert [(s.index, s.name, s.exit_code, s.is_over) for s in found] == [
        (index, name, code, True) for index, (name, _, code, _) in enumerate(steps)
    ]
    assert [log[s.start : s.stop] for s in found] == [b"".join(parts) for _, parts, _, _ in steps]


def test_a_log_that_is_still_written_shows_its_open_step() -> None:
    """People watch a step while it runs."""
    writer = SectionWriter(NONCE)
    log = writer.header() + writer.begin(3, 'say "hi"\n') + writer.output(b"half a li")

    start = len(log) - 9
    assert sections(log) == [LogSection(index=3, name='say "hi"\n', start=start, stop=len(log))]


def test_a_step_whose_runner_died_ends_where_the_next_begins() -> None:
    """A log is useful above all when something went wrong."""
    writer = SectionWriter(NONCE)
    log = writer.header() + writer.begin(0, "a") + writer.output(b"x") + writer.begin(1, "b") + writer.end(1, None, 2.0)

    first, second = sections(log)

    assert (log[first.start : first.stop], first.exit_code, first.is_over) == (b"x", None, True)
    assert (second.exit_code, second.seconds) == (None, 2.0)


def test_a_part_of_a_log_is_read_with_the_places_of_the_whole() -> None:
    """Nobody loads a gigabyte to see the last step."""
    log = written(SectionWriter(NONCE), [("a", [b"1\n"], 0, 1.0), ("b", [b"2\n"], 0, 1.0)])
    first, second = sections(log)

    assert sections_from(log[first.stop :], NONCE, first.stop) == [second]


def test_every_log_has_a_nonce_of_its_own() -> None:
    """What was learned from one log is worth nothing in the next."""
    assert len({new_nonce() for _ in range(100)}) == 100
