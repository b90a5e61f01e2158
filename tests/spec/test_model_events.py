"""The rules of docs/spec/model.md about leases, events and failures, each proved on the real core."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any, Final

import msgspec
import pytest

from deltaci.core import attempt, ids, job, lease, run, worker
from deltaci.core.errors import StaleLease
from deltaci.core.events import ATTEMPT, JOB, LEASE, RUN, WORKER
from deltaci.core.instants import SECOND
from deltaci.core.machine import Machine
from tests.spec.logs import altered, decoded
from tests.support.lab import START, Lab, Lease, gate, task

FIELDS: Final = (
    *("seq", "at", "tenant", "entity", "entity_id", "run_id", "from", "to"),
    *("trigger", "actor", "severity", "request_id", "rev", "metadata"),
)


def busy() -> Lab:
    """A deployment that went through nearly everything: a retry, a lost worker, a gate, a cancel, a failed plan."""
    lab = Lab().plan(task("a", max_attempts=2), gate("g", "a"), task("b", "g"))
    lab.register("w1")
    lab.fail(lab.claim(lab.attempt("a")))
    lab.after(100).do(job.RetryDue(id="r1/a"))
    lab.claim(lab.attempt("a"))
    lab.after(1).do(worker.MissHealthChecks(id="w1"))
    lab.after(30).do(attempt.RevokeUnaccepted(id="r1/a.2"))
    lab.after(200).do(worker.GiveUp(id="w1"))
    lab.work("a", by="w2")
    lab.after(1).approve("g")
    lab.work("b", by="w2", ok=False)
    lab.report()
    lab.create("r2")
    lab.do(run.BeginPlanning(id="r2"))
    lab.after(60).do(run.TimeOutPlanning(id="r2"))
    lab.plan(task("x"), id="r3")
    lab.cancel_run("r3")
    return lab


# -- lease


@pytest.mark.proves("MOD-L1")
def test_the_lease_id_is_in_no_record_and_in_no_log() -> None:
    """Read access to the store or the log must not be enough to act as a runner."""
    lab = Lab().plan(task("a"))
    granted = lab.claim(lab.attempt("a"))
    lab.send(attempt.Heartbeat, granted)
    secret = granted.token.rpartition(".")[2].encode()

    stored = [msgspec.json.encode(record) for record in lab.unit.records.values()]
    written = [*map(msgspec.json.encode, lab.log), *lab.canonical(), *lab.transitions(), *lab.job_events()]

    assert len(secret) >= ids.MIN_SECRET_CHARS
    assert not [text for text in (*stored, *written) if secret in text]
    assert [text for text in stored if ids.lease_fingerprint(granted.token).encode() in text]


@pytest.mark.proves("MOD-L1", "MOD-L5")
@pytest.mark.parametrize("guess", ["r1/a.1.1.secret-0000000000000002", "r1/a.1.2.secret-0000000000000001"])
def test_a_guessed_lease_id_is_unknown(guess: str) -> None:
    """The attempt and the number are no secret, so they must not be enough."""
    lab = Lab().plan(task("a"))
    lab.claim(lab.attempt("a"), by="w1")

    assert lab.stale(lab.message(attempt.Complete, Lease("w1", guess), is_success=True, exit_code=0)) == "UNKNOWN_LEASE"


@pytest.mark.proves("MOD-L5")
@pytest.mark.parametrize("text", ["", "x", "r1/a.1.1.short", "r1/a.1.x.secret-0000000000000001", "..................."])
def test_a_text_that_cannot_be_a_lease_id_is_an_unknown_lease(text: str) -> None:
    """An invalid text gets the same response as an unknown lease."""
    with pytest.raises(StaleLease) as refusal:
        ids.lease_ref(text)

    assert refusal.value.reason == "UNKNOWN_LEASE"


@pytest.mark.proves("MOD-L2")
@pytest.mark.parametrize("id", ["q1", "r1/a.1", "r.1/a.b.12"])
def test_a_lease_id_carries_its_attempt(id: str) -> None:
    """The attempt is found without a second index, whatever its id looks like."""
    ref = ids.lease_ref(ids.lease_id(id, 7, "s" * 16))

    assert (ref.attempt_id, ref.number) == (id, 7)


@pytest.mark.proves("MOD-L3")
def test_there_is_never_a_second_live_lease_and_the_log_has_the_earlier_ones() -> None:
    """The record has room for one lease: a second one needs the end of the first."""
    lab = Lab()
    lab.enqueue()
    lab.claim(lab.queued(), by="w1")
    again = attempt.Grant(id="q1", actor="worker:w2", fingerprint="f" * 32)
    assert lab.refused(again).code == "wrong_state"

    lab.after(120).do(attempt.Expire(id="q1"))
    lab.do(again)

    live = lab.queued().lease
    assert live is not None
    assert (live.number, live.worker_id) == (2, "w2")
    transitions = [(line["entity_id"], line["to"]) for line in decoded(lab.canonical()) if line["entity"] == "lease"]
    assert transitions == [("q1#1", "GRANTED"), ("q1#1", "EXPIRED"), ("q1#2", "GRANTED")]


@pytest.mark.proves("MOD-L4")
def test_a_lease_is_active_once_acknowledged_and_revoked_when_the_window_closes() -> None:
    """A grant that got lost on its way must not block the job for the whole lease."""
    lab = Lab()
    lab.enqueue()
    lost = lab.claim(lab.queued(), by="w1")
    granted = lab.queued().lease
    assert granted is not None
    assert granted.state == lease.GRANTED
    assert lab.after(29.9).refused(attempt.RevokeUnaccepted(id="q1")).code == "not_due"

    lab.after(0.1).do(attempt.RevokeUnaccepted(id="q1"))
    assert lab.stale(lab.message(attempt.Ack, lost)) == "LEASE_REVOKED"
    claimed = lab.claim(lab.queued(), by="w2")
    acknowledged = lab.send(attempt.Ack, claimed).lease

    assert acknowledged is not None
    assert acknowledged.state == lease.ACTIVE
    assert lab.after(60).refused(attempt.RevokeUnaccepted(id="q1")).code == "wrong_state"
    lab.verified()


def _expired(lab: Lab) -> None:
    lab.after(120)


def _declared_expired(lab: Lab) -> None:
    lab.after(120).do(attempt.Expire(id="q1"))


def _revoked(lab: Lab) -> None:
    lab.do(attempt.Stall(id="q1"))


def _replaced(lab: Lab) -> None:
    lab.do(attempt.Stall(id="q1"))
    lab.after(120).claim(lab.queued(), by="w2")
    lab.do(attempt.Stall(id="q1"))
    lab.after(120).claim(lab.queued(), by="w3")


@pytest.mark.proves("MOD-L5")
@pytest.mark.parametrize("message", [attempt.Ack, attempt.Start, attempt.Extend, attempt.Heartbeat, attempt.CancelAck])
@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (_expired, "LEASE_EXPIRED"),
        (_declared_expired, "LEASE_EXPIRED"),
        (_revoked, "LEASE_REVOKED"),
        (_replaced, "LEASE_REPLACED"),
    ],
)
def test_a_message_of_a_dead_lease_is_stale_and_changes_nothing(
    made: Callable[[Lab], None], reason: str, message: type[attempt.LeasedCommand]
) -> None:
    """A runner that slept past its lease must stop, and must not touch its successor's attempt."""
    lab = Lab()
    lab.enqueue()
    claimed = lab.claim(lab.queued(), by="w1")
    lab.send(attempt.Heartbeat, claimed)

    made(lab)

    assert lab.stale(lab.message(message, claimed)) == reason


