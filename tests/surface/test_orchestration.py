"""The rules of docs/spec/orchestration.md, as a person and a runner observe them over HTTP."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from deltaci.core.run import OVER
from tests.surface.conftest import Histories
from tests.surface.scenarios import FAILURES, SCENARIOS
from tests.surface.stage import Change


def actors(changes: Iterable[Change]) -> set[str]:
    """Return who caused the transitions."""
    return {change.body["actor"] for change in changes}


@pytest.mark.parametrize(
    ("scenario", "action", "expected"),
    [
        pytest.param(
            "success",
            "start",
            [
                *("run: - → CREATED", "run: CREATED → PLANNING", "run: PLANNING → QUEUED"),
                "attempt build: - → QUEUED",
            ],
            marks=pytest.mark.proves("ORC-R1", "ORC-R2", "ORC-A1"),
        ),
        pytest.param(
            "success",
            "claim",
            ["attempt build: QUEUED → LEASED", "lease build: - → GRANTED", "run: QUEUED → RUNNING"],
            marks=pytest.mark.proves("ORC-R5", "ORC-A2"),
        ),
        pytest.param("success", "claim while leased", [], marks=pytest.mark.proves("ORC-LF1")),
        pytest.param(
            "success",
            "AckLease",
            ["attempt build: LEASED → STARTING", "lease build: GRANTED → ACTIVE"],
            marks=pytest.mark.proves("ORC-A3", "ORC-L1", "PRO-Q3"),
        ),
        pytest.param("success", "Heartbeat", ["attempt build: STARTING → RUNNING"], marks=pytest.mark.proves("ORC-A4")),
        pytest.param("success", "second Heartbeat", [], marks=pytest.mark.proves("ORC-A4")),
        pytest.param(
            "success",
            "Complete",
            [
                *("attempt build: RUNNING → UPLOADING", "attempt build: UPLOADING → SUCCEEDED"),
                *("lease build: ACTIVE → COMPLETED", "attempt test: - → QUEUED"),
            ],
            marks=pytest.mark.proves("ORC-A5", "ORC-A6", "ORC-L3", "PRO-Q7"),
        ),
        pytest.param("success", "repeated Complete", [], marks=pytest.mark.proves("ORC-I2", "ORC-A12")),
        pytest.param("success", "late Heartbeat", [], marks=pytest.mark.proves("ORC-LF3", "PRO-S4")),
        pytest.param(
            "success",
            "Complete lint",
            [
                *("attempt lint: LEASED → STARTING", "lease lint: GRANTED → ACTIVE"),
                *("attempt lint: STARTING → RUNNING", "attempt lint: RUNNING → UPLOADING"),
                *("attempt lint: UPLOADING → FAILED", "lease lint: ACTIVE → COMPLETED", "run: RUNNING → SUCCESS"),
            ],
            marks=pytest.mark.proves("ORC-R6", "ORC-RF1", "ORC-A6"),
        ),
        pytest.param("success", "report", ["run: SUCCESS → REPORTED"], marks=pytest.mark.proves("ORC-R11")),
        pytest.param("success", "late cancel", [], marks=pytest.mark.proves("ORC-R12")),
        pytest.param(
            "exhausted",
            "second Complete",
            [
                *("attempt build: RUNNING → UPLOADING", "attempt build: UPLOADING → FAILED"),
                "lease build: ACTIVE → COMPLETED",
            ],
            marks=pytest.mark.proves("ORC-A6", "ORC-L3"),
        ),
        pytest.param(
            "compile_error",
            "Complete",
            [
                *("attempt build: RUNNING → UPLOADING", "attempt build: UPLOADING → FAILED"),
                *("lease build: ACTIVE → COMPLETED", "run: RUNNING → FAILED"),
            ],
            marks=pytest.mark.proves("ORC-R7", "ORC-RF2"),
        ),
        pytest.param(
            "canceled_queued",
            "cancel",
            [
                *("run: QUEUED → CANCEL_REQUESTED", "attempt build: QUEUED → CANCEL_REQUESTED"),
                *("attempt build: CANCEL_REQUESTED → CANCELED", "run: CANCEL_REQUESTED → CANCELED"),
            ],
            marks=pytest.mark.proves("ORC-R8", "ORC-A9", "ORC-C3"),
        ),
        pytest.param(
            "canceled",
            "cancel",
            [
                *("run: RUNNING → CANCEL_REQUESTED", "attempt build: RUNNING → CANCEL_REQUESTED"),
                *("attempt test: LEASED → CANCEL_REQUESTED", "attempt docs: QUEUED → CANCEL_REQUESTED"),
                "attempt docs: CANCEL_REQUESTED → CANCELED",
            ],
            marks=pytest.mark.proves("ORC-R8", "ORC-A9", "ORC-C1", "ORC-C3"),
        ),
        pytest.param("canceled", "Heartbeat after cancel", [], marks=pytest.mark.proves("ORC-R9", "ORC-RF3")),
        pytest.param(
            "canceled",
            "CancelAck",
            ["attempt build: CANCEL_REQUESTED → CANCELED", "lease build: ACTIVE → CANCELED"],
            marks=pytest.mark.proves("ORC-A10", "ORC-L4", "ORC-C2", "PRO-Q11"),
        ),
        pytest.param(
            "canceled",
            "CancelAck test",
            [
                *("attempt test: CANCEL_REQUESTED → CANCELED", "lease test: ACTIVE → CANCELED"),
                "run: CANCEL_REQUESTED → CANCELED",
            ],
            marks=pytest.mark.proves("ORC-R9", "ORC-RF3"),
        ),
        pytest.param("canceled", "repeated cancel", [], marks=pytest.mark.proves("ORC-A12")),
        pytest.param("canceled_by_force", "29 s later", [], marks=pytest.mark.proves("ORC-T4", "PRO-D4")),
        pytest.param(
            "canceled_by_force",
            "30 s later",
            [
                *("attempt build: CANCEL_REQUESTED → CANCELED", "lease build: ACTIVE → REVOKED"),
                "run: CANCEL_REQUESTED → CANCELED",
            ],
            marks=pytest.mark.proves("ORC-R9", "ORC-RF3", "ORC-A10", "ORC-L5", "ORC-C2", "ORC-T4", "PRO-Q10", "PRO-D4"),
        ),
        pytest.param("canceled_by_force", "late Complete", [], marks=pytest.mark.proves("ORC-C5", "ORC-LF2")),
        pytest.param("canceled_by_force", "late CancelAck", [], marks=pytest.mark.proves("ORC-LF2")),
        pytest.param(
            "job_canceled",
            "cancel",
            ["attempt build: RUNNING → CANCEL_REQUESTED"],
            marks=pytest.mark.proves("ORC-A9"),
        ),
        pytest.param(
            "lease_lost",
            "accept window over",
            ["attempt build: LEASED → QUEUED", "lease build: GRANTED → REVOKED"],
            marks=pytest.mark.proves("ORC-A7", "ORC-L5", "PRO-D3", "PRO-Q4"),
        ),
        pytest.param("lease_lost", "late AckLease", [], marks=pytest.mark.proves("ORC-LF3", "PRO-S2", "PRO-H3")),
        pytest.param("lease_lost", "119 s later", [], marks=pytest.mark.proves("ORC-T1", "PRO-D1")),
        pytest.param(
            "lease_lost",
            "120 s later",
            ["attempt build: STARTING → QUEUED", "lease build: ACTIVE → EXPIRED"],
            marks=pytest.mark.proves("ORC-A7", "ORC-L2", "ORC-T1", "PRO-D1", "PRO-F1"),
        ),
        pytest.param("lease_lost", "late Complete", [], marks=pytest.mark.proves("ORC-LF2", "ORC-LF3", "PRO-S1")),
        pytest.param(
            "lease_lost",
            "Complete under the old lease",
            [],
            marks=pytest.mark.proves("ORC-LF2", "PRO-K2", "PRO-S3", "PRO-S4"),
        ),
        pytest.param(
            "lease_lost",
            "third lease over",
            ["attempt build: RUNNING → QUEUED", "lease build: ACTIVE → EXPIRED"],
            marks=pytest.mark.proves("ORC-A7", "ORC-L2"),
        ),
        pytest.param("lease_lost", "late CancelAck", [], marks=pytest.mark.proves("ORC-LF2", "ORC-A12")),
        pytest.param("renewed", "wait 3", [], marks=pytest.mark.proves("PRO-Q5")),
        pytest.param("job_timeout", "100 s later", [], marks=pytest.mark.proves("ORC-T2")),
        pytest.param(
            "job_timeout",
            "150 s later",
            ["attempt build: RUNNING → TIMED_OUT", "lease build: ACTIVE → REVOKED"],
            marks=pytest.mark.proves("ORC-A8", "ORC-T2", "ORC-L5"),
        ),
        pytest.param("job_timeout", "retry due", ["attempt build: - → QUEUED"], marks=pytest.mark.proves("ORC-A11")),
        pytest.param("run_timeout", "99 s later", [], marks=pytest.mark.proves("ORC-R10", "ORC-T3")),
        pytest.param(
            "run_timeout",
            "100 s later",
            ["run: RUNNING → TIMEOUT", "attempt build: RUNNING → CANCEL_REQUESTED"],
            marks=pytest.mark.proves("ORC-R10", "ORC-T3"),
        ),
        pytest.param("run_timeout", "report", ["run: TIMEOUT → REPORTED"], marks=pytest.mark.proves("ORC-R11")),
        pytest.param("canceled", "report", ["run: CANCELED → REPORTED"], marks=pytest.mark.proves("ORC-R11")),
        pytest.param("exhausted", "report", ["run: FAILED → REPORTED"], marks=pytest.mark.proves("ORC-R11")),
        pytest.param("retried", "99 s later", [], marks=pytest.mark.proves("ORC-A11")),
        pytest.param(
            "retried", "100 s later", ["attempt build: - → QUEUED"], marks=pytest.mark.proves("ORC-A11", "ORC-Y4")
        ),
    ],
)
def test_each_action_causes_exactly_these_transitions(
    histories: Histories, scenario: str, action: str, expected: list[str]
) -> None:
    """In the vocabulary of document 000. Where nothing is expected, the message or the time changes nothing."""
    assert histories(scenario).shown("orchestration", action) == expected


@pytest.mark.parametrize(
    ("scenario", "action", "kind", "state"),
    [
        pytest.param("success", "start", "run", "CREATED", marks=pytest.mark.proves("ORC-RS1")),
        pytest.param("success", "start", "run", "PLANNING", marks=pytest.mark.proves("ORC-RS2")),
        pytest.param("success", "start", "run", "QUEUED", marks=pytest.mark.proves("ORC-RS4")),
        pytest.param("success", "claim", "run", "RUNNING", marks=pytest.mark.proves("ORC-RS5")),
        pytest.param("canceled", "cancel", "run", "CANCEL_REQUESTED", marks=pytest.mark.proves("ORC-RS6")),
        pytest.param("success", "Complete lint", "run", "SUCCESS", marks=pytest.mark.proves("ORC-RS7")),
        pytest.param("compile_error", "Complete", "run", "FAILED", marks=pytest.mark.proves("ORC-RS8")),
        pytest.param("canceled", "CancelAck test", "run", "CANCELED", marks=pytest.mark.proves("ORC-RS9")),
        pytest.param("run_timeout", "100 s later", "run", "TIMEOUT", marks=pytest.mark.proves("ORC-RS10")),
        pytest.param("success", "report", "run", "REPORTED", marks=pytest.mark.proves("ORC-RS11")),
        pytest.param("success", "start", "attempt", "CREATED", marks=pytest.mark.proves("ORC-AS1")),
        pytest.param("success", "start", "attempt", "QUEUED", marks=pytest.mark.proves("ORC-AS2")),
        pytest.param("success", "claim", "attempt", "LEASED", marks=pytest.mark.proves("ORC-AS3")),
        pytest.param("success", "AckLease", "attempt", "STARTING", marks=pytest.mark.proves("ORC-AS4")),
        pytest.param("success", "Heartbeat", "attempt", "RUNNING", marks=pytest.mark.proves("ORC-AS5")),
        pytest.param("success", "Complete", "attempt", "UPLOADING", marks=pytest.mark.proves("ORC-AS6")),
        pytest.param("success", "Complete", "attempt", "SUCCEEDED", marks=pytest.mark.proves("ORC-AS7")),
        pytest.param("compile_error", "Complete", "attempt", "FAILED", marks=pytest.mark.proves("ORC-AS8")),
        pytest.param("canceled", "cancel", "attempt", "CANCEL_REQUESTED", marks=pytest.mark.proves("ORC-AS9")),
        pytest.param("canceled", "CancelAck", "attempt", "CANCELED", marks=pytest.mark.proves("ORC-AS10")),
        pytest.param("job_timeout", "150 s later", "attempt", "TIMED_OUT", marks=pytest.mark.proves("ORC-AS11")),
        pytest.param("lease_lost", "120 s later", "attempt", "STALE", marks=pytest.mark.proves("ORC-AS12")),
        pytest.param("success", "claim", "lease", "GRANTED", marks=pytest.mark.proves("ORC-LS1")),
        pytest.param("success", "AckLease", "lease", "ACTIVE", marks=pytest.mark.proves("ORC-LS2")),
        pytest.param("lease_lost", "120 s later", "lease", "EXPIRED", marks=pytest.mark.proves("ORC-LS3")),
        pytest.param("lease_lost", "accept window over", "lease", "REVOKED", marks=pytest.mark.proves("ORC-LS4")),
        pytest.param("success", "Complete", "lease", "COMPLETED", marks=pytest.mark.proves("ORC-LS5")),
        pytest.param("canceled", "CancelAck", "lease", "CANCELED", marks=pytest.mark.proves("ORC-LS6")),
    ],
)
def test_a_record_enters_a_state_when_its_meaning_begins(
    histories: Histories, scenario: str, action: str, kind: str, state: str
) -> None:
    """The canonical log shows all states, also those that last no longer than one request."""
    history = histories(scenario)

    states = [each for change in history.changes("canonical", action, kind) for each in (change.source, change.target)]
    assert state in states
    before: list[str] = []
    for earlier in list(history.ends)[: list(history.ends).index(action)] if action in history.ends else []:
        before += [change.target for change in history.changes("canonical", earlier, kind)]
    assert state not in before[-1:]


@pytest.mark.proves("ORC-R12", "ORC-A12", "MOD-9")
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_no_transition_leaves_a_terminal_state(histories: Histories, scenario: str) -> None:
    """Only a run that is over has one more step, to REPORTED, and its conclusion stays."""
    history = histories(scenario)
    ended: dict[str, str] = {}
    terminal = {"REPORTED", "SUCCEEDED", "FAILED", "CANCELED", "TIMED_OUT", *OVER}

    for change in history.changes("canonical"):
        if change.kind == "lease":
            continue
        id = change.body["entity_id"]
        assert id not in ended or (change.kind, change.target) == ("run", "REPORTED"), change
        if change.target in terminal:
            ended[id] = change.target

    run = history.final
    over = [change.target for change in history.changes("canonical", kind="run") if change.target in OVER]
    assert over == [run["conclusion"]]


@pytest.mark.proves("ORC-RF1", "ORC-RF2")
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_run_succeeds_only_with_all_of_its_required_jobs(histories: Histories, scenario: str) -> None:
    """And fails only because a required job did not succeed, or for its time."""
    final = histories(scenario).final
    is_complete = all(job["status"] == "SUCCEEDED" for job in final["jobs"] if not job["allow_failure"])

    assert (final["conclusion"] == "SUCCESS") == is_complete
    if final["conclusion"] == "TIMEOUT":
        assert final["status"] == "FAILED"


@pytest.mark.proves("ORC-RF3")
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_run_is_canceled_only_after_a_request_and_the_end_of_its_attempts(
    histories: Histories, scenario: str
) -> None:
    """No attempt of a canceled run is still at work."""
    requested = False
    active: set[str] = set()

    for change in histories(scenario).changes("orchestration"):
        requested |= (change.kind, change.target) == ("run", "CANCEL_REQUESTED")
        if change.kind == "lease":
            is_live = change.target in ("GRANTED", "ACTIVE")
            (active.add if is_live else active.discard)(change.body["entity_id"])
        if (change.kind, change.target) == ("run", "CANCELED"):
            assert requested
            assert not active


@pytest.mark.proves("ORC-LF1", "ORC-W5", "MOD-L3")
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_an_attempt_has_one_live_lease_at_a_time(histories: Histories, scenario: str) -> None:
    """A lease is granted only after the attempt's previous lease has ended; the log has all of them."""
    live: dict[str, str] = {}

    for change in histories(scenario).changes("orchestration", kind="lease"):
        lease_id = change.body["entity_id"]
        attempt = lease_id.rpartition("#")[0]
        assert live.get(attempt, lease_id) == lease_id, change
        if change.target in ("GRANTED", "ACTIVE"):
            live[attempt] = lease_id
        else:
            live.pop(attempt, None)


