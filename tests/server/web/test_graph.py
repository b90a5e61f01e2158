"""Where the jobs of a run stand when they are drawn, and what is drawn between them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import pairwise
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltaci.server.web.views.run.graph import cut
from deltaci.server.web.views.run.graph_layout import (
    GAP_Y,
    HEIGHT,
    WIDTH,
    GraphLayout,
    GraphNode,
    apart,
    curve,
    drawn,
    elbow,
)

MAX_GROWTH = 1.1  # Of what one of them costs, with twice as many jobs.
MAX_LINES = 300


def plan(*needs: tuple[int, ...], families: tuple[str, ...] = ()) -> tuple[GraphNode, ...]:
    """Jobs by what they need."""
    return tuple(GraphNode(each, (), families[at] if families else "") for at, each in enumerate(needs))


def lines(found: GraphLayout) -> set[tuple[int, int]]:
    """From where to where."""
    return {(line.source, line.target) for line in found.lines}


def overlap(found: GraphLayout) -> list[tuple[int, int]]:
    """Jobs that are drawn over each other."""
    order = sorted(range(len(found.jobs)), key=lambda at: found.jobs[at])
    return [
        (a, b)
        for a, b in pairwise(order)
        if found.jobs[a][0] == found.jobs[b][0] and found.jobs[b][1] - found.jobs[a][1] < HEIGHT
    ]


def test_nothing_is_nothing() -> None:
    """A run without jobs."""
    assert drawn(()) == GraphLayout(width=WIDTH, height=HEIGHT, jobs=[], lines=[], meets={})


def test_a_job_stands_behind_all_that_it_waits_for() -> None:
    """As far to the right as the longest way to it."""
    found = drawn(plan((), (0,), (1,), (0, 2)))

    assert [x for x, _ in found.jobs] == sorted({x for x, _ in found.jobs})
    assert lines(found) == {(0, 1), (1, 2), (2, 3)}  # That 3 needs 0 follows from the others.


def test_a_need_is_not_implied_by_what_only_comes_before() -> None:
    """Somebody who comes after a job may run though that failed; whoever needs it may not."""
    jobs = (GraphNode(()), GraphNode((), (0,)), GraphNode((0, 1)), GraphNode((2,), (0,)))

    found = drawn(jobs)

    assert {(line.source, line.target): line.is_after for line in found.lines} == {
        (0, 1): True,
        (0, 2): False,
        (1, 2): False,
        (2, 3): False,
    }


def test_many_that_need_the_same_many_meet_in_a_point() -> None:
    """Twelve times twelve lines say nothing."""
    first = [()] * 12
    found = drawn(plan(*first, *([tuple(range(12))] * 12)))

    (point,) = found.meets
    assert len(found.lines) == 24
    assert all(point in (line.source, line.target) for line in found.lines)


def test_a_line_over_a_column_passes_between_its_jobs() -> None:
    """It has a place of its own there."""
    found = drawn(plan((), (0,), (1,), (1,), (2, 3), (), (4, 5), (), (6, 7)))
    long = [each for each in found.lines if len(each.points) > 2]

    assert long
    for line in long:
        for x, y in line.points[1:-1]:
            beside = [top for left, top in found.jobs if left <= x <= left + WIDTH]
            assert all(not top < y < top + HEIGHT for top in beside)


def test_lines_that_need_not_cross_do_not() -> None:
    """Whatever the order of the plan is."""
    found = drawn(plan((), (), (), (2,), (1,), (0,)))
    tops = [found.jobs[at][1] for at in range(6)]

    assert sorted(range(3), key=lambda at: tops[at]) == sorted((0, 1, 2), key=lambda at: tops[5 - at])


def test_jobs_of_a_matrix_stay_together() -> None:
    """Also where their neighbours would rather have them apart."""
    families = ("", "", "m", "x", "m", "x", "m")
    found = drawn(plan((), (), (0,), (0,), (1,), (1,), (0,), families=families))

    order = sorted(range(2, 7), key=lambda at: found.jobs[at][1])
    assert [families[at] for at in order] in (["m", "m", "m", "x", "x"], ["x", "x", "m", "m", "m"])


def test_those_without_ties_stand_in_rows() -> None:
    """A column of a hundred is no picture."""
    found = drawn(plan(*([()] * 100)))

    assert len({x for x, _ in found.jobs}) == 4
    assert overlap(found) == []


@given(st.lists(st.lists(st.integers(0, 200), max_size=4), max_size=40), st.lists(st.sampled_from("ab"), max_size=40))
def test_whatever_the_plan_everyone_has_a_place_and_lines_lead_to_the_right(
    wanted: list[list[int]], families: list[str]
) -> None:
    """Nobody over somebody else, nothing outside, everybody reachable who was."""
    jobs = tuple(
        GraphNode(
            tuple({need % at for need in some[:2]} if at else ()),
            tuple({need % at for need in some[2:]} if at else ()),
            families[at] if at < len(families) else "",
        )
        for at, some in enumerate(wanted)
    )

    found = drawn(jobs)

    assert overlap(found) == []
    assert all(0 <= x <= found.width - WIDTH and -0.01 <= y <= found.height - HEIGHT + 0.01 for x, y in found.jobs)
    for line in found.lines:
        assert all(a[0] <= b[0] for a, b in pairwise(line.points))
    ways: dict[int, set[int]] = {}
    for line in found.lines:
        ways.setdefault(line.target, set()).add(line.source)
    for at, each in enumerate(jobs):
        assert {*each.needs, *each.after} <= _before(at, ways)


def _before(at: int, ways: dict[int, set[int]]) -> set[int]:
    seen: set[int] = set()
    stack = [at]
    while stack:
        new = ways.get(stack.pop(), set()) - seen
        seen |= new
        stack += new
    return seen


def meeting(count: int) -> list[tuple[int, ...]]:
    """Three layers, everyone of which needs all of the one before."""
    third = count // 3
    return [()] * third + [tuple(range(third))] * third + [tuple(range(third, 2 * third))] * (count - 2 * third)


def chain(count: int) -> list[tuple[int, ...]]:
    """One after another."""
    return [()] + [(at - 1,) for at in range(1, count)]


def fan(count: int) -> list[tuple[int, ...]]:
    """One, then all but one, then that one."""
    return [()] + [(0,)] * (count - 2) + [tuple(range(1, count - 1))]


def mesh(count: int) -> list[tuple[int, ...]]:
    """Lines across many columns."""
    return [()] * 20 + [(at // 2, at // 3, at * 7 % at) for at in range(20, count)]


def lines_run(jobs: tuple[GraphNode, ...]) -> int:
    """How many lines of Python it takes to draw them: the same on every machine, however busy."""
    count = 0

    def trace(frame: FrameType, event: str, arg: object) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        found = drawn.__wrapped__(jobs)
    finally:
        sys.settrace(before)
    assert len(found.jobs) == len(jobs)
    return count


@pytest.mark.parametrize("shape", [meeting, chain, fan, mesh])
def test_a_thousand_jobs_are_placed_at_once(shape: Callable[[int], list[tuple[int, ...]]]) -> None:
    """Somebody waits for the page: each job and each need costs about the same in a large run as in a small one."""
    small, large = (lines_run(plan(*needs)) / (len(needs) + sum(map(len, needs))) for needs in map(shape, (500, 1000)))

    assert large < MAX_GROWTH * small
    assert large < MAX_LINES


def test_neighbours_keep_apart_and_stay_near() -> None:
    """In their order; who has room stands where it wants to."""
    found = apart([0.0, 1.0, 500.0], [HEIGHT] * 3)

    assert found[1] - found[0] == pytest.approx(HEIGHT + GAP_Y)
    assert found[0] + found[1] == pytest.approx(1.0)
    assert found[2] == 500.0


def test_lines_are_written_as_paths() -> None:
    """Bent between columns, straight across them, and with corners where many go together."""
    assert curve(((0, 0), (10, 0))) == "M0 0H10"
    assert curve(((0, 0), (10, 5))) == "M0 0C5 0 5 5 10 5"
    assert elbow((0, 0), (100, 50), 0.5) == "M0 0H44Q50 0 50 6V44Q50 50 56 50H100"
    assert elbow((0, 0), (100, 0.2), 0.5) == "M0 0H100"


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("short", "short"),
        ("test (ubuntu-24.04, 3.12, postgres)", "test (ubuntu-…ostgres)"),
        ("測試測試測試測試測試測試", "測試測試測試…試測試測試"),
    ],
)
def test_long_names_keep_their_end(name: str, shown: str) -> None:
    """That is where jobs of a matrix differ. Some letters are twice as wide as others."""
    assert cut(name, 23)[:3] == shown[:3]
    assert cut(name, 23)[-3:] == shown[-3:]
    assert len(cut(name, 23)) <= 23
