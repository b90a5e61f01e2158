"""Approval gates over the API: who may approve, how many people, for which plan, and what the events contain."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import pytest

from tests.contract.backends import on_both_stores, on_loop, within
from tests.server.rest.site import ApiSite, all_runs, gate, task
from tests.support.budget import budget

Opened = Callable[[], AbstractAsyncContextManager[ApiSite]]
RACES = budget(100, 500)
AT_ONCE = 20


@pytest.mark.proves("STP-P1", "STP-P2", "STP-R3", "STP-S6")
@on_loop
async def test_approve_needs_a_waiting_job_and_can_be_repeated(site: Opened) -> None:
    """The event has the person, the time and the comment."""
    async with site() as here:
        ada, bob = await here.key("ada", "run"), await here.key("bob", "approve")
        runner = await here.register_runner()
        id = await ada.start(task("a"), gate("g"), task("b"))

        early = await bob.post(f"/runs/{id}/approve")
        await runner.finish(await runner.take())
        waiting = await here.until(ada, id, "WAITING_APPROVAL")
        done = await bob.post(f"/runs/{id}/approve", {"comment": "looks good", "plan_hash": waiting["plan_hash"]})
        seq = await here.store.last_seq()
        again = await bob.post(f"/runs/{id}/approve", {"comment": "still"})
        late = await bob.post(f"/runs/{id}/reject")

        assert early.code == "wrong_state"
        assert (done.status, done.body["jobs"], done.body["still_waiting"]) == (200, ["g"], [])
        assert (again.status, again.body["jobs"]) == (200, ["g"])
        assert late.code == "wrong_state"
        assert await here.store.last_seq() == seq
        [event] = [each for each in await here.log() if each.trigger == "approved"]
        assert (event.actor, event.metadata["comment"]) == ("user:bob", "looks good")
        [gate_job] = [job for job in (await ada.run(id))["jobs"] if job["name"] == "g"]
        assert (gate_job["status"], gate_job["approval"]["approvals"][0]["person"]) == ("SUCCEEDED", "bob")
        assert gate_job["tries"] == []


@pytest.mark.proves("MOD-G1", "MOD-G2", "MOD-G3", "MOD-G4")
@on_loop
async def test_a_gate_can_require_a_role_several_people_and_not_the_starter(site: Opened) -> None:
    """Each refusal says who can approve."""
    async with site() as here:
        ada = await here.key("ada", "run", "approve", roles=["lead"])
        bob = await here.key("bob", "approve", roles=["lead"])
        cyd = await here.key("cyd", "approve", roles=["lead"])
        eve = await here.key("eve", "approve")
        id = await ada.start(gate("g", role="lead", approvers=2, not_by_starter=True))

        own = await ada.post(f"/runs/{id}/approve")
        foreign = await eve.post(f"/runs/{id}/approve")
        other_plan = await bob.post(f"/runs/{id}/approve", {"plan_hash": "0" * 64})
        first = await bob.post(f"/runs/{id}/approve")
        twice = await bob.post(f"/runs/{id}/approve")
        between = await ada.run(id)
        second = await cyd.post(f"/runs/{id}/approve")

        assert [reply.status for reply in (own, foreign, other_plan)] == [403, 403, 409]
        assert [reply.code for reply in (own, foreign, other_plan)] == ["not_allowed", "not_allowed", "plan_changed"]
        assert "lead" in foreign.body["message"]
        assert (first.body["still_waiting"], twice.body["still_waiting"], second.body["still_waiting"]) == (
            *(["g"], ["g"], []),
        )
        assert (between["status"], between["jobs"][0]["approval"]["approvers"]) == ("WAITING_APPROVAL", 2)
        assert (await here.until(ada, id, "REPORTED"))["status"] == "SUCCEEDED"


@pytest.mark.proves("MOD-8")
@on_loop
async def test_a_decision_can_name_one_gate_and_a_rejection_fails_the_run(site: Opened) -> None:
    """A rejected gate is FAILED with the reason REJECTED."""
    async with site() as here:
        ada = await here.key("ada", "run", "approve")
        id = await ada.start(gate("one", needs=[]), gate("two", needs=[]))

        one = await ada.post(f"/runs/{id}/approve", {"job": "one"})
        missing = await ada.post(f"/runs/{id}/approve", {"job": "three"})
        two = await ada.post(f"/runs/{id}/reject", {"job": "two", "comment": "no"})
        run = await here.until(ada, id, "REPORTED")

        assert (one.body["jobs"], two.body["jobs"], missing.code) == (["one"], ["two"], "not_found")
        assert (run["status"], [job["reason"] for job in run["jobs"]]) == ("FAILED", ["", "REJECTED"])


@on_loop
async def test_an_undecided_gate_expires(site: Opened) -> None:
    """The store's clock decides."""
    async with site() as here:
        ada = await here.key("ada", "run", "approve")
        id = await ada.start(gate("g", expires_seconds=60))

        here.backend.after(61)
        run = await here.until(ada, id, "REPORTED")

        assert (run["status"], run["jobs"][0]["reason"]) == ("FAILED", "APPROVAL_EXPIRED")


