"""Repeated registration: lost responses, lost credentials, removed runners, and changed labels."""

from __future__ import annotations

import json
from typing import Any

from deltaci.core import run, worker
from deltaci.core.cascade import NewRecord
from deltaci.core.decide import Plan
from deltaci.core.run import Run
from deltaci.core.worker import BUSY, IDLE, SHUTDOWN, Worker
from deltaci.server.auth.credentials import CREDENTIAL_SECONDS, REGISTRATION_SECONDS
from tests.contract.backends import on_loop
from tests.server.site import OpenSite, RegisteredRunner, Reply, Site
from tests.support.lab import TENANT, task

OWN = "a random text that this runner made"


async def entered(site: Site, token: str, **fields: Any) -> RegisteredRunner:
    """Return a runner that was registered."""
    reply = await site.register(token, **fields)
    assert reply.status == 200, reply
    site.secrets.add(reply.body["credential"])
    return RegisteredRunner(site, reply.body["runner_id"], reply.body["credential"])


async def kept_out(site: Site, token: str, **fields: Any) -> str:
    """Return why a registration was refused, after a check that nothing has changed."""
    reply = await site.refused(lambda: site.register(token, **fields))
    assert (reply.status, reply.code) == (401, "bad_credential"), reply
    return reply.message


def again(site: Site, id: str = "w1", tenant: str = TENANT) -> str:
    """Return a token for a known runner."""
    token = site.signer.sign("register", id, tenant, REGISTRATION_SECONDS, again=True)
    site.secrets.add(token)
    return token


async def renewal(runner: RegisteredRunner, **fields: Any) -> Reply:
    """Ask for a fresh credential."""
    reply = await runner.request("POST", "renew", json.dumps(fields).encode())
    if reply.status == 200:
        runner.site.secrets.add(reply.body["credential"])
    return reply


async def plan(site: Site, queue_key: str = "") -> None:
    """A run with one job, which waits."""
    await site.server.do(NewRecord(id="r1", record=Run(id="r1", run_id="r1", tenant=TENANT)))
    await site.server.do(run.BeginPlanning(id="r1"))
    job = task("a", queue_key=queue_key, work={"steps": ["true"]})
    await site.server.do(Plan(id="r1", jobs=(job,), plan_hash="p"))


# -- an answer that was lost


@on_loop
async def test_a_used_token_is_refused(site: OpenSite) -> None:
    """At once and later, with a different request id and without one."""
    async with site() as here:
        token = here.token("w1")
        here.secrets.add(OWN)
        runner = await entered(here, token, request_id=OWN)

        for request_id in ("", "another", OWN + " ", OWN[:-1]):
            assert "registered already" in await kept_out(here, token, request_id=request_id)
        here.backend.after(3600)
        assert "registered already" in await kept_out(here, token, request_id="another")
        assert "registered already" in await kept_out(here, here.token("w1"), request_id=OWN)
        here.backend.after(CREDENTIAL_SECONDS)
        assert (await runner.request("POST", "renew")).code == "expired_credential"


@on_loop
async def test_a_repeated_registration_gets_the_same_response(site: OpenSite) -> None:
    """The response was lost; the runner repeats its request, and nothing is written a second time."""
    async with site() as here:
        token = here.token("w1")
        here.secrets.add(OWN)
        await entered(here, token, request_id=OWN, capabilities=["linux"], slots=2)
        before = await here.server.store.last_seq()

        runner = await entered(here, token, request_id=OWN, capabilities=["linux"], slots=2)

        assert await here.server.store.last_seq() == before
        assert await runner.lease() == []
        await entered(here, token, request_id=OWN, capabilities=["gpu"], slots=3)
        known = await here.server.find("w1", Worker)
        assert (known.labels, known.max_concurrent_tasks) == (("gpu",), 3)


@on_loop
async def test_a_repeat_is_refused_after_the_token_expired_or_the_runner_was_removed(site: OpenSite) -> None:
    """An expired token and a removed runner stay so."""
    async with site() as here:
        token, other = here.token("w1", seconds=60), here.token("w2")
        here.secrets.add(OWN)
        await entered(here, token, request_id=OWN)
        await entered(here, other, request_id=OWN)
        await here.server.do(worker.Shutdown(id="w2"))

        here.backend.after(61)

        late = await here.refused(lambda: here.register(token, request_id=OWN))
        assert late.code == "expired_credential"
        assert "was shut down" in await kept_out(here, other, request_id=OWN)


# -- a credential that was lost


@on_loop
async def test_a_runner_that_lost_its_credential_registers_with_a_recovery_token(site: OpenSite) -> None:
    """It keeps its name. The token can be used once, like any other."""
    async with site() as here:
        early = again(here)
        await here.runner("w1")
        here.backend.after(5)
        spare = again(here)
        here.backend.after(1)
        token = again(here)

        assert "at least as new as this one" in await kept_out(here, early)
        here.backend.after(1)
        runner = await entered(here, token, capabilities=["linux"])

        assert await runner.lease() == []
        for old in (token, spare, early):
            assert "at least as new as this one" in await kept_out(here, old)
        assert (await here.server.find("w1", Worker)).labels == ("linux",)


