"""The line before a base, in any history of tests, conflicts, moves, trouble, crashes and second servers."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from deltaci.controllers.merge_queue import decisions as lines
from deltaci.controllers.merge_queue.decisions import BatchLimits, BatchResult, BuildResult, MergeQueueState
from deltaci.controllers.merge_queue.records import NONE, MergeEntry
from deltaci.controllers.merge_queue.serializers import shown
from deltaci.core.instants import SECOND
from deltaci.engine.requests import Overloaded
from tests.controllers.merge_queue.played import WHERE, World, content

NOW = 10**9 * SECOND
ONE = BatchLimits(speculative=1)


def entry(id: str, method: str = "merge", *, labels: tuple[str, ...] = (), rules: int = 1) -> MergeEntry:
    """Somebody who wants to be merged."""
    said = [{"run": f"{id} {number}"} for number in range(rules)]
    return MergeEntry(**WHERE, id=id, head=id, method=method, title=id, rules=said, labels=labels)


def line_of(*entries: MergeEntry) -> MergeQueueState:
    """All of them, in order."""
    line = MergeQueueState(tenant="t", project="p", base="main")
    for each in entries:
        line = lines.entered(line, each)
    return line


def built(line: MergeQueueState) -> MergeQueueState:
    """Its last batch, built without any trouble."""
    batch = line.batches[-1]
    start = line.batches[-2].top if len(line.batches) > 1 else "0"
    commits = [f"{start}+{'+'.join(batch.members[: n + 1])}" for n in range(len(batch.members))]
    if batch.method == "merge":
        commits = commits[-1:] * len(commits)
    made = BuildResult(base="0", start=start, members=batch.members, commits=tuple(commits))
    return lines.built(line, batch.number, made, NOW)


def with_batch(line: MergeQueueState, limits: BatchLimits = ONE) -> MergeQueueState:
    """One more batch, built."""
    return built(lines.formed(line, NOW, limits))


def found_bad(line: MergeQueueState, at: int = 0) -> MergeQueueState:
    """The first batch, tested and bad, and what follows from that."""
    batch = line.batches[0]
    line = lines.tested(line, lines.run_of(line, batch), BatchResult(False, at, "no good"))
    return lines.judged(line, batch.number)


@settings(max_examples=600, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**32), count=st.integers(1, 10), steps=st.integers(0, 250))
def test_in_any_history_only_the_good_land_and_only_the_bad_are_put_out(seed: int, count: int, steps: int) -> None:
    """Whatever goes wrong: who is good lands once, as what was tested; who is bad is told why; and it ends."""
    world = World(Random(seed), count)

    world.play(steps)

    landed = [each for each in content(world.base) if each.startswith("w")]
    assert len(set(landed)) == len(landed), "twice"
    for name, outcome in world.told.items():
        if outcome.is_merged:
            assert outcome.commit == "" or name in content(outcome.commit)
            assert world.methods[name] == NONE or name in landed
        else:
            assert world.why[name] in ("bad", "conflict")
            assert name not in landed
    everybody = set(world.methods)
    assert everybody == set(world.told) | world.gone, "somebody never heard of it"
    calm = [each for each in landed if each not in world.disturbed]
    assert calm == sorted(calm, key=lambda each: int(each[1:])), "somebody was overtaken"


def test_a_batch_is_the_longest_run_of_one_kind() -> None:
    """One method, the same labels, tested the same way, no more than fit; one that is only tested is alone."""
    line = line_of(*(entry(f"a{n}") for n in range(3)), entry("b", "squash"), entry("c"))
    assert lines.formed(line, NOW, ONE).batches[0].members == ("a0", "a1", "a2")

    line = line_of(entry("a", labels=("x", "y")), entry("b", labels=("y", "x")), entry("c"))
    assert lines.formed(line, NOW, ONE).batches[0].members == ("a", "b")

    line = line_of(entry("a"), replace(entry("b"), work={"image": "debian"}))
    assert lines.formed(line, NOW, ONE).batches[0].members == ("a",)

    line = line_of(*(entry(f"a{n}") for n in range(9)))
    assert len(lines.formed(line, NOW, ONE).batches[0].members) == 8

    line = line_of(entry("a", NONE), entry("b", NONE))
    assert lines.formed(line, NOW, ONE).batches[0].members == ("a",)

    line = line_of(entry("a", rules=60), entry("b", rules=60))
    assert lines.formed(line, NOW, ONE).batches[0].members == ("a",)


def test_a_line_that_is_full_takes_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever comes tries again later; who is in it stays."""
    monkeypatch.setattr(lines, "MAX_PLACES", 2)
    line = line_of(entry("a"), entry("b"))

    with pytest.raises(Overloaded):
        lines.entered(line, entry("c"))
    assert lines.entered(line, entry("a")) == line


def test_one_bad_of_eight_is_found_by_halves() -> None:
    """The others land in their order; the bad one is alone at last."""
    line = with_batch(line_of(*(entry(str(n)) for n in range(8))))
    sizes, landed = [8], list[str]()
    for _ in range(20):
        batch = line.batches[0]
        if "5" in batch.members:
            line = found_bad(line)
        else:
            line = lines.tested(line, lines.run_of(line, batch), BatchResult(True))
            line = lines.landed(lines.landing(line, batch.number), batch.number)
            landed += batch.members
        if not line.places:
            break
        line = with_batch(line)
        sizes.append(len(line.batches[0].members))

    assert landed == ["0", "1", "2", "3", "4", "6", "7"]
    assert [(each.id, each.details) for each in line.ended if not each.is_merged] == [("5", "no good")]
    assert sizes == [8, 4, 4, 2, 1, 1, 2]


