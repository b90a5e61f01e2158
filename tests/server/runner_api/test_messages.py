"""A runner's messages under its lease: accepted, repeated, stale or canceled, and only in its own name."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from deltaci.core import attempt, job, run
from deltaci.core.attempt import Attempt
from deltaci.core.errors import STALE_REASONS
from deltaci.protocol.messages import LeaseGranted
from tests.contract.backends import on_loop
from tests.contract.test_runs import planned
from tests.server.site import REQUIRED_FIELDS, OpenSite, RegisteredRunner, RunnerLease, Site, stale_reason
from tests.support.lab import task

SPEC: dict[str, Any] = {"steps": ["true"]}


async def of_queue(site: Site, **fields: Any) -> RunnerLease:
    """A lease of an attempt of the plain queue."""
    runner = await site.runner()
    await site.server.enqueue("q1", spec=SPEC, **fields)
    return await runner.take()


async def of_run(site: Site) -> RunnerLease:
    """A lease of a run's attempt."""
    runner = await site.runner()
    await planned(site.server, task("build", work=SPEC, max_attempts=2))
    return await runner.take()


Make = Callable[[Site], Awaitable[RunnerLease]]
BOTH = pytest.mark.parametrize("make", [of_queue, of_run])


async def cancel(lease: RunnerLease) -> None:
    """Request a cancel."""
    server = lease.runner.site.server
    if lease.granted.run_id:
        await server.do(run.Cancel(id=lease.granted.run_id, actor="user:ada"))
    else:
        await server.do(attempt.Cancel(id=lease.attempt_id, actor="user:ada", reason="RUN_CANCELED"))


async def record(lease: RunnerLease) -> Attempt:
    """The attempt as it is stored."""
    return await lease.runner.site.server.find(lease.attempt_id, Attempt)


# -- in whose name


@BOTH
@pytest.mark.parametrize("kind", REQUIRED_FIELDS)
@on_loop
async def test_a_runner_speaks_in_its_own_name(site: OpenSite, make: Make, kind: str) -> None:
    """The credential says who it is; a message that says otherwise is refused before anything is looked up."""
    async with site() as here:
        lease = await make(here)
        other = await here.runner("w2")

        borrowed = await lease.refused(kind, other)
        as_another = await lease.refused(kind, runner_id="w2")
        stolen = await lease.stale(kind, other, runner_id="w2")

        assert [(reply.status, reply.code) for reply in (borrowed, as_another)] == [(403, "wrong_runner")] * 2
        assert stolen == "UNKNOWN_LEASE"


@on_loop
async def test_a_runner_of_the_same_name_in_another_tenant_is_a_stranger(site: OpenSite) -> None:
    """Names are given by people: that two tenants chose the same one must open nothing."""
    async with site() as here:
        lease = await of_queue(here)
        namesake = RegisteredRunner(here, "w1", here.signer.sign("run", "w1", "other", 900))
        here.secrets.add(namesake.credential)

        for kind in REQUIRED_FIELDS:
            assert await lease.stale(kind, namesake) == "UNKNOWN_LEASE"
        assert stale_reason(await here.refused(lambda: lease.log(0, b"x", namesake)), lease.id) == "UNKNOWN_LEASE"
        assert await namesake.lease() == []


@on_loop
async def test_one_machine_may_carry_many_runners_but_each_lease_is_one_of_theirs(site: OpenSite) -> None:
    """The parts of a machine share its credential, not their leases."""
    async with site() as here:
        host = await here.runner("host")
        await here.server.enqueue("q1", spec=SPEC)
        lease = await host.take(runner_id="host/1")

        assert await lease.stale("Heartbeat", runner_id="host/2") == "UNKNOWN_LEASE"
        assert await lease.stale("Heartbeat", runner_id="host") == "UNKNOWN_LEASE"
        assert (await lease.send("Complete", runner_id="host/1")).body["accepted"] is True


