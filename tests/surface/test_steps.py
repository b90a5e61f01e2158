"""The rules of docs/spec/steps.md, as a person observes them over the REST API."""

from __future__ import annotations

import pytest

from tests.surface.conftest import Histories
from tests.surface.scenarios import SCENARIOS


@pytest.mark.parametrize(
    ("scenario", "action", "expected"),
    [
        pytest.param(
            "success",
            "claim",
            ["step build: PENDING → RUNNING", "run: PENDING → RUNNING"],
            marks=pytest.mark.proves("STP-R1", "STP-S1"),
        ),
        pytest.param(
            "success", "Complete", ["step build: RUNNING → SUCCEEDED"], marks=pytest.mark.proves("STP-S2", "STP-O2")
        ),
        pytest.param(
            "retried",
            "second Complete",
            ["step build: RUNNING → SUCCEEDED", "run: RUNNING → SUCCEEDED"],
            marks=pytest.mark.proves("STP-R4", "STP-S2"),
        ),
        pytest.param(
            "success",
            "Complete lint",
            ["step lint: RUNNING → FAILED", "run: RUNNING → SUCCEEDED"],
            marks=pytest.mark.proves("STP-R4"),
        ),
        pytest.param(
            "retried", "Complete", ["step build: RUNNING → PENDING"], marks=pytest.mark.proves("STP-S3", "STP-E2")
        ),
        pytest.param("retried", "second claim", ["step build: PENDING → RUNNING"], marks=pytest.mark.proves("STP-S1")),
        pytest.param(
            "job_timeout",
            "second 150 s later",
            ["step build: RUNNING → FAILED", "run: RUNNING → FAILED"],
            marks=pytest.mark.proves("STP-S4", "STP-E4", "STP-R6"),
        ),
        pytest.param(
            "compile_error",
            "Complete",
            ["step build: RUNNING → FAILED", "run: RUNNING → FAILED"],
            marks=pytest.mark.proves("STP-R6", "STP-S4"),
        ),
        pytest.param(
            "approved",
            "Complete",
            [
                *("step build: RUNNING → SUCCEEDED", "step ok: PENDING → WAITING_APPROVAL"),
                "run: RUNNING → WAITING_APPROVAL",
            ],
            marks=pytest.mark.proves("STP-R2", "STP-S5"),
        ),
        pytest.param("approved", "early approve", [], marks=pytest.mark.proves("STP-P1", "STP-P2")),
        pytest.param("approved", "claim while it waits", [], marks=pytest.mark.proves("STP-W1", "STP-W2")),
        pytest.param(
            "approved",
            "approve",
            ["step ok: WAITING_APPROVAL → SUCCEEDED", "run: WAITING_APPROVAL → RUNNING"],
            marks=pytest.mark.proves("STP-R3", "STP-S6", "STP-W2"),
        ),
        pytest.param("approved", "repeated approve", [], marks=pytest.mark.proves("STP-P2")),
        pytest.param(
            "last_gate",
            "approve",
            [
                *("step ok: WAITING_APPROVAL → SUCCEEDED", "run: WAITING_APPROVAL → RUNNING"),
                "run: RUNNING → SUCCEEDED",
            ],
            marks=pytest.mark.proves("STP-R5"),
        ),
        pytest.param(
            "gate_beside_job",
            "ship Complete",
            ["step ship: RUNNING → FAILED", "run: RUNNING → FAILED"],
            marks=pytest.mark.proves("STP-R7"),
        ),
        pytest.param(
            "canceled_queued",
            "cancel",
            ["run: PENDING → CANCELED", "step build: PENDING → CANCELED", "step test: PENDING → CANCELED"],
            marks=pytest.mark.proves("STP-R8", "STP-S7"),
        ),
        pytest.param(
            "canceled_at_gate",
            "cancel",
            [
                *("run: WAITING_APPROVAL → CANCELED", "step ok: WAITING_APPROVAL → CANCELED"),
                "step ship: PENDING → CANCELED",
            ],
            marks=pytest.mark.proves("STP-R8", "STP-S7"),
        ),
        pytest.param("lease_lost", "120 s later", [], marks=pytest.mark.proves("STP-S8", "STP-E1")),
        pytest.param("lease_lost", "third claim", [], marks=pytest.mark.proves("STP-S8", "STP-E1")),
    ],
)
def test_each_action_causes_exactly_these_transitions(
    histories: Histories, scenario: str, action: str, expected: list[str]
) -> None:
    """In the vocabulary of document 002. Where nothing is expected, no status changes."""
    assert sorted(histories(scenario).shown("steps", action)) == sorted(expected)


