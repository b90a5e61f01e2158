"""The rules of docs/spec/workstreams.md, as the API, the runner protocol and `transitions.jsonl` show them."""

from __future__ import annotations

import asyncio
import json
from datetime import datetime
from pathlib import Path

import pytest

from deltaci.core import job
from tests.server.rest.site import TENANT
from tests.support.workstream_context import SPEC, StandIn
from tests.support.workstream_derivation import Task, document_003
from tests.surface.conftest import Histories
from tests.surface.scenarios import SCENARIOS
from tests.surface.stage import History, staged

OPEN = {"pending", "queued", "running", "validating", "retrying"}


@pytest.mark.parametrize(
    ("scenario", "action", "expected"),
    [
        pytest.param(
            "success",
            "start",
            [
                *("workstream: - → planned", "task build: - → pending", "task test: - → pending"),
                *("task lint: - → pending", "workstream: planned → ready", "task build: pending → queued"),
            ],
            marks=pytest.mark.proves("WST-W1", "WST-T1", "WST-TG1"),
        ),
        pytest.param(
            "success",
            "claim",
            ["task build: queued → running", "workstream: ready → executing"],
            marks=pytest.mark.proves("WST-T2", "WST-W2", "WST-WG2"),
        ),
        pytest.param(
            "success",
            "Complete",
            [
                *("task build: running → validating", "task build: validating → completed"),
                "task test: pending → queued",
            ],
            marks=pytest.mark.proves("WST-T3", "WST-T8", "WST-T1", "WST-TG1", "WST-TG3", "WST-TA8"),
        ),
        pytest.param("success", "claim test", ["task test: queued → running"], marks=pytest.mark.proves("WST-WG3")),
        pytest.param(
            "success",
            "Complete lint",
            [
                *("task lint: running → failed", "workstream: executing → validating"),
                "workstream: validating → completed",
            ],
            marks=pytest.mark.proves("WST-W3", "WST-W5", "WST-WG3"),
        ),
        pytest.param(
            "retried",
            "Complete",
            ["task build: running → retrying"],
            marks=pytest.mark.proves("WST-T4", "WST-TG4", "WST-TG3"),
        ),
        pytest.param("retried", "99 s later", [], marks=pytest.mark.proves("WST-T7")),
        pytest.param("retried", "100 s later", ["task build: retrying → queued"], marks=pytest.mark.proves("WST-T7")),
        pytest.param(
            "exhausted",
            "second Complete",
            ["task build: running → failed", "task ship: pending → cancelled"],
            marks=pytest.mark.proves("WST-T5", "WST-TG5", "WST-TA5"),
        ),
        pytest.param(
            "compile_error",
            "Complete",
            ["task build: running → failed", "workstream: executing → failed"],
            marks=pytest.mark.proves("WST-T5", "WST-TG5", "WST-TG3", "WST-W4", "WST-WG4", "WST-WI3"),
        ),
        pytest.param(
            "validation_failed",
            "Complete",
            [
                *("task build: running → validating", "task build: validating → failed"),
                *("task ship: pending → cancelled", "workstream: executing → failed"),
            ],
            marks=pytest.mark.proves("WST-T9", "WST-TG9", "WST-TA9", "WST-W4", "WST-WI3"),
        ),
        pytest.param("canceled", "CancelAck", ["task build: running → cancelled"], marks=pytest.mark.proves("WST-T6")),
        pytest.param(
            "canceled_queued",
            "cancel",
            [
                *("task build: queued → cancelled", "task test: pending → cancelled"),
                "workstream: ready → cancelled",
            ],
            marks=pytest.mark.proves("WST-W8"),
        ),
        pytest.param(
            "fail_fast",
            "Complete",
            ["task build: running → failed", "workstream: executing → failed", "task docs: queued → cancelled"],
            marks=pytest.mark.proves("WST-W4", "WST-WA4"),
        ),
        pytest.param("two_workers", "claim without label", [], marks=pytest.mark.proves("WST-TG2", "WST-KG2")),
        pytest.param("two_workers", "claim a third", [], marks=pytest.mark.proves("WST-KI1")),
    ],
)
def test_each_action_causes_exactly_these_transitions(
    histories: Histories, scenario: str, action: str, expected: list[str]
) -> None:
    """In the vocabulary of document 003. Where nothing is expected, no task and no workstream changes."""
    assert histories(scenario).shown("workstreams", action) == expected


