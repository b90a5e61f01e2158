"""The export and the verifier of document 003 (docs/spec/workstreams.md): exported lines, and violations."""

from __future__ import annotations

import re
from collections.abc import Callable

import msgspec
import pytest

from deltaci.audit.verify import NotAnEventLogError, verify
from deltaci.core import attempt, job, run, worker
from deltaci.core.decide import CancelJob
from deltaci.core.failures import Facts
from tests.spec.logs import Line, decoded, violations
from tests.support.lab import Lab, gate, task

FIELDS = ["timestamp", "event_type", "severity", "entity_id", "from_state", "to_state", "trigger", "metadata"]
TASK, STREAM, WORKER = "task_state_transition", "workstream_state_transition", "worker_state_transition"

# Document 003's three machines: (from, to) -> trigger, with the extensions that the model lists.
TASKS = {
    ("pending", "queued"): "scheduler_assigned",
    ("queued", "running"): "worker_started",
    ("running", "running"): "worker_started",  # A reclaim, which stays in the same state.
    ("running", "validating"): "execution_completed",
    ("running", "retrying"): "execution_failed",
    ("running", "failed"): "execution_failed",
    ("running", "cancelled"): "user_cancelled",
    ("retrying", "queued"): "retry_delay_elapsed",
    ("validating", "completed"): "validation_passed",
    ("validating", "failed"): "validation_failed",
} | dict.fromkeys(((state, "cancelled") for state in ("pending", "queued", "retrying", "validating")), "user_cancelled")
STREAMS = {
    ("planned", "ready"): "all_tasks_created",
    ("ready", "executing"): "first_task_started",
    ("executing", "validating"): "all_tasks_completed",
    ("executing", "failed"): "critical_task_failed",
    ("validating", "completed"): "validation_passed",
    ("validating", "failed"): "validation_failed",
    ("planned", "failed"): "planning_failed",
} | dict.fromkeys(((state, "cancelled") for state in ("planned", "ready", "executing", "validating")), "user_cancelled")
WORKERS = {
    ("initializing", "idle"): "registration_complete",
    ("idle", "busy"): "task_assigned",
    ("busy", "idle"): "task_completed",
    ("busy", "unresponsive"): "health_check_timeout",
    ("unresponsive", "idle"): "health_check_recovered",
    ("unresponsive", "shutdown"): "max_timeout_exceeded",
    ("idle", "shutdown"): "shutdown_requested",
    ("busy", "shutdown"): "shutdown_requested",
}


def retried() -> Lab:
    """Return a run whose first attempt of a task failed with a full disk and whose second attempt succeeded."""
    lab = Lab()
    lab.register("w1", labels=("linux",))
    lab.plan(task("a", max_attempts=2), task("b", "a"))
    disk_full = Facts(log_tail=("No space left on device",))
    lab.after(1).complete(lab.claim(lab.attempt("a")), ok=False, facts=disk_full)
    lab.after(20).do(job.RetryDue(id="r1/a"))
    lab.after(1).work("a")
    lab.after(1).work("b")
    return lab


def eventful() -> Lab:
    """Return a log with nearly every transition of the three machines, and with an approval, which is not a task."""
    lab = retried()
    lab.plan(task("a", has_validation=True), task("b"), gate("ask"), id="r2", has_validation=True)
    lab.work("a", run_id="r2")
    lab.do(job.Validate(id="r2/a", is_passed=False))
    lab.do(CancelJob(id="r2/b", actor="user:ada"))
    lab.approve("ask", run_id="r2")
    lab.plan(task("a"), id="r3", has_validation=True)
    lab.work("a", run_id="r3")
    lab.do(run.Validate(id="r3", is_passed=False))
    lab.create("r4")
    lab.do(run.BeginPlanning(id="r4"))
    lab.do(run.PlanFailed(id="r4", error="no plan"))
    lab.plan(task("a"), task("b"), id="r5", is_fail_fast=True)
    lab.claim(lab.attempt("b", run_id="r5"))
    lab.do(worker.MissHealthChecks(id="w1"))
    lab.after(30).do(attempt.RevokeUnaccepted(id="r5/b.1"))
    lab.work("a", "w2", ok=False, run_id="r5")
    lab.do(worker.GiveUp(id="w1"))
    lab.plan(task("a"), id="r6")
    lab.cancel_run("r6")
    return lab


