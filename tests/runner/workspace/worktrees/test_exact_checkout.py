"""Trees are made exactly equal to a commit, whatever a job left, and without executing any of it."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from deltaci.git.command import GitFailed
from deltaci.protocol.job_spec import Source, Worktree
from deltaci.runner.workspace.mirrors import mirror_path
from deltaci.runner.workspace.source_policy import make_remote
from deltaci.runner.workspace.worktrees.exact_checkout import check_out_exactly, create_git_dir, parse_author
from deltaci.runner.workspace.worktrees.repository import StreamRepository
from deltaci.runner.workspace.worktrees.worktree_pool import StreamRecord, WorktreeSlot, folder_name
from tests.contract.backends import on_loop
from tests.runner.workspace.worktrees.test_commit_bundles import bundle
from tests.support.upstream import Upstream, git


@pytest.fixture
def upstream(tmp_path: Path) -> Upstream:
    """Return a repository that ignores build outputs."""
    return Upstream(tmp_path / "upstream", {"a": "1\n", "src/b": "1\n", "src/c/d": "1\n", ".gitignore": "build/\n"})


class TreeFixture:
    """The folder of one stream with its tree."""

    def __init__(self, folder: Path, upstream: Upstream, name: str = "tree") -> None:
        self.folder = folder / "workstreams" / "s"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.mirrors = folder / "mirrors"
        self.upstream = upstream
        self.source = Source(url=upstream.url, commit=upstream.first, ref="refs/heads/main", depth=1)
        self.remote = make_remote(upstream.url, ("file",))
        self.slot = WorktreeSlot(self.folder, name, StreamRecord("s", False))
        self.repository = StreamRepository(self.slot.repository)

    async def base(self, commit: str = "", depth: int = 1) -> None:
        """Fetch a commit of the repository."""
        await self.repository.create()
        source = Source(url=self.source.url, commit=commit or self.source.commit, ref="refs/heads/main", depth=depth)
        await self.repository.fetch_base(self.mirrors, self.remote, source, lambda _: None)

    async def at(self, commit: str) -> Path:
        """Prepare the tree for a job at this commit."""
        await check_out_exactly(self.repository, self.slot, commit)
        shutil.rmtree(self.slot.git_dir, ignore_errors=True)
        tree = Worktree(stream="s", source=self.source, branch="ws/x", author="Ada <ada@example.org>")
        await asyncio.to_thread(create_git_dir, self.repository, self.slot, tree, self.source.commit, commit)
        return self.slot.path

    def files(self) -> dict[str, str]:
        """Return all files of the tree except `.git`; links by their targets."""
        found: dict[str, str] = {}
        for path in sorted(self.slot.path.rglob("*")):
            name = path.relative_to(self.slot.path).as_posix()
            if path.is_symlink():
                found[name] = f"-> {os.readlink(path)}"
            elif path.is_file() and name != ".git":
                found[name] = path.read_text()
        return found


CLEAN = {".deltaci.yml", ".gitignore", "README", "a", "src/b", "src/c/d"}


@on_loop
async def test_a_fresh_tree_is_a_work_tree_of_its_branch(tmp_path: Path, upstream: Upstream) -> None:
    """A job finds a branch, its upstream, an author, and nothing to commit."""
    fixture = TreeFixture(tmp_path, upstream)
    await fixture.base()
    tree = await fixture.at(upstream.first)

    assert set(fixture.files()) == CLEAN
    assert git(tree, "status", "--porcelain", "--branch") == "## ws/x"
    assert git(tree, "rev-parse", "HEAD", "origin/main").split() == [upstream.first, upstream.first]
    assert git(tree, "config", "user.email") == "ada@example.org"
    git(tree, "fsck", "--strict")
    (tree / "a").write_text("2\n")
    git(tree, "commit", "-qam", "two")
    assert git(tree, "log", "--format=%s", "-1") == "two"
    objects = [path for path in (fixture.slot.git_dir / "objects").rglob("*") if path.is_file()]
    assert len(objects) == 4, objects  # Three of its own, and where the others are.


@on_loop
async def test_build_outputs_and_equal_files_are_not_rewritten(tmp_path: Path, upstream: Upstream) -> None:
    """A file that the previous job already changed to the new content keeps its time, too."""
    fixture = TreeFixture(tmp_path, upstream)
    await fixture.base()
    tree = await fixture.at(upstream.first)
    (tree / "a").write_text("2\n")
    (tree / "build").mkdir()
    (tree / "build" / "out").write_text("warm")
    times = {name: (tree / name).stat().st_mtime_ns for name in (*CLEAN, "build/out")}
    head = upstream.commit({"a": "2\n"})
    await fixture.repository.import_bundle(bundle(upstream, head, upstream.first), head)

    await fixture.at(head)

    assert {name: (tree / name).stat().st_mtime_ns for name in times} == times
    assert git(tree, "status", "--porcelain") == ""


def _link_elsewhere(tree: Path, _: Path) -> None:
    (tree / "src").rename(tree / "build")
    (tree / "src").symlink_to("build")


def _same_time(tree: Path, _: Path) -> None:
    before = (tree / "a").stat()
    (tree / "a").write_text("X\n")
    os.utime(tree / "a", ns=(before.st_atime_ns, before.st_mtime_ns))


def _other_ends(tree: Path, _: Path) -> None:
    (tree / ".gitattributes").write_text("* text eol=crlf\n")
    (tree / "a").write_bytes(b"1\r\n")
    (tree / ".gitignore").write_text("*\n")
    (tree / "src" / ".gitattributes").symlink_to("../.gitattributes")
    (tree / "src" / "b").write_bytes(b"1\r\n")


def _ignored_by_what_goes(tree: Path, _: Path) -> None:
    (tree / "src" / ".gitignore").write_text("deep\n")
    (tree / "src" / "deep").mkdir()
    (tree / "src" / "deep" / ".gitignore").write_text("x\n")
    (tree / "src" / "deep" / "x").write_text("x")
    (tree / ".gitignore").write_text("*\n")


def _repositories_between(tree: Path, outside: Path) -> None:
    git(tree / "src", "init", "-q")
    (tree / "src" / "c" / ".git").symlink_to(outside)
    git(tree, "init", "-q", "other")
    (tree / "other" / "x").write_text("x")


def _kinds(tree: Path, outside: Path) -> None:
    (tree / "a").unlink()
    (tree / "a").mkdir()
    (tree / "a" / "x").write_text("x")
    shutil.rmtree(tree / "src" / "c")
    (tree / "src" / "c").symlink_to(outside)
    (tree / "README").unlink()
    (tree / "README").symlink_to(outside / "secret")
    os.mkfifo(tree / "fifo")
    (tree / "src" / "b").chmod(0o755)


def _git_is_a_link(tree: Path, outside: Path) -> None:
    (tree / ".git").unlink()
    (tree / ".git").symlink_to(outside)
    (tree / "new").symlink_to(outside)


def _git_is_a_folder(tree: Path, _: Path) -> None:
    (tree / ".git").unlink()
    git(tree, "init", "-q")
    git(tree, "add", "-A")
    git(tree, "commit", "-qm", "all mine")


def _nothing_left(tree: Path, _: Path) -> None:
    for path in tree.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()


@pytest.mark.parametrize(
    "left",
    [
        *(_same_time, _other_ends, _ignored_by_what_goes, _repositories_between, _kinds),
        *(_git_is_a_link, _git_is_a_folder, _nothing_left),
    ],
)
@on_loop
async def test_nothing_that_a_job_left_is_in_the_next_tree(
    tmp_path: Path, upstream: Upstream, left: Callable[[Path, Path], None]
) -> None:
    """Neither in tracked files nor beside them; and nothing outside of the tree is changed."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("mine")
    fixture = TreeFixture(tmp_path, upstream)
    await fixture.base()
    tree = await fixture.at(upstream.first)
    before = fixture.files()
    left(tree, outside)

    await fixture.at(upstream.first)

    assert fixture.files() == before
    assert git(tree, "status", "--porcelain", "--branch") == "## ws/x"
    assert [path for path in tree.rglob(".git") if path.parent != tree] == []
    assert not os.access(tree / "src" / "b", os.X_OK) or os.stat(tree / "src" / "b").st_mode & 0o111 == 0
    assert {path.name: path.read_text() for path in outside.iterdir()} == {"secret": "mine"}