@on_loop
async def test_a_registration_with_a_recovery_token_is_safe_to_repeat(site: OpenSite) -> None:
    """Its response may be lost, too."""
    async with site() as here:
        await here.runner("w1")
        here.secrets.add(OWN)
        here.backend.after(5)
        token = again(here)
        here.backend.after(1)
        await entered(here, token, request_id=OWN)

        assert await (await entered(here, token, request_id=OWN)).lease() == []
        assert await (await entered(here, token, request_id=OWN, slots=2)).lease() == []
        await kept_out(here, token, request_id="another")
        await here.server.do(worker.Shutdown(id="w1"))
        assert "was shut down" in await kept_out(here, token, request_id=OWN)


@on_loop
async def test_a_recovery_token_is_refused_for_an_unknown_or_removed_runner(site: OpenSite) -> None:
    """A typo must not create a runner, and a removed runner stays removed for all earlier tokens."""
    async with site() as here:
        await here.runner("w1")
        here.backend.after(5)
        early = again(here)
        here.backend.after(5)
        await here.server.do(worker.Shutdown(id="w1"))
        here.backend.after(5)

        assert "is not registered" in await kept_out(here, again(here, "w2"))
        assert "was shut down" in await kept_out(here, early)
        await here.runner("w3")
        here.backend.after(5)
        assert "is not registered" in await kept_out(here, again(here, "w3", "another"))


# -- renewal


@on_loop
async def test_a_removed_runner_cannot_renew_its_credential(site: OpenSite) -> None:
    """Otherwise it could renew forever."""
    async with site() as here:
        runner = await here.runner("w1")
        stranger = RegisteredRunner(here, "w9", here.signer.sign("run", "w9", TENANT, 900))
        namesake = RegisteredRunner(here, "w1", here.signer.sign("run", "w1", "another", 900))
        here.secrets |= {stranger.credential, namesake.credential}
        await here.server.do(worker.Shutdown(id="w1"))

        gone = await here.refused(lambda: renewal(runner))
        unknown = await here.refused(lambda: renewal(stranger))
        elsewhere = await here.refused(lambda: renewal(namesake))

        assert {(each.status, each.code) for each in (gone, unknown, elsewhere)} == {(401, "bad_credential")}
        assert "was shut down" in gone.message
        assert unknown.message.replace("w9", "w1") == elsewhere.message == gone.message
        assert (await here.server.find("w1", Worker)).state == SHUTDOWN


@on_loop
async def test_a_runner_that_is_shutting_down_can_finish_its_jobs(site: OpenSite) -> None:
    """A job may last longer than a credential."""
    async with site() as here:
        runner = await here.runner("w1")
        await here.server.register("other")
        await plan(here)
        lease = await runner.take()
        await here.server.do(worker.Shutdown(id="w1"))

        here.backend.after(20)
        assert (await lease.send("Heartbeat")).status == 200
        assert (await renewal(runner)).status == 200
        assert (await lease.send("Complete")).body["accepted"] is True

        assert (await here.server.find("w1", Worker)).state == SHUTDOWN
        assert (await here.refused(lambda: renewal(runner))).status == 401


@on_loop
async def test_a_renewal_updates_the_runners_capabilities(site: OpenSite) -> None:
    """It was restarted with another graphics card and more slots, and gets work for both."""
    async with site() as here:
        runner = await here.runner("w1", capabilities=["linux"])
        await plan(here, "gpu")
        assert await runner.lease(capabilities=["linux", "gpu"]) == []

        assert (await renewal(runner, capabilities=["gpu", "linux"], slots=4)).status == 200
        before = await here.server.store.last_seq()
        assert (await renewal(runner)).status == 200
        assert (await runner.request("POST", "renew")).status == 200

        assert await here.server.store.last_seq() == before
        known = await here.server.find("w1", Worker)
        assert (known.state, known.labels, known.max_concurrent_tasks) == (IDLE, ("gpu", "linux"), 4)
        assert len(await runner.lease(capabilities=["linux", "gpu"])) == 1
        assert (await here.server.find("w1", Worker)).state == BUSY


@on_loop
async def test_an_invalid_renewal_is_refused(site: OpenSite) -> None:
    """The error gives the reason."""
    async with site() as here:
        runner = await here.runner("w1")

        wrong: list[dict[str, Any]] = [{"slots": 0}, {"slots": "2"}, {"capabilities": "linux"}, {"labels": []}]
        for fields in wrong:
            reply = await here.refused(lambda told=fields: renewal(runner, **told))  # type: ignore[misc]
            assert (reply.status, reply.code) == (422, "bad_message")