# -- jobs and their attempts


@pytest.mark.proves("ORC-J1", "ORC-W3", "ORC-W4", "ORC-Y3", "ORC-Y5", "PRO-Y3", "MOD-T1")
def test_a_job_succeeds_with_its_second_attempt(histories: Histories) -> None:
    """The failed attempt is closed, and decides nothing while attempts remain."""
    history = histories("retried")

    between = history.job("Complete", "build")
    assert (between["state"], [each["state"] for each in between["tries"]]) == ("RETRYING", ["FAILED"])
    assert history.runs["Complete"]["state"] == "RUNNING"
    job = history.job("second Complete", "build")
    assert (job["state"], [(each["index"], each["state"]) for each in job["tries"]]) == (
        *("SUCCEEDED", [(1, "FAILED"), (2, "SUCCEEDED")]),
    )
    first, second = history.replies["claim"][0], history.replies["second claim"][0]
    assert first["lease_id"] != second["lease_id"]


@pytest.mark.proves("ORC-J4")
def test_the_state_of_a_job_follows_its_current_attempt(histories: Histories) -> None:
    """After the last attempt, it is the outcome of the job."""
    history = histories("retried")
    actions = ("start", "claim", "Complete", "100 s later", "second claim", "second Complete")

    assert [(history.job(name, "build")["state"], history.attempt(name, "build")["state"]) for name in actions] == [
        *(("QUEUED", "QUEUED"), ("RUNNING", "LEASED"), ("RETRYING", "FAILED")),
        *(("QUEUED", "QUEUED"), ("RUNNING", "LEASED"), ("SUCCEEDED", "SUCCEEDED")),
    ]