@pytest.mark.parametrize(
    ("scenario", "action", "kind", "state", "is_terminal"),
    [
        pytest.param("success", "start", "task", "pending", False, marks=pytest.mark.proves("WST-TS1")),
        pytest.param("success", "start", "task", "queued", False, marks=pytest.mark.proves("WST-TS2")),
        pytest.param("success", "claim", "task", "running", False, marks=pytest.mark.proves("WST-TS3")),
        pytest.param("success", "Complete", "task", "validating", False, marks=pytest.mark.proves("WST-TS4")),
        pytest.param("success", "Complete", "task", "completed", True, marks=pytest.mark.proves("WST-TS5")),
        pytest.param("compile_error", "Complete", "task", "failed", True, marks=pytest.mark.proves("WST-TS6")),
        pytest.param("validation_failed", "Complete", "task", "failed", True, marks=pytest.mark.proves("WST-TS6")),
        pytest.param("retried", "Complete", "task", "retrying", False, marks=pytest.mark.proves("WST-TS7")),
        pytest.param("canceled", "CancelAck", "task", "cancelled", True, marks=pytest.mark.proves("WST-TS8")),
        pytest.param("success", "start", "workstream", "planned", False, marks=pytest.mark.proves("WST-WS1")),
        pytest.param("success", "start", "workstream", "ready", False, marks=pytest.mark.proves("WST-WS2")),
        pytest.param("success", "claim", "workstream", "executing", False, marks=pytest.mark.proves("WST-WS3")),
        pytest.param(
            "retried", "second Complete", "workstream", "validating", False, marks=pytest.mark.proves("WST-WS4")
        ),
        pytest.param(
            "retried", "second Complete", "workstream", "completed", True, marks=pytest.mark.proves("WST-WS5")
        ),
        pytest.param("compile_error", "Complete", "workstream", "failed", True, marks=pytest.mark.proves("WST-WS6")),
        pytest.param("canceled_queued", "cancel", "workstream", "cancelled", True, marks=pytest.mark.proves("WST-WS7")),
    ],
)
def test_a_record_enters_a_state_and_leaves_it_unless_it_is_terminal(
    histories: Histories, scenario: str, action: str, kind: str, state: str, is_terminal: bool
) -> None:
    """Of each state, when its meaning begins."""
    history = histories(scenario)

    entered = [
        change.body["entity_id"] for change in history.changes("workstreams", action, kind) if change.target == state
    ]
    left = [change.body["entity_id"] for change in history.changes("workstreams", kind=kind) if change.source == state]
    assert entered
    assert bool(set(entered) & set(left)) != is_terminal


@pytest.mark.parametrize(
    ("scenario", "action", "worker", "state"),
    [
        pytest.param("two_workers", "register", "w2", "idle", marks=pytest.mark.proves("WST-KS2")),
        pytest.param("two_workers", "claim two", "w2", "busy", marks=pytest.mark.proves("WST-KS3")),
    ],
)
def test_the_status_of_a_worker_is_its_state(
    histories: Histories, scenario: str, action: str, worker: str, state: str
) -> None:
    """In the words of document 003."""
    assert histories(scenario).workers[action][worker]["status"] == state


# -- actions


@pytest.mark.proves("WST-TA2")
def test_a_start_assigns_the_worker_and_starts_the_timer(histories: Histories) -> None:
    """The timer of the task runs from the first heartbeat on: a runner may need time to prepare."""
    history = histories("success")

    before, after = history.job("start", "build"), history.job("claim", "build")
    assert (before["worker_id"], before["started_at"]) == ("", None)
    assert (after["worker_id"], after["started_at"]) == ("w1", "2026-01-04T08:00:00Z")
    assert history.attempt("Heartbeat", "build")["times_out_at"] == "2026-01-04T08:02:30Z"
    [line] = history.exported("claim", "task")
    assert (line["trigger"], line["metadata"]["worker_id"]) == ("worker_started", "w1")


