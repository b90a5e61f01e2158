"""Real jobs in real worktrees: how a job finds its tree, what it hands over, and what the next one finds."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from deltaci.core import run
from deltaci.core.cascade import NewRecord
from deltaci.core.decide import Plan
from deltaci.core.instants import SECOND
from deltaci.core.job import JobSpec
from deltaci.core.run import Origin, Run
from deltaci.git.commit_builder import Signature
from deltaci.protocol.messages import Limits, Worktree
from deltaci.runner.sandbox.container import ContainerCell
from deltaci.runner.sandbox.zygote import Zygote
from deltaci.runner.workspace.worktrees import bundle_commits, worktree_pool
from deltaci.storage.blobs import keys
from tests.contract.backends import Backend, on_loop
from tests.controllers.site import PROJECT, RepositorySite
from tests.runner.workspace.worktrees.runners import find_attempt, log_of, report_of, worker
from tests.runner.workspace.worktrees.test_commit_bundles import bundle
from tests.runner.workspace.worktrees.workstream_fixture import BRANCH, WorkstreamFixture, worktree_spec
from tests.server.rest.site import TENANT
from tests.support.upstream import Upstream, git

Open = Callable[[], AbstractAsyncContextManager[RepositorySite]]


@pytest.fixture
def upstream(tmp_path: Path) -> Upstream:
    """Return a repository that ignores build outputs."""
    return Upstream(tmp_path / "upstream", {"a": "1\n", "src/b": "1\n", ".gitignore": "build/\n*.o\n"})


@pytest.mark.parametrize("executor", ["sandbox", "process"])
@on_loop
async def test_a_task_continues_where_the_previous_one_stopped(
    site: Open, upstream: Upstream, tmp_path: Path, executor: str
) -> None:
    """Changes are committed by the named author, ignored files stay, and no change uploads nothing."""
    async with site() as here, worker(here, tmp_path, executor=executor) as one:
        await here.project(upstream.url)
        stand = WorkstreamFixture(here, upstream)
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
        first = await report_of(here, "ws1/first.1")
        stream = await stand.join("first")
        assert stream.tip == first["head"] != upstream.first
        assert first["place"] == str(one.streams / "ws1" / "tree")
        mirror = (await stand.builder()).mirror
        about = git(mirror.folder, "log", "-1", "--format=%an %ae %cn %s|%P", stream.tip)
        assert about == f"Ada ada@example.org Ada first: what it left|{upstream.first}"
        assert await mirror.changed_paths(upstream.first, stream.tip) == frozenset({"a", "new", "src/b"})
        assert f"## {BRANCH}" in log_of(here, "ws1/first.1")

        assert await one.work() == "succeeded", log_of(here, "ws1/second.1")
        stream = await stand.join("second")
        titles = git(mirror.folder, "log", "--format=%s", f"{upstream.first}..{stream.tip}").splitlines()
        assert titles == ["second: what it left", "mine", "first: what it left"]
        assert await mirror.read_file(stream.tip, "a") == b"3\n"

        assert await one.work() == "succeeded", log_of(here, "ws1/third.1")
        third = await report_of(here, "ws1/third.1")
        assert third["head"] == stream.tip
        assert [artifact["type"] for artifact in third["artifacts"]] == ["log"]
        assert (await stand.join("third")).tip == stream.tip
        assert (one.streams / "ws1" / "tree" / "build" / "more").exists()
        assert sorted(path.name for path in (one.streams / "ws1").iterdir()) == [
            *("about.json", "repository.git", "tree", "tree.git"),
        ]
        assert [path.name for path in one.folder.iterdir() if path.name.startswith("job-")] == []


@on_loop
async def test_the_changes_of_a_failed_task_are_discarded(site: Open, upstream: Upstream, tmp_path: Path) -> None:
    """Nothing is committed; the tree stays for inspection, and the next task begins at the tip again."""
    async with site() as here, worker(here, tmp_path) as one:
        await here.project(upstream.url)
        stand = WorkstreamFixture(here, upstream)
        bad = (
            "echo bad > a; echo bad > new; mkdir -p build d/e; echo warm > build/out; echo x > d/e/f; ln -s /etc link",
            "git add -A; git commit -qm bad; echo hide > d/.gitignore; echo more > d/hide; rm -r src; exit 3",
        )
        await stand.start(stand.task("one", *bad), stand.task("two", "true", after=("one",)))

        assert await one.work() == "failed"
        report = await report_of(here, "ws1/one.1")
        assert "head" not in report
        assert report["place"] == str(one.streams / "ws1" / "tree")
        assert (one.streams / "ws1" / "tree" / "new").read_text() == "bad\n"
        git(one.streams / "ws1" / "tree", "log", "-1", "--format=%s")  # For people.

        worktree_spec = one.streams / "ws1" / "tree"
        assert await one.work() == "succeeded", log_of(here, "ws1/two.1")
        assert sorted(path.name for path in worktree_spec.iterdir()) == [
            *(".deltaci.yml", ".git", ".gitignore", "README", "a", "build", "src"),
        ]
        assert (worktree_spec / "a").read_text() == "1\n"
        assert (worktree_spec / "src" / "b").read_text() == "1\n"
        assert (worktree_spec / "build" / "out").read_text() == "warm\n"


@on_loop
async def test_a_sandboxed_job_sees_only_its_own_stream(site: Open, upstream: Upstream, tmp_path: Path) -> None:
    """No other streams or mirrors, and the runner's repository is read-only."""
    async with site() as here, worker(here, tmp_path) as one:
        await here.project(upstream.url)
        other = WorkstreamFixture(here, upstream, "ws2")
        await other.start(other.task("one", "echo secret > a"))
        assert await one.work() == "succeeded"
        stand = WorkstreamFixture(here, upstream)
        look = [
            f'cd {one.streams}; test "$(echo *)" = ws1',
            "test \"$(echo ws1/*)\" = 'ws1/repository.git ws1/tree ws1/tree.git'",
            f"test ! -e {one.folder}/mirrors",
            "! touch ws1/repository.git/config 2>/dev/null && ! rm -rf ws1/repository.git/objects 2>/dev/null",
            "cat ws1/repository.git/config > ws1/tree/copied && ! mv ws1/tree ws1/else 2>/dev/null",
        ]
        await stand.start(stand.task("one", " && ".join(look)), stand.task("own", "ls -A ..", own=True, after=("one",)))

        assert await one.work() == "succeeded", log_of(here, "ws1/one.1")
        assert await one.work() == "succeeded", log_of(here, "ws1/own.1")
        assert "\nown-own\nown-own.git\nrepository.git\n" in log_of(here, "ws1/own.1")