@pytest.mark.proves("ORC-Y4")
def test_a_new_attempt_can_be_claimed(histories: Histories) -> None:
    """It is in the queue like a first one."""
    history = histories("retried")

    assert history.attempt("100 s later", "build")["state"] == "QUEUED"
    assert history.attempt("second claim", "build")["worker_id"] == "w1"


@pytest.mark.proves("ORC-J2", "ORC-R7", "ORC-Y5")
def test_a_job_fails_with_its_last_attempt(histories: Histories) -> None:
    """The first failed attempt is retried; the last one fails the job, although another job still runs."""
    history = histories("exhausted")

    assert history.job("Complete", "build")["state"] == "RETRYING"
    assert history.job("second Complete", "build")["state"] == "FAILED"
    assert [each["state"] for each in history.job("second Complete", "build")["tries"]] == ["FAILED", "FAILED"]


@pytest.mark.proves("ORC-J2", "ORC-Y5", "ORC-A8")
def test_a_job_that_timed_out_twice_failed(histories: Histories) -> None:
    """Its attempts are TIMED_OUT."""
    job = histories("job_timeout").job("second 150 s later", "build")

    assert (job["state"], [each["state"] for each in job["tries"]]) == ("FAILED", ["TIMED_OUT", "TIMED_OUT"])


