"""How long a runner waits before it tries again."""

from __future__ import annotations

from deltaci.runner.pauses import Pauses


def test_each_pause_is_longer_up_to_the_longest() -> None:
    """A server that is away for long is asked seldom."""
    pauses = Pauses(1.0, 20.0)

    found = [pauses.next() for _ in range(8)]

    for pause, most in zip(found, (1.0, 2.0, 4.0, 8.0, 16.0, 20.0, 20.0, 20.0), strict=True):
        assert most / 2 <= pause <= most


def test_after_a_success_it_begins_anew() -> None:
    """One that answered is asked soon."""
    pauses = Pauses(1.0, 20.0)
    for _ in range(8):
        pauses.next()

    pauses.reset()

    assert pauses.next() <= 1.0


def test_many_do_not_come_back_at_the_same_moment() -> None:
    """After an outage a fleet is spread."""
    assert len({Pauses(1.0, 20.0).next() for _ in range(100)}) > 90
