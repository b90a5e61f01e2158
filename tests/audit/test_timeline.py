"""The timeline of a run, from its events and from plausible times in runners' reports."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import pytest

from deltaci.audit.timeline import PHASES, Timeline, timeline
from deltaci.core import attempt, job, run
from deltaci.core.ids import job_id
from deltaci.core.instants import SECOND
from deltaci.core.run import Run
from tests.audit.explanations import Archive
from tests.support.histories import History
from tests.support.lab import START, Lab, Lease, gate, task

SEEDS = range(12)
STEPS = 120


def timeline_of(lab: Lab, id: str = "r1") -> Timeline:
    """Return the timeline of a run of the lab."""
    archive = Archive(lab)
    return timeline(lab.run(id), archive.jobs.get(id, []), archive.attempts.get(id, []), archive.events[id])


def phases(lab: Lab, name: str) -> list[tuple[str, int, float, float | None]]:
    """Return name, attempt, start and end of each phase of a job, in seconds from the start of the run."""
    job_times = next(job for job in timeline_of(lab).jobs if job.name == name)
    return [
        (
            phase.name,
            phase.attempt_index,
            (phase.start - START) / SECOND,
            (phase.end - START) / SECOND if phase.end else None,
        )
        for phase in job_times.phases
    ]


def moment(seconds: float) -> str:
    """Return a time in the format of runners."""
    return (datetime.fromtimestamp(START / SECOND, UTC) + timedelta(seconds=seconds)).isoformat()


def accepted_lease(lab: Lab, name: str = "a") -> Lease:
    """Claim and accept the job's attempt and return the lease."""
    lease = lab.claim(lab.attempt(name))
    lab.send(attempt.Ack, lease)
    return lease


def test_a_job_has_a_phase_for_each_state() -> None:
    """Heartbeats do not start new phases."""
    lab = Lab().plan(task("a"), task("b", "a"))
    lease = accepted_lease(lab.after(2))
    lab.after(3).send(attempt.Start, lease)
    lab.after(1).send(attempt.Heartbeat, lease)
    lab.after(4).send(attempt.BeginUpload, lease)
    lab.after(2).complete(lease)

    assert phases(lab, "a") == [
        ("queued", 1, 0, 2),
        ("starting", 1, 2, 5),
        ("running", 1, 5, 10),
        ("uploading", 1, 10, 12),
    ]
    assert phases(lab, "b") == [("queued", 1, 12, None)]
    assert not timeline_of(lab).is_over


def test_a_job_that_waits_for_others_has_no_phase() -> None:
    """Its own time has not started."""
    lab = Lab().plan(task("a"), task("b", "a"))

    assert phases(lab.after(5), "b") == []


def test_a_retry_is_another_attempt_after_a_backoff() -> None:
    """The backoff belongs to the job, not to an attempt."""
    lab = Lab().plan(task("a", max_attempts=2, base_delay_seconds=10))
    lease = accepted_lease(lab)
    lab.after(1).fail(lease)
    due = lab.job("a").next_run_at
    lab.after((due - lab.now) / SECOND).do(job.RetryDue(id=job_id("r1", "a")))
    backoff_end = (due - START) / SECOND

    assert [phase[:2] for phase in phases(lab, "a")] == [("starting", 1), ("backoff", 0), ("queued", 2)]
    assert phases(lab, "a")[1][2:] == (1, backoff_end)


def test_a_lost_lease_queues_the_same_attempt_again() -> None:
    """The worker went silent."""
    lab = Lab().plan(task("a"))
    lease = accepted_lease(lab)
    lab.after(1).send(attempt.Start, lease)
    lab.after(300).do(attempt.Expire(id=lease.ref.attempt_id))

    assert [phase[0] for phase in phases(lab, "a")] == ["starting", "running", "queued"]
    assert {phase[1] for phase in phases(lab, "a")} == {1}


def test_an_approval_and_a_cancel_have_their_own_phases() -> None:
    """They last until the decision, and until the worker has stopped."""
    lab = Lab().plan(gate("g"), task("a"))
    lab.after(7).approve("g")
    accepted_lease(lab.after(1))
    lab.cancel_run()

    assert phases(lab, "g") == [("approval", 0, 0, 7)]
    assert [phase[0] for phase in phases(lab, "a")] == ["queued", "stopping"]
    assert phases(lab, "a")[-1][3] is None
    assert not timeline_of(lab).is_over


def test_times_of_the_report_refine_the_phases() -> None:
    """The result of a short job implies all earlier states."""
    lab = Lab().plan(task("a"))
    lease = accepted_lease(lab)
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
def test_impossible_times_of_a_report_are_ignored(report: Any) -> None:
    """A runner's clock may be wrong, and its report may contain anything."""
    lab = Lab().plan(task("a"))
    lease = accepted_lease(lab)
    lab.after(1).send(attempt.Start, lease)
    lab.after(9).complete(lease, report=report)

    assert phases(lab, "a") == [("starting", 1, 0, 1), ("running", 1, 1, 10)]


def test_the_critical_path_has_the_jobs_that_the_end_waited_for() -> None:
    """Each time the predecessor that ended last; empty until all jobs have ended."""
    lab = Lab().plan(task("a"), task("b"), task("c", "a", "b"), task("d", "a"))
    lab.after(1).work("a")
    lab.after(1).work("b")
    lab.after(1).work("d")
    assert timeline_of(lab).critical == ()
    lab.after(1).work("c")

    assert timeline_of(lab).critical == ("b", "c")
    assert timeline_of(lab).is_over


def test_phases_of_random_histories_are_consistent() -> None:
    """They are ordered, inside the run, and do not overlap within an attempt."""
    names: set[str] = set()
    for seed in SEEDS:
        history = History(Random(seed)).go(STEPS)
        for record in list(history.lab.unit.records.values()):
            if not isinstance(record, Run):
                continue
            result = timeline_of(history.lab, record.id)
            for job_times in result.jobs:
                ends: dict[int, int] = {}
                for phase in job_times.phases:
                    names.add(phase.name)
                    end = phase.end if phase.end is not None else result.until
                    assert result.start <= phase.start <= end <= result.until
                    assert phase.start >= ends.get(phase.attempt_index, 0)
                    ends[phase.attempt_index] = end
            open_phases = [phase for job_times in result.jobs for phase in job_times.phases if phase.end is None]
            assert result.is_over == (run.is_over(record) and not open_phases)
            assert set(result.critical) <= {job_times.name for job_times in result.jobs}
    assert names <= set(PHASES)
    assert len(names) >= len(PHASES) - 1  # The rarest phase has its own test.
