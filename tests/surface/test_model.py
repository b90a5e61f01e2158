"""The rules of docs/spec/model.md, as the API, the exports and `deltaci verify` show them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from deltaci.cli.app import app
from deltaci.core.errors import Refused
from deltaci.engine import engine
from deltaci.engine.clock import MonotonicClock
from deltaci.storage.memory import MemoryStore
from tests.contract.backends import Backend, on_loop
from tests.server.rest.site import gate, task
from tests.surface.conftest import Histories
from tests.surface.scenarios import SCENARIOS
from tests.surface.stage import REPORT, VIEWS, staged

Line = dict[str, Any]


# -- the rules


@pytest.mark.proves("MOD-1")
def test_a_result_without_any_heartbeat_implies_the_steps_before(histories: Histories) -> None:
    """No state is skipped, and every implied step says what implied it."""
    history = histories("success")

    changes = history.changes("canonical", "Complete test", "attempt")
    attempt = [change for change in changes if change.job == "test"]
    assert [change.target for change in attempt] == ["STARTING", "RUNNING", "UPLOADING", "SUCCEEDED"]
    assert [change.body["metadata"].get("implied_by") for change in attempt] == ["Complete"] * 3 + [None]
    assert [change.target for change in histories("retried").changes("canonical", "second Complete", "run")] == [
        *("VALIDATING", "SUCCESS"),
    ]


@pytest.mark.proves("MOD-1")
def test_a_run_that_begins_with_a_gate_records_that_it_ran(histories: Histories) -> None:
    """Its states are those of any run."""
    run = histories("rejected").changes("canonical", "start", "run")

    assert [change.target for change in run] == ["CREATED", "PLANNING", "QUEUED", "RUNNING", "WAITING_APPROVAL"]


@pytest.mark.proves("MOD-2", "MOD-5", "QUE-T3", "QUE-T10")
@pytest.mark.parametrize(
    ("scenario", "action", "lease_state", "reason"),
    [
        ("job_timeout", "150 s later", "REVOKED", "TIMED_OUT"),
        ("canceled_by_force", "30 s later", "REVOKED", "RUN_CANCELED"),
        ("lease_lost", "fourth lease over", "EXPIRED", "LEASE_LOST"),
    ],
)
def test_what_the_orchestrator_ends_itself_it_takes_over(
    histories: Histories, scenario: str, action: str, lease_state: str, reason: str
) -> None:
    """Document 004 sees a stall, a claim, a start and a failure, and who caused them; the lease ends with them."""
    history = histories(scenario)

    queue = history.changes("queue", action)
    assert [change.target for change in queue] == ["stalled", "claimed", "running", "failed"]
    causes = [change.body["metadata"]["takeover"] for change in queue[1:]]
    assert {cause["reason"] for cause in causes} == {reason}
    assert [change.target for change in history.changes("orchestration", action, "lease")] == [lease_state]
    before = list(history.ends)[list(history.ends).index(action) - 1]
    assert history.attempt(action, "build")["claims"] == history.attempt(before, "build")["claims"] + 1


@pytest.mark.proves("MOD-2")
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_exported_job_events_count_their_own_revisions(histories: Histories, scenario: str) -> None:
    """One by one for each job, and `attempt` grows with each claim."""
    revisions: dict[str, int] = {}
    claims: dict[str, int] = {}

    for event in map(json.loads, histories(scenario).exports["job-events"]):
        id = event["job_id"]
        revisions[id] = revisions.get(id, 0) + 1
        claims[id] = claims.get(id, 0) + (event["type"] == "claimed")
        assert (event["rev"], event["attempt"]) == (revisions[id], claims[id])


@pytest.mark.proves("MOD-3", "PRO-K4")
def test_a_result_after_the_cancel_is_the_acknowledgement_and_not_accepted(histories: Histories) -> None:
    """What it brings is kept."""
    history = histories("completed_after_cancel")

    reply, attempt = history.replies["Complete"], history.attempt("Complete", "build")
    assert (reply["accepted"], reply["reason"]) == (False, "CANCEL_REQUESTED")
    assert (attempt["state"], attempt["report"]["summary"]) == ("CANCELED", "just done")
    assert [change.target for change in history.changes("canonical", "Complete")] == ["CANCELED"] * 4


@pytest.mark.proves("MOD-3", "PRO-K4")
def test_a_runner_that_has_not_acknowledged_its_lease_still_answers_a_cancel(histories: Histories) -> None:
    """Its acknowledgement activates the lease and tells it to stop."""
    history = histories("canceled")

    assert history.shown("canonical", "AckLease test")[1] == "lease test: GRANTED → ACTIVE"
    assert history.replies["AckLease test"]["cancel_requested"]
    assert history.job("AckLease test", "test")["state"] == "RUNNING"
    assert history.job("CancelAck test", "test")["state"] == "CANCELED"


@pytest.mark.proves("MOD-3")
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_requested_cancel_has_one_exit(histories: Histories, scenario: str) -> None:
    """Of a run and of an attempt."""
    for change in histories(scenario).changes("canonical"):
        if change.source == "CANCEL_REQUESTED":
            assert change.target in ("CANCEL_REQUESTED", "CANCELED")


@pytest.mark.proves("MOD-4")
@pytest.mark.parametrize("jump", [-3600, 3600])
@on_loop
async def test_a_clock_that_jumps_neither_ends_nor_revives_a_lease(
    monkeypatch: pytest.MonkeyPatch, jump: float
) -> None:
    """The store's clock decides, without its jumps; here this machine's clock stands still meanwhile."""
    passed = 0
    monkeypatch.setattr(engine, "MonotonicClock", partial(MonotonicClock, lambda: passed))
    backend = Backend("memory", lambda _: store)
    store = MemoryStore(clock=backend.now)
    async with backend.queue() as queue:
        await queue.enqueue(1)
        await queue.enqueue(2)
        [held], [lost] = await queue.claim_next("w1", starts=True), await queue.claim_next("w1", starts=True)
        passed = 100 * 10**9
        backend.after(100)
        await queue.heartbeat(held.lease_id)
        passed = 130 * 10**9
        backend.after(30)
        with pytest.raises(Refused, match="stale_lease"):
            await queue.heartbeat(lost.lease_id)

        backend.after(jump)

        with pytest.raises(Refused, match="stale_lease"):
            await queue.heartbeat(lost.lease_id)
        assert (await queue.heartbeat(held.lease_id)).status == "running"


@pytest.mark.proves("MOD-4")
@pytest.mark.parametrize("time", ["1999-01-01T00:00:00Z", "2099-01-01T00:00:00Z"])
def test_the_time_of_a_runner_is_recorded_and_decides_nothing(tmp_path: Path, time: str) -> None:
    """Neither its heartbeats nor its result move a deadline or a time of the job."""

    async def play() -> tuple[Any, Any]:
        async with staged(tmp_path) as stage:
            await stage.start(task("build"))
            lease = await stage.claim()
            await stage.beat(lease, ts=time)
            await stage.wait(119, "119 s later")
            await stage.act("second", stage.runner.send(lease, "Heartbeat", ts=time))
            timings = {"started_at": time, "finished_at": time}
            await stage.complete(lease, timings=timings)
            history = stage.history
            return history.replies["second"], history.job("Complete", "build")

    reply, job = asyncio.run(play())

    assert (reply["extend_lease"], reply["new_lease_ttl_seconds"]) == (True, 120)
    assert (job["state"], job["started_at"], job["completed_at"]) == (
        *("SUCCEEDED", "2026-01-04T08:00:00Z", "2026-01-04T08:01:59Z"),
    )
    assert time in json.dumps(job["tries"][0]["report"])


@pytest.mark.proves("MOD-10", "MOD-L5", "PRO-S4", "ORC-LF3")
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_refused_or_stale_request_leaves_no_event_and_changes_nothing(histories: Histories, scenario: str) -> None:
    """Of a runner and of a person."""
    history = histories(scenario)
    actions = list(history.ends)

    for action, before in zip(actions[1:], actions, strict=False):
        reply = history.replies[action]
        is_stale = isinstance(reply, dict) and reply.get("type") == "StaleLease"
        if is_stale or getattr(reply, "status", 200) >= 400:
            assert history.changes("canonical", action) == []
            assert history.runs[action]["jobs"] == history.runs[before]["jobs"]


# -- leases


@pytest.mark.proves("MOD-L2", "MOD-L1", "PRO-N3")
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_lease_id_carries_its_attempt_and_is_in_no_log(histories: Histories, scenario: str) -> None:
    """Only its runner sees it; every lease has another one."""
    history = histories(scenario)
    leases = [
        lease for reply in history.replies.values() if isinstance(reply, list) for lease in reply if "lease_id" in lease
    ]
    written = json.dumps([history.runs, history.pages, history.lines, history.workers]) + str(history.exports)

    assert len({lease["lease_id"] for lease in leases}) == len(leases)
    for lease in leases:
        attempt, _, secret = lease["lease_id"].rpartition(".")
        assert attempt.startswith(f"{lease['job_id']}.")
        assert len(secret) == 64
        assert secret not in written


@pytest.mark.proves("MOD-L4", "MOD-L6", "PRO-Q4")
def test_a_lease_that_is_not_acknowledged_within_its_window_is_revoked(histories: Histories) -> None:
    """After 30 seconds; its runner learns the reason."""
    history = histories("lease_lost")

    assert history.shown("orchestration", "accept window over", "lease") == ["lease build: GRANTED → REVOKED"]
    assert history.replies["late AckLease"]["reason"] == "LEASE_REVOKED"


@pytest.mark.proves("MOD-L6", "PRO-D1", "PRO-D2", "PRO-D4", "PRO-D5")
def test_the_defaults_are_those_of_document_001(histories: Histories) -> None:
    """TTL, heartbeat interval, cancel deadline, and the time limit of a job with its buffer."""
    [lease] = histories("retried").replies["claim"]

    assert (lease["lease_ttl_seconds"], lease["heartbeat_interval_seconds"]) == (120, 20)
    assert 3600 < lease["max_runtime_seconds"] <= 3700
    assert histories("canceled").replies["Heartbeat after cancel"]["cancel_deadline_seconds"] == 30


# -- plans and gates


@pytest.mark.proves("MOD-S3")
def test_the_hash_of_a_plan_depends_on_all_that_it_says_and_on_nothing_else(tmp_path: Path) -> None:
    """Names of people, titles and the order of keys are no part of a plan."""

    async def play() -> list[str]:
        hashes: list[str] = []
        async with staged(tmp_path) as stage:
            bob = await stage.site.key("bob", "run")
            turned = dict(reversed(task("a").items()))
            for caller, jobs, fields in (
                (stage.ada, [task("a")], {}),
                (bob, [turned], {"title": "again"}),
                (stage.ada, [task("b")], {}),
                (stage.ada, [task("a", timeout_seconds=5)], {}),
                (stage.ada, [task("a", retry={"max_attempts": 2})], {}),
                (stage.ada, [{"name": "a", "work": {"steps": ["false"]}}], {}),
                (stage.ada, [task("a")], {"plan": {"fail_fast": True}}),
                (stage.ada, [task("a")], {"plan": {"timeout_seconds": 5}}),
            ):
                run = await caller.run(await caller.start(*jobs, **fields))
                hashes.append(run["plan_hash"])
        return hashes

    first, same, *others = asyncio.run(play())

    assert first == same
    assert len({first, *others}) == len(others) + 1
    assert all(len(digest) == 64 for digest in others)


@pytest.mark.proves("MOD-G1", "MOD-G2", "MOD-G3", "MOD-G4")
def test_a_gate_opens_for_its_approvers_only(histories: Histories) -> None:
    """Refused decisions and a second one of the same person change nothing."""
    history = histories("team_gate")

    refused = [history.replies[name] for name in ("by the starter", "without the role", "another plan")]
    assert [reply.code for reply in refused] == ["not_allowed", "not_allowed", "plan_changed"]
    for action in ("by the starter", "without the role", "another plan", "first again"):
        assert history.changes("canonical", action) == []
    assert [change.trigger for change in history.changes("canonical", "first")] == ["approval_given"]
    assert history.changes("canonical", "second", "job")[0].trigger == "approved"
    assert history.job("first", "ok")["state"] == "WAITING_APPROVAL"
    ends = {history.job(name, "ok")["approval"]["approve_by"] for name in ("start", "first", "first again")}
    assert ends == {"2026-02-03T08:00:00Z"}
    assert [each["person"] for each in history.job("second", "ok")["approval"]["approvals"]] == ["bob", "cyd"]


# -- events


@pytest.mark.proves("MOD-E1", "MOD-10")
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_an_exported_event_has_the_fields_of_the_page(histories: Histories, scenario: str) -> None:
    """In the order of `seq`, and with times that do not go back."""
    events = [json.loads(line) for line in histories(scenario).exports["canonical"]]

    for event in events:
        assert list(event) == [
            *("seq", "at", "tenant", "entity", "entity_id", "run_id", "from", "to", "trigger", "actor"),
            *("severity", "request_id", "rev", "metadata"),
        ]
        assert event["from"] is not None or event["entity"] in ("run", "job", "lease", "worker", "resource")
    assert [event["seq"] for event in events] == sorted(event["seq"] for event in events)
    assert [event["at"] for event in events] == sorted(event["at"] for event in events)


@pytest.mark.proves("MOD-E4")
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_an_event_has_the_severity_of_the_page(histories: Histories, scenario: str) -> None:
    """Where document 003 is silent, a lost lease, a failed attempt and a forced cancel are warnings."""
    for event in map(json.loads, histories(scenario).exports["canonical"]):
        entity, source, target = event["entity"], event["from"], event["to"]
        is_forced = (entity, target) == ("attempt", "CANCELED") and not event["metadata"].get("message")
        if entity == "lease":
            continue  # It has the severity of its attempt's event.
        is_loss = is_forced or (entity == "attempt" and target in ("FAILED", "STALE", "TIMED_OUT"))
        if is_loss or (entity, target) == ("job", "RETRYING") or event["trigger"] == "quarantined":
            expected = "warning"
        elif (entity, target) == ("job", "FAILED"):
            expected = "error"
        elif entity == "run" and target in ("FAILED", "TIMEOUT") and source != target:
            expected = "critical"
        else:
            expected = "info"
        assert event["severity"] == expected, event


TRIGGERS = {
    "run": {
        *("created", "run_created", "plan_returned", "first_attempt_active", "approval_gate_reached"),
        *("approval_resolved", "all_jobs_done", "all_required_succeeded", "required_job_failed"),
        *("cancel_requested", "cancel_finalized", "run_timed_out", "statuses_published"),
        "optional_wait_began",
    },
    "job": {
        *("created", "scheduler_assigned", "worker_started", "execution_completed", "execution_failed"),
        *("retry_delay_elapsed", "validation_passed", "validation_failed", "user_cancelled"),
        *("approval_opened", "approval_given", "approved", "rejected"),
    },
    "attempt": {
        *("enqueued", "claimed", "started", "heartbeat", "succeeded", "failed", "stalled", "requeued"),
        *("acknowledged", "upload_began", "cancel_requested"),
    },
    "lease": {
        *("lease_granted", "lease_acknowledged", "lease_renewed", "lease_completed", "lease_canceled"),
        *("lease_expired", "lease_revoked"),
    },
    "worker": {
        *("registered", "registration_complete", "task_assigned", "task_completed", "shutdown_requested"),
        *("drained", "quarantined", "resumed", "capabilities_registered"),
    },
    "resource": {"created", "updated", "deleted", "imported"},
}


@pytest.mark.proves("MOD-E2")
def test_the_triggers_of_the_scenarios_are_the_words_of_the_documents(histories: Histories) -> None:
    """Every scenario uses words of its documents only, and all scenarios together nearly all of them."""
    used: dict[str, set[str]] = {entity: set() for entity in TRIGGERS}
    for scenario in SCENARIOS:
        for event in map(json.loads, histories(scenario).exports["canonical"]):
            used[event["entity"]].add(event["trigger"])

    for entity, words in TRIGGERS.items():
        assert used[entity] <= words, used[entity] - words
    assert used["run"] == TRIGGERS["run"]
    assert used["job"] == TRIGGERS["job"]
    assert used["attempt"] == TRIGGERS["attempt"]
    assert used["lease"] == TRIGGERS["lease"]


@pytest.mark.proves("MOD-E3")
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_change_of_a_lease_is_exported_with_the_event_of_its_attempt(histories: Histories, scenario: str) -> None:
    """As an entry of its own with the same `seq`, time and revision."""
    attempt: Line = {}

    for event in map(json.loads, histories(scenario).exports["canonical"]):
        if event["entity"] == "attempt":
            attempt = event
        if event["entity"] == "lease":
            assert event["entity_id"].startswith(f"{attempt['entity_id']}#")
            assert [event[name] for name in ("seq", "at", "rev")] == [attempt[name] for name in ("seq", "at", "rev")]


def verify(lines: list[Line]) -> Any:
    """Return the report of `deltaci verify` on these lines."""
    text = "".join(json.dumps(line) + "\n" for line in lines)
    return json.loads(CliRunner().invoke(app, ["verify", "--json", "-"], input=text).stdout)


@pytest.mark.proves("MOD-E5", "MOD-V1", "WST-V1", "WST-V2", "WST-V3", "WST-V4", "QUE-T12")
@pytest.mark.parametrize("form", ["canonical", "transitions", "job-events"])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_export_is_legal(histories: Histories, scenario: str, form: str) -> None:
    """For `deltaci verify`, which recognises the format."""
    lines = [json.loads(line) for line in histories(scenario).exports[form]]

    report = verify(lines) if lines else {"legal": True}

    assert report["legal"], report


def change(lines: list[Line], index: int, **fields: Any) -> list[Line]:
    """Return the lines with other fields in one of them."""
    return [*lines[:index], {**lines[index], **fields}, *lines[index + 1 :]]


@pytest.mark.proves("MOD-E5", "WST-V1", "WST-V2", "WST-V3", "WST-V4", "QUE-T12", "QUE-E1")
@pytest.mark.parametrize("form", ["canonical", "transitions", "job-events"])
@pytest.mark.parametrize(
    "forge",
    [
        pytest.param(lambda lines: lines[:-3] + lines[-2:], id="a line is missing"),
        pytest.param(lambda lines: [*lines, lines[-1]], id="a line is repeated"),
        pytest.param(
            lambda lines: change(
                lines, -1, **{key: "RUNNING" for key in ("to", "to_state", "to_status") if key in lines[-1]}
            ),
            id="another state",
        ),
        pytest.param(
            lambda lines: change(
                lines, -1, **{key: "2020-01-01T00:00:00.000000Z" for key in ("at", "timestamp") if key in lines[-1]}
            ),
            id="an earlier time",
        ),
        pytest.param(lambda lines: [*lines[:-1], dict(list(lines[-1].items())[1:])], id="a missing field"),
    ],
)
def test_a_forged_export_is_not_legal(
    histories: Histories, form: str, forge: Callable[[list[Line]], list[Line]]
) -> None:
    """`deltaci verify` checks transitions, invariants, schema and the order of times of each format."""
    lines = [json.loads(line) for line in histories("exhausted").exports[form]]

    assert not verify(forge(lines))["legal"]


@pytest.mark.proves("MOD-G5")
def test_the_log_of_a_gate_shows_who_opened_it_and_a_forged_one_is_not_legal(histories: Histories) -> None:
    """Its requirements are in its first event, and all approvers with the plan in each decision."""
    lines = [json.loads(line) for line in histories("team_gate").exports["canonical"]]
    index = {line["trigger"]: n for n, line in enumerate(lines) if line["entity_id"].endswith("/ok")}
    created, first, last = (lines[index[name]]["metadata"] for name in ("created", "approval_given", "approved"))
    names = ("role", "approvers", "not_by_starter", "started_by")

    assert {name: created[name] for name in names} == {
        **{"role": "lead", "approvers": 2, "not_by_starter": True, "started_by": "ada"},
    }
    assert (first["approvals"], first["needed"], last["approvers"]) == (1, 2, ["bob", "cyd"])
    for forged in (
        {**last, "approvers": ["bob"]},
        {**last, "approvers": ["bob", "bob"]},
        {**last, "approvers": ["bob", "cyd", "dan"]},
        {**last, "approvers": ["ada", "bob"]},
        {**last, "plan_hash": "0" * 64},
    ):
        assert not verify(change(lines, index["approved"], metadata=forged))["legal"], forged


# -- views


@pytest.mark.proves("MOD-V1")
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_step_in_a_vocabulary_names_its_rule_or_the_reason_of_an_extension(
    histories: Histories, scenario: str
) -> None:
    """A step for which the document has no rule is one of the extensions of the page."""
    for view in VIEWS[1:]:
        for shown in histories(scenario).changes(view):
            assert shown.body["rule"] or shown.body["why"], (view, str(shown))


@pytest.mark.proves("MOD-10", "MOD-T2")
def test_a_report_changes_only_the_state_of_its_run(histories: Histories) -> None:
    """The coarse status says the same before and after."""
    history = histories("success")

    assert [str(shown) for shown in history.changes("canonical", REPORT)] == ["run: SUCCESS → REPORTED"]
    assert history.changes("steps", REPORT) == []
    assert (history.final["state"], history.final["status"]) == ("REPORTED", "SUCCEEDED")


@pytest.mark.proves("MOD-T3")
def test_a_rerun_of_what_failed_keeps_gates_and_order(tmp_path: Path) -> None:
    """And it is refused for a run that goes on, and for one in which nothing failed."""

    async def play() -> list[Any]:
        async with staged(tmp_path) as stage:
            await stage.start(
                task("build"), gate("ok", ["build"]), task("ship", needs=["ok"]), task("mop", after=["ship"])
            )
            path = f"/runs/{stage.history.run_id}/rerun"
            early = await stage.ada.post(path)
            await stage.runner.finish(await stage.runner.take())
            await stage.decide("approve")
            await stage.runner.fail(await stage.runner.take())
            await stage.runner.finish(await stage.runner.take())
            await stage.reported()
            again = await stage.ada.run((await stage.ada.post(path, {"failed_only": True})).body["id"])
            good = await stage.ada.start(task("a"))
            await stage.runner.finish(await stage.runner.take())
            await stage.site.until(stage.ada, good, "REPORTED")
            return [early, again, await stage.ada.post(f"/runs/{good}/rerun", {"failed_only": True})]

    early, again, nothing = asyncio.run(play())

    assert (early.code, nothing.status) == ("wrong_state", 409)
    assert [(job["name"], job["needs"], job["after"], job["state"]) for job in again["jobs"]] == [
        ("ok", [], [], "WAITING_APPROVAL"),
        ("ship", ["ok"], [], "PENDING"),
        ("mop", [], ["ship"], "PENDING"),
    ]