@pytest.mark.proves("MOD-L6")
def test_the_defaults_are_those_of_the_page() -> None:
    """Who configures nothing must be able to read what applies."""
    lab = Lab()
    lab.create()
    lab.do(run.BeginPlanning(id="r1"))
    lab.plan(task("a"), id="r2")
    claimed = lab.claim(lab.attempt("a", run_id="r2"))
    granted = lab.attempt("a", run_id="r2").lease
    assert granted is not None

    lab.send(attempt.Start, claimed)
    lab.cancel_run("r2")

    assert (granted.expires_at - START, granted.accept_by - START) == (120 * SECOND, 30 * SECOND)
    assert lab.attempt("a", run_id="r2").cancel_by - START == 30 * SECOND
    assert lab.attempt("a", run_id="r2").times_out_at - START == 3_600 * SECOND
    assert lab.run("r1").plan_by - START == 60 * SECOND
    assert lease.HEARTBEAT_SECONDS == 20


# -- events


@pytest.mark.proves("MOD-E1")
def test_an_event_has_its_fields_and_all_of_one_transaction_have_the_same_time() -> None:
    """There is one log, ordered by `seq`."""
    lab = busy()
    log = decoded(lab.canonical())

    assert {tuple(line) for line in log} == {FIELDS}
    assert {line["entity"] for line in log} == {"run", "job", "attempt", "lease", "worker"}
    numbers = [line["seq"] for line in log if line["entity"] != "lease"]
    assert numbers == list(range(1, len(numbers) + 1))
    assert {line["entity"] for line in log if line["from"] is None} == {"run", "job", "worker", "lease"}
    assert all(line["rev"] == 1 for line in log if line["from"] is None and line["entity"] != "lease")
    later = lab.after(7).do(run.Report(id="r3", actor="reporter"))
    assert {event.at for event in later.events} == {lab.now}