@pytest.mark.proves("WST-TA3", "WST-TI3")
def test_an_execution_that_ended_stops_the_timer_and_runs_the_rules(histories: Histories) -> None:
    """Nothing happens when the time limit would have passed; the rules decide what becomes of the task."""
    history = histories("validation_failed")

    assert histories("success").changes("canonical", "time limit over") == []
    assert history.attempt("Complete", "build")["state"] == "SUCCEEDED"
    assert [line["trigger"] for line in history.exported("Complete", "task")] == [
        *("execution_completed", "validation_failed", "user_cancelled"),
    ]


@pytest.mark.proves("WST-TA4", "WST-KG3", "WST-KA3", "STP-E3", "MOD-F4")
def test_a_retry_is_counted_scheduled_and_frees_the_worker(histories: Histories) -> None:
    """`next_run_at = now + 2^attempts * base_delay`."""
    history = histories("retried")

    [line] = history.exported("Complete", "task")
    task = history.job("Complete", "build")
    assert (line["severity"], line["metadata"]["retry_count"]) == ("warning", 1)
    assert (task["state"], task["worker_id"], task["next_run_at"]) == ("RETRYING", "", "2026-01-04T08:01:40Z")
    assert (history.workers["Complete"]["w1"]["state"], history.workers["Complete"]["w1"]["tasks"]) == ("IDLE", [])


@pytest.mark.proves("MOD-F4", "STP-E3")
def test_a_backoff_has_a_cap_and_a_random_part(histories: Histories) -> None:
    """The random part is a fraction of the delay, at most all of it."""
    history = histories("backoff")

    assert history.job("Complete capped", "capped")["next_run_at"] == "2026-01-04T08:01:00Z"
    delayed = datetime.fromisoformat(history.job("Complete spread", "spread")["next_run_at"])
    failed = datetime.fromisoformat(history.job("Complete spread", "spread")["tries"][0]["updated_at"])
    assert 100 <= (delayed - failed).total_seconds() <= 200


@pytest.mark.proves("WST-TA5", "MOD-6", "MOD-F3")
def test_a_failure_keeps_the_error_frees_the_worker_and_blocks_the_dependents(histories: Histories) -> None:
    """The error is the line of the output that decided."""
    history = histories("exhausted")

    [failed, blocked] = history.exported("second Complete", "task")
    task, dependent = history.job("second Complete", "build"), history.job("second Complete", "ship")
    assert (failed["severity"], task["last_error"]["line"]) == ("error", "fatal: No space left on device")
    assert task["last_error"]["rule"] == failed["metadata"]["rule"] == "disk-or-memory"
    assert (dependent["state"], dependent["reason"], blocked["metadata"]["reason"]) == (
        *("CANCELED", "BLOCKED", "BLOCKED"),
    )
    assert history.workers["second Complete"]["w1"]["tasks"] == []


@pytest.mark.proves("WST-TA8")
def test_a_completion_sets_the_time_and_opens_the_dependents(histories: Histories) -> None:
    """And its worker is free."""
    history = histories("success")

    task = history.job("Complete", "build")
    assert (task["state"], task["completed_at"]) == ("SUCCEEDED", "2026-01-04T08:00:00Z")
    assert (history.job("Heartbeat", "test")["state"], history.job("Complete", "test")["state"]) == (
        *("PENDING", "QUEUED"),
    )
    assert history.workers["Complete"]["w1"]["tasks"] == []
    assert [line["trigger"] for line in history.exported("Complete", "task")] == [
        *("execution_completed", "validation_passed", "scheduler_assigned"),
    ]


@pytest.mark.proves("WST-TA9")
def test_a_failed_validation_keeps_its_details_and_blocks_the_dependents(histories: Histories) -> None:
    """With what was found and what was wanted."""
    history = histories("validation_failed")

    failed = history.exported("Complete", "task")[1]
    assert (failed["severity"], failed["metadata"]["details"]) == (
        *("error", "rule make check: found exit code 2, wanted exit code 0"),
    )
    assert history.job("Complete", "build")["last_error"]["line"] == failed["metadata"]["details"]
    assert history.job("Complete", "ship")["reason"] == "BLOCKED"


@pytest.mark.proves("WST-WA2")
def test_a_workstream_that_executes_has_a_start_time(histories: Histories) -> None:
    """From its first task on; the end has the duration."""
    history = histories("renewed")

    assert (history.runs["start"]["started_at"], history.runs["claim"]["started_at"]) == (
        *(None, "2026-01-04T08:00:00Z"),
    )
    [line] = history.exported("claim", "workstream")
    assert (line["trigger"], line["metadata"]["cause"]) == ("first_task_started", "job_started")
    assert history.exported("Complete", "workstream")[-1]["metadata"]["duration_seconds"] == 400


