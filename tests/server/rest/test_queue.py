"""The queue over the API: what waits and why, in which order, what workers run, and nothing of other tenants."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from deltaci.core import attempt
from deltaci.server.rest import queue
from tests.contract.backends import on_both_stores, on_loop
from tests.server.rest.site import TIME, ApiSite, Caller, gate, task

Opened = Callable[[], AbstractAsyncContextManager[ApiSite]]


async def read_queue(caller: Caller, query: str = "") -> Any:
    """Return the queue."""
    reply = await caller.get(f"/queue{query}")
    assert reply.status == 200, reply
    return reply.body


async def first_reason(caller: Caller, job: str) -> tuple[str, str]:
    """Return the code and the text of the first reason why a job waits."""
    [found] = [each for each in (await read_queue(caller))["waiting"] if each["job"] == job]
    return found["reasons"][0]["code"], found["reasons"][0]["text"]


@on_loop
async def test_an_invalid_query_is_refused(site: Opened) -> None:
    """An unknown field, a cursor of another list or a cursor with extra text."""
    async with site() as here:
        ada = await here.key("ada", "run")
        for _ in range(3):
            await ada.start(task("a"))
        foreign = (await ada.get("/runs?limit=1")).body["next"]

        for query, status, code in (
            ("?colour=red", 422, "bad_message"),
            ("?limit=0", 422, "bad_message"),
            (f"?cursor={foreign}", 400, "bad_request"),
            ("?cursor=%21", 400, "bad_request"),
            ("?cursor=MSAy", 400, "bad_request"),
        ):
            reply = await ada.get(f"/queue{query}")
            assert (reply.status, reply.code) == (status, code), (query, reply)


@on_loop
async def test_an_empty_queue_has_all_fields(site: Opened) -> None:
    async with site() as here:
        assert await read_queue(await here.key("ada", "read")) == {
            **{"waiting": [], "next": None, "count": 0, "reasons": [], "running": [], "running_count": 0},
            "is_whole": True,
        }


@on_both_stores
@on_loop
async def test_each_kind_of_wait_has_its_reason(site: Opened) -> None:
    """No worker, no worker with the label, all busy, a group, an approval, other jobs, a hold."""
    async with site() as here:
        ada, ops = await here.key("ada", "run"), await here.key("ops", "runner")
        await ada.start(task("lonely"))
        assert await first_reason(ada, "lonely") == ("no_worker", "Waits for a worker: no worker is registered.")
        [shared] = (await read_queue(ada))["reasons"]
        assert shared["text"] == "Waits for a worker: no worker is registered. Start one with `deltaci runner`."

        runner = await here.register_runner("linux", slots=1)
        lease = await runner.take()
        first = await ada.start(
            task("busy"),
            task("gpu", runs_on=["gpu"], needs=[]),
            gate("people", needs=[]),
            task("after", needs=["busy", "gpu"]),
            title="A run of many kinds",
        )

        assert await first_reason(ada, "busy") == (
            "workers_busy",
            "Waits for a worker: the only matching worker is busy.",
        )
        assert (await first_reason(ada, "gpu"))[0] == "no_fitting_worker"
        assert "the only worker, w1, lacks gpu" in (await first_reason(ada, "gpu"))[1]
        code, text = await first_reason(ada, "people")
        assert (code, text.endswith("(in 30 d). Without approval it fails then.")) == ("waiting_for_approval", True), (
            text
        )
        assert await first_reason(ada, "after") == ("waiting_for_jobs", "Waits for busy and gpu.")
        await ops.post(f"/workers/{runner.name}/drain", {"reason": "new disk"})
        assert (await first_reason(ada, "busy"))[0] == "workers_held"
        assert "“new disk”" in (await first_reason(ada, "busy"))[1]

        found = await read_queue(ada)
        assert [each["job"] for each in found["waiting"]] == ["busy", "gpu", "people", "after"]
        [under_way] = found["running"]
        assert (under_way["job"], under_way["worker_id"], under_way["index"]) == ("lonely", runner.name, 1)
        assert {each["title"] for each in found["waiting"]} == {"A run of many kinds"}
        assert {each["run_id"] for each in found["waiting"]} == {first}
        assert found["count"] == 4
        assert found["is_whole"]
        await runner.finish(lease)


@on_both_stores
@on_loop
async def test_a_fence_shows_when_the_attempt_and_the_group_can_be_claimed(site: Opened) -> None:
    """Until the lease of a runner ends that may not know that it was taken from it."""
    async with site() as here:
        ada = await here.key("ada", "run")
        runner = await here.register_runner()
        one = await ada.start(task("one", group="deploy"))
        lease = await runner.take()
        two = await ada.start(task("two", group="deploy"))

        await here.service.engine.do(attempt.Stall(id=f"{one}/one.1", actor="user:ada"))

        entries = {entry["job"]: entry for entry in (await read_queue(ada))["waiting"]}
        [stale] = (await ada.get(f"/runs/{one}/jobs/one")).body["tries"]
        assert (stale["state"], stale["status"], stale["worker_id"]) == ("STALE", "stalled", runner.name)
        assert stale["claimable_at"] == entries["one"]["ready_at"]
        assert entries["one"]["reasons"][0]["code"] == "fence"
        group_reason = entries["two"]["reasons"][0]
        assert group_reason["code"] == "waiting_for_group"
        explanation = (await ada.get(f"/runs/{two}/explain")).body
        for text in (group_reason["text"], explanation["waiting"][0]["text"]):
            assert f"when the last lease of job one of run {one} ends" in text
        assert (await runner.send(lease, "Heartbeat", ts=TIME))["type"] == "StaleLease"


@on_loop
async def test_a_group_a_retry_and_a_quota_are_reasons(site: Opened) -> None:
    """A reason with a known end says when that is."""
    async with site() as here:
        ada = await here.key("ada", "run")
        runner = await here.register_runner()
        await ada.start(task("one", group="deploy"), project="shop")
        lease = await runner.take()
        await ada.start(task("two", group="deploy"))
        again = {"max_attempts": 2, "base_delay_seconds": 600}
        flaky = await ada.start(task("again", retry=again))
        other = await runner.take()
        await runner.fail(other, error_code="CACHE_FETCH")

        code, text = await first_reason(ada, "two")
        assert (code, "which job one of run" in text) == ("waiting_for_group", True)
        found = {each["job"]: each for each in (await read_queue(ada))["waiting"]}
        assert found["again"]["reasons"][0]["code"] == "retry_scheduled"
        assert found["again"]["ready_at"] is not None
        assert (found["again"]["id"], found["again"]["index"]) == (f"{flaky}/again", 0)
        assert found["two"]["reason"] == "waiting_for_group:deploy"

        assert (await here.operator().ask("PUT", "/tenants/default/quotas", {"running_jobs": 1})).status == 200
        await ada.start(task("over"))
        assert (await first_reason(ada, "over"))[0] == "quota"
        await runner.finish(lease)


@on_both_stores
@on_loop
async def test_jobs_with_the_same_reason_are_counted_together(site: Opened) -> None:
    """Reasons that need a person come first; the queue can be filtered by the id or the code of a reason."""
    async with site() as here:
        ada = await here.key("ada", "run")
        await here.register_runner("linux")
        await ada.start(*(task(f"g{n}", runs_on=["gpu"], needs=[]) for n in range(3)), project="shop")
        await ada.start(task("arm", runs_on=["arm", "linux"]), task("after"), project="app")

        reasons = (await read_queue(ada))["reasons"]
        assert [(reason["id"], reason["count"]) for reason in reasons] == [
            ("no_fitting_worker:gpu", 3),
            ("no_fitting_worker:arm,linux", 1),
            ("waiting_for_jobs", 1),
        ]
        assert reasons[0]["text"].startswith("Wait for a worker with the label gpu: the only worker, w1, lacks gpu.")
        assert reasons[2]["text"] == "Waits for other jobs of its run."
        for query, jobs in (
            ("?reason=no_fitting_worker:gpu", ["g0", "g1", "g2"]),
            ("?reason=no_fitting_worker", ["g0", "g1", "g2", "arm"]),
            ("?label=linux", ["arm"]),
            ("?project=app", ["arm", "after"]),
            ("?project=app&reason=waiting_for_jobs", ["after"]),
            ("?reason=nonsense", []),
        ):
            found = await read_queue(ada, query)
            assert sorted(each["job"] for each in found["waiting"]) == sorted(jobs), query
            assert found["count"] == len(jobs)


@on_both_stores
@on_loop
async def test_pages_follow_the_order_of_claims(site: Opened) -> None:
    """The highest priority first, then the oldest; each entry is on one page."""
    async with site() as here:
        ada = await here.key("ada", "run")
        for name, priority in (("low", -5), ("old", 0), ("young", 0), ("high", 9)):
            await ada.start(task(name, priority=priority))

        found: list[str] = []
        cursor: str | None = ""
        while cursor is not None:
            page = await read_queue(ada, f"?limit=3&cursor={cursor}")
            found += [each["job"] for each in page["waiting"]]
            cursor = page["next"]
            assert page["count"] == 4

        assert found == ["high", "old", "young", "low"]


@on_loop
async def test_a_very_long_queue_is_read_in_part(site: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    """The response says that it is incomplete."""
    async with site() as here:
        ada = await here.key("ada", "run")
        for _ in range(3):
            await ada.start(task("a"), task("b"))
        whole = await read_queue(ada)
        for name, limit in (("MAX_QUEUED", 2), ("MAX_RUNS", 2), ("MAX_JOBS", 1)):
            with monkeypatch.context() as patch:
                patch.setattr(queue, name, limit)
                assert not (await read_queue(ada))["is_whole"], name

        assert (whole["is_whole"], whole["count"]) == (True, 6)


@on_both_stores
@on_loop
async def test_tenants_cannot_see_each_others_queues(site: Opened) -> None:
    """Neither the waiting nor the running work, nor through reasons or cursors."""
    async with site() as here:
        them, us = await here.key("ada", "run", tenant="them"), await here.key("eve", "run", tenant="us")
        runner = await here.register_runner(tenant="them")
        await them.start(task("secret", group="deploy"), gate("also"), title="their secret")
        lease = await runner.take()
        await them.start(task("next", group="deploy"), task("third"))
        await us.start(task("ours", group="deploy"))

        found = await read_queue(us)
        assert [each["job"] for each in found["waiting"]] == ["ours"]
        assert found["waiting"][0]["reasons"][0]["code"] == "no_worker"
        assert (found["running"], found["running_count"]) == ([], 0)
        cursor = (await read_queue(them, "?limit=1"))["next"]
        assert {each["job"] for each in (await read_queue(us, f"?cursor={cursor}"))["waiting"]} <= {"ours"}
        await runner.finish(lease)