# -- the event


@pytest.mark.proves("WST-E1")
def test_an_event_has_exactly_the_fields_of_document_003() -> None:
    """Tools that were written for document 003 read our log unchanged."""
    lab = eventful()

    lines = decoded(lab.transitions())

    assert all(list(line) == FIELDS for line in lines)
    assert all(isinstance(line["metadata"], dict) for line in lines)
    stamp = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")
    assert all(stamp.fullmatch(line["timestamp"]) for line in lines)
    assert all(isinstance(line[field], str) and line[field] for line in lines for field in FIELDS[:-1])


@pytest.mark.proves("WST-E1")
def test_the_metadata_has_the_duration_and_the_retry_count() -> None:
    """The most frequent questions need no other event."""
    lines = [line for line in decoded(retried().transitions()) if line["entity_id"] == "r1/a"]

    assert [line["to_state"] for line in lines] == [
        *("queued", "running", "retrying", "queued", "running", "validating", "completed")
    ]
    assert lines[2] == {
        "timestamp": "2026-01-04T08:00:01.000000Z",
        "event_type": "task_state_transition",
        "severity": "warning",
        "entity_id": "r1/a",
        "from_state": "running",
        "to_state": "retrying",
        "trigger": "execution_failed",
        "metadata": {
            "retry_count": 1,
            "max_retries": 1,
            "failure_class": "INFRA",
            "rule": "disk-or-memory",
            "code": "EXIT",
            "workstream_id": "r1",
        },
    }
    assert lines[-1]["metadata"] == {"workstream_id": "r1", "duration_seconds": 21.0}


@pytest.mark.proves("WST-E2")
def test_the_type_of_an_event_names_its_machine() -> None:
    """A reader can sort events by type alone, because an id belongs to one machine."""
    lab = eventful()

    kinds = {(line["event_type"], line["entity_id"]) for line in decoded(lab.transitions())}

    ids = {kind: {id for event_type, id in kinds if event_type == kind} for kind in (TASK, STREAM, WORKER)}
    assert ids[STREAM] == {"r1", "r2", "r3", "r4", "r5", "r6"}
    assert ids[WORKER] == {"w1"}
    assert ids[TASK] == {f"r{run}/{name}" for run, name in ("1a", "1b", "2a", "2b", "3a", "5a", "5b", "6a")}
    assert {kind for kind, _ in kinds} == {TASK, STREAM, WORKER}


@pytest.mark.proves("WST-E3")
def test_every_transition_has_the_severity_of_document_003() -> None:
    """Alerts rely on it."""
    lines = decoded(eventful().transitions())
    special = {
        (TASK, "running", "retrying"): "warning",
        (TASK, "running", "failed"): "error",
        (TASK, "validating", "failed"): "error",
        (WORKER, "busy", "unresponsive"): "error",
        (STREAM, "executing", "failed"): "critical",
        (STREAM, "validating", "failed"): "critical",
        (STREAM, "planned", "failed"): "critical",
    }

    severities = {(line["event_type"], line["from_state"], line["to_state"]): line["severity"] for line in lines}

    assert severities.keys() >= special.keys()
    assert severities == {step: special.get(step, "info") for step in severities}


