"""The state of one merge queue and its next steps: entries, batches under test, outcomes. Pure: no git, no clock.

A batch is built on top of the previous one, the first on the base. The result of a batch counts only once the batch is
the first, because until then a batch below it may be discarded. Batches never change once built; a discarded batch
gives its members back, and they form new batches with new numbers. A message about a number that no longer exists has
no effect, so that every step can be repeated, even by two servers at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from deltaci.controllers.merge_queue.records import NONE, BatchSplit, MergeEntry, MergeOutcome
from deltaci.controllers.repositories.change_records import digest
from deltaci.core.backoff import backoff_seconds
from deltaci.core.ids import MERGE_RUN_PREFIX
from deltaci.core.instants import SECOND
from deltaci.engine.requests import Overloaded

MAX_BATCH: Final = 8
SPECULATIVE: Final = 3
MAX_PLACES: Final = 1000
MAX_RULES: Final = 100  # Of one job.
MAX_BACKOFF_SECONDS: Final = 600
MAX_PROBLEM: Final = 2000


class BatchLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The maximum size of a batch, and the number of batches tested at a time."""

    batch: int = MAX_BATCH
    speculative: int = SPECULATIVE


class Failure(msgspec.Struct, frozen=True):
    """The last error of a step, the number of tries, and the time of the next one."""

    problem: str = ""
    tries: int = 0
    not_before: int = 0

    def again(self, problem: str, now: int) -> Failure:
        """It happened once more: the next try is twice as far away."""
        seconds = backoff_seconds(self.tries, 1, MAX_BACKOFF_SECONDS)
        return Failure(problem[:MAX_PROBLEM], self.tries + 1, now + seconds * SECOND)


NO_FAILURE: Final = Failure()


class QueuedEntry(msgspec.Struct, frozen=True, kw_only=True):
    """An entry in the queue. Only entries of one `group` form a batch: the halves of a failed batch are two groups.

    An entry that conflicts with a batch waits until this batch, `behind`, is gone.
    """

    entry: MergeEntry
    group: int = 0
    behind: int = 0
    trouble: Failure = NO_FAILURE

    @property
    def kind(self) -> tuple[object, ...]:
        """What all of a batch have in common. Labels, too: a worker that has those of all may not exist."""
        work = msgspec.json.encode(self.entry.work, order="sorted")
        return self.entry.method, self.group, tuple(sorted(set(self.entry.labels))), work


class BatchResult(msgspec.Struct, frozen=True):
    """The result of a test: good; or bad, with `at` as the first failing member, and the details."""

    is_good: bool
    at: int = 0
    details: str = ""


class MergeBatch(msgspec.Struct, frozen=True, kw_only=True):
    """Entries that are merged together. `commits`, one per member, are set once it is built.

    `start` is the commit that it is built on, `base` the newest commit of the base branch below it at that time.
    """

    number: int
    method: str
    members: tuple[str, ...]
    at: int
    base: str = ""
    start: str = ""
    commits: tuple[str, ...] = ()
    trouble: Failure = NO_FAILURE  # Tests that said nothing.
    found: BatchResult | None = None
    is_landing: bool = False  # From here on nobody is taken out of it.

    @property
    def top(self) -> str:
        """What the next one is built on."""
        return self.start if self.method == NONE else self.commits[-1]


class BuildResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of building a batch: its members with their commits, and what happened to the others."""

    base: str
    start: str
    members: tuple[str, ...] = ()
    commits: tuple[str, ...] = ()
    failed: tuple[MergeOutcome, ...] = ()  # They conflict with the base itself.
    behind: tuple[tuple[str, int], ...] = ()  # They conflict with this batch.
    troubled: tuple[tuple[str, str], ...] = ()


class MergeQueueState(msgspec.Struct, frozen=True, kw_only=True):
    """The stored state of a queue. `ended` are outcomes not yet reported, `stopping` test runs to cancel."""

    tenant: str
    project: str
    base: str
    places: tuple[QueuedEntry, ...] = ()
    batches: tuple[MergeBatch, ...] = ()
    ended: tuple[MergeOutcome, ...] = ()
    stopping: tuple[str, ...] = ()
    numbered: int = 0  # The last number that a batch got; and the last one of a group.
    grouped: int = 0
    splits: tuple[BatchSplit, ...] = ()  # Of batches of which somebody may still be here.
    trouble: Failure = NO_FAILURE  # With the repository.

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing in it at all."""
        return not (self.places or self.batches or self.ended or self.stopping)

    def batch(self, number: int) -> MergeBatch | None:
        """The batch of this number, if it is still there."""
        return next((each for each in self.batches if each.number == number), None)

    def entries(self, batch: MergeBatch) -> list[MergeEntry]:
        """The members of a batch."""
        known = {each.entry.id: each.entry for each in self.places}
        return [known[id] for id in batch.members]


