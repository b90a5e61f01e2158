"""What the pages of workstreams compute: how far tasks are, who comes when, and a file to begin with."""

from __future__ import annotations

from deltaci.api.schemas.workstreams import WORKSTREAM_STATES
from deltaci.pipeline.workstream import parse
from deltaci.server.web.views.workstreams import board, components, create


def test_the_board_has_every_state_in_order() -> None:
    """None that the API knows is left out."""
    assert tuple(column.state for column in board.COLUMNS) == WORKSTREAM_STATES


def test_the_file_to_begin_with_is_one() -> None:
    """Somebody who only presses the button gets a workstream."""
    read = parse.parse_file(create.START)

    assert read.problems == ()
    assert read.workstream is not None


def test_how_far_it_is_in_words_and_as_a_bar() -> None:
    """Parts in proportion, and never more than all of it."""
    counts = {"completed": 1, "running": 2, "pending": 1}

    assert components.so_far(counts, 4) == "1 of 4 tasks"
    assert 'width="25.0"' in components.bar(counts, 4)
    assert 'x="25.0" y="0" width="50.0"' in components.bar(counts, 4)
    assert [components.nth(n) for n in (1, 2, 3, 4, 11, 12, 21, 113)] == [
        *("1st", "2nd", "3rd", "4th", "11th", "12th", "21st", "113th")
    ]
    assert [components.listed("abc"[:n]) for n in range(4)] == ["", "a", "a and b", "a, b and c"]


def test_a_run_that_a_problem_names_is_a_link_and_all_else_is_text() -> None:
    """What a job wrote stays text."""
    shown = components.said_of("rule <b>: found 1; run merge-a44115e007b447d4cefa995f-2b4ec6cd060dc0d8 has more")

    assert "&lt;b&gt;" in shown
    assert '<a href="/runs/merge-a44115e007b447d4cefa995f-2b4ec6cd060dc0d8">' in shown
