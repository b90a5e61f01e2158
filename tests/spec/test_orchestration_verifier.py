"""The verifier reports each rule of docs/spec/orchestration.md when one line of a log is altered."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from deltaci.audit.verify import verify
from deltaci.core import attempt, job, lease, run
from deltaci.core.decide import CancelJob, Plan
from deltaci.core.instants import rfc3339
from tests.spec.scenes import ID
from tests.support.lab import Lab, gate, task

JOB = "r1/build"
LATER = "2026-01-04T23:00:00.000000Z"
START = "2026-01-04T08:00:00.000000Z"

Position = tuple[str, str | None, str]  # the entity, and its `from` and `to`


def finished() -> Lab:
    """A run that succeeded with one job, and one that was allowed to fail."""
    lab = Lab().plan(task("build"), task("lint", is_required=False))
    lab.after(1).work("lint", "w2", ok=False)
    lab.after(1).work("build")
    return lab


def failed() -> Lab:
    """A run that failed with its job."""
    lab = Lab().plan(task("build"))
    lab.after(1).work("build", ok=False)
    return lab


def retried() -> Lab:
    """A run whose job succeeded at its second attempt."""
    lab = Lab().plan(task("build", max_attempts=2))
    lab.after(1).fail(lab.claim(lab.attempt("build")))
    lab.after(600).do(job.RetryDue(id=JOB))
    lab.after(1).work("build")
    return lab


def lost() -> Lab:
    """A run whose runner never came back."""
    lab = Lab().plan(task("build"))
    lab.claim(lab.attempt("build"))
    lab.after(lease.TTL_SECONDS).do(attempt.Expire(id=ID))
    return lab


def timed_out() -> Lab:
    """A run whose job hung."""
    lab = Lab().plan(task("build"))
    lab.send(attempt.Heartbeat, lab.claim(lab.attempt("build")))
    lab.after(attempt.TIMEOUT_SECONDS).do(attempt.TimeOut(id=ID))
    return lab


def run_timed_out() -> Lab:
    """A run that took too long."""
    lab = Lab().plan(task("build"))
    lab.claim(lab.attempt("build"))
    lab.after(run.TIMEOUT_SECONDS).do(run.TimeOut(id="r1"))
    return lab


def forced() -> Lab:
    """A run that was canceled by force."""
    lab = Lab().plan(task("build"))
    lab.send(attempt.Heartbeat, lab.claim(lab.attempt("build")))
    lab.after(1).cancel_run()
    lab.after(lease.CANCEL_SECONDS).do(attempt.ForceCancel(id=ID))
    return lab


def group_awaited() -> Lab:
    """A run whose plan waited for its concurrency group for longer than planning may take."""
    lab = Lab()
    lab.create()
    lab.do(run.BeginPlanning(id="r1"))
    lab.after(1).do(run.AwaitGroup(id="r1", group="deploy"))
    lab.after(run.PLANNING_SECONDS).do(Plan(id="r1", jobs=(task("build"),), plan_hash="hash"))
    return lab


def unstarted() -> Lab:
    """A run whose queued job was canceled by a person."""
    lab = Lab().plan(task("build"), task("lint"))
    lab.after(1).do(CancelJob(id=JOB, actor="user:ada"))
    return lab


SCENARIOS = {
    build.__name__: build
    for build in (finished, failed, retried, lost, timed_out, run_timed_out, forced, unstarted, group_awaited)
}

BREAKS: list[tuple[str, str, Position, str, Any]] = [
    ("ORC-R2", "finished", ("r1", run.CREATED, run.PLANNING), "to", run.CREATED),
    ("ORC-R3", "group_awaited", ("r1", run.PLANNING, run.PLANNING), "metadata.concurrency_group", ""),
    ("ORC-R3", "group_awaited", ("r1", run.CREATED, run.PLANNING), "metadata.plan_by", START),
    ("ORC-R5", "finished", ("r1/lint", job.QUEUED, job.RUNNING), "to", job.QUEUED),
    ("ORC-R7", "failed", ("r1", run.RUNNING, run.FAILED), "metadata.job_id", "r1/other"),
    ("ORC-R8", "forced", ("r1", run.RUNNING, run.CANCEL_REQUESTED), "metadata.reason", ""),
    ("ORC-R10", "run_timed_out", ("r1", None, run.CREATED), "metadata.timeout_seconds", run.TIMEOUT_SECONDS + 1),
    ("ORC-RF1", "finished", ("r1/lint", None, job.PENDING), "metadata.is_required", True),
    ("ORC-RF3", "forced", ("r1", run.CANCEL_REQUESTED, run.CANCELED), "metadata.reason", "ANOTHER"),
    ("ORC-A1", "finished", (ID, attempt.CREATED, attempt.QUEUED), "metadata.job_id", "r1/other"),
    ("ORC-A7", "lost", (ID, attempt.STALE, attempt.QUEUED), "at", LATER),
    ("ORC-A10", "forced", (ID, attempt.CANCEL_REQUESTED, attempt.CANCELED), "metadata.reason", "ANOTHER"),
    ("ORC-J1", "finished", (JOB, job.VALIDATING, job.SUCCEEDED), "to", job.QUEUED),
    ("ORC-J2", "failed", (JOB, job.RUNNING, job.FAILED), "to", job.SUCCEEDED),
    ("ORC-J3", "forced", (JOB, job.RUNNING, job.CANCELED), "metadata.reason", "ANOTHER"),
    ("ORC-L2", "lost", (ID, attempt.QUEUED, attempt.LEASED), "metadata.lease.expires_at", LATER),
    ("ORC-LF1", "finished", (ID, attempt.LEASED, attempt.STARTING), "metadata.lease.number", 2),
    ("ORC-LF1", "finished", (ID, attempt.LEASED, attempt.STARTING), "metadata.lease.worker_id", "w2"),
    ("ORC-LF2", "finished", (ID, attempt.UPLOADING, attempt.SUCCEEDED), "metadata.lease.to", lease.REVOKED),
    ("ORC-LF3", "finished", (ID, attempt.UPLOADING, attempt.SUCCEEDED), "metadata.lease.from", lease.EXPIRED),
    ("ORC-C1", "forced", (ID, attempt.RUNNING, attempt.CANCEL_REQUESTED), "metadata.cancel_by", START),
    ("ORC-C2", "forced", (ID, attempt.CANCEL_REQUESTED, attempt.CANCELED), "metadata.is_forced", False),
    ("ORC-C3", "unstarted", (ID, attempt.CANCEL_REQUESTED, attempt.CANCELED), "at", LATER),
    ("ORC-Y3", "retried", ("r1/build.2", attempt.CREATED, attempt.QUEUED), "metadata.index", 3),
    ("ORC-Y3", "retried", (JOB, job.RETRYING, job.QUEUED), "metadata.attempt_index", 1),
    ("ORC-Y5", "retried", (ID, attempt.UPLOADING, attempt.FAILED), "to", attempt.UPLOADING),
    ("ORC-T1", "lost", (ID, attempt.QUEUED, attempt.LEASED), "metadata.lease.expires_at", START),
    ("ORC-T2", "timed_out", (ID, "CREATED", "QUEUED"), "metadata.timeout_seconds", attempt.TIMEOUT_SECONDS + 1),
    ("ORC-T4", "forced", (ID, attempt.RUNNING, attempt.CANCEL_REQUESTED), "metadata.cancel_by", LATER),
    ("ORC-O1", "finished", ("r1", run.QUEUED, run.RUNNING), "actor", "worker:w1"),
    ("ORC-O1", "finished", ("r1", run.RUNNING, run.VALIDATING), "to", run.SUCCESS),
    ("ORC-O1", "timed_out", (ID, attempt.RUNNING, attempt.TIMED_OUT), "actor", "worker:w1"),
]


def forged(lines: list[bytes], where: Position, path: str, value: Any) -> list[bytes]:
    """The log with one field of one line changed."""
    log: list[dict[str, Any]] = [msgspec.json.decode(line) for line in lines]
    part = next(line for line in log if (line["entity_id"], line["from"], line["to"]) == where)
    *parents, last = path.split(".")
    for name in parents:
        part = part[name]
    assert part[last] != value
    part[last] = value
    return [msgspec.json.encode(line) for line in log]


@pytest.mark.proves("ORC-R2", "ORC-R5", "ORC-R7", "ORC-R8", "ORC-R10", "ORC-RF1", "ORC-RF3")
@pytest.mark.proves("ORC-A1", "ORC-A7", "ORC-A10", "ORC-J1", "ORC-J2", "ORC-J3")
@pytest.mark.proves("ORC-L2", "ORC-LF1", "ORC-LF2", "ORC-LF3", "ORC-C1", "ORC-C2", "ORC-C3")
@pytest.mark.proves("ORC-Y3", "ORC-Y5", "ORC-T1", "ORC-T2", "ORC-T4", "ORC-O1")
@pytest.mark.parametrize(("rule", "scenario", "where", "path", "value"), BREAKS)
def test_a_log_that_breaks_the_rule_is_reported(
    rule: str, scenario: str, where: Position, path: str, value: Any
) -> None:
    """The code that enforces a rule must not be the only one that checks it."""
    lab = SCENARIOS[scenario]()
    lab.verified()

    report = verify(forged(lab.canonical(), where, path, value))

    assert rule in {violation.rule for violation in report.violations}


def timed_out_while_waiting(*, is_old: bool) -> list[bytes]:
    """Return the log of a run that timed out while it waited for approval, as older versions or a mistake write it."""
    lab = Lab().plan(gate("g"), timeout_seconds=100)
    log: list[dict[str, Any]] = [msgspec.json.decode(line) for line in lab.canonical()]
    waiting = next(line for line in log if (line["entity_id"], line["to"]) == ("r1", run.WAITING_APPROVAL))
    opened = next(line for line in log if (line["entity_id"], line["to"]) == ("r1/g", job.WAITING_APPROVAL))
    if is_old:
        del waiting["metadata"]["stops_clock"]
    for line, to, trigger, severity in (
        (waiting, run.TIMEOUT, "run_timed_out", "critical"),
        (opened, job.CANCELED, "user_cancelled", "info"),
    ):
        changes = {"seq": log[-1]["seq"] + 1, "rev": line["rev"] + 1, "from": line["to"], "to": to}
        metadata = {"reason": job.RUN_TIMEOUT}
        at = rfc3339(lab.after(0).now + 100_000_000)
        log.append({**line, **changes, "at": at, "trigger": trigger, "severity": severity, "metadata": metadata})
    return [msgspec.json.encode(line) for line in log]


@pytest.mark.proves("MOD-11")
def test_a_run_that_times_out_while_it_waits_for_approval_is_reported() -> None:
    """Only logs of older versions may show it, in which the wait counted."""
    assert {violation.rule for violation in verify(timed_out_while_waiting(is_old=False)).violations} == {"MOD-11"}
    assert verify(timed_out_while_waiting(is_old=True)).violations == []


@pytest.mark.proves("MOD-11")
def test_a_timeout_that_counts_the_wait_for_approval_is_reported() -> None:
    """The run has as much time left after the wait as before it."""
    lab = Lab().plan(gate("g"), task("build", "g"), timeout_seconds=100)
    lab.after(1000).approve("g")
    lab.after(100).do(run.TimeOut(id="r1"))
    lab.verified()

    early = forged(lab.canonical(), ("r1", run.RUNNING, run.TIMEOUT), "at", rfc3339(lab.now - 1_000_000))

    assert "ORC-R10" in {violation.rule for violation in verify(early).violations}