@pytest.mark.proves("MOD-E1")
def test_one_transaction_has_one_time_even_when_a_record_was_written_later() -> None:
    """A clock that went back must not tear what happened together apart."""
    lab = Lab().plan(task("a"))
    granted = lab.claim(lab.attempt("a"))
    lab.after(50).send(attempt.Heartbeat, granted)  # Only the attempt has seen this time.

    decision = lab.after(-40).do(lab.message(attempt.Complete, granted, is_success=True, exit_code=0))

    assert len({event.entity for event in decision.events}) == 3
    assert {event.at for event in decision.events} == {START + 50 * SECOND}
    lab.verified()


@pytest.mark.proves("MOD-E1", "MOD-E5")
@pytest.mark.parametrize("field", FIELDS)
def test_a_line_without_one_of_its_fields_is_not_legal(field: str) -> None:
    """Readers cannot rely on a field that may be missing."""
    lines = Lab().plan(task("a")).canonical()

    assert "MOD-E1" in altered(lines, lambda log: log[1].pop(field))


WORDS: Final = {
    JOB: {
        *("scheduler_assigned", "worker_started", "execution_completed", "execution_failed", "user_cancelled"),
        *("retry_delay_elapsed", "validation_passed", "validation_failed"),
    },
    WORKER: {
        *("registration_complete", "task_assigned", "task_completed", "health_check_timeout"),
        *("health_check_recovered", "max_timeout_exceeded", "shutdown_requested"),
    },
    ATTEMPT: {"enqueued", "claimed", "started", "heartbeat", "succeeded", "failed", "stalled", "requeued"},
}
# Steps that the document does not know: births, approvals, workers that are held, and a cancel that is only requested.
OURS: Final = {
    JOB: {"created", "approval_opened", "approval_given", "approved", "rejected", "approval_expired"},
    WORKER: {"registered", "capabilities_registered", "drained", "quarantined", "resumed"},
    ATTEMPT: {"cancel_requested", "acknowledged", "upload_began", "marked_for_reassignment"},
}


@pytest.mark.proves("MOD-E2")
@pytest.mark.parametrize(
    ("name", "machine"), [(JOB, job.MACHINE), (WORKER, worker.MACHINE), (ATTEMPT, attempt.MACHINE)]
)
def test_a_trigger_is_the_documents_word_wherever_the_document_has_one(name: str, machine: Machine[Any]) -> None:
    """Tools of documents 003 and 004 read our log without a dictionary."""
    words = {to.trigger for rule in machine.rules for to in rule.targets}

    assert words == WORDS[name] | OURS[name]


@pytest.mark.proves("MOD-E2")
def test_the_triggers_of_workstreams_are_those_of_document_003() -> None:
    """A run's own words name document 000's rules, so the export translates them."""
    lines = [line for line in decoded(busy().transitions()) if line["event_type"] == "workstream_state_transition"]

    triggers = {(line["from_state"], line["to_state"]): line["trigger"] for line in lines}

    assert triggers == {
        ("planned", "ready"): "all_tasks_created",
        ("ready", "executing"): "first_task_started",
        ("executing", "failed"): "critical_task_failed",
        ("planned", "failed"): "planning_failed",
        ("ready", "cancelled"): "user_cancelled",
    }


@pytest.mark.proves("MOD-E3")
def test_a_change_of_a_lease_is_part_of_its_attempts_event_and_a_line_of_its_own_when_exported() -> None:
    """One row, one rev: attempt and lease cannot disagree about what happened."""
    lab = Lab()
    lab.enqueue()
    lab.complete(lab.claim(lab.queued()))
    log = decoded(lab.canonical())

    assert {event.entity for event in lab.log} == {ATTEMPT}
    for before, line in pairwise(log):
        if line["entity"] == LEASE:
            assert (line["seq"], line["rev"], line["at"]) == (before["seq"], before["rev"], before["at"])
            assert (before["entity"], before["metadata"]["lease"]["to"]) == (ATTEMPT, line["to"])
    assert sum(line["entity"] == LEASE for line in log) == sum("lease" in event.metadata for event in lab.log) == 5
    assert lab.queued().rev == len(lab.log)


