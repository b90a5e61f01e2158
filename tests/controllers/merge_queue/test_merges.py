"""Merges of real repositories, by every method: the base gets exactly what was tested."""

from __future__ import annotations

import pytest

from tests.contract.backends import on_loop
from tests.controllers.merge_queue.conftest import Opened
from tests.controllers.merge_queue.site import GOOD, Streams
from tests.support.upstream import git


@on_loop
async def test_several_are_merged_by_one_commit_that_was_tested(site: Opened, streams: Streams) -> None:
    """The commit names them all, stands on the base and on every head, and its tree is the one that was looked at."""
    async with site() as here:
        entries = [streams.made(f"w{number}", {f"{number}.txt": "good\n"}) for number in range(3)]
        await here.enter(*entries)
        await here.settle()

        assert here.files() == {"0.txt", "1.txt", "2.txt"}
        places = here.places()
        assert set(places) <= here.tester.good
        commits = {here.told[entry.id].commit for entry in entries}
        assert commits == set(places)
        whole = places[-1]
        parents = git(streams.upstream.bare, "rev-parse", f"{whole}^@").split()
        assert set(parents[1:]) <= {entry.head for entry in entries}
        message = git(streams.upstream.bare, "log", "-1", "--format=%B", whole)
        assert all(f"Workstream: {entry.id}" in message for entry in entries if here.told[entry.id].commit == whole)
        assert git(streams.upstream.bare, "for-each-ref", "--format=%(refname)") == "refs/heads/main"


@pytest.mark.parametrize("method", ["squash", "fast-forward"])
@on_loop
async def test_one_after_the_other_every_place_is_tested(site: Opened, streams: Streams, method: str) -> None:
    """No member has a place on the base that nobody looked at."""
    async with site() as here:
        entries = [
            streams.made(f"w{n}", {f"{n}.txt": "a\n"}, {f"{n}.txt": "b\n"}, method=method, author="Eve <eve@x.org>")
            for n in range(4)
        ]
        await here.enter(*entries)
        await here.settle()

        assert here.files() == {"0.txt", "1.txt", "2.txt", "3.txt"}
        commits = [here.told[entry.id].commit for entry in entries]
        assert set(commits) <= here.tester.good
        places = here.places()
        assert [commit for commit in places if commit in commits] == commits
        assert len(places) == (4 if method == "squash" else 8)
        titles = git(streams.upstream.bare, "log", "--reverse", "--format=%s", f"{streams.upstream.first}..main")
        if method == "squash":
            assert titles.split("\n") == [f"Work of w{n}" for n in range(4)]
            authors = git(streams.upstream.bare, "log", "--format=%an <%ae>", f"{streams.upstream.first}..main")
            assert set(authors.split("\n")) == {"Eve <eve@x.org>"}
        else:
            assert titles.split("\n")[:2] == ["w0, part 1", "w0, part 2"]


@on_loop
async def test_a_head_that_stands_on_the_base_is_itself_what_the_base_gets(site: Opened, streams: Streams) -> None:
    """That is what fast-forward means."""
    async with site() as here:
        entry = streams.made("w", {"a": "1\n"}, method="fast-forward")
        await here.enter(entry)
        await here.settle()

        assert here.tip == entry.head == here.told["w"].commit


@on_loop
async def test_one_that_is_only_tested_changes_nothing(site: Opened, streams: Streams) -> None:
    """Its own head is what is looked at."""
    async with site() as here:
        good, bad = (
            streams.made("good", {"a": "1\n"}, method="none"),
            streams.made("bad", {"b": "BAD\n"}, method="none"),
        )
        await here.enter(good, bad)
        await here.settle()

        assert here.tip == streams.upstream.first
        assert here.tester.tested == [good.head, bad.head]
        assert (here.told["good"].is_merged, here.told["good"].commit) == (True, "")
        assert not here.told["bad"].is_merged
        assert "rule 'absent BAD' failed: found BAD" in here.told["bad"].details


@on_loop
async def test_methods_that_differ_are_merged_in_the_order_of_their_coming(site: Opened, streams: Streams) -> None:
    """A batch has one method; the next one stands on it, and both are tested at the same time."""
    async with site() as here:
        methods = ("merge", "squash", "fast-forward", "none", "merge")
        entries = [streams.made(f"w{n}", {f"{n}.txt": "1\n"}, method=each) for n, each in enumerate(methods)]
        await here.enter(*entries)
        await here.calm()
        assert len((await here.view()).batches) == 3
        await here.settle()

        commits = [here.told[f"w{n}"].commit for n in (0, 1, 2, 4)]
        assert here.places() == commits
        assert set(commits) <= here.tester.good
        assert here.files() == {"0.txt", "1.txt", "2.txt", "4.txt"}


