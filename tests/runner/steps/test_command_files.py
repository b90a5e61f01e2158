"""What a step says by its files: read strictly, bounded, and never through what the job put in their place."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from deltaci.core.errors import Refused
from deltaci.protocol.messages import JobSpec
from deltaci.runner.steps.command_files import MAX_FILE_BYTES, MAX_VALUES, CommandFiles, StepReport, parse_assignments
from deltaci.runner.workspace.layout import Layout, layout_for
from deltaci.runner.workspace.safe_fs import write_file


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    """The folders of a pipeline's job."""
    made = layout_for(JobSpec(contexts={}), tmp_path / "root")
    made.create()
    return made


def said(layout: Layout, **texts: str | bytes) -> StepReport:
    """What is read after a step wrote these."""
    files = CommandFiles(layout, 0)
    named = files.create()
    for kind, text in texts.items():
        path = Path(named[f"GITHUB_{kind.upper()}"])
        assert str(path) == named[f"DELTACI_{kind.upper()}"]
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return files.read()


# -- refusals


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("just words", "neither 'name=value'"),
        ("=x", "not a valid name"),
        ("a<<", "no delimiter after"),
        ("a<<END\nnever ended", "found no line 'END'"),
        ("a=b\0c", "NUL"),
        ("\n".join(f"n{i}=1" for i in range(MAX_VALUES + 1)), "more than"),
        (f"{'n' * 201}=1", "not a valid name"),
    ],
)
def test_what_makes_no_sense_is_refused(text: str, why: str) -> None:
    """A value that is silently lost is looked for by somebody, for hours."""
    with pytest.raises(Refused, match=why):
        parse_assignments("the outputs", text)


@pytest.mark.parametrize("name", ["DELTACI_JOB_MARK", "deltaci_x", "GITHUB_SHA", "RUNNER_TEMP", "a b", "1=2", "é"])
def test_a_variable_that_the_runner_says_cannot_be_set(name: str, layout: Layout) -> None:
    """By the mark it finds its processes, and by the others a step believes what it is told."""
    with pytest.raises(Refused):
        said(layout, env=f"{name}=x")


@pytest.mark.parametrize("name", ["a b", "a.b", "-x", "ä"])
def test_an_output_needs_a_name_that_expressions_can_say(name: str, layout: Layout) -> None:
    with pytest.raises(Refused, match="is not a valid name of an output"):
        said(layout, output=f"{name}=x")


def test_a_line_may_have_several_folders_as_path_has_them(layout: Layout) -> None:
    """People write `$ROOT/shims:$ROOT/bin`."""
    assert said(layout, path="/a:/b\n\n/c\n").paths == ["/a", "/b", "/c"]
    with pytest.raises(Refused, match="NUL character"):
        said(layout, path="/a\0b\n")


def test_more_than_fits_and_what_is_no_text_is_refused(layout: Layout) -> None:
    with pytest.raises(Refused, match="more than"):
        said(layout, output=b"a=" + b"x" * MAX_FILE_BYTES)
    with pytest.raises(Refused, match="UTF-8"):
        said(layout, output="", env=b"a=\xff")


def test_a_link_a_pipe_and_a_folder_are_no_file(layout: Layout, tmp_path: Path) -> None:
    """The runner can read files that the job cannot."""
    secret = tmp_path / "secret"
    secret.write_text("token=hunter2")
    files = CommandFiles(layout, 0)
    path = Path(files.create()["GITHUB_OUTPUT"])
    plants: list[Callable[[], None]] = [lambda: path.symlink_to(secret), lambda: os.mkfifo(path), path.mkdir]
    for plant in plants:
        path.unlink()
        plant()

        with pytest.raises(Refused, match=r"cannot be read|is no longer a regular file"):
            files.read()

        files.create()
    path.unlink()
    path.parent.rename(path.parent.with_name("away"))
    path.parent.symlink_to(tmp_path)
    (tmp_path / "output").write_text("token=hunter2")

    with pytest.raises(Refused, match="cannot be read"):
        files.read()


# -- successes


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", {}),
        ("a=1\nb=2=3\r\n\nc=", {"a": "1", "b": "2=3", "c": ""}),
        ("a<<END\none\ntwo\nEND\nb=3", {"a": "one\ntwo", "b": "3"}),
        ("a<<E\nE\n", {"a": ""}),
        ("a=x<<y", {"a": "x<<y"}),
        ("a<<E=1\nx=y\nE=1", {"a": "x=y"}),
        ("a=1\na=2", {"a": "2"}),
    ],
)
def test_both_forms_are_read(text: str, wanted: dict[str, str]) -> None:
    assert parse_assignments("the outputs", text) == wanted


def test_a_step_says_all_four_things(layout: Layout) -> None:
    told = said(layout, output="a=1", env="NODE_OPTIONS=--x", path="/x/bin\n/y\n", step_summary="# well")

    assert told == StepReport(outputs={"a": "1"}, env={"NODE_OPTIONS": "--x"}, paths=["/x/bin", "/y"], summary="# well")


def test_files_that_are_gone_say_nothing(layout: Layout) -> None:
    files = CommandFiles(layout, 0)
    for path in files.create().values():
        Path(path).unlink(missing_ok=True)

    assert files.read() == StepReport()


def test_a_script_is_never_written_through_a_link(tmp_path: Path) -> None:
    """A step could lead its successor's script to any file of the runner's."""
    (tmp_path / "precious").write_text("precious")
    (tmp_path / "script").symlink_to("precious")

    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "temp").symlink_to("elsewhere")

    write_file(tmp_path, "script", "new")
    write_file(tmp_path, "temp/script", "new")

    assert (tmp_path / "precious").read_text() == "precious"
    assert (tmp_path / "script").read_text() == "new"
    assert list((tmp_path / "elsewhere").iterdir()) == []
