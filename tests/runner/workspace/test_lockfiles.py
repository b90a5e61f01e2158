"""A cache key changes when a lock file changes, and only then."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltaci.core.errors import Refused
from deltaci.protocol.messages import CacheRule
from deltaci.runner.workspace.cache_keys import cache_key


def write(folder: Path, **files: str) -> Path:
    for name, content in files.items():
        path = folder / name.replace("__", "/").replace("_lock", ".lock")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return folder


def rule(key: str = "deps-{lock_hash}", *lock_files: str) -> CacheRule:
    return CacheRule(key=key, paths=[".cache"], lock_files=list(lock_files))


@pytest.mark.parametrize("name", ["../uv.lock", "/etc/passwd", ""])
def test_a_lock_file_outside_is_refused(tmp_path: Path, name: str) -> None:
    """A key must not reveal anything about other files."""
    with pytest.raises(Refused):
        cache_key(tmp_path, rule("{lock_hash}", name))


def test_a_link_that_leads_outside_is_no_lock_file(tmp_path: Path) -> None:
    """Its hash would tell whether a guess about a foreign file is right."""
    write(tmp_path, secret="x")
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    (workspace / "uv.lock").symlink_to(tmp_path / "secret")

    assert cache_key(workspace, rule()).lock_files == ()


def test_a_key_without_lock_files_gives_a_note(tmp_path: Path) -> None:
    """Such a cache would never be renewed."""
    made = cache_key(tmp_path, rule())

    assert made.key.startswith("deps-")
    assert "no lock file" in made.note


def test_a_missing_lock_file_gives_a_note(tmp_path: Path) -> None:
    """The others still count."""
    write(tmp_path, uv_lock="1")

    made = cache_key(tmp_path, rule("{lock_hash}", "uv.lock", "other.lock"))

    assert made.lock_files == ("uv.lock",)
    assert "no file matches other.lock" in made.note


def test_a_key_without_the_placeholder_is_unchanged(tmp_path: Path) -> None:
    """No file is read for it."""
    assert cache_key(tmp_path / "nowhere", rule("tools-v1")).key == "tools-v1"


def test_common_lock_files_are_found_except_installed_ones(tmp_path: Path) -> None:
    """Installed dependencies change with the cache itself."""
    write(tmp_path, uv_lock="1", web__yarn_lock="2", web__node_modules__x__yarn_lock="3", README="4")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "go.sum").write_text("5")

    assert cache_key(tmp_path, rule()).lock_files == ("uv.lock", "web/yarn.lock")


def test_folder_names_are_not_patterns(tmp_path: Path) -> None:
    """`[a]*` is a valid folder name."""
    (tmp_path / "[a]*?").mkdir()
    (tmp_path / "[a]*?" / "go.sum").write_text("x")

    assert cache_key(tmp_path, rule()).lock_files == ("[a]*?/go.sum",)


def test_the_hash_does_not_depend_on_path_order_or_time(tmp_path: Path) -> None:
    """Two machines share a cache only if they compute the same key."""
    one = write(tmp_path / "one", a_lock="1", b_lock="2")
    two = write(tmp_path / "two", b_lock="2", a_lock="1")
    os.utime(two / "a.lock", (0, 0))

    keys = {
        cache_key(one, rule("{lock_hash}", "a.lock", "b.lock")).key,
        cache_key(two, rule("{lock_hash}", "b.lock", "a.lock", "*.lock")).key,
    }

    assert len(keys) == 1
    assert len(keys.pop()) == 64


def test_every_change_changes_the_key(tmp_path: Path) -> None:
    """Content, name, and the boundary between files."""
    folders = [
        write(tmp_path / "1", a_lock="12", b_lock="3"),
        write(tmp_path / "2", a_lock="1", b_lock="23"),
        write(tmp_path / "3", a_lock="12", c_lock="3"),
        write(tmp_path / "4", a_lock="12"),
        write(tmp_path / "5", a_lock="12", b_lock="3", c_lock=""),
    ]

    assert len({cache_key(folder, rule("{lock_hash}", "*.lock")).key for folder in folders}) == len(folders)


@given(st.text(max_size=60))
def test_only_the_placeholder_is_replaced(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    """Other braces in a key have no meaning."""
    empty = tmp_path_factory.getbasetemp()

    made = cache_key(empty, rule(text + "{lock_hash}{x}", "nothing-here"))

    assert made.key.startswith(text.replace("{lock_hash}", ""))
    assert made.key.endswith("{x}")
