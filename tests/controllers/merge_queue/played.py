"""A world around one line, played: commits are lists of what is in them, and everything that can go wrong does.

What a server does is split in two: what it does outside, at once, and what it writes, perhaps much later and perhaps
twice; and it may have read what is long written over. So two servers at once and crashes are played, too.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from deltaci.controllers.merge_queue import decisions as lines
from deltaci.controllers.merge_queue.decisions import BatchLimits, BatchResult, BuildResult, MergeBatch, MergeQueueState
from deltaci.controllers.merge_queue.records import NONE, MergeEntry, MergeOutcome
from deltaci.core.instants import SECOND

METHODS = ("merge", "squash", "fast-forward", NONE)
LIMITS = BatchLimits(batch=4, speculative=3)
MAX_STEPS = 3000
WHERE: dict[str, Any] = {"tenant": "t", "project": "p", "base": "main", "base_commit": "0"}

Edit = Callable[[MergeQueueState], MergeQueueState]


def content(commit: str) -> list[str]:
    """What is in a commit."""
    return commit.split("+")


class World:
    """The repository, the tests and the servers. `is_rough`: things go wrong."""

    def __init__(self, random: Random, count: int) -> None:
        self.random = random
        self.line = MergeQueueState(tenant="t", project="p", base="main")
        self.base = "0"
        self.now = SECOND
        self.is_rough = True
        self.names = [f"w{number}" for number in range(count)]
        self.methods = {name: random.choice(METHODS if random.random() < 0.3 else METHODS[:1]) for name in self.names}
        self.bad = {name for name in self.names if random.random() < 0.2}
        self.others = [f"x{number}" for number in range(3)]  # What others push.
        pairs = [(a, b) for a in self.names for b in [*self.names, *self.others] if a < b or b in self.others]
        self.conflicts = {pair for pair in pairs if random.random() < 0.04}
        self.clashes = {pair for pair in pairs if random.random() < 0.03}  # Each is good, both together are not.
        self.seen = self.line  # By a server that reads seldom.
        self.edits: list[Edit] = []
        self.runs: dict[str, BatchResult | None] = {}
        self.gone: set[str] = set()
        self.disturbed: set[str] = set()  # They had trouble or a conflict: others may have overtaken them.
        self.told: dict[str, MergeOutcome] = {}
        self.why: dict[str, str] = {}
        self.good: set[tuple[str, str]] = set()  # A commit, and a rule that was seen to hold of it.

    # -- what is true

    def meets(self, one: str, other: str, pairs: set[tuple[str, str]]) -> bool:
        """Whether the two are a pair of these."""
        return (one, other) in pairs or (other, one) in pairs

    def is_kept(self, rule: str, commit: str) -> bool:
        """Whether the rule of this one holds of the commit."""
        return rule not in self.bad and not any(self.meets(rule, each, self.clashes) for each in content(commit))

    def is_conflict(self, one: str, commit: str) -> bool:
        """Whether it cannot be joined with the commit."""
        return any(self.meets(one, each, self.conflicts) for each in content(commit))

    # -- what happens by itself

    def come(self) -> None:
        """Somebody comes, perhaps again."""
        if self.names and (self.random.random() < 0.9 or not self.line.places):
            name = self.names.pop(0)
            entry = MergeEntry(
                **WHERE, id=name, head=name, method=self.methods[name], title=name, rules=[{"run": name}]
            )
        elif self.line.places:
            entry = self.random.choice(self.line.places).entry
        else:
            return
        self.line = lines.entered(self.line, entry)

    def disturb(self) -> None:
        """Something that nobody asked for."""
        what = self.random.choice((0, 1, 2, 2, 2, 3, 3, 4, 4, 5))
        if what == 0 and self.others:
            self.base = f"{self.base}+{self.others.pop()}"
        elif what == 1 and self.line.places:
            name = self.random.choice(self.line.places).entry.id
            self.line = lines.without(self.line, [name])
            if all(queued.entry.id != name for queued in self.line.places):
                self.gone.add(name)
        elif what == 2:
            self.now += self.random.randrange(1, 20) * SECOND
        elif what == 3 and self.edits:
            self.edits.append(self.random.choice(self.edits))  # Said twice.
        elif what == 4 and self.edits:
            self.edits.pop(self.random.randrange(len(self.edits)))  # A crash: it was never written.
        elif what == 5:
            self.line = lines.troubled(self.line, "the repository is away", self.now)

    def end_test(self) -> None:
        """A test run ends: with what is true, or with nothing."""
        waiting = [each for each in self.line.batches if each.commits and each.found is None]
        for batch in waiting:
            run_id = lines.run_of(self.line, batch)
            if run_id in self.runs and (not self.is_rough or self.random.random() < 0.5):
                if self.is_rough and self.random.random() < 0.2:
                    self.edits.append(lambda line, run_id=run_id: lines.lost(line, run_id, "lost", self.now))  # type: ignore[misc]
                else:
                    found = self.result(batch)
                    self.edits.append(lambda line, run_id=run_id, found=found: lines.tested(line, run_id, found))  # type: ignore[misc]

    def result(self, batch: MergeBatch) -> BatchResult:
        """What a test that works says."""
        results: list[tuple[lines.TestTarget, str | None]] = []
        for each in lines.tests_of(self.line, batch):
            wrong = [rule["run"] for rule in each.rules if not self.is_kept(rule["run"], each.commit)]
            self.good |= {(each.commit, rule["run"]) for rule in each.rules if rule["run"] not in wrong}
            results.append((each, f"{wrong[0]} is bad" if wrong else None))
        return lines.outcome_of(results)

    # -- what a server does

    def act(self) -> None:
        """Take one of the steps that can be taken."""
        if not self.is_rough or self.random.random() < 0.7:
            self.seen = self.line
        steps = lines.steps(self.seen, self.now, LIMITS)
        if not steps:
            return
        match self.random.choice(steps) if self.is_rough else steps[0]:
            case lines.CancelTestRun(run_id):
                self.edits.append(lambda line: lines.stopped(line, run_id))
            case lines.ReportOutcome(outcome):
                assert self.told.setdefault(outcome.id, outcome) == outcome, "told two different things"
                self.edits.append(lambda line: lines.told(line, outcome))
            case lines.FormBatches():
                now = self.now
                self.edits.append(lambda line: lines.formed(line, now, LIMITS))
            case lines.BuildBatch(number):
                self.build(number)
            case lines.TestBatch(number):
                batch = self.seen.batch(number)
                assert batch is not None
                self.runs.setdefault(lines.run_of(self.seen, batch), None)
            case lines.HandleFailedBatch(number):
                self.judge(number)
            case lines.MergeTestedBatch(number):
                self.land(number)

    def build(self, number: int) -> None:
        """Join what goes together."""
        batch = self.seen.batch(number)
        assert batch is not None
        below = self.seen.batches[: self.seen.batches.index(batch)]
        if below and below[0].start != self.base:
            self.edits.append(lambda line: lines.moved(line, below[0].number))
            return
        start, before = (below[-1].top, below[-1].number) if below else (self.base, 0)
        top, members, commits = start, list[str](), list[str]()
        failed, behind, troubled = list[MergeOutcome](), list[tuple[str, int]](), list[tuple[str, str]]()
        for name in batch.members:
            if self.is_rough and self.random.random() < 0.05:
                troubled.append((name, "cannot be had now"))
                self.disturbed.add(name)
            elif batch.method == NONE:
                members, commits = [name], [f"0+{name}"]
            elif self.is_conflict(name, top):
                self.disturbed.add(name)
                if self.is_conflict(name, self.base):
                    self.why[name] = "conflict"
                    failed.append(MergeOutcome(id=name, tenant="t", is_merged=False, details="conflict"))
                else:
                    behind.append((name, number if members else before))
            else:
                top = top if name in content(top) else f"{top}+{name}"
                members.append(name)
                commits.append(top)
        if batch.method == "merge":
            commits = [top] * len(commits)
        made = BuildResult(
            base=self.base,
            start=start,
            members=tuple(members),
            commits=tuple(commits),
            failed=tuple(failed),
            behind=tuple(behind),
            troubled=tuple(troubled),
        )
        now = self.now
        self.edits.append(lambda line: lines.built(line, number, made, now))

    def judge(self, number: int) -> None:
        """It is bad, if it still stands on the base."""
        batch = self.seen.batch(number)
        assert batch is not None
        if batch.method != NONE and batch.start != self.base:
            self.edits.append(lambda line: lines.moved(line, number))
            return
        if len(batch.members) == 1:
            name = batch.members[0]
            assert not self.is_kept(name, batch.commits[0]), f"{name} is good, and judged"
            self.why[name] = "bad"
        self.edits.append(lambda line: lines.judged(line, number))

    def land(self, number: int) -> None:
        """The base moves only from where the batch stands; then, or perhaps never, that is written."""
        batch = self.seen.batch(number)
        assert batch is not None
        if not batch.is_landing:
            self.edits.append(lambda line: lines.landing(line, number))
            return
        if self.base == batch.start:
            for name, commit in zip(batch.members, batch.commits, strict=True):
                assert (commit, name) in self.good, f"{name} lands as {commit}, which was not seen to be good"
                assert name not in self.gone, f"{name} lands after it went"
            self.base = batch.top
        elif content(self.base)[: len(content(batch.top))] != content(batch.top):
            self.edits.append(lambda line: lines.moved(line, number, is_landing=True))
            return
        self.edits.append(lambda line: lines.landed(line, number))

    def write(self) -> None:
        """Write something of what was done, not always in order."""
        if self.edits:
            place = self.random.randrange(len(self.edits)) if self.is_rough and self.random.random() < 0.3 else 0
            self.line = self.edits.pop(place)(self.line)

    # -- a whole history

    def play(self, steps: int) -> int:
        """A rough time, and then a calm one until all is over; how many steps that took."""
        for _ in range(steps):
            self.random.choice((self.come, self.act, self.act, self.act, self.end_test, self.write, self.write))()
            if self.random.random() < 0.1:
                self.disturb()
            self.check()
        self.is_rough = False
        for number in range(MAX_STEPS):
            if self.line.is_idle and not self.names and not self.edits:
                return number
            if self.names:
                self.come()
            self.act()
            self.end_test()
            while self.edits:
                self.write()
                self.check()
            self.now += SECOND
        raise AssertionError(f"it does not end: {self.line}")

    def check(self) -> None:
        """What holds at any moment."""
        ids = [queued.entry.id for queued in self.line.places]
        members = [id for batch in self.line.batches for id in batch.members]
        assert len(set(ids)) == len(ids)
        assert len(set(members)) == len(members), "in two batches"
        assert set(members) <= set(ids), "a member that is not in the line"
        assert len(self.line.batches) <= LIMITS.speculative
        below = ""
        for batch in self.line.batches:
            assert len(batch.members) <= LIMITS.batch
            assert not below or not batch.commits or batch.start == below, "it does not stand on what is before it"
            below = batch.top if batch.commits else ""
