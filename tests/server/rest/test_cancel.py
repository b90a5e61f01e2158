"""Cancelling a run: CANCELED means that its processes have stopped, and any other status says so."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from datetime import datetime, timedelta
from typing import Any

import httpx
import pytest

from deltaci.core.lease import CANCEL_SECONDS, TTL_SECONDS
from tests.contract.backends import on_both_stores, within
from tests.server.rest.site import TIME, ApiSite, Caller, gate, task
from tests.support.plain_http import NO_TLS

Opened = Callable[[], AbstractAsyncContextManager[ApiSite]]


async def listed(caller: Caller, status: str) -> list[str]:
    """Return the ids of the runs that the list has under this status."""
    return [run["id"] for run in (await caller.get(f"/runs?status={status}")).body["runs"]]


def status_of(record: Any) -> tuple[str, bool, str | None]:
    """Return what a reader sees of a run, a job or an attempt."""
    return record["status"], record.get("canceling", False), record["stop_unconfirmed_until"]


async def badges(here: ApiSite, caller: Caller, *paths: str) -> list[str]:
    """Return the text of the status line of each of these web pages."""
    async with httpx.AsyncClient(verify=NO_TLS, base_url=here.url) as browser:
        await browser.post("/sign-in", data={"key": caller.token}, headers={"Origin": here.url})
        pages = [(await browser.get(path, headers={"Accept": "text/html"})).text for path in paths]
    lines = [re.search(r'<span id="(?:run|job)-status".*', page, re.DOTALL) for page in pages]
    return [re.sub(r"<[^>]*>", "", line[0][:2000]) if line is not None else "" for line in lines]


@on_both_stores
@pytest.mark.proves("STP-R8", "STP-S7")
@within(60)
async def test_a_run_keeps_its_status_until_its_runner_has_stopped(site: Opened) -> None:
    """A run that shows CANCELED while its process still deploys would be a lie."""
    async with site() as here:
        ada, runner = await here.key(), await here.register_runner()
        id = await ada.start(task("a"))
        lease = await runner.take()

        requested = (await ada.post(f"/runs/{id}/cancel", {"reason": "wrong branch"})).body
        read = await ada.run(id)

        assert status_of(requested) == status_of(read) == ("RUNNING", True, None)
        assert status_of(read["jobs"][0]) == ("RUNNING", True, None)
        assert (requested["state"], requested["conclusion"]) == ("CANCEL_REQUESTED", "")
        assert (await listed(ada, "RUNNING"), await listed(ada, "CANCELED")) == ([id], [])
        for line in await badges(here, ada, f"/runs/{id}", f"/runs/{id}/jobs/a"):
            assert line.startswith("running · canceling")

        await runner.send(lease, "CancelAck", final_status="CANCELED", ts=TIME)
        ended = await here.until(ada, id, "CANCELED")

        assert status_of(ended) == status_of(ended["jobs"][0]) == ("CANCELED", False, None)
        assert (await listed(ada, "RUNNING"), await listed(ada, "CANCELED")) == ([], [id])


@pytest.mark.proves("STP-P1", "STP-R8")
@within(60)
async def test_nothing_is_approved_or_rejected_in_a_run_that_is_being_canceled(site: Opened) -> None:
    """The error says why, and a repeated cancel changes nothing."""
    async with site() as here:
        ada, runner = await here.key(), await here.register_runner()
        id = await ada.start(task("a", needs=[]), gate("g", needs=[]))
        await runner.take()
        first = (await ada.post(f"/runs/{id}/cancel", {"reason": "wrong branch"})).body

        for decision in ("approve", "reject"):
            for body in ({}, {"job": "g"}):
                refusal = await ada.post(f"/runs/{id}/{decision}", body)
                assert (refusal.status, refusal.code) == (409, "wrong_state")
                assert "is being cancelled (wrong branch)" in refusal.body["message"]
        again = await ada.post(f"/runs/{id}/cancel", {"reason": "another"})

        assert (again.status, again.body) == (200, first)


@pytest.mark.proves("ORC-C3", "STP-R8")
@pytest.mark.parametrize("first", [task("a", runs_on=["nobody"]), gate("a")], ids=["queued", "waiting"])
@within(60)
async def test_a_run_without_a_lease_is_canceled_by_the_request(site: Opened, first: dict[str, Any]) -> None:
    """No process can run: the request and the end are one transaction."""
    async with site() as here:
        ada = await here.key()
        id = await ada.start(first, task("b"))

        canceled = (await ada.post(f"/runs/{id}/cancel")).body

        assert status_of(canceled) == ("CANCELED", False, None)
        assert {job["status"] for job in (await ada.run(id))["jobs"]} == {"CANCELED"}
        cancels = [event for event in await here.log() if event.run_id == id and event.to.startswith("CANCEL")]
        assert len({event.at for event in cancels}) == 1


@on_both_stores
@pytest.mark.proves("ORC-C2")
@within(60)
async def test_a_forced_cancel_says_until_when_the_process_may_run(site: Opened) -> None:
    """The runner did not answer, so that nothing proves its end before the old lease would have ended."""
    async with site() as here:
        ada, runner = await here.key(), await here.register_runner()
        id = await ada.start(task("a"))
        await runner.take()
        renewed_at = datetime.fromisoformat((await ada.run(id))["jobs"][0]["tries"][0]["updated_at"])
        await ada.post(f"/runs/{id}/cancel")

        here.backend.after(CANCEL_SECONDS + 1)
        ended = await here.until(ada, id, "CANCELED")

        lease_end = renewed_at + timedelta(seconds=TTL_SECONDS)
        [job] = ended["jobs"]
        for record in (ended, job, job["tries"][0]):
            assert datetime.fromisoformat(record["stop_unconfirmed_until"]) == lease_end
        assert (ended["status"], job["status"]) == ("CANCELED", "CANCELED")
        [in_list] = (await ada.get("/runs?status=CANCELED")).body["runs"]
        assert in_list["stop_unconfirmed_until"] == ended["stop_unconfirmed_until"]
        for line in await badges(here, ada, f"/runs/{id}", f"/runs/{id}/jobs/a"):
            assert f"its process may run until {lease_end:%Y-%m-%d %H:%M:%S} UTC" in line