@pytest.mark.proves("STP-S1", "STP-E4", "WST-TI4")
def test_attempts_count_the_claims_by_attempt(histories: Histories) -> None:
    """A claim after a lost lease is no further attempt."""
    retried, lost = histories("retried"), histories("lease_lost")

    assert [retried.job(action, "build")["attempts"] for action in ("start", "claim", "Complete", "second claim")] == [
        *(0, 1, 1, 2),
    ]
    assert [lost.job(action, "build")["attempts"] for action in ("claim", "third claim")] == [1, 1]


@pytest.mark.proves("STP-S2")
def test_output_and_cost_of_a_successful_step_are_stored(histories: Histories) -> None:
    """With the report of its attempt."""
    history = histories("success")

    assert history.replies["outputs"].body["outputs"]["build"] == {"size": 3}
    assert history.replies["costs"].body["total"] == {"cpu_seconds": 2}


@pytest.mark.proves("STP-P3", "MOD-8")
def test_a_run_is_running_while_a_gate_waits_and_another_job_can_progress(histories: Histories) -> None:
    """The step carries the wait; the run waits once nothing else can progress."""
    history = histories("gate_beside_job")

    for action in ("start", "claim", "Heartbeat"):
        assert history.job(action, "ok")["status"] == "WAITING_APPROVAL"
        assert history.runs[action]["status"] != "WAITING_APPROVAL"
    assert (history.runs["claim"]["status"], history.runs["Complete"]["status"]) == ("RUNNING", "WAITING_APPROVAL")


@pytest.mark.proves("STP-W1", "STP-W2", "MOD-8")
@pytest.mark.parametrize("scenario", ["approved", "last_gate", "gate_beside_job", "rejected", "canceled_at_gate"])
def test_a_gate_has_no_attempt_and_only_a_person_decides_it(histories: Histories, scenario: str) -> None:
    """There is nothing that a worker could claim."""
    history = histories(scenario)

    gate = next(job for job in history.final["jobs"] if job["name"] == "ok")
    decisions = [change for change in history.changes("canonical", kind="job") if change.source == "WAITING_APPROVAL"]
    assert (gate["tries"], gate["worker_id"]) == ([], "")
    assert [change.body["actor"] for change in decisions if change.trigger != "user_cancelled"] in ([], ["user:ada"])
    assert not [change for change in history.changes("canonical", kind="attempt") if change.job == "ok"]


@pytest.mark.proves("STP-S8", "STP-E1", "MOD-5")
def test_a_job_stays_running_while_its_lease_is_lost_and_another_worker_claims_it(histories: Histories) -> None:
    """The same attempt returns to the queue; the job says that it was reclaimed."""
    history = histories("lease_lost")

    lost, again = history.job("120 s later", "build"), history.job("third claim", "build")
    assert (lost["status"], lost["tries"][0]["state"]) == ("RUNNING", "QUEUED")
    assert (again["status"], again["is_reclaimed"], again["worker_id"]) == ("RUNNING", True, "w1")
    assert [(each["index"], each["claims"], each["lost_leases"]) for each in again["tries"]] == [(1, 3, 2)]


@pytest.mark.proves("STP-N1", "STP-N2")
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_there_are_six_statuses_of_which_three_are_terminal(histories: Histories, scenario: str) -> None:
    """Of a run and of a step."""
    terminal = {"SUCCEEDED", "FAILED", "CANCELED"}

    for change in histories(scenario).changes("steps"):
        assert change.target in terminal | {"PENDING", "RUNNING", "WAITING_APPROVAL"}
        assert change.source not in terminal


@pytest.mark.proves("MOD-T2")
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_status_is_the_state_in_the_vocabulary_of_document_002(histories: Histories, scenario: str) -> None:
    """Every job and every run shows both, and they agree with the log."""
    history = histories(scenario)
    statuses = {change.body["entity_id"]: change.target for change in history.changes("steps")}

    assert statuses[history.run_id] == history.final["status"]
    for job in history.final["jobs"]:
        assert job["state"]
        assert statuses[job["id"]] == job["status"], job["name"]
