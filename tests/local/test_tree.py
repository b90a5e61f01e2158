"""A folder as a commit: what is here counts, and nothing that is here is touched."""

from __future__ import annotations

from pathlib import Path

import pytest

from deltaci.core.errors import Refused
from deltaci.local.tree import Tree
from tests.local.repository import Repository


def tree_of(folder: Path) -> Tree:
    tree = Tree(folder)
    tree.keep_in(tree.root / ".state" / "local" / "here.git")
    return tree


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "repository")


def test_a_base_that_is_not_there_is_refused(repository: Repository) -> None:
    repository.commit(README="x")
    tree = tree_of(repository.folder)

    with pytest.raises(Refused, match="there is no commit 'nowhere'"):
        tree.base("nowhere", tree.snapshot())
    with pytest.raises(Refused, match="there is no commit '--output=x'"):
        tree.base("--output=x", tree.snapshot())


def test_a_base_without_any_commit_is_refused(repository: Repository) -> None:
    repository.write("README")
    tree = tree_of(repository.folder)
    snapshot = tree.snapshot()

    assert tree.base("", snapshot) == ("", "there is no commit yet")
    with pytest.raises(Refused, match="no commit here"):
        tree.base("main", snapshot)


def test_what_is_committed_is_taken_as_it_is(repository: Repository) -> None:
    head = repository.commit(README="x")

    snapshot = tree_of(repository.folder).snapshot()

    assert snapshot.commit == snapshot.head == head
    assert snapshot.is_clean


def test_what_is_not_committed_counts_and_what_is_ignored_does_not(repository: Repository) -> None:
    repository.commit(**{"README": "x", "kept.log": "tracked"})
    repository.write(".gitignore", "*.log\n")
    repository.write("new.txt")
    repository.write("other.log")
    repository.write("kept.log", "tracked, and changed")
    (repository.folder / "README").unlink()

    tree = tree_of(repository.folder)
    snapshot = tree.snapshot()

    assert tree.paths(snapshot.commit) == [".gitignore", "kept.log", "new.txt"]
    assert tree.read(snapshot.commit, "kept.log") == b"tracked, and changed"
    assert tree.read(snapshot.commit, "README") is None
    assert not snapshot.is_clean


def test_the_same_files_are_the_same_commit(repository: Repository) -> None:
    repository.commit(README="x")
    repository.write("new.txt")
    tree = tree_of(repository.folder)

    first, second = tree.snapshot(), tree.snapshot()
    repository.write("new.txt", "other")

    assert first == second
    assert tree.snapshot() != first


def test_nothing_of_theirs_is_touched(repository: Repository) -> None:
    repository.commit(README="x")
    repository.write("new.txt")
    repository.git("status")  # lets git refresh its index first

    def theirs() -> dict[str, bytes]:
        files = (path for path in repository.folder.rglob("*") if path.is_file() and ".state" not in path.parts)
        return {str(path): path.read_bytes() for path in files}

    before = theirs()
    tree_of(repository.folder).snapshot()

    assert theirs() == before


def test_a_folder_without_git_is_a_tree_too(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")

    tree = tree_of(tmp_path)
    snapshot = tree.snapshot()

    assert tree.paths(snapshot.commit) == ["a.txt"]
    assert snapshot.head == ""


def test_a_folder_inside_a_repository_stands_for_all_of_it(repository: Repository) -> None:
    repository.commit(a__b="x")

    assert tree_of(repository.folder / "a").root == repository.folder


def test_changes_are_counted_from_where_the_branch_began(repository: Repository) -> None:
    began = repository.commit(README="x")
    repository.git("switch", "--quiet", "-c", "topic")
    repository.commit(topic="x")
    repository.git("switch", "--quiet", "main")
    repository.commit(elsewhere="x")
    repository.git("switch", "--quiet", "topic")
    repository.write("not-committed")
    tree = tree_of(repository.folder)
    snapshot = tree.snapshot()

    base, called = tree.base("", snapshot)

    assert (base, called) == (began, "main")
    assert tree.changed(base, snapshot.commit) == frozenset({"topic", "not-committed"})


def test_on_the_default_branch_what_is_not_committed_counts_or_else_the_last_commit(repository: Repository) -> None:
    first = repository.commit(README="x")
    second = repository.commit(more="x")
    tree = tree_of(repository.folder)

    assert tree.base("", tree.snapshot()) == (first, "the commit before")
    repository.write("new")
    assert tree.base("", tree.snapshot()) == (second, "what is committed")


def test_a_worktree_of_git_is_a_tree(repository: Repository, tmp_path: Path) -> None:
    repository.commit(README="x")
    repository.git("worktree", "add", "--quiet", "-b", "side", str(tmp_path / "side"))
    (tmp_path / "side" / "new").write_text("x")

    tree = tree_of(tmp_path / "side")

    assert tree.paths(tree.snapshot().commit) == ["README", "new"]
    assert tree.branch() == "side"


def test_what_people_call_it(repository: Repository) -> None:
    repository.commit("A subject\n\nmore", README="x")
    tree = tree_of(repository.folder)

    assert (tree.repository(), tree.branch(), tree.subject()) == ("repository", "main", "A subject")
    repository.git("remote", "add", "origin", "git@forge.example:team/thing.git")
    assert tree.repository() == "team/thing"


def test_strange_names_come_through(repository: Repository) -> None:
    repository.commit(README="x")
    names = ["-rf", "a\nb", "ü", "with space", 'quo"te']
    for name in names:
        repository.write(name)
    tree = tree_of(repository.folder)
    snapshot = tree.snapshot()

    assert sorted(tree.paths(snapshot.commit)) == sorted([*names, "README"])
    assert tree.changed(snapshot.head, snapshot.commit) == frozenset(names)