HOSTILE = """
dir=$(git rev-parse --git-dir); mkdir -p $dir/hooks
for name in pre-commit commit-msg post-commit reference-transaction; do
  printf '#!/bin/sh\\ntouch {proof}; exit 1' > $dir/hooks/$name; chmod +x $dir/hooks/$name
done
git config core.hooksPath $dir/hooks; git config commit.gpgSign true; git config gpg.program /bin/false
git config core.fsmonitor 'touch {proof}; false'; git config alias.commit '!touch {proof}'
echo 2 > a
"""


@pytest.mark.parametrize("executor", ["sandbox", "process"])
@on_loop
async def test_hooks_and_configuration_do_not_affect_the_commit(
    site: Open, upstream: Upstream, tmp_path: Path, executor: str
) -> None:
    """They are disabled when the changes are committed, and the next job does not have them."""
    proof = tmp_path / "proof"
    async with site() as here, worker(here, tmp_path, executor=executor) as one:
        await here.project(upstream.url)
        stand = WorkstreamFixture(here, upstream)
        clean = 'test -z "$(git config core.hooksPath)$(git config core.fsmonitor)" && test ! -d .git/hooks'
        await stand.start(stand.task("one", HOSTILE.format(proof=proof)), stand.task("two", clean, needs=("one",)))

        assert await one.work() == "succeeded", log_of(here, "ws1/one.1")
        assert (await stand.join("one")).tip != upstream.first
        assert await one.work() == "succeeded", log_of(here, "ws1/two.1")
        assert not proof.exists()


@pytest.mark.parametrize(
    ("steps", "why"),
    [
        ("git checkout -q --orphan x && git commit -qm alone", "does not descend from"),
        ("git commit -qm x --allow-empty; git checkout -q -b y HEAD~1; echo 1 > c; git add c; git commit -qm y; "
         "git checkout -q - ; echo 2 > c; git add c; git commit -qm x; git merge -q y || true", "conflicts"),
        ("head -c 20000 /dev/urandom > large", "at most 9000; commit less"),
        ("rm -rf $(git rev-parse --git-dir)/*", "cannot be committed"),
        ("echo 'gitdir: /nowhere' > .git", "cannot be committed"),
    ],
)  # fmt: skip
@on_loop
async def test_changes_that_cannot_be_committed_fail_the_job(
    site: Open, upstream: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: str, why: str
) -> None:
    """The job's own fault is explained, and nothing is uploaded."""
    monkeypatch.setattr(bundle_commits, "MAX_TREE_BYTES", 9000)
    async with site() as here, worker(here, tmp_path) as one:
        await here.project(upstream.url)
        stand = WorkstreamFixture(here, upstream)
        await stand.start(stand.task("one", steps))

        outcome = await one.work()

        report = await report_of(here, "ws1/one.1")
        assert outcome == "failed", log_of(here, "ws1/one.1")
        assert why in report["summary"], report
        assert "head" not in report
        assert [artifact["type"] for artifact in report["artifacts"]] == ["log"]