# -- what is to be done


class CancelTestRun(msgspec.Struct, frozen=True):
    """Cancel a test run that is no longer needed."""

    run_id: str


class ReportOutcome(msgspec.Struct, frozen=True):
    """Report the outcome of an entry."""

    outcome: MergeOutcome


class FormBatches(msgspec.Struct, frozen=True):
    """Form batches of waiting entries."""


class BuildBatch(msgspec.Struct, frozen=True):
    """Build the commits of a batch."""

    number: int


class TestBatch(msgspec.Struct, frozen=True):
    """Start the test run of a batch or read its result."""

    number: int


class HandleFailedBatch(msgspec.Struct, frozen=True):
    """The first batch failed: split it, unless the base moved."""

    number: int


class MergeTestedBatch(msgspec.Struct, frozen=True):
    """The first batch passed: move the base to it."""

    number: int


Step = CancelTestRun | ReportOutcome | FormBatches | BuildBatch | TestBatch | HandleFailedBatch | MergeTestedBatch


def steps(line: MergeQueueState, now: int, limits: BatchLimits) -> list[Step]:
    """All that can be done now, the most urgent first."""
    found: list[Step] = [CancelTestRun(each) for each in line.stopping]
    found += [ReportOutcome(each) for each in line.ended]
    is_reachable = line.trouble.not_before <= now
    for position, batch in enumerate(line.batches):
        if not batch.commits:
            if is_reachable:
                found.append(BuildBatch(batch.number))
        elif batch.found is None:
            if batch.trouble.not_before <= now:
                found.append(TestBatch(batch.number))
        elif position == 0 and is_reachable:
            found.append(MergeTestedBatch(batch.number) if batch.found.is_good else HandleFailedBatch(batch.number))
    if is_reachable and formed(line, now, limits) is not line:
        found.append(FormBatches())
    return found


def next_at(line: MergeQueueState, now: int) -> int | None:
    """When something can be done that has to wait now; None: nothing waits for a time."""
    all = (line.trouble, *(each.trouble for each in line.batches), *(each.trouble for each in line.places))
    return min((each.not_before for each in all if each.not_before > now), default=None)


# -- who comes and goes


def entered(line: MergeQueueState, entry: MergeEntry) -> MergeQueueState:
    """Somebody comes, at the end of the line; raises `Overloaded` when it is full. One who is known stays."""
    known = {each.entry.id for each in line.places} | {each.id for each in line.ended}
    if entry.id in known:
        return line
    if len(line.places) >= MAX_PLACES:
        raise Overloaded(f"{MAX_PLACES} workstreams already wait for {line.base}")
    return replace(line, places=(*line.places, QueuedEntry(entry=entry)))


def without(line: MergeQueueState, ids: Iterable[str]) -> MergeQueueState:
    """These go without a word. Who is about to land stays."""
    landing = {id for each in line.batches if each.is_landing for id in each.members}
    gone = set(ids) - landing
    if not any(each.entry.id in gone for each in line.places):
        return line
    first = next((n for n, each in enumerate(line.batches) if gone & set(each.members)), len(line.batches))
    kept = tuple(each for each in line.places if each.entry.id not in gone)
    return _dropped(replace(line, places=kept), first)


def told(line: MergeQueueState, outcome: MergeOutcome) -> MergeQueueState:
    """It was heard."""
    return replace(line, ended=tuple(each for each in line.ended if each != outcome))


def stopped(line: MergeQueueState, run_id: str) -> MergeQueueState:
    """A test run is no more."""
    return replace(line, stopping=tuple(each for each in line.stopping if each != run_id))


def closed(line: MergeQueueState, details: str) -> MergeQueueState:
    """Nobody can be merged any more, and everybody is told why."""
    ended = [_failed(line, each.entry.id, details) for each in line.places]
    return replace(_dropped(line, 0), places=(), ended=(*line.ended, *ended))


def troubled(line: MergeQueueState, problem: str, now: int) -> MergeQueueState:
    """The repository cannot be used now. That is nobody's fault who waits."""
    return replace(line, trouble=line.trouble.again(problem, now))


