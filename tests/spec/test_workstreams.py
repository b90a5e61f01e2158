"""The workstream rules of docs/spec/workstreams.md, each proved on the real core.

Tasks, workers, the log and the random walks have files of their own beside this one.
"""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltaci.audit.verify import verify
from deltaci.core import attempt, job, run
from deltaci.core.decide import Plan
from deltaci.core.instants import SECOND
from deltaci.core.job import JobSpec
from deltaci.core.status.workstreams import derive_workstream_state, task_state, workstream_state
from tests.spec.logs import altered, decoded, exported
from tests.support.lab import Lab, gate, task

TASK_STATES = ("pending", "queued", "running", "validating", "completed", "failed", "retrying", "cancelled")


def steps(lab: Lab, id: str = "r1") -> list[tuple[str, str, str]]:
    """The transitions of an entity, as document 003 reads them."""
    return [(line["from_state"], line["to_state"], line["trigger"]) for line in exported(lab, id)]


def planning() -> Lab:
    """A run that waits for its plan."""
    lab = Lab()
    lab.create()
    lab.do(run.BeginPlanning(id="r1"))
    return lab


# -- planned and ready


@pytest.mark.proves("WST-WG1")
@pytest.mark.parametrize(
    ("specs", "code"),
    [
        ((task("a"), task("a")), "bad_request"),
        ((task("a", "nobody"),), "bad_request"),
        ((task("a"), task("b", "a", "a")), "bad_request"),
        ((task("a", "b"), task("b", "a")), "dependency_cycle"),
    ],
)
def test_a_plan_whose_tasks_cannot_all_exist_leaves_the_workstream_planned(
    specs: tuple[JobSpec, ...], code: str
) -> None:
    """A plan counts as a whole: half of its tasks would be an unspecified workstream."""
    lab = planning()

    refusal = lab.refused(Plan(id="r1", jobs=specs))

    assert refusal.code == code
    assert workstream_state(lab.run()) == "planned"


@pytest.mark.proves("WST-WG1")
def test_the_verifier_counts_the_tasks_of_a_workstream() -> None:
    """A log with an uncounted or a missing task is not reliable."""
    lab = planning()
    lab.do(Plan(id="r1", jobs=(task("a"), task("b"))))
    canonical, transitions = lab.canonical(), lab.transitions()
    birth = next(n for n, raw in enumerate(canonical) if msgspec.json.decode(raw)["entity_id"] == "r1/b")
    counted = msgspec.json.decode(transitions[0])
    counted["metadata"]["task_count"] = 1
    transitions[0] = msgspec.json.encode(counted)

    missing = verify([raw for n, raw in enumerate(canonical) if n != birth]).violations
    surplus = verify(transitions).violations

    assert "WST-WG1" in {each.rule for each in missing}
    assert [(violation.line, violation.rule) for violation in surplus] == [(3, "WST-WG1")]


@pytest.mark.proves("WST-W1", "WST-WG1")
def test_a_workstream_is_ready_when_every_task_of_its_plan_exists() -> None:
    """From here on its tasks can be counted, and nothing that was specified is missing."""
    lab = planning()
    assert workstream_state(lab.run()) == "planned"

    lab.do(Plan(id="r1", jobs=(task("a"), task("b", "a"), task("c"))))

    assert steps(lab) == [("planned", "ready", "all_tasks_created")]
    assert exported(lab, "r1")[0]["metadata"]["task_count"] == 3
    assert [task_state(lab.job(name)) for name in "abc"] == ["queued", "pending", "queued"]
    lab.verified()


# -- executing


@pytest.mark.proves("WST-W2", "WST-WG2", "WST-WA2")
def test_a_workstream_executes_when_its_first_task_runs_and_its_time_starts() -> None:
    """What waits in a queue costs nothing: time and measurement begin with the first task, not with the plan."""
    lab = Lab().plan(task("a"), task("b"), timeout_seconds=100)
    lab.after(1000)
    assert (workstream_state(lab.run()), lab.run().times_out_at) == ("ready", 0)
    assert lab.refused(run.TimeOut(id="r1")).code == "not_due"

    lab.claim(lab.attempt("b"))

    assert steps(lab)[-1] == ("ready", "executing", "first_task_started")
    assert exported(lab, "r1")[-1]["metadata"] == {"cause": "job_started"}
    assert lab.run().times_out_at == lab.now + 100 * SECOND
    assert lab.after(99).refused(run.TimeOut(id="r1")).code == "not_due"
    lab.after(1).do(run.TimeOut(id="r1"))
    assert exported(lab, "r1")[-1]["metadata"]["duration_seconds"] == 100
    lab.verified()