@pytest.mark.proves("WST-WA4", "MOD-6")
def test_a_failed_workstream_cancels_its_other_tasks_and_keeps_what_there_is(histories: Histories) -> None:
    """The event is critical."""
    history = histories("fail_fast")

    [line] = history.exported("Complete", "workstream")
    assert (line["to_state"], line["severity"]) == ("failed", "critical")
    states = {job["name"]: (job["state"], job["reason"]) for job in history.final["jobs"]}
    assert states["docs"] == states["test"] == ("CANCELED", "NOT_NEEDED")
    assert history.final["jobs"][0]["tries"][0]["error"]["code"] == "EXIT"


# -- invariants


@pytest.mark.proves("WST-TI1", "WST-TI2")
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_task_has_one_state_and_none_follows_a_terminal_one(histories: Histories, scenario: str) -> None:
    """Each line begins in the state in which the last one ended."""
    states: dict[str, str] = {}

    for line in histories(scenario).exported(kind="task"):
        state = states.get(line["entity_id"], "pending")
        assert state in OPEN
        assert line["from_state"] == state
        states[line["entity_id"]] = line["to_state"]


@pytest.mark.proves("WST-TI3", "WST-KI4")
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_only_a_running_task_has_a_worker_and_a_worker_has_only_such_tasks(histories: Histories, scenario: str) -> None:
    """A worker that lost or ended a task holds nothing of it any more."""
    history = histories(scenario)

    for action, run in history.runs.items():
        held = {task for worker in history.workers[action].values() for task in worker["tasks"]}
        for shown in run["jobs"]:
            leased = {each["id"] for each in shown["tries"] if each["id"] in held}
            assert not leased or shown["state"] == "RUNNING", (action, shown["name"])
            assert bool(shown["worker_id"]) == (shown["state"] == "RUNNING"), (action, shown["name"])


@pytest.mark.proves("WST-TI4")
@pytest.mark.parametrize("scenario", ["retried", "exhausted", "job_timeout", "compile_error"])
def test_retries_never_exceed_their_limit(histories: Histories, scenario: str) -> None:
    """Neither in transitions.jsonl nor in the API."""
    history = histories(scenario)
    counts = [line["metadata"] for line in history.exported(kind="task") if "retry_count" in line["metadata"]]

    assert counts
    assert all(count["retry_count"] <= count["max_retries"] for count in counts)
    assert all(job["attempts"] <= job["max_attempts"] for job in history.final["jobs"])


@pytest.mark.proves("WST-TI5")
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_created_started_and_completed_are_in_order(histories: Histories, scenario: str) -> None:
    """Also for what was cancelled before it started."""
    for shown in histories(scenario).final["jobs"]:
        times = [shown[name] for name in ("created_at", "started_at", "completed_at") if shown[name]]
        assert times == sorted(times, key=datetime.fromisoformat)


@pytest.mark.proves("WST-TI6", "WST-TG1")
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_queued_task_has_all_its_dependencies_completed(histories: Histories, scenario: str) -> None:
    """Or they were allowed to fail."""
    for run in histories(scenario).runs.values():
        jobs = {job["name"]: job for job in run["jobs"]}
        for shown in run["jobs"]:
            if shown["state"] in ("QUEUED", "RUNNING"):
                needed = [jobs[name] for name in shown["needs"]]
                assert all(job["state"] == "SUCCEEDED" or job["allow_failure"] for job in needed)


@pytest.mark.proves("WST-WI2", "WST-WG3", "WST-WI3")
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_workstream_completes_only_with_all_critical_tasks(histories: Histories, scenario: str) -> None:
    """And the failure of one of them fails it."""
    history = histories(scenario)
    tasks = {job["id"]: job for job in history.final["jobs"] if not job["allow_failure"]}

    for line in history.exported(kind="workstream"):
        if line["to_state"] in ("validating", "completed"):
            assert all(task["state"] == "SUCCEEDED" for task in tasks.values())
        if line["to_state"] == "failed":
            assert any(task["state"] != "SUCCEEDED" for task in tasks.values())


