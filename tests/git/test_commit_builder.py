"""Commits that only the server has: made of real ones, the same each time, without a work tree."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from deltaci.controllers.projects import Project
from deltaci.core.instants import SECOND
from deltaci.git import mirrors
from deltaci.git.command import GitFailed
from deltaci.git.commit_builder import BranchMoved, CommitBuilder, MergeConflict, Signature
from deltaci.git.mirrors import Mirrors
from tests.contract.backends import on_loop
from tests.controllers.merge_queue.site import LOCAL
from tests.support.upstream import Upstream, git

BY = Signature("Delta CI", "ci@example.org", 1_800_000_000 * SECOND)


@pytest.fixture
def upstream(tmp_path: Path) -> Upstream:
    """A repository."""
    return Upstream(tmp_path / "upstream", {"a.txt": "1\n2\n3\n4\n5\n"})


@pytest.fixture
def shop(upstream: Upstream, tmp_path: Path) -> CommitBuilder:
    """A server's builder."""
    project = Project(name="shop", tenant="acme", url=upstream.url)
    return CommitBuilder(Mirrors(tmp_path / "server", LOCAL, lambda *_: "").for_project(project))


async def branch(
    shop: CommitBuilder, upstream: Upstream, name: str, *changes: dict[str, str | None], at: str = ""
) -> str:
    """A branch with these commits, and the mirror has them."""
    upstream.switch(name, at or upstream.first)
    for files in changes:
        upstream.push(files, f"{name} changes {', '.join(files)}", name)
    return await shop.fetch_branch(name)


def show(shop: CommitBuilder, *words: str) -> str:
    """What git says in the mirror."""
    return git(shop.mirror.folder, *words)


@on_loop
async def test_where_a_branch_is(shop: CommitBuilder, upstream: Upstream) -> None:
    """As the repository has it now; one that is not there is said to be not there."""
    assert await shop.fetch_branch("main") == upstream.first
    moved = upstream.push({"b": "1"})
    assert await shop.fetch_branch("main") == moved
    with pytest.raises(GitFailed, match="no branch 'other'"):
        await shop.fetch_branch("other")


@on_loop
async def test_a_conflict_says_where(shop: CommitBuilder, upstream: Upstream) -> None:
    """Every file by its name, whatever is in that."""
    ours = await branch(shop, upstream, "ours", {"a.txt": "x\n", "dir/ä b.txt": "1\n", "c": "same\n"})
    theirs = await branch(shop, upstream, "theirs", {"a.txt": "y\n", "dir/ä b.txt": "2\n", "c": "same\n"})

    with pytest.raises(MergeConflict) as caught:
        await shop.merge_trees(ours, theirs)

    assert set(caught.value.paths) == {"a.txt", "dir/ä b.txt"}


@on_loop
async def test_nothing_that_a_repository_says_is_executed(
    shop: CommitBuilder, upstream: Upstream, tmp_path: Path
) -> None:
    """Not even a merge driver that it wishes for."""
    mark = tmp_path / "executed"
    start = upstream.push({".gitattributes": "*.txt merge=evil filter=evil\n"})
    ours = await branch(shop, upstream, "ours", {"a.txt": "1\n2\n3\n4\nours\n"}, at=start)
    theirs = await branch(shop, upstream, "theirs", {"a.txt": "theirs\n2\n3\n4\n5\n"}, at=start)
    show(shop, "config", "filter.evil.smudge", f"touch {mark}")

    tree = await shop.merge_trees(ours, theirs)

    assert show(shop, "show", f"{tree}:a.txt") == "theirs\n2\n3\n4\nours"
    assert not mark.exists()


@on_loop
async def test_the_same_is_asked_for_and_the_same_is_made(shop: CommitBuilder, upstream: Upstream) -> None:
    """After a crash, and by another server."""
    tree = await shop.tree_of(await shop.fetch_branch("main"))
    author = Signature("Eve\n<x>", "eve@example.org", BY.at)

    made = [await shop.commit(tree, (upstream.first,), "a title\n\nand more", BY, author) for _ in range(2)]

    assert made[0] == made[1]
    assert show(shop, "log", "-1", "--format=%an|%ae|%cn|%ce|%ct|%B", made[0]) == (
        "Evex|eve@example.org|Delta CI|ci@example.org|1800000000|a title\n\nand more"
    )
    assert await shop.commit(tree, (upstream.first,), "another title", BY) != made[0]