@pytest.mark.proves("WST-W2", "WST-WG2")
@pytest.mark.parametrize(
    ("specs", "cause"), [((gate("ask"), task("a", "ask")), "approval_opened"), ((), "nothing_to_run")]
)
def test_a_workstream_that_executes_without_a_task_says_why(specs: tuple[JobSpec, ...], cause: str) -> None:
    """Document 003 knows neither gates nor empty plans; without the cause its validator would see a broken guard."""
    lab = Lab().plan(*specs)
    lines = lab.transitions()
    number = next(n for n, line in enumerate(decoded(lines)) if line["to_state"] == "executing")

    metadata = decoded(lines)[number]["metadata"]
    assert metadata["cause"] == cause
    assert metadata["takeover"] == {"by": "orchestrator", "reason": cause}
    for other in ({}, {"cause": "job_started"}):
        assert altered(lines, lambda log, told=other: log[number].update(metadata=told)) == {"WST-WG2"}  # type: ignore[misc]
    lab.verified()


@pytest.mark.proves("WST-WG3")
@pytest.mark.parametrize("others", ["open", "failed"])
def test_a_workstream_is_not_validated_with_a_required_task_open_or_failed(others: str) -> None:
    """The final validation judges a whole result, not a part of one."""
    lab = Lab().plan(task("a"), task("b"), has_validation=True)
    lab.work("a")
    if others == "failed":
        lab.work("b", ok=False)

    refusal = lab.refused(run.AllDone(id="r1"))

    assert refusal.code == ("not_eligible" if others == "open" else "wrong_state")
    assert workstream_state(lab.run()) == ("executing" if others == "open" else "failed")


@pytest.mark.proves("WST-W3", "WST-WG3")
def test_a_workstream_is_validated_when_every_required_task_is_completed() -> None:
    """A task that may fail causes no delay once it is over."""
    lab = Lab().plan(task("a"), task("b"), task("may", is_required=False), has_validation=True)
    lab.work("a")
    lab.work("may", ok=False)
    assert workstream_state(lab.run()) == "executing"

    lab.work("b")

    assert steps(lab)[-1] == ("executing", "validating", "all_tasks_completed")
    lab.verified()


# -- failed


@pytest.mark.proves("WST-WG4")
def test_a_workstream_that_lost_no_required_task_cannot_fail() -> None:
    """The failure of a task that may fail must not cost the work of all others."""
    lab = Lab().plan(task("may", is_required=False), task("a"), is_fail_fast=True)
    lab.work("may", ok=False)

    refusal = lab.refused(run.Fail(id="r1"))

    assert refusal.code == "not_eligible"
    assert workstream_state(lab.run()) == "executing"


@pytest.mark.proves("WST-W4", "WST-WG4", "WST-WI3")
@pytest.mark.parametrize("is_fail_fast", [False, True])
def test_the_failure_of_a_required_task_fails_its_workstream(is_fail_fast: bool) -> None:
    """By default what can still progress does so first; who wants the answer at once asks for it."""
    lab = Lab().plan(task("a"), task("b"), is_fail_fast=is_fail_fast)

    lab.work("a", ok=False)

    assert workstream_state(lab.run()) == ("failed" if is_fail_fast else "executing")
    if not is_fail_fast:
        lab.work("b")
    assert steps(lab)[-1] == ("executing", "failed", "critical_task_failed")
    assert exported(lab, "r1")[-1]["metadata"]["task_id"] == "r1/a"
    lab.verified()


