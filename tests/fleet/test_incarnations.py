"""Incarnations: a worker that was shut down never changes; its machine returns as a new record of the same name."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import msgspec
import pytest

from deltaci.core import worker
from deltaci.core.ids import first_incarnation_id, incarnation_id, worker_name
from deltaci.core.worker import DRAINED, IDLE, PRESUMED_GONE, QUARANTINED, SHUTDOWN
from deltaci.fleet.health import HEALTH_SECONDS, MAX_SILENT_SECONDS
from deltaci.fleet.incarnations import KIND, Incarnations
from deltaci.server.auth.credentials import REGISTRATION_SECONDS
from deltaci.storage.port import Document
from tests.contract.backends import on_loop
from tests.fleet.site import FleetSite, OpenFleet
from tests.server.site import RegisteredRunner, Reply
from tests.support.lab import TENANT

REQUEST_ID = "a random text that this runner made"


async def renewed(runner: RegisteredRunner, **fields: Any) -> RegisteredRunner:
    """Renew the runner's credential; return the runner with its new id and credential."""
    reply = await runner.request("POST", "renew", json.dumps(fields).encode())
    assert reply.status == 200, reply
    runner.site.secrets.add(reply.body["credential"])
    return RegisteredRunner(runner.site, reply.body["runner_id"], reply.body["credential"])


async def presumed_gone(site: FleetSite, id: str = "w1") -> None:
    """Shut down the worker as presumed gone."""
    await site.server.do(worker.Shutdown(id=id, reason=PRESUMED_GONE))
    await site.receive_events()


def new_token(site: FleetSite, *, again: bool) -> str:
    """Return a new registration token for w1."""
    token = site.signer.sign("register", "w1", TENANT, REGISTRATION_SECONDS, again=again)
    site.secrets.add(token)
    return token


async def refused(site: FleetSite, token: str, **fields: Any) -> str:
    """Try to register with the token; return the message of the refusal."""
    reply: Reply = await site.refused(lambda: site.register(token, **fields))
    assert reply.code == "bad_credential", reply
    return reply.message


def test_an_incarnation_is_identified_by_name_and_number() -> None:
    """The id of the first one is the name. Any other suffix belongs to a runner that shares a credential."""
    assert [incarnation_id("w", number) for number in (1, 2, 10)] == ["w", "w/2", "w/10"]
    assert [worker_name(id) for id in ("w", "w/2", "host/a")] == ["w", "w", "host"]
    assert [first_incarnation_id(id) for id in ("w", "w/2", "w/10")] == ["w"] * 3
    assert [first_incarnation_id(id) for id in ("w/1", "w/02", "w/a", "w/", "w/²")] == [
        "w/1",
        "w/02",
        "w/a",
        "w/",
        "w/²",
    ]


@on_loop
async def test_a_removed_worker_returns_only_with_a_new_token(fleet: OpenFleet) -> None:
    """Neither its credential nor an earlier token is accepted."""
    async with fleet() as here:
        runner = await here.runner("w1")
        here.backend.after(5)
        spares = [new_token(here, again=again) for again in (True, False)]
        await here.server.do(worker.Shutdown(id="w1", reason=worker.REMOVED, actor="user:ada"))
        await here.receive_events()
        here.backend.after(5)

        reply = await here.refused(lambda: runner.request("POST", "renew"))
        assert (reply.code, "was shut down" in reply.message) == ("bad_credential", True)
        reply = await here.refused(lambda: runner.request("POST", "lease", b'{"type": "Lease", "runner_id": "w1"}'))
        assert (reply.code, "REMOVED" in reply.message) == ("shut_down", True)
        for spare in spares:
            await refused(here, spare)
        back = await here.register(new_token(here, again=True))

        assert (back.status, back.body["runner_id"]) == (200, "w1/2")
        here.secrets.add(back.body["credential"])
        assert (await here.state("w1"), await here.state("w1/2")) == (SHUTDOWN, IDLE)


@on_loop
async def test_a_worker_that_is_presumed_gone_can_be_removed_too(fleet: OpenFleet) -> None:
    """Then it does not come back without a new token."""
    async with fleet() as here:
        runner = await here.runner("w1")
        await presumed_gone(here)
        incarnation = await here.incarnations.latest(TENANT, "w1")
        assert incarnation.may_return
        for by in ("user:ada", "user:bob"):
            await here.incarnations.mark_removed(TENANT, incarnation, by, here.backend.now())

        assert (await here.refused(lambda: runner.request("POST", "renew"))).code == "bad_credential"
        here.backend.after(5)
        back = await here.register(new_token(here, again=False))

        here.secrets.add(back.body["credential"])
        assert back.body["runner_id"] == "w1/2"
        await presumed_gone(here, "w1/2")
        assert (await renewed(RegisteredRunner(here, "w1/2", back.body["credential"]))).id == "w1/3"


@on_loop
async def test_a_worker_that_was_presumed_gone_can_return_by_itself(fleet: OpenFleet) -> None:
    """Its machine was only suspended. It keeps its labels and slots unless it sends others, and gets work."""
    async with fleet() as here:
        runner = await here.runner("w1", capabilities=["gpu"], slots=3)
        await here.pass_silently(MAX_SILENT_SECONDS + HEALTH_SECONDS)
        assert await here.state() == SHUTDOWN
        await here.plan(queue_key="gpu")

        request = b'{"type": "Lease", "runner_id": "w1", "capabilities": ["gpu"]}'
        assert (await runner.request("POST", "lease", request)).code == "shut_down"
        back = await renewed(runner)
        await here.receive_events()
        lease = await back.take(capabilities=["gpu"])
        assert (await lease.send("AckLease")).status == 200

        record = await here.worker("w1/2")
        assert (back.id, record.labels, record.max_concurrent_tasks, record.tasks) == ("w1/2", ("gpu",), 3, ("r1/a.1",))
        assert (await renewed(back, capabilities=["cpu"])).id == "w1/2"
        assert (await here.worker("w1/2")).labels == ("cpu",)


