"""When a run did what: from its events, and from what runners say of their times where that can be believed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import pytest

from deltaci.audit.timeline import PHASES, Timeline, timeline
from deltaci.core import attempt, job, run
from deltaci.core.decide import job_id
from deltaci.core.instants import SECOND
from deltaci.core.run import Run
from tests.audit.explanations import Archive
from tests.histories import History
from tests.lab import START, Lab, Lease, gate, task

SEEDS = range(12)
STEPS = 120


def times(lab: Lab, id: str = "r1") -> Timeline:
    """Of a run of the lab."""
    archive = Archive(lab)
    return timeline(lab.run(id), archive.jobs.get(id, []), archive.attempts.get(id, []), archive.events[id])


def phases(lab: Lab, name: str) -> list[tuple[str, int, float, float | None]]:
    """Of one job: what, in which attempt, from when to when, in seconds from the beginning."""
    found = next(each for each in times(lab).jobs if each.name == name)
    return [
        (each.name, each.attempt, (each.start - START) / SECOND, (each.end - START) / SECOND if each.end else None)
        for each in found.phases
    ]


def moment(seconds: float) -> str:
    """A time as runners write it."""
    return (datetime.fromtimestamp(START / SECOND, UTC) + timedelta(seconds=seconds)).isoformat()


def taken(lab: Lab, name: str = "a") -> Lease:
    """A worker has the job and has said so."""
    lease = lab.claim(lab.attempt(name))
    lab.say(attempt.Ack, lease)
    return lease


def test_a_job_goes_through_its_phases() -> None:
    """Each from when the log says it; beats are not phases of their own."""
    lab = Lab().plan(task("a"), task("b", "a"))
    lease = taken(lab.after(2))
    lab.after(3).say(attempt.Start, lease)
    lab.after(1).say(attempt.Heartbeat, lease)
    lab.after(4).say(attempt.BeginUpload, lease)
    lab.after(2).complete(lease)

    assert phases(lab, "a") == [
        ("queued", 1, 0, 2),
        ("starting", 1, 2, 5),
        ("running", 1, 5, 10),
        ("uploading", 1, 10, 12),
    ]
    assert phases(lab, "b") == [("queued", 1, 12, None)]
    assert not times(lab).is_over


def test_what_waits_for_others_has_no_phase() -> None:
    """Nothing of it could be shortened."""
    lab = Lab().plan(task("a"), task("b", "a"))

    assert phases(lab.after(5), "b") == []


def test_a_retry_is_another_attempt_after_its_backoff() -> None:
    """The wait between them is the job's own."""
    lab = Lab().plan(task("a", max_attempts=2, base_delay_seconds=10))
    lease = taken(lab)
    lab.after(1).fail(lease)
    due = lab.job("a").next_run_at
    lab.after((due - lab.now) / SECOND).do(job.RetryDue(id=job_id("r1", "a")))
    waited = (due - START) / SECOND

    assert [each[:2] for each in phases(lab, "a")] == [("starting", 1), ("backoff", 0), ("queued", 2)]
    assert phases(lab, "a")[1][2:] == (1, waited)


def test_a_lost_lease_is_one_attempt_that_queues_again() -> None:
    """Whose worker went silent."""
    lab = Lab().plan(task("a"))
    lease = taken(lab)
    lab.after(1).say(attempt.Start, lease)
    lab.after(300).do(attempt.Expire(id=lease.ref.attempt_id))

    assert [each[0] for each in phases(lab, "a")] == ["starting", "running", "queued"]
    assert {each[1] for each in phases(lab, "a")} == {1}


def test_an_approval_waits_for_people_and_a_cancel_stops() -> None:
    """Until somebody decides; until the runner has stopped."""
    lab = Lab().plan(gate("g"), task("a"))
    lab.after(7).approve("g")
    taken(lab.after(1))
    lab.cancel_run()

    assert phases(lab, "g") == [("approval", 0, 0, 7)]
    assert [each[0] for each in phases(lab, "a")] == ["queued", "stopping"]
    assert phases(lab, "a")[-1][3] is None
    assert not times(lab).is_over


def test_a_runner_that_speaks_seldom_tells_its_times_afterwards() -> None:
    """A short job is never heard to run: its result implies all that went before."""
    lab = Lab().plan(task("a"))
    lease = taken(lab)
    report = {"timings": {"started_at": moment(2), "finished_at": moment(8.5)}}
    lab.after(10).complete(lease, report=report)

    assert phases(lab, "a") == [("starting", 1, 0, 2), ("running", 1, 2, 8.5), ("uploading", 1, 8.5, 10)]


@pytest.mark.parametrize(
    "report",
    [
        None,
        {},
        {"timings": None},
        {"timings": "soon"},
        {"timings": {"started_at": moment(2)}},
        {"timings": {"started_at": "yesterday", "finished_at": moment(3)}},
        {"timings": {"started_at": moment(-5), "finished_at": moment(3)}},
        {"timings": {"started_at": moment(2), "finished_at": moment(400)}},
        {"timings": {"started_at": moment(4), "finished_at": moment(3)}},
        {"timings": {"started_at": "2026-01-04T08:00:01", "finished_at": "2026-01-04T08:00:02"}},
    ],
)
def test_times_that_cannot_be_are_left_aside(report: Any) -> None:
    """A runner's clock may be years off, and its report is what it likes."""
    lab = Lab().plan(task("a"))
    lease = taken(lab)
    lab.after(1).say(attempt.Start, lease)
    lab.after(9).complete(lease, report=report)

    assert phases(lab, "a") == [("starting", 1, 0, 1), ("running", 1, 1, 10)]


def test_the_critical_path_is_what_the_end_waited_for() -> None:
    """From the last job back, each time to whom it waited for longest; not before all are over."""
    lab = Lab().plan(task("a"), task("b"), task("c", "a", "b"), task("d", "a"))
    lab.after(1).work("a")
    lab.after(1).work("b")
    lab.after(1).work("d")
    assert times(lab).critical == ()
    lab.after(1).work("c")

    assert times(lab).critical == ("b", "c")
    assert times(lab).is_over


def test_whatever_happens_phases_fit_together() -> None:
    """In order, inside the run, one at a time in each attempt, and none is left when all is over."""
    seen: set[str] = set()
    for seed in SEEDS:
        history = History(Random(seed)).go(STEPS)
        for record in list(history.lab.world.records.values()):
            if not isinstance(record, Run):
                continue
            found = times(history.lab, record.id)
            for each in found.jobs:
                ends: dict[int, int] = {}
                for phase in each.phases:
                    seen.add(phase.name)
                    end = phase.end if phase.end is not None else found.until
                    assert found.start <= phase.start <= end <= found.until
                    assert phase.start >= ends.get(phase.attempt, 0)
                    ends[phase.attempt] = end
            goes_on = [phase for each in found.jobs for phase in each.phases if phase.end is None]
            assert found.is_over == (run.is_over(record) and not goes_on)
            assert set(found.critical) <= {each.name for each in found.jobs}
    assert seen <= set(PHASES)
    assert len(seen) >= len(PHASES) - 1  # What is rare has a test of its own.