@pytest.mark.proves("WST-WA4")
def test_a_failed_workstream_cancels_open_tasks_and_keeps_everything_for_analysis() -> None:
    """The remaining tasks are useless; the reason of the failure matters."""
    lab = Lab().plan(task("a"), task("queued"), task("runs"), task("later", "runs"), is_fail_fast=True)
    lease = lab.claim(lab.attempt("runs"), by="w2")
    lab.send(attempt.Heartbeat, lease)

    lab.work("a", ok=False)

    assert (exported(lab, "r1")[-1]["to_state"], exported(lab, "r1")[-1]["severity"]) == ("failed", "critical")
    assert {lab.job(name).state for name in ("queued", "later")} == {job.CANCELED}
    assert lab.attempt("runs").state == attempt.CANCEL_REQUESTED
    lab.send(attempt.CancelAck, lease)
    assert {(lab.job(name).state, lab.job(name).reason) for name in ("queued", "runs")} == {
        (job.CANCELED, job.NOT_NEEDED)
    }
    assert (lab.run().state, lab.run().reason) == (run.FAILED, "JOB_FAILED")
    assert (lab.job("a").state, lab.attempt("a").error) == (job.FAILED, lab.job("a").last_error)
    lab.verified()


# -- the final validation


@pytest.mark.proves("WST-WG5")
def test_a_workstream_is_not_completed_before_its_final_validation() -> None:
    """All tasks may be right and the whole still wrong."""
    lab = Lab().plan(task("a"), has_validation=True)
    early = lab.refused(run.Validate(id="r1", is_passed=True))

    lab.work("a")

    assert early.code == "wrong_state"
    assert workstream_state(lab.run()) == "validating"
    assert lab.refused(run.Report(id="r1", actor="reporter")).code == "wrong_state"


@pytest.mark.proves("WST-W5", "WST-W6", "WST-WG5")
@pytest.mark.parametrize(
    ("is_passed", "step", "severity"),
    [
        (True, ("validating", "completed", "validation_passed"), "info"),
        (False, ("validating", "failed", "validation_failed"), "critical"),
    ],
)
def test_the_final_validation_decides_a_workstream(is_passed: bool, step: tuple[str, str, str], severity: str) -> None:
    """The verdict is final, and a later one is refused."""
    lab = Lab().plan(task("a"), has_validation=True)
    lab.work("a")

    lab.do(run.Validate(id="r1", is_passed=is_passed))

    assert (steps(lab)[-1], exported(lab, "r1")[-1]["severity"]) == (step, severity)
    assert lab.refused(run.Validate(id="r1", is_passed=not is_passed)).code == "wrong_state"
    lab.report()
    assert workstream_state(lab.run()) == step[1]
    lab.verified()


# -- cancelled


@pytest.mark.proves("WST-W7")
@pytest.mark.parametrize("state", [run.CREATED, run.PLANNING])
def test_a_workstream_that_is_cancelled_while_planned_never_starts_a_task(state: str) -> None:
    """By the model the cancel is remembered and applied with the plan, in the same transaction."""
    lab = Lab() if state == run.CREATED else planning()
    if state == run.CREATED:
        lab.create()
    lab.cancel_run()
    if state == run.CREATED:
        lab.do(run.BeginPlanning(id="r1"))

    lab.do(Plan(id="r1", jobs=(task("a"), task("b", "a"))))

    assert workstream_state(lab.run()) == "cancelled"
    assert [steps(lab, id) for id in ("r1/a", "r1/b")] == [[("pending", "cancelled", "user_cancelled")]] * 2
    assert {(line["to_state"], line["timestamp"]) for line in exported(lab, "r1")} == {
        (to, exported(lab, "r1")[0]["timestamp"]) for to in ("ready", "cancelled")
    }
    lab.verified()


@pytest.mark.proves("WST-W7")
def test_the_verifier_takes_a_cancel_of_a_planned_workstream_by_a_user_only() -> None:
    """Another producer of document 003's log may cancel before there is a plan."""
    line = exported(Lab().plan(task("a")), "r1")[0]
    line.update(to_state="cancelled", trigger="user_cancelled", metadata={})

    allowed = verify([msgspec.json.encode(line)])
    refused = verify([msgspec.json.encode({**line, "trigger": "all_tasks_created"})])

    assert allowed.is_legal
    assert [(violation.line, violation.rule) for violation in refused.violations] == [(1, "WST-V1")]


