"""Whatever happens, whoever asks why is answered: what it waits for while it lives, why it ended when it is over."""

from __future__ import annotations

from random import Random
from time import process_time
from typing import Any

from deltaci.audit.explain import CODES, END_CODES, Explanation
from deltaci.core import attempt, job, run
from deltaci.core.attempt import Attempt
from deltaci.core.job import Job
from deltaci.core.run import Run
from tests.audit.explanations import Archive
from tests.histories import History
from tests.lab import Lab, task

SEEDS = range(25)
STEPS = 120
MAX_SECONDS = 0.5  # Some 20 ms on a quiet machine: whoever looks through everything for each job takes far more.
GOES_ON = {attempt.STARTING, attempt.RUNNING, attempt.UPLOADING}
BAD_ENDS = END_CODES - {"succeeded", "approved"}


def goes_on(archive: Archive, record: Run | Job | Attempt) -> bool:
    """Whether a runner is at work on it: nothing has to be waited for."""
    if isinstance(record, Attempt):
        return record.state in GOES_ON
    if isinstance(record, Job):
        return record.state == job.RUNNING and archive.records[record.attempt_id].state in GOES_ON
    return any(goes_on(archive, each) for each in archive.jobs.get(record.id, []))


def is_over(record: Run | Job | Attempt) -> bool:
    if isinstance(record, Run):
        return run.is_over(record)
    return record.state in (job.TERMINAL if isinstance(record, Job) else attempt.TERMINAL)


def explained(archive: Archive, record: Run | Job | Attempt, **around: Any) -> set[str]:
    """Ask about the record, check the answer, and say which kinds of reasons it had."""
    told = archive.why(record, **around)

    assert (told.id, told.state) == (record.id, record.state)
    check_texts(told)
    if is_over(record):
        check_end(record, told)
    elif not goes_on(archive, record):
        assert told.waiting, f"{record.id} is {record.state} and waits for nothing"
    return {reason.code for reason in (*told.waiting, *told.history)}


def check_texts(told: Explanation) -> None:
    for each in (told.summary, *(reason.text for reason in (*told.waiting, *told.history))):
        assert each.isprintable(), each
        assert each.endswith("."), each
        assert ".." not in each, each
        assert "  " not in each, each
        assert not each.count("“") - each.count("”"), each
        assert len(each) < 1500
    times = [reason.at for reason in told.history if reason.at is not None]
    assert times == sorted(times)


def check_end(record: Run | Job | Attempt, told: Explanation) -> None:
    assert not told.waiting
    ends = [reason for reason in told.history if reason.code in END_CODES and reason.about == record.id]
    assert ends, f"{record.id} is {record.state} and nobody says why: {told}"
    assert told.summary.rstrip(".") in ends[-1].text, told
    if told.status.upper() in ("FAILED", "CANCELED"):
        assert ends[-1].code in BAD_ENDS


class Asked(History):
    """A history in which somebody asks about everything after every step."""

    def __init__(self, randomness: Random) -> None:
        super().__init__(randomness, max_jobs=8)
        self.asking = Random(1)
        self.asked: dict[str, int] = {}
        self.codes = set[str]()

    def check(self) -> None:
        archive = Archive(self.lab)
        for record in archive.records.values():
            # What is over and was explained is not going to change.
            if isinstance(record, Run | Job | Attempt) and self.asked.get(record.id) != record.rev:
                if is_over(record):
                    self.asked[record.id] = record.rev
                quota = self.asking.choice((0, 3))
                ahead = {record.id: self.asking.choice((0, 2))}
                self.codes |= explained(archive, record, running_quota=quota, running=3, ahead=ahead)


def test_everything_is_explained_at_every_step_of_random_histories() -> None:
    """A question without an answer is a person who cannot go on."""
    told = set[str]()

    for seed in SEEDS:
        history = Asked(Random(seed))
        history.go(STEPS).calm()
        told |= history.codes

    assert told <= CODES
    # What is rarer than these histories has a test of its own.
    assert len(CODES - told) <= 12, sorted(CODES - told)


def test_a_run_of_a_thousand_jobs_is_explained_at_once() -> None:
    """Whoever asks why is already waiting. The time is this process's own, so that a busy machine does not matter."""
    names = [f"j{index}" for index in range(1000)]
    lab = Lab().plan(*(task(name, max_attempts=3) for name in names), *(task(f"after-{name}", name) for name in names))
    for name in names:
        lease = lab.claim(lab.attempt(name))
        for _ in range(10):
            lab.after(0.001).say(attempt.Heartbeat, lease)
        lab.fail(lease)
    archive = Archive(lab)

    seconds = min(spent(archive, lab.run()) for _ in range(5))

    assert len(lab.log) > 20_000
    assert seconds < MAX_SECONDS, f"{seconds * 1000:.1f} ms"


def spent(archive: Archive, record: Run) -> float:
    begin = process_time()
    archive.why(record)
    return process_time() - begin