@pytest.mark.proves("WST-TG3")
@on_loop
async def test_a_message_that_contradicts_itself_is_refused(site: OpenSite) -> None:
    """A lease for one job says nothing about another, and a success has no other exit code than 0."""
    async with site() as here:
        lease = await of_queue(here)

        for kind, fields in (
            ("AckLease", {"job_id": "q2"}),
            ("Complete", {"exit_code": 1}),
            ("Complete", {"exit_code": None}),
            ("Complete", {"output": 2**70}),
            ("Complete", {"cost": {"tokens": [2**70]}}),
            ("Complete", {"output": json.loads("[" * 200 + "]" * 200)}),
        ):
            reply = await lease.refused(kind, **fields)
            assert (reply.status, reply.code) == (400, "bad_request"), (kind, fields)
        assert (await record(lease)).state == attempt.LEASED


# -- stale leases


async def expired(lease: RunnerLease) -> None:
    """Let the lease expire without recording it."""
    await lease.send("Heartbeat")
    lease.runner.site.backend.after(120)


async def revoked(lease: RunnerLease) -> None:
    """It was not acknowledged in time."""
    lease.runner.site.backend.after(31)
    await lease.runner.site.server.tick()


async def completed(lease: RunnerLease) -> None:
    """It ended well."""
    await lease.send("Complete")


async def canceled(lease: RunnerLease) -> None:
    """It was stopped."""
    await cancel(lease)
    await lease.send("CancelAck")


async def replaced(lease: RunnerLease) -> None:
    """Another runner had the attempt after it. Until that lease ends, too, the reason is its own end."""
    await expired(lease)
    site = lease.runner.site
    await site.server.tick()
    other = await site.runner("w2")
    second = await other.take()
    assert second.attempt_id == lease.attempt_id
    assert await lease.stale("Complete") == "LEASE_EXPIRED"
    assert (await second.send("Complete")).body["accepted"] is True


async def unknown(lease: RunnerLease) -> None:
    """It has a wrong secret."""
    lease.id = lease.id[:-1] + ("0" if lease.id[-1] != "0" else "1")


ENDS = {
    "LEASE_EXPIRED": expired,
    "LEASE_REVOKED": revoked,
    "LEASE_COMPLETED": completed,
    "LEASE_CANCELED": canceled,
    "LEASE_REPLACED": replaced,
    "UNKNOWN_LEASE": unknown,
}
# These are not stale but repeats of what ended the lease.
REPEATS = {("LEASE_COMPLETED", "Complete"), ("LEASE_CANCELED", "Complete"), ("LEASE_CANCELED", "CancelAck")}


@pytest.mark.proves(
    "PRO-M9",
    "PRO-S5",
    "PRO-Q6",
    "PRO-Q12",
    "PRO-S1",
    "PRO-S2",
    "PRO-S3",
    "PRO-S4",
    "PRO-H3",
    "MOD-L5",
    "ORC-LF2",
    "ORC-LF3",
)
@BOTH
@pytest.mark.parametrize("reason", ENDS)
@on_loop
async def test_a_stale_lease_is_refused_with_the_reason(site: OpenSite, make: Make, reason: str) -> None:
    """The runner must stop at once, and people must be able to see why."""
    async with site() as here:
        lease = await make(here)
        await ENDS[reason](lease)
        before = await record(lease)

        for kind in REQUIRED_FIELDS:
            if (reason, kind) not in REPEATS:
                assert await lease.stale(kind) == reason
        if reason == "LEASE_COMPLETED":
            assert await lease.stale("Complete", status="FAILED", exit_code=1) == reason

        assert await record(lease) == before
        assert ENDS.keys() == STALE_REASONS


@pytest.mark.proves("MOD-L5", "PRO-H3")
@pytest.mark.parametrize(
    "lease_id", ["x", "q1", "q1.1.short", "q1.x.0123456789abcdef", "q1.1.0123456789abcdef", "nobody.1.0123456789abcdef"]
)
@on_loop
async def test_what_only_looks_like_a_lease_is_unknown(site: OpenSite, lease_id: str) -> None:
    """Nothing can be learned by guessing."""
    async with site() as here:
        lease = await of_queue(here)
        lease.id = lease_id

        assert {await lease.stale(kind) for kind in REQUIRED_FIELDS} == {"UNKNOWN_LEASE"}
        assert await lease.stale("AckLease", job_id="another") == "UNKNOWN_LEASE"


# -- the way that everything else is an exception to