@on_loop
async def test_a_runner_without_a_lease_cannot_upload_its_commits(
    site: Open, backend: Backend, upstream: Upstream, tmp_path: Path
) -> None:
    """Another runner has the task by then."""
    async with site() as here, worker(here, tmp_path, executor="process") as one:
        await here.project(upstream.url)
        stand = WorkstreamFixture(here, upstream)
        await stand.start(stand.task("one", "touch ../here; until test -e ../go; do sleep 0.05; done; echo 2 > a"))
        working = asyncio.create_task(one.work())
        await _wait_for_file(one.streams / "ws1" / "here")

        backend.shift += 3600 * SECOND
        (one.streams / "ws1" / "go").touch()

        assert await working in ("lost", "stale")
        assert not keys.artifacts(stand.blobs, TENANT, "ws1/one.1", 1)
        assert not (await find_attempt(here, "ws1/one.1")).report


async def _wait_for_file(path: Path) -> None:
    """Wait until the job has created the file."""
    async with asyncio.timeout(30):
        await asyncio.to_thread(_wait, path)


def _wait(path: Path) -> None:
    subprocess.run(["sh", "-c", 'until test -e "$1"; do sleep 0.05; done', "sh", str(path)], check=True, timeout=30)


@on_loop
async def test_two_private_worktrees_side_by_side(site: Open, upstream: Upstream, tmp_path: Path) -> None:
    """Each has its files and its branch; the commits of both are integrated."""
    meet = "touch ../{0}.here; until test -e ../{1}.here; do sleep 0.05; done; echo {0} > {0}; test ! -e {1}"
    async with site() as here, worker(here, tmp_path, executor="process") as one:
        await here.project(upstream.url)
        stand = WorkstreamFixture(here, upstream)
        await stand.start(
            stand.task("left", meet.format("left", "right"), own=True),
            stand.task("right", meet.format("right", "left"), own=True),
        )

        assert list(await asyncio.gather(one.work(), one.work())) == ["succeeded", "succeeded"]
        await stand.join("left")
        stream = await stand.join("right")

        mirror = (await stand.builder()).mirror
        assert await mirror.changed_paths(upstream.first, stream.tip) == frozenset({"left", "right"})
        assert {path.name for path in (one.streams / "ws1").iterdir() if path.name.startswith("own")} == {
            *("own-left", "own-left.git", "own-right", "own-right.git"),
        }


@on_loop
async def test_a_stream_can_move_between_runners(site: Open, upstream: Upstream, tmp_path: Path) -> None:
    """All commits are on the server; build outputs stay on each runner."""
    async with site() as here, worker(here, tmp_path) as one, worker(here, tmp_path, "r2") as two:
        await here.project(upstream.url)
        stand, other = WorkstreamFixture(here, upstream), WorkstreamFixture(here, upstream, "ws2")
        await stand.start(
            stand.task("a", "mkdir build; echo 1 > build/out; echo a > a"),
            stand.task("b", "test ! -e build; echo b >> a; rm src/b", needs=("a",)),
            stand.task("c", "test -e build/out; test ! -e src; cat a; echo c >> a", needs=("b",)),
        )
        assert await one.work() == "succeeded"
        await stand.join("a")
        assert await two.work() == "succeeded", log_of(here, "ws1/b.1")
        await stand.join("b")
        reserved = await one.lease()
        await other.start(other.task("x", "echo x > a"))
        assert await one.work() == "succeeded"
        assert await one.job(reserved).run(lambda _: None) == "succeeded", log_of(here, "ws1/c.1")
        stream = await stand.join("c")

        assert await (await stand.builder()).mirror.read_file(stream.tip, "a") == b"a\nb\nc\n"


