"""Server-sent events, however they are cut."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltaci.client.sse import MAX_MESSAGE_BYTES, EventStreamReader, ServerSentEvent

STREAM = (
    ': hello\n\nid: 7\ndata: {"seq": 7}\n\n: still here\r\n\r\nevent: other\r\nid: 8\r\ndata: ä\r\ndata:two\r\n\r\n'
    "retry: 5\n\nid: 9\ndata: cut o"
).encode()
WHOLE = [ServerSentEvent("message", '{"seq": 7}', "7"), ServerSentEvent("other", "ä\ntwo", "8")]


@given(st.lists(st.integers(0, len(STREAM)), max_size=20))
def test_it_does_not_matter_how_the_bytes_come(cuts: list[int]) -> None:
    """Networks cut wherever they like; a message that was cut off is not given."""
    places = [0, *sorted(cuts), len(STREAM)]
    reader = EventStreamReader()

    found = [message for a, b in pairwise(places) for message in reader.read(STREAM[a:b])]

    assert found == WHOLE


def test_a_message_without_an_end_is_given_up() -> None:
    """Whoever answers must not fill our memory."""
    reader = EventStreamReader()
    assert reader.read(b"data: " + b"x" * (MAX_MESSAGE_BYTES - 10)) == []

    with pytest.raises(ValueError, match="longer than"):
        reader.read(b"more of it")