@pytest.mark.proves("MOD-11")
@on_both_stores
@on_loop
async def test_waiting_for_approval_does_not_consume_the_run_timeout(site: Opened) -> None:
    """People sleep: a deployment that is approved on Monday must not fail because of the weekend."""
    async with site() as here:
        ada = await here.key("ada", "run", "approve")
        id = await ada.start(gate("g"), task("b"), plan={"timeout_seconds": 100})
        await here.until(ada, id, "WAITING_APPROVAL")

        here.backend.after(3 * 86_400)
        await here.service.engine.tick()
        waiting = await ada.run(id)
        await ada.post(f"/runs/{id}/approve")
        resumed = await ada.run(id)
        here.backend.after(90)
        await here.service.engine.tick()
        running = await ada.run(id)
        here.backend.after(11)
        ended = await here.until(ada, id, "REPORTED")

        assert [each["state"] for each in (waiting, resumed, running)] == ["WAITING_APPROVAL", "RUNNING", "RUNNING"]
        assert ended["conclusion"] == "TIMEOUT"


@pytest.mark.proves("MOD-11")
@on_both_stores
@on_loop
async def test_a_gate_without_an_expiry_expires_after_thirty_days(site: Opened) -> None:
    """The run timeout no longer ends a run that nobody approves."""
    async with site() as here:
        ada = await here.key("ada", "run", "approve", expires_seconds=40 * 86_400)
        id = await ada.start(gate("g"), plan={"timeout_seconds": 100})

        here.backend.after(30 * 86_400 - 60)
        await here.service.engine.tick()
        before = await ada.run(id)
        here.backend.after(61)
        run = await here.until(ada, id, "REPORTED")

        assert before["state"] == "WAITING_APPROVAL"
        assert (run["conclusion"], run["jobs"][0]["reason"]) == ("FAILED", "APPROVAL_EXPIRED")


@pytest.mark.proves("MOD-9")
@on_both_stores
@within(170)
async def test_concurrent_approve_and_cancel_have_one_legal_outcome(site: Opened) -> None:
    """The later one is refused or has no effect, and the log is legal."""
    async with site() as here:
        ada, bob = await here.key("ada", "run"), await here.key("bob", "approve")
        answers: dict[str, tuple[int, int]] = {}

        async def race(n: int) -> None:
            id = await ada.start(gate("g"))
            asks = [bob.post(f"/runs/{id}/approve"), ada.post(f"/runs/{id}/cancel")]
            replies = await asyncio.gather(*(asks if n % 2 else asks[::-1]))
            approve, cancel = replies if n % 2 else replies[::-1]
            answers[id] = (approve.status, cancel.status)

        for start in range(0, RACES, AT_ONCE):
            await asyncio.gather(*(race(n) for n in range(start, start + AT_ONCE)))
        outcomes = {run["id"]: run["conclusion"] for run in await all_runs(ada)}

        assert len(outcomes) == RACES
        # The gate was the last thing to do: whoever was first decided the run.
        decided = Counter((outcomes[id], *both) for id, both in answers.items())
        assert set(decided) == {("SUCCESS", 200, 409), ("CANCELED", 409, 200)}, decided
