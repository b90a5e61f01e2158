"""A folder as a commit: uncommitted files count, and nothing in the folder changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from deltaci.core.errors import Refused
from deltaci.local.tree import WorkingTree
from tests.local.repository import Repository


def tree_of(folder: Path) -> WorkingTree:
    tree = WorkingTree(folder)
    tree.set_git_dir(tree.root / ".state" / "local" / "here.git")
    return tree


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "repository")


def test_an_unknown_base_is_refused(repository: Repository) -> None:
    repository.commit(README="x")
    tree = tree_of(repository.folder)

    with pytest.raises(Refused, match="there is no commit 'nowhere'"):
        tree.find_base("nowhere", tree.snapshot())
    with pytest.raises(Refused, match="there is no commit '--output=x'"):
        tree.find_base("--output=x", tree.snapshot())


def test_a_base_without_any_commit_is_refused(repository: Repository) -> None:
    repository.write("README")
    tree = tree_of(repository.folder)
    snapshot = tree.snapshot()

    assert tree.find_base("", snapshot) == ("", "there is no commit yet")
    with pytest.raises(Refused, match="no commit here"):
        tree.find_base("main", snapshot)


def test_a_clean_working_tree_is_its_head_commit(repository: Repository) -> None:
    head = repository.commit(README="x")

    snapshot = tree_of(repository.folder).snapshot()

    assert snapshot.commit == snapshot.head == head
    assert snapshot.is_clean


def test_uncommitted_files_count_and_ignored_files_do_not(repository: Repository) -> None:
    repository.commit(**{"README": "x", "kept.log": "tracked"})
    repository.write(".gitignore", "*.log\n")
    repository.write("new.txt")
    repository.write("other.log")
    repository.write("kept.log", "tracked, and changed")
    (repository.folder / "README").unlink()

    tree = tree_of(repository.folder)
    snapshot = tree.snapshot()

    assert tree.paths(snapshot.commit) == [".gitignore", "kept.log", "new.txt"]
    assert tree.read_files(snapshot.commit, ["kept.log", "README"]) == {"kept.log": b"tracked, and changed"}
    assert not snapshot.is_clean


def test_the_same_files_are_the_same_commit(repository: Repository) -> None:
    repository.commit(README="x")
    repository.write("new.txt")
    tree = tree_of(repository.folder)

    first, second = tree.snapshot(), tree.snapshot()
    repository.write("new.txt", "other")

    assert first == second
    assert tree.snapshot() != first


def test_the_users_repository_is_not_changed(repository: Repository) -> None:
    repository.commit(README="x")
    repository.write("new.txt")
    repository.git("status")  # lets git refresh its index first

    def theirs() -> dict[str, bytes]:
        files = (path for path in repository.folder.rglob("*") if path.is_file() and ".state" not in path.parts)
        return {str(path): path.read_bytes() for path in files}

    before = theirs()
    tree_of(repository.folder).snapshot()

    assert theirs() == before


def test_a_folder_without_git_gets_a_snapshot(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")

    tree = tree_of(tmp_path)
    snapshot = tree.snapshot()

    assert tree.paths(snapshot.commit) == ["a.txt"]
    assert snapshot.head == ""


def test_a_folder_inside_a_repository_means_the_whole_repository(repository: Repository) -> None:
    repository.commit(a__b="x")

    assert tree_of(repository.folder / "a").root == repository.folder


def test_changes_are_counted_from_the_merge_base(repository: Repository) -> None:
    merge_base = repository.commit(README="x")
    repository.git("switch", "--quiet", "-c", "topic")
    repository.commit(topic="x")
    repository.git("switch", "--quiet", "main")
    repository.commit(elsewhere="x")
    repository.git("switch", "--quiet", "topic")
    repository.write("not-committed")
    tree = tree_of(repository.folder)
    snapshot = tree.snapshot()

    base, base_name = tree.find_base("", snapshot)

    assert (base, base_name) == (merge_base, "main")
    assert tree.changed_paths(base, snapshot.commit) == frozenset({"topic", "not-committed"})


def test_on_the_default_branch_the_base_is_the_last_or_the_previous_commit(repository: Repository) -> None:
    first = repository.commit(README="x")
    second = repository.commit(more="x")
    tree = tree_of(repository.folder)

    assert tree.find_base("", tree.snapshot()) == (first, "the previous commit")
    repository.write("new")
    assert tree.find_base("", tree.snapshot()) == (second, "the last commit")


def test_a_linked_worktree_gets_a_snapshot(repository: Repository, tmp_path: Path) -> None:
    repository.commit(README="x")
    repository.git("worktree", "add", "--quiet", "-b", "side", str(tmp_path / "side"))
    (tmp_path / "side" / "new").write_text("x")

    tree = tree_of(tmp_path / "side")

    assert tree.paths(tree.snapshot().commit) == ["README", "new"]
    assert tree.current_branch() == "side"


def test_names_come_from_the_repository_and_its_origin(repository: Repository) -> None:
    repository.commit("A subject\n\nmore", README="x")
    tree = tree_of(repository.folder)

    assert (tree.repository_name(), tree.current_branch(), tree.commit_subject()) == ("repository", "main", "A subject")
    repository.git("remote", "add", "origin", "git@forge.example:team/thing.git")
    assert tree.repository_name() == "team/thing"


def test_unusual_file_names_are_kept(repository: Repository) -> None:
    repository.commit(README="x")
    names = ["-rf", "a\nb", "ü", "with space", 'quo"te']
    for name in names:
        repository.write(name)
    tree = tree_of(repository.folder)
    snapshot = tree.snapshot()

    assert sorted(tree.paths(snapshot.commit)) == sorted([*names, "README"])
    assert tree.changed_paths(snapshot.head, snapshot.commit) == frozenset(names)
