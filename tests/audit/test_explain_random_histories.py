"""Every record of a random history is explained: its waits while it is open, its outcome when it has ended."""

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
from tests.support.histories import History
from tests.support.lab import Lab, task

SEEDS = range(25)
STEPS = 120
MAX_SECONDS = 0.5  # About 20 ms on an idle machine. A search through all events per job would take far more.
RUNNING_STATES = {attempt.STARTING, attempt.RUNNING, attempt.UPLOADING}
BAD_ENDS = END_CODES - {"succeeded", "approved"}


def is_running(archive: Archive, record: Run | Job | Attempt) -> bool:
    """Return True if a worker is running it or a part of it, so that it need not wait for anything."""
    if isinstance(record, Attempt):
        return record.state in RUNNING_STATES
    if isinstance(record, Job):
        return record.state == job.RUNNING and archive.records[record.attempt_id].state in RUNNING_STATES
    return any(is_running(archive, job) for job in archive.jobs.get(record.id, []))


def has_ended(record: Run | Job | Attempt) -> bool:
    if isinstance(record, Run):
        return run.is_over(record)
    return record.state in (job.TERMINAL if isinstance(record, Job) else attempt.TERMINAL)


def check_explanation(archive: Archive, record: Run | Job | Attempt, **tenant: Any) -> set[str]:
    """Check the explanation of the record and return the codes of its reasons."""
    explanation = archive.why(record, **tenant)

    assert (explanation.id, explanation.state) == (record.id, record.state)
    check_texts(explanation)
    if has_ended(record):
        check_end(record, explanation)
    elif not is_running(archive, record):
        assert explanation.waiting, f"{record.id} is {record.state} and waits for nothing"
    return {reason.code for reason in (*explanation.waiting, *explanation.history)}


def check_texts(explanation: Explanation) -> None:
    for text in (explanation.summary, *(reason.text for reason in (*explanation.waiting, *explanation.history))):
        assert text.isprintable(), text
        assert text.endswith("."), text
        assert ".." not in text, text
        assert "  " not in text, text
        assert text.count("“") == text.count("”"), text
        assert len(text) < 1500
    times = [reason.at for reason in explanation.history if reason.at is not None]
    assert times == sorted(times)


def check_end(record: Run | Job | Attempt, explanation: Explanation) -> None:
    assert not explanation.waiting
    ends = [reason for reason in explanation.history if reason.code in END_CODES and reason.about == record.id]
    assert ends, f"{record.id} is {record.state} and has no reason for that: {explanation}"
    assert explanation.summary.rstrip(".") in ends[-1].text, explanation
    if explanation.status.upper() in ("FAILED", "CANCELED"):
        assert ends[-1].code in BAD_ENDS


class ExplainedHistory(History):
    """A random history in which every record is explained after every step."""

    def __init__(self, randomness: Random) -> None:
        super().__init__(randomness, max_jobs=8)
        self.choices = Random(1)
        self.explained_revs: dict[str, int] = {}
        self.codes = set[str]()

    def check(self) -> None:
        archive = Archive(self.lab)
        for record in archive.records.values():
            # The explanation of a record that has ended does not change any more.
            if isinstance(record, Run | Job | Attempt) and self.explained_revs.get(record.id) != record.rev:
                if has_ended(record):
                    self.explained_revs[record.id] = record.rev
                quota = self.choices.choice((0, 3))
                ahead = {record.id: self.choices.choice((0, 2))}
                self.codes |= check_explanation(archive, record, running_quota=quota, running=3, ahead=ahead)


def test_every_record_is_explained_at_every_step_of_random_histories() -> None:
    """Every state must have a reason."""
    codes = set[str]()

    for seed in SEEDS:
        history = ExplainedHistory(Random(seed))
        history.go(STEPS).calm()
        codes |= history.codes

    assert codes <= CODES
    # Rare codes have their own tests.
    assert len(CODES - codes) <= 12, sorted(CODES - codes)


def test_a_run_of_a_thousand_jobs_is_explained_quickly() -> None:
    """Process time is measured, so that a busy machine does not matter."""
    names = [f"j{index}" for index in range(1000)]
    lab = Lab().plan(*(task(name, max_attempts=3) for name in names), *(task(f"after-{name}", name) for name in names))
    for name in names:
        lease = lab.claim(lab.attempt(name))
        for _ in range(10):
            lab.after(0.001).send(attempt.Heartbeat, lease)
        lab.fail(lease)
    archive = Archive(lab)

    seconds = min(seconds_to_explain(archive, lab.run()) for _ in range(5))

    assert len(lab.log) > 20_000
    assert seconds < MAX_SECONDS, f"{seconds * 1000:.1f} ms"


def seconds_to_explain(archive: Archive, record: Run) -> float:
    begin = process_time()
    archive.why(record)
    return process_time() - begin