@on_loop
async def test_one_merge_commit_for_many(shop: CommitBuilder, upstream: Upstream) -> None:
    """Its parents are the base and every head; its tree has what all of them changed."""
    heads = [await branch(shop, upstream, f"h{n}", {f"{n}.txt": "1\n"}) for n in range(3)]
    base = await branch(shop, upstream, "main", {"more": "1\n"})

    merge = await shop.merge(base, heads, "all", BY)

    assert show(shop, "rev-parse", f"{merge}^@").split() == [base, *heads]
    assert {"0.txt", "1.txt", "2.txt", "more"} <= set(show(shop, "ls-tree", "--name-only", merge).split())
    assert await shop.merge(base, heads, "all", BY) == merge


@on_loop
async def test_all_changes_in_one_commit(shop: CommitBuilder, upstream: Upstream) -> None:
    """On top of the base alone."""
    head = await branch(shop, upstream, "h", {"b": "1\n"}, {"b": "2\n"}, {"c": "1\n"})
    base = await branch(shop, upstream, "main", {"more": "1\n"})

    made = await shop.squash(base, head, "all of it", BY)

    assert show(shop, "rev-parse", f"{made}^@") == base
    assert show(shop, "diff", "--name-only", base, made).split() == ["b", "c"]


@on_loop
async def test_one_by_one_on_top_of_the_base(shop: CommitBuilder, upstream: Upstream) -> None:
    """Authors and messages stay; what the base has already is left out; what stands there already is not touched."""
    head = await branch(shop, upstream, "h", {"b": "1\n"}, {"more": "1\n"}, {"a.txt": "1\n2\n3\n4\nlast\n"})
    assert await shop.rebase(upstream.first, head, BY) == head
    base = await branch(shop, upstream, "main", {"more": "1\n"})

    top = await shop.rebase(base, head, BY)

    titles = show(shop, "log", "--reverse", "--format=%s|%an|%cn", f"{base}..{top}").split("\n")
    assert titles == ["h changes b|Ada|Delta CI", "h changes a.txt|Ada|Delta CI"]
    assert await shop.tree_of(top) == await shop.merge_trees(base, head)
    assert await shop.rebase(base, head, BY) == top
    assert await shop.rebase(head, upstream.first, BY) == head


@on_loop
async def test_a_message_stays_what_it_was(shop: CommitBuilder, upstream: Upstream) -> None:
    """In whatever letters it was written; a signature of what it was before is gone."""
    upstream.switch("h", upstream.first)
    (upstream.tree / "b").write_text("1\n")
    git(upstream.tree, "add", "b")
    told = {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "i18n.commitEncoding", "GIT_CONFIG_VALUE_0": "ISO-8859-1"}
    (upstream.tree.parent / "message").write_bytes("Grüße\n\nund mehr".encode("latin-1"))
    git(upstream.tree, "commit", "-q", "-F", str(upstream.tree.parent / "message"), **told)
    git(upstream.tree, "push", "-q", "origin", "HEAD:refs/heads/h")
    head = await shop.fetch_branch("h")
    base = await branch(shop, upstream, "main", {"more": "1\n"})

    top = await shop.rebase(base, head, BY)

    assert show(shop, "log", "-1", "--format=%B", "--encoding=UTF-8", top) == "Grüße\n\nund mehr"


@on_loop
async def test_a_merge_on_the_way_is_replayed_by_what_it_brought_in(shop: CommitBuilder, upstream: Upstream) -> None:
    """One that changed more than that would lose it: it is said, and nothing is made."""
    first = await branch(shop, upstream, "one", {"b": "1\n"})
    second = await branch(shop, upstream, "two", {"c": "1\n"})
    joined = await shop.merge(first, [second], "joined", BY)
    base = await branch(shop, upstream, "main", {"more": "1\n"})

    top = await shop.rebase(base, joined, BY)

    assert await shop.tree_of(top) == await shop.merge_trees(base, joined)
    assert show(shop, "rev-list", "--merges", f"{base}..{top}") == ""
    other = await branch(shop, upstream, "three", {"b": "of three\n"})
    evil = await shop.commit(await shop.tree_of(other), (first, second), "more than a merge", BY)
    with pytest.raises(MergeConflict, match="use merge or squash"):
        await shop.rebase(base, evil, BY)