@pytest.mark.proves("WST-E2", "WST-E3")
@pytest.mark.parametrize(
    ("rule", "change"),
    [
        ("WST-E3", {"severity": "critical"}),
        ("WST-E3", {"severity": "info"}),
        ("WST-E2", {"event_type": WORKER}),
        ("WST-V3", {"event_type": "step_state_transition"}),
        ("WST-V3", {"severity": "fatal"}),
    ],
)
def test_another_severity_or_type_is_reported(rule: str, change: Line) -> None:
    """Only the values of document 003 are legal."""
    lines = decoded(retried().transitions())
    number = next(n for n, line in enumerate(lines, 1) if line["to_state"] == "retrying")
    lines[number - 1].update(change)

    assert violations(lines)[0] == (number, rule)


@pytest.mark.proves("WST-E4")
def test_every_transition_of_the_three_machines_is_one_line() -> None:
    """The export is complete for tasks, workstreams and workers; an approval is none of them."""
    lab = eventful()
    shown = {"SUCCEEDED": "completed", "CANCELED": "cancelled", "SUCCESS": "completed"}
    runs = {"CREATED": "planned", "PLANNING": "planned", "QUEUED": "ready", "RUNNING": "executing"}
    runs |= {"WAITING_APPROVAL": "executing", "PLAN_FAILED": "failed"}
    expected, states = [], dict[str, str]()
    for event in lab.log:
        if event.entity not in ("run", "job", "worker") or event.entity_id == "r2/ask":
            continue
        before = states.get(event.entity_id)
        to = (runs if event.entity == "run" else {}).get(event.to) or shown.get(event.to, event.to.lower())
        if event.to == "CANCEL_REQUESTED":
            to = before or ""
        states[event.entity_id] = to
        if before not in (None, to):
            expected.append((event.entity_id, before, to))

    raw = lab.transitions()

    assert [(line["entity_id"], line["from_state"], line["to_state"]) for line in decoded(raw)] == expected
    assert not any(b"\n" in line for line in raw)
    lab.verified()


# -- the validator: transitions


def legal_paths(first: str, table: dict[tuple[str, str], str]) -> dict[str, list[tuple[str, str, str]]]:
    """Return a legal path from the first state to each state."""
    paths: dict[str, list[tuple[str, str, str]]] = {first: []}
    for _ in table:
        for (source, target), trigger in table.items():
            if source in paths:
                paths.setdefault(target, [*paths[source], (source, target, trigger)])
    return paths


def as_line(kind: str, source: str, target: str, trigger: str) -> bytes:
    severity = "info"
    if target == "failed":
        severity = "critical" if kind == STREAM else "error"
    elif target in ("retrying", "unresponsive"):
        severity = "warning" if target == "retrying" else "error"
    stamp = "2026-01-04T08:00:00Z"
    return msgspec.json.encode(
        dict(zip(FIELDS, (stamp, kind, severity, "x", source, target, trigger, {}), strict=True))
    )


@pytest.mark.proves("WST-V1")
@pytest.mark.parametrize(
    ("kind", "first", "table"),
    [(TASK, "pending", TASKS), (STREAM, "planned", STREAMS), (WORKER, "initializing", WORKERS)],
    ids=["task", "workstream", "worker"],
)
def test_exactly_the_transitions_of_the_machines_are_legal(
    kind: str, first: str, table: dict[tuple[str, str], str]
) -> None:
    """Every combination of state, target and trigger is tried."""
    state_paths, triggers = legal_paths(first, table), {*table.values(), "made_up"}
    non_terminal = {source for source, _ in table}

    for source, path in state_paths.items():
        for target in state_paths:
            for trigger in triggers:
                lines = [as_line(kind, *step) for step in (*path, (source, target, trigger))]
                found = {(violation.line, violation.rule) for violation in verify(lines).violations}
                is_legal = table.get((source, target)) == trigger
                rules = {"WST-V1"} if source in non_terminal else {"WST-V1", "WST-TI2"}
                assert (not found) is is_legal, (source, target, trigger)
                assert is_legal or found & {(len(lines), rule) for rule in rules}, (source, target, trigger)