@pytest.mark.proves("PRO-M3", "PRO-U2")
@BOTH
@on_loop
async def test_how_far_the_runner_is_is_kept_for_people(site: OpenSite, make: Make) -> None:
    """The last word counts; a heartbeat that says nothing of it takes nothing back, and a new lease begins anew."""
    async with site() as here:
        lease = await make(here)
        await lease.send("AckLease")
        told = {"percent": 35, "current_step": "x" * 5000, "step_index": 1}

        await lease.send("Heartbeat", progress=told, log_cursor={"bytes_sent": 7})
        await lease.send("Heartbeat")

        assert (await record(lease)).progress == {**told, "current_step": "x" * 500, "log_bytes": 7}
        here.backend.after(121)
        await here.server.tick()
        again = await lease.runner.take()
        assert (await record(again)).progress is None


@pytest.mark.proves("ORC-I2", "ORC-I4")
@BOTH
@on_loop
async def test_a_heartbeat_that_arrives_after_a_later_one_changes_nothing(site: OpenSite, make: Make) -> None:
    """It is answered like a repeat: the time that is left does not grow, and the progress does not go back."""
    async with site() as here:
        lease = await make(here)
        await lease.send("AckLease")
        await lease.send("Heartbeat", sequence_no=7, progress={"percent": 50})
        before = (await record(lease), await here.server.store.last_seq())
        here.backend.after(60)

        late = await lease.send("Heartbeat", sequence_no=6, progress={"percent": 10})
        repeat = await lease.send("Heartbeat", sequence_no=7, progress={"percent": 10})

        assert late.body["extend_lease"]
        assert repeat.body["extend_lease"]
        assert late.body["new_lease_ttl_seconds"] <= 60
        assert (await record(lease), await here.server.store.last_seq()) == before
        await lease.send("Heartbeat", sequence_no=8)
        assert (await record(lease)).progress == {"percent": 50}


@pytest.mark.proves("ORC-I4")
@BOTH
@on_loop
async def test_without_numbers_every_heartbeat_renews_and_times_order_the_progress(site: OpenSite, make: Make) -> None:
    """The schema of document 001 has no number, and a runner's clock is not trusted with a lease."""
    async with site() as here:
        lease = await make(here)
        await lease.send("AckLease")
        await lease.send("Heartbeat", ts="2026-01-04T08:00:50Z", progress={"percent": 50})
        here.backend.after(100)

        late = await lease.send("Heartbeat", ts="2026-01-04T08:00:10Z", progress={"percent": 10})

        assert late.body["new_lease_ttl_seconds"] == 120
        assert (await record(lease)).progress == {"percent": 50}
        await lease.send("Heartbeat", ts="2026-01-04T08:00:50Z", progress={"percent": 60})
        assert (await record(lease)).progress == {"percent": 60}


@pytest.mark.proves("ORC-A5")
@BOTH
@on_loop
async def test_a_heartbeat_reports_that_the_uploads_begin(site: OpenSite, make: Make) -> None:
    """The lease is renewed as by any heartbeat, also by a repeat; a cancel is answered as such, and stays."""
    async with site() as here:
        lease = await make(here)
        await lease.send("AckLease")
        await lease.send("Heartbeat")

        for _ in range(2):
            here.backend.after(60)
            answer = await lease.send("Heartbeat", progress={"phase": "uploading"})
            assert (answer.body["extend_lease"], answer.body["new_lease_ttl_seconds"]) == (True, 120)
            assert (await record(lease)).state == attempt.UPLOADING
        await cancel(lease)
        canceling = await lease.send("Heartbeat", progress={"phase": "uploading"})

        begun = [
            event for event in await here.server.log() if event.to == attempt.UPLOADING and event.from_ != event.to
        ]
        assert [event.metadata["message"] for event in begun] == ["BeginUpload"]
        assert canceling.body["cancel_requested"]
        assert (await record(lease)).state == attempt.CANCEL_REQUESTED