@on_loop
async def test_a_conflict_in_any_of_them_is_a_conflict(shop: CommitBuilder, upstream: Upstream) -> None:
    """And says where."""
    head = await branch(shop, upstream, "h", {"b": "1\n"}, {"a.txt": "mine\n"})
    base = await branch(shop, upstream, "main", {"a.txt": "theirs\n"})

    for make in (shop.rebase(base, head, BY), shop.squash(base, head, "m", BY), shop.merge(base, [head], "m", BY)):
        with pytest.raises(MergeConflict) as caught:
            await make
        assert caught.value.paths == ("a.txt",)


@on_loop
async def test_a_bundle_brings_what_somebody_has_not(shop: CommitBuilder, upstream: Upstream, tmp_path: Path) -> None:
    """Another server takes exactly this commit, on exactly this start, or nothing."""
    head = await branch(shop, upstream, "h", {"b": "1\n"}, {"b": "2\n"})
    other = await branch(shop, upstream, "o", {"c": "1\n"})
    file = tmp_path / "a.bundle"
    await shop.write_bundle(head, [upstream.first], file)
    git(upstream.bare, "update-ref", "-d", "refs/heads/h")
    git(upstream.bare, "update-ref", "-d", "refs/heads/o")
    project = Project(name="shop", tenant="acme", url=upstream.url)
    there = CommitBuilder(Mirrors(tmp_path / "another", LOCAL, lambda *_: "").for_project(project))

    with pytest.raises(GitFailed):
        await there.import_bundle(file, head, upstream.first)  # What it stands on is not there yet.
    await there.fetch_branch("main")
    for commit, start in ((other, upstream.first), (head, other), ("main", upstream.first), (head, "0" * 40)):
        with pytest.raises(GitFailed):
            await there.import_bundle(file, commit, start)
    await there.import_bundle(file, head, upstream.first)
    await there.import_bundle(file, head, upstream.first)

    assert await there.commits_between(upstream.first, head) == await shop.commits_between(upstream.first, head)
    assert len(await there.commits_between(upstream.first, head)) == 2
    await there.set_ref("streams/x", head)
    assert git(there.mirror.folder, "rev-parse", "refs/deltaci/streams/x") == head
    await there.delete_ref("streams/x")
    await there.delete_ref("streams/x")


@on_loop
async def test_what_a_killed_git_left_locked_is_opened_again(shop: CommitBuilder, upstream: Upstream) -> None:
    """Not before it is sure that nobody holds it."""
    await shop.fetch_branch("main")
    [ref] = (shop.mirror.folder / "refs" / "mirror").iterdir()
    lock, other = ref.with_name(f"{ref.name}.lock"), shop.mirror.folder / "refs" / "deltaci" / "x.lock"
    other.parent.mkdir()
    lock.touch()
    other.touch()
    moved = upstream.push({"b": "1"})

    with pytest.raises(GitFailed, match="File exists"):
        await shop.fetch_branch("main")
    with pytest.raises(GitFailed, match="File exists"):
        await shop.set_ref("x", upstream.first)
    long_ago = time.time() - mirrors.STALE_LOCK_SECONDS - 1
    os.utime(lock, (long_ago, long_ago))
    assert await shop.fetch_branch("main") == moved
    assert other.exists()
    os.utime(other, (long_ago, long_ago))
    await shop.set_ref("x", moved)


@on_loop
async def test_a_push_moves_a_branch_only_from_where_it_is_expected(shop: CommitBuilder, upstream: Upstream) -> None:
    """A repeat is no error; a branch that is elsewhere stays there, and is said to be."""
    base = await shop.fetch_branch("main")
    tree = await shop.tree_of(base)
    made = [await shop.commit(tree, (base,), f"number {n}", BY) for n in range(2)]

    await shop.push("main", made[0], base)
    await shop.push("main", made[0], base)
    with pytest.raises(BranchMoved) as caught:
        await shop.push("main", made[1], base)

    assert caught.value.tip == made[0]
    assert git(upstream.bare, "rev-parse", "main") == made[0]
    assert await shop.branch_contains("main", made[0])
    assert not await shop.branch_contains("main", made[1])
    assert not await shop.branch_contains("main", "1" * 40)


@on_loop
async def test_a_push_that_is_refused_is_a_failure_and_no_move(shop: CommitBuilder, upstream: Upstream) -> None:
    """The branch is where it was; another time it may go well."""
    base = await shop.fetch_branch("main")
    made = await shop.commit(await shop.tree_of(base), (base,), "m", BY)
    hook = upstream.bare / "hooks" / "pre-receive"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\necho closed >&2\nexit 1\n")
    hook.chmod(0o755)

    with pytest.raises(GitFailed, match="closed") as caught:
        await shop.push("main", made, base)

    assert caught.value.is_transient
