"""Real jobs in real trees: what they begin with, what they leave, and what the next one finds."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from tests.contract.places import on_loop
from tests.repositories.site import RepositorySite
from tests.repositories.upstream import Upstream, git
from tests.trees.crew import log_of, told, worker
from tests.trees.stand import BRANCH, Stand

Open = Callable[[], AbstractAsyncContextManager[RepositorySite]]


@pytest.fixture
def upstream(tmp_path: Path) -> Upstream:
    """A repository that ignores what is built."""
    return Upstream(tmp_path / "upstream", {"a": "1\n", "src/b": "1\n", ".gitignore": "build/\n*.o\n"})


@pytest.mark.parametrize("executor", ["sandbox", "process"])
@on_loop
async def test_tasks_go_on_where_the_one_before_stopped(
    site: Open, upstream: Upstream, tmp_path: Path, executor: str
) -> None:
    """What is not committed is, by the author that was named; what is ignored stays; no change sends nothing."""
    async with site() as here, worker(here, tmp_path, executor=executor) as one:
        await here.project(upstream.url)
        stand = Stand(here, upstream)
        await stand.start(
            stand.task("first", "git status -sb; echo 2 > a; mkdir build; echo x > build/out; echo n > new; rm src/b"),
            stand.task(
                "second",
                "test ! -e src/b && test -e build/out && test $(cat a) = 2",
                "echo own > c && git add c && git commit -qm mine && echo 3 > a",
                needs=("first",),
            ),
            stand.task("third", 'test -z "$(git status --porcelain)"; echo y > build/more', needs=("second",)),
        )

        assert await one.work() == "succeeded", log_of(here, "ws1/first.1")
        first = await told(here, "ws1/first.1")
        stream = await stand.join("first")
        assert stream.tip == first["head"] != upstream.first
        assert first["place"] == str(one.streams / "ws1" / "tree")
        mirror = (await stand.workshop()).mirror
        about = git(mirror.folder, "log", "-1", "--format=%an %ae %cn %s|%P", stream.tip)
        assert about == f"Ada ada@example.org Ada first: what it left|{upstream.first}"
        assert await mirror.changed(upstream.first, stream.tip) == frozenset({"a", "new", "src/b"})
        assert f"## {BRANCH}" in log_of(here, "ws1/first.1")

        assert await one.work() == "succeeded", log_of(here, "ws1/second.1")
        stream = await stand.join("second")
        titles = git(mirror.folder, "log", "--format=%s", f"{upstream.first}..{stream.tip}").splitlines()
        assert titles == ["second: what it left", "mine", "first: what it left"]
        assert await mirror.read(stream.tip, "a") == b"3\n"

        assert await one.work() == "succeeded", log_of(here, "ws1/third.1")
        third = await told(here, "ws1/third.1")
        assert third["head"] == stream.tip
        assert [each["type"] for each in third["artifacts"]] == ["log"]
        assert (await stand.join("third")).tip == stream.tip
        assert (one.streams / "ws1" / "tree" / "build" / "more").exists()
        assert sorted(each.name for each in (one.streams / "ws1").iterdir()) == [
            *("about.json", "repository.git", "tree", "tree.git"),
        ]
        assert [each.name for each in one.folder.iterdir() if each.name.startswith("job-")] == []


@on_loop
async def test_nothing_of_a_failure_remains(site: Open, upstream: Upstream, tmp_path: Path) -> None:
    """Nothing is committed or sent; the tree stays as it is for people, and the next task begins at the tip again."""
    async with site() as here, worker(here, tmp_path) as one:
        await here.project(upstream.url)
        stand = Stand(here, upstream)
        bad = (
            "echo bad > a; echo bad > new; mkdir -p build d/e; echo warm > build/out; echo x > d/e/f; ln -s /etc link",
            "git add -A; git commit -qm bad; echo hide > d/.gitignore; echo more > d/hide; rm -r src; exit 3",
        )
        await stand.start(stand.task("one", *bad), stand.task("two", "true", after=("one",)))

        assert await one.work() == "failed"
        report = await told(here, "ws1/one.1")
        assert "head" not in report
        assert report["place"] == str(one.streams / "ws1" / "tree")
        assert (one.streams / "ws1" / "tree" / "new").read_text() == "bad\n"
        git(one.streams / "ws1" / "tree", "log", "-1", "--format=%s")  # For people.

        tree = one.streams / "ws1" / "tree"
        assert await one.work() == "succeeded", log_of(here, "ws1/two.1")
        assert sorted(each.name for each in tree.iterdir()) == [
            *(".deltaci.yml", ".git", ".gitignore", "README", "a", "build", "src"),
        ]
        assert (tree / "a").read_text() == "1\n"
        assert (tree / "src" / "b").read_text() == "1\n"
        assert (tree / "build" / "out").read_text() == "warm\n"