@pytest.mark.proves("PRO-M2", "PRO-M3", "PRO-M4", "PRO-M5", "PRO-M6")
@BOTH
@on_loop
async def test_a_job_is_taken_kept_and_completed(site: OpenSite, make: Make) -> None:
    """Every message is answered, and each answer says how long the lease has."""
    async with site() as here:
        lease = await make(here)
        kept = {
            "type": "HeartbeatAck",
            "lease_id": lease.id,
            "extend_lease": True,
            "new_lease_ttl_seconds": 120,
            "cancel_requested": False,
            "cancel_deadline_seconds": 0,
        }

        assert (await lease.send("AckLease")).body == kept
        assert (await record(lease)).state == attempt.STARTING
        for _ in range(3):
            here.backend.after(100)
            assert (await lease.send("Heartbeat", progress={"percent": 35, "message": "…"})).body == kept
        assert (await record(lease)).state == attempt.RUNNING
        done = await lease.send(
            "Complete",
            summary="All tests passed.",
            artifacts=[{"type": "log", "uri": "s3://x"}],
            timings={"started_at": "2026-01-04T08:00:05Z", "finished_at": "2026-01-04T08:03:12Z"},
            output={"n": [1, 2]},
            cost={"tokens": 7},
            steps=[{"index": 0, "exit_code": 0, "seconds": 1.5}],
        )

        assert done.body == {"type": "CompleteAck", "lease_id": lease.id, "accepted": True}
        ended = await record(lease)
        assert (ended.state, ended.result) == (attempt.SUCCEEDED, {"n": [1, 2]})
        assert ended.report["artifacts"] == [{"type": "log", "uri": "s3://x"}]
        assert ended.report["timings"]["finished_at"] == "2026-01-04T08:03:12Z"
        assert (ended.report["summary"], ended.report["cost"]) == ("All tests passed.", {"tokens": 7})
        assert ended.report["steps"][0]["seconds"] == 1.5
        assert ended.report.keys() == {"artifacts", "timings", "summary", "cost", "steps"}
        if lease.granted.run_id:
            assert await here.server.state("r1") == run.SUCCESS


@pytest.mark.proves("MOD-F1", "PRO-Y2")
@pytest.mark.parametrize(
    ("fields", "code", "failure_class"),
    [
        ({"exit_code": 1}, "EXIT", "USER"),
        ({"exit_code": None, "signal": 9}, "SIGNAL", "INFRA"),
        ({"exit_code": None, "error_code": "CHECKOUT"}, "CHECKOUT", "INFRA"),
        ({"exit_code": 1, "log_tail": ["…", "Connection reset by peer"]}, "EXIT", "INFRA"),
    ],
    ids=str,
)
@on_loop
async def test_a_failure_is_classified_by_what_the_runner_saw(
    site: OpenSite, fields: dict[str, Any], code: str, failure_class: str
) -> None:
    """The runner reports; whether another attempt is worth it is decided here."""
    async with site() as here:
        lease = await of_run(here)

        reply = await lease.send("Complete", status="FAILED", summary="it broke", **fields)

        assert reply.body["accepted"] is True
        failed = await record(lease)
        assert failed.error is not None
        assert (failed.error.code, failed.error.failure_class) == (code, failure_class)
        assert failed.error.message == "it broke"
        assert await here.server.state("r1/build") == (job.FAILED if failure_class == "USER" else job.RETRYING)


@BOTH
@on_loop
async def test_a_repeat_is_answered_like_the_first_and_changes_nothing(site: OpenSite, make: Make) -> None:
    """An answer may get lost on its way: the runner says the same again."""
    async with site() as here:
        lease = await make(here)
        for kind in ("AckLease", "Complete"):
            first = await lease.send(kind)
            before = (await record(lease), await here.server.store.last_seq())

            again = await lease.send(kind)

            left = again.body.pop("new_lease_ttl_seconds", 0)  # PostgreSQL's clock also runs by itself.
            assert 0 <= first.body.pop("new_lease_ttl_seconds", 0) - left < 10
            assert again == first
            assert (await record(lease), await here.server.store.last_seq()) == before