# -- a batch


def formed(line: MergeQueueState, now: int, limits: BatchLimits) -> MergeQueueState:
    """One more batch at the end, of the longest run of those who can be tested together; the same line if none can."""
    if len(line.batches) >= limits.speculative or any(not each.commits for each in line.batches):
        return line
    taken = {id for each in line.batches for id in each.members}
    live = {each.number for each in line.batches}
    free = (
        each
        for each in line.places
        if each.entry.id not in taken and each.behind not in live and each.trouble.not_before <= now
    )
    run = _run(free, limits.batch)
    if not run:
        return line
    number = line.numbered + 1
    ids = tuple(each.entry.id for each in run)
    batch = MergeBatch(number=number, method=run[0].entry.method, members=ids, at=now)
    return replace(line, batches=(*line.batches, batch), numbered=number)


def _run(free: Iterator[QueuedEntry], most: int) -> list[QueuedEntry]:
    run: list[QueuedEntry] = []
    for each in free:
        if run and (each.kind != run[0].kind or each.entry.method == NONE or len(run) >= most):
            break
        if run and len(rules_of([*(other.entry for other in run), each.entry])) > MAX_RULES:
            break
        run.append(each)
    return run


def built(line: MergeQueueState, number: int, made: BuildResult, now: int) -> MergeQueueState:
    """A batch has its commits. Those who could not be joined are out, or wait."""
    batch = line.batch(number)
    if batch is None or batch.commits:
        return line
    problems, behind = dict(made.troubled), dict(made.behind)
    out = {each.id for each in made.failed}
    places: list[QueuedEntry] = []
    for each in line.places:
        id = each.entry.id
        if id in out:
            continue
        trouble = each.trouble
        if id in problems:
            trouble = trouble.again(problems[id], now)
        elif id in made.members:
            trouble = NO_FAILURE
        places.append(replace(each, behind=behind.get(id, each.behind), trouble=trouble))
    line = replace(line, places=tuple(places), ended=(*line.ended, *made.failed), trouble=NO_FAILURE)
    if not made.members:
        return _dropped(line, line.batches.index(batch))
    done = replace(batch, base=made.base, start=made.start, members=made.members, commits=made.commits)
    if not tests_of(line, done):
        done = replace(done, found=BatchResult(True))
    return _with(line, done)


def tested(line: MergeQueueState, run_id: str, found: BatchResult) -> MergeQueueState:
    """What a test run said of a batch."""
    batch = _of_run(line, run_id)
    return line if batch is None else _with(line, replace(batch, found=found))


def lost(line: MergeQueueState, run_id: str, problem: str, now: int) -> MergeQueueState:
    """A test run ended and said nothing about what it tested: there will be another one."""
    batch = _of_run(line, run_id)
    return line if batch is None else _with(line, replace(batch, trouble=batch.trouble.again(problem, now)))


def judged(line: MergeQueueState, number: int) -> MergeQueueState:
    """The first batch is bad. One alone is out; more are split, and never tested together again."""
    batch = line.batch(number)
    if batch is None or batch is not line.batches[0] or batch.found is None or batch.found.is_good:
        return line
    if len(batch.members) == 1:
        id = batch.members[0]
        ended = (*line.ended, _failed(line, id, batch.found.details))
        line = replace(line, places=tuple(each for each in line.places if each.entry.id != id), ended=ended)
        # Nobody stands on what is not merged.
        return replace(line, batches=line.batches[1:]) if batch.method == NONE else _dropped(line, 0)
    # Where every member was tested on its own place, those before the first bad one are known to be good.
    cut = len(batch.members) // 2 if len(set(batch.commits)) == 1 else max(1, batch.found.at)
    first, second = line.grouped + 1, line.grouped + 2
    groups = {id: first if n < cut else second for n, id in enumerate(batch.members)}
    places = tuple(replace(each, group=groups.get(each.entry.id, each.group)) for each in line.places)
    split = BatchSplit(
        number=number,
        first=batch.members[:cut],
        second=batch.members[cut:],
        problem=batch.found.details[:MAX_PROBLEM],
    )
    return replace(_dropped(line, 0), places=places, grouped=second, splits=(*splits_of(line), split))


def splits_of(line: MergeQueueState) -> tuple[BatchSplit, ...]:
    """The splits that somebody in the line comes from."""
    here = {each.entry.id for each in line.places}
    return tuple(each for each in line.splits if not here.isdisjoint((*each.first, *each.second)))


