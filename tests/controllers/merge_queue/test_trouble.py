"""What goes wrong around merges: nobody who is good is put out, and the base only ever gets what was tested."""

from __future__ import annotations

import asyncio
import shutil
from contextlib import AsyncExitStack

import pytest

from deltaci.controllers.merge_queue import controller as queues
from deltaci.controllers.merge_queue.records import MergeOutcome
from deltaci.core import run
from deltaci.core.errors import Refused
from deltaci.core.failures import Facts
from deltaci.core.listing import ALL_TENANTS
from deltaci.git.command import GitFailed
from deltaci.git.commit_builder import CommitBuilder
from deltaci.server.follower import Follower
from tests.contract.backends import Backend, on_loop
from tests.controllers.merge_queue.conftest import Opened
from tests.controllers.merge_queue.site import TENANT, Site, Streams
from tests.support.upstream import Upstream, git

INFRA = Facts(error_code="RUNNER_STARTUP", message="no room")


def pushed(upstream: Upstream, files: dict[str, str | None]) -> str:
    """Somebody pushes to the base."""
    git(upstream.tree, "fetch", "-q", "origin", "main")
    upstream.switch("main", "FETCH_HEAD")
    return upstream.push(files, "from the side")


async def later(here: Site, backend: Backend, seconds: float) -> None:
    """Let time pass, and what is due happen."""
    backend.after(seconds)
    while await here.engine.tick():
        pass


@on_loop
async def test_a_broken_runner_puts_nobody_out(site: Opened, streams: Streams, backend: Backend) -> None:
    """The test is made again, by a run of its own, for as long as it takes; people see why."""
    async with site() as here:
        await here.enter(streams.made("w", {"a": "1\n"}))
        here.tester.troubles = [INFRA] * 7
        runs = set[str]()
        for _ in range(12):
            await here.settle()
            if here.told:
                break
            [batch] = (await here.view()).batches
            runs.add(batch.run_id)
            assert batch.tries < 3
            assert batch.tries == 0 or "RUNNER_STARTUP: no room" in batch.problem
            await later(here, backend, 1000)

        assert here.merged() == {"w"}
        assert len(runs) == 3
        assert here.files() == {"a"}


@on_loop
async def test_a_test_run_that_somebody_cancels_is_made_again(site: Opened, streams: Streams, backend: Backend) -> None:
    """That says nothing about what it tested."""
    async with site() as here:
        await here.enter(streams.made("w", {"a": "1\n"}))
        await here.calm()
        [batch] = (await here.view()).batches
        await here.engine.do(run.Cancel(id=batch.run_id, actor="user:eve"))
        await here.calm()
        [again] = (await here.view()).batches
        assert again.run_id != batch.run_id
        await later(here, backend, 2)
        await here.settle()

        assert here.merged() == {"w"}


@pytest.mark.parametrize("facts", [Facts(error_code="TIMED_OUT"), Facts(failed_tests=("t",), flaky_tests=("t",))])
@on_loop
async def test_what_fails_at_every_attempt_is_bad(
    site: Opened, streams: Streams, backend: Backend, facts: Facts
) -> None:
    """One that never ends in time, or whose flaky tests never pass, would otherwise be tested for ever."""
    async with site() as here:
        await here.enter(streams.made("w", {"a": "1\n"}))
        here.tester.troubles = [facts] * 3
        for _ in range(3):
            await here.settle()
            await later(here, backend, 1000)
        await here.settle()

        assert not here.told["w"].is_merged
        assert here.tip == streams.upstream.first


@on_loop
async def test_a_base_that_moves_while_it_is_tested_is_tested_again(site: Opened, streams: Streams) -> None:
    """What was tested on the old one lands nowhere; it lands on the new one, tested there."""
    async with site() as here:
        await here.enter(streams.made("w", {"a": "1\n"}))
        await here.calm()
        moved = pushed(streams.upstream, {"side": "1\n"})
        await here.settle()

        assert here.files() == {"a", "side"}
        assert len(here.tester.tested) == 2
        assert here.told["w"].commit == here.tip
        assert here.tip in here.tester.good
        assert git(streams.upstream.bare, "rev-parse", "main^1") == moved


@on_loop
async def test_a_test_that_failed_on_an_old_base_puts_nobody_out(site: Opened, streams: Streams) -> None:
    """The base was bad, and was mended while its test ran."""
    async with site() as here:
        pushed(streams.upstream, {"side": "BAD\n"})
        await here.enter(streams.made("w", {"a": "1\n"}))
        await here.calm()
        pushed(streams.upstream, {"side": "good\n"})
        await here.settle()

        assert here.merged() == {"w"}
        assert here.files() == {"a", "side"}