@on_loop
async def test_a_tree_that_cannot_be_verified_is_not_used(tmp_path: Path, upstream: Upstream) -> None:
    """A folder replaced by a link to its copy looks the same to git; then a new tree is created."""
    fixture = TreeFixture(tmp_path, upstream)
    await fixture.base()
    tree = await fixture.at(upstream.first)
    _link_elsewhere(tree, tmp_path)

    with pytest.raises(GitFailed, match="differs from the commit"):
        await fixture.at(upstream.first)


@on_loop
async def test_folders_of_submodules_are_empty(tmp_path: Path, upstream: Upstream) -> None:
    """Git inspects none of them, so a job could leave anything there."""
    git(upstream.tree, "update-index", "--add", "--cacheinfo", f"160000,{upstream.first},libs/sub")
    git(upstream.tree, "commit", "-qm", "a submodule")
    git(upstream.tree, "push", "-q", "origin", "HEAD:main")
    head = git(upstream.tree, "rev-parse", "HEAD")
    fixture = TreeFixture(tmp_path, upstream)
    await fixture.base(head)
    tree = await fixture.at(head)
    (tree / "libs" / "sub" / "planted").write_text("x")
    git(tree / "libs" / "sub", "init", "-q")

    await fixture.at(head)

    assert list((tree / "libs" / "sub").iterdir()) == []
    (tree / "libs" / "sub").rmdir()
    (tree / "libs" / "sub").symlink_to(tmp_path)
    await fixture.at(head)
    assert (tree / "libs" / "sub").is_dir()
    assert not (tree / "libs" / "sub").is_symlink()


