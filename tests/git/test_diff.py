"""The changed paths of a diff, as git prints it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from deltaci.git.diff import parse_changed_paths

IDS = "0123456789ab 9876543210ab"


def test_renames_and_copies_count_with_both_names_and_submodules_with_what_is_below() -> None:
    raw = (
        f":100644 100644 {IDS} M\0a b\0:100644 000000 {IDS} D\0gone\0:100644 100644 {IDS} R087\0old\0new\0"
        f":100644 100644 {IDS} C100\0from\0to\0:160000 160000 {IDS} M\0libs/sub\0"
    )

    assert parse_changed_paths(raw) == frozenset({"a b", "gone", "old", "new", "from", "to", "libs/sub", "libs/sub/"})
    assert parse_changed_paths("") == frozenset()


@pytest.mark.parametrize(
    "raw",
    [
        "nonsense",
        "nonsense\0",
        f":100644 100644 {IDS} M\0a",
        f":100644 100644 {IDS} M\0",
        f":100644 100644 {IDS} R100\0old\0",
        f":100644 100644 {IDS} U\0a\0",
        f":100644 100644 {IDS} M\0a\0b\0",
    ],
)
def test_what_git_does_not_print_is_an_unknown_diff(raw: str) -> None:
    assert parse_changed_paths(raw) is None


def test_what_git_really_prints_is_read(tmp_path: Path) -> None:
    def git(*words: str) -> str:
        who = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
        asked = ["git", "-C", str(tmp_path), *who, *words]
        return subprocess.run(asked, check=True, capture_output=True, text=True, timeout=60).stdout

    git("init", "-q")
    for name in ("stays", "goes", "moves", "ändert\n sich"):
        (tmp_path / name).write_text(f"{name}\n" * 9)
    git("add", "-A")
    git("commit", "-qm", "one")
    git("mv", "moves", "moved")
    git("rm", "-q", "goes")
    (tmp_path / "ändert\n sich").write_text("anders")
    git("add", "-A")
    git("commit", "-qm", "two")

    raw = git("diff", "--raw", "-z", "--find-renames", "HEAD~1", "HEAD")

    assert parse_changed_paths(raw) == frozenset({"moves", "moved", "goes", "ändert\n sich"})
