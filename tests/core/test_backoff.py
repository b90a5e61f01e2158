"""The delays between the attempts of an operation."""

from __future__ import annotations

from deltaci.core.backoff import Backoff


def test_each_delay_is_twice_as_long_up_to_the_maximum() -> None:
    """A server that is away for long is contacted rarely."""
    backoff = Backoff(1.0, 20.0)

    assert [backoff.next() for _ in range(7)] == [1.0, 2.0, 4.0, 8.0, 16.0, 20.0, 20.0]


def test_a_random_number_shortens_a_delay_by_up_to_half() -> None:
    """After an outage the runners of a fleet return at different moments."""
    assert [Backoff(4.0, 20.0).next(random) for random in (0.0, 0.5, 1.0)] == [2.0, 3.0, 4.0]


def test_after_a_success_the_first_delay_follows() -> None:
    """A server that answered is contacted soon."""
    backoff = Backoff(1.0, 20.0)
    for _ in range(8):
        backoff.next()

    backoff.reset()

    assert backoff.next() == 1.0