@pytest.mark.proves("WST-WG1", "WST-W1")
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_workstream_is_ready_with_as_many_tasks_as_its_plan_has(histories: Histories, scenario: str) -> None:
    """Approvals are no tasks."""
    history = histories(scenario)

    ready = next(line for line in history.exported(kind="workstream") if line["to_state"] == "ready")
    assert ready["metadata"]["task_count"] == sum(job["kind"] == "task" for job in history.runs["start"]["jobs"])


# -- its state follows from its tasks


@pytest.mark.proves("WST-WD1", "WST-WD2", "WST-WD3", "WST-WD4", "WST-WD5", "WST-WI1", "WST-T6", "WST-W9")
@pytest.mark.parametrize("end", ["completed", "failed", "cancelled"])
def test_the_state_of_a_workstream_is_derived_from_its_tasks(tmp_path: Path, end: str) -> None:
    """After every action the derived state is what document 003's function returns for the tasks that are shown."""

    async def play() -> list[tuple[str, str]]:
        seen: list[tuple[str, str]] = []
        async with staged(tmp_path) as stage:
            stand_in = StandIn(stage.site.service)
            id = (await stage.ada.post("/workstreams", {"spec": SPEC})).body["id"]

            async def look() -> None:
                shown = (await stage.ada.get(f"/workstreams/{id}")).body
                tasks = [Task(task["state"], task["is_critical"]) for task in shown["tasks"]]
                assert shown["derived_state"] == document_003(tasks), tasks
                if shown["state"] not in ("cancelled", "completed", "failed"):
                    assert shown["state"] == shown["derived_state"], tasks
                seen.append((shown["state"], shown["derived_state"]))

            await look()
            for name in ("schema", "api", "notes"):
                lease = await stage.runner.take()
                await look()
                if end == "cancelled" and name == "api":
                    await stage.ada.post(f"/workstreams/{id}/cancel")
                    await stage.runner.send(lease, "CancelAck", final_status="CANCELED", ts="2026-01-04T08:00:00Z")
                    await look()
                    break
                is_good = not (end == "failed" and name == "api")
                rules = lease["job_spec"].get("rules", [])
                verdicts = [{"rule": rule["run"], "is_passed": is_good} for rule in rules]
                await stage.runner.finish(lease, verdicts=verdicts)
                if is_good:
                    await stand_in.join(TENANT, id, name, "c" * 40)
                    await stage.site.service.engine.do(job.Validate(id=lease["job_id"], is_passed=True))
                await look()
                if not is_good:
                    break
        return seen

    states = asyncio.run(play())

    assert states[0] == ("ready", "ready")
    assert states[1] == ("executing", "executing")
    assert states[2] == ("executing", "executing")  # One task is completed, and the others are queued.
    assert states[-1] == (end, {"completed": "validating", "cancelled": "executing"}.get(end, end))


# -- workers


def steps(history: History, action: str) -> list[tuple[str, ...]]:
    """Return the transitions of workers that an action caused, as `transitions.jsonl` has them."""
    names = ("entity_id", "from_state", "to_state", "trigger", "severity")
    return [tuple(line[name] for name in names) for line in history.exported(action, "worker")]


@pytest.mark.parametrize(
    ("scenario", "action", "expected"),
    [
        pytest.param(
            "two_workers",
            "register",
            [("w2", "initializing", "idle", "registration_complete", "info")],
            marks=pytest.mark.proves("WST-K1", "WST-KG1", "WST-KA1", "WST-KS1"),
        ),
        pytest.param(
            "two_workers",
            "claim two",
            [("w2", "idle", "busy", "task_assigned", "info")],
            marks=pytest.mark.proves("WST-K2", "WST-KA2"),
        ),
        pytest.param("two_workers", "first Complete", [], marks=pytest.mark.proves("WST-K3", "WST-KG3")),
        pytest.param(
            "two_workers",
            "second Complete",
            [("w2", "busy", "idle", "task_completed", "info")],
            marks=pytest.mark.proves("WST-K3", "WST-KG3", "WST-KA3"),
        ),
        pytest.param("worker_leaves", "busy leaves", [], marks=pytest.mark.proves("WST-K8", "WST-KI3")),
        pytest.param(
            "worker_leaves",
            "idle leaves",
            [("w2", "idle", "shutdown", "shutdown_requested", "info")],
            marks=pytest.mark.proves("WST-K7", "WST-KS5"),
        ),
        pytest.param(
            "worker_leaves",
            "Complete",
            [("w1", "busy", "shutdown", "shutdown_requested", "info")],
            marks=pytest.mark.proves("WST-K8", "WST-KI3"),
        ),
    ],
)
def test_each_action_causes_exactly_these_transitions_of_workers(
    histories: Histories, scenario: str, action: str, expected: list[tuple[str, ...]]
) -> None:
    """In `transitions.jsonl`."""
    assert steps(histories(scenario), action) == expected