def landing(line: MergeQueueState, number: int) -> MergeQueueState:
    """The first batch, found good, is about to land. Unchanged if it is not there like this."""
    batch = line.batch(number)
    if batch is None or batch is not line.batches[0] or batch.found is None or not batch.found.is_good:
        return line
    return _with(line, replace(batch, is_landing=True))


def landed(line: MergeQueueState, number: int) -> MergeQueueState:
    """The base has the first batch. What stands on it stays as it is."""
    batch = line.batch(number)
    if batch is None or not batch.is_landing:
        return line
    is_none = batch.method == NONE
    ended = [
        MergeOutcome(id=id, tenant=line.tenant, is_merged=True, commit="" if is_none else commit)
        for id, commit in zip(batch.members, batch.commits, strict=True)
    ]
    return replace(
        line,
        places=tuple(each for each in line.places if each.entry.id not in batch.members),
        batches=line.batches[1:],
        ended=(*line.ended, *ended),
        trouble=NO_FAILURE,
    )


def moved(line: MergeQueueState, number: int, *, is_landing: bool = False) -> MergeQueueState:
    """The base is not where the first batch stands: all is built anew.

    Of one that is landing only who lands it can say so: for others, the base may have moved by just that.
    """
    batch = line.batch(number)
    return _dropped(line, 0) if batch is not None and batch.is_landing == is_landing else line


def _with(line: MergeQueueState, batch: MergeBatch) -> MergeQueueState:
    return replace(line, batches=tuple(batch if each.number == batch.number else each for each in line.batches))


def _dropped(line: MergeQueueState, first: int) -> MergeQueueState:
    """Throw away the batches from this position on; who tests them need not go on."""
    gone = line.batches[first:]
    runs = [run_of(line, each) for each in gone if each.commits and each.found is None]
    return replace(line, batches=line.batches[:first], stopping=(*line.stopping, *runs))


def _failed(line: MergeQueueState, id: str, details: str) -> MergeOutcome:
    return MergeOutcome(id=id, tenant=line.tenant, is_merged=False, details=details)


# -- its tests


def queue_digest(tenant: str, project: str, base: str) -> str:
    """A short name for the line before one base."""
    return digest("merge", tenant, project, base)


def run_of(line: MergeQueueState, batch: MergeBatch) -> str:
    """The run that tests a batch: the same whoever asks, another one for every try."""
    queue = queue_digest(line.tenant, line.project, line.base)
    what = (str(batch.number), str(batch.at), str(batch.trouble.tries), batch.start, *batch.members, *batch.commits)
    return f"{MERGE_RUN_PREFIX}{queue}-{digest(*what, size=8)}"


def _of_run(line: MergeQueueState, run_id: str) -> MergeBatch | None:
    """The batch that waits for this run."""
    waiting = (each for each in line.batches if each.commits and each.found is None)
    return next((each for each in waiting if run_of(line, each) == run_id), None)


def rules_of(entries: Iterable[MergeEntry]) -> list[dict[str, Any]]:
    """What must hold of the tree that has all of these; what is looked at by the server is left out."""
    found: dict[bytes, dict[str, Any]] = {}
    for entry in entries:
        for rule in entry.rules:
            if not rule.get("within") and not rule.get("mergeable"):
                found.setdefault(msgspec.json.encode(rule, order="sorted"), rule)
    return list(found.values())


class TestTarget(msgspec.Struct, frozen=True):
    """A commit to test with these rules; `last` is the index of the last member that it covers."""

    commit: str
    rules: list[dict[str, Any]]
    last: int


def tests_of(line: MergeQueueState, batch: MergeBatch) -> list[TestTarget]:
    """Every commit that the base would get for a member, and what must hold of it: what those up to it want."""
    entries = line.entries(batch)
    found: dict[str, TestTarget] = {}
    for position, commit in enumerate(batch.commits):
        found[commit] = TestTarget(commit, rules_of(entries[: position + 1]), position)
    return [each for each in found.values() if each.rules]


def outcome_of(results: Sequence[tuple[TestTarget, str | None]]) -> BatchResult:
    """Good, unless one of the tested commits is bad: the first of those, with what was wrong with it."""
    bad = [(tested, why) for tested, why in results if why is not None]
    if not bad:
        return BatchResult(True)
    first, why = min(bad, key=lambda each: each[0].last)
    return BatchResult(False, first.last, why or "")