@pytest.mark.proves("PRO-Q14")
@BOTH
@pytest.mark.parametrize("second", [2, None])
@on_loop
async def test_a_second_result_with_another_exit_code_is_not_accepted(
    site: OpenSite, make: Make, second: int | None
) -> None:
    """The first result is final, so that an answer that accepts the second one would be untrue."""
    async with site() as here:
        lease = await make(here)
        await lease.send("Complete", status="FAILED", exit_code=1)
        before = await record(lease)

        assert await lease.stale("Complete", status="FAILED", exit_code=second) == "LEASE_COMPLETED"
        repeated = await lease.send("Complete", status="FAILED", exit_code=1)

        assert repeated.body["accepted"]
        assert await record(lease) == before


@pytest.mark.proves("PRO-Q15")
@BOTH
@on_loop
async def test_a_failure_with_exit_code_zero_is_refused(site: OpenSite, make: Make) -> None:
    """Exit code 0 is a success: the two fields contradict each other, and neither may win silently."""
    async with site() as here:
        lease = await make(here)
        await lease.send("AckLease")
        before = await record(lease)

        reply = await lease.refused("Complete", status="FAILED", exit_code=0)

        assert (reply.status, reply.code) == (400, "bad_request")
        assert await record(lease) == before
        assert (await lease.send("Complete", status="FAILED", exit_code=1)).body["accepted"]


@pytest.mark.proves("ORC-I2", "ORC-I4", "PRO-Q14")
@BOTH
@pytest.mark.parametrize("end", ["Complete", "CancelAck"])
@pytest.mark.parametrize(
    ("order", "delayed"), [("A12E", ""), ("1A2E", "A"), ("2A1E", "A1"), ("2EA1", "A1"), ("EA21", "A21")]
)
@on_loop
async def test_duplicates_and_delayed_messages_change_nothing(
    site: OpenSite, make: Make, order: str, delayed: str, end: str
) -> None:
    """The network may deliver each message several times, late, and in any order: each counts once, or not at all.

    `order` is the order of arrival: the acknowledgement, two heartbeats and the end. `delayed` are those that come
    after a message that implies them.
    """
    async with site() as here:
        lease = await make(here)
        messages: dict[str, tuple[str, dict[str, Any]]] = {
            "A": ("AckLease", {"sequence_no": 1}),
            "1": ("Heartbeat", {"sequence_no": 1, "progress": {"percent": 10}}),
            "2": ("Heartbeat", {"sequence_no": 2, "progress": {"percent": 20}}),
            "E": (end, {"sequence_no": 1}),
        }
        answers: dict[str, dict[str, Any]] = {}

        async def deliver(name: str) -> dict[str, Any]:
            kind, fields = messages[name]
            body: dict[str, Any] = (await lease.send(kind, **fields)).body
            return {field: value for field, value in body.items() if not field.startswith(("new_lease", "cancel_"))}

        for arrived, name in enumerate(order, start=1):
            if name == "E" and end == "CancelAck":
                await cancel(lease)
            before = (await record(lease), await here.server.store.last_seq())
            answers[name] = await deliver(name)
            if name in delayed:
                assert (await record(lease), await here.server.store.last_seq()) == before, name
            before = (await record(lease), await here.server.store.last_seq())
            here.backend.after(1)
            for duplicate in (*order[:arrived], *reversed(order[:arrived])):
                again = await deliver(duplicate)
                is_stale = again["type"] == "StaleLease"
                assert is_stale == ("E" in order[:arrived] and duplicate != "E"), duplicate
                assert is_stale or again == answers[duplicate]
            assert (await record(lease), await here.server.store.last_seq()) == before


@BOTH
@on_loop
async def test_a_repeated_ack_does_not_promise_more_than_there_is(site: OpenSite, make: Make) -> None:
    """A repeat renews nothing. A runner that trusts a longer lease than it has is not fenced any more."""
    async with site() as here:
        lease = await make(here)
        await lease.send("AckLease")
        here.backend.after(50)

        again = await lease.send("AckLease")

        # PostgreSQL's clock also runs by itself.
        assert 60 <= again.body["new_lease_ttl_seconds"] <= 70
        here.backend.after(70)
        assert await lease.stale("AckLease") == "LEASE_EXPIRED"


# -- cancels


@pytest.mark.proves("PRO-Q11", "ORC-L4")
@BOTH
@on_loop
async def test_an_unrequested_cancel_cannot_be_acknowledged(site: OpenSite, make: Make) -> None:
    """Otherwise a runner could make jobs disappear."""
    async with site() as here:
        lease = await make(here)

        reply = await lease.refused("CancelAck")

        assert (reply.status, reply.code) == (409, "cancel_not_requested")