@pytest.mark.proves("MOD-E3")
@pytest.mark.parametrize(
    "change",
    [lambda log: log.pop(2), lambda log: log[2].update(to="ACTIVE"), lambda log: log[1]["metadata"].pop("lease")],
    ids=["left out", "another state", "not told by the attempt"],
)
def test_the_verifier_finds_a_lease_that_does_not_ride_on_its_attempt(change: Callable[[Any], object]) -> None:
    """Two stories about one lease are one too many."""
    lab = Lab()
    lab.enqueue()
    lab.claim(lab.queued())

    assert "MOD-E3" in altered(lab.canonical(), change)


@pytest.mark.proves("MOD-E4")
def test_the_severity_follows_document_003() -> None:
    """Alerts depend on it."""
    lab = busy()
    lab.plan(task("v", has_validation=True), id="r4")
    lab.work("v", by="w2", run_id="r4")
    lab.do(job.Validate(id="r4/v", is_passed=False))

    severities = {
        (line["event_type"].partition("_")[0], line["from_state"], line["to_state"]): line["severity"]
        for line in decoded(lab.transitions())
    }

    assert {step: severity for step, severity in severities.items() if severity != "info"} == {
        ("task", "running", "retrying"): "warning",
        ("task", "running", "failed"): "error",
        ("task", "validating", "failed"): "error",
        ("worker", "busy", "unresponsive"): "error",
        ("workstream", "executing", "failed"): "critical",
        ("workstream", "planned", "failed"): "critical",
    }
    sources = {event.entity_id: event.severity for event in lab.log if event.entity in (RUN, JOB, WORKER)}
    assert sources["r1"] == "info"  # reported
    assert sources["r4/v"] == "error"


@pytest.mark.proves("MOD-E5")
def test_all_three_exports_of_a_busy_log_are_legal() -> None:
    """One log, three languages, one judge."""
    reports = busy().verified()

    assert [report.format.partition(" ")[0] for report in reports] == ["canonical", "transitions", "job"]
    assert all(report.event_count > 10 for report in reports)


BREAKS: Final[list[tuple[str, str, str, dict[str, Any]]]] = [
    ("canonical", "transitions", "ORC-O1", {"to": "SUCCESS"}),
    ("canonical", "invariants", "MOD-10", {"rev": 9}),
    ("canonical", "schema", "MOD-E1", {"severity": "loud"}),
    ("canonical", "times", "WST-V4", {"at": "2020-01-01T00:00:00Z"}),
    ("transitions", "transitions", "WST-V1", {"to_state": "validating"}),
    ("transitions", "invariants", "WST-TI1", {"from_state": "executing"}),
    ("transitions", "schema", "WST-V3", {"severity": "loud"}),
    ("transitions", "times", "WST-V4", {"timestamp": "2020-01-01T00:00:00Z"}),
    ("job_events", "transitions", "QUE-T12", {"to_status": "succeeded"}),
    ("job_events", "invariants", "QUE-A2", {"attempt": 5}),
    ("job_events", "schema", "QUE-E1", {"rev": "one"}),
    ("job_events", "times", "WST-V4", {"at": "2020-01-01T00:00:00Z"}),
]


@pytest.mark.proves("MOD-E5")
@pytest.mark.parametrize(("form", "what", "rule", "change"), BREAKS)
def test_the_validator_checks_transitions_invariants_schema_and_times_of_each_export(
    form: str, what: str, rule: str, change: dict[str, Any]
) -> None:
    """A validator that is blind to one of the four would bless a broken log."""
    lab = Lab().plan(task("a"))
    lab.work("a")
    lines: list[bytes] = getattr(lab, form)()
    key = {"canonical": "entity_id", "transitions": "entity_id", "job_events": "job_id"}[form]
    of = "r1/a.1" if form == "job_events" else "r1"

    number = [n for n, line in enumerate(decoded(lines)) if line[key] == of][1]

    assert rule in altered(lines, lambda log: log[number].update(change)), what