@pytest.mark.parametrize("damage", ["stream", "link", "packs", "repository", "index", "about", "git"])
@on_loop
async def test_damaged_trees_and_repositories_are_replaced(
    site: Open, upstream: Upstream, tmp_path: Path, damage: str
) -> None:
    """A tree that is a link, a repository without objects, an invalid index: all are only copies."""
    outside = tmp_path / "outside"
    outside.mkdir()
    async with site() as here, worker(here, tmp_path) as one:
        await here.project(upstream.url)
        stand = WorkstreamFixture(here, upstream)
        await stand.start(stand.task("one", "echo 2 > a"), stand.task("two", "test $(cat a) = 2", needs=("one",)))
        assert await one.work() == "succeeded"
        await stand.join("one")
        stream = one.streams / "ws1"
        if damage == "stream":
            shutil.rmtree(stream)
            stream.symlink_to(outside)
        elif damage == "link":
            shutil.rmtree(stream / "tree")
            (stream / "tree").symlink_to(outside)
        elif damage == "packs":
            for path in (stream / "repository.git" / "objects").rglob("*"):
                if path.is_file():
                    path.unlink()
        elif damage == "repository":
            shutil.rmtree(stream / "repository.git")
            (stream / "repository.git").symlink_to(outside)
        elif damage == "index":
            (stream / "repository.git" / "trees" / "tree.index").write_bytes(b"DIRC garbage")
        elif damage == "about":
            (stream / "about.json").write_text("{")
            (stream / ".repository.git-left").mkdir()
        else:
            shutil.rmtree(stream / "tree.git")
            (stream / "tree.git").symlink_to(outside)

        assert await one.work() == "succeeded", log_of(here, "ws1/two.1")
        assert list(outside.iterdir()) == []
        assert sorted(path.name for path in stream.iterdir() if path.is_dir() and not path.is_symlink()) == [
            *("repository.git", "tree", "tree.git"),
        ]


@on_loop
async def test_merge_tests_reuse_worktrees(site: Open, upstream: Upstream, tmp_path: Path) -> None:
    """Exactly the named commit, and nothing is uploaded; two jobs at once have a tree each."""
    async with site() as here, worker(here, tmp_path, executor="process") as one:
        await here.project(upstream.url)
        builder = await WorkstreamFixture(here, upstream).builder()
        await builder.mirror.ensure_commit(upstream.first)
        heads = [upstream.commit({"a": f"{number}\n"}) for number in (2, 3)]
        await builder.import_bundle(bundle(upstream, heads[1], upstream.first), heads[1], upstream.first)
        do = here.service.engine.do
        await do(NewRecord(id="m", record=Run(id="m", run_id="m", tenant=TENANT, origin=Origin(project=PROJECT))))
        await do(run.BeginPlanning(id="m"))
        meet = "touch ../{0}; until test -e ../{1}; do sleep 0.05; done; test $(cat a) = {0}; echo x > a; echo x > new"
        steps = (meet.format(2, 3), meet.format(3, 2), "test $(cat a) = 3; test ! -e new; mkdir build")
        jobs = [
            JobSpec(
                name=f"j{number}",
                after=("j0", "j1") if number == 2 else (),
                work={"steps": [script], "tree": worktree_spec("main line", upstream, commit=commit, keeps=False)},
            )
            for number, (script, commit) in enumerate(zip(steps, (*heads, heads[1]), strict=True))
        ]
        await do(Plan(id="m", jobs=tuple(jobs), plan_hash="hash"))

        assert list(await asyncio.gather(one.work(), one.work())) == ["succeeded", "succeeded"]
        assert await one.work() == "succeeded", log_of(here, "m/j2.1")

        report = await report_of(here, "m/j2.1")
        assert ("head" in report, "place" in report, len(report["artifacts"])) == (False, False, 1)
        [stream] = (path for path in one.streams.iterdir() if not path.name.startswith("."))
        names = {path.name for path in stream.iterdir() if path.name.startswith("test-")}
        assert names == {"test-1", "test-1.git", "test-2", "test-2.git"}
        assert await one.cell_pool.worktrees.remove_unneeded(one.finished_streams) == []
        os.utime(stream, (0, 0))
        assert await one.cell_pool.worktrees.remove_unneeded(one.finished_streams) == [stream.name]