def test_where_every_place_was_tested_the_first_bad_one_is_where_it_is_cut() -> None:
    """Those before it are known to be good: halves would test them once more."""
    line = with_batch(line_of(*(entry(str(n), "squash") for n in range(8))))

    line = lines.formed(found_bad(line, at=5), NOW, ONE)

    assert line.batches[0].members == ("0", "1", "2", "3", "4")


def test_what_stands_on_a_bad_one_is_thrown_away_and_its_tests_are_stopped() -> None:
    """It was tested with something that the base never gets."""
    line = line_of(entry("a"), entry("b", "squash"), entry("c"))
    for _ in range(3):
        line = with_batch(line, BatchLimits())
    runs = [lines.run_of(line, batch) for batch in line.batches]

    line = found_bad(line)

    assert line.batches == ()
    assert list(line.stopping) == runs[1:]
    assert [queued.entry.id for queued in line.places] == ["b", "c"]


def test_nobody_stands_on_one_that_is_only_tested() -> None:
    """So its end is no reason to test the others again."""
    line = line_of(entry("a", NONE), entry("b"))
    for _ in range(2):
        line = with_batch(line, BatchLimits())
    kept = line.batches[1]

    assert kept.start == "0"
    assert found_bad(line).batches == (kept,)


def test_a_lost_test_puts_nobody_out_and_is_made_again_later_and_later() -> None:
    """Another run each time; twice as long in between, but never longer than the most; for ever."""
    line = with_batch(line_of(entry("a")))
    runs, waits = set[str](), list[int]()
    for _ in range(12):
        run_id = lines.run_of(line, line.batches[0])
        runs.add(run_id)
        line = lines.lost(line, run_id, "the runner died", NOW)
        assert lines.lost(line, run_id, "the runner died", NOW) == line  # Said twice, it counts once.
        assert not any(isinstance(step, lines.TestBatch) for step in lines.steps(line, NOW, ONE))
        at = lines.next_at(line, NOW)
        assert at is not None
        waits.append((at - NOW) // SECOND)

    assert len(runs) == 12
    assert waits == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 600, 600]
    assert [queued.entry.id for queued in line.places] == ["a"]


def test_who_conflicts_with_a_batch_waits_for_its_end() -> None:
    """Tried before, it would only conflict again."""
    line = lines.formed(line_of(entry("a"), entry("b"), entry("c", "squash")), NOW, BatchLimits())
    number = line.batches[0].number
    made = BuildResult(base="0", start="0", members=("a",), commits=("0+a",), behind=(("b", number),))
    line = with_batch(lines.built(line, number, made, NOW), BatchLimits())

    assert [batch.members for batch in line.batches] == [("a",), ("c",)]
    line = lines.formed(lines.moved(line, number), NOW, BatchLimits())
    assert [batch.members for batch in line.batches] == [("a", "b")]


def test_who_is_about_to_land_cannot_go_any_more() -> None:
    """The push may be under way."""
    line = with_batch(line_of(entry("a"), entry("b")))
    line = lines.tested(line, lines.run_of(line, line.batches[0]), BatchResult(True))

    assert lines.without(line, ["a"]).batches == ()
    line = lines.landing(line, line.batches[0].number)
    assert lines.without(line, ["a"]) == line


def test_without_rules_there_is_nothing_to_test() -> None:
    """Rules that the server itself looks at are none for a runner."""
    own = [{"within": ["src/**"]}, {"mergeable": True}]
    line = with_batch(line_of(replace(entry("a"), rules=own)))

    assert line.batches[0].found == BatchResult(True)
    assert lines.steps(line, NOW, ONE) == [lines.MergeTestedBatch(line.batches[0].number)]


@pytest.mark.parametrize("method", ["merge", "squash", "fast-forward"])
def test_every_commit_is_tested_by_the_rules_of_those_who_are_in_it(method: str) -> None:
    """Nobody's file has to be there before it comes; a rule that two have is looked at once."""
    shared = {"run": "make"}
    entries = [replace(entry(name, method), rules=[shared, {"run": name}]) for name in "ab"]
    line = with_batch(line_of(*entries))

    tests = [(each.commit, [rule["run"] for rule in each.rules]) for each in lines.tests_of(line, line.batches[0])]

    whole = ("0+a+b", ["make", "a", "b"])
    assert tests == ([whole] if method == "merge" else [("0+a", ["make", "a"]), whole])


def test_closed_everybody_is_told_why() -> None:
    """A project that is no more merges nobody."""
    line = lines.closed(with_batch(line_of(entry("a"), entry("b"))), "no project")

    assert line.places == ()
    assert line.batches == ()
    assert [(each.id, each.is_merged, each.details) for each in line.ended] == [
        ("a", False, "no project"),
        ("b", False, "no project"),
    ]


def test_a_split_is_remembered_until_all_of_its_halves_are_gone() -> None:
    """So that people see how a bad one is looked for, and no line grows without end."""
    line = found_bad(with_batch(line_of(*(entry(id) for id in "abcd"))))

    assert [(split.number, split.first, split.second) for split in line.splits] == [(1, ("a", "b"), ("c", "d"))]
    assert shown(line).splits[0].problem == "no good"

    again = found_bad(with_batch(line))
    assert [(split.number, split.first) for split in again.splits] == [(1, ("a", "b")), (2, ("a",))]
    without_first = lines.without(again, "ab")
    assert [split.number for split in shown(without_first).splits] == [1]
    later = lines.entered(lines.entered(lines.without(without_first, "cd"), entry("e")), entry("f"))
    assert shown(later).splits == ()
    assert [split.number for split in found_bad(with_batch(later)).splits] == [3]