@pytest.mark.proves("ORC-J3")
@pytest.mark.parametrize(
    ("scenario", "before", "after"),
    [("job_canceled", "cancel", "CancelAck"), ("canceled_by_force", "29 s later", "30 s later")],
)
def test_a_job_is_canceled_when_its_cancellation_is_final(
    histories: Histories, scenario: str, before: str, after: str
) -> None:
    """Until then its runner may still work."""
    history = histories(scenario)

    assert history.job(before, "build")["state"] == "RUNNING"
    assert history.job(after, "build")["state"] == "CANCELED"


# -- cancellation


@pytest.mark.proves("ORC-C1", "ORC-O3", "PRO-K4")
def test_a_runner_learns_of_a_cancel_with_its_next_heartbeat(histories: Histories) -> None:
    """With the time that it has left."""
    reply = histories("canceled").replies["Heartbeat after cancel"]

    assert (reply["cancel_requested"], reply["cancel_deadline_seconds"], reply["extend_lease"]) == (True, 30, True)


@pytest.mark.proves("ORC-C4")
def test_a_forced_cancel_keeps_log_and_artifacts(histories: Histories) -> None:
    """They can still be read."""
    history = histories("canceled_by_force")

    assert history.replies["read log"].body == b"working\n"
    [artifact] = history.replies["read artifacts"].body["artifacts"]
    assert artifact["path"] == "partial.txt"
    attempt = history.attempt("read log", "build")
    assert (attempt["state"], attempt["worker_id"], attempt["cancel_reason"]) == ("CANCELED", "w1", "RUN_CANCELED")


