"""Whatever happens, whoever asks why is answered: what it waits for while it lives, why it ended when it is over."""

from __future__ import annotations

from random import Random

from deltaci.core import attempt, job, run
from deltaci.core.attempt import Attempt
from deltaci.core.explain import ENDS, Explanation
from deltaci.core.job import Job
from deltaci.core.run import Run
from tests.core.explaining import Archive
from tests.histories import History

SEEDS = range(40)
STEPS = 120
GOES_ON = {attempt.STARTING, attempt.RUNNING, attempt.UPLOADING}
BAD_ENDS = ENDS - {"succeeded", "approved"}


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


def explained(archive: Archive, record: Run | Job | Attempt) -> None:
    told = archive.why(record)

    assert (told.id, told.state) == (record.id, record.state)
    check_texts(told)
    if is_over(record):
        check_end(record, told)
    elif not goes_on(archive, record):
        assert told.waiting, f"{record.id} is {record.state} and waits for nothing"


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
    ends = [reason for reason in told.history if reason.code in ENDS and reason.about == record.id]
    assert ends, f"{record.id} is {record.state} and nobody says why: {told}"
    assert told.summary.rstrip(".") in ends[-1].text, told
    if told.status.upper() in ("FAILED", "CANCELED"):
        assert ends[-1].code in BAD_ENDS


class Asked(History):
    """A history in which somebody asks about everything after every step."""

    def __init__(self, randomness: Random) -> None:
        super().__init__(randomness, max_jobs=8)
        self.asked: dict[str, int] = {}

    def check(self) -> None:
        archive = Archive(self.lab)
        for record in archive.records.values():
            # What is over and was explained is not going to change.
            if isinstance(record, Run | Job | Attempt) and self.asked.get(record.id) != record.rev:
                if is_over(record):
                    self.asked[record.id] = record.rev
                explained(archive, record)


def test_everything_is_explained_at_every_step_of_random_histories() -> None:
    """A question without an answer is a person who cannot go on."""
    for seed in SEEDS:
        Asked(Random(seed)).go(STEPS).calm()