@pytest.mark.proves("WST-V1")
@pytest.mark.parametrize(("entity", "to"), [("job", "VALIDATING"), ("worker", "BUSY")])
def test_another_transition_in_the_canonical_log_is_reported_by_the_same_rule(entity: str, to: str) -> None:
    """All formats have the same machines."""
    lines = decoded(retried().canonical())
    number = next(n for n, line in enumerate(lines, 1) if (line["entity"], line["to"]) == (entity, to))
    lines[number - 1]["trigger"] = "made_up"

    assert (number, "WST-V1") in violations(lines)


# -- the validator: invariants


def last_line(lines: list[Line], id: str, to: str) -> int:
    """Return the number of the last line in which the entity reaches the state."""
    return max(n for n, line in enumerate(lines, 1) if (line["entity_id"], line["to_state"]) == (id, to))


@pytest.mark.proves("WST-V2", "WST-TI1", "WST-TI3", "WST-TI4", "WST-TG2", "WST-TI6")
@pytest.mark.parametrize(
    ("rule", "id", "to", "change"),
    [
        ("WST-TI1", "r1/a", "validating", lambda line: line.update(from_state="queued")),
        ("WST-TI3", "r1/a", "completed", lambda line: line["metadata"].update(worker_id="w1")),
        ("WST-TI4", "r1/a", "retrying", lambda line: line["metadata"].update(retry_count=0)),
        ("WST-TI4", "r1/a", "retrying", lambda line: line["metadata"].update(max_retries=2)),
        ("WST-TG2", "r1/a", "running", lambda line: line["metadata"].update(worker_id="ghost")),
        ("WST-TI6", "r1/b", "queued", lambda line: line["metadata"].update(depends_on=["r1/a", "r1/nobody"])),
    ],
)
def test_a_task_that_breaks_an_invariant_is_reported(
    rule: str, id: str, to: str, change: Callable[[Line], object]
) -> None:
    """A log may be forged or written by a faulty program."""
    lines = decoded(retried().transitions())
    assert violations(lines) == []
    number = last_line(lines, id, to)
    change(lines[number - 1])

    assert (number, rule) in violations(lines)


@pytest.mark.proves("WST-V2", "WST-TI2", "WST-TI4", "WST-TI6", "WST-WI1")
def test_an_added_moved_or_repeated_line_is_reported() -> None:
    """Each line may be legal on its own."""
    lines = decoded(retried().transitions())
    ended, queued = last_line(lines, "r1/a", "completed"), last_line(lines, "r1/b", "queued")
    retry = [line for line in lines if line["entity_id"] == "r1/a"][2:5]
    again = {**lines[0], "entity_id": "r1/a", "timestamp": lines[ended - 1]["timestamp"], "event_type": TASK}
    again |= {"from_state": "pending", "to_state": "queued", "trigger": "scheduler_assigned"}
    again["metadata"] = {"workstream_id": "r1"}

    resurrected = violations([*lines[:ended], again, *lines[ended:]])
    too_early = violations([*lines[: ended - 1], lines[queued - 1], lines[ended - 1], *lines[queued:]])
    twice = [{**line, "metadata": {}, "timestamp": lines[ended - 3]["timestamp"]} for line in retry]
    too_often = violations([*lines[: ended - 2], *twice, *lines[ended - 2 :]])
    too_late = violations([*lines, {**again, "entity_id": "r1/c", "timestamp": lines[-1]["timestamp"]}])

    assert (ended + 1, "WST-TI2") in resurrected
    assert too_early == [(ended, "WST-TI6")]
    assert too_often == [(ended - 1, "WST-TI4")]
    assert too_late == [(len(lines) + 1, "WST-WI1")]


