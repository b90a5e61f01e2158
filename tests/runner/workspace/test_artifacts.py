"""Artifacts are the job's own files: found by pattern, never reached through a link."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltaci.core.errors import Refused
from deltaci.protocol.messages import ArtifactRule
from deltaci.runner.workspace.artifacts import ArtifactFile, SearchLimits, find_files, open_file


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "shadow").write_text("root's own")
    return folder


@pytest.fixture
def workspace(tmp_path: Path, outside: Path) -> Path:
    folder = tmp_path / "workspace"
    for path in ("a.txt", "b.log", "dist/x.whl", "dist/sub/y.whl", "dist/sub/deep/z.txt", ".hidden/h.txt", "[odd]"):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(path)
    return folder


def paths(workspace: Path, *globs: str) -> list[str]:
    return [file.path for file in find_files(workspace, [ArtifactRule(path_glob=glob) for glob in globs])]


def read(workspace: Path, file: ArtifactFile) -> str:
    with open_file(workspace, file) as stream:
        return stream.read().decode()


@pytest.mark.parametrize("glob", ["/etc/passwd", "../outside/shadow", "dist/../../outside/*", "", ".", "./", "a\0b"])
def test_a_pattern_that_leaves_the_workspace_is_refused(workspace: Path, glob: str) -> None:
    """So is a pattern that names nothing, which is probably a mistake."""
    with pytest.raises(Refused) as refused:
        paths(workspace, glob)

    assert refused.value.code == "bad_request"


def test_links_that_lead_outside_are_skipped(workspace: Path, outside: Path) -> None:
    """To a file, to a folder, by a relative path, over another link."""
    (workspace / "dist/absolute").symlink_to(outside / "shadow")
    (workspace / "dist/relative").symlink_to("../../outside/shadow")
    (workspace / "dist/folder").symlink_to(outside)
    (workspace / "dist/chain").symlink_to("absolute")
    (workspace / "dist/nowhere").symlink_to("nothing")
    (workspace / "dist/circle").symlink_to("circle")

    assert paths(workspace, "dist/*", "dist/folder/shadow", "**/shadow") == [
        "dist/sub/deep/z.txt",
        "dist/sub/y.whl",
        "dist/x.whl",
    ]


def test_a_link_to_a_file_inside_is_kept_as_its_content(workspace: Path) -> None:
    """`latest -> run-3.log` is common."""
    (workspace / "latest").symlink_to("dist/sub/y.whl")

    [file] = find_files(workspace, [ArtifactRule(path_glob="latest")])

    assert (file.path, file.real_path, read(workspace, file)) == ("latest", "dist/sub/y.whl", "dist/sub/y.whl")


def test_special_files_are_skipped(tmp_path: Path) -> None:
    """Reading a FIFO would block."""
    os.mkfifo(tmp_path / "fifo")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))

        assert paths(tmp_path, "**") == []


@pytest.mark.parametrize("swap", ["link", "fifo", "folder", "other", "gone"])
def test_a_file_replaced_after_the_search_is_refused(workspace: Path, outside: Path, swap: str) -> None:
    """A process of the job may still run and wait for this moment."""
    [file] = find_files(workspace, [ArtifactRule(path_glob="dist/x.whl")])
    path = workspace / "dist/x.whl"
    path.rename(workspace / "moved")
    if swap == "link":
        path.symlink_to(outside / "shadow")
    elif swap == "fifo":
        os.mkfifo(path)
    elif swap == "folder":
        path.mkdir()
    elif swap == "other":
        path.write_text("other")

    with pytest.raises(Refused) as refused:
        open_file(workspace, file)

    assert refused.value.code == "not_found"
    assert "dist/x.whl" in refused.value.message


def test_a_folder_replaced_by_a_link_is_refused(workspace: Path, outside: Path) -> None:
    """Every part of the path is opened again, not only the last."""
    [file] = find_files(workspace, [ArtifactRule(path_glob="dist/x.whl")])
    (outside / "x.whl").hardlink_to(workspace / "dist/x.whl")
    (workspace / "dist").rename(workspace / "old")
    (workspace / "dist").symlink_to(outside)

    with pytest.raises(Refused):
        open_file(workspace, file)


@pytest.mark.parametrize(
    ("bounds", "word"),
    [
        (SearchLimits(files=3), "more than 3 artifacts"),
        (SearchLimits(bytes=20), "more than 20 bytes"),
        (SearchLimits(depth=1), "more than 1 folders"),
        (SearchLimits(entries=4), "more than 4 entries"),
    ],
)
def test_exceeding_a_limit_is_refused_and_names_it(workspace: Path, bounds: SearchLimits, word: str) -> None:
    """A pattern that matches everything is usually a mistake, and storage is shared."""
    with pytest.raises(Refused, match=word) as refused:
        find_files(workspace, [ArtifactRule(path_glob="**")], bounds)

    assert refused.value.code == "too_large"


def test_a_name_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    """No message could contain it."""
    (tmp_path / os.fsdecode(b"\xff.txt")).write_text("x")

    with pytest.raises(Refused, match="not UTF-8"):
        paths(tmp_path, "*")


@pytest.mark.parametrize(
    ("globs", "expected"),
    [
        (["a.txt"], ["a.txt"]),
        (["./a.txt", "a.*", "*.txt"], ["a.txt"]),
        (["*.txt"], ["a.txt"]),
        (["**/*.txt"], [".hidden/h.txt", "a.txt", "dist/sub/deep/z.txt"]),
        (["dist/*.whl"], ["dist/x.whl"]),
        (["dist/**/*.whl"], ["dist/sub/y.whl", "dist/x.whl"]),
        (["dist/**"], ["dist/sub/deep/z.txt", "dist/sub/y.whl", "dist/x.whl"]),
        (["dist/"], ["dist/sub/deep/z.txt", "dist/sub/y.whl", "dist/x.whl"]),
        (["**/deep"], ["dist/sub/deep/z.txt"]),
        (["**/sub/**/z.txt"], ["dist/sub/deep/z.txt"]),
        (["?.[lt]*"], ["a.txt", "b.log"]),
        (["[[]odd]"], ["[odd]"]),
        (["b.log", "a.txt"], ["a.txt", "b.log"]),
        (["nothing", "**/nothing/**"], []),
        ([], []),
    ],
)
def test_patterns_find_files_sorted_and_once(workspace: Path, globs: list[str], expected: list[str]) -> None:
    """A folder stands for everything in it."""
    assert paths(workspace, *globs) == expected


def test_the_first_matching_rule_gives_the_type(workspace: Path) -> None:
    """Rules are read from the top."""
    rules = [ArtifactRule(path_glob="dist/*.whl", type="wheel"), ArtifactRule(path_glob="dist/**", type="rest")]

    file = find_files(workspace, rules)

    assert {f.path: (f.type, f.bytes) for f in file} == {
        "dist/x.whl": ("wheel", 10),
        "dist/sub/y.whl": ("rest", 14),
        "dist/sub/deep/z.txt": ("rest", 19),
    }
    assert [read(workspace, f) for f in file] == [f.path for f in file]


@given(st.text("ab*?/.[]!-", max_size=12))
def test_any_pattern_is_searched_or_refused(pattern: str) -> None:
    """Patterns come from users."""
    with suppress(Refused):
        find_files(Path(__file__).parent, [ArtifactRule(path_glob=pattern)], SearchLimits(depth=2))


def test_no_descriptor_is_left_open(workspace: Path) -> None:
    """A runner lives for months."""
    before = len(os.listdir("/proc/self/fd"))

    for _ in range(20):
        for file in find_files(workspace, [ArtifactRule(path_glob="**")]):
            read(workspace, file)

    assert len(os.listdir("/proc/self/fd")) <= before
