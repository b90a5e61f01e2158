"""Runs whose required jobs have ended, over the API: how long they wait for the jobs that may fail."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from tests.contract.backends import on_both_stores, on_loop
from tests.server.rest.site import TIME, ApiSite, Caller, gate, task

Opened = Callable[[], AbstractAsyncContextManager[ApiSite]]

GPU = {"runs_on": ["gpu"], "allow_failure": True}


def states(run: Any) -> list[tuple[str, str]]:
    """Return the state and the reason of each job."""
    return [(job["state"], job["reason"]) for job in run["jobs"]]


async def ticked(here: ApiSite, caller: Caller, id: str, seconds: float) -> Any:
    """Return the run after the clock was moved and everything that is due was done."""
    here.backend.after(seconds)
    await here.service.engine.tick()
    return await caller.run(id)


async def wait_events(here: ApiSite, id: str) -> list[tuple[str, Any]]:
    """Return trigger and cause, or the job that began to wait, of each event about the wait."""
    return [
        (event.trigger, event.metadata.get("cause") or event.metadata.get("job_id", ""))
        for event in await here.log()
        if event.entity_id == id and event.trigger.startswith("optional_wait")
    ]


# -- without a worker that has the labels


@pytest.mark.proves("MOD-15")
@on_both_stores
@pytest.mark.parametrize("is_passed", [False, True])
@on_loop
async def test_a_decided_run_does_not_wait_for_labels_that_no_worker_has(site: Opened, is_passed: bool) -> None:
    """Such a run stayed RUNNING until its timeout, although nothing could change its outcome."""
    async with site() as here:
        ada = await here.key("ada", "run")
        runner = await here.register_runner()
        id = await ada.start(task("build", needs=[]), task("gpu", **GPU))
        lease = await runner.take()

        await (runner.finish if is_passed else runner.fail)(lease)
        run = await here.until(ada, id, "REPORTED")

        assert run["conclusion"] == ("SUCCESS" if is_passed else "FAILED")
        assert states(run)[1] == ("CANCELED", "NOT_NEEDED")
        assert await wait_events(here, id) == [("optional_wait_began", ""), ("optional_wait_ended", "no_worker")]
        why = (await ada.get(f"/runs/{id}/jobs/gpu/explain")).body
        assert "every required job had ended and no worker with gpu was registered" in why["summary"]


@pytest.mark.proves("MOD-15")
@on_loop
async def test_a_run_without_required_jobs_is_decided_when_it_is_planned(site: Opened) -> None:
    """Its outcome is a success, whatever its jobs do."""
    async with site() as here:
        ada = await here.key("ada", "run")
        id = await ada.start(task("gpu", **GPU))

        run = await here.until(ada, id, "REPORTED")

        assert (run["conclusion"], run["started_at"] is not None) == ("SUCCESS", True)
        assert states(run) == [("CANCELED", "NOT_NEEDED")]


# -- with a worker that has the labels


@pytest.mark.proves("MOD-15", "MOD-7")
@on_both_stores
@pytest.mark.parametrize("is_passed", [False, True])
@on_loop
async def test_a_decided_run_waits_ten_minutes_for_a_worker_of_its_optional_jobs(site: Opened, is_passed: bool) -> None:
    """A worker that is busy may take them yet; the page of the run says until when."""
    async with site() as here:
        ada = await here.key("ada", "run")
        runner = await here.register_runner()
        await here.register_runner("gpu")
        id = await ada.start(task("build", needs=[]), task("test", needs=[]), task("gpu", **GPU))
        build = await runner.take()
        await (runner.finish if is_passed else runner.fail)(build)
        test = await runner.take()  # An independent required job still runs after the failure.
        assert (await ada.run(id))["optional_until"] is None
        await runner.finish(test)

        decided = await ticked(here, ada, id, 599)
        why = (await ada.get(f"/runs/{id}/explain")).body
        here.backend.after(2)
        run = await here.until(ada, id, "REPORTED")

        assert (decided["state"], decided["optional_until"] is not None) == ("RUNNING", True)
        assert why["waiting"][0]["code"] == "optional_jobs"
        outcome = "succeed" if is_passed else "fail"
        assert f"will {outcome} when its optional jobs have ended" in why["summary"]
        assert "gpu waits until" in why["summary"]
        assert (run["conclusion"], run["optional_until"]) == ("SUCCESS" if is_passed else "FAILED", None)
        assert states(run)[2] == ("CANCELED", "NOT_NEEDED")
        assert await wait_events(here, id) == [("optional_wait_began", ""), ("optional_wait_ended", "wait_over")]
        why = (await ada.get(f"/runs/{id}/jobs/gpu/explain")).body
        assert "no worker took it within 10 min" in why["summary"]


@pytest.mark.proves("MOD-15")
@on_loop
async def test_a_running_optional_job_is_awaited(site: Opened) -> None:
    """Its worker has done part of the work, and its timeout bounds it."""
    async with site() as here:
        ada = await here.key("ada", "run")
        runner = await here.register_runner()
        id = await ada.start(
            task("build", needs=[]), task("lint", allow_failure=True), plan={"optional_wait_seconds": 60}
        )
        build, lint = await runner.lease(slots=2)
        await runner.begin(build)
        await runner.begin(lint)

        await runner.finish(build)
        for _ in range(3):
            await runner.send(lint, "Heartbeat", ts=TIME)
            run = await ticked(here, ada, id, 100)
        why = (await ada.get(f"/runs/{id}/explain")).body
        await runner.finish(lint)
        ended = await here.until(ada, id, "REPORTED")

        assert [job["state"] for job in run["jobs"]] == ["SUCCEEDED", "RUNNING"]
        assert "lint is running" in why["summary"]
        assert (ended["conclusion"], states(ended)[1]) == ("SUCCESS", ("SUCCEEDED", ""))


@pytest.mark.proves("MOD-15", "MOD-D1")
@on_both_stores
@on_loop
async def test_a_job_after_an_optional_one_runs_and_has_a_wait_of_its_own(site: Opened) -> None:
    """A clean-up is not cut off because nobody took the job before it."""
    async with site() as here:
        ada = await here.key("ada", "run")
        runner = await here.register_runner()
        await here.register_runner("gpu")
        follower = task("mop", after=["gpu"], allow_failure=True)
        id = await ada.start(task("build", needs=[]), task("gpu", **GPU), follower)
        await runner.finish(await runner.take())

        released = await ticked(here, ada, id, 601)
        waiting = await ticked(here, ada, id, 590)
        await runner.finish(await runner.take())
        run = await here.until(ada, id, "REPORTED")

        assert states(released)[1:] == [("CANCELED", "NOT_NEEDED"), ("QUEUED", "")]
        assert [job["state"] for job in waiting["jobs"]] == ["SUCCEEDED", "CANCELED", "QUEUED"]
        assert (run["conclusion"], states(run)[2]) == ("SUCCESS", ("SUCCEEDED", ""))
        assert (await wait_events(here, id))[-1] == ("optional_wait_began", f"{id}/mop")


@pytest.mark.proves("MOD-15", "MOD-5")
@pytest.mark.parametrize("loss", ["failed", "lost"])
@on_loop
async def test_an_optional_job_that_is_queued_again_waits_again(site: Opened, loss: str) -> None:
    """A retry, and a lost lease, are no reason to give the job up at once, nor to wait for it for ever."""
    async with site() as here:
        ada = await here.key("ada", "run")
        runner = await here.register_runner()
        retry = {"max_attempts": 2, "base_delay_seconds": 1}
        id = await ada.start(task("build", needs=[]), task("lint", allow_failure=True, retry=retry))
        build, lint = await runner.lease(slots=2)
        await runner.begin(build)
        await runner.begin(lint)
        await runner.finish(build)
        for _ in range(8):
            await runner.send(lint, "Heartbeat", ts=TIME)
            await ticked(here, ada, id, 100)

        if loss == "failed":
            await runner.fail(lint, error_code="RUNNER_STARTUP")
            await ticked(here, ada, id, 10)
        else:
            await ticked(here, ada, id, 121)
        queued = await ticked(here, ada, id, 500)
        here.backend.after(101)
        run = await here.until(ada, id, "REPORTED")

        assert queued["state"] == "RUNNING"
        assert queued["jobs"][1]["state"] == ("QUEUED" if loss == "failed" else "RUNNING")
        assert (run["conclusion"], states(run)[1]) == ("SUCCESS", ("CANCELED", "NOT_NEEDED"))


@pytest.mark.proves("MOD-15")
@on_loop
async def test_the_wait_is_a_setting_of_the_run(site: Opened) -> None:
    """Its plan shows it, a rerun keeps it, and it is part of what people approve."""
    async with site() as here:
        ada = await here.key("ada", "run")
        runner = await here.register_runner()
        await here.register_runner("gpu")
        jobs = task("build", needs=[]), task("gpu", **GPU)
        id = await ada.start(*jobs, plan={"optional_wait_seconds": 0})
        refused = await ada.post("/runs", {"plan": {"jobs": [*jobs], "optional_wait_seconds": -1}})
        await runner.finish(await runner.take())

        run = await here.until(ada, id, "REPORTED")
        again = (await ada.post(f"/runs/{id}/rerun", {})).body
        other = await ada.run(await ada.start(*jobs))

        assert (run["conclusion"], run["optional_wait_seconds"]) == ("SUCCESS", 0)
        assert states(run)[1] == ("CANCELED", "NOT_NEEDED")
        assert (again["optional_wait_seconds"], again["plan_hash"]) == (0, run["plan_hash"])
        assert (await ada.get(f"/runs/{id}/plan")).body["optional_wait_seconds"] == 0
        assert (other["optional_wait_seconds"], other["plan_hash"] != run["plan_hash"]) == (600, True)
        assert (refused.status, "optional_wait_seconds" in str(refused.body)) == (422, True)


# -- approval gates


@pytest.mark.proves("MOD-15", "MOD-8", "MOD-11")
@on_both_stores
@on_loop
async def test_an_optional_gate_ends_with_the_wait_and_a_required_one_is_awaited(site: Opened) -> None:
    """A required gate decides about the run, whatever it guards; an optional one is a job that nobody runs."""
    async with site() as here:
        ada = await here.key("ada", "run", "approve", expires_seconds=10 * 86_400)
        runner = await here.register_runner()
        optional = {**gate("ask", []), "allow_failure": True}
        guarded = await ada.start(optional, task("deploy", needs=["ask"], allow_failure=True), task("build", needs=[]))
        await runner.finish(await runner.take())
        required = await ada.start(gate("must", []), task("deploy", needs=["must"], allow_failure=True))
        waiting = await ticked(here, ada, guarded, 599)
        here.backend.after(2)
        ended = await here.until(ada, guarded, "REPORTED")
        still = await ticked(here, ada, required, 5 * 86_400)

        assert (waiting["state"], ended["conclusion"]) == ("WAITING_APPROVAL", "SUCCESS")
        assert states(ended)[:2] == [("CANCELED", "NOT_NEEDED"), ("CANCELED", "BLOCKED")]
        assert (still["state"], still["optional_until"]) == ("WAITING_APPROVAL", None)
        why = (await ada.get(f"/runs/{guarded}/jobs/ask/explain")).body
        assert "nobody decided it within 10 min" in why["summary"]


# -- required jobs that nobody takes


@pytest.mark.proves("ORC-T3", "ORC-R10")
@on_both_stores
@on_loop
async def test_a_run_of_which_no_job_starts_times_out_after_a_day(site: Opened) -> None:
    """Its run timeout has not begun; without another limit it would wait for ever."""
    async with site() as here:
        ada = await here.key("ada", "run", expires_seconds=2 * 86_400)
        id = await ada.start(task("gpu", runs_on=["gpu"]), plan={"timeout_seconds": 60})

        queued = await ticked(here, ada, id, 86_400 - 5)
        here.backend.after(6)
        run = await here.until(ada, id, "REPORTED")

        assert (queued["state"], queued["start_by"] is not None) == ("QUEUED", True)
        assert (run["conclusion"], run["started_at"], run["start_by"]) == ("TIMEOUT", None, None)
        assert states(run) == [("CANCELED", "RUN_TIMEOUT")]
        why = (await ada.get(f"/runs/{id}/explain")).body
        assert "none of its jobs started within 1 d" in why["summary"]