@pytest.mark.proves("WST-V2", "WST-WG2", "WST-WI2", "WST-WG4", "WST-WD1", "WST-WD5")
def test_a_workstream_that_does_not_fit_its_tasks_is_reported() -> None:
    """It cannot start, end or fail without its tasks, nor stay behind them."""
    lab = Lab().plan(task("a"))
    lab.work("a", ok=False)
    failed, done = decoded(lab.transitions()), decoded(retried().transitions())
    begun, ended = last_line(done, "r1", "executing"), last_line(done, "r1", "validating")
    excused = [{**line, "metadata": {**line["metadata"]}} for line in failed]
    excused[last_line(failed, "r1/a", "queued") - 1]["metadata"]["critical"] = False
    started = next(n for n, line in enumerate(done, 1) if line["to_state"] == "running")
    moved = last_line(done, "r1/a", "retrying")

    early = violations([*done[: started - 1], done[begun - 1], *done[started - 1 : begun - 1], *done[begun:]])
    behind = violations([*done[: begun - 1], *done[begun:moved]])
    stuck = violations([*done[: begun - 1]])
    unfinished = violations([*done[: ended - 2], *done[ended - 1 :]])

    assert early == [(started, "WST-WG2")]
    assert (moved - 1, "WST-WD5") in behind
    assert stuck == [(begun - 1, "WST-WD1")]
    assert [rule for _, rule in unfinished] == ["WST-WI2", "WST-WI2"]
    assert violations(excused) == [(last_line(failed, "r1", "failed"), "WST-WG4")]


@pytest.mark.proves("WST-V2", "WST-TG4", "WST-TG5")
@pytest.mark.parametrize(("rule", "to", "is_retryable"), [("WST-TG4", "RETRYING", False), ("WST-TG5", "FAILED", True)])
def test_a_wrong_retry_decision_is_reported(rule: str, to: str, is_retryable: bool) -> None:
    """A retry of a failure that must not be retried, and a missing retry."""
    lab = Lab().plan(task("a", max_attempts=2))
    lab.fail(lab.claim(lab.attempt("a")), "RUNNER_STARTUP" if to == "RETRYING" else "BAD_SPEC")
    lines = decoded(lab.canonical())
    failure = next(line for line in lines if (line["entity"], line["to"]) == ("attempt", attempt.FAILED))
    failure["metadata"]["error"].update(is_retryable=is_retryable)
    number = next(n for n, line in enumerate(lines, 1) if (line["entity"], line["to"]) == ("job", to))

    assert (number, rule) in violations(lines)


# -- the validator: schema and time


@pytest.mark.proves("WST-V3")
@pytest.mark.parametrize("field", FIELDS)
def test_a_missing_field_is_reported(field: str) -> None:
    """All fields of document 003 are required."""
    lines = decoded(retried().transitions())
    del lines[1][field]

    found = verify([msgspec.json.encode(line) for line in lines]).violations

    assert (found[0].line, found[0].rule) == (2, "WST-V3")
    assert field in found[0].found


NO_STRINGS: tuple[object, ...] = (None, 17, [])


@pytest.mark.proves("WST-V3")
@pytest.mark.parametrize(
    "change",
    [
        *({field: wrong} for field in FIELDS for wrong in NO_STRINGS),
        *({field: ""} for field in FIELDS),
        *({"timestamp": wrong} for wrong in ("yesterday", "2026-01-04", "2026-01-04T08:00:00", "2026-13-04T08:00:00Z")),
        *({"metadata": {key: "many"}} for key in ("retry_count", "duration_seconds", "depends_on", "critical")),
        {"metadata": {"retry_count": -1}},
        {"metadata": {"duration_seconds": -0.5}},
        {"surprise": True},
    ],
    ids=str,
)
def test_a_value_of_the_wrong_type_is_reported(change: Line) -> None:
    """A reader relies on the schema."""
    lines = decoded(retried().transitions())
    lines[1].update(change)

    assert violations(lines)[0] == (2, "WST-V3")