@pytest.mark.proves("PRO-Q13", "PRO-M8", "PRO-B2")
@BOTH
@on_loop
async def test_the_next_response_contains_the_cancel_and_it_is_acknowledged(site: OpenSite, make: Make) -> None:
    """The response to a heartbeat has the cancel and the remaining time."""
    async with site() as here:
        lease = await make(here)
        await lease.send("AckLease")
        await cancel(lease)
        here.backend.after(10)

        told = (await lease.send("Heartbeat")).body
        acked = (await lease.send("AckLease")).body
        stopped = await lease.send("CancelAck", summary="stopped", artifacts=[{"type": "log", "uri": "s3://x"}])
        again = await lease.send("CancelAck")

        for answer in (told, acked):
            assert (answer["extend_lease"], answer["cancel_requested"]) == (True, True)
            assert 15 <= answer["cancel_deadline_seconds"] <= 20
            assert answer["reason"] == "RUN_CANCELED"
        assert stopped.body == {"type": "CancelAcked", "lease_id": lease.id, "accepted": True}
        assert again == stopped
        ended = await record(lease)
        assert (ended.state, ended.report["summary"]) == (attempt.CANCELED, "stopped")


@pytest.mark.proves("PRO-M6", "MOD-3")
@BOTH
@on_loop
async def test_a_result_that_comes_after_the_cancel_does_not_count(site: OpenSite, make: Make) -> None:
    """Cancel wins; what the runner brings along is kept."""
    async with site() as here:
        lease = await make(here)
        await lease.send("Heartbeat")
        await cancel(lease)

        late = await lease.send("Complete", summary="done anyway")
        again = await lease.send("Complete", summary="done anyway")

        assert late.body == {
            "type": "CompleteAck",
            "lease_id": lease.id,
            "accepted": False,
            "reason": "CANCEL_REQUESTED",
        }
        assert again == late
        ended = await record(lease)
        assert (ended.state, ended.result, ended.report["summary"]) == (attempt.CANCELED, None, "done anyway")


@pytest.mark.proves("PRO-Q10", "ORC-C5")
@BOTH
@on_loop
async def test_a_runner_that_does_not_stop_in_time_is_stale(site: OpenSite, make: Make) -> None:
    """The deadline ends the wait in any case."""
    async with site() as here:
        lease = await make(here)
        await lease.send("Heartbeat")
        await cancel(lease)
        here.backend.after(31)
        await here.server.tick()

        assert (await record(lease)).state == attempt.CANCELED
        assert await lease.stale("CancelAck") == "LEASE_REVOKED"
        assert await lease.stale("Complete") == "LEASE_REVOKED"


# -- another transport


@pytest.mark.proves("PRO-B1", "PRO-B3")
@on_loop
async def test_a_lease_that_came_from_the_queue_means_the_same(site: OpenSite) -> None:
    """A runner may pull its lease from the queue and say the rest to the server: one lease, one set of rules."""
    async with site() as here, here.backend.queue(tenant="acme") as queue:
        runner = await here.runner()
        for n in range(2):
            await queue.enqueue(SPEC, dedupe_key=str(n))
        lease, lost = [
            RunnerLease(
                runner,
                LeaseGranted(
                    lease_id=each.lease_id,
                    job_id=each.id,
                    run_id="",
                    lease_ttl_seconds=120,
                    heartbeat_interval_seconds=20,
                    max_runtime_seconds=3600,
                ),
            )
            for each in await queue.claim_next("w1", limit=2)
        ]
        here.secrets |= {lease.id, lost.id}

        assert (await lease.send("AckLease")).body["extend_lease"] is True
        await queue.cancel(lease.attempt_id)
        assert (await lease.send("Heartbeat")).body["cancel_requested"] is True
        assert (await lease.send("CancelAck")).body["accepted"] is True
        here.backend.after(121)
        assert await lost.stale("Complete") == "LEASE_EXPIRED"
        assert (await queue.get(lease.attempt_id)).status == "failed"