@pytest.mark.proves("WST-W8", "WST-W9")
@pytest.mark.parametrize("state", ["ready", "executing"])
def test_a_workstream_is_cancelled_on_request(state: str) -> None:
    """Before and after its start."""
    lab = Lab().plan(task("a"), task("b", "a"))
    lease = lab.claim(lab.attempt("a")) if state == "executing" else None
    assert workstream_state(lab.run()) == state

    lab.cancel_run()

    if lease is not None:
        assert (lab.run().state, workstream_state(lab.run())) == (run.CANCEL_REQUESTED, state)
        lab.send(attempt.Ack, lease)
        lab.send(attempt.CancelAck, lease)
    assert steps(lab)[-1] == (state, "cancelled", "user_cancelled")
    assert lab.run().state == run.CANCELED
    assert {task_state(lab.job(name)) for name in "ab"} == {"cancelled"}
    lab.verified()


# -- its state follows from its tasks


def documented(tasks: list[tuple[str, bool]]) -> str:
    """Document 003's clauses, transcribed one by one: the first that holds gives the state."""
    clauses = [
        (sum(state == "running" for state, _ in tasks) > 0, "executing"),
        ({state for state, _ in tasks} <= {"completed"}, "validating"),
        (("failed", True) in tasks, "failed"),
        ({state for state, _ in tasks} <= {"pending", "queued"}, "ready"),
        (True, "executing"),
    ]
    return next(state for holds, state in clauses if holds)


@pytest.mark.proves("WST-WD1", "WST-WD2", "WST-WD3", "WST-WD4", "WST-WD5")
@given(st.lists(st.tuples(st.sampled_from(TASK_STATES), st.booleans()), max_size=8))
def test_the_derivation_is_document_003s_word_for_word(tasks: list[tuple[str, bool]]) -> None:
    """Two readings of the same clauses must never differ."""
    assert derive_workstream_state(tasks) == documented(tasks)


@pytest.mark.proves("WST-WD1", "WST-WD2", "WST-WD3", "WST-WD4", "WST-WD5")
@pytest.mark.parametrize(
    ("tasks", "state"),
    [
        (["running", "failed"], "executing"),
        (["running", "completed"], "executing"),
        (["completed", "completed"], "validating"),
        (["completed", "failed"], "failed"),
        (["queued", "failed"], "failed"),
        (["completed", "may fail"], "executing"),
        (["pending", "queued"], "ready"),
        (["queued", "queued"], "ready"),
        (["completed", "queued"], "executing"),
        (["retrying"], "executing"),
        (["validating"], "executing"),
        (["cancelled"], "executing"),
    ],
)
def test_the_first_clause_that_holds_gives_the_state(tasks: list[str], state: str) -> None:
    """The order matters: a task that runs outweighs one that failed."""
    known = [("failed" if each == "may fail" else each, each != "may fail") for each in tasks]

    assert derive_workstream_state(known) == state


@pytest.mark.proves("WST-WI1")
def test_the_verifier_finds_a_workstream_that_does_not_follow_its_tasks() -> None:
    """A run that stays behind its tasks would be reported wrongly, or never."""
    lab = Lab().plan(task("a"))
    lab.work("a", ok=False)
    canonical = lab.canonical()
    ends = [n for n, raw in enumerate(canonical) if msgspec.json.decode(raw)["entity"] == "run"][-1:]

    violations = verify([raw for n, raw in enumerate(canonical) if n not in ends]).violations

    assert [each.rule for each in violations] == ["WST-WI1"]
    assert "FAILED, since a required job did not succeed" in violations[0].legal


@pytest.mark.proves("WST-WI2")
def test_a_workstream_is_completed_only_with_every_required_task() -> None:
    """A task that was allowed to fail does not count; the verifier asks for all that do."""
    lab = Lab().plan(task("a"), task("may", is_required=False))
    lab.work("may", ok=False)
    assert workstream_state(lab.run()) == "executing"

    lab.work("a")

    assert workstream_state(lab.run()) == "completed"
    lines = lab.transitions()
    first = next(n for n, raw in enumerate(lines) if b'"critical":false' in raw)
    lines[first] = lines[first].replace(b'"critical":false', b'"critical":true')
    violations = verify(lines).violations
    assert {each.rule for each in violations} == {"WST-WI2"}
    assert [msgspec.json.decode(lines[each.line - 1])["to_state"] for each in violations] == ["validating", "completed"]
    lab.verified()