@pytest.mark.proves("WST-V3")
@pytest.mark.parametrize(
    "raw", [b"not json", b"{", b"[]", b"{}", b"null", b'"text"', b"\xff\xfe\x00", b"[" * 5000, b'{"a":1} {"b":2}']
)
def test_a_line_that_is_not_an_event_is_reported_and_the_rest_is_verified(raw: bytes) -> None:
    """One broken line must not hide the rest of the log."""
    lines = retried().transitions()

    report = verify([*lines[:-1], raw, lines[-1]])

    assert [(violation.line, violation.rule) for violation in report.violations] == [(len(lines), "WST-V3")]
    assert report.event_count == len(lines) + 1


@pytest.mark.proves("WST-V5", "WST-TI3")
def test_a_reclaimed_task_names_its_new_worker() -> None:
    """The worker that lost the task does not run it any more."""
    lab = Lab()
    lab.register("w1")
    lab.register("w2")
    lab.plan(task("a"))
    lab.claim(lab.attempt("a"), by="w1")
    lab.after(121).do(attempt.RevokeUnaccepted(id="r1/a.1"))

    lab.work("a", "w2")

    starts = [line for line in decoded(lab.transitions()) if line["trigger"] == "worker_started"]
    assert [(line["from_state"], line["metadata"]["worker_id"]) for line in starts] == [
        ("queued", "w1"),
        ("running", "w2"),
    ]
    assert starts[1]["metadata"]["lost_worker_id"] == "w1"
    lab.verified()


@pytest.mark.proves("WST-V5")
def test_a_worker_that_the_log_does_not_list_is_named_as_such() -> None:
    """A client of the plain queue needs no registration; the file shows that it cannot prove anything about it."""
    lab = Lab()
    lab.register("w1")
    lab.plan(task("a"), task("b"))

    lab.work("a", "w1")
    lab.work("b", "w2")

    lines = {
        line["entity_id"]: line["metadata"] for line in decoded(lab.transitions()) if line["to_state"] == "running"
    }
    assert (lines["r1/a"]["worker_id"], "unlisted_worker_id" in lines["r1/a"]) == ("w1", False)
    assert (lines["r1/b"]["unlisted_worker_id"], "worker_id" in lines["r1/b"]) == ("w2", False)
    lab.verified()


def line_of(id: str, from_state: str, to_state: str, trigger: str, **metadata: object) -> Line:
    """Return a line as another implementation writes it: of a worker, or else of a task without a workstream."""
    return {
        "timestamp": "2024-01-15T10:30:00.000Z",
        "event_type": WORKER if id.startswith("worker") else TASK,
        "severity": "info",
        "entity_id": id,
        "from_state": from_state,
        "to_state": to_state,
        "trigger": trigger,
        "metadata": metadata,
    }


def registered(id: str, **metadata: object) -> Line:
    """Return the line of a worker that is ready."""
    return line_of(id, "initializing", "idle", "registration_complete", **metadata)


def started_on(worker_id: str, *tasks: str) -> list[Line]:
    """Return the lines of tasks that start on a worker."""
    return [
        line
        for task_id in tasks
        for line in (
            line_of(task_id, "pending", "queued", "scheduler_assigned"),
            line_of(task_id, "queued", "running", "worker_started", worker_id=worker_id),
        )
    ]


@pytest.mark.proves("WST-V2", "WST-KI1")
@pytest.mark.parametrize("slots", [1, 2])
def test_more_running_tasks_than_the_worker_has_slots_are_reported(slots: int) -> None:
    """The lines of the tasks alone show it, whether or not the worker's own lines admit it."""
    full = [registered("worker-1", max_concurrent_tasks=slots), *started_on("worker-1", *"abc"[:slots])]
    assert violations(full) == []

    assert violations([*full, *started_on("worker-1", "d")]) == [(len(full) + 2, "WST-KI1")]


