"""What steps say to their runner, and what authors write for it, with input that is wrong."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from deltaci.core.errors import Refused
from deltaci.protocol.messages import JobSpec
from deltaci.runner.actions.versions import version_matches
from deltaci.runner.steps.command_files import MAX_VALUES, parse_assignments
from deltaci.runner.steps.workflow_commands import WorkflowCommandInterpreter
from deltaci.runner.workspace.layout import layout_for
from deltaci.runner.workspace.source_policy import KNOWN_PROTOCOLS, check_ref, check_url

LINES = st.lists(st.sampled_from(["a=b", "a<<E", "E", "<<", "=", "x", "\0", "a<<E=1", ""]) | st.text(max_size=9))


@given(LINES.map("\n".join))
def test_values_are_read_or_refused(text: str) -> None:
    with suppress(Refused):
        found = parse_assignments("it", text)
        assert len(found) <= MAX_VALUES
        assert not any("\0" in each for pair in found.items() for each in pair)
        assert all(found)


@given(st.text(max_size=60), st.tuples(st.integers(0, 40), st.integers(0, 40), st.integers(0, 40)))
def test_versions_are_understood_or_refused(wanted: str, version: tuple[int, int, int]) -> None:
    with suppress(Refused):
        assert version_matches(wanted, version) in (True, False)


@given(st.text(max_size=80) | st.from_regex(r"(ssh|https|file|ext|git)(://|::?)[-a-z@:/.]{0,30}"))
def test_an_address_that_is_taken_is_no_option_and_no_command(url: str) -> None:
    with suppress(Refused):
        taken = check_url(url, KNOWN_PROTOCOLS)
        assert taken.isprintable()
        assert not taken.startswith("-")
        assert "::" not in taken.partition("/")[0]


@given(st.text(max_size=30).map("refs/heads/".__add__) | st.text(max_size=30))
def test_a_ref_that_is_taken_is_one_word(ref: str) -> None:
    with suppress(Refused):
        taken = check_ref(ref)
        assert taken.startswith("refs/")
        assert not set(taken) & set(" :?*[\\^~\0\n")


@given(st.text(max_size=40) | st.lists(st.sampled_from(["~", "..", "a", "", ".", "/"])).map("/".join))
def test_a_path_of_a_job_stays_its_own(path: str) -> None:
    layout = layout_for(JobSpec(contexts={}), Path("/r/job"))
    with suppress(Refused):
        inner = layout.resolve(path)
        assert inner
        assert not inner.startswith("/")
        assert ".." not in inner.split("/")


@given(st.lists(st.binary(max_size=30) | st.sampled_from([b"::", b"\n", b"::add-mask::x", b"::a b::"])))
def test_nothing_that_is_said_is_lost_but_what_is_masked(parts: list[bytes]) -> None:
    shown: list[bytes] = []
    masks: list[str] = []
    spoken = WorkflowCommandInterpreter(shown.append, masks.extend)
    for part in parts:
        spoken.feed(part)
    spoken.finish()

    if not masks:
        assert b"".join(shown) == b"".join(parts)