@pytest.mark.proves("WST-KG1", "WST-KA1")
def test_a_registered_worker_is_in_the_pool_with_its_capabilities(histories: Histories) -> None:
    """And takes work that needs them."""
    history = histories("two_workers")

    worker = history.workers["register"]["w2"]
    assert (worker["state"], worker["labels"], worker["slots"]) == ("IDLE", ["gpu"], 2)
    assert history.exported("register", "worker")[0]["metadata"]["labels"] == ["gpu"]
    assert len(history.workers["claim two"]["w2"]["tasks"]) == 2


@pytest.mark.proves("WST-TG2", "WST-KG2", "WST-KA2")
def test_a_worker_gets_only_tasks_whose_labels_it_has(histories: Histories) -> None:
    """A task that needs a label waits for a worker that has it."""
    history = histories("two_workers")

    assert history.replies["claim without label"] == []
    assert [lease["job_id"].partition("/")[2] for lease in history.replies["claim two"]] == ["gpu0", "gpu1"]
    assert history.job("claim two", "gpu0")["worker_id"] == "w2"


@pytest.mark.proves("WST-KA2", "WST-KA3")
def test_an_assignment_and_its_end_update_the_count_of_tasks(histories: Histories) -> None:
    """In the log and in the API: it is the utilization of the worker."""
    history = histories("two_workers")

    lines = [line for line in history.exported(kind="worker") if line["entity_id"] == "w2"]
    assert [line["metadata"]["tasks"] for line in lines[1:]] == [1, 0, 1, 0]
    actions = ("register", "claim two", "first Complete", "second Complete", "claim the rest", "third Complete")
    assert [len(history.workers[action]["w2"]["tasks"]) for action in actions] == [0, 2, 1, 0, 1, 0]


@pytest.mark.proves("WST-KI1")
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_worker_has_at_most_as_many_tasks_as_slots_and_is_busy_only_with_tasks(
    histories: Histories, scenario: str
) -> None:
    """After every action."""
    for workers in histories(scenario).workers.values():
        for worker in workers.values():
            assert len(worker["tasks"]) <= worker["slots"]
            assert bool(worker["tasks"]) == (worker["state"] == "BUSY"), worker


@pytest.mark.proves("WST-KH1", "WST-KH2", "WST-KH3", "WST-KH4")
def test_a_worker_that_is_held_finishes_its_tasks_and_gets_no_new_ones(histories: Histories) -> None:
    """A drain replaces a quarantine and not the other way round; a resume forgets the failures."""
    history = histories("holds")
    shown = {action: workers["w1"] for action, workers in history.workers.items()}

    assert [shown[f"Complete {n}"]["troubles"] for n in range(3)] == [1, 2, 3]
    assert (shown["Complete 1"]["hold"], shown["Complete 2"]["hold"]) == ("", "QUARANTINED")
    assert (shown["drain"]["hold"], shown["drain"]["hold_reason"]) == ("DRAINED", "new disk")
    assert (shown["resume"]["hold"], shown["resume"]["troubles"]) == ("", 0)
    assert (shown["third drain"]["hold_reason"], len(shown["third drain"]["tasks"])) == ("move", 3)
    assert (shown["Complete 5"]["hold"], shown["Complete 5"]["tasks"]) == ("DRAINED", [])
    assert history.replies["claim in quarantine"] == history.replies["claim while drained"] == []
    holds = [line for line in map(json.loads, history.exports["canonical"]) if "hold" in line["metadata"]]
    assert [(line["trigger"], line["actor"], line["severity"]) for line in holds if line["entity"] == "worker"] == [
        ("quarantined", "orchestrator", "warning"),
        *(("drained", "user:ada", "info"), ("resumed", "user:ada", "info")),
        *(("drained", "user:ada", "info"), ("resumed", "user:ada", "info")),
    ]