@on_loop
async def test_nothing_of_a_job_s_repository_is_executed(tmp_path: Path, upstream: Upstream) -> None:
    """Hooks, filters, file monitors, aliases and included configuration are not read."""
    fixture = TreeFixture(tmp_path, upstream)
    await fixture.base()
    tree = await fixture.at(upstream.first)
    proof = tmp_path / "executed"
    evil = tmp_path / "evil.sh"
    evil.write_text(f'#!/bin/sh\necho "$0 $*" >> {proof}\ncat\n')
    evil.chmod(0o755)
    made = fixture.slot.git_dir
    (made / "hooks").mkdir()
    for name in ("post-checkout", "post-index-change", "reference-transaction", "pre-commit"):
        shutil.copy(evil, made / "hooks" / name)
    (tmp_path / "more").write_text(f"[core]\n\tfsmonitor = {evil}\n\tpager = {evil}\n")
    with (made / "config").open("a") as config:
        config.write(
            f"[core]\n\tfsmonitor = {evil}\n\thooksPath = {made / 'hooks'}\n\tsshCommand = {evil}\n"
            f'[filter "evil"]\n\tclean = {evil}\n\tsmudge = {evil}\n\tprocess = {evil}\n\trequired = true\n'
            f'[diff "evil"]\n\ttextconv = {evil}\n\tcommand = {evil}\n[include]\n\tpath = {tmp_path / "more"}\n'
            f"[alias]\n\tclean = !{evil}\n\tread-tree = !{evil}\n[extensions]\n\tworktreeConfig = true\n"
        )
    shutil.copy(made / "config", made / "config.worktree")
    (tree / ".gitattributes").write_text("* filter=evil diff=evil\n")
    (made / "info").mkdir()
    (made / "info" / "attributes").write_text("* filter=evil diff=evil\n")
    (made / "objects" / "info" / "alternates").write_text(f"{tmp_path}\n")
    (tree / "a").write_text("2\n")
    (tree / "new").write_text("x")
    head = upstream.commit({"a": "3\n", ".gitattributes": "* filter=evil diff=evil\n"})
    await fixture.repository.import_bundle(bundle(upstream, head, upstream.first), head)

    await fixture.at(head)

    assert not proof.exists(), proof.read_text()
    assert (tree / "a").read_text() == "3\n"
    assert "evil" not in (made / "config").read_text()
    assert sorted(path.name for path in made.iterdir()) == ["HEAD", "config", "index", "objects", "refs", "shallow"]