@on_loop
async def test_a_bad_one_among_eight_is_put_out_alone(site: Opened, streams: Streams) -> None:
    """It is told what is wrong; the others land, and nobody ever sees a base with it."""
    async with site(starts=False) as here:
        files = {n: "BAD\n" if n == 5 else "good\n" for n in range(8)}
        entries = [streams.made(f"w{n}", {f"{n}.txt": text}) for n, text in files.items()]
        await here.enter(*entries)
        here.queue.start()
        await here.calm()
        assert len((await here.view()).batches[0].members) == 8
        await here.settle()

        assert here.merged() == {f"w{n}" for n in range(8)} - {"w5"}
        assert here.files() == {f"{n}.txt" for n in range(8)} - {"5.txt"}
        assert "rule 'absent BAD' failed: found BAD" in here.told["w5"].details
        assert set(here.places()) <= here.tester.good


@on_loop
async def test_two_that_are_good_only_alone_do_not_both_land(site: Opened, streams: Streams) -> None:
    """The first lands; of the second, the tree that the base would get is bad."""
    async with site() as here:
        rules = [{"run": "together ONE TWO"}]
        one, two = streams.made("one", {"a": "ONE\n"}, rules=rules), streams.made("two", {"b": "TWO\n"}, rules=rules)
        await here.enter(one, two)
        await here.settle()

        assert here.merged() == {"one"}
        assert here.files() == {"a"}


@on_loop
async def test_a_conflict_with_the_base_is_told_with_its_place(site: Opened, streams: Streams) -> None:
    """Which files, and at which commit of the base."""
    async with site() as here:
        entries = [streams.made("bad", {"README": "mine\n", "x": "1\n"}), streams.made("good", {"a": "1\n"})]
        upstream = streams.upstream
        upstream.switch("main", upstream.first)
        moved = upstream.push({"README": "theirs\n"})
        await here.enter(*entries)
        await here.settle()

        assert here.merged() == {"good"}
        assert "README" in here.told["bad"].details
        assert moved[:12] in here.told["bad"].details
        assert here.files() == {"a"}


@on_loop
async def test_who_conflicts_only_with_somebody_before_it_waits(site: Opened, streams: Streams) -> None:
    """If that one lands, it conflicts with the base; if it does not, it can land itself."""
    async with site() as here:
        first = streams.made("first", {"same": "first\n"})
        second = streams.made("second", {"same": "second\n"})
        third = streams.made("third", {"other": "BAD\n"})
        fourth = streams.made("fourth", {"other": "good\n"})
        await here.enter(first, second, third, fourth)
        await here.settle()

        assert here.merged() == {"first", "fourth"}
        assert "same" in here.told["second"].details
        assert here.files() == {"same", "other"}


@on_loop
async def test_one_that_adds_nothing_is_merged_as_the_base_is(site: Opened, streams: Streams) -> None:
    """No empty commit is made for it."""
    async with site() as here:
        for method in ("merge", "squash", "fast-forward"):
            await here.enter(streams.made(method, method=method))
        await here.settle()

        assert here.tip == streams.upstream.first
        assert {each.commit for each in here.told.values()} == {streams.upstream.first}
        assert here.merged() == {"merge", "squash", "fast-forward"}


@on_loop
async def test_without_rules_what_merges_is_good(site: Opened, streams: Streams) -> None:
    """There is no run, and nothing to wait for."""
    async with site() as here:
        await here.enter(streams.made("w", {"a": "1\n"}, rules=[{"within": ["**"]}]))
        await here.calm()

        assert here.merged() == {"w"}
        assert await here.tester.work() == 0


@on_loop
async def test_two_histories_without_a_common_start_conflict(site: Opened, streams: Streams) -> None:
    """That is said, rather than tried for ever."""
    async with site() as here:
        upstream = streams.upstream
        entry = streams.made("w", {"a": "1\n"})
        await here.ensure(entry)
        git(upstream.tree, "checkout", "-q", "--orphan", "elsewhere")
        upstream.push({"README": "another start\n"})
        await here.enter(entry)
        await here.settle()

        assert not here.told["w"].is_merged
        assert "no common ancestor" in here.told["w"].details


@on_loop
async def test_what_a_runner_is_asked_to_look_at(site: Opened, streams: Streams) -> None:
    """The candidate, on a base that the repository has, by the rules of all; what it leaves behind is not wanted."""
    async with site() as here:
        entry = streams.made("w", {"a": "1\n"}, rules=[GOOD, {"within": ["a"]}], labels=("linux",))
        await here.enter(entry)
        await here.calm()
        assert await here.tester.claim() == []
        [claimed] = await here.tester.claim(labels=("linux",))

        spec = claimed.attempt.spec
        view = await here.view()
        assert spec["rules"] == [GOOD]
        assert "steps" not in spec
        assert spec["tree"]["commit"] == view.batches[0].commit
        assert spec["tree"]["source"]["commit"] == streams.upstream.first
        assert spec["tree"]["keeps"] is False
        assert spec["tree"]["stream"].startswith("merge-")
        assert (view.batches[0].doing, view.entries[0].batch) == ("testing", view.batches[0].number)
        assert claimed.attempt.run_id == view.batches[0].run_id
