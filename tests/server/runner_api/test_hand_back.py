"""A runner that leaves releases its jobs: others may claim them, and no attempt is counted."""

from __future__ import annotations

import asyncio

from deltaci.core import attempt
from deltaci.core.attempt import Attempt
from tests.contract.backends import on_loop
from tests.server.runner_api.test_log import held_lease
from tests.server.site import OpenSite, stale_reason


@on_loop
async def test_a_job_that_is_handed_back_goes_to_another_runner_at_once(site: OpenSite) -> None:
    """It counts neither as a lost lease nor as a failed attempt; nothing of it runs, so there is no need to wait."""
    async with site() as here:
        lease, other = await held_lease(here), await here.runner("w2")
        await lease.send("AckLease")

        reply = await lease.runner.request("POST", "hand-back", delta_lease=lease.id)

        assert (reply.status, reply.body) == (200, {"handed_back": True})
        assert await here.server.state("q1") == attempt.QUEUED
        record = await here.server.find("q1", Attempt)
        assert record.lost_leases == 0
        assert (await other.take()).attempt_id == "q1"
        assert await lease.stale("Complete") == "LEASE_REVOKED"


@on_loop
async def test_only_the_holder_of_a_lease_can_release_it(site: OpenSite) -> None:
    """Another runner could otherwise stop the job."""
    async with site() as here:
        lease, other = await held_lease(here), await here.runner("w2")
        await lease.send("AckLease")

        reply = await here.refused(lambda: other.request("POST", "hand-back", delta_lease=lease.id))
        assert stale_reason(reply, lease.id) == "UNKNOWN_LEASE"
        assert (await lease.send("Complete")).body["accepted"]

        reply = await here.refused(lambda: lease.runner.request("POST", "hand-back", delta_lease=lease.id))
        assert stale_reason(reply, lease.id) == "LEASE_COMPLETED"


@on_loop
async def test_an_attempt_with_a_requested_cancel_is_not_handed_back(site: OpenSite) -> None:
    """It would start again on another runner."""
    async with site() as here:
        lease = await held_lease(here)
        await lease.send("AckLease")
        await here.server.do(attempt.Cancel(id="q1", reason="CANCELED"))

        reply = await here.refused(lambda: lease.runner.request("POST", "hand-back", delta_lease=lease.id))

        assert (reply.status, reply.code) == (409, "wrong_state")
        assert (await lease.send("CancelAck")).status == 200


@on_loop
async def test_a_heartbeat_at_the_same_time_does_not_prevent_the_hand_back(site: OpenSite) -> None:
    """The runner's heartbeat task does not know yet that the lease is handed back."""
    async with site() as here:
        lease = await held_lease(here)
        await lease.send("AckLease")

        replies = await asyncio.gather(
            *(lease.send("Heartbeat") for _ in range(5)),
            lease.runner.request("POST", "hand-back", delta_lease=lease.id),
        )

        assert replies[-1].body == {"handed_back": True}
        assert await here.server.state("q1") == attempt.QUEUED