@pytest.mark.proves("WST-KH4", "WST-KH3")
def test_what_jobs_print_never_counts_against_their_worker(histories: Histories) -> None:
    """Three failing tests that print '503 Service Unavailable' must not stop the only runner."""
    history = histories("printed")
    shown = [history.workers[f"Complete {n}"]["w1"] for n in range(6)]

    assert [worker["troubles"] for worker in shown] == [0, 0, 1, 1, 1, 0]
    assert {worker["hold"] for worker in shown} == {""}


@pytest.mark.proves("WST-KH4", "WST-KH3")
def test_failures_of_a_worker_are_counted_and_a_result_resets_the_count(histories: Histories) -> None:
    """A lost lease and a failure of the infrastructure count, a failure of the user and a timeout do not."""
    lost, retried, timeout = histories("lease_lost"), histories("retried"), histories("job_timeout")

    assert [
        lost.workers[action]["w1"]["troubles"] for action in ("claim", "accept window over", "third lease over")
    ] == [
        *(0, 1, 2),
    ]
    assert [lost.workers[action]["w2"]["troubles"] for action in ("120 s later", "fourth lease over")] == [1, 2]
    assert retried.workers["Complete"]["w1"]["troubles"] == 0
    assert timeout.workers["150 s later"]["w1"]["troubles"] == 0
    assert histories("compile_error").workers["Complete"]["w1"]["troubles"] == 0


# -- the log


@pytest.mark.proves("WST-E1", "WST-E2")
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_line_has_the_fields_of_document_003(histories: Histories, scenario: str) -> None:
    """In its order, with the type of its machine."""
    for line in histories(scenario).lines:
        assert list(line) == [
            *("timestamp", "event_type", "severity", "entity_id", "from_state", "to_state", "trigger", "metadata"),
        ]
        entity = line["entity_id"]
        machine = "worker" if entity.startswith("w") else "task" if "/" in entity else "workstream"
        assert line["event_type"] == f"{machine}_state_transition"
        assert line["timestamp"].endswith("Z")


@pytest.mark.proves("WST-E3", "MOD-E4")
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_line_has_the_severity_of_document_003(histories: Histories, scenario: str) -> None:
    """The four that it names; the rest is information, except that a workstream that fails is critical."""
    for line in histories(scenario).lines:
        machine, source, target = line["event_type"].partition("_")[0], line["from_state"], line["to_state"]
        expected = {
            ("task", "running", "retrying"): "warning",
            ("task", "running", "failed"): "error",
            ("task", "validating", "failed"): "error",
            ("worker", "busy", "unresponsive"): "error",
        }.get((machine, source, target), "critical" if (machine, target) == ("workstream", "failed") else "info")
        assert line["severity"] == expected, line


@pytest.mark.proves("WST-E4")
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_transition_of_a_task_and_of_a_workstream_is_a_line(histories: Histories, scenario: str) -> None:
    """The file and the API agree; the birth of a record is no transition of document 003."""
    history = histories(scenario)
    shown = [change for change in history.changes("workstreams") if change.source is not None]

    lines = [line for line in history.lines if not line["event_type"].startswith("worker")]
    assert [(line["entity_id"], line["from_state"], line["to_state"], line["trigger"]) for line in lines] == [
        (change.body["entity_id"], change.source, change.target, change.trigger) for change in shown
    ]


@pytest.mark.proves("WST-V5")
def test_a_reclaim_names_both_workers_and_is_counted(histories: Histories) -> None:
    """The task stays running."""
    history = histories("lease_lost")

    lines = [line for line in history.exported(kind="task") if line["from_state"] == line["to_state"]]
    assert [(line["metadata"]["lost_worker_id"], line["metadata"]["worker_id"]) for line in lines] == [
        *(("w1", "w2"), ("w2", "w1"), ("w1", "w2")),
    ]
    assert [line["metadata"]["reclaim_count"] for line in lines] == [1, 2, 3]
    assert history.exported(kind="task")[-1]["metadata"]["reclaim_count"] == 3
