"""Lines by which a step speaks to the runner: masks are obeyed wherever the output is cut, all else is text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltaci.runner.steps.workflow_commands import MAX_LINE_BYTES, MAX_MASKS, WorkflowCommandInterpreter


class Listener:
    """What is shown, and what is hidden from then on."""

    def __init__(self) -> None:
        self.shown = b""
        self.hidden: list[str] = []
        self.spoken = WorkflowCommandInterpreter(self._show, self.hidden.extend)

    def _show(self, data: bytes) -> None:
        self.shown += data

    def hear(self, *parts: bytes) -> bytes:
        """All of it."""
        for part in parts:
            self.spoken.feed(part)
        self.spoken.finish()
        return self.shown


def test_a_mask_is_obeyed_and_its_line_does_not_show_it() -> None:
    listener = Listener()

    shown = listener.hear(b"before\n::add-", b"mask::hunter2%0Amore\nafter hunter2\n")

    assert listener.hidden == ["hunter2\nmore"]
    assert shown == b"before\n::add-mask::***\nafter hunter2\n"


@pytest.mark.parametrize(
    "line",
    [
        b"::error file=a.py,line=3::it is wrong\n",
        b"::warning::hm\n",
        b"::group::build\n",
        b"::endgroup::\n",
        b"::add-mask::\n",
        b"x ::add-mask::no\n",
        b":: add-mask::no\n",
        b":",
        b"::",
        b"::\xff\n",
    ],
)
def test_everything_else_is_text(line: bytes) -> None:
    listener = Listener()

    assert listener.hear(line) == line
    assert listener.hidden == []


def test_commands_can_be_stopped_and_heard_again() -> None:
    """For output of others, which must not be obeyed."""
    listener = Listener()

    listener.hear(b"::stop-commands::tok-1\n::add-mask::abcd\n::tok-1::\n::add-mask::efgh\n")

    assert listener.hidden == ["efgh"]


def test_the_old_way_to_say_an_output_works() -> None:
    listener = Listener()

    listener.hear(b"::set-output name=size::1%250\n::set-output name=a b::no\n")

    assert listener.spoken.outputs == {"size": "1%0"}


def test_a_line_without_end_is_not_kept_back_for_ever() -> None:
    listener = Listener()
    listener.spoken.feed(b"::" + b"x" * MAX_LINE_BYTES)

    assert len(listener.shown) == MAX_LINE_BYTES + 2


def test_masks_have_an_end() -> None:
    """Each makes the next line dearer to look at."""
    listener = Listener()

    listener.hear(b"".join(b"::add-mask::value-%d\n" % number for number in range(MAX_MASKS + 5)))

    assert len(listener.hidden) == MAX_MASKS


@given(
    st.lists(
        st.sampled_from([b"plain\n", b"::add-mask::secret\n", b":", b"::x\n", b"::group::g\n", b"\n"]), max_size=9
    ),
    st.lists(st.integers(1, 7), max_size=30),
)
def test_however_it_is_cut_the_same_is_shown(lines: list[bytes], cuts: list[int]) -> None:
    whole = b"".join(lines)
    parts, rest = [], whole
    for size in cuts:
        parts.append(rest[:size])
        rest = rest[size:]

    assert Listener().hear(*parts, rest) == Listener().hear(whole)