@on_loop
async def test_somebody_pushes_again_and_again(site: Opened, streams: Streams) -> None:
    """Between the last look and the push, too: the repository itself says no."""

    class Racing:
        """Somebody is faster, three times."""

        left = 3

        async def push(self, builder: CommitBuilder, branch: str, commit: str, expected: str) -> None:
            if self.left:
                self.left -= 1
                await asyncio.to_thread(pushed, streams.upstream, {f"side{self.left}": "1\n"})
            await builder.push(branch, commit, expected)

    async with site(push=Racing().push) as here:
        await here.enter(streams.made("w", {"a": "1\n"}), streams.made("v", {"b": "1\n"}))
        await here.settle()

        assert here.merged() == {"w", "v"}
        assert here.files() == {"a", "b", "side0", "side1", "side2"}
        merges = git(streams.upstream.bare, "rev-list", "--merges", "main").split()
        assert set(merges) <= here.tester.good


@on_loop
async def test_a_base_that_is_taken_back_just_before_the_push_is_not_moved(site: Opened, streams: Streams) -> None:
    """A fast-forward from the older commit would bring back what was removed; it is tested anew on that commit."""
    entry = streams.made("w", {"a": "1\n"})
    removed = pushed(streams.upstream, {"removed": "1\n"})
    is_first = True

    async def push(builder: CommitBuilder, branch: str, commit: str, expected: str) -> None:
        nonlocal is_first
        if is_first:
            is_first = False
            git(streams.upstream.bare, "update-ref", "refs/heads/main", streams.upstream.first, removed)
        await builder.push(branch, commit, expected)

    async with site(push=push) as here:
        await here.enter(entry)
        await here.settle()

        assert here.merged() == {"w"}
        assert here.files() == {"a"}
        assert here.tip in here.tester.good


@on_loop
async def test_who_leaves_while_it_is_tested_is_not_merged(site: Opened, streams: Streams) -> None:
    """The others are tested again without it; nobody is told of it."""
    async with site(starts=False) as here:
        await here.enter(*(streams.made(name, {name: "1\n"}) for name in ("a", "b", "c")))
        here.queue.start()
        await here.calm()
        [batch] = (await here.view()).batches
        assert await here.queue.leave(TENANT, "shop", "main", "b")
        await here.calm()
        cancelled = await here.store.find(batch.run_id)
        assert isinstance(cancelled, run.Run)
        assert cancelled.cancel_reason
        await here.settle()

        assert here.files() == {"a", "c"}
        assert set(here.told) == {"a", "c"}


@on_loop
async def test_who_is_not_wanted_any_more_when_it_would_land_does_not(site: Opened, streams: Streams) -> None:
    """Its run was cancelled meanwhile, and nobody told the queue."""
    async with site(starts=False) as here:
        await here.enter(*(streams.made(name, {name: "1\n"}) for name in ("a", "b")))
        here.queue.start()
        await here.calm()
        here.unwanted = {"a"}
        await here.settle()

        assert here.files() == {"b"}
        assert set(here.told) == {"b"}