@pytest.mark.proves("WST-KI1")
def test_a_task_that_left_its_worker_does_not_count() -> None:
    """It ended, its worker is idle or unresponsive, or another worker took it over."""
    first = [registered("worker-1", max_concurrent_tasks=1), *started_on("worker-1", "a")]
    ends = (
        [line_of("a", "running", "validating", "execution_completed")],
        [
            line_of("worker-1", "idle", "busy", "task_assigned"),
            line_of("worker-1", "busy", "idle", "task_completed"),
        ],
        [registered("worker-2"), line_of("a", "running", "running", "worker_started", worker_id="worker-2")],
    )
    for end in ends:
        assert violations([*first, *end, *started_on("worker-1", "b")]) == []


@pytest.mark.proves("WST-V2", "WST-TG2")
@pytest.mark.parametrize(
    "before",
    [
        [registered("worker-2")],
        [registered("worker-1"), line_of("worker-1", "idle", "shutdown", "shutdown_requested")],
    ],
    ids=["unregistered", "shut down"],
)
def test_a_task_on_a_worker_that_cannot_run_it_is_reported(before: list[Line]) -> None:
    """It would run nowhere, or where the orchestrator does not see it."""
    assert violations([*before, *started_on("worker-1", "a")]) == [(len(before) + 2, "WST-TG2")]


@pytest.mark.proves("WST-TG2")
def test_a_worker_that_registers_after_its_task_started_is_reported() -> None:
    """A log without workers may be that of one run; this one has them."""
    assert violations(started_on("worker-1", "a")) == []
    assert violations([*started_on("worker-1", "a"), registered("worker-1")]) == [(3, "WST-TG2")]


@pytest.mark.proves("WST-V2")
def test_metadata_that_document_003_does_not_define_is_not_judged() -> None:
    """Another implementation may count a duration from the creation of the task, and a worker's tasks otherwise."""
    lines = [
        registered("worker-1", tasks=["none yet"]),
        *started_on("worker-1", "a"),
        line_of("worker-1", "idle", "busy", "task_assigned", tasks=9),
        line_of("a", "running", "validating", "execution_completed", duration_seconds=77),
        line_of("a", "validating", "completed", "validation_passed", duration_seconds=99.5),
        line_of("worker-1", "busy", "idle", "task_completed", tasks=9),
    ]

    assert violations(lines) == []


@pytest.mark.parametrize("lines", [[], [b"", b"  "]])
@pytest.mark.parametrize("format", ["", "canonical", "transitions", "job-events"])
def test_an_empty_log_is_legal(lines: list[bytes], format: str) -> None:
    """A new deployment has no events, and its log breaks no rule."""
    report = verify(lines, format)

    assert (report.is_legal, report.event_count) == (True, 0)


@pytest.mark.proves("WST-V3")
@pytest.mark.parametrize("lines", [[b"not json"], [b"[1]"], [b'{"hello":"world"}']])
def test_input_that_is_not_a_log_is_refused(lines: list[bytes]) -> None:
    """To call a foreign file legal would be misleading."""
    with pytest.raises(NotAnEventLogError):
        verify(lines)


@pytest.mark.proves("WST-V4")
def test_a_time_that_goes_back_is_reported() -> None:
    """Conclusions from a log depend on its order."""
    lab = retried()
    transitions, canonical = decoded(lab.transitions()), decoded(lab.canonical())
    transitions[-1]["timestamp"] = canonical[-1]["at"] = "2026-01-04T07:59:59.999999Z"

    assert (len(transitions), "WST-V4") in violations(transitions)
    assert (len(canonical), "WST-V4") in violations(canonical)


@pytest.mark.proves("WST-V4")
def test_a_clock_that_jumps_back_does_not_make_exported_times_go_back() -> None:
    """Equal times are legal."""
    lab = Lab()
    lab.register("w1")
    lab.plan(task("a"), task("b"))
    lab.work("a")
    lab.after(-3600)

    lab.plan(task("a"), id="r2")
    lab.work("b")
    lab.work("a", run_id="r2")

    stamps = [line["timestamp"] for line in decoded(lab.transitions())]
    assert stamps == sorted(stamps)
    lab.verified()