@on_loop
async def test_a_candidate_may_merge_branches_of_older_bases(site: Open, upstream: Upstream, tmp_path: Path) -> None:
    """The base has moved on, so more of its history is needed than requested."""
    async with site() as here, worker(here, tmp_path) as one:
        await here.project(upstream.url)
        builder = await WorkstreamFixture(here, upstream).builder()
        base = upstream.push({"moved": "1\n"})
        upstream.switch("topic", upstream.first)
        head = upstream.commit({"a": "2\n"})
        await builder.mirror.ensure_commit(base, "refs/heads/main")
        await builder.import_bundle(bundle(upstream, head, upstream.first), head, upstream.first)
        candidate = await builder.merge(base, [head], "both", Signature("Ada", "ada@example.org", 0))
        source = {"url": upstream.url, "commit": base}
        work: dict[str, Any] = {"steps": ["test -e moved && test $(cat a) = 2"]}
        work["tree"] = {**worktree_spec("line", upstream, commit=candidate, keeps=False), "source": source}
        do = here.service.engine.do
        await do(NewRecord(id="m", record=Run(id="m", run_id="m", tenant=TENANT, origin=Origin(project=PROJECT))))
        await do(run.BeginPlanning(id="m"))
        await do(Plan(id="m", jobs=(JobSpec(name="one", work=work),), plan_hash="hash"))

        assert await one.work() == "succeeded", log_of(here, "m/one.1")


@on_loop
async def test_finished_streams_are_removed_and_failed_ones_stay(
    site: Open, upstream: Upstream, tmp_path: Path
) -> None:
    """Never while a job uses one. Other files in the folder are left alone."""
    async with site() as here, worker(here, tmp_path, executor="process") as one:
        await here.project(upstream.url)
        stands = {id: WorkstreamFixture(here, upstream, id) for id in ("good", "bad", "busy")}
        deep = "mkdir build; cd build; mkdir -p $(printf 'd/%.0s' $(seq 1500)); chmod 0 d"
        for id, steps in (("good", deep), ("bad", "exit 1")):
            await stands[id].start(stands[id].task("one", steps))
            assert await one.work() == ("failed" if id == "bad" else "succeeded"), log_of(here, f"{id}/one.1")
        await stands["busy"].start(stands["busy"].task("one", "true"))
        await one.work()
        (one.streams / "a file").write_text("x")
        (one.streams / "link").symlink_to(tmp_path)
        (one.streams / "unknown").mkdir()
        (one.streams / f"{worktree_pool.TRASH_PREFIX}left").mkdir()
        reserved = one.cell_pool.worktrees.reserve(_worktree_of(stands["busy"]))

        try:
            assert await one.cell_pool.worktrees.remove_unneeded(one.finished_streams) == ["good"]
        finally:
            worktree_pool.remove_tree(one.streams, "good")  # Not for whoever clears up after tests.
        assert {path.name for path in one.streams.iterdir()} == {"a file", "link", "unknown", "bad", "busy"}
        one.cell_pool.worktrees.unreserve(reserved)
        assert await one.cell_pool.worktrees.remove_unneeded(one.finished_streams) == ["busy"]
        assert (one.streams / "bad" / "tree" / "a").exists()


def _worktree_of(stand: WorkstreamFixture) -> Worktree:
    return msgspec.convert(stand.task("x").work["tree"], Worktree)


@on_loop
async def test_a_runner_starts_even_if_it_cannot_create_worktrees(
    site: Open, upstream: Upstream, tmp_path: Path
) -> None:
    """With a file in place of the folder, only jobs with worktrees fail, and they say why."""
    async with site() as here, worker(here, tmp_path) as one:
        await here.project(upstream.url)
        one.streams.write_text("x")
        stand = WorkstreamFixture(here, upstream)
        await stand.start(stand.task("one", "true"))

        assert await one.cell_pool.worktrees.remove_unneeded(one.finished_streams) == []
        assert await one.work() == "failed"

        assert "is not a folder" in (await report_of(here, "ws1/one.1"))["summary"]
        assert one.streams.read_text() == "x"


def test_a_container_mounts_the_worktree(tmp_path: Path) -> None:
    """At the same paths; the runner's repository is read-only."""
    slot = worktree_pool.WorktreeSlot(tmp_path / "s", "tree", worktree_pool.StreamRecord("s", False))
    mounts = slot.bind_mounts()
    cell = ContainerCell(
        "docker", Zygote(), workspace=tmp_path, limits=Limits(), has_network=False, image="x", bind_mounts=mounts
    )

    volumes = [word for word in cell.start_command() if str(slot.stream) in word]

    assert volumes == [
        f"{slot.path}:{slot.path}",
        f"{slot.git_dir}:{slot.git_dir}",
        f"{slot.repository}:{slot.repository}:ro",
    ]