@on_loop
async def test_who_does_not_hear_is_told_again(site: Opened, streams: Streams, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until it does; only then the queue forgets it. Meanwhile others are merged."""
    monkeypatch.setattr(queues, "RETRY_SECONDS", 0.01)
    heard: list[str] = []
    deaf = [True]

    async def hear(outcome: MergeOutcome) -> None:
        heard.append(outcome.id)
        if deaf[0]:
            raise RuntimeError("not now")

    async with site() as here:
        here.queue.tell(hear)
        await here.enter(streams.made("w", {"a": "1\n"}))
        await here.settle()
        await here.enter(streams.made("v", {"b": "1\n"}))
        await here.settle()
        assert set(heard) == {"w", "v"}
        assert len(await here.store.list_documents(queues.KIND, ALL_TENANTS)) == 1
        assert not await here.queue.leave(TENANT, "shop", "main", "w")  # It is merged, only not told yet.
        deaf[0] = False
        await here.calm()

        assert heard.count("w") >= 2
        assert await here.store.list_documents(queues.KIND, ALL_TENANTS) == []


@on_loop
async def test_one_whose_commits_cannot_be_had_does_not_hold_up_the_others(
    site: Opened, streams: Streams, backend: Backend
) -> None:
    """It waits, people see why, and it is merged when they are there."""
    async with site() as here:
        entry = streams.made("w", {"a": "1\n"})
        away = streams.file("w").rename(streams.folder / "away")
        await here.enter(entry, streams.made("v", {"b": "1\n"}))
        await here.settle()
        assert here.merged() == {"v"}
        [waiting] = (await here.view()).entries
        assert (waiting.id, waiting.tries > 0, "cannot fetch" in waiting.problem) == ("w", True, True)
        away.rename(streams.file("w"))
        await later(here, backend, 1000)
        await here.settle()

        assert here.files() == {"a", "b"}


@on_loop
async def test_a_repository_that_says_no_is_asked_again(site: Opened, streams: Streams, backend: Backend) -> None:
    """A protected branch is nobody's fault who waits: it is shown, and tried again later."""
    hook = streams.upstream.bare / "hooks" / "pre-receive"
    async with site() as here:
        await here.enter(streams.made("w", {"a": "1\n"}))
        hook.parent.mkdir(exist_ok=True)
        hook.write_text("#!/bin/sh\necho no pushes today >&2\nexit 1\n")
        hook.chmod(0o755)
        await here.settle()
        view = await here.view()
        assert "no pushes today" in view.problem
        assert (view.tries >= 1, view.batches[0].doing) == (True, "landing")
        assert not await here.queue.leave(TENANT, "shop", "main", "w")
        hook.unlink()
        await later(here, backend, 2)
        await here.settle()

        assert here.merged() == {"w"}
        assert len(here.tester.tested) == 1


@on_loop
async def test_a_repository_that_is_away_is_waited_for(site: Opened, streams: Streams, backend: Backend) -> None:
    """While it cannot be reached nobody is put out."""
    bare = streams.upstream.bare
    async with site() as here:
        entry = streams.made("w", {"a": "1\n"})
        away = bare.rename(bare.with_suffix(".away"))
        await here.enter(entry)
        await here.settle()
        assert "git" in (await here.view()).problem
        away.rename(bare)
        await later(here, backend, 2)
        await here.settle()

        assert here.merged() == {"w"}


@on_loop
async def test_a_project_that_is_no_more_merges_nobody(site: Opened, streams: Streams) -> None:
    """Everybody is told, and the line is forgotten."""
    async with site(starts=False) as here:
        await here.enter(streams.made("w", {"a": "1\n"}))
        project = await here.projects.find(TENANT, "shop")
        assert project is not None
        await here.projects.drop(project, actor="user:ada")
        here.queue.start()
        await here.calm()

        assert "'shop' no longer exists" in here.told["w"].details
        assert await here.store.list_documents(queues.KIND, ALL_TENANTS) == []


@on_loop
async def test_a_repeat_changes_nothing(site: Opened, streams: Streams) -> None:
    """Whoever is not sure that it was heard says it again."""
    async with site() as here:
        entry = streams.made("w", {"a": "1\n"})
        await here.enter(entry, entry)
        await here.calm()
        await here.enter(entry)
        assert len((await here.view()).entries) == 1
        await here.settle()

        assert len(here.places()) == 1


@on_loop
async def test_a_test_run_that_ends_wakes_the_queue(site: Opened, streams: Streams) -> None:
    """By the log: nobody has to look again and again."""
    async with site() as here:
        follower = Follower(here.store)
        follower.subscribe(here.queue.on_events)
        await follower.start()
        heard = asyncio.Event()

        async def hear(_outcome: MergeOutcome) -> None:
            heard.set()

        here.queue.tell(hear)
        await here.enter(streams.made("w", {"a": "1\n"}))
        await here.calm()
        assert await here.tester.work() == 1
        await heard.wait()
        await follower.stop()

        assert here.merged() == {"w"}


@on_loop
async def test_another_server_makes_the_same_commits(site: Opened, streams: Streams) -> None:
    """One that has nothing but the document: for a runner that asks it, and for landing."""
    async with site("one", starts=False) as one, site("two", owner="two", starts=False) as two:
        for number, method in enumerate(("merge", "squash", "fast-forward")):
            await one.enter(streams.made(f"w{number}", {f"{number}": "1\n"}, {f"{number}": "2\n"}, method=method))
        one.queue.start()
        await one.calm()
        batches = (await one.view()).batches
        assert len(batches) == 3
        for batch in reversed(batches):
            stream = f"merge-{batch.run_id.split('-')[1]}"
            assert await two.queue.bring(TENANT, stream, batch.commit)
            assert await two.mirror.has_commit(batch.commit)
            assert not await two.queue.bring(TENANT, stream, "1" * 40)
        await one.queue.stop()
        shutil.rmtree(two.mirror.folder)
        one.tester.folder = two.tester.folder = one.mirror.folder
        assert await one.tester.work() == 3
        two.queue.start()
        await two.settle()

        assert two.merged() == {"w0", "w1", "w2"}
        assert [batch.commit for batch in batches] == [two.told[f"w{number}"].commit for number in range(3)]


@on_loop
async def test_a_server_goes_on_where_another_one_landed(site: Opened, streams: Streams, backend: Backend) -> None:
    """What the next batch stands on is on the base by then; it is tested already, and is not tested again."""

    class Once:
        """Lands once; then it cannot."""

        left = 1

        async def push(self, builder: CommitBuilder, branch: str, commit: str, expected: str) -> None:
            if not self.left:
                raise GitFailed("not today")
            self.left -= 1
            await builder.push(branch, commit, expected)

    async with site("one", push=Once().push) as one, site("two", owner="two", starts=False) as two:
        await two.builder.fetch_branch("main")
        await one.enter(streams.made("a", {"a": "1\n"}), streams.made("b", {"b": "1\n"}, method="squash"))
        await one.settle()
        assert one.merged() == {"a"}
        await one.queue.stop()
        await later(two, backend, 10)
        two.queue.start()
        await two.settle()

        assert two.merged() == {"b"}
        assert two.files() == {"a", "b"}
        assert len(one.tester.tested) == 2
        assert two.tester.tested == []


@pytest.mark.parametrize("fields", [{"method": "rebase"}, {"rules": [{"ru": "make"}]}, {"rules": [{"run": "x"}] * 101}])
@on_loop
async def test_one_that_makes_no_sense_does_not_get_into_the_line(
    site: Opened, streams: Streams, fields: dict[str, object]
) -> None:
    """There it would stop all others."""
    async with site() as here:
        with pytest.raises(Refused):
            await here.enter(streams.made("w", **fields))  # type: ignore[arg-type]

        assert await here.queue.queues(TENANT) == []


@on_loop
async def test_two_servers_at_once_merge_everybody_once(
    site: Opened, streams: Streams, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even when neither waits for the other."""

    async def mine(*_: object) -> bool:
        return True

    monkeypatch.setattr("deltaci.controllers.claims.Claims.take", mine)
    monkeypatch.setattr("deltaci.controllers.work_queue.RETRY_SECONDS", 0.01)
    async with AsyncExitStack() as stack:
        sites = [await stack.enter_async_context(site(name, owner=name)) for name in ("one", "two")]
        files = {f"w{n}": "BAD\n" if n in (1, 4) else "good\n" for n in range(6)}
        entries = [streams.made(name, {name: text}) for name, text in files.items()]
        for number, each in enumerate(entries):
            await sites[number % 2].enter(each)
        for _ in range(30):
            await asyncio.gather(*(each.calm() for each in sites))
            worked = [await each.tester.work() for each in sites]
            if not any(worked):
                if not await sites[0].queue.queues(TENANT):
                    break
                await later(sites[0], backend, 1000)  # A push that lost its race is tried again later.

        told = {**sites[0].told, **sites[1].told}
        assert {id for id, each in told.items() if each.is_merged} == {"w0", "w2", "w3", "w5"}
        assert set(told) == set(files)
        assert sites[0].files() == {"w0", "w2", "w3", "w5"}
        assert set(sites[0].places()) <= sites[0].tester.good | sites[1].tester.good


@on_loop
async def test_while_one_server_is_at_it_another_waits(
    site: Opened, streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Work that is done twice is right, and wasted."""
    monkeypatch.setattr(queues, "RETRY_SECONDS", 0.01)
    async with site("one") as one, site("two", owner="two") as two:
        reached, go_on = asyncio.Event(), asyncio.Event()
        build = one.streams.ensure

        async def slowly(*args: object) -> None:
            reached.set()
            await go_on.wait()
            await build(*args)  # type: ignore[arg-type]

        monkeypatch.setattr(one, "streams", type("Slow", (), {"ensure": staticmethod(slowly)}))
        await one.enter(streams.made("w", {"a": "1\n"}))
        await reached.wait()
        await two.calm()
        assert not two.mirror.folder.exists()
        go_on.set()
        await one.calm()
        assert await one.tester.work() == 1
        await asyncio.gather(one.calm(), two.calm())  # Whoever still has the line lets it land.

        assert {**one.told, **two.told}["w"].is_merged