@pytest.mark.proves("ORC-C5", "ORC-LF2", "ORC-LF3", "PRO-S2", "PRO-S4")
@pytest.mark.parametrize("message", ["late Complete", "late CancelAck"])
def test_after_a_forced_cancel_no_message_is_accepted(histories: Histories, message: str) -> None:
    """The lease is revoked."""
    history = histories("canceled_by_force")

    assert (history.replies[message]["type"], history.replies[message]["reason"]) == ("StaleLease", "LEASE_REVOKED")
    assert history.job(message, "build") == history.job("30 s later", "build")


# -- retries


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("network", marks=pytest.mark.proves("ORC-YK1")),
        pytest.param("disk", marks=pytest.mark.proves("ORC-YK1")),
        pytest.param("startup", marks=pytest.mark.proves("ORC-YK2")),
        pytest.param("cache", marks=pytest.mark.proves("ORC-YK3")),
        pytest.param("registry", marks=pytest.mark.proves("ORC-YK3")),
        "tool",
        pytest.param("compile", marks=pytest.mark.proves("ORC-YK5")),
        pytest.param("tests", marks=pytest.mark.proves("ORC-YK6")),
        pytest.param("lint", marks=pytest.mark.proves("ORC-YK7")),
    ],
)
@pytest.mark.proves("ORC-Y1", "ORC-Y2", "MOD-F1", "MOD-F2", "MOD-F3", "PRO-Y1", "PRO-Y2", "WST-TG4", "WST-TG5")
def test_the_class_of_a_failure_decides_whether_it_is_retried(histories: Histories, name: str) -> None:
    """The runner reports what it saw; every job has an attempt left."""
    report, failure_class, is_retried = FAILURES[name]

    job = histories("classes").job(f"Complete {name}", name)

    assert job["state"] == ("RETRYING" if is_retried else "FAILED")
    assert job["last_error"]["failure_class"] == failure_class
    assert job["last_error"]["rule"]
    [line] = report.get("log_tail", [job["last_error"]["line"]])
    assert job["last_error"]["line"] in (line, "")