@on_loop
async def test_removing_the_mirror_removes_no_objects(tmp_path: Path, upstream: Upstream) -> None:
    """Its objects are hard-linked, or copied from another file system."""
    fixture = TreeFixture(tmp_path, upstream)
    await fixture.base(depth=0)
    mirror = mirror_path(fixture.mirrors, fixture.remote)
    packs = [path for path in mirror.rglob("*") if path.is_file() and "objects" in path.parts]
    assert packs
    assert all(pack.stat().st_nlink == 2 for pack in packs)
    shutil.rmtree(mirror)

    tree = await fixture.at(upstream.first)

    git(fixture.repository.path, "fsck", "--strict")
    assert set(fixture.files()) == CLEAN
    assert git(tree, "log", "--format=%H") == upstream.first


@on_loop
async def test_an_interrupted_fetch_is_repeated(
    tmp_path: Path, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit counts only when complete; stale locks are removed, and temporary files are not linked."""
    fixture = TreeFixture(tmp_path, upstream)
    await fixture.repository.create()
    await fixture.base()
    shutil.rmtree(fixture.repository.path / "refs" / "deltaci")
    for path in (fixture.repository.path / "objects").rglob("*"):
        if path.is_file():
            path.unlink()
    assert not fixture.repository.has_commit(upstream.first)
    (fixture.repository.path / "trees" / "tree.index.lock").write_text("")
    (fixture.repository.path / "shallow.lock").write_text("")

    def refused(*_: object, **__: object) -> None:
        raise OSError("no second names here")

    monkeypatch.setattr(os, "link", refused)
    await fixture.base()

    await fixture.at(upstream.first)
    assert set(fixture.files()) == CLEAN
    assert not (fixture.repository.path / "shallow.lock").exists()


@on_loop
async def test_another_commit_rewrites_only_different_files(tmp_path: Path, upstream: Upstream) -> None:
    """Equal files keep their times: merge tests go from commit to commit."""
    many = {f"lib/{number % 20}/{number}": f"{number}\n" for number in range(500)}
    one = upstream.push({**many, "x": "1\n"})
    two = upstream.push({"x": "2\n", "lib/3/3": "other\n", "lib/4/4": None})
    fixture = TreeFixture(tmp_path, upstream, "test-1")
    await fixture.base(one, depth=0)
    await fixture.base(two, depth=0)
    tree = await fixture.at(one)
    times = {name: (tree / name).stat().st_ctime_ns for name in many}

    await fixture.at(two)

    now = {name: (tree / name).stat().st_ctime_ns for name in many if (tree / name).exists()}
    assert {name for name in many if now.get(name) != times[name]} == {"lib/3/3", "lib/4/4"}
    await fixture.at(one)
    assert (tree / "lib/4/4").read_text() == "4\n"
    assert git(tree, "status", "--porcelain") == ""


@pytest.mark.parametrize("author", ["", "Ada", "<a@b>", "Ada <>", "\n<\n>"])
def test_an_incomplete_author_becomes_the_default_identity(author: str) -> None:
    """A commit needs a name and an address."""
    assert parse_author(author) == ("Delta CI", "deltaci@localhost")
    assert parse_author("Ada L. <ada@example.org>") == ("Ada L.", "ada@example.org")
    assert parse_author('A"\\d\n <a@b>') == ('A"\\d', "a@b")


@pytest.mark.parametrize("text", ["..", ".", "", "a/b", ".hidden", "_x", "a b", "x.git", "é", "a" * 101, "-x", "a\n"])
def test_stream_names_never_lead_outside(text: str) -> None:
    """An unsafe name is replaced by a unique safe one."""
    found = folder_name(text)

    assert found.startswith("_")
    assert "/" not in found
    assert found != folder_name(f"{text}x")
    assert folder_name("run_456-a.b") == "run_456-a.b"