@on_loop
async def test_concurrent_returns_create_one_incarnation(fleet: OpenFleet) -> None:
    """Also at different servers."""
    async with fleet() as here, fleet() as beside:
        runner = await here.runner("w1")
        await presumed_gone(here)

        sites = (here, beside, here, beside)
        runners = await asyncio.gather(*(renewed(site.connected(runner)) for site in sites))

        assert {returned.id for returned in runners} == {"w1/2"}
        assert [trigger for trigger, _ in await here.steps("w1/2")] == ["registered", "registration_complete"]


@on_loop
async def test_an_incarnation_that_was_not_counted_is_found(fleet: OpenFleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server was killed between creating the record and counting it."""
    async with fleet() as here:
        runner = await here.runner("w1")
        await presumed_gone(here)

        async def killed(*_: Any) -> None:
            return None

        monkeypatch.setattr(Incarnations, "count_next", killed)
        assert (await renewed(runner)).id == "w1/2"
        assert (await renewed(runner)).id == "w1/2"
        await presumed_gone(here, "w1/2")
        assert (await renewed(runner)).id == "w1/3"
        monkeypatch.undo()

        assert (await here.incarnations.latest(TENANT, "w1")).number == 3
        await presumed_gone(here, "w1/3")
        assert (await renewed(runner)).id == "w1/4"


@on_loop
async def test_a_token_is_valid_once_over_all_incarnations(fleet: OpenFleet) -> None:
    """A repeat of the same request, after a lost response, returns the same incarnation."""
    async with fleet() as here:
        here.secrets.add(REQUEST_ID)
        first = here.token("w1")
        reply = await here.register(first, request_id=REQUEST_ID)
        here.secrets.add(reply.body["credential"])
        here.backend.after(5)
        await presumed_gone(here)
        here.backend.after(5)
        second = new_token(here, again=True)

        assert "registered" in await refused(here, first, request_id="a thief's")
        replies = [await here.register(second, request_id=REQUEST_ID) for _ in range(2)]
        here.secrets |= {reply.body["credential"] for reply in replies}
        await refused(here, second, request_id="a thief's")
        await presumed_gone(here, "w1/2")

        await refused(here, second, request_id="a thief's")
        assert {reply.body["runner_id"] for reply in replies} == {"w1/2"}
        assert (await renewed(RegisteredRunner(here, "w1/2", replies[0].body["credential"]))).id == "w1/3"
        await refused(here, second, request_id="a thief's")


@on_loop
async def test_a_worker_does_not_escape_its_hold_by_returning(fleet: OpenFleet) -> None:
    """A drained worker stays drained. A quarantined one is trusted again after a new registration."""
    async with fleet() as here:
        drained, quarantined = await here.runner("w1"), await here.runner("w2")
        await here.server.do(worker.Drain(id="w1", reason="new disk", actor="user:ada"))
        await here.server.do(worker.Quarantine(id="w2", reason="odd"))
        for id in ("w1", "w2"):
            await presumed_gone(here, id)
        here.backend.after(5)

        assert [(await renewed(runner)).id for runner in (drained, quarantined)] == ["w1/2", "w2/2"]
        first, second = await here.worker("w1/2"), await here.worker("w2/2")
        assert (first.hold, first.hold_reason) == (DRAINED, "new disk")
        assert (second.hold, second.hold_reason) == (QUARANTINED, "from its previous incarnation: odd")
        await here.server.do(worker.Resume(id="w1/2", actor="user:ada"))
        assert (await renewed(drained)).id == "w1/2"
        assert (await here.worker("w1/2")).hold == ""
        await presumed_gone(here, "w2/2")
        here.backend.after(5)
        reply = await here.register(here.signer.sign("register", "w2", TENANT, 60, again=True))
        here.secrets.add(reply.body["credential"])

        assert (await here.worker("w2/3")).hold == ""


@on_loop
async def test_a_runner_of_another_tenant_with_the_same_name_is_independent(fleet: OpenFleet) -> None:
    """The refusal does not reveal that the name exists."""
    async with fleet() as here:
        await here.runner("w1")
        await presumed_gone(here)
        stranger = RegisteredRunner(here, "w1", here.signer.sign("run", "w1", "another", 900))
        here.secrets.add(stranger.credential)

        assert (await here.refused(lambda: stranger.request("POST", "renew"))).code == "bad_credential"
        assert await here.server.store.find("w1/2") is None


@on_loop
async def test_a_removal_that_an_earlier_version_stored_still_holds(fleet: OpenFleet) -> None:
    """It was part of the document with the number of the incarnation."""
    async with fleet() as here:
        runner = await here.runner("w1")
        await presumed_gone(here)
        body = msgspec.json.encode({"number": 1, "removed_at": here.backend.now(), "removed_by": "user:ada"})
        await here.server.store.put_documents([Document(KIND, TENANT, "w1", 0, 0, body)])

        assert not (await here.incarnations.latest(TENANT, "w1")).may_return
        assert (await here.refused(lambda: runner.request("POST", "renew"))).code == "bad_credential"