# -- timeouts


@pytest.mark.proves("ORC-T5", "ORC-O1", "ORC-O3")
@pytest.mark.parametrize(
    ("scenario", "action"),
    [
        *(("lease_lost", "120 s later"), ("lease_lost", "accept window over"), ("job_timeout", "150 s later")),
        *(("run_timeout", "100 s later"), ("canceled_by_force", "30 s later"), ("retried", "100 s later")),
    ],
)
def test_a_timeout_is_a_transition_of_the_orchestrator(histories: Histories, scenario: str, action: str) -> None:
    """With an event of its own, like any other."""
    changes = histories(scenario).changes("canonical", action)

    assert changes
    assert actors(changes) == {"orchestrator"}


# -- repeats and ownership


@pytest.mark.proves("ORC-I2", "ORC-I5", "MOD-10")
def test_a_repeated_completion_gets_the_same_answer_and_leaves_no_event(histories: Histories) -> None:
    """No record changes its revision."""
    history = histories("success")

    assert history.replies["repeated Complete"] == history.replies["Complete"]
    assert history.changes("canonical", "repeated Complete") == []
    assert history.runs["repeated Complete"] == history.runs["Complete"]


@pytest.mark.proves("ORC-I5", "MOD-10")
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_events_of_a_record_are_kept_and_its_revision_counts_them(histories: Histories, scenario: str) -> None:
    """One event for each accepted transition, in order."""
    history = histories(scenario)
    revisions: dict[str, list[int]] = {}
    for change in history.changes("canonical"):
        if change.kind != "lease":
            revisions.setdefault(change.body["entity_id"], []).append(change.body["rev"])

    final = history.final
    shown = {final["id"]: final, **{job["id"]: job for job in final["jobs"]}}
    shown |= {attempt["id"]: attempt for job in final["jobs"] for attempt in job["tries"]}
    for id, counted in revisions.items():
        assert counted == list(range(1, len(counted) + 1)), id
        assert shown[id]["rev"] == len(counted), id


@pytest.mark.proves("ORC-O1", "ORC-O2")
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_runners_cause_only_transitions_of_their_attempts(histories: Histories, scenario: str) -> None:
    """States of runs and jobs change by decision of the orchestrator, a person or the reporter."""
    for change in histories(scenario).changes("canonical"):
        if change.body["actor"].startswith("worker:"):
            assert change.kind in ("attempt", "lease"), change
        if change.target == "REPORTED":
            assert change.body["actor"] == "reporter"


@pytest.mark.proves("ORC-O2")
def test_an_outcome_does_not_depend_on_progress_reports(histories: Histories) -> None:
    """A job whose runner sent nothing but its result ends like any other."""
    history = histories("success")

    assert history.attempt("Complete test", "test")["progress"] is None
    assert history.job("Complete test", "test")["state"] == "SUCCEEDED"
